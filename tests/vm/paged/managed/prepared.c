// SPDX-License-Identifier: MIT OR Apache-2.0
/* What is prepared for the next fault after one was served: a block, and a table of the device. */
#define _GNU_SOURCE
#include "window.h"

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

/* Where others have all tables, one that is prepared is there for what the program maps. */
TEST(prepared_table_gives_way, .seconds = 120)
{
	enum { FEW = 12, MOST = 40 };
	int fd = open_gpu(), other = open_gpu();
	char *memory = memory_at(CHOSEN, 2 * HUGE, false), *own = anon(1), *at = CHOSEN + 8 * HUGE;
	struct registration registration = register_memory(fd, own, PAGE, NO_MAP | WRITE);
	struct gpu_queue queue = queue_new(fd);
	unsigned int with, without;

	manage_host(fd, memory, 2 * HUGE);
	CHECK_EQ(map_many(fd, registration.handle, at, FEW), FEW);
	take_tables(other);
	/* One stays, so that the upper tables do. */
	unmap_many(fd, registration.handle, at + HUGE, FEW - 1);
	without = map_many(fd, registration.handle, at + HUGE, MOST);
	CHECK(without >= FEW - 1 && without < MOST);
	unmap_many(fd, registration.handle, at + HUGE, without);
	fill(&queue, memory, 8, 0x31);
	/* The thread prepares while the device goes on. */
	usleep(100000);
	/* The block has a table. */
	with = map_many(fd, registration.handle, at + HUGE, MOST);
	CHECK_EQ(with, without - 1);
	unmap_many(fd, registration.handle, at + HUGE, with);
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

/* For how many mappings there are tables. */
static unsigned int tables_left(void)
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
	before = tables_left();
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
	CHECK(WAIT_FOR(slow(10000), tables_left() == before));
	CHECK_PINS_SOON(pins);
}
