// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Registered memory that leaves the address space.
 *
 * Each way runs while the device is writing: a transfer is in flight when the memory goes, and
 * comes after that.
 */
#define _GNU_SOURCE
#include "edu.h"
#include "iommu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GUARD_INSTALL = 102 };

/*
 * A way in which memory goes away. Pages @first to @first + @count of it are registered; for
 * HUGETLB these are huge pages.
 */
struct way {
	const char *name;
	enum memory_kind kind;
	unsigned int pages, first, count;
	/* the page whose memory goes, counted from the start of the registration */
	unsigned int gone;
	/* whether the device is cut off before the call returns */
	bool at_once;
	/* takes the memory away; 0 or -errno */
	int (*take)(struct memory *memory);
};

static int result(long value)
{
	return value == -1 ? -errno : 0;
}

static int unmap_all(struct memory *memory)
{
	return result(munmap(memory->addr, memory->length));
}

static int unmap_third(struct memory *memory)
{
	return result(munmap(memory->addr + 2 * PAGE, PAGE));
}

static int unmap_tail(struct memory *memory)
{
	return result(munmap(memory->addr + 6 * PAGE, 2 * PAGE));
}

static int map_over(struct memory *memory)
{
	return result((long)mmap(memory->addr + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_POPULATE, -1, 0));
}

static int move_to(struct memory *memory, size_t first, size_t length, int flags)
{
	char *to = address_space(length, PAGE);

	return result((long)mremap(memory->addr + first, length, length,
				   MREMAP_MAYMOVE | MREMAP_FIXED | flags, to));
}

static int move_all(struct memory *memory)
{
	return move_to(memory, 0, memory->length, 0);
}

static int move_third(struct memory *memory)
{
	return move_to(memory, 2 * PAGE, PAGE, 0);
}

static int move_leaving_mapping(struct memory *memory)
{
	return move_to(memory, 0, memory->length, MREMAP_DONTUNMAP);
}

static int shrink(struct memory *memory)
{
	return result((long)mremap(memory->addr, memory->length, 4 * PAGE, 0));
}

static int discard(struct memory *memory)
{
	return result(madvise(memory->addr + 2 * PAGE, PAGE, MADV_DONTNEED));
}

static int discard_locked(struct memory *memory)
{
	enum { DONTNEED_LOCKED = 24 };

	SYS(mlock(memory->addr, memory->length));
	return result(madvise(memory->addr + 2 * PAGE, PAGE, DONTNEED_LOCKED));
}

static int guard(struct memory *memory)
{
	return result(madvise(memory->addr + 2 * PAGE, PAGE, GUARD_INSTALL));
}

static int punch(struct memory *memory)
{
	return result(
		fallocate(memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * PAGE, PAGE));
}

static int punch_huge(struct memory *memory)
{
	return result(
		fallocate(memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, HUGE, HUGE));
}

static int remove_range(struct memory *memory)
{
	return result(madvise(memory->addr + 2 * PAGE, PAGE, MADV_REMOVE));
}

static int cut_file(struct memory *memory)
{
	return result(ftruncate(memory->fd, 2 * PAGE));
}

static int cut_huge_file(struct memory *memory)
{
	return result(ftruncate(memory->fd, HUGE));
}

/* Punches a hole by another process, which has only the file. */
static int punch_from_elsewhere(struct memory *memory)
{
	pid_t pid = fork();

	if (pid == 0) {
		CHECK_OK(punch(memory));
		_exit(0);
	}
	join(pid);
	return 0;
}

/* Pages in a huge page. */
enum { IN_HUGE = HUGE / PAGE };

static const struct way ways[] = {
	{ "munmap_full", MEMFD, 8, 0, 8, 2, true, unmap_all },
	{ "munmap_anon", ANON, 8, 0, 8, 2, true, unmap_all },
	{ "munmap_superset", MEMFD, 8, 1, 4, 1, true, unmap_all },
	{ "munmap_first_page", ANON, 8, 2, 6, 0, true, unmap_third },
	{ "munmap_middle_page", ANON, 8, 0, 8, 2, true, unmap_third },
	{ "munmap_last_page", ANON, 8, 0, 3, 2, true, unmap_third },
	{ "munmap_tail", MEMFD, 8, 0, 8, 7, true, unmap_tail },
	{ "munmap_in_thp", THP, IN_HUGE, 0, IN_HUGE, 2, true, unmap_third },
	{ "munmap_thp", THP, IN_HUGE, 0, IN_HUGE, 100, true, unmap_all },
	{ "munmap_hugetlb", HUGETLB, 2 * IN_HUGE, 0, 2 * IN_HUGE, IN_HUGE + 88, true, unmap_all },
	{ "munmap_tmpfs", TMPFS, 8, 0, 8, 2, true, unmap_all },
	{ "munmap_private_file", EXT4_PRIVATE, 8, 0, 8, 2, true, unmap_all },
	{ "map_over", ANON, 8, 0, 8, 2, true, map_over },
	{ "map_over_memfd", MEMFD, 8, 0, 8, 2, true, map_over },
	{ "mremap", ANON, 8, 0, 8, 2, true, move_all },
	{ "mremap_memfd", MEMFD, 8, 0, 8, 2, true, move_all },
	{ "mremap_part", ANON, 8, 0, 8, 2, true, move_third },
	{ "mremap_dontunmap", ANON, 8, 0, 8, 2, true, move_leaving_mapping },
	{ "mremap_shrink", ANON, 8, 0, 8, 6, true, shrink },
	{ "dontneed", ANON, 8, 0, 8, 2, false, discard },
	{ "dontneed_thp", THP, IN_HUGE, 0, IN_HUGE, 2, false, discard },
	{ "dontneed_locked", ANON, 8, 0, 8, 2, false, discard_locked },
	{ "dontneed_private_file", EXT4_PRIVATE, 8, 0, 8, 2, false, discard },
	{ "guard", ANON, 8, 0, 8, 2, false, guard },
	{ "punch_memfd", MEMFD, 8, 0, 8, 2, false, punch },
	{ "punch_tmpfs", TMPFS, 8, 0, 8, 2, false, punch },
	{ "punch_hugetlb", HUGETLB, 2 * IN_HUGE, 0, 2 * IN_HUGE, IN_HUGE + 88, false, punch_huge },
	{ "punch_by_another_process", MEMFD, 8, 0, 8, 2, false, punch_from_elsewhere },
	{ "remove_memfd", MEMFD, 8, 0, 8, 2, false, remove_range },
	{ "truncate_memfd", MEMFD, 8, 0, 8, 4, false, cut_file },
	{ "truncate_hugetlb", HUGETLB, 2 * IN_HUGE, 0, 2 * IN_HUGE, IN_HUGE + 88, false,
	  cut_huge_file },
	{ "truncate_private_file", MEMFD_PRIVATE, 8, 0, 8, 4, false, cut_file },
};

/* Checks all that can be told of a registration whose memory went away. */
static void check_stale(int fd, const struct registration *registration, int eventfd)
{
	struct pinmap_query query;
	struct pinmap_fail fail;
	uint64_t device_addr = 0, count = 0;

	CHECK_STALE_EVENT(fd, *registration);
	CHECK_EQ(read(eventfd, &count, sizeof(count)), sizeof(count));
	CHECK_EQ(count, 1);
	query = query_handle(fd, registration->handle);
	CHECK_EQ(query.out_state, PINMAP_STATE_STALE);
	CHECK_EQ(query.out_generation, 2);
	CHECK_EQ(query.out_base, (uintptr_t)registration->addr);
	CHECK_EQ(query.out_length, registration->length);
	CHECK_EQ(query.out_nr_mappings, 0);
	CHECK_EQ(query.out_device_addr, 0);
	CHECK_ERR(ESTALE, try_map(fd, registration->handle, 0, &device_addr, &fail));
	CHECK_ERR(ESTALE, try_unmap(fd, registration->handle, registration->device_addr));
}

TEST_EACH(stale, ways, .faults = true)
{
	struct pci_device device = need_device(0);
	struct memory memory = memory_new(row->kind, row->pages * PAGE);
	char *page = memory.addr + (row->first + row->gone) * PAGE, content[PAGE];
	int fd = open_device(0), eventfd_ = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), kept = -1;
	struct edu edu = edu_open(fd);
	long long pins = pins_held();
	const struct iommu_table *table;
	struct registration registration;
	bool in_flight;
	uint64_t target;

	set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, eventfd_);
	edu_load(&edu, 17);
	registration =
		register_memory(fd, memory.addr + row->first * PAGE, row->count * PAGE, WRITE);
	CHECK_PINS(pins + row->count);
	target = registration.device_addr + row->gone * PAGE;
	/* the device uses the page, so that the IOMMU has its translation in its cache */
	edu_writes(&edu, target, PAGE);
	CHECK(pattern_is(page, PAGE, 17));
	memset(page, 0x29, PAGE);
	/* a reference to the page itself; hugetlb pages with one would not go back to their pool */
	if (row->kind != HUGETLB)
		kept = keep_page(page);

	edu_start(&edu, EDU_WRITES, target, PAGE, false);
	CHECK_OK(row->take(&memory));
	in_flight = edu_finish(&edu);
	if (row->at_once && in_flight && kept >= 0) {
		read_kept_page(kept, content);
		CHECK(bytes_are(content, PAGE, 0x29));
	}
	check_stale(fd, &registration, eventfd_);
	CHECK_PINS_SOON(pins);
	table = iommu_read(device.bdf);
	for (size_t at = 0; table && at < registration.length; at += PAGE)
		CHECK_EQ(iommu_find(table, registration.device_addr + at).size, 0);

	/* neither the memory that is at this address now nor the old page is reached any more */
	if (kept >= 0)
		read_kept_page(kept, content);
	edu_load(&edu, 18);
	edu_writes(&edu, target, PAGE);
	if (kept >= 0) {
		char later[PAGE];

		read_kept_page(kept, later);
		CHECK(!memcmp(content, later, PAGE));
	}
	if (touch_read(page) == 0)
		CHECK(!pattern_is(page, PAGE, 17) && !pattern_is(page, PAGE, 18));
	if (row->count > 1 && row->gone > 0 && touch_read(registration.addr) == 0) {
		/* the rest of the registration is unreachable, too */
		memset(registration.addr, 0x2a, PAGE);
		edu_writes(&edu, registration.device_addr, PAGE);
		CHECK(bytes_are(registration.addr, PAGE, 0x2a));
	}
	if (kept >= 0)
		close(kept);
	release(fd, registration.handle);
	CHECK_ERR(ESTALE, try_release(fd, registration.handle));
	CHECK_NO_EVENT(fd);
}

/* Memory that was discarded is stale, also if it is touched again before the driver has looked. */
TEST(stale_though_touched_again)
{
	struct memory memory = memory_new(ANON, 8 * PAGE);
	int fd = open_device(0);

	for (unsigned int round = 0; round < rounds(20); round++) {
		struct registration registration =
			register_memory(fd, memory.addr, memory.length, WRITE | NO_MAP);

		SYS(madvise(memory.addr + 3 * PAGE, PAGE, MADV_DONTNEED));
		memory.addr[3 * PAGE] = 1;
		CHECK_STALE_EVENT(fd, registration);
		release(fd, registration.handle);
	}
}

/*
 * The device writes again and again while the memory goes, and nothing arrives in the new memory.
 */
static const struct way repeated[] = {
	{ "munmap", ANON, 8, 0, 8, 2, true, unmap_third },
	{ "map_over", ANON, 8, 0, 8, 2, true, map_over },
	{ "dontneed", ANON, 8, 0, 8, 2, false, discard },
	{ "punch", MEMFD, 8, 0, 8, 2, false, punch },
};

TEST_EACH(stale_while_writing, repeated, .faults = true)
{
	struct memory memory = memory_new(row->kind, row->pages * PAGE);
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	struct registration registration;
	char *page = memory.addr + row->gone * PAGE;

	edu_load(&edu, 17);
	registration = register_memory(fd, memory.addr, memory.length, WRITE);
	edu_repeat(&edu, registration.device_addr + row->gone * PAGE);
	CHECK(WAIT_FOR(3000, edu.transfers >= 2));
	CHECK_OK(row->take(&memory));
	if (!row->at_once)
		CHECK_STALE_EVENT(fd, registration);
	/* new memory at the same address */
	if (touch_read(page))
		SYS(mmap(page, PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	memset(page, 0x3c, PAGE);
	sleep_ms(2 * EDU_MS);
	edu_repeat_end(&edu);
	CHECK(bytes_are(page, PAGE, 0x3c));
}
