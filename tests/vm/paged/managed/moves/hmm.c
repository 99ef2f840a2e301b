// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The cases of the kernel's own hmm-tests about memory of a device, which is a part of the system's
 * memory there. What covers them here; reach/hmm.c has those about memory of the host:
 *
 *   migrate                         moved_there_and_back_*
 *   migrate_file_private            moved_private_file
 *   migrate_fault                   moved_half_home_*
 *   migrate_release                 moved_outlives_*, moved_unbind_forked_*
 *   migrate_shared                  moved_fixed
 *   migrate_mixed                   moved_mixed
 *   migrate_multiple                moved_again_and_again_*
 *   hmm_gup_test                    moved_pinned, moved_io_uring_*, moved_vmsplice_*
 *   hmm_cow_in_device               moved_forked_written_*, moved_forked_*
 *   migrate_anon_huge_empty         moved_untouched_huge
 *   migrate_anon_huge_zero          moved_zero_page_huge
 *   migrate_anon_huge_free          moved_free_*
 *   migrate_anon_huge_fault         moved_seen_in_pagemap_huge
 *   migrate_partial_unmap_fault     moved_unmapped_*
 *   migrate_remap_fault             moved_remapped_*
 *   migrate_anon_huge_err           moved_in_pieces_written, moved_fail_home_no_huge_*
 *   migrate_anon_huge_zero_err      moved_in_pieces_untouched, moved_in_pieces_zero_page
 *
 * The benchmark is scripts/bench. Access that is exclusive (exclusive*) is none of pinmap's.
 */
#define _GNU_SOURCE
#include "../moving.h"
#include "../reach/table.h"

#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pressure.h"
#include "process.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Asserts that the device reads the pattern. */
static void check_device_reads(struct gpu_queue *queue, const char *memory, size_t length,
			       uint32_t seed)
{
	char *seen = anon(length / PAGE);

	copy(queue, memory, seen, length);
	CHECK(has_pattern(seen, length, seed));
	SYS(munmap(seen, length));
}

/* Pages of a private mapping of a file stay at home, changed or not. */
TEST(moved_private_file)
{
	struct memory file = memory_new(EXT4_PRIVATE, 16 * PAGE);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	write_pattern(file.addr, 8 * PAGE, 5);
	CHECK_EQ(prefetch(fd, 0, file.addr, 16 * PAGE).out_fixed, 16 * PAGE);
	check_device_reads(&queue, file.addr, 8 * PAGE, 5);
	CHECK(has_pattern(file.addr, 8 * PAGE, 5));
	CHECK(bytes_are(file.addr + 8 * PAGE, 8 * PAGE, 0x11));
	memory_free(&file);
}

/* The CPU brings half of it home, and all of it goes there again. */
TEST_EACH(moved_half_home, page_sizes)
{
	char *memory = block_of(row->huge);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_prefetch again;

	write_pattern(memory, HUGE, 1);
	MOVE_THERE(fd, memory, HUGE);
	check_device_reads(&queue, memory, HUGE, 1);
	CHECK(has_pattern(memory, HUGE / 2, 1));
	CHECK_EQ(pages_away(memory, HUGE), row->huge ? 0 : HUGE / 2 / PAGE);
	again = prefetch_all(fd, memory, HUGE, 0);
	CHECK_EQ(again.out_there, row->huge ? 0 : HUGE / 2);
	CHECK_EQ(again.out_moved + again.out_there, HUGE);
	check_device_reads(&queue, memory, HUGE, 1);
	CHECK(has_pattern(memory, HUGE, 1));
}

TEST_EACH(moved_again_and_again, page_sizes)
{
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	uint64_t before;

	before = vram_free(fd);
	for (unsigned int i = 0; i < rounds(20); i++) {
		char *memory = block_of(row->huge);

		write_pattern(memory, HUGE, i);
		MOVE_THERE(fd, memory, HUGE);
		check_device_reads(&queue, memory, HUGE, i);
		if (i % 2)
			CHECK(has_pattern(memory, HUGE, i));
		SYS(munmap(memory, HUGE));
		CHECK_EQ(vram_free(fd), before);
	}
}

/* A hole, a page of zeros, a read-only page, private pages and shared ones, in one call. */
TEST(moved_mixed)
{
	enum { PAGES = 8 };
	char *memory = address_space(PAGES * PAGE, PAGE), *seen = anon(PAGES);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_prefetch args;

	SYS(munmap(memory + PAGE, PAGE));
	SYS(mprotect(memory + 2 * PAGE, PAGE, PROT_READ));
	CHECK_EQ(touch_read(memory + 2 * PAGE), 0);
	SYS(mprotect(memory + 3 * PAGE, 3 * PAGE, PROT_READ | PROT_WRITE));
	memset(memory + 3 * PAGE, 0x33, PAGE);
	SYS(mprotect(memory + 3 * PAGE, PAGE, PROT_READ));
	memset(memory + 4 * PAGE, 0x34, 2 * PAGE);
	SYS(mmap(memory + 6 * PAGE, PAGE, PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	memset(memory + 6 * PAGE, 0x36, PAGE);
	SYS(mprotect(memory + 7 * PAGE, PAGE, PROT_READ | PROT_WRITE));

	args = prefetch_all(fd, memory + PAGE, (PAGES - 1) * PAGE, 0);
	CHECK_EQ(args.out_moved, 5 * PAGE);
	CHECK_EQ(args.out_fixed, 2 * PAGE);
	CHECK_EQ(pages_away(memory, PAGES * PAGE), 5);
	CHECK_READ_REFUSED(fd, memory, PERMISSION);
	CHECK_WRITE_REFUSED(fd, memory + 2 * PAGE, PERMISSION);
	CHECK_WRITE_REFUSED(fd, memory + 3 * PAGE, PERMISSION);
	copy(&queue, memory + 2 * PAGE, seen + 2 * PAGE, 6 * PAGE);
	CHECK(bytes_are(seen + 2 * PAGE, PAGE, 0));
	CHECK(bytes_are(seen + 3 * PAGE, PAGE, 0x33));
	CHECK(bytes_are(seen + 4 * PAGE, 2 * PAGE, 0x34));
	CHECK(bytes_are(seen + 6 * PAGE, PAGE, 0x36));
	CHECK(bytes_are(seen + 7 * PAGE, PAGE, 0));
	fill(&queue, memory + 4 * PAGE, 4 * PAGE, 0x44);
	CHECK(bytes_are(memory + 2 * PAGE, PAGE, 0));
	CHECK(bytes_are(memory + 3 * PAGE, PAGE, 0x33));
	CHECK(bytes_are(memory + 4 * PAGE, 4 * PAGE, 0x44));
	CHECK(touch_write(memory + 3 * PAGE) != 0);
	/* who may write again does so, and so does the device */
	MOVE_THERE(fd, memory + 2 * PAGE, 2 * PAGE);
	SYS(mprotect(memory + 2 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE));
	fill(&queue, memory + 2 * PAGE, 2 * PAGE, 0x45);
	CHECK(bytes_are(memory + 2 * PAGE, 2 * PAGE, 0x45));
}

/* The parent writes pages that it shares with a child, and gets copies; the child's stay. */
TEST_EACH(moved_forked_written, page_sizes)
{
	char *memory = block_of(row->huge);
	struct gate written = gate_new();
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	pid_t pid;

	write_pattern(memory, HUGE, 2);
	MOVE_THERE(fd, memory, HUGE);
	pid = fork();
	if (pid == 0) {
		gate_pass(&written);
		CHECK(has_pattern(memory, HUGE, 2));
		_exit(0);
	}
	write_pattern(memory, HUGE, 3);
	check_device_reads(&queue, memory, HUGE, 3);
	gate_open(&written);
	join(pid);
	CHECK(has_pattern(memory, HUGE, 3));
	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, 0x46);
	CHECK(bytes_are(memory, HUGE, 0x46));
}

/* A huge page that a child shares stays, until one of them has a copy. */
TEST(moved_shared_huge)
{
	char *memory = block_of(true);
	struct gate end = gate_new();
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	pid_t pid;

	write_pattern(memory, HUGE, 4);
	CHECK(is_thp(memory));
	pid = fork();
	if (pid == 0) {
		gate_pass(&end);
		CHECK(has_pattern(memory, HUGE, 4));
		_exit(0);
	}
	CHECK_EQ(prefetch(fd, 0, memory, HUGE).out_busy, HUGE);
	CHECK_EQ(pages_away(memory, HUGE), 0);
	check_device_reads(&queue, memory, HUGE, 4);
	fill(&queue, memory, HUGE, 0x4d);
	gate_open(&end);
	join(pid);
	MOVE_THERE(fd, memory, HUGE);
	CHECK(bytes_are(memory, HUGE, 0x4d));
}

/* The page of zeros that all share is replaced by a page on the device. */
TEST_EACH(moved_zero_page, page_sizes)
{
	char *memory = block_of(row->huge), *seen = anon(HUGE / PAGE);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	for (size_t at = 0; at < HUGE; at += PAGE)
		CHECK_EQ(*(volatile char *)(memory + at), 0);
	MOVE_THERE(fd, memory, HUGE);
	copy(&queue, memory, seen, HUGE);
	CHECK(bytes_are(seen, HUGE, 0));
	fill(&queue, memory, PAGE, 0x47);
	CHECK(bytes_are(memory, PAGE, 0x47));
	CHECK(bytes_are(memory + PAGE, HUGE - PAGE, 0));
}

/* A page free to go (MADV_FREE) has its contents, or zeros; what the device then writes stays. */
TEST_EACH(moved_free, page_sizes)
{
	char *memory = block_of(row->huge);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t before = vram_free(fd);

	manage_all(fd);
	memset(memory, 0x48, HUGE);
	MOVE_THERE(fd, memory, HUGE);
	SYS(madvise(memory, HUGE, MADV_FREE));
	for (size_t at = 0; at < HUGE; at += PAGE)
		CHECK(bytes_are(memory + at, PAGE, 0x48) || bytes_are(memory + at, PAGE, 0));
	memset(memory, 0x49, HUGE);
	/* free first, then there */
	SYS(madvise(memory, HUGE, MADV_FREE));
	prefetch(fd, 0, memory, HUGE);
	fill(&queue, memory, HUGE, 0x4a);
	CHECK_EQ(prefetch(fd, PINMAP_PREFETCH_HOST, memory, HUGE).out_busy, 0);
	swap_begin();
	CHECK(WAIT_FOR(5000, !madvise(memory, HUGE, MADV_PAGEOUT) && is_absent(memory, HUGE)));
	CHECK(bytes_are(memory, HUGE, 0x4a));
	queue_delete(&queue);
	SYS(munmap(memory, HUGE));
	swap_end();
	CHECK(WAIT_FOR(5000, vram_free(fd) >= before - HUGE));
}

/*
 * Memory that was free to go is the device's, is written there, and comes home: the kernel may not
 * drop it any more. VRAM that never had such memory before shows it: pages there keep some marks.
 */
TEST_EACH(moved_free_at_first, page_sizes)
{
	char *memory = block_of(row->huge);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x4b, HUGE);
	SYS(madvise(memory, HUGE, MADV_FREE));
	prefetch(fd, 0, memory, HUGE);
	fill(&queue, memory, HUGE, 0x4c);
	CHECK_EQ(prefetch(fd, PINMAP_PREFETCH_HOST, memory, HUGE).out_busy, 0);
	swap_begin();
	CHECK(WAIT_FOR(5000, !madvise(memory, HUGE, MADV_PAGEOUT) && is_absent(memory, HUGE)));
	CHECK(bytes_are(memory, HUGE, 0x4c));
	queue_delete(&queue);
	SYS(munmap(memory, HUGE));
	swap_end();
}

/* The page table says that the pages are elsewhere, and then that they are here. */
TEST_EACH(moved_seen_in_pagemap, page_sizes)
{
	char *memory = block_of(row->huge);
	int fd = open_managed();

	write_pattern(memory, HUGE, 6);
	if (row->huge)
		SYS(madvise(memory, HUGE, MADV_COLLAPSE));
	CHECK_EQ(is_thp(memory), row->huge);
	CHECK_EQ(pages_away(memory, HUGE), 0);
	MOVE_THERE(fd, memory, HUGE);
	CHECK_EQ(pages_away(memory, HUGE), HUGE / PAGE);
	CHECK_EQ(touch_read(memory + HUGE / 2), 0);
	CHECK_EQ(pages_away(memory, HUGE), row->huge ? 0 : HUGE / PAGE - 16);
	/* what was a huge page has come home at once, as small ones */
	CHECK(!is_thp(memory));
	CHECK(has_pattern(memory, HUGE, 6));
}

static const struct {
	const char *name;
	bool huge;
	size_t offset;
} holes[] = {
	{ "start", false, 0 },
	{ "quarter", false, HUGE / 4 },
	{ "half", false, HUGE / 2 },
	{ "start_huge", true, 0 },
	{ "quarter_huge", true, HUGE / 4 },
	{ "half_huge", true, HUGE / 2 },
};

/* Counts the pages of which the page table says that they were written (Soft-dirty). */
static unsigned int soft_dirty(const char *memory, size_t length)
{
	int file = SYS(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
	unsigned int count = 0;
	uint64_t entry;

	for (size_t at = 0; at < length; at += PAGE) {
		off_t offset = ((uintptr_t)memory + at) / PAGE * sizeof(entry);

		CHECK_EQ(SYS(pread(file, &entry, sizeof(entry), offset)), sizeof(entry));
		count += entry >> 55 & 1;
	}
	close(file);
	return count;
}

/* Pages that go there count as written. What the device writes there is not seen, nor at home. */
TEST(moved_soft_dirty)
{
	char *memory = small_blocks(1);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x4d, HUGE);
	if (try_file_write("/proc/self/clear_refs", "4") || soft_dirty(memory, HUGE))
		SKIP("the kernel has no soft-dirty bits");
	MOVE_THERE(fd, memory, HUGE);
	CHECK_EQ(soft_dirty(memory, HUGE), HUGE / PAGE);
	file_write("/proc/self/clear_refs", "4");
	CHECK_EQ(soft_dirty(memory, HUGE), 0);
	fill(&queue, memory, HUGE, 0x4f);
	CHECK_EQ(soft_dirty(memory, HUGE), 0);
	MOVE_HOME(fd, memory, HUGE);
	CHECK_EQ(soft_dirty(memory, HUGE), 0);
	CHECK(bytes_are(memory, HUGE, 0x4f));
}

/* Half of it is unmapped while it is there. The rest has its contents, and VRAM gets the pages. */
TEST_EACH(moved_unmapped, holes)
{
	char *memory = block_of(row->huge);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	uint64_t before;

	write_pattern(memory, HUGE, 0);
	before = vram_free(fd);
	MOVE_THERE(fd, memory, HUGE);
	check_device_reads(&queue, memory, HUGE, 0);
	SYS(munmap(memory + row->offset, HUGE / 2));
	for (size_t at = 0; at < HUGE; at += 4)
		if (at < row->offset || at >= row->offset + HUGE / 2)
			CHECK_EQ(*(uint32_t *)(memory + at), (uint32_t)(at / 4 * 2654435761u));
	/* page tables of the device may have come */
	CHECK(WAIT_FOR(5000, vram_free(fd) + 8 * PAGE >= before));
}

static const struct {
	const char *name;
	bool huge, keeps, first;
	size_t offset;
} remaps[] = {
	{ "there", false, false, false, 0 },
	{ "there_quarter", false, false, false, HUGE / 4 },
	{ "there_keeps", false, true, false, HUGE / 2 },
	{ "there_huge", true, false, false, 0 },
	{ "there_quarter_huge", true, false, false, HUGE / 4 },
	{ "there_keeps_huge", true, true, false, 0 },
	{ "there_keeps_half_huge", true, true, false, HUGE / 2 },
	{ "first", false, false, true, 0 },
	{ "first_quarter", false, false, true, HUGE / 4 },
	{ "first_huge", true, false, true, 0 },
	{ "first_half_huge", true, false, true, HUGE / 2 },
	{ "first_keeps_quarter_huge", true, true, true, HUGE / 4 },
};

/* The addresses change (mremap) before it goes there, or while it is there. */
TEST_EACH(moved_remapped, remaps)
{
	int flags = MREMAP_MAYMOVE | MREMAP_FIXED | (row->keeps ? MREMAP_DONTUNMAP : 0);
	char *memory = block_of(row->huge), *all = address_space(3 * HUGE, HUGE);
	char *there = all + row->offset, *at = memory;
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	write_pattern(memory, HUGE, 8);
	if (row->first)
		at = SYS(mremap(memory, HUGE, HUGE, flags, there));
	MOVE_THERE(fd, at, HUGE);
	check_device_reads(&queue, at, HUGE, 8);
	if (!row->first) {
		at = SYS(mremap(memory, HUGE, HUGE, flags, there));
		CHECK_EQ(pages_away(at, HUGE), HUGE / PAGE);
		check_device_reads(&queue, at, HUGE, 8);
	}
	CHECK(has_pattern(at, HUGE, 8));
	fill(&queue, at, HUGE, 0x4b);
	CHECK(bytes_are(at, HUGE, 0x4b));
	if (row->keeps) {
		copy(&queue, memory, at, HUGE);
		CHECK(bytes_are(at, HUGE, 0));
		CHECK(bytes_are(memory, HUGE, 0));
	}
}

static const struct {
	const char *name;
	/* what the block has */
	enum { WRITTEN, UNTOUCHED, ZERO_PAGE } of;
} pieces[] = { { "written", WRITTEN }, { "untouched", UNTOUCHED }, { "zero_page", ZERO_PAGE } };

/* VRAM has no 2 MiB in one piece: a huge page goes there in small ones, and is as good. */
TEST_EACH(moved_in_pieces, pieces, .seconds = 120)
{
	char *memory = block_of(true), *seen = anon(HUGE / PAGE);
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t before, copies;

	manage_all(fd);
	break_up_vram(other, gpu_register);
	before = vram_free(fd);
	if (row->of == WRITTEN)
		write_pattern(memory, HUGE, 9);
	else if (row->of == ZERO_PAGE)
		CHECK_EQ(*(volatile char *)memory, 0);
	copies = gpu_register(GPU_PAGING_DONE);
	MOVE_THERE(fd, memory, HUGE);
	CHECK(gpu_register(GPU_PAGING_DONE) > copies + 1);
	CHECK_EQ(pages_away(memory, HUGE), HUGE / PAGE);
	copy(&queue, memory, seen, HUGE);
	if (row->of == WRITTEN)
		CHECK(has_pattern(seen, HUGE, 9));
	else
		CHECK(bytes_are(seen, HUGE, 0));
	/* one page comes home */
	CHECK_EQ(*(uint32_t *)(memory + 8192), *(uint32_t *)(seen + 8192));
	CHECK(!memcmp(memory, seen, HUGE));
	fill(&queue, memory, HUGE, 0x4c);
	CHECK(bytes_are(memory, HUGE, 0x4c));
	SYS(munmap(memory, HUGE));
	CHECK(WAIT_FOR(5000, vram_free(fd) + 8 * PAGE >= before));
}

/*
 * Pages that can only be read at the moment, although nobody shares them, move: as the balancing of
 * NUMA nodes leaves them, and as a program has them whose changes are watched.
 */
TEST_EACH(moved_write_protected, page_sizes)
{
	char *memory = block_of(row->huge);
	int fd = open_gpu(), watch = SYS(open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC));
	struct gpu_queue queue = queue_new(fd);

	manage_all(fd);
	write_pattern(memory, HUGE, 6);
	/* 4: all pages count as unchanged, and are write-protected to find changes */
	if (write(watch, "4", 1) != 1)
		SKIP("the kernel does not watch changes");
	MOVE_THERE(fd, memory, HUGE);
	check_device_reads(&queue, memory, HUGE, 6);
	fill(&queue, memory, HUGE, 0x4f);
	CHECK(bytes_are(memory, HUGE, 0x4f));
}
