// SPDX-License-Identifier: MIT OR Apache-2.0
/* Many threads and many queues, whose memory has nothing to do with each other's. */
#define _GNU_SOURCE
#include "../managed.h"

#include "edu.h"
#include "memory.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS = 16 };

struct worker {
	pthread_t thread;
	pthread_barrier_t *start;
	char *memory;
	struct gpu_queue queue;
	unsigned int rounds;
};

static void start_all(struct worker *workers, size_t count, void *(*run)(void *argument))
{
	for (size_t i = 0; i < count; i++)
		CHECK_OK(-pthread_create(&workers[i].thread, NULL, run, &workers[i]));
}

static void join_all(struct worker *workers, size_t count)
{
	for (size_t i = 0; i < count; i++)
		CHECK_OK(-pthread_join(workers[i].thread, NULL));
}

static void *drop_page(void *argument)
{
	struct worker *worker = argument;

	pthread_barrier_wait(worker->start);
	SYS(madvise(worker->memory, PAGE, MADV_DONTNEED));
	return NULL;
}

static const struct {
	const char *name;
	unsigned int contexts;
} sharings[] = { { "one_context", 1 }, { "contexts", 4 } };

/*
 * Threads that take memory from the device do not wait for each other: the device confirms to none
 * before all have told it.
 */
TEST_EACH(taken_away_at_once, sharings, .seconds = 60)
{
	/* all of them have to come while the driver is patient, which is 2 s */
	int threads = debug_kernel() ? 4 : THREADS;
	/* a change asks each context that has something of the block, and only those */
	char *memory = small_blocks(THREADS);
	struct worker workers[THREADS];
	pthread_barrier_t start;
	int fds[4];

	for (unsigned int i = 0; i < row->contexts; i++) {
		fds[i] = open_gpu();
		manage_all_host(fds[i]);
	}
	CHECK_OK(-pthread_barrier_init(&start, NULL, threads + 1));
	for (int i = 0; i < threads; i++) {
		workers[i] = (struct worker){
			.start = &start,
			.memory = memory + i * HUGE,
			.queue = queue_new(fds[i % row->contexts]),
		};
		fill(&workers[i].queue, workers[i].memory, PAGE, 0x21);
	}
	for (unsigned int round = 0; round < rounds(4); round++) {
		start_all(workers, threads, drop_page);
		gpu_set_register(GPU_HOLD, threads);
		pthread_barrier_wait(&start);
		join_all(workers, threads);
		CHECK_EQ(gpu_register(GPU_HOLD), 0);
		for (int i = 0; i < threads; i++) {
			fill(&workers[i].queue, workers[i].memory, PAGE, 0x31 + round);
			CHECK(bytes_are(workers[i].memory, PAGE, 0x31 + round));
		}
	}
}

/* The program touches memory, the device writes it, and it goes: in each round, for each block. */
static void *fault_again_and_again(void *argument)
{
	enum { BLOCKS = 4 };
	struct worker *worker = argument;

	for (unsigned int round = 0; round < worker->rounds; round++) {
		for (int block = 0; block < BLOCKS; block++) {
			char *page = worker->memory + block * HUGE;

			page[8] = round;
			queue_push(&worker->queue, GPU_FILL, (uintptr_t)page, 8, 1 + round % 100);
		}
		queue_finish_within(&worker->queue, slow(60000));
		for (int block = 0; block < BLOCKS; block++) {
			CHECK(bytes_are(worker->memory + block * HUGE, 8, 1 + round % 100));
			CHECK_EQ(worker->memory[block * HUGE + 8], (char)round);
		}
		SYS(madvise(worker->memory, BLOCKS * HUGE, MADV_DONTNEED));
	}
	return NULL;
}

/* Returns the milliseconds for so many rounds of all workers together. */
static uint64_t time_of(struct worker *workers, size_t count, unsigned int all)
{
	uint64_t begun;

	for (size_t i = 0; i < count; i++)
		workers[i].rounds = all / count;
	begun = now_ms();
	start_all(workers, count, fault_again_and_again);
	join_all(workers, count);
	return now_ms() - begun;
}

/*
 * 16 threads with a queue each are served as one is. How fast that is depends on what else the
 * machine does: it is told, and not judged. That nothing is locked while the device is waited for
 * is what taken_away_at_once shows.
 */
TEST(many_threads_and_queues, .seconds = 180)
{
	unsigned int all = rounds(4) * THREADS;
	char *memory = small_blocks(4 * THREADS);
	struct worker workers[THREADS];
	uint64_t one, many;
	int fd = open_managed();

	for (int i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){ .memory = memory + i * 4 * HUGE,
					      .queue = queue_new(fd) };
		time_of(&workers[i], 1, 1);
	}
	one = time_of(workers, 1, all);
	many = time_of(workers, THREADS, all);
	diag("%u faults: one queue %llu ms, %d queues %llu ms: %.2f times as fast", 4 * all,
	     (unsigned long long)one, THREADS, (unsigned long long)many,
	     (double)one / (many ?: 1));
}
