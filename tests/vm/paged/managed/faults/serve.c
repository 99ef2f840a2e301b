// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * How a fault is served: in which order, how soon the device goes on, and that faults of different
 * queues do not wait for each other.
 */
#define _GNU_SOURCE
#include "../managed.h"

#include "edu.h"
#include "memory.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCK_PAGES = 512, AHEAD = 16 };

/*
 * Touches a block of 2 MiB so that no two neighbours are contiguous in memory: then each page is
 * mapped on the bus by itself, which takes long.
 */
static void scatter(char *memory)
{
	for (int odd = 0; odd < 2; odd++)
		for (int page = odd; page < BLOCK_PAGES; page += 2)
			memory[page * PAGE] = 1;
}

static char *scattered(void)
{
	char *memory = small_blocks(1);

	scatter(memory);
	return memory;
}

/* A file of two blocks, of which the first is mapped. */
static char *scattered_file(int *file)
{
	char *memory = address_space(HUGE, HUGE);
	char *all;

	*file = new_memfd(2 * HUGE, 0);
	all = SYS(mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0));
	scatter(all);
	scatter(all + HUGE);
	SYS(munmap(all, 2 * HUGE));
	SYS(mmap(memory, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, *file, 0));
	for (int page = 0; page < BLOCK_PAGES; page++)
		memory[page * PAGE] = 1;
	return memory;
}

static const struct {
	const char *name;
} changes[] = { { "dontneed" }, { "mmap" } };

/* Number of threads that change pages; value of their state once the fault is submitted. */
enum { CHANGERS = 2, SUBMITTED = 100 };

/**
 * struct changer - a thread that changes pages of a block, each once, from the last one down
 * @cpu: its processor; the other thread has the other one, so that whichever the driver serves the
 *       fault on, one of the two goes on
 * @file: what is mapped over the pages; -1: they are dropped
 * @memory: the block
 * @queue: has the fault
 * @state: how many threads are running, then SUBMITTED
 * @changed: pages that it has changed
 */
struct changer {
	int cpu, file;
	char *memory;
	struct gpu_queue *queue;
	_Atomic int *state;
	int changed;
};

static void *change(void *arg)
{
	struct changer *it = arg;

	/* a thread that sleeps would be woken too late */
	++*it->state;
	while (*it->state < SUBMITTED)
		;
	for (int page = BLOCK_PAGES - 1 - it->cpu; page >= AHEAD; page -= CHANGERS) {
		char *addr = it->memory + page * PAGE;

		if (*it->queue->fences >= it->queue->fence)
			break;
		if (it->file >= 0) {
			SYS(mmap(addr, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
				 it->file, HUGE + page * PAGE));
		} else {
			SYS(madvise(addr, PAGE, MADV_DONTNEED));
			usleep(50);
		}
		it->changed++;
	}
	return NULL;
}

/* Has a fault at the start of a block served while its other pages change. Returns how many did. */
static int fault_and_change(struct gpu_queue *queue, char *memory, int file)
{
	struct changer changers[CHANGERS];
	pthread_t threads[CHANGERS];
	_Atomic int state = 0;
	int changed = 0;

	queue_push(queue, GPU_FILL, (uintptr_t)memory, 8, 0x31);
	for (int cpu = 0; cpu < CHANGERS; cpu++) {
		pthread_attr_t attributes;
		cpu_set_t set;

		changers[cpu] = (struct changer){ cpu, file, memory, queue, &state, 0 };
		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		pthread_attr_init(&attributes);
		CHECK_OK(-pthread_attr_setaffinity_np(&attributes, sizeof(set), &set));
		CHECK_OK(-pthread_create(&threads[cpu], &attributes, change, &changers[cpu]));
		pthread_attr_destroy(&attributes);
	}
	while (state < CHANGERS)
		sched_yield();
	queue_submit(queue);
	state = SUBMITTED;
	for (int cpu = 0; cpu < CHANGERS; cpu++) {
		CHECK_OK(-pthread_join(threads[cpu], NULL));
		changed += changers[cpu].changed;
	}
	CHECK_OK(try_queue_wait(queue, slow(30000)));
	return changed;
}

/*
 * While a fault brings a block along, other pages of it change: the device is given none that the
 * program has no more.
 */
TEST_EACH(changed_while_served, changes, .seconds = 120)
{
	bool remap = !strcmp(row->name, "mmap");
	int fd = open_gpu(), during = 0;
	struct gpu_queue queue = queue_new(fd);

	manage_all(fd);
	for (unsigned int i = 0; i < rounds(4); i++) {
		int file = -1;
		char *memory = remap ? scattered_file(&file) : scattered();

		during += fault_and_change(&queue, memory, file);
		fill(&queue, memory, HUGE, 0x41 + i);
		for (int page = 0; page < BLOCK_PAGES; page++)
			if (!bytes_are(memory + page * PAGE, PAGE, 0x41 + i))
				FAIL("round %u: the device has another page %d", i, page);
		SYS(munmap(memory, HUGE));
		if (remap)
			close(file);
	}
	diag("%d pages changed", during);
	CHECK(during > 0);
}

/* Bytes that change at once: the driver counts them by 64 KiB, up to 64 MiB. */
enum { WIDE = 60 << 20 };

/* Makes a page and drops it, as a small part of a large change, until the fault is served. */
static void *drop_wide(void *arg)
{
	struct changer *it = arg;

	while (*it->queue->fences < it->queue->fence) {
		*(volatile char *)it->memory = 1;
		SYS(madvise(it->memory, WIDE, MADV_DONTNEED));
		it->changed++;
	}
	return NULL;
}

/*
 * A change of many MiB takes long to begin: a page of it that a fault finds meanwhile is not given
 * to the device for good.
 */
TEST(large_change_while_served, .seconds = 120)
{
	char *memory = address_space(WIDE, HUGE);
	struct gpu_queue queue;
	int fd = open_gpu(), during = 0;

	SYS(mmap(memory, WIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0));
	SYS(madvise(memory, WIDE, MADV_NOHUGEPAGE));
	queue = queue_new(fd);
	manage_all_host(fd);
	for (unsigned int i = 0; i < rounds(200); i++) {
		struct changer changer = { .memory = memory, .queue = &queue };
		char value = 0x41 + i % 16;
		pthread_t thread;

		SYS(madvise(memory, PAGE, MADV_DONTNEED));
		queue_push(&queue, GPU_FILL, (uintptr_t)memory, 8, 0x31);
		CHECK_OK(-pthread_create(&thread, NULL, drop_wide, &changer));
		queue_submit(&queue);
		CHECK_OK(-pthread_join(thread, NULL));
		during += changer.changed;
		*(volatile char *)memory = 1;
		fill(&queue, memory, PAGE, value);
		if (!bytes_are(memory, PAGE, value))
			FAIL("round %u: the device has another page", i);
	}
	diag("%d changes", during);
	CHECK(during > 0);
}

/*
 * Pages can be reached once the device's page table has them: another queue uses the last page of a
 * block as soon as it is there, while the fault that brings it is still being served.
 */
TEST(entered_when_it_can_be_reached, .seconds = 60)
{
	int fd = open_gpu();
	struct gpu_queue first = queue_new(fd), second = queue_new(fd);
	struct gpu_memory own = gpu_alloc(fd, 0, PAGE);

	manage_all_host(fd);
	for (unsigned int i = 0; i < rounds(4); i++) {
		char *memory = scattered(), *last = memory + HUGE - PAGE;
		uint32_t flags;

		/* in the device already, and at rest */
		fill(&second, own.addr, 8, 0x11);
		queue_push(&first, GPU_FILL, (uintptr_t)memory, 8, 0x51);
		queue_submit(&first);
		while (*first.fences < first.fence && try_walk(fd, last, &flags))
			;
		fill(&second, last, PAGE, 0x61 + i);
		CHECK_OK(try_queue_wait(&first, slow(30000)));
		CHECK(bytes_are(memory, 8, 0x51));
		CHECK(bytes_are(last, PAGE, 0x61 + i));
		SYS(munmap(memory, HUGE));
	}
}

/*
 * The device goes on when a fault has been served, and not when the scheduler looks the next time,
 * which it does every 100 ms. The device says when; a busy machine gets several tries.
 */
TEST(goes_on_when_served, .seconds = 120)
{
	enum { FAULTS = 8, TRIES = 8 };
	const uint64_t soon = 50000000;
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory result = gpu_alloc(fd, 0, PAGE);
	volatile uint64_t *stamps = (volatile uint64_t *)result.addr;
	uint64_t least = UINT64_MAX;

	manage_all(fd);
	for (int i = 0; i < TRIES && least >= soon; i++) {
		char *memory = small_blocks(FAULTS);

		for (int k = 0; k < FAULTS; k++) {
			memory[k * HUGE] = 1;
			queue_push(&queue, GPU_FILL, (uintptr_t)memory + k * HUGE, 8, 0x21);
			queue_push(&queue, GPU_TIMESTAMP, (uintptr_t)&stamps[k], 0, 0);
		}
		queue_finish(&queue);
		CHECK_EQ(totals(fd, PINMAP_TOTALS_CONTEXT).out_faults_served, (i + 1) * FAULTS);
		for (int k = 1; k < FAULTS; k++)
			if (stamps[k] - stamps[k - 1] < least)
				least = stamps[k] - stamps[k - 1];
		SYS(munmap(memory, FAULTS * HUGE));
	}
	diag("a fault takes %llu us", (unsigned long long)least / 1000);
	CHECK(least < soon);
}
