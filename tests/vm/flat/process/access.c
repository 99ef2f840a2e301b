// SPDX-License-Identifier: MIT OR Apache-2.0
/* Access: who may use a device, and who owns it. */
#define _GNU_SOURCE
#include "edu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void open_as_user(const char *node, bool in_group, int namespace, int error)
{
	pid_t pid = fork();
	struct edu edu;
	char *page;
	int fd;

	if (pid == 0) {
		set_memlock(MIB);
		become_user(in_group);
		if (namespace)
			SYS(unshare(namespace));
		fd = open(node, O_RDWR | O_CLOEXEC);
		CHECK_EQ(fd < 0 ? errno : 0, error);
		if (error)
			_exit(0);
		/* no privilege is needed but the group, and enough RLIMIT_MEMLOCK */
		page = anon(1);
		edu = edu_open(fd);
		CHECK_REACHES(&edu, register_memory(fd, page, PAGE, WRITE).device_addr, page, PAGE);
		_exit(0);
	}
	join(pid);
}

TEST(node_mode)
{
	struct pci_device device = need_device(0);
	struct stat status;

	/* a new node, which nobody has changed */
	pci_unbind(device.bdf);
	pci_bind(device.bdf);
	device = need_device(0);
	SYS(stat(device.node, &status));
	CHECK(S_ISCHR(status.st_mode));
	CHECK_EQ(status.st_mode & 0777, 0660);
	CHECK_EQ(status.st_uid, 0);
}

TEST(group_member)
{
	open_as_user(need_device(0).node, true, 0, 0);
}

TEST(stranger)
{
	open_as_user(need_device(0).node, false, 0, EACCES);
}

/* Root of a user namespace has no more rights than the user who made it. */
TEST(namespace_root)
{
	open_as_user(need_device(0).node, false, CLONE_NEWUSER, EACCES);
	open_as_user(need_device(0).node, true, CLONE_NEWUSER, 0);
}

static int try_bar(int fd)
{
	void *bar = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, get_info(fd).out_bars[0].offset);

	if (bar == MAP_FAILED)
		return -errno;
	munmap(bar, PAGE);
	return 0;
}

/* Checks that calls that touch the device are the owner's alone, and others everybody's. */
static void check_busy(int fd, char *memory)
{
	int eventfd_ = SYS(eventfd(0, EFD_CLOEXEC));
	struct registration pinned, none;
	struct pinmap_preflight preflight = {
		.size = sizeof(preflight), .addr = (uintptr_t)memory, .length = PAGE, .flags = WRITE
	};
	struct pinmap_reserved reserved;
	struct pinmap_fail fail;
	uint64_t address = 0;

	CHECK_ERR(EBUSY, try_ioctl(fd, PINMAP_PREFLIGHT, &preflight));
	preflight.flags |= NO_MAP;
	CHECK_OK(try_ioctl(fd, PINMAP_PREFLIGHT, &preflight));
	CHECK_ERR(EBUSY, try_register_memory(fd, memory, PAGE, WRITE, &none));
	CHECK_ERR(EBUSY, try_register_memory(fd, memory, PAGE, IDENTITY, &none));
	CHECK_ERR(EBUSY, try_bar(fd));
	CHECK_ERR(EBUSY, try_set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, eventfd_));
	if (get_info(fd).out_flags & PINMAP_INFO_RESET)
		CHECK_ERR(EBUSY, try_reset_device(fd));

	pinned = register_memory(fd, memory, PAGE, WRITE | NO_MAP);
	CHECK_ERR(EBUSY, try_map(fd, pinned.handle, 0, &address, &fail));
	CHECK_EQ(query_handle(fd, pinned.handle).out_nr_mappings, 0);
	CHECK_OK(try_get_reserved(fd, 0, &reserved));
	set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, eventfd_);
	set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, -1);
	release(fd, pinned.handle);
	close(eventfd_);
}

enum claim { BY_REGISTER, BY_MAP, BY_BAR, BY_INTERRUPT };

static const struct claimed {
	const char *name;
	enum claim claim;
} claims[] = {
	{ "register", BY_REGISTER },
	{ "map", BY_MAP },
	{ "bar", BY_BAR },
	{ "interrupt", BY_INTERRUPT },
};

/*
 * A context that became the owner in any way is so until its file is closed, and others are told
 * so.
 */
TEST_EACH(owner_by, claims)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0), other = open_device(0);
	char *memory = anon(2), *others = anon(2);
	struct registration registration;

	CHECK(!pci_is_master(device.bdf));
	switch (row->claim) {
	case BY_REGISTER:
		registration = register_memory(fd, memory, PAGE, WRITE);
		release(fd, registration.handle);
		break;
	case BY_MAP:
		registration = register_memory(fd, memory, PAGE, NO_MAP);
		CHECK_EQ(get_info(fd).out_flags & PINMAP_INFO_OWNER, 0);
		CHECK(!pci_is_master(device.bdf));
		map(fd, registration.handle, 0, 0);
		break;
	case BY_BAR:
		CHECK_OK(try_bar(fd));
		break;
	case BY_INTERRUPT:
		set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, SYS(eventfd(0, EFD_CLOEXEC)));
		break;
	}
	CHECK(get_info(fd).out_flags & PINMAP_INFO_OWNER);
	CHECK(pci_is_master(device.bdf));
	check_busy(other, others);
	close(fd);
	CHECK(!pci_is_master(device.bdf));
	register_memory(other, others, PAGE, WRITE);
	CHECK(get_info(other).out_flags & PINMAP_INFO_OWNER);
}

/* A failed call does not make an owner. */
TEST(no_owner_by_failure)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0), other = open_device(0);
	char *memory = anon(2);
	struct pinmap_register args = register_args(memory, PAGE, FIXED);
	uint64_t address = 0;
	struct pinmap_fail fail;

	SYS(munmap(memory + PAGE, PAGE));
	CHECK_REGISTER_FAILS(fd, memory, 2 * PAGE, WRITE, EFAULT, PINMAP_FAIL_HOLE, memory + PAGE);
	args.device_addr = interrupt_address(fd);
	check_fail(__FILE__, __LINE__, try_register_args(fd, &args), ENOSPC, &args.fail,
		   PINMAP_FAIL_RESERVED, 0);
	CHECK_ERR(ENOENT, try_map(fd, 77, 0, &address, &fail));
	CHECK_ERR(EBADF, try_set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, 999));
	CHECK_EQ(get_info(fd).out_flags & (PINMAP_INFO_OWNED | PINMAP_INFO_OWNER), 0);
	CHECK(!pci_is_master(device.bdf));
	register_memory(other, memory, PAGE, WRITE);
}

/* A context that waits for the device has its memory pinned, and maps it when the owner goes. */
TEST(hand_over)
{
	int first = open_device(0), second = open_device(0);
	struct edu edu = edu_open(first);
	char *mine = anon(1), *theirs = anon(1);
	struct registration registration = register_memory(first, mine, PAGE, WRITE), waiting;

	CHECK_REACHES(&edu, registration.device_addr, mine, PAGE);
	waiting = register_memory(second, theirs, PAGE, WRITE | NO_MAP);
	edu_close(&edu);
	close(first);
	map(second, waiting.handle, PINMAP_MAP_WRITE, 0);
	edu = edu_open(second);
	CHECK_REACHES(&edu, (uintptr_t)theirs, theirs, PAGE);
}

/* Memory registered for two devices and released for one is left to the other. */
TEST(two_devices, .faults = true)
{
	int first, second;
	struct edu edu, other;
	struct registration here, there;
	char *page = anon(1);

	need_device(1);
	first = open_device(0);
	second = open_device(1);
	edu = edu_open(first);
	other = edu_open(second);
	here = register_memory(first, page, PAGE, WRITE);
	there = register_memory(second, page, PAGE, WRITE);
	CHECK_REACHES(&edu, here.device_addr, page, PAGE);
	CHECK_REACHES(&other, there.device_addr, page, PAGE);
	release(first, here.handle);
	edu_load(&edu, 90);
	memset(page, 0x42, PAGE);
	edu_writes(&edu, here.device_addr, PAGE);
	CHECK(bytes_are(page, PAGE, 0x42));
	CHECK_REACHES(&other, there.device_addr, page, PAGE);
	SYS(munmap(page, PAGE));
	CHECK_STALE_EVENT(second, there);
	CHECK_NO_EVENT(first);
}
