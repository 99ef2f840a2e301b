// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory that moves to the device when the program asks for it, and home. */
#define _GNU_SOURCE
#include "../moving.h"

#include "edu.h"
#include "memory.h"
#include "pressure.h"
#include "process.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The device reads what moved to it, and the CPU reads what the device wrote. */
TEST_EACH(moved_there_and_back, page_sizes)
{
	char *memory = block_of(row->huge), *seen = anon(HUGE / PAGE);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_prefetch moved;
	uint64_t before;

	before = vram_free(fd);
	write_pattern(memory, HUGE, 7);
	moved = prefetch_all(fd, memory, HUGE, 0);
	CHECK_EQ(moved.out_moved, HUGE);
	CHECK(vram_free(fd) <= before - HUGE);
	moved = prefetch(fd, 0, memory, HUGE);
	CHECK_EQ(moved.out_there, HUGE);

	copy(&queue, memory, seen, HUGE);
	CHECK(has_pattern(seen, HUGE, 7));
	write_pattern(seen, HUGE, 99);
	copy(&queue, seen, memory, HUGE);
	CHECK(vram_free(fd) <= before - HUGE);
	CHECK(has_pattern(memory, HUGE, 99));
	CHECK_EQ(prefetch(fd, PINMAP_PREFETCH_HOST, memory, HUGE).out_there, HUGE);
	munmap(memory, HUGE);
}

/* Pages that nobody has touched are made on the device, and are zeros for both sides. */
TEST_EACH(moved_untouched, page_sizes)
{
	char *memory = block_of(row->huge), *seen = anon(HUGE / PAGE);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	CHECK_EQ(prefetch(fd, PINMAP_PREFETCH_HOST, memory, HUGE).out_there, HUGE);
	MOVE_THERE(fd, memory, HUGE);
	copy(&queue, memory, seen, HUGE);
	CHECK(bytes_are(seen, HUGE, 0));
	CHECK(bytes_are(memory, HUGE, 0));
}

/* Memory comes home whole, as a huge page or by single pages. */
TEST_EACH(moved_home_by_call, page_sizes)
{
	char *memory = block_of(row->huge);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t before = vram_free(fd);

	manage_all(fd);
	write_pattern(memory, HUGE, 3);
	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, PAGE, 0x51);
	MOVE_HOME(fd, memory, HUGE);
	CHECK(bytes_are(memory, PAGE, 0x51));
	for (size_t i = PAGE / 4; i < HUGE / 4; i++)
		CHECK_EQ(((uint32_t *)memory)[i], (uint32_t)(3 + i * 2654435761u));
	fill(&queue, memory, HUGE, 0x52);
	CHECK(bytes_are(memory, HUGE, 0x52));
	queue_delete(&queue);
	close(fd);
	fd = open_gpu();
	CHECK_EQ(vram_free(fd), before);
}

/*
 * Memory that the device had in VRAM came home and is used where it is from then on. When it is
 * freed, in one piece of several blocks, the IOMMU leads to none of it any more.
 */
TEST(moved_home_used_and_freed)
{
	char *memory = small_blocks(2);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	size_t before;

	manage_all_host(fd);
	MOVE_THERE(fd, memory, 2 * HUGE);
	fill(&queue, memory, 2 * HUGE, 0x54);
	MOVE_HOME(fd, memory, 2 * HUGE);
	/* with the driver's own buffers for copies */
	before = bus_reach(true);
	fill(&queue, memory, 2 * HUGE, 0x55);
	CHECK(bytes_are(memory, 2 * HUGE, 0x55));
	CHECK_EQ(bus_reach(true), before + 2 * HUGE);
	munmap(memory, 2 * HUGE);
	CHECK_EQ(bus_reach(true), before);
}

static const struct {
	const char *name;
	bool huge, whole;
} ends[] = { { "dontneed_page", false, false },
	     { "dontneed_huge", true, true },
	     { "dontneed_part", true, false } };

/* Memory that is freed costs no copy, and what comes after it is zeros for both. */
TEST_EACH(moved_freed, ends)
{
	char *memory = block_of(row->huge), *seen = anon(HUGE / PAGE);
	size_t length = row->whole ? HUGE : PAGE;
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x21, HUGE);
	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, 0x22);
	SYS(madvise(memory, length, MADV_DONTNEED));
	copy(&queue, memory, seen, HUGE);
	CHECK(bytes_are(seen, length, 0));
	CHECK(bytes_are(seen + length, HUGE - length, 0x22));
	CHECK(bytes_are(memory, length, 0));
	CHECK(bytes_are(memory + length, HUGE - length, 0x22));
}

/* After fork() parent and child share what is on the device, until one of them writes. */
TEST_EACH(moved_forked, page_sizes)
{
	char *memory = block_of(row->huge), *seen = anon(HUGE / PAGE);
	struct gate child = gate_new(), parent = gate_new();
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	pid_t pid;

	memset(memory, 0x31, HUGE);
	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, 0x32);
	pid = fork();
	if (pid == 0) {
		gate_pass(&parent);
		CHECK(bytes_are(memory, HUGE, 0x32));
		memset(memory, 0x34, HUGE);
		gate_open(&child);
		pause();
	}
	copy(&queue, memory, seen, HUGE);
	CHECK(bytes_are(seen, HUGE, 0x32));
	fill(&queue, memory, HUGE, 0x33);
	gate_open(&parent);
	gate_pass(&child);
	CHECK(bytes_are(memory, HUGE, 0x33));
	kill_now(pid);
}

/* Memory on the device outlives the file, and the device takes nothing along when it goes. */
static const struct {
	const char *name;
	bool rebind, huge;
} goings[] = { { "close", false, false },
	       { "close_huge", false, true },
	       { "unbind", true, false },
	       { "unbind_huge", true, true } };

TEST_EACH(moved_outlives, goings)
{
	char *memory = block_of(row->huge);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, 0x41);
	queue_unmap(&queue);
	close(fd);
	if (row->rebind)
		gpu_rebind();
	CHECK(bytes_are(memory, HUGE, 0x41));
	check_works();
}

/* Pages that somebody has pinned stay; what is on the device comes home to be pinned. */
TEST(moved_pinned)
{
	char *memory = small_blocks(1);
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct registration registration;
	struct pinmap_prefetch moved;
	uint64_t before = vram_free(fd);

	manage_all(fd);
	memset(memory, 0x61, HUGE);
	registration = register_memory(other, memory, 4 * PAGE, WRITE);
	moved = prefetch_all(fd, memory, HUGE, 4 * PAGE);
	CHECK_EQ(moved.out_moved, HUGE - 4 * PAGE);
	release(other, registration.handle);
	CHECK(WAIT_FOR(5000, prefetch(fd, 0, memory, 4 * PAGE).out_busy == 0));
	fill(&queue, memory, HUGE, 0x62);
	registration = register_memory(other, memory, HUGE, WRITE);
	CHECK(bytes_are(memory, HUGE, 0x62));
	CHECK_EQ(prefetch(fd, 0, memory, HUGE).out_busy, HUGE);
	release(other, registration.handle);
	queue_delete(&queue);
	close(fd);
	fd = open_gpu();
	CHECK_EQ(vram_free(fd), before);
}

/* Memory that is swapped out is read in, and moves. */
TEST(moved_from_swap)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();

	swap_begin();
	manage_all(fd);
	write_pattern(memory, HUGE, 6);
	SYS(madvise(memory, HUGE, MADV_PAGEOUT));
	CHECK(pages_away(memory, HUGE) > HUGE / PAGE / 2);
	MOVE_THERE(fd, memory, HUGE);
	swap_end();
	CHECK_EQ(pages_away(memory, HUGE), HUGE / PAGE);
	CHECK(has_pattern(memory, HUGE, 6));
}

/* Memory of files and shared memory is used where it is, and holes are left alone. */
TEST(moved_fixed)
{
	char *file = memory_new(MEMFD, 4 * PAGE).addr, *hole = address_space(HUGE, HUGE);
	int fd = open_managed();

	CHECK_EQ(prefetch(fd, 0, file, 4 * PAGE).out_fixed, 4 * PAGE);
	SYS(munmap(hole, HUGE));
	CHECK_EQ(prefetch(fd, 0, hole, HUGE).out_fixed, HUGE);
}

TEST(moved_arguments)
{
	struct pinmap_prefetch args;
	char *memory = small_blocks(1);
	int fd = open_gpu();

	CHECK_ERR(ENOENT, try_prefetch(fd, 0, memory, PAGE, &args));
	manage(fd, memory, PAGE);
	CHECK_ERR(ENOENT, try_prefetch(fd, 0, memory, 2 * PAGE, &args));
	CHECK_ERR(EINVAL, try_prefetch(fd, 0, memory, 0, &args));
	CHECK_ERR(EINVAL, try_prefetch(fd, 0, memory + 1, PAGE, &args));
	CHECK_ERR(EOPNOTSUPP, try_prefetch(fd, 4, memory, PAGE, &args));
	CHECK_OK(try_prefetch(fd, 0, memory, PAGE, &args));
	CHECK_EQ(args.out_moved, PAGE);
}

/* A part of a huge page moves by itself; the rest stays where it is. */
TEST(moved_part_of_huge)
{
	char *memory = block_of(true);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x71, HUGE);
	MOVE_THERE(fd, memory + 8 * PAGE, 8 * PAGE);
	CHECK_EQ(prefetch(fd, 0, memory, HUGE).out_there, 8 * PAGE);
	fill(&queue, memory, HUGE, 0x72);
	MOVE_HOME(fd, memory + 64 * PAGE, PAGE);
	CHECK(bytes_are(memory, HUGE, 0x72));

	memset(memory, 0x73, HUGE);
	madvise(memory, HUGE, MADV_COLLAPSE);
	MOVE_THERE(fd, memory, HUGE);
	MOVE_HOME(fd, memory + 64 * PAGE, PAGE);
	fill(&queue, memory, HUGE, 0x74);
	CHECK(bytes_are(memory, HUGE, 0x74));
}

static const struct touched {
	const char *name;
	size_t page;
} touched_pages[] = { { "first", 0 }, { "second", 1 }, { "before", 4 }, { "behind", 5 },
		      { "last", 511 } };

/*
 * The mapping of a huge page is split, but the page itself is not: two areas have parts of it. The
 * CPU touches it anywhere.
 */
TEST_EACH(moved_split, touched_pages)
{
	char *memory = block_of(true), *touched = memory + row->page * PAGE;
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	manage_all_host(fd);
	memset(memory, 0x75, HUGE);
	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, 0x76);
	SYS(mprotect(memory + 5 * PAGE, HUGE - 5 * PAGE, PROT_READ));
	CHECK_EQ(pages_away(memory, HUGE), HUGE / PAGE);
	CHECK_EQ(*(volatile char *)touched, 0x76);
	CHECK_EQ(pages_away(touched, PAGE), 0);
	CHECK(bytes_are(memory, HUGE, 0x76));
	SYS(mprotect(memory + 5 * PAGE, HUGE - 5 * PAGE, PROT_READ | PROT_WRITE));
	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, 0x77);
	CHECK(bytes_are(memory, HUGE, 0x77));
}

/*
 * The engine that copies does not move: what was to go there stays, and what is there is copied by
 * the CPU.
 */
TEST(moved_with_engine_stuck, .seconds = 60)
{
	char *memory = small_blocks(1);
	struct pinmap_prefetch args;
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	manage_all_host(fd);
	memset(memory, 0x11, HUGE);
	MOVE_THERE(fd, memory, HUGE / 2);
	fill(&queue, memory, HUGE, 0x12);
	gpu_set_register(GPU_STUCK, 1 << GPU_PAGING_ENGINE);
	CHECK_ERR(EIO, try_prefetch(fd, 0, memory + HUGE / 2, HUGE / 2, &args));
	CHECK(bytes_are(memory + HUGE / 2, HUGE / 2, 0x12));
	gpu_set_register(GPU_STUCK, 1 << GPU_PAGING_ENGINE);
	CHECK(bytes_are(memory, 16 * PAGE, 0x12));
	gpu_set_register(GPU_STUCK, 0);
	CHECK(bytes_are(memory, HUGE / 2, 0x12));
	MOVE_THERE(fd, memory, HUGE);
	CHECK(bytes_are(memory, HUGE, 0x12));
}

/* The engine does not say that it has copied: the device is taken for gone, and nothing is lost. */
TEST(moved_without_acknowledgement, .seconds = 60, .faults = true)
{
	char *memory = small_blocks(1);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, 0x13);
	gpu_set_register(GPU_NO_ACK, NO_ACK_PAGING);
	CHECK(bytes_are(memory, HUGE, 0x13));
	CHECK(WAIT_FOR(10000, try_queue_wait(&queue, 0) == -ENODEV));
	gpu_rebind();
	check_works();
}

/* Allocations of programs go before memory that has moved to the device. */
TEST(moved_makes_room, .seconds = 120)
{
	int fd = open_gpu(), other = open_gpu();
	uint64_t all = vram_free(fd) / HUGE * HUGE;
	char *memory = small_blocks(all / HUGE);
	struct gpu_memory vram;

	SYS(madvise(memory, all, MADV_HUGEPAGE));
	manage_all(fd);
	for (uint64_t at = 0; at < all; at += PAGE)
		*(uint64_t *)(memory + at) = at;
	CHECK(prefetch(fd, 0, memory, all).out_moved > all / 2);
	vram = gpu_alloc(other, PINMAP_ALLOC_VRAM, all / 4);
	memset(vram.addr, 0x14, all / 4);
	for (uint64_t at = 0; at < all; at += PAGE)
		CHECK_EQ(*(uint64_t *)(memory + at), at);
	CHECK(bytes_are(vram.addr, all / 4, 0x14));
}
