// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Memory that moves, or is discarded, in the order of a queue, as a program in C has it: the queue
 * tells by a fence how far it is, waits for another one, and the program makes the call in between.
 */
#define _GNU_SOURCE
#include "../told.h"

#include "edu.h"
#include "memory.h"

#include <sys/mman.h>

/* Fences of the queue: that which the queue writes, and that for which it waits. */
enum { REACHED = 1, ALLOWED = 2 };

enum what { THERE, HOME, DISCARD };

static const struct {
	const char *name;
	enum what what;
	bool huge;
} calls[] = {
	{ "there", THERE, false },     { "there_huge", THERE, true },
	{ "home", HOME, false },       { "home_huge", HOME, true },
	{ "discard", DISCARD, false }, { "discard_huge", DISCARD, true },
};

static void push_increment(struct gpu_queue *queue, const void *memory)
{
	queue_push(queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)memory, HUGE / 4, 0);
}

/* Packets before the call are done when it is made, and those behind it have not begun. */
TEST_EACH(ordered, calls)
{
	char *memory = block_of(row->huge);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, HUGE);
	volatile float *floats = (volatile float *)memory;
	float sum = 5;

	for (size_t i = 0; i < HUGE / 4; i++)
		floats[i] = 1;
	if (row->what == THERE)
		advise(fd, memory, HUGE, PREFER_HOST);
	push_increment(&queue, memory);
	queue_push(&queue, GPU_FENCE_WRITE, queue.args.out_fence_addr + 8 * REACHED, 1, 0);
	queue_push(&queue, GPU_FENCE_WAIT, queue.args.out_fence_addr + 8 * ALLOWED, 1, 0);
	for (int i = 0; i < 3; i++)
		push_increment(&queue, memory);
	queue_ring(&queue);
	CHECK(WAIT_FOR(slow(20000), queue.fences[REACHED] == 1));
	switch (row->what) {
	case THERE:
		CHECK_EQ(on_device(fd, memory, HUGE), 0);
		MOVE_THERE(fd, memory, HUGE);
		break;
	case HOME:
		CHECK_EQ(on_device(fd, memory, HUGE), HUGE);
		MOVE_HOME(fd, memory, HUGE);
		CHECK_EQ(on_device(fd, memory, HUGE), 0);
		break;
	case DISCARD:
		SYS(madvise(memory, HUGE, MADV_DONTNEED));
		sum = 3;
	}
	queue.fences[ALLOWED] = 1;
	queue_finish(&queue);
	CHECK_EQ(on_device(fd, memory, HUGE), HUGE);
	if (row->what == THERE)
		CHECK_EQ(statistics(fd, handle).out_in_touched, 0);
	if (row->what == DISCARD)
		CHECK_EQ(statistics(fd, handle).out_home_touched, 0);
	for (size_t i = 0; i < HUGE / 4; i++)
		CHECK(floats[i] == sum);
}
