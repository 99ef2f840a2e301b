// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "device.h"

#include "pci.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { JUNK = 0xaa };

int try_open_device(unsigned int index)
{
	struct pci_device device;
	int fd;

	if (!pci_bound(index, &device))
		return -ENODEV;
	fd = open(device.node, O_RDWR | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int try_use_device(unsigned int index)
{
	struct pinmap_info info;
	int fd = try_open_device(index), result;

	if (fd < 0)
		return fd;
	result = try_get_info(fd, &info);
	if (result)
		close(fd);
	return result ? result : fd;
}

int open_function(const char *bdf)
{
	struct pci_device device;

	snprintf(device.bdf, sizeof(device.bdf), "%.15s", bdf);
	pci_look(&device);
	return SYS(open(device.node, O_RDWR | O_CLOEXEC));
}

int try_ioctl(int fd, unsigned long number, void *argument)
{
	int result = ioctl(fd, number, argument);

	return result < 0 ? -errno : result;
}

int try_get_info(int fd, struct pinmap_info *info)
{
	memset(info, JUNK, sizeof(*info));
	info->size = sizeof(*info);
	info->flags = 0;
	return try_ioctl(fd, PINMAP_GET_INFO, info);
}

struct pinmap_register register_args(const void *addr, size_t length, uint32_t flags)
{
	struct pinmap_register args;

	memset(&args, JUNK, sizeof(args));
	args.size = sizeof(args);
	args.flags = flags;
	args.addr = (uintptr_t)addr;
	args.length = length;
	args.device_addr = 0;
	args.address_bits = 0;
	args.__reserved = 0;
	return args;
}

int try_register_args(int fd, struct pinmap_register *args)
{
	return try_ioctl(fd, PINMAP_REGISTER, args);
}

int try_register_memory(int fd, const void *addr, size_t length, uint32_t flags,
			struct registration *out)
{
	struct pinmap_register args = register_args(addr, length, flags);
	int result = try_register_args(fd, &args);

	*out = (struct registration){
		.addr = (char *)addr,
		.length = length,
		.handle = args.out_handle,
		.device_addr = args.device_addr,
	};
	return result;
}

void check_fail(const char *file, int line, int result, int error, const struct pinmap_fail *fail,
		uint32_t reason, uint64_t addr)
{
	if (result != -error)
		test_fail(file, line, "%s (reason %u at %#llx) instead of %s", error_name(-result),
			  fail->reason, (unsigned long long)fail->addr, error_name(error));
	if (fail->reason != reason || fail->__reserved)
		test_fail(file, line, "%s for reason %u at %#llx instead of %u", error_name(error),
			  fail->reason, (unsigned long long)fail->addr, reason);
	if (addr && fail->addr != addr)
		test_fail(file, line, "reason %u at %#llx instead of %#llx", reason,
			  (unsigned long long)fail->addr, (unsigned long long)addr);
}

int try_release(int fd, uint64_t handle)
{
	struct pinmap_release args = { .size = sizeof(args), .handle = handle };

	return try_ioctl(fd, PINMAP_RELEASE, &args);
}

int try_query_handle(int fd, uint64_t handle, struct pinmap_query *query)
{
	memset(query, JUNK, sizeof(*query));
	query->size = sizeof(*query);
	query->flags = 0;
	query->handle = handle;
	return try_ioctl(fd, PINMAP_QUERY, query);
}

int try_query_addr(int fd, const void *addr, struct pinmap_query *query)
{
	memset(query, JUNK, sizeof(*query));
	query->size = sizeof(*query);
	query->flags = 0;
	query->handle = 0;
	query->addr = (uintptr_t)addr;
	return try_ioctl(fd, PINMAP_QUERY, query);
}

int try_map(int fd, uint64_t handle, uint32_t flags, uint64_t *device_addr,
	    struct pinmap_fail *fail)
{
	struct pinmap_map args = {
		.size = sizeof(args),
		.flags = flags,
		.handle = handle,
		.device_addr = *device_addr,
	};
	int result;

	memset(&args.fail, JUNK, sizeof(args.fail));
	result = try_ioctl(fd, PINMAP_MAP, &args);
	*device_addr = args.device_addr;
	*fail = args.fail;
	return result;
}

int try_unmap(int fd, uint64_t handle, uint64_t device_addr)
{
	struct pinmap_unmap args = { .size = sizeof(args),
				     .handle = handle,
				     .device_addr = device_addr };

	return try_ioctl(fd, PINMAP_UNMAP, &args);
}

int try_set_eventfd(int fd, uint32_t source, uint32_t index, int eventfd)
{
	struct pinmap_set_eventfd args = {
		.size = sizeof(args), .source = source, .index = index, .fd = eventfd
	};

	return try_ioctl(fd, PINMAP_SET_EVENTFD, &args);
}

int try_reset_device(int fd)
{
	struct pinmap_reset args = { .size = sizeof(args) };

	return try_ioctl(fd, PINMAP_RESET, &args);
}

int try_get_reserved(int fd, uint32_t index, struct pinmap_reserved *reserved)
{
	memset(reserved, JUNK, sizeof(*reserved));
	reserved->size = sizeof(*reserved);
	reserved->flags = 0;
	reserved->index = index;
	return try_ioctl(fd, PINMAP_GET_RESERVED, reserved);
}

uint64_t interrupt_address(int fd)
{
	struct pinmap_reserved reserved;

	for (uint32_t i = 0; !try_get_reserved(fd, i, &reserved); i++)
		if (reserved.out_kind == PINMAP_RESERVED_MSI)
			return reserved.out_start;
	SKIP("the IOMMU has no addresses of interrupts");
}

int try_next_event(int fd, struct pinmap_event *event, unsigned int milliseconds)
{
	struct pollfd poller = { .fd = fd, .events = POLLIN };
	ssize_t got;
	int ready;

	memset(event, JUNK, sizeof(*event));
	do {
		ready = poll(&poller, 1, slow(milliseconds));
	} while (ready < 0 && errno == EINTR);
	if (ready < 0)
		return -errno;
	if (ready == 0)
		return -ETIMEDOUT;
	got = read(fd, event, sizeof(*event));
	if (got < 0)
		return -errno;
	return got == sizeof(*event) ? 0 : -ENODATA;
}
