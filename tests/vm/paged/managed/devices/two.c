// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Memory that two devices manage. It moves from one to the other, directly or by way of the host;
 * each context tells what the other device has as absent.
 */
#define _GNU_SOURCE
#include "two.h"

#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "process.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCK_PAGES = HUGE / PAGE, FLOATS = PAGE / 4, LIMIT = 4, ROUNDS = 12 };

struct two two_new(const void *addr, size_t length)
{
	struct two two = { .fds = { open_gpu(), open_second_gpu() } };

	for (int i = 0; i < 2; i++) {
		two.queues[i] = queue_new(two.fds[i]);
		two.handles[i] = manage(two.fds[i], addr, length);
	}
	return two;
}

/* Has a device add 1 to each float. */
static void push_increment(struct gpu_queue *queue, const void *addr, size_t length)
{
	queue_push(queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)addr, length / 4, 0);
}

void increment(struct gpu_queue *queue, const void *addr, size_t length)
{
	push_increment(queue, addr, length);
	queue_finish(queue);
}

void check_floats(const void *addr, size_t length, float value)
{
	const float *floats = addr;

	for (size_t i = 0; i < length / 4; i++)
		if (floats[i] != value)
			FAIL("float %zu is %g instead of %g", i, floats[i], value);
}

/* Bytes that came to a device because it touched them. */
static uint64_t came(const struct two *two, int which)
{
	return statistics(two->fds[which], two->handles[which]).out_in_touched;
}

/* One device writes, the other adds to that, the CPU reads and writes; again and again. */
TEST_EACH(two_gpus_in_turns, page_sizes)
{
	char *memory = block_of(row->huge);
	struct two two = two_new(memory, HUGE);
	float *floats = (float *)memory;

	memset(memory, 0, HUGE);
	for (int i = 0; i < ROUNDS; i++) {
		increment(&two.queues[0], memory, HUGE);
		CHECK_EQ(on_device(two.fds[1], memory, HUGE), 0);
		increment(&two.queues[1], memory, HUGE);
		CHECK_EQ(on_device(two.fds[0], memory, HUGE), 0);
		check_floats(memory, HUGE, 3 * i + 2);
		for (size_t at = 0; at < HUGE / 4; at++)
			floats[at]++;
	}
	CHECK(came(&two, 0) >= HUGE);
	CHECK(came(&two, 1) >= HUGE);
}

/*
 * Each device takes it from the other, as long as it has not happened too often: then it stays on
 * the host, where both reach it.
 */
TEST_EACH(two_gpus_take_turns, page_sizes)
{
	char *memory = block_of(row->huge);
	struct two two = two_new(memory, HUGE);

	memset(memory, 0, HUGE);
	for (int i = 0; i < ROUNDS; i++) {
		struct gpu_queue *queue = &two.queues[i % 2];
		struct pinmap_run run;

		increment(queue, memory, PAGE);
		run = tell_page(queue->fd, memory);
		CHECK_EQ(run.place, i < 2 * LIMIT ? ON_DEVICE : ON_HOST);
		CHECK_EQ(run.rule, i < 2 * LIMIT ? PINMAP_RULE_TOUCHED : PINMAP_RULE_THRASHING);
		if (i < 2 * LIMIT)
			CHECK_EQ(tell_page(two.fds[1 - i % 2], memory).place, ABSENT);
	}
	check_floats(memory, PAGE, ROUNDS);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(statistics(two.fds[i], two.handles[i]).out_thrashing, 1);
}

/* Memory that both are to have preferably stays on the host, too, after as many turns. */
TEST_EACH(two_gpus_preferred, page_sizes)
{
	char *memory = block_of(row->huge);
	struct two two = two_new(memory, HUGE);
	uint64_t before[2];

	memset(memory, 0, HUGE);
	for (int i = 0; i < 2; i++)
		advise(two.fds[i], memory, HUGE, PREFER_DEVICE);
	for (int i = 0; i < 2 * LIMIT; i++) {
		increment(&two.queues[i % 2], memory, PAGE);
		CHECK_EQ(tell_page(two.fds[i % 2], memory).rule, PINMAP_RULE_PREFERRED);
	}
	for (int i = 0; i < 2; i++)
		increment(&two.queues[i], memory, PAGE);
	for (int i = 0; i < 2; i++)
		before[i] = came(&two, i);
	for (int i = 0; i < ROUNDS; i++)
		increment(&two.queues[i % 2], memory, PAGE);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(tell_page(two.fds[i], memory).place, ON_HOST);
		CHECK_EQ(tell_page(two.fds[i], memory).rule, PINMAP_RULE_THRASHING);
		CHECK_EQ(came(&two, i), before[i]);
	}
	check_floats(memory, PAGE, 2 * LIMIT + 2 + ROUNDS);
}

/* The two work on different pages of the same 2 MiB at the same time. */
TEST_EACH(two_gpus_at_once, page_sizes, .seconds = 120)
{
	char *memory = block_of(row->huge);
	struct two two = two_new(memory, HUGE);
	unsigned int all = rounds(10);

	memset(memory, 0, HUGE);
	for (unsigned int i = 0; i < all; i++) {
		for (int page = 0; page < 64; page++) {
			/* places for the fence and its interrupt are left in the ring */
			if (page == 30)
				for (int k = 0; k < 2; k++)
					queue_finish_within(&two.queues[k], slow(60000));
			push_increment(&two.queues[page % 2], memory + page * 7 * PAGE, PAGE);
		}
		for (int k = 0; k < 2; k++)
			queue_submit(&two.queues[k]);
		for (int k = 0; k < 2; k++)
			CHECK_OK(try_queue_wait(&two.queues[k], slow(60000)));
	}
	for (int page = 0; page < 64; page++)
		check_floats(memory + page * 7 * PAGE, PAGE, all);
}

/* Both add to the same words atomically, and the CPU adds too: nothing gets lost. */
TEST(two_gpus_atomic, .seconds = 120)
{
	enum { WORDS = 8, TIMES = 50, PACKETS = 10 };
	char *memory = block_of(false);
	struct two two = two_new(memory, HUGE);
	uint64_t *words = (uint64_t *)memory, added = 0;

	memset(memory, 0, HUGE);
	for (int i = 0; i < PACKETS; i++)
		for (int k = 0; k < 2; k++)
			queue_push_add(&two.queues[k], words, WORDS, 1, TIMES);
	for (int k = 0; k < 2; k++)
		queue_submit(&two.queues[k]);
	for (int i = 0; i < 20; i++) {
		for (int word = 0; word < WORDS; word++)
			__atomic_fetch_add(&words[word], 1, __ATOMIC_SEQ_CST);
		added++;
		sleep_ms(1);
	}
	for (int k = 0; k < 2; k++)
		queue_finish_within(&two.queues[k], slow(60000));
	for (int word = 0; word < WORDS; word++)
		CHECK_EQ(words[word], added + 2 * TIMES * PACKETS);
}

/* PREFETCH takes memory from the other device, whose VRAM is free then. */
TEST_EACH(two_gpus_prefetch, page_sizes)
{
	char *memory = block_of(row->huge);
	struct two two = two_new(memory, HUGE);
	uint64_t before = vram_free(two.fds[0]);
	struct pinmap_prefetch moved;

	write_pattern(memory, HUGE, 3);
	for (int i = 0; i < ROUNDS; i++) {
		int there = two.fds[i % 2], other = two.fds[1 - i % 2];

		moved = prefetch_all(there, memory, HUGE, 0);
		CHECK_EQ(moved.out_moved, HUGE);
		CHECK_EQ(on_device(there, memory, HUGE), HUGE);
		CHECK_PLACE(there, memory, HUGE, ON_DEVICE, PREFETCHED);
		CHECK_EQ(on_device(other, memory, HUGE), 0);
	}
	CHECK(WAIT_FOR(5000, vram_free(two.fds[0]) == before));
	MOVE_HOME(two.fds[1], memory, HUGE);
	CHECK(has_pattern(memory, HUGE, 3));
}

/* A part of the memory is there already, a part on the other device, and a part nowhere. */
TEST(two_gpus_prefetch_mixed)
{
	enum { PART = HUGE / 4 };
	char *memory = block_of(false);
	struct two two = two_new(memory, HUGE);
	struct pinmap_prefetch moved;

	write_pattern(memory, 3 * PART, 4);
	MOVE_THERE(two.fds[0], memory, PART);
	MOVE_THERE(two.fds[1], memory + PART, PART);
	moved = prefetch_all(two.fds[1], memory, HUGE, 0);
	CHECK_EQ(moved.out_moved, 3 * PART);
	CHECK_EQ(moved.out_there, PART);
	CHECK_EQ(on_device(two.fds[1], memory, HUGE), HUGE);
	CHECK(has_pattern(memory, 3 * PART, 4));
	CHECK(bytes_are(memory + 3 * PART, PART, 0));
}

/* Each context tells where memory is as its device sees it. */
TEST(two_gpus_residency)
{
	enum { PART = HUGE / 4 };
	char *memory = block_of(false);
	struct two two = two_new(memory, HUGE);

	memset(memory, 7, 3 * PART);
	for (int i = 0; i < 2; i++)
		MOVE_THERE(two.fds[i], memory + i * PART, PART);
	for (int i = 0; i < 2; i++) {
		const struct told *told = tell(two.fds[i], memory, HUGE);

		CHECK_EQ(told->args.out_device, PART);
		CHECK_EQ(told->args.out_host, PART);
		CHECK_EQ(told->args.out_absent, 2 * PART);
		CHECK_EQ(tell_page(two.fds[i], memory + i * PART).place, ON_DEVICE);
		CHECK_EQ(tell_page(two.fds[i], memory + (1 - i) * PART).place, ABSENT);
	}
	CHECK(bytes_are(memory, 3 * PART, 7));
	CHECK_EQ(pages_away(memory, HUGE), 0);
}

static const struct {
	const char *name;
	bool huge, reset, busy;
} ends[] = { { "unbind_small", false, false, false },
	     { "unbind_huge", true, false, false },
	     { "unbind_busy", false, false, true },
	     { "reset_small", false, true, false },
	     { "reset_huge", true, true, false },
	     { "reset_busy", true, true, true } };

/* One device goes while it has the memory; the other gets it. */
TEST_EACH(two_gpus_one, ends, .seconds = 120, .faults = true)
{
	char *memory = block_of(row->huge), bdf[16];
	struct two two = two_new(memory, HUGE);
	struct gpu_queue *other = &two.queues[1];

	snprintf(bdf, sizeof(bdf), "%.15s", need_gpu());
	memset(memory, 0, HUGE);
	MOVE_THERE(two.fds[0], memory, HUGE);
	increment(&two.queues[0], memory, HUGE);
	if (row->busy) {
		for (int i = 0; i < 40; i++) {
			push_increment(other, memory + HUGE / 2, HUGE / 2);
			queue_push(&two.queues[0], GPU_FILL, (uintptr_t)memory, HUGE / 4, i);
		}
		queue_submit(other);
		queue_submit(&two.queues[0]);
		CHECK(WAIT_FOR(slow(20000), queue_query(other).out_index > 2));
	}
	if (row->reset)
		file_write(pci_path(bdf, "reset"), "1");
	else
		pci_unbind(bdf);
	increment(other, memory + HUGE / 2, HUGE / 2);
	check_floats(memory + HUGE / 2, HUGE / 2, row->busy ? 42 : 2);
	if (!row->busy)
		check_floats(memory, HUGE / 2, 1);
	if (row->reset)
		pci_unbind(bdf);
	pci_bind(bdf);
	check_works();
}

/* After a fork both processes have what was on each of the two devices; none sees the other. */
TEST_EACH(two_gpus_forked, page_sizes)
{
	char *memory = small_blocks(2);
	struct two two;
	pid_t pid;

	SYS(madvise(memory, 2 * HUGE, row->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	two = two_new(memory, 2 * HUGE);
	memset(memory, 0, 2 * HUGE);
	for (int i = 0; i < 2; i++) {
		MOVE_THERE(two.fds[i], memory + i * HUGE, HUGE);
		increment(&two.queues[i], memory + i * HUGE, HUGE);
	}
	pid = fork();
	if (pid == 0) {
		check_floats(memory, 2 * HUGE, 1);
		memset(memory, 0xff, 2 * HUGE);
		_exit(0);
	}
	for (int i = 0; i < 2; i++)
		increment(&two.queues[i], memory + (1 - i) * HUGE, HUGE);
	join(pid);
	check_floats(memory, 2 * HUGE, 2);
}

/* A program that is killed while both devices work on its memory gives back the VRAM of both. */
TEST(two_gpus_killed, .seconds = 60)
{
	int fds[2] = { open_gpu(), open_second_gpu() };
	uint64_t before[2] = { vram_free(fds[0]), vram_free(fds[1]) };

	if (!(get_info(fds[0]).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel lets no driver follow the memory of programs");
	for (unsigned int i = 0; i < rounds(10); i++) {
		struct gate begun = gate_new();
		pid_t pid = fork();

		if (pid == 0) {
			char *memory = block_of(i % 2);
			struct two two = two_new(memory, HUGE);

			for (unsigned int done = 0;; done++) {
				for (int k = 0; k < 2; k++)
					push_increment(&two.queues[k], memory, HUGE);
				for (int k = 0; k < 2; k++)
					queue_finish(&two.queues[k]);
				if (done == i % 3)
					gate_open(&begun);
			}
		}
		gate_pass(&begun);
		kill_now(pid);
		for (int k = 0; k < 2; k++)
			CHECK(WAIT_FOR(5000, vram_free(fds[k]) == before[k]));
	}
}

/* Both have too little room, and evict what they have of the same memory. */
TEST(two_gpus_crowded, .seconds = 120)
{
	enum { ROOM = 4 << 20, WORK = 3 * ROOM };
	char *memory = small_blocks(WORK / HUGE);
	int others[2] = { open_gpu(), open_second_gpu() };
	struct two two = two_new(memory, WORK);

	for (int i = 0; i < 2; i++)
		leave_room(others[i], ROOM);
	memset(memory, 0, WORK);
	for (int i = 0; i < 4; i++) {
		for (int k = 0; k < 2; k++) {
			size_t half = (i + k) % 2 * (WORK / 2);

			push_increment(&two.queues[k], memory + half, WORK / 2);
			queue_submit(&two.queues[k]);
		}
		for (int k = 0; k < 2; k++)
			CHECK_OK(try_queue_wait(&two.queues[k], slow(60000)));
	}
	check_floats(memory, WORK, 4);
	for (int k = 0; k < 2; k++)
		CHECK(statistics(two.fds[k], two.handles[k]).out_home_evicted > 0);
}
