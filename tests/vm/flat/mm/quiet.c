// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Changes that do not concern registered memory, because its pages stay where they are. No stale
 * event may come, and the device, which writes all the time, must still reach the pages that the
 * program sees.
 */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pins.h"
#include "pressure.h"
#include "process.h"
#include "uffd.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE 101
#endif

enum { MOVE_ALL = 1 << 2 };

struct calm {
	const char *name;
	enum memory_kind kind;
	unsigned int pages, first, count;
	void (*change)(struct memory *memory);
};

static void fork_and_write(struct memory *memory)
{
	pid_t pid = fork();

	if (pid == 0) {
		memory->addr[3 * PAGE]++;
		_exit(0);
	}
	memory->addr[4 * PAGE]++;
	join(pid);
}

static void protect(struct memory *memory)
{
	SYS(mprotect(memory->addr, memory->length, PROT_READ));
	sleep_ms(20);
	SYS(mprotect(memory->addr, memory->length, PROT_NONE));
	sleep_ms(20);
	SYS(mprotect(memory->addr, memory->length, PROT_READ | PROT_WRITE));
}

/* Splits the huge page; the driver looks at it while a part cannot be accessed. */
static void protect_part(struct memory *memory)
{
	SYS(mprotect(memory->addr, memory->length / 2, PROT_NONE));
	sleep_ms(20);
	SYS(mprotect(memory->addr, memory->length / 2, PROT_READ | PROT_WRITE));
}

static void protect_neighbour(struct memory *memory)
{
	SYS(mprotect(memory->addr + memory->length - 2 * PAGE, PAGE, PROT_READ));
}

static void unmap_neighbour(struct memory *memory)
{
	SYS(munmap(memory->addr + memory->length - 2 * PAGE, PAGE));
}

static void discard_neighbour(struct memory *memory)
{
	SYS(madvise(memory->addr + memory->length - 2 * PAGE, PAGE, MADV_DONTNEED));
}

static void advise_free(struct memory *memory)
{
	SYS(madvise(memory->addr, memory->length, MADV_FREE));
}

static void advise_cold(struct memory *memory)
{
	SYS(madvise(memory->addr, memory->length, MADV_COLD));
	SYS(madvise(memory->addr, memory->length, MADV_PAGEOUT));
	SYS(madvise(memory->addr, memory->length, MADV_WILLNEED));
}

static void page_out(struct memory *memory)
{
	swap_begin();
	for (int i = 0; i < 5; i++)
		SYS(madvise(memory->addr, memory->length, MADV_PAGEOUT));
	swap_end();
}

static void lock(struct memory *memory)
{
	SYS(mlock(memory->addr, memory->length));
	SYS(munlock(memory->addr, memory->length));
}

static void advise_fork(struct memory *memory)
{
	SYS(madvise(memory->addr, memory->length, MADV_WIPEONFORK));
	SYS(madvise(memory->addr, memory->length, MADV_KEEPONFORK));
	SYS(madvise(memory->addr, memory->length, MADV_DONTFORK));
	SYS(madvise(memory->addr, memory->length, MADV_DONTDUMP));
	join(({
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		pid;
	}));
}

static void clear_soft_dirty(struct memory *memory)
{
	(void)memory;
	file_write("/proc/self/clear_refs", "4");
	file_write("/proc/self/clear_refs", "1");
}

static void compact_often(struct memory *memory)
{
	(void)memory;
	for (int i = 0; i < 4; i++)
		compact();
}

/* Makes two more pages like those of the registration, so that KSM has something to merge. */
static void merge(struct memory *memory)
{
	char *twin = anon(memory->length / PAGE);
	long long scans;

	if (access("/sys/kernel/mm/ksm/run", F_OK))
		SKIP("the kernel has no KSM");
	memcpy(twin, memory->addr, memory->length);
	SYS(madvise(memory->addr, memory->length, MADV_MERGEABLE));
	SYS(madvise(twin, memory->length, MADV_MERGEABLE));
	file_write("/sys/kernel/mm/ksm/sleep_millisecs", "1");
	file_write("/sys/kernel/mm/ksm/pages_to_scan", "1000");
	scans = file_number("/sys/kernel/mm/ksm/full_scans", 0);
	file_write("/sys/kernel/mm/ksm/run", "1");
	CHECK(WAIT_FOR(5000, file_number("/sys/kernel/mm/ksm/full_scans", 0) > scans + 5));
	file_write("/sys/kernel/mm/ksm/run", "2");
	file_write("/sys/kernel/mm/ksm/run", "0");
}

static void collapse(struct memory *memory)
{
	SYS(madvise(memory->addr, memory->length, MADV_HUGEPAGE));
	/* the kernel refuses, since the pages are pinned */
	CHECK_EQ(madvise(memory->addr, memory->length, MADV_COLLAPSE), -1);
}

static void move_pages(struct memory *memory)
{
	void *pages[4];
	int nodes[4] = { 0 }, status[4];

	for (int i = 0; i < 4; i++)
		pages[i] = memory->addr + i * PAGE;
	if (syscall(SYS_move_pages, 0, 4UL, pages, nodes, status, MOVE_ALL) < 0)
		SKIP("the kernel has no move_pages: %s", error_name(errno));
}

static void soft_offline(struct memory *memory)
{
	/* pinned pages cannot be replaced */
	CHECK_EQ(madvise(memory->addr + 4 * PAGE, PAGE, MADV_SOFT_OFFLINE), -1);
}

static void write_protect(struct memory *memory)
{
	int uffd = uffd_new_protect(memory->addr, memory->length);

	uffd_protect(uffd, memory->addr, memory->length, true);
	sleep_ms(20);
	uffd_protect(uffd, memory->addr, memory->length, false);
	close(uffd);
}

static void grow(struct memory *memory)
{
	/* room was left behind the memory, which is part of a larger area */
	CHECK(mremap(memory->addr, memory->length, memory->length + PAGE, 0) == memory->addr);
}

static void discard_shared(struct memory *memory)
{
	SYS(madvise(memory->addr, memory->length, MADV_DONTNEED));
}

static void punch_below_copy(struct memory *memory)
{
	SYS(fallocate(memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4 * PAGE));
}

static void unmap_other_mapping(struct memory *memory)
{
	SYS(munmap(memory->alias, memory->length));
	memory->alias = NULL;
}

/* Pages in a huge page. */
enum { IN_HUGE = HUGE / PAGE };

static const struct calm calms[] = {
	{ "fork", ANON, 8, 0, 8, fork_and_write },
	{ "fork_thp", THP, IN_HUGE, 0, IN_HUGE, fork_and_write },
	{ "fork_memfd", MEMFD, 8, 0, 8, fork_and_write },
	{ "fork_private_file", MEMFD_PRIVATE, 8, 0, 8, fork_and_write },
	{ "mprotect", ANON, 8, 0, 8, protect },
	{ "mprotect_thp", THP, IN_HUGE, 0, IN_HUGE, protect },
	{ "mprotect_hugetlb", HUGETLB, IN_HUGE, 0, IN_HUGE, protect },
	{ "mprotect_part_of_thp", THP, IN_HUGE, 0, IN_HUGE, protect_part },
	{ "mprotect_neighbour", ANON, 8, 0, 6, protect_neighbour },
	{ "mprotect_neighbour_in_thp", THP, IN_HUGE, 0, IN_HUGE / 2, protect_neighbour },
	{ "munmap_neighbour", ANON, 8, 0, 6, unmap_neighbour },
	{ "munmap_neighbour_in_thp", THP, IN_HUGE, 0, IN_HUGE / 2, unmap_neighbour },
	{ "dontneed_neighbour_in_thp", THP, IN_HUGE, 0, IN_HUGE / 2, discard_neighbour },
	{ "madv_free", ANON, 8, 0, 8, advise_free },
	{ "madv_cold", ANON, 8, 0, 8, advise_cold },
	{ "madv_cold_thp", THP, IN_HUGE, 0, IN_HUGE, advise_cold },
	{ "pageout_memfd", MEMFD, 8, 0, 8, page_out },
	{ "dontneed_memfd", MEMFD, 8, 0, 8, discard_shared },
	{ "punch_below_private_copy", MEMFD_PRIVATE, 8, 0, 8, punch_below_copy },
	{ "munmap_other_mapping", MEMFD, 8, 0, 8, unmap_other_mapping },
	{ "mlock", ANON, 8, 0, 8, lock },
	{ "advice_for_fork", ANON, 8, 0, 8, advise_fork },
	{ "soft_dirty", ANON, 8, 0, 8, clear_soft_dirty },
	{ "compaction", ANON, 64, 0, 64, compact_often },
	{ "compaction_memfd", MEMFD, 64, 0, 64, compact_often },
	{ "ksm", ANON, 8, 0, 8, merge },
	{ "collapse", ANON, IN_HUGE, 0, IN_HUGE, collapse },
	{ "move_pages", ANON, 8, 0, 8, move_pages },
	{ "soft_offline", ANON, 8, 0, 8, soft_offline },
	{ "uffd_write_protect", ANON, 8, 0, 8, write_protect },
	{ "mremap_grow", ANON, 8, 0, 8, grow },
};

TEST_EACH(calm, calms, .seconds = 60)
{
	struct memory memory = memory_new(row->kind, row->pages * PAGE);
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	struct registration registration;
	long long pins = pins_held();
	char *page = memory.addr + 3 * PAGE;

	edu_load(&edu, 17);
	registration =
		register_memory(fd, memory.addr + row->first * PAGE, row->count * PAGE, WRITE);
	/* KSM looks at pages that do not change */
	if (row->change != merge)
		edu_repeat(&edu, registration.device_addr + 5 * PAGE - row->first * PAGE);
	row->change(&memory);
	/* the driver has looked at everything by then */
	sleep_ms(100);
	if (row->change != merge)
		edu_repeat_end(&edu);
	CHECK_NO_EVENT(fd);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
	CHECK_EQ(query_handle(fd, registration.handle).out_generation, 1);
	CHECK_EQ(query_handle(fd, registration.handle).out_nr_mappings, 1);
	CHECK_PINS(pins + row->count);
	/* the pages that the program sees are still those that the device sees */
	CHECK_REACHES(&edu, registration.device_addr + (3 - row->first) * PAGE, page, PAGE);
	if (row->change != merge)
		CHECK(pattern_is(memory.addr + 5 * PAGE, PAGE, 17));
	release(fd, registration.handle);
	CHECK_PINS(pins);
}

/*
 * A process touches more memory than it may have. Pages go out to swap, but not those that are
 * pinned.
 */
TEST(calm_swap_pressure)
{
	struct memory anonymous, file;
	struct registration first, second;
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	long long out = file_field("/proc/vmstat", "pswpout");
	char *others;

	swap_begin();
	memory_cgroup(24 * MIB + 256 * PAGE, true);
	anonymous = memory_new(ANON, 64 * PAGE);
	file = memory_new(MEMFD, 64 * PAGE);
	first = register_memory(fd, anonymous.addr, 64 * PAGE, WRITE);
	second = register_memory(fd, file.addr, 64 * PAGE, WRITE);
	edu_load(&edu, 17);
	edu_repeat(&edu, first.device_addr);
	others = anon(34 * MIB / PAGE);
	CHECK(file_field("/proc/vmstat", "pswpout") > out + (long long)(3 * MIB / PAGE));
	edu_repeat_end(&edu);
	SYS(munmap(others, 34 * MIB));
	swap_end();
	CHECK_NO_EVENT(fd);
	CHECK(pattern_is(anonymous.addr, PAGE, 17));
	CHECK_REACHES(&edu, first.device_addr + 63 * PAGE, anonymous.addr + 63 * PAGE, PAGE);
	CHECK_REACHES(&edu, second.device_addr, file.addr, PAGE);
	CHECK(bytes_are(file.addr + PAGE, 63 * PAGE, 0x11));
}

/*
 * The kernel is told to reclaim what the cgroup has, while the process forks again and again. It
 * takes other pages, and not those that are pinned.
 */
TEST(calm_group_reclaim)
{
	const char *const group = "/sys/fs/cgroup/pinmap-test";
	char reclaim[64], swapped[64];
	struct registration registration;
	struct memory memory;
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *others;

	snprintf(reclaim, sizeof(reclaim), "%s/memory.reclaim", group);
	snprintf(swapped, sizeof(swapped), "%s/memory.swap.current", group);
	swap_begin();
	memory_cgroup(512 * MIB, true);
	memory = memory_new(ANON, 64 * PAGE);
	others = anon(16 * MIB / PAGE);
	registration = register_memory(fd, memory.addr, 64 * PAGE, WRITE);
	edu_load(&edu, 17);
	edu_repeat(&edu, registration.device_addr);
	for (int i = 0; i < 5; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(0);
		/* EAGAIN: there was less to take */
		try_file_write(reclaim, "32M");
		join(pid);
	}
	CHECK(file_number(swapped, 0) >= (long long)(8 * MIB));
	edu_repeat_end(&edu);
	SYS(munmap(others, 16 * MIB));
	swap_end();
	CHECK_NO_EVENT(fd);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
	CHECK(pattern_is(memory.addr, PAGE, 17));
	CHECK_REACHES(&edu, registration.device_addr + 63 * PAGE, memory.addr + 63 * PAGE, PAGE);
}

/* UFFDIO_MOVE refuses to move pinned pages. */
TEST(calm_uffd_move)
{
	char *from = anon(8), *to = anon(8);
	int fd = open_device(0), uffd;
	struct registration registration;

	SYS(madvise(to, 8 * PAGE, MADV_DONTNEED));
	uffd = uffd_new(to, 8 * PAGE);
	registration = register_memory(fd, from, 8 * PAGE, WRITE);
	CHECK(uffd_move(uffd, to, from, 4 * PAGE) < 0);
	sleep_ms(100);
	CHECK_NO_EVENT(fd);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
}
