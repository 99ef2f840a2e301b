// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory that CPU and device take from each other. */
#define _GNU_SOURCE
#include "../told.h"

#include "edu.h"
#include "file.h"
#include "memory.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LIMIT = 4, ROUNDS = 12 };

/* The device writes, and then the CPU. Returns where the memory was in between. */
static struct pinmap_run turn(struct gpu_queue *queue, char *memory, unsigned char byte)
{
	struct pinmap_run run;

	device_writes(queue, memory, byte);
	run = tell_page(queue->fd, memory);
	CHECK(bytes_are(memory, 8, byte));
	memory[8] = byte;
	return run;
}

/* A page goes home four times, and then stays there, where both reach it. */
TEST_EACH(thrashing_ends, page_sizes)
{
	char *memory = block_of(row->huge);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, HUGE);
	struct pinmap_run run;

	memset(memory, 1, HUGE);
	for (unsigned int i = 0; i < ROUNDS; i++) {
		run = turn(&queue, memory, i);
		CHECK_EQ(run.place, i < LIMIT ? ON_DEVICE : ON_HOST);
		CHECK_EQ(run.rule, i < LIMIT ? PINMAP_RULE_TOUCHED : PINMAP_RULE_THRASHING);
	}
	CHECK_EQ(statistics(fd, handle).out_thrashing, 1);
	CHECK_EQ(statistics(fd, handle).out_host_faults, LIMIT);
}

static void thrash(struct gpu_queue *queue, char *memory)
{
	for (unsigned int i = 0; i < ROUNDS; i++)
		turn(queue, memory, i);
}

/* Thrashing is told once for each range, with the block; each block is counted. */
TEST(thrashing_told)
{
	char *memory = small_blocks(2);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, 2 * HUGE);
	struct pinmap_event event;

	CHECK_NO_EVENT(fd);
	thrash(&queue, memory + HUGE + 3 * PAGE);
	event = next_event(fd);
	CHECK_EQ(event.type, PINMAP_EVENT_THRASHING);
	CHECK_EQ(event.access, 0);
	CHECK_EQ(event.handle, handle);
	CHECK_EQ(event.addr, (uintptr_t)memory + HUGE);
	CHECK_EQ(event.length, HUGE);
	thrash(&queue, memory);
	CHECK_EQ(statistics(fd, handle).out_thrashing, 2);
	CHECK_NO_EVENT(fd);
}

/* Each range has its own event. */
TEST(thrashing_told_of_each_range)
{
	char *memory = small_blocks(2);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t first = manage(fd, memory, HUGE), second = manage(fd, memory + HUGE, HUGE);

	thrash(&queue, memory);
	thrash(&queue, memory + HUGE);
	CHECK_EQ(next_event(fd).handle, first);
	CHECK_EQ(next_event(fd).handle, second);
	CHECK_NO_EVENT(fd);
}

/* An event of a range that was released is taken back. */
TEST(thrashing_withdrawn)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, HUGE);

	thrash(&queue, memory);
	CHECK_EQ(statistics(fd, handle).out_thrashing, 1);
	release(fd, handle);
	CHECK_NO_EVENT(fd);
}

/* Memory that the program prefers on the device goes on moving, and nothing is said. */
TEST(thrashing_preferred)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_run run;

	manage(fd, memory, HUGE);
	advise(fd, memory, HUGE, PREFER_DEVICE);
	for (unsigned int i = 0; i < ROUNDS; i++) {
		run = turn(&queue, memory, i);
		CHECK_EQ(run.place, ON_DEVICE);
		CHECK_EQ(run.rule, PINMAP_RULE_PREFERRED);
	}
	CHECK_NO_EVENT(fd);
}

/* Memory that only one side takes again and again does not thrash. */
TEST(thrashing_not)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, HUGE);

	memset(memory, 1, HUGE);
	for (unsigned int i = 0; i < ROUNDS; i++) {
		device_writes(&queue, memory, i);
		MOVE_HOME(fd, memory, HUGE);
	}
	CHECK_EQ(statistics(fd, handle).out_thrashing, 0);
	CHECK_EQ(statistics(fd, handle).out_in_touched, ROUNDS * 16 * PAGE);
}

#define KHUGEPAGED "/sys/kernel/mm/transparent_hugepage/khugepaged/"

/*
 * khugepaged is a kernel thread, and no device: what it brings home to make a huge page of it was
 * not taken by another device, and goes on moving.
 */
TEST(thrashing_not_by_khugepaged, .seconds = 300)
{
	enum { SOME = 16 * PAGE };
	char *memory = block_of(true);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_run run;

	file_write(KHUGEPAGED "scan_sleep_millisecs", "10");
	file_write(KHUGEPAGED "pages_to_scan", "100000");
	manage(fd, memory, HUGE);
	advise(fd, memory, SOME, PREFER_DEVICE);
	/* khugepaged looks at a process from its first fault of a huge page on */
	memset(memory, 1, HUGE);
	for (unsigned int i = 0; i < ROUNDS; i++) {
		/* the runner keeps it so: khugepaged leaves alone what has pages in VRAM */
		file_write(KHUGEPAGED "max_ptes_swap", "0");
		device_writes(&queue, memory, i);
		run = tell_page(fd, memory);
		CHECK_EQ(run.place, ON_DEVICE);
		CHECK_EQ(run.rule, PINMAP_RULE_PREFERRED);
		file_write(KHUGEPAGED "max_ptes_swap", "64");
		/* it wants half of the pages to be in use */
		CHECK(WAIT_FOR(20000, ({
			memset(memory + SOME, i, HUGE - SOME);
			pages_away(memory, HUGE) == 0;
		})));
		CHECK(bytes_are(memory, 8, i));
	}
	file_write(KHUGEPAGED "max_ptes_swap", "0");
	file_write(KHUGEPAGED "scan_sleep_millisecs", "10000");
	file_write(KHUGEPAGED "pages_to_scan", "4096");
}

/* A side that goes through the whole block takes it once, however many faults that costs it. */
TEST(thrashing_counts_once)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, HUGE);

	for (unsigned int i = 0; i < LIMIT; i++) {
		CHECK_EQ(statistics(fd, handle).out_thrashing, 0);
		fill(&queue, memory, HUGE, i);
		CHECK_PLACE(fd, memory, HUGE, ON_DEVICE, TOUCHED);
		CHECK(bytes_are(memory, HUGE, i));
	}
	CHECK_EQ(statistics(fd, handle).out_thrashing, 1);
	fill(&queue, memory, HUGE, 9);
	CHECK_PLACE(fd, memory, HUGE, ON_HOST, THRASHING);
	CHECK(bytes_are(memory, HUGE, 9));
}

/* Thrashing ends with the memory: what is mapped there next has not thrashed. */
TEST(thrashing_ends_with_the_memory)
{
	char *memory = small_blocks(1);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	thrash(&queue, memory);
	CHECK_EQ(tell_page(fd, memory).rule, PINMAP_RULE_THRASHING);
	SYS(mmap(memory, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0));
	device_writes(&queue, memory, 1);
	CHECK_EQ(tell_page(fd, memory).place, ON_DEVICE);
	CHECK_EQ(tell_page(fd, memory).rule, PINMAP_RULE_TOUCHED);
}

/* Also if so much memory ends that not each of its blocks is looked for. */
TEST(thrashing_ends_with_much_memory)
{
	size_t length = 8ULL << 30;
	char *memory = address_space(length, HUGE), *other = small_blocks(1);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	SYS(mmap(memory, length, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0));
	SYS(madvise(memory, length, MADV_NOHUGEPAGE));
	thrash(&queue, memory);
	thrash(&queue, other);
	SYS(mmap(memory, length, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0));
	device_writes(&queue, memory, 1);
	CHECK_EQ(tell_page(fd, memory).rule, PINMAP_RULE_TOUCHED);
	CHECK_EQ(tell_page(fd, other).rule, PINMAP_RULE_THRASHING);
}

/* Uses several blocks as a program does, and notes where they are each time. */
static void history(unsigned char places[4 * ROUNDS], bool slow)
{
	char *memory = small_blocks(4);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 1, 4 * HUGE);
	for (unsigned int i = 0; i < 4 * ROUNDS; i++) {
		char *at = memory + i * i % 7 % 4 * HUGE;

		device_writes(&queue, at, i);
		places[i] = tell_page(fd, at).rule;
		if (i % 3)
			at[0] = i;
		if (slow)
			sleep_ms(20);
	}
	queue_delete(&queue);
	close(fd);
	munmap(memory, 4 * HUGE);
}

/* A history gives the same decisions again, however long it takes. */
TEST(thrashing_repeatable)
{
	unsigned char first[4 * ROUNDS], second[4 * ROUNDS];
	bool any = false;

	history(first, false);
	history(second, true);
	CHECK(!memcmp(first, second, sizeof(first)));
	for (size_t i = 0; i < sizeof(first); i++)
		any |= first[i] == PINMAP_RULE_THRASHING;
	CHECK(any);
}

/* Thrashing ends when so many other faults were served. */
TEST(thrashing_forgotten, .seconds = 60)
{
	enum { SERVED = 1024 };
	char *memory = small_blocks(1 + SERVED / 8);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	thrash(&queue, memory);
	SYS(madvise(memory, PAGE, MADV_DONTNEED));
	device_writes(&queue, memory, 1);
	CHECK_EQ(tell_page(fd, memory).place, ON_HOST);
	advise(fd, memory + HUGE, SERVED / 8 * HUGE, PREFER_HOST);
	/* no two of them are neighbours, so that each is a fault */
	for (unsigned int i = 0; i < SERVED; i++)
		device_writes(&queue, memory + HUGE + i / 8 * HUGE + i % 8 * 64 * PAGE, 1);
	SYS(madvise(memory, PAGE, MADV_DONTNEED));
	device_writes(&queue, memory, 2);
	CHECK_EQ(tell_page(fd, memory).place, ON_DEVICE);
}
