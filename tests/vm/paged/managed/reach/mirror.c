// SPDX-License-Identifier: MIT OR Apache-2.0
/* Managed memory: what the device reaches with no registration. */
#define _GNU_SOURCE
#include "../managed.h"

#include "memory.h"
#include "process.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void increment(struct gpu_queue *queue, void *addr, size_t floats)
{
	queue_push(queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)addr, floats, 0);
	/* Each page may be a fault, on a machine that is busy. */
	queue_finish_within(queue, slow(120000));
}

/* The first example: a kernel works on memory that nobody registered. */
TEST(increments, .smoke = true)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	float *floats = (void *)anon(4);

	manage(fd, floats, 4 * PAGE);
	for (int i = 0; i < 1024; i++)
		floats[i] = i;
	increment(&queue, floats, 1024);
	for (int i = 0; i < 1024; i++)
		CHECK_EQ(floats[i], i + 1);
	increment(&queue, floats, 4096);
	for (int i = 0; i < 1024; i++)
		CHECK_EQ(floats[i], i + 2);
	CHECK_EQ(floats[4095], 1);
}

/* All addresses: the stack, a huge page, a hole. */
TEST(all_of_it, .smoke = true)
{
	float on_stack[1024];
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	size_t length = 16 * MIB;
	float *floats = (void *)anon(length / PAGE);

	memset(on_stack, 0, sizeof(on_stack));
	increment(&queue, on_stack, 1024);
	for (int i = 0; i < 1024; i++)
		CHECK_EQ(on_stack[i], 1);
	madvise(floats, length, MADV_HUGEPAGE);
	increment(&queue, floats, length / 4);
	for (size_t i = 0; i < length / 4; i += 7)
		CHECK_EQ(floats[i], 1);
}

/* After fork() the device writes to the parent's memory only. */
TEST(fork_copies)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	float *floats = (void *)anon(8);
	int status;
	pid_t child;

	manage(fd, floats, 8 * PAGE);
	increment(&queue, floats, 2048 * 4);
	child = fork();
	if (!child) {
		usleep(300000);
		for (int i = 0; i < 8192; i++) {
			if (floats[i] != 1)
				_exit(1);
		}
		_exit(0);
	}
	increment(&queue, floats, 8192);
	for (int i = 0; i < 8192; i++)
		CHECK_EQ(floats[i], 2);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
}

/* The device may not do what the program may not; and memory that goes away is gone. */
TEST(rights)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd), other = queue_new(fd);
	float *floats = (void *)anon(8);
	struct pinmap_queue_query query;

	manage(fd, floats, 8 * PAGE);
	increment(&queue, floats, 8192);
	CHECK_OK(mprotect(floats, PAGE, PROT_READ));
	queue_push(&queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)floats, 16, 0);
	queue_ring(&queue);
	CHECK_EQ(queue_stopped(&queue), GPU_PERMISSION);
	query = queue_query(&queue);
	CHECK_EQ(query.out_reason, PINMAP_FAULT_PERMISSION);
	CHECK_EQ(query.out_vma_start, (uintptr_t)floats);
	CHECK_EQ(floats[0], 1);
	CHECK_OK(munmap((char *)floats + 4 * PAGE, PAGE));
	queue_push(&other, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)floats + 4 * PAGE, 16, 0);
	queue_ring(&other);
	CHECK_EQ(queue_stopped(&other), GPU_NOT_PRESENT);
	CHECK_EQ(queue_query(&other).out_reason, PINMAP_FAULT_HOLE);
}

/* MADV_DONTNEED takes the page, and the device gets a new one. */
TEST(dontneed)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	float *floats = (void *)anon(8);

	manage(fd, floats, 8 * PAGE);
	for (int turn = 0; turn < 20; turn++) {
		increment(&queue, floats, 8192);
		CHECK_EQ(floats[0], 1);
		CHECK_EQ(floats[8191], 1);
		CHECK_OK(madvise(floats, 8 * PAGE, MADV_DONTNEED));
	}
}

/* A registration inside has precedence, and the range is managed again after it. */
TEST(registered_inside)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	float *floats = (void *)anon(8);
	struct registration registration;

	manage(fd, floats, 8 * PAGE);
	increment(&queue, floats, 8192);
	registration = register_memory(fd, (char *)floats + PAGE, 2 * PAGE, WRITE);
	CHECK_EQ(registration.device_addr, (uintptr_t)floats + PAGE);
	increment(&queue, floats, 8192);
	CHECK_OK(try_release(fd, registration.handle));
	increment(&queue, floats, 8192);
	for (int i = 0; i < 8192; i++)
		CHECK_EQ(floats[i], 3);
}

/* RELEASE ends it; QUERY tells of it. */
TEST(release)
{
	struct pinmap_manage again;
	uint64_t handle;
	struct pinmap_query query = { .size = sizeof(query) };
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	float *floats = (void *)anon(8);

	handle = manage(fd, floats, 8 * PAGE);
	CHECK_ERR(EEXIST, try_manage(fd, 0, (char *)floats + PAGE, PAGE, &again));
	CHECK_ERR(EINVAL, try_manage(fd, 0, (char *)floats + 1, PAGE, &again));
	CHECK_ERR(EINVAL, try_manage(fd, 0, floats, 0, &again));
	CHECK_ERR(EINVAL, try_manage(fd, PINMAP_MANAGE_ALL, floats, PAGE, &again));
	CHECK_ERR(EOPNOTSUPP, try_manage(fd, 1 << 3, floats, PAGE, &again));
	increment(&queue, floats, 8192);
	query.handle = handle;
	CHECK_OK(try_ioctl(fd, PINMAP_QUERY, &query));
	CHECK_EQ(query.out_kind, PINMAP_BUFFER_MANAGED);
	CHECK_EQ(query.out_base, (uintptr_t)floats);
	CHECK_EQ(query.out_length, 8 * PAGE);
	CHECK_EQ(query.out_pinned, 0);
	CHECK_OK(try_release(fd, handle));
	CHECK_ERR(ESTALE, try_release(fd, handle));
	queue_push(&queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)floats, 16, 0);
	queue_ring(&queue);
	CHECK_EQ(queue_stopped(&queue), GPU_NOT_PRESENT);
	CHECK_EQ(queue_query(&queue).out_reason, PINMAP_FAULT_UNMAPPED);
}

/* Pages of files that the device has written reach the file. */
TEST(memfd)
{
	int fd = open_gpu(), file = memfd_create("managed", 0);
	struct gpu_queue queue = queue_new(fd);
	float *floats, *again;

	CHECK_OK(ftruncate(file, 8 * PAGE));
	floats = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	manage(fd, floats, 16 * PAGE);
	increment(&queue, floats, 8192);
	CHECK_OK(munmap(floats, 8 * PAGE));
	again = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	for (int i = 0; i < 8192; i++)
		CHECK_EQ(again[i], 1);
	queue_push(&queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)floats + 8 * PAGE, 16, 0);
	queue_ring(&queue);
	queue_stopped(&queue);
	CHECK_EQ(queue_query(&queue).out_reason, PINMAP_FAULT_FILE);
}

/* A thread that disturbs the memory in the stress test. */
struct disturbance {
	char *memory;
	size_t length;
	volatile bool stop;
};

static void *forks(void *data)
{
	struct disturbance *it = data;

	while (!it->stop) {
		pid_t child = fork();

		if (!child)
			_exit(0);
		waitpid(child, NULL, 0);
		usleep(20000);
	}
	return NULL;
}

static void *advises(void *data)
{
	static const int advice[] = { MADV_PAGEOUT, MADV_COLD, MADV_HUGEPAGE, MADV_MERGEABLE,
				      MADV_COLLAPSE, MADV_NOHUGEPAGE, MADV_UNMERGEABLE };
	struct disturbance *it = data;
	unsigned int turn = 0;

	while (!it->stop) {
		size_t at = (turn * 7919UL * PAGE) % it->length;
		size_t length = (turn % 64 + 1) * PAGE;

		if (length > it->length - at)
			length = it->length - at;
		madvise(it->memory + at, length, advice[turn++ % ARRAY_SIZE(advice)]);
	}
	return NULL;
}

static void *protects(void *data)
{
	struct disturbance *it = data;
	unsigned int turn = 0;

	/* A fault that finds memory read-only stops the queue: what changes is elsewhere. */
	while (!it->stop) {
		char *other = mmap(NULL, 3 * MIB, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		memset(other, turn, 64 * PAGE);
		mprotect(other, MIB, PROT_READ);
		mprotect(it->memory, it->length,
			 PROT_READ | PROT_WRITE | (turn++ & 1 ? PROT_EXEC : 0));
		munmap(other, 3 * MIB);
	}
	return NULL;
}

/* Nothing that the device writes is lost, whatever happens to the memory. */
static void check_disturbed(void *(*disturb)(void *))
{
	struct pinmap_get_totals totals = {
		.size = sizeof(totals), .flags = PINMAP_TOTALS_CONTEXT
	};
	struct disturbance it = { .length = 2 * MIB + 64 * PAGE };
	int fd = open_gpu(), turns = 3;
	struct gpu_queue queue = queue_new(fd);
	float *floats = (void *)anon(it.length / PAGE);
	pthread_t thread;

	it.memory = (char *)floats;
	manage_all(fd);
	CHECK_EQ(pthread_create(&thread, NULL, disturb, &it), 0);
	for (int turn = 0; turn < turns; turn++) {
		increment(&queue, floats, it.length / 4);
		/* The CPU writes as well. */
		for (size_t i = turn % 3; i < it.length / 4; i += 3001)
			floats[i] += 1;
	}
	it.stop = true;
	pthread_join(thread, NULL);
	CHECK_OK(try_ioctl(fd, PINMAP_GET_TOTALS, &totals));
	diag("%llu faults, %llu pages, %llu us", totals.out_faults_served, totals.out_fault_pages,
	     totals.out_fault_ns / 1000);
	for (size_t i = 0; i < it.length / 4; i++) {
		int more = 0;

		for (int third = 0; third < 3; third++) {
			if (i >= (size_t)third && (i - third) % 3001 == 0)
				more += turns / 3;
		}
		if (floats[i] != turns + more)
			FAIL("float %zu: %f, not %d", i, floats[i], turns + more);
	}
}

TEST(disturbed_by_forks, .seconds = 300)
{
	check_disturbed(forks);
}

TEST(disturbed_by_advice, .seconds = 300)
{
	check_disturbed(advises);
}

TEST(disturbed_by_protection, .seconds = 300)
{
	check_disturbed(protects);
}
