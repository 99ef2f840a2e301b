// SPDX-License-Identifier: MIT OR Apache-2.0
/* After a fault a block and a table of the device are prepared for the next one. */
#define _GNU_SOURCE
#include "../windows/window.h"

#include "edu.h"
#include "memory.h"
#include "pins.h"

#include <sys/mman.h>
#include <unistd.h>

/* Maps a page at so many places, each of which needs a table; returns how often that succeeds. */
static unsigned int map_many(int fd, uint64_t handle, char *at, unsigned int most)
{
	unsigned int count = 0;
	int result = 0;

	for (; count < most; count++) {
		uint64_t address = (uintptr_t)at + (uint64_t)count * HUGE;
		struct pinmap_fail fail;

		result = try_map(fd, handle, PINMAP_MAP_FIXED, &address, &fail);
		if (result)
			break;
	}
	if (count < most)
		CHECK_ERR(ENOSPC, result);
	return count;
}

static void unmap_many(int fd, uint64_t handle, char *at, unsigned int count)
{
	for (unsigned int i = 0; i < count; i++)
		unmap(fd, handle, (uintptr_t)at + (uint64_t)i * HUGE);
}

enum { FEW = 16, MOST = 60 };

/* How many tables are left, but for those that a context takes for its first mapping. */
static unsigned int tables_left(void)
{
	int fd = open_gpu();
	struct registration registration = register_memory(fd, anon(1), PAGE, NO_MAP | WRITE);
	unsigned int count = map_many(fd, registration.handle, CHOSEN + 8 * HUGE, MOST);

	CHECK(count > 0 && count < MOST);
	close(fd);
	return count;
}

/*
 * Returns whether the block of @memory has a table, and another is prepared: two fewer than @left.
 * Counting takes all tables for a moment, also the one that was to be prepared: then the next fault
 * prepares one.
 */
static bool is_prepared(struct gpu_queue *queue, char *memory, unsigned char byte,
			unsigned int left)
{
	if (tables_left() == left - 2)
		return true;
	SYS(madvise(memory, PAGE, MADV_DONTNEED));
	fill(queue, memory, 8, byte);
	return false;
}

/* Takes all tables but few. A mapping of @fd stays, with the tables above; returns its handle. */
static uint64_t take_most(int fd, char *at)
{
	struct registration registration = register_memory(fd, anon(1), PAGE, NO_MAP | WRITE);

	CHECK_EQ(map_many(fd, registration.handle, at, FEW), FEW);
	take_tables(open_gpu());
	unmap_many(fd, registration.handle, at + HUGE, FEW - 1);
	return registration.handle;
}

/* Where others have all tables, one that is prepared is there for what the program maps. */
TEST(prepared_table_gives_way, .seconds = 120)
{
	int fd = open_gpu();
	char *memory = memory_at(CHOSEN, 2 * HUGE, false), *at = CHOSEN + 8 * HUGE;
	struct gpu_queue queue = queue_new(fd);
	unsigned int with, without, left;
	uint64_t handle;

	manage_host(fd, memory, 2 * HUGE);
	handle = take_most(fd, at);
	without = map_many(fd, handle, at + HUGE, MOST);
	CHECK(without >= FEW - 1 && without < MOST);
	unmap_many(fd, handle, at + HUGE, without);
	left = tables_left();
	fill(&queue, memory, 8, 0x31);
	/* The thread prepares a table while the device goes on. */
	CHECK(WAIT_FOR(slow(10000), is_prepared(&queue, memory, 0x31, left)));
	with = map_many(fd, handle, at + HUGE, MOST);
	CHECK_EQ(with, without - 1);
	unmap_many(fd, handle, at + HUGE, with);
	CHECK(bytes_are(memory, 8, 0x31));
	fill(&queue, memory + HUGE, 8, 0x32);
	CHECK(bytes_are(memory + HUGE, 8, 0x32));
}

/* Blocks of small pages and of huge ones, which need no table, are made of what is prepared. */
TEST(prepared_table_is_used, .seconds = 60)
{
	enum { MANY = 40 };
	int fd = open_gpu();
	char *memory = small_blocks(MANY);
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_get_totals before, after;

	manage_host(fd, memory, MANY * HUGE);
	for (unsigned int i = 0; i < MANY; i++) {
		/* small and huge pages in turn: a huge one leaves the table to the next block */
		SYS(madvise(memory + i * HUGE, HUGE, i % 2 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
		memory[i * HUGE] = 1;
		before = totals(fd, PINMAP_TOTALS_CONTEXT);
		fill(&queue, memory + i * HUGE, 2 * PAGE, i);
		after = totals(fd, PINMAP_TOTALS_CONTEXT);
		CHECK(after.out_faults_served > before.out_faults_served);
		CHECK(after.out_fault_pages > before.out_fault_pages);
	}
	for (unsigned int i = 0; i < MANY; i++)
		CHECK(bytes_are(memory + i * HUGE, 2 * PAGE, i));
}

/* A context that manages nothing any more keeps no table for it. */
TEST(prepared_goes_with_the_range, .seconds = 120)
{
	int fd = open_gpu();
	char *memory = memory_at(CHOSEN, HUGE, false);
	struct gpu_queue queue = queue_new(fd);
	unsigned int left;

	take_most(fd, CHOSEN + 8 * HUGE);
	left = tables_left();
	for (unsigned int round = 0; round < 3; round++) {
		uint64_t handle = manage_host(fd, memory, HUGE);

		fill(&queue, memory, 8, round);
		CHECK(WAIT_FOR(slow(10000), is_prepared(&queue, memory, round, left)));
		release(fd, handle);
		CHECK(WAIT_FOR(slow(10000), tables_left() == left));
	}
}

/* A mapping that needs several tables has the one that is prepared, too. */
TEST(prepared_is_one_of_several, .seconds = 120)
{
	int fd = open_gpu();
	char *memory = memory_at(CHOSEN, HUGE, false), *at = CHOSEN + 8 * HUGE;
	/* in another GiB: two tables */
	uint64_t far = (uintptr_t)CHOSEN + (2ULL << 30), handle;
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_fail fail;
	unsigned int left, free;

	manage_host(fd, memory, HUGE);
	handle = take_most(fd, at);
	free = map_many(fd, handle, at + HUGE, MOST);
	unmap_many(fd, handle, at + HUGE, free);
	left = tables_left();
	fill(&queue, memory, 8, 0x31);
	CHECK(WAIT_FOR(slow(10000), is_prepared(&queue, memory, 0x31, left)));
	/* one is left besides that which is prepared */
	CHECK_EQ(map_many(fd, handle, at + HUGE, free - 3), free - 3);
	CHECK_OK(try_map(fd, handle, PINMAP_MAP_FIXED, &far, &fail));
	CHECK(bytes_are(memory, 8, 0x31));
}

/* For how many mappings there are tables altogether. */
static unsigned int take_all(void)
{
	int fd = open_gpu();
	unsigned int count = take_tables(fd);

	close(fd);
	return count;
}

/* Ranges come and go while two queues fault in them; then contexts do. Nothing is left of them. */
TEST(prepared_is_given_back, .seconds = 120)
{
	unsigned int count = rounds(60), before;
	char *memory = small_blocks(4);
	int other = open_gpu();
	long long pins = pins_held();

	release(other, manage_host(other, memory, HUGE));
	close(other);
	before = take_all();
	for (unsigned int i = 0; i < count; i++) {
		int fd = open_gpu();
		struct gpu_queue one = queue_new(fd), two = queue_new(fd);

		for (unsigned int round = 0; round < 3; round++) {
			unsigned char byte = 3 * i + round;
			uint64_t handle = manage_host(fd, memory, 4 * HUGE);

			for (unsigned int block = 0; block < 4; block++)
				queue_push(block % 2 ? &one : &two, GPU_FILL,
					   (uintptr_t)memory + block * HUGE, 2 * PAGE, byte);
			queue_finish(&one);
			queue_finish(&two);
			for (unsigned int block = 0; block < 4; block++)
				CHECK(bytes_are(memory + block * HUGE, 2 * PAGE, byte));
			release(fd, handle);
		}
		close(fd);
	}
	CHECK(WAIT_FOR(slow(10000), take_all() == before));
	CHECK_PINS_SOON(pins);
}
