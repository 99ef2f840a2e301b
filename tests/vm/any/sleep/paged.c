// SPDX-License-Identifier: MIT OR Apache-2.0
/* A paged device that is in use when the system sleeps: all that it had is there afterwards. */
#define _GNU_SOURCE
#include "sleep.h"

#include "edu.h"
#include "gpu.h"
#include "kmsg.h"
#include "memory.h"
#include "pins.h"
#include "process.h"
#include "uffd.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The fence that a queue waits for, which the program writes. */
enum { ALLOWED = 8 };

static void push_wait(struct gpu_queue *queue)
{
	queue_push(queue, GPU_FENCE_WAIT, queue->args.out_fence_addr + 8 * ALLOWED, 1, 0);
}

static char *managed(int fd, size_t length)
{
	char *memory = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	struct pinmap_manage args;

	CHECK_OK(try_manage(fd, 0, memory, length, &args));
	return memory;
}

/*
 * Queues that wait, that work and that have nothing to do; registered memory, VRAM, and memory that
 * is in VRAM. A number that is added to counts what is done: no packet is lost, none is done twice.
 */
TEST_EACH(goes_on, ways, .seconds = 120)
{
	enum { LENGTH = 3 * MIB + PAGE, ADDS = 20, TIMES = 40000 };
	int fd = open_gpu();
	struct gpu_queue idle = queue_new(fd), waits = queue_new(fd), works = queue_new(fd);
	struct gpu_memory vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, LENGTH),
			  host = gpu_alloc(fd, 0, LENGTH);
	struct registration number = register_memory(fd, anon(1), PAGE, WRITE);
	volatile uint64_t *count = (volatile uint64_t *)number.addr;
	char *moved;
	struct pinmap_prefetch there;
	uint64_t free;

	need_sleep(row);
	moved = managed(fd, LENGTH);
	pattern_fill(vram.addr, LENGTH, 0x11);
	pattern_fill(moved, LENGTH, 0x22);
	CHECK_OK(try_prefetch(fd, 0, moved, LENGTH, &there));
	CHECK_EQ(there.out_there + there.out_moved, LENGTH);
	gpu_fill(&idle, (uintptr_t)host.addr, PAGE, 0x33);
	free = vram_free(fd);

	*count = 0;
	push_wait(&waits);
	queue_push(&waits, GPU_COPY, (uintptr_t)vram.addr, (uintptr_t)host.addr, LENGTH);
	queue_submit(&waits);
	/* half of it before the sleep at the earliest, and half after it */
	for (unsigned int i = 0; i < ADDS; i++) {
		if (i == ADDS / 2)
			push_wait(&works);
		queue_push_add(&works, count, 1, 1, TIMES);
	}
	queue_submit(&works);
	CHECK_OK(try_sleep(row));
	CHECK(*count <= (uint64_t)ADDS / 2 * TIMES);

	/* what moved there has come home */
	CHECK_EQ(vram_free(fd), free + LENGTH);
	CHECK(bytes_are(host.addr, PAGE, 0x33));
	CHECK(pattern_is(vram.addr, LENGTH, 0x11));
	waits.fences[ALLOWED] = 1;
	CHECK_OK(try_queue_wait(&waits, slow(60000)));
	CHECK(pattern_is(host.addr, LENGTH, 0x11));
	works.fences[ALLOWED] = 1;
	CHECK_OK(try_queue_wait(&works, slow(60000)));
	CHECK_EQ(*count, (uint64_t)ADDS * TIMES);
	CHECK(pattern_is(moved, LENGTH, 0x22));
	gpu_fill(&idle, (uintptr_t)moved + PAGE, PAGE, 0x44);
	CHECK(bytes_are(moved + PAGE, PAGE, 0x44));
	gpu_fill(&idle, (uintptr_t)vram.addr, LENGTH, 0x55);
	CHECK(bytes_are(vram.addr, LENGTH, 0x55));
}

/* No context loses what it has in VRAM, and there is as much room as before. */
TEST(contexts_keep_what_they_have, .seconds = 120)
{
	enum { CONTEXTS = 5 };
	int fds[CONTEXTS];
	struct gpu_queue queues[CONTEXTS];
	struct gpu_memory vram[CONTEXTS];

	need_sleep(quick_way);
	for (unsigned int i = 0; i < CONTEXTS; i++) {
		fds[i] = open_gpu();
		queues[i] = queue_new(fds[i]);
		vram[i] = gpu_alloc(fds[i], PINMAP_ALLOC_VRAM, (i + 1) * 3 * PAGE);
		gpu_fill(&queues[i], (uintptr_t)vram[i].addr, (i + 1) * 3 * PAGE, i + 1);
	}
	for (unsigned int round = 0; round < 3; round++) {
		uint64_t free = vram_free(fds[0]);

		/* its frames lie between those of the others */
		release(fds[round], vram[round].args.out_handle);
		CHECK_OK(try_sleep(quick_way));
		for (unsigned int i = round + 1; i < CONTEXTS; i++)
			CHECK(bytes_are(vram[i].addr, (i + 1) * 3 * PAGE, i + 1));
		CHECK_EQ(vram_free(fds[0]), free);
		SYS(munmap(vram[round].addr, (round + 1) * 3 * PAGE));
		CHECK_EQ(vram_free(fds[0]), free + (round + 1) * 3 * PAGE);
	}
	for (unsigned int i = 0; i < CONTEXTS; i++) {
		struct gpu_memory host = gpu_alloc(fds[i], 0, PAGE);

		gpu_fill(&queues[i], (uintptr_t)host.addr, PAGE, 0x60 + i);
		CHECK(bytes_are(host.addr, PAGE, 0x60 + i));
	}
}

/*
 * A device that was stopped goes on if another one, which comes after it, keeps the system awake:
 * queues, memory that had come home, and VRAM.
 */
TEST(stopped_for_nothing, .seconds = 120)
{
	enum { LENGTH = 2 * MIB };
	int kmsg = kmsg_open(), fd = open_gpu(), second = open_second_gpu();
	struct gpu_queue idle = queue_new(fd), waits = queue_new(fd);
	struct gpu_memory vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, LENGTH);
	struct pinmap_prefetch there;
	char *moved;

	need_sleep(quick_way);
	moved = managed(fd, LENGTH);
	pattern_fill(vram.addr, LENGTH, 0xa1);
	pattern_fill(moved, LENGTH, 0xa2);
	CHECK_OK(try_prefetch(fd, 0, moved, LENGTH, &there));
	push_wait(&waits);
	queue_push(&waits, GPU_COPY, (uintptr_t)vram.addr, (uintptr_t)moved, LENGTH);
	queue_submit(&waits);
	CHECK_OK(try_stay_awake(second, PINMAP_STAY_AWAKE_ON));
	CHECK_ERR(EBUSY, try_sleep(quick_way));
	CHECK(kmsg_wait(kmsg, "does not sleep: kept awake by", 10000));
	CHECK(pattern_is(moved, LENGTH, 0xa2));
	waits.fences[ALLOWED] = 1;
	CHECK_OK(try_queue_wait(&waits, slow(60000)));
	CHECK(pattern_is(moved, LENGTH, 0xa1));
	CHECK(pattern_is(vram.addr, LENGTH, 0xa1));
	gpu_fill(&idle, (uintptr_t)moved, PAGE, 0xa3);
	CHECK(bytes_are(moved, PAGE, 0xa3));
	CHECK_OK(try_stay_awake(second, 0));
	CHECK_OK(try_sleep(quick_way));
	CHECK(pattern_is(vram.addr, LENGTH, 0xa1));
}

/* VRAM that disks can have is unmapped for the time, and mapped again. */
TEST(memory_for_disks, .seconds = 120)
{
	int fd = open_gpu();
	struct pinmap_alloc args;
	char *memory;

	need_sleep(quick_way);
	if (try_alloc(fd, PINMAP_ALLOC_VRAM | PINMAP_ALLOC_P2PDMA, HUGE, &args) == -EOPNOTSUPP)
		SKIP("the kernel has no P2PDMA");
	memory = map_at(fd, args.out_offset, HUGE);
	pattern_fill(memory, HUGE, 0xb1);
	CHECK_OK(try_sleep(quick_way));
	CHECK(pattern_is(memory, HUGE, 0xb1));
	pattern_fill(memory, HUGE, 0xb2);
	CHECK_OK(try_sleep(quick_way));
	CHECK(pattern_is(memory, HUGE, 0xb2));
}

/* A fault that waits for the program is given up, and served when the system is awake. */
TEST(fault_waits, .seconds = 120)
{
	int fd = open_gpu(), uffd;
	struct gpu_queue queue = queue_new(fd);
	char *memory;

	need_sleep(quick_way);
	memory = managed(fd, 4 * PAGE);
	uffd = uffd_new(memory, 4 * PAGE);
	queue_push(&queue, GPU_FILL, (uintptr_t)memory + 8, 8, 0x71);
	queue_submit(&queue);
	uffd_await(uffd, memory);
	CHECK_OK(try_sleep(quick_way));
	uffd_supply(uffd, memory, 0x70);
	CHECK_OK(try_queue_wait(&queue, slow(60000)));
	CHECK(bytes_are(memory, 8, 0x70));
	CHECK(bytes_are(memory + 8, 8, 0x71));
}

static const struct endless {
	const char *name;
	bool is_stuck;
	uint32_t code;
} endless[] = {
	{ "packet", false, GPU_TOO_LONG },
	{ "engine", true, GPU_ENGINE_LOST },
};

/*
 * The device ends a packet that takes too long, and the driver one whose engine is stuck. Its queue
 * fails as at any time; the others go on.
 */
TEST_EACH(endless, endless, .seconds = 120)
{
	int fd = open_gpu();
	struct gpu_queue spins = queue_new(fd), other = queue_new(fd);
	struct gpu_memory vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, PAGE);

	need_sleep(quick_way);
	gpu_fill(&other, (uintptr_t)vram.addr, PAGE, 0x81);
	if (row->is_stuck)
		gpu_set_register(GPU_STUCK, ~0ULL);
	queue_push(&spins, gpu_launch(GPU_SPIN), ~0ULL, 0, 0);
	queue_submit(&spins);
	CHECK_OK(try_sleep(quick_way));
	CHECK_EQ(queue_stopped(&spins), row->code);
	gpu_set_register(GPU_STUCK, 0);
	CHECK(bytes_are(vram.addr, PAGE, 0x81));
	gpu_fill(&other, (uintptr_t)vram.addr, PAGE, 0x82);
	CHECK(bytes_are(vram.addr, PAGE, 0x82));
}

/* A program that was asleep ends as any other. */
TEST(program_ends_afterwards, .seconds = 120)
{
	struct gate gate = gate_new();
	long long pins = pins_held();
	pid_t pid;

	need_gpu();
	need_sleep(quick_way);
	pid = SYS(fork());
	if (pid == 0) {
		int fd = open_gpu();
		struct gpu_queue queue = queue_new(fd);

		register_memory(fd, anon(16), 16 * PAGE, WRITE);
		gpu_alloc(fd, PINMAP_ALLOC_VRAM, 16 * PAGE);
		push_wait(&queue);
		queue_submit(&queue);
		gate_open(&gate);
		for (;;)
			pause();
	}
	gate_pass(&gate);
	CHECK_OK(try_sleep(quick_way));
	kill_now(pid);
	CHECK_PINS_SOON(pins);
	CHECK_OK(try_sleep(quick_way));
}

/* A context can have the system stay awake; the log names the program. */
TEST(stays_awake, .seconds = 120)
{
	int kmsg = kmsg_open(), fd = open_gpu(), other;
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory memory = gpu_alloc(fd, 0, PAGE);

	CHECK_ERR(EOPNOTSUPP, try_stay_awake(fd, 2));
	need_sleep(quick_way);
	other = open_gpu();
	CHECK_OK(try_stay_awake(other, PINMAP_STAY_AWAKE_ON));
	CHECK_ERR(EBUSY, try_sleep(quick_way));
	CHECK(kmsg_wait(kmsg, "does not sleep: kept awake by", 10000));
	gpu_fill(&queue, (uintptr_t)memory.addr, PAGE, 0x91);
	CHECK(bytes_are(memory.addr, PAGE, 0x91));
	CHECK_OK(try_stay_awake(other, 0));
	CHECK_OK(try_sleep(quick_way));
	CHECK_OK(try_stay_awake(other, PINMAP_STAY_AWAKE_ON));
	close(other);
	CHECK_OK(try_sleep(quick_way));
	gpu_fill(&queue, (uintptr_t)memory.addr, PAGE, 0x92);
	CHECK(bytes_are(memory.addr, PAGE, 0x92));
}
