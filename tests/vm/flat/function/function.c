// SPDX-License-Identifier: MIT OR Apache-2.0
/* Functions other than edu. */
#define _GNU_SOURCE
#include "nvme.h"

#include "alloc.h"
#include "device.h"
#include "edu.h"
#include "file.h"
#include "importer/importer.h"
#include "kmsg.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "pins.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static unsigned int group_size(const char *bdf)
{
	DIR *directory = opendir(pci_path(bdf, "iommu_group/devices"));
	struct dirent *entry;
	unsigned int count = 0;

	while (directory && (entry = readdir(directory)))
		count += entry->d_name[0] != '.';
	if (directory)
		closedir(directory);
	return count;
}

static bool is_testdev(const char *bdf)
{
	return file_number(pci_path(bdf, "vendor"), 0) == 0x1b36 &&
	       file_number(pci_path(bdf, "device"), 0) == 0x0005;
}

static bool is_shared(const char *bdf)
{
	return group_size(bdf) > 1 && access(pci_path(bdf, "driver"), F_OK);
}

TEST(bars)
{
	struct nvme nvme = nvme_open();
	struct pinmap_info info = get_info(nvme.fd);
	const struct pinmap_bar *bar = &info.out_bars[0];
	const int prot = PROT_READ | PROT_WRITE;
	uint64_t behind = bar->hole_offset + bar->hole_length;

	CHECK_EQ(info.out_class, NVME_CLASS);
	CHECK_EQ(bar->length, 0x4000);
	CHECK_EQ(bar->flags & (PINMAP_BAR_MMAP | PINMAP_BAR_64BIT),
		 PINMAP_BAR_MMAP | PINMAP_BAR_64BIT);
	/* a 64-bit BAR takes up the next register as well */
	CHECK_EQ(info.out_bars[1].length, 0);
	CHECK(info.out_nr_vectors > 1);

	/* the table with the interrupts' addresses cannot be mapped */
	CHECK(bar->hole_length >= PAGE);
	CHECK(bar->hole_offset >= NVME_REGISTERS || PAGE > NVME_REGISTERS);
	CHECK_EQ((bar->hole_offset | bar->hole_length) % PAGE, 0);
	for (uint64_t at = 0; at < bar->length; at += PAGE) {
		bool hole = at >= bar->hole_offset && at < behind;
		void *page = mmap(NULL, PAGE, prot, MAP_SHARED, nvme.fd, bar->offset + at);

		CHECK_EQ(page == MAP_FAILED ? errno : 0, hole ? EINVAL : 0);
		if (!hole)
			CHECK_EQ(touch_read(page), 0);
	}
	CHECK(mmap(NULL, bar->length, prot, MAP_SHARED, nvme.fd, bar->offset) == MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
	CHECK(mmap(NULL, 2 * PAGE, prot, MAP_SHARED, nvme.fd,
		   bar->offset + bar->hole_offset - PAGE) == MAP_FAILED);
	nvme_map(&nvme);
	CHECK(nvme_get(&nvme, VERSION) >= 0x10000);
	nvme_close(&nvme);
}

/* A device quicker than edu works: data, and interrupts by MSI-X. */
TEST(identify)
{
	struct nvme nvme = nvme_open();
	int eventfd_ = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	struct registration registration;
	uint64_t count = 0;
	char *page = anon(1);

	nvme_map(&nvme);
	set_eventfd(nvme.fd, PINMAP_SOURCE_VECTOR, 0, eventfd_);
	set_eventfd(nvme.fd, PINMAP_SOURCE_VECTOR, get_info(nvme.fd).out_nr_vectors - 1, eventfd_);
	nvme_start(&nvme);
	registration = register_memory(nvme.fd, page, PAGE, WRITE);
	CHECK_EQ(nvme_identify(&nvme, registration.device_addr), 0);
	/* its serial number, as given on QEMU's command line */
	CHECK(!memcmp(page + 4, "pinmap", 6));
	CHECK(WAIT_FOR(2000, read(eventfd_, &count, sizeof(count)) == sizeof(count)));
	CHECK_EQ(count, 1);
	nvme_close(&nvme);
}

TEST(release_flush, .faults = true)
{
	struct nvme nvme = nvme_open();
	struct memory memory = memory_new(MEMFD, PAGE);
	struct registration registration;

	nvme_map(&nvme);
	nvme_start(&nvme);
	registration = register_memory(nvme.fd, memory.addr, PAGE, WRITE);
	CHECK_EQ(nvme_identify(&nvme, registration.device_addr), 0);
	CHECK(!bytes_are(memory.addr, PAGE, 0x11));
	memset(memory.addr, 0x11, PAGE);
	release(nvme.fd, registration.handle);
	nvme_identify(&nvme, registration.device_addr);
	CHECK(bytes_are(memory.addr, PAGE, 0x11));
	registration = register_memory(nvme.fd, memory.addr, PAGE, WRITE);
	CHECK_EQ(nvme_identify(&nvme, registration.device_addr), 0);
	SYS(munmap(memory.addr, PAGE));
	memset(memory.alias, 0x11, PAGE);
	nvme_identify(&nvme, registration.device_addr);
	CHECK(bytes_are(memory.alias, PAGE, 0x11));
	nvme_close(&nvme);
}

/* A prefetchable BAR is mapped write-combined, any other uncached. */
TEST(write_combined)
{
	volatile char *views[2] = { 0 };
	struct pci_device device;
	struct pinmap_info info;
	char flags[256];
	int fd;

	if (!find_function(is_testdev, device.bdf))
		SKIP("the machine has no pci-testdev");
	/* This is skipped where nothing shows page tables: before anything is bound. */
	memset(flags, 0, sizeof(flags));
	CHECK(user_entry(flags, flags));
	pci_bind(device.bdf);
	pci_look(&device);
	fd = SYS(open(device.node, O_RDWR | O_CLOEXEC));
	info = get_info(fd);
	for (unsigned int bar = 0; bar < PINMAP_NR_BARS; bar++) {
		bool combined = info.out_bars[bar].flags & PINMAP_BAR_PREFETCHABLE;

		if (!(info.out_bars[bar].flags & PINMAP_BAR_MMAP))
			continue;
		views[combined] = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
					   info.out_bars[bar].offset));
		(void)*views[combined];
		CHECK(user_entry(views[combined], flags));
		diag("BAR %u: %s", bar, flags);
		CHECK_EQ(is_write_combined(flags), combined);
		/* entries 2 and 3 of the PAT are uncached */
		CHECK_EQ(strstr(flags, " PCD ") != NULL, !combined);
	}
	CHECK(views[0] && views[1]);
	for (unsigned int i = 0; i < 2; i++)
		SYS(munmap((void *)views[i], PAGE));
	close(fd);
	pci_unbind(device.bdf);
	file_write(pci_path(device.bdf, "driver_override"), "\n");
}

/*
 * After an error on the bus that cut the function off it is gone for its users until it is bound
 * again.
 */
TEST(bus_error)
{
	enum { NORMAL = 1, FROZEN = 2, GONE = 3 };
	enum { CAN_RECOVER = 2, DISCONNECT = 4 };
	static const int states[] = { FROZEN, GONE };

	close(importer_open());
	for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
		struct nvme nvme = nvme_open();
		long long pins = pins_held();
		struct registration registration;
		char *page = anon(1);

		nvme_map(&nvme);
		nvme_start(&nvme);
		registration = register_memory(nvme.fd, page, PAGE, WRITE);
		/* one transfer was lost */
		CHECK_EQ(with_device_lock(nvme.device.bdf, IMPORTER_ERROR, NORMAL), CAN_RECOVER);
		CHECK_NO_EVENT(nvme.fd);
		CHECK_EQ(nvme_identify(&nvme, registration.device_addr), 0);

		CHECK_EQ(with_device_lock(nvme.device.bdf, IMPORTER_ERROR, states[i]), DISCONNECT);
		CHECK_EQ(next_event(nvme.fd).type, PINMAP_EVENT_GONE);
		CHECK(get_info(nvme.fd).out_flags & PINMAP_INFO_GONE);
		CHECK_EQ(touch_read(nvme.bar), SIGBUS);
		CHECK_ERR(ENODEV, try_register_memory(nvme.fd, page, PAGE, WRITE, &registration));
		CHECK_PINS(pins);
		CHECK(!pci_is_master(nvme.device.bdf));
		nvme_close(&nvme);
	}
	/* the function is back once it is bound again */
	{
		struct nvme nvme = nvme_open();

		nvme_map(&nvme);
		nvme_start(&nvme);
		nvme_close(&nvme);
	}
}

/*
 * The driver is told of a sleep of the system: the owner is told of it, and can refuse it. The log
 * names its process.
 */
TEST(sleep)
{
	struct nvme nvme = nvme_open();
	int kmsg = kmsg_open();
	struct pinmap_stay_awake args = { .size = sizeof(args), .flags = PINMAP_STAY_AWAKE_ON };
	char wanted[64];

	CHECK_EQ(with_device_lock(nvme.device.bdf, IMPORTER_SLEEP, 0), 0);
	CHECK_NO_EVENT(nvme.fd);
	nvme_map(&nvme);
	CHECK_EQ(with_device_lock(nvme.device.bdf, IMPORTER_SLEEP, 0), 0);
	CHECK_EQ(next_event(nvme.fd).type, PINMAP_EVENT_RESUMED);
	CHECK(pci_is_master(nvme.device.bdf));
	CHECK_EQ(kmsg_count(kmsg, "does not sleep"), 0);
	CHECK_OK(try_ioctl(nvme.fd, PINMAP_STAY_AWAKE, &args));
	snprintf(wanted, sizeof(wanted), "does not sleep: kept awake by function (%d)", getpid());
	SYS(prctl(PR_SET_NAME, "function"));
	CHECK_EQ(with_device_lock(nvme.device.bdf, IMPORTER_SLEEP, 0), EBUSY);
	CHECK(kmsg_wait(kmsg, wanted, 5000));
	CHECK_NO_EVENT(nvme.fd);
	nvme_close(&nvme);
}

/*
 * A function in an IOMMU group with others is refused, since they could reach each other's memory;
 * all are named.
 */
TEST(shared_group_refused)
{
	int kmsg = kmsg_open();
	unsigned int named = 0;
	char bdf[16], line[512];

	if (!find_function(is_shared, bdf))
		SKIP("no IOMMU group has more than one member without a driver");
	CHECK_ERR(EPERM, try_pci_bind(bdf));
	while (kmsg_next(kmsg, line, sizeof(line)))
		named += strstr(line, "member of its IOMMU group: 0000:") != NULL;
	CHECK_EQ(named, group_size(bdf));
	CHECK_EQ(access(pci_path(bdf, "driver"), F_OK), -1);
	CHECK_EQ(access(pci_path(bdf, "misc"), F_OK), -1);
	file_write(pci_path(bdf, "driver_override"), "\n");
}
