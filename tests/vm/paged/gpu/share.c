// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory that contexts of a paged device share, and memory past the CPU's caches. */
#define _GNU_SOURCE
#include "alloc.h"
#include "gpu.h"
#include "memory.h"
#include "pins.h"
#include "process.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static void increment(struct gpu_queue *queue, volatile void *floats)
{
	queue_push(queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)floats, 1024, 0);
}

struct first_call {
	int fd;
	pthread_barrier_t *barrier;
};

static void *call_first(void *argument)
{
	struct first_call *call = argument;

	pthread_barrier_wait(call->barrier);
	get_info(call->fd);
	return NULL;
}

/* Threads that all make the first call of a context: it gets what is portable once. */
TEST(first_calls_at_once, .seconds = 60)
{
	enum { THREADS = 4 };
	int home = open_gpu();
	pthread_barrier_t barrier;

	pthread_barrier_init(&barrier, NULL, THREADS);
	for (unsigned int i = 0; i < rounds(30); i++) {
		struct first_call call = { .fd = open_gpu(), .barrier = &barrier };
		char *memory = anon(1);
		pthread_t threads[THREADS];
		struct registration registration;

		for (int thread = 0; thread < THREADS; thread++)
			CHECK_OK(-pthread_create(&threads[thread], NULL, call_first, &call));
		for (int thread = 0; thread < THREADS; thread++)
			CHECK_OK(-pthread_join(threads[thread], NULL));
		registration = register_memory(home, memory, PAGE,
					       WRITE | PINMAP_REGISTER_PORTABLE);
		CHECK_EQ(query_addr(call.fd, memory).out_nr_mappings, 1);
		release(home, registration.handle);
		close(call.fd);
		SYS(munmap(memory, PAGE));
	}
}

/* A kernel works in place on what the CPU writes past its caches. */
TEST(write_combined)
{
	int fd = open_gpu();
	struct gpu_memory memory = gpu_alloc(fd, PINMAP_ALLOC_WRITE_COMBINED, HUGE + 4 * PAGE);
	volatile float *floats = (float *)(memory.addr + HUGE);
	struct gpu_queue queue = queue_new(fd);

	for (int i = 0; i < 1024; i++)
		floats[i] = i;
	/* a locked instruction drains what the CPU has collected */
	__atomic_fetch_add(&(int){ 0 }, 1, __ATOMIC_SEQ_CST);
	increment(&queue, floats);
	queue_finish(&queue);
	for (int i = 0; i < 1024; i++)
		CHECK_EQ(floats[i], i + 1);
}

/*
 * The queue of another process works on the memory of one, at the address where the other one has
 * it.
 */
TEST(other_process, .smoke = true)
{
	int ends[2];
	pid_t pid;

	SYS(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	pid = fork();
	if (pid == 0) {
		int fd = open_gpu(), dma_buf = receive_fd(ends[0]);
		struct pinmap_import import = import_buffer(fd, dma_buf);
		struct gpu_queue queue = queue_new(fd);
		char *memory = SYS(mmap(NULL, import.out_length, PROT_READ | PROT_WRITE, MAP_SHARED,
					dma_buf, 0));

		CHECK_EQ(map(fd, import.out_handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED,
			     (uintptr_t)memory),
			 (uintptr_t)memory);
		increment(&queue, memory);
		queue_finish(&queue);
		_exit(0);
	}
	{
		int fd = open_gpu();
		struct gpu_memory memory = gpu_alloc(fd, 0, 4 * PAGE);
		struct gpu_queue queue = queue_new(fd);
		volatile float *floats = (float *)memory.addr;

		increment(&queue, floats);
		queue_finish(&queue);
		send_fd(ends[1], export_buffer(fd, memory.args.out_handle, PINMAP_EXPORT_WRITE));
		join(pid);
		for (int i = 0; i < 1024; i++)
			CHECK_EQ(floats[i], 2);
	}
}

/*
 * Registered memory that its owner releases is out of reach for an importer: the IOMMU stops the
 * device until it has forgotten the address, too.
 */
TEST(revoked, .faults = true)
{
	int fd = open_gpu(), other = open_gpu(), dma_buf;
	struct memory memory = memory_new(ANON, 4 * PAGE);
	struct registration registration = register_memory(fd, memory.addr, memory.length, WRITE);
	struct gpu_queue queue = queue_new(other);
	struct pinmap_import import;
	uint64_t addr;

	dma_buf = export_buffer(fd, registration.handle, PINMAP_EXPORT_WRITE);
	import = import_buffer(other, dma_buf);
	addr = map(other, import.out_handle, PINMAP_MAP_WRITE, 0);
	memset(memory.addr, 0, memory.length);
	increment(&queue, (void *)addr);
	queue_finish(&queue);
	CHECK_EQ(((float *)memory.addr)[1023], 1);
	release(fd, registration.handle);
	CHECK_EQ(query_handle(other, import.out_handle).out_state, PINMAP_STATE_STALE);
	increment(&queue, (void *)addr);
	queue_submit(&queue);
	CHECK(queue_stopped(&queue) != 0);
	CHECK_EQ(((float *)memory.addr)[0], 1);
	CHECK_PINS_SOON(0);
}

/* VRAM is in no cache: SYNC has nothing to do. */
TEST(vram)
{
	int fd = open_gpu();
	struct gpu_memory memory = gpu_alloc(fd, PINMAP_ALLOC_VRAM, PAGE);

	CHECK_OK(try_sync(fd, memory.args.out_handle, PINMAP_SYNC_FOR_CPU | PINMAP_SYNC_NO_SNOOP, 0,
			  PAGE));
}
