// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory that changes while the device works on it. */
#define _GNU_SOURCE
#include "../managed.h"

#include "edu.h"
#include "memory.h"
#include "pins.h"
#include "pressure.h"
#include "process.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORK = 2 << 20, PACKETS = 40 };

/* Ways to end the device's access while it writes the memory without a pause. */
static const struct way {
	const char *name;
	/* Whether a fault stops the queue. */
	bool stops;
} ways[] = {
	{ "munmap", true },    { "mprotect", true }, { "release", true },
	{ "dontneed", false }, { "fork", false },    { "mremap", true },
};

/* Asserts that nobody writes these bytes any more, as long as the queue runs. */
static void check_still(struct gpu_queue *queue, const char *memory, size_t length,
			const char *what)
{
	char *before = malloc(length);

	memcpy(before, memory, length);
	if (try_queue_wait(queue, slow(60000)) == -ETIMEDOUT)
		FAIL("the queue neither goes on nor stops");
	if (memcmp(before, memory, length))
		FAIL("the device writes after %s has returned", what);
	free(before);
}

/*
 * When a call that takes a right away returns, the device makes no access by the old right, though
 * it is in the midst of its work.
 */
TEST_EACH(while_busy, ways)
{
	/* pages are copied one by one after a fork, which takes long */
	size_t length = strcmp(row->name, "fork") ? WORK : WORK / 8;
	int file = new_memfd(length, 0), fd = open_gpu();
	bool private = !strcmp(row->name, "fork") || !strcmp(row->name, "dontneed");
	char *alias = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
	char *memory = address_space(length, HUGE), *elsewhere = address_space(length, HUGE);
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle;
	pid_t pid;

	SYS(mmap(memory, length, PROT_READ | PROT_WRITE,
		 MAP_FIXED | (private ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED),
		 private ? -1 : file, 0));
	memset(memory, 0x10, length);
	handle = manage(fd, memory, length);
	for (int i = 0; i < PACKETS; i++)
		queue_push(&queue, GPU_FILL, (uintptr_t)memory, length, 0x41 + i);
	queue_submit(&queue);
	CHECK(WAIT_FOR(20000, queue_query(&queue).out_index > 2));
	if (!strcmp(row->name, "munmap")) {
		SYS(munmap(memory, length));
	} else if (!strcmp(row->name, "mprotect")) {
		SYS(mprotect(memory, length, PROT_READ));
	} else if (!strcmp(row->name, "release")) {
		release(fd, handle);
	} else if (!strcmp(row->name, "mremap")) {
		SYS(mremap(memory, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere));
	} else if (!strcmp(row->name, "dontneed")) {
		/* the pages that the device writes are those that the program has */
		SYS(madvise(memory, length, MADV_DONTNEED));
		queue_push(&queue, GPU_FILL, (uintptr_t)memory, length, 0x41 + PACKETS);
		queue_submit(&queue);
		CHECK_OK(try_queue_wait(&queue, slow(60000)));
		CHECK(bytes_are(memory, length, 0x41 + PACKETS));
		return;
	} else {
		pid = fork();
		if (pid == 0) {
			check_still(&queue, memory, length, row->name);
			_exit(0);
		}
		join(pid);
	}
	if (row->stops) {
		check_still(&queue, alias, length, row->name);
		CHECK_ERR(EIO, try_queue_wait(&queue, 0));
		CHECK_EQ(queue_query(&queue).out_state, PINMAP_QUEUE_FAULTED);
		return;
	}
	CHECK_OK(try_queue_wait(&queue, slow(60000)));
	CHECK(bytes_are(memory, length, 0x41 + PACKETS - 1));
}

enum { PAGES = 64 };

struct churn {
	char *memory;
	size_t pages;
	volatile bool stop;
	volatile unsigned int rounds;
};

/* Replaces pages all the time. */
static void *replace(void *argument)
{
	struct churn *churn = argument;
	unsigned int seed = 7;

	while (!churn->stop) {
		char *page = churn->memory + rand_r(&seed) % churn->pages * PAGE;

		switch (rand_r(&seed) % 4) {
		case 0:
			SYS(madvise(page, PAGE, MADV_DONTNEED));
			break;
		case 1:
			SYS(mmap(page, PAGE, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
			break;
		case 2:
			*(volatile char *)page = 1;
			break;
		default:
			SYS(mprotect(page, PAGE, PROT_READ));
			SYS(mprotect(page, PAGE, PROT_READ | PROT_WRITE));
		}
		churn->rounds++;
		/* the device needs a moment without a change for each fault */
		sleep_ms(1);
	}
	return NULL;
}

/*
 * A page that is replaced while a fault on it is served is not given to the device: whatever the
 * device has in the end is what the program has.
 */
TEST(replaced_while_served, .seconds = 120)
{
	struct churn churns[2];
	char *memory = anon(PAGES);
	pthread_t threads[2];
	int fd = open_gpu();

	manage(fd, memory, PAGES * PAGE);
	for (unsigned int i = 0; i < rounds(12); i++) {
		struct gpu_queue queues[2] = { queue_new(fd), queue_new(fd) };

		for (int k = 0; k < 2; k++) {
			churns[k] = (struct churn){ memory + k * PAGES / 2 * PAGE, PAGES / 2 };
			CHECK_OK(-pthread_create(&threads[k], NULL, replace, &churns[k]));
		}
		while (churns[0].rounds < 100 || churns[1].rounds < 100) {
			for (int k = 0; k < 2; k++) {
				if (try_fill(&queues[k], memory, PAGES * PAGE, 0x51 + k) == 0)
					continue;
				/* it has met a page that could not be written just then */
				CHECK_EQ(queue_query(&queues[k]).out_reason,
					 PINMAP_FAULT_PERMISSION);
				queue_delete(&queues[k]);
				queues[k] = queue_new(fd);
			}
		}
		for (int k = 0; k < 2; k++) {
			churns[k].stop = true;
			CHECK_OK(-pthread_join(threads[k], NULL));
		}
		fill(&queues[0], memory, PAGES * PAGE, 0x61 + i);
		for (int page = 0; page < PAGES; page++)
			if (!bytes_are(memory + page * PAGE, PAGE, 0x61 + i))
				FAIL("round %u: the device has another page %d", i, page);
		for (int k = 0; k < 2; k++)
			queue_delete(&queues[k]);
	}
}

struct dropper {
	char *page;
	int result;
};

static void *drop_page(void *argument)
{
	struct dropper *dropper = argument;

	dropper->result = madvise(dropper->page, PAGE, MADV_DONTNEED) ? -errno : 0;
	return NULL;
}

/*
 * A huge page leaves the device as a whole where one of its pages goes away. A fault on another one
 * waits until it has left, and is served then.
 */
TEST(neighbour_of_what_leaves, .seconds = 60)
{
	char *memory = address_space(HUGE, HUGE), *far = memory + HUGE / 2;
	struct dropper dropper = { .page = memory, .result = 1 };
	struct gpu_queue queue;
	uint64_t forgotten;
	pthread_t thread;
	uint32_t flags;
	int fd;

	SYS(mmap(memory, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0));
	SYS(madvise(memory, HUGE, MADV_HUGEPAGE));
	memset(memory, 0x11, HUGE);
	fd = open_gpu();
	queue = queue_new(fd);
	manage_host(fd, memory, HUGE);
	fill(&queue, memory, PAGE, 0x21);
	CHECK_OK(try_walk(fd, far, &flags));
	forgotten = gpu_register(GPU_INVALIDATES);
	gpu_set_register(GPU_NO_ACK, NO_ACK_INVALIDATE);
	CHECK_OK(-pthread_create(&thread, NULL, drop_page, &dropper));
	/* the device does not know it any more, and has not said so */
	CHECK(WAIT_FOR(slow(10000), try_walk(fd, far, &flags) == -ENOENT));
	CHECK(WAIT_FOR(slow(10000), gpu_register(GPU_INVALIDATES) > forgotten));
	queue_push(&queue, GPU_FILL, (uintptr_t)far, PAGE, 0x31);
	queue_submit(&queue);
	/* for so long it leaves, which is less than the driver's patience */
	CHECK_ERR(ETIMEDOUT, try_queue_wait(&queue, 500));
	gpu_set_register(GPU_NO_ACK, 0);
	CHECK_OK(try_queue_wait(&queue, slow(20000)));
	CHECK_OK(-pthread_join(thread, NULL));
	CHECK_OK(dropper.result);
	CHECK(bytes_are(far, PAGE, 0x31));
	CHECK(bytes_are(memory, PAGE, 0));
}

enum { WORDS = 512 };

struct stress {
	int fd;
	char *memory;
	volatile bool stop;
	unsigned int added;
	volatile unsigned int disturbances, moves, went;
};

/* Counts in the second half of each page. */
static void *count_by_cpu(void *argument)
{
	struct stress *stress = argument;

	while (!stress->stop) {
		for (int page = 0; page < PAGES; page++)
			++*(volatile uint32_t *)(stress->memory + page * PAGE + PAGE / 2);
		stress->added++;
		usleep(1000);
	}
	return NULL;
}

/* Does everything that takes memory away for a moment and loses nothing of it. */
static void *disturb(void *argument)
{
	struct stress *stress = argument;
	unsigned int seed = 11;

	while (!stress->stop) {
		size_t page = rand_r(&seed) % PAGES, pages = 1 + rand_r(&seed) % (PAGES - page);
		char *addr = stress->memory + page * PAGE;
		struct pinmap_prefetch args;
		pid_t pid;

		switch (rand_r(&seed) % 8) {
		case 0:
			pid = SYS(fork());
			if (pid == 0)
				_exit(0);
			SYS(waitpid(pid, NULL, 0));
			break;
		case 1:
			SYS(mprotect(addr, pages * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC));
			SYS(mprotect(addr, pages * PAGE, PROT_READ | PROT_WRITE));
			break;
		case 2:
			SYS(madvise(addr, pages * PAGE, MADV_PAGEOUT));
			break;
		case 3:
			SYS(madvise(addr, pages * PAGE,
				    rand_r(&seed) % 2 ? MADV_MERGEABLE : MADV_UNMERGEABLE));
			break;
		case 4:
			compact();
			break;
		case 5:
			CHECK_OK(try_prefetch(stress->fd, PINMAP_PREFETCH_HOST, addr,
					      pages * PAGE, &args));
			break;
		default:
			CHECK_OK(try_prefetch(stress->fd, 0, addr, pages * PAGE, &args));
			stress->went += args.out_moved / PAGE;
		}
		stress->disturbances++;
	}
	return NULL;
}

enum { OWN = 16 };

static void add_to_own(struct gpu_queue *queue, char *memory)
{
	for (int page = 0; page < OWN; page++)
		queue_push(queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)memory + page * PAGE,
			   WORDS, 0);
	queue_finish_within(queue, slow(60000));
}

static void check_own(const char *memory, int first, int pages, float sum)
{
	for (int page = first; page < first + pages; page++)
		for (int i = 0; i < WORDS; i++)
			CHECK_EQ(((const float *)(memory + page * PAGE))[i], sum);
}

/*
 * Moves memory of its own, which follows, drops a part of it, which counts from 0 again, and closes
 * the context in the midst of its work.
 */
static void *move(void *argument)
{
	struct stress *stress = argument;

	while (!stress->stop) {
		char *here = anon(OWN), *there = address_space(OWN * PAGE, PAGE);
		int fd = open_gpu();
		struct gpu_queue queue = queue_new(fd);

		manage_all(fd);
		add_to_own(&queue, here);
		SYS(mremap(here, OWN * PAGE, OWN * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, there));
		add_to_own(&queue, there);
		check_own(there, 0, OWN, 2);
		SYS(madvise(there, OWN / 2 * PAGE, MADV_DONTNEED));
		add_to_own(&queue, there);
		check_own(there, 0, OWN / 2, 1);
		check_own(there, OWN / 2, OWN / 2, 3);
		for (int i = 0; i < 64; i++)
			queue_push(&queue, GPU_FILL, (uintptr_t)there, OWN * PAGE, i);
		queue_ring(&queue);
		queue_unmap(&queue);
		SYS(close(fd));
		SYS(munmap(there, OWN * PAGE));
		stress->moves++;
	}
	return NULL;
}

/*
 * CPU and device count in the same pages, which are copied, protected, merged, swapped out, and
 * moved to the device and home meanwhile: no increment of either gets lost. PINMAP_TEST_SCALE makes
 * it long.
 */
TEST(stress, .seconds = 300)
{
	struct stress stress = { .memory = anon(PAGES) };
	unsigned int launches = 0, wanted = rounds(40);
	pthread_t cpu, other, mover;
	long long pins = pins_held();
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	bool merges = ksm_begin();

	stress.fd = fd;
	swap_begin();
	memset(stress.memory, 0, PAGES * PAGE);
	manage_all(fd);
	CHECK_OK(-pthread_create(&cpu, NULL, count_by_cpu, &stress));
	CHECK_OK(-pthread_create(&other, NULL, disturb, &stress));
	CHECK_OK(-pthread_create(&mover, NULL, move, &stress));
	while (launches < wanted || stress.disturbances < wanted || stress.moves < wanted / 8 ||
	       !stress.went) {
		for (int page = 0; page < 32; page++) {
			char *addr = stress.memory + (launches * 32 + page) % PAGES * PAGE;

			queue_push(&queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)addr, WORDS,
				   0);
		}
		queue_finish_within(&queue, slow(60000));
		launches++;
	}
	if (launches % 2) {
		for (int page = PAGES / 2; page < PAGES; page++)
			queue_push(&queue, gpu_launch(GPU_INCREMENT_F32),
				   (uintptr_t)stress.memory + page * PAGE, WORDS, 0);
		queue_finish_within(&queue, slow(60000));
		launches++;
	}
	stress.stop = true;
	CHECK_OK(-pthread_join(cpu, NULL));
	CHECK_OK(-pthread_join(other, NULL));
	CHECK_OK(-pthread_join(mover, NULL));
	diag("%u launches, %u disturbances, %u moves, %u rounds of the CPU; %u pages went to VRAM",
	     launches, stress.disturbances, stress.moves, stress.added, stress.went);
	CHECK(stress.went != 0);
	for (int page = 0; page < PAGES; page++) {
		const char *addr = stress.memory + page * PAGE;

		CHECK_EQ(*(const uint32_t *)(addr + PAGE / 2), stress.added);
		for (int i = 0; i < WORDS; i++)
			CHECK_EQ(((const float *)addr)[i], launches / 2);
	}
	CHECK_PINS(pins);
	SYS(munmap(stress.memory, PAGES * PAGE));
	swap_end();
	if (merges)
		ksm_end();
}
