// SPDX-License-Identifier: MIT OR Apache-2.0
/* Which memory can be registered, for what, and what the answer is otherwise. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "iommu.h"
#include "kmsg.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Kinds of memory that device and program share in both directions. */
static const struct kind {
	const char *name;
	enum memory_kind kind;
} kinds[] = {
	{ "anon", ANON },
	{ "anon_shared", ANON_SHARED },
	{ "thp", THP },
	{ "memfd", MEMFD },
	{ "memfd_private", MEMFD_PRIVATE },
	{ "hugetlb", HUGETLB },
	{ "tmpfs", TMPFS },
	{ "ext4_private", EXT4_PRIVATE },
};

TEST_EACH(both_ways, kinds)
{
	struct memory memory = memory_new(row->kind, 4 * PAGE);
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	long long pins = pins_held();
	struct registration registration = register_memory(fd, memory.addr, memory.length, WRITE);
	size_t last = memory.length - PAGE;

	CHECK_PINS(pins + (long long)(memory.length / PAGE));
	CHECK_REACHES(&edu, registration.device_addr + last, memory.addr + last, PAGE);
	/* the first page keeps its permissions */
	CHECK(bytes_are(memory.addr, PAGE, 0x11));
	release(fd, registration.handle);
	CHECK_PINS(pins);
	if (memory.alias)
		CHECK_EQ(pattern_is(memory.alias + last, PAGE, 0x31),
			 row->kind != MEMFD_PRIVATE && row->kind != EXT4_PRIVATE);
}

/* Memory that is part of the program itself. */
static char data[2 * PAGE] __attribute__((aligned(PAGE))) = { 1 };
static char bss[2 * PAGE] __attribute__((aligned(PAGE)));

static void share(void *memory)
{
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	struct registration registration = register_memory(fd, memory, PAGE, WRITE);

	CHECK_REACHES(&edu, registration.device_addr, memory, PAGE);
	release(fd, registration.handle);
	close(fd);
	edu_close(&edu);
}

TEST(program_memory)
{
	char stack[2 * PAGE] __attribute__((aligned(PAGE)));
	char *heap = aligned_alloc(PAGE, PAGE);

	stack[0] = 1;
	share(data);
	share(bss);
	share(stack);
	share(heap);
	free(heap);
}

/*
 * Memory that was never touched can be registered: the kernel makes the pages when they are pinned.
 */
TEST(untouched)
{
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *memory = SYS(
		mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	struct registration registration = register_memory(fd, memory, 4 * PAGE, WRITE);

	CHECK_REACHES(&edu, registration.device_addr + PAGE, memory + PAGE, PAGE);
	CHECK(bytes_are(memory, PAGE, 0));
}

/*
 * Read-only memory that was never touched is the shared page of zeros for the device, which cannot
 * write to it.
 */
TEST(zero_page, .faults = true)
{
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *memory = SYS(mmap(NULL, 4 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
	     buffer[PAGE];
	struct registration registration = register_memory(fd, memory, 4 * PAGE, 0);

	edu_load(&edu, 5);
	edu_writes(&edu, registration.device_addr + PAGE, PAGE);
	CHECK(bytes_are(memory, 4 * PAGE, 0));
	edu_reads(&edu, registration.device_addr + PAGE, PAGE);
	edu_store(&edu, buffer);
	CHECK(bytes_are(buffer, PAGE, 0));
}

TEST(read_only_vma)
{
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *memory = anon(4), buffer[PAGE];
	struct registration registration;

	pattern_fill(memory + 2 * PAGE, PAGE, 9);
	SYS(mprotect(memory + 2 * PAGE, PAGE, PROT_READ));
	CHECK_REGISTER_FAILS(fd, memory + 2 * PAGE, PAGE, WRITE, EFAULT, PINMAP_FAIL_PERMISSION,
			     memory + 2 * PAGE);
	CHECK_REGISTER_FAILS(fd, memory, 4 * PAGE, WRITE, EFAULT, PINMAP_FAIL_PERMISSION,
			     memory + 2 * PAGE);
	registration = register_memory(fd, memory, 4 * PAGE, 0);
	edu_reads(&edu, registration.device_addr + 2 * PAGE, PAGE);
	edu_store(&edu, buffer);
	CHECK(pattern_is(buffer, PAGE, 9));
}

TEST(inaccessible_vma)
{
	int fd = open_device(0);
	char *memory = anon(4);

	SYS(mprotect(memory + PAGE, PAGE, PROT_NONE));
	CHECK_REGISTER_FAILS(fd, memory, 4 * PAGE, WRITE, EFAULT, PINMAP_FAIL_PERMISSION,
			     memory + PAGE);
	CHECK_REGISTER_FAILS(fd, memory, 4 * PAGE, 0, EFAULT, PINMAP_FAIL_PERMISSION,
			     memory + PAGE);
	/* the program's own code */
	CHECK_REGISTER_FAILS(fd, (void *)((uintptr_t)share & ~(PAGE - 1)), PAGE, WRITE, EFAULT,
			     PINMAP_FAIL_PERMISSION, (uintptr_t)share & ~(PAGE - 1));
}

/* Memory registered for reading is not written, whatever the device tries. */
TEST(read_only_registration, .smoke = true, .faults = true)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0), kmsg = kmsg_open();
	struct edu edu = edu_open(fd);
	char *memory = anon(2), buffer[PAGE];
	struct registration registration = register_memory(fd, memory, 2 * PAGE, 0);
	const struct iommu_table *table;
	bool reported = false;

	table = iommu_read(device.bdf);
	if (table) {
		CHECK(iommu_find(table, registration.device_addr).size);
		CHECK(!iommu_find(table, registration.device_addr).writable);
	}
	pattern_fill(memory, 2 * PAGE, 40);
	edu_load(&edu, 3);
	/* reports are rate-limited */
	for (int i = 0; i < 10 && !reported; i++) {
		edu_writes(&edu, registration.device_addr, PAGE);
		CHECK(pattern_is(memory, 2 * PAGE, 40));
		reported = kmsg_wait_fault(kmsg, 600);
	}
	CHECK(reported);
	/* the device can read, and with the translation cached it still cannot write */
	edu_reads(&edu, registration.device_addr, PAGE);
	edu_store(&edu, buffer);
	CHECK(pattern_is(buffer, PAGE, 40));
	edu_load(&edu, 3);
	edu_reads(&edu, registration.device_addr + PAGE, PAGE / 2);
	edu_writes(&edu, registration.device_addr, PAGE);
	edu_writes(&edu, registration.device_addr + PAGE, PAGE);
	CHECK(pattern_is(memory, 2 * PAGE, 40));
}

TEST(shared_file)
{
	struct memory memory = memory_new(EXT4_SHARED, 4 * PAGE);
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	struct registration registration;
	char buffer[PAGE];

	CHECK_REGISTER_FAILS(fd, memory.addr, 4 * PAGE, WRITE, EFAULT, PINMAP_FAIL_FILE,
			     memory.addr);
	CHECK_REGISTER_FAILS(fd, memory.addr + PAGE, PAGE, WRITE | NO_MAP, EFAULT, PINMAP_FAIL_FILE,
			     memory.addr + PAGE);
	registration = register_memory(fd, memory.addr, 4 * PAGE, 0);
	pattern_fill(memory.alias + PAGE, PAGE, 77);
	edu_reads(&edu, registration.device_addr + PAGE, PAGE);
	edu_store(&edu, buffer);
	CHECK(pattern_is(buffer, PAGE, 77));
}

/*
 * A device that writes to a private mapping of a file writes to the process's copy, never to the
 * file.
 */
TEST(private_file, .smoke = true)
{
	struct memory memory = memory_new(EXT4_PRIVATE, 4 * PAGE);
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	struct registration registration;
	char *direct = aligned_alloc(PAGE, 4 * PAGE), path[64];
	int again;

	SYS(fsync(memory.fd));
	edu_load(&edu, 8);
	registration = register_memory(fd, memory.addr, 4 * PAGE, WRITE);
	edu_writes(&edu, registration.device_addr + PAGE, PAGE);
	CHECK(pattern_is(memory.addr + PAGE, PAGE, 8));
	CHECK(bytes_are(memory.alias, 4 * PAGE, 0x11));
	release(fd, registration.handle);
	SYS(fsync(memory.fd));
	/* the content on the disk, past the page cache */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", memory.fd);
	again = SYS(open(path, O_RDONLY | O_DIRECT | O_CLOEXEC));
	CHECK_EQ(pread(again, direct, 4 * PAGE, 0), 4 * PAGE);
	CHECK(bytes_are(direct, 4 * PAGE, 0x11));
}

TEST(secret)
{
	struct memory memory = memory_new(SECRET, 4 * PAGE);
	int fd = open_device(0);

	CHECK_REGISTER_FAILS(fd, memory.addr, 4 * PAGE, WRITE, EFAULT, PINMAP_FAIL_SECRET,
			     memory.addr);
	CHECK_REGISTER_FAILS(fd, memory.addr + PAGE, PAGE, 0, EFAULT, PINMAP_FAIL_SECRET,
			     memory.addr + PAGE);
}

static const struct hole {
	const char *name;
	unsigned int first, count, fails;
} holes[] = {
	{ "first", 0, 1, 0 },
	{ "middle", 3, 2, 3 },
	{ "last", 7, 1, 7 },
	{ "all_but_first", 1, 7, 1 },
	{ "all", 0, 8, 0 },
};

TEST_EACH(hole, holes)
{
	char *memory = anon(8);
	int fd = open_device(0);
	long long pins = pins_held();

	SYS(munmap(memory + row->first * PAGE, row->count * PAGE));
	CHECK_REGISTER_FAILS(fd, memory, 8 * PAGE, WRITE, EFAULT, PINMAP_FAIL_HOLE,
			     memory + row->fails * PAGE);
	CHECK_REGISTER_FAILS(fd, memory, 8 * PAGE, 0, EFAULT, PINMAP_FAIL_HOLE,
			     memory + row->fails * PAGE);
	CHECK_REGISTER_FAILS(fd, memory, 8 * PAGE, NO_MAP, EFAULT, PINMAP_FAIL_HOLE,
			     memory + row->fails * PAGE);
	CHECK_PINS(pins);
}

static const struct kind files[] = {
	{ "memfd", MEMFD },
	{ "tmpfs", TMPFS },
	{ "ext4_private", EXT4_PRIVATE },
	{ "hugetlb", HUGETLB },
};

TEST_EACH(behind_end_of_file, files)
{
	size_t unit = row->kind == HUGETLB ? HUGE : PAGE;
	struct memory memory = memory_new(row->kind, 4 * unit);
	int fd = open_device(0);
	long long pins = pins_held();

	SYS(ftruncate(memory.fd, 2 * unit));
	CHECK_REGISTER_FAILS(fd, memory.addr, 4 * unit, WRITE, EFAULT, PINMAP_FAIL_FAULT,
			     memory.addr + 2 * unit);
	CHECK_REGISTER_FAILS(fd, memory.addr + 3 * unit, PAGE, 0, EFAULT, PINMAP_FAIL_FAULT,
			     memory.addr + 3 * unit);
	CHECK_PINS(pins);
	register_memory(fd, memory.addr, 2 * unit, WRITE);
	CHECK_PINS(pins + 2 * (long long)(unit / PAGE));
}

/* Pages fenced off with MADV_GUARD_INSTALL cannot be registered. */
TEST(guard_pages)
{
	enum { GUARD_INSTALL = 102 };
	char *memory = anon(4);
	int fd = open_device(0);
	long long pins = pins_held();

	if (madvise(memory + 2 * PAGE, PAGE, GUARD_INSTALL))
		SKIP("the kernel has no MADV_GUARD_INSTALL: %s", error_name(errno));
	CHECK_REGISTER_FAILS(fd, memory, 4 * PAGE, WRITE, EFAULT, PINMAP_FAIL_FAULT,
			     memory + 2 * PAGE);
	CHECK_PINS(pins);
}
