// SPDX-License-Identifier: MIT OR Apache-2.0
/* More contexts with work than a device has VMIDs. */
#define _GNU_SOURCE
#include "edu.h"
#include "gpu.h"
#include "memory.h"

#include <string.h>

/* More contexts than VMIDs have work, each of which waits for what another one does. */
TEST(many_contexts, .seconds = 60)
{
	enum { CONTEXTS = 40, ROUNDS = 5 };
	static struct gpu_queue queues[CONTEXTS];
	static char *memory[CONTEXTS];

	for (int i = 0; i < CONTEXTS; i++) {
		int fd = open_gpu();

		queues[i] = queue_new(fd);
		memory[i] = anon(1);
		register_memory(fd, memory[i], PAGE, WRITE);
	}
	for (int round = 1; round <= ROUNDS; round++) {
		for (int i = 0; i < CONTEXTS; i++) {
			queue_push(&queues[i], gpu_launch(GPU_SPIN), 3000000, 0, 0);
			queue_push(&queues[i], GPU_FILL, (uintptr_t)memory[i], PAGE, round + i);
			queue_submit(&queues[i]);
		}
		for (int i = 0; i < CONTEXTS; i++) {
			CHECK_OK(try_queue_wait(&queues[i], slow(30000)));
			CHECK_EQ((unsigned char)memory[i][17], (unsigned char)(round + i));
		}
	}
}

/*
 * A context that is given a VMID uses no translation of the context that had it before. Both have
 * their own memory at the same device address, so that a stale entry of the TLB would be used.
 */
TEST(vmid_of_another)
{
	enum { CONTEXTS = 40 };
	static struct gpu_queue queues[CONTEXTS];
	static char *memory[CONTEXTS];
	struct pinmap_gpu_info gpu = { .size = sizeof(gpu) };
	struct pinmap_gpu_counters before = { .size = sizeof(before) }, after = before;
	char *area = address_space(64 * PAGE, PAGE);
	uint64_t place[CONTEXTS];

	for (int i = 0; i < CONTEXTS; i++) {
		struct registration registration;

		queues[i] = queue_new(open_gpu());
		CHECK_OK(try_ioctl(queues[i].fd, PINMAP_GPU_INFO, &gpu));
		memory[i] = anon(1);
		registration = register_memory(queues[i].fd, memory[i], PAGE, WRITE | NO_MAP);
		/*
		 * contexts take turns: as many later as there are VMIDs, another one is given this
		 * VMID
		 */
		place[i] = (uintptr_t)area + i % gpu.out_nr_vmids * PAGE;
		map(queues[i].fd, registration.handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED,
		    place[i]);
	}
	CHECK(gpu.out_nr_vmids <= 32 && gpu.out_nr_vmids < CONTEXTS);
	CHECK_OK(try_ioctl(queues[0].fd, PINMAP_GPU_COUNTERS, &before));
	for (int i = 0; i < CONTEXTS; i++) {
		queue_push(&queues[i], GPU_FILL, place[i], PAGE, i + 1);
		queue_finish(&queues[i]);
		CHECK(bytes_are(memory[i], PAGE, i + 1));
	}
	CHECK_OK(try_ioctl(queues[0].fd, PINMAP_GPU_COUNTERS, &after));
	CHECK(after.out_vmid_binds - before.out_vmid_binds >= CONTEXTS);
}

/*
 * 64 contexts with unfinished work share the VMIDs, 960 kernels each. The test takes seconds, but a
 * minute where a busy host lets each access to a register wait.
 */
TEST(contexts_take_turns, .seconds = 300)
{
	enum { CONTEXTS = 64, ROUNDS = 16, BATCH = 60 };
	static struct gpu_queue queues[CONTEXTS];
	static float *memory[CONTEXTS];
	struct pinmap_gpu_counters before = { .size = sizeof(before) }, after = before;
	unsigned int total = rounds(ROUNDS);

	for (int i = 0; i < CONTEXTS; i++) {
		queues[i] = queue_new(open_gpu());
		memory[i] = (float *)anon(1);
		memset(memory[i], 0, PAGE);
		register_memory(queues[i].fd, memory[i], PAGE, WRITE);
	}
	CHECK_OK(try_ioctl(queues[0].fd, PINMAP_GPU_COUNTERS, &before));
	for (unsigned int round = 0; round < total; round++) {
		for (int i = 0; i < CONTEXTS; i++) {
			if (round)
				CHECK_OK(try_queue_wait(&queues[i], slow(150000)));
			for (int packet = 0; packet < BATCH; packet++)
				queue_push(&queues[i], gpu_launch(GPU_INCREMENT_F32),
					   (uintptr_t)memory[i], 1024, 0);
			queue_submit(&queues[i]);
		}
	}
	for (int i = 0; i < CONTEXTS; i++) {
		CHECK_OK(try_queue_wait(&queues[i], slow(150000)));
		CHECK_EQ(memory[i][0], total * BATCH);
		CHECK_EQ(memory[i][1023], total * BATCH);
	}
	CHECK_OK(try_ioctl(queues[0].fd, PINMAP_GPU_COUNTERS, &after));
	diag("VMIDs given %llu times, slots %llu times, for %u batches",
	     (unsigned long long)(after.out_vmid_binds - before.out_vmid_binds),
	     (unsigned long long)(after.out_binds - before.out_binds), total * CONTEXTS);
}
