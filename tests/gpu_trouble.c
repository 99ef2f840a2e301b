// SPDX-License-Identifier: MIT OR Apache-2.0
/* Group G: a device that misbehaves. */
#define _GNU_SOURCE
#include "gpu.h"
#include "memory.h"
#include "pins.h"

#include <string.h>
#include <unistd.h>

enum { NO_ACK_INVALIDATE = 1, NO_ACK_UNBIND = 2 };

/* Interrupts get lost: everything goes on, somewhat later. */
TEST(lost_interrupts, .seconds = 30)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	gpu_set_register(GPU_LOSE_INTERRUPTS, 1000);
	for (int i = 0; i < 10; i++)
		CHECK_OK(try_queue_finish(&queue, slow(5000)));
	gpu_set_register(GPU_LOSE_INTERRUPTS, 0);
}

/* A kernel that runs for too long stops its queue only. */
TEST(runs_too_long, .seconds = 30)
{
	int fd = open_gpu();
	struct gpu_queue bad = queue_new(fd), good = queue_new(open_gpu());

	queue_push(&bad, gpu_launch(GPU_SPIN), 60000000000, 0, 0);
	queue_ring(&bad);
	queue_finish(&good);
	CHECK_EQ(queue_stopped(&bad), 32);
	CHECK_EQ(queue_query(&bad).out_state, PINMAP_QUEUE_ERROR);
	queue_finish(&good);
}

/* An engine that is stuck is reset: the queue is told, others go on. */
TEST(stuck_engine, .seconds = 30)
{
	struct gpu_queue bad = queue_new(open_gpu()), good = queue_new(open_gpu());

	gpu_set_register(GPU_STUCK, 0x3c);
	queue_push(&bad, gpu_launch(GPU_SPIN), 1000, 0, 0);
	queue_ring(&bad);
	sleep_ms(50);
	gpu_set_register(GPU_STUCK, gpu_register(GPU_STUCK) & 0x3c);
	CHECK_EQ(queue_stopped(&bad), GPU_ENGINE_LOST);
	gpu_set_register(GPU_STUCK, 0);
	queue_push(&good, gpu_launch(GPU_SPIN), 1000, 0, 0);
	queue_finish(&good);
}

/* A queue whose packet never ends is destroyed nevertheless. */
TEST(destroy_stuck, .seconds = 60)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	gpu_set_register(GPU_STUCK, 0x3c);
	queue_push(&queue, gpu_launch(GPU_SPIN), 1000, 0, 0);
	queue_ring(&queue);
	sleep_ms(50);
	CHECK_OK(try_queue_destroy(fd, queue.args.out_queue));
	gpu_set_register(GPU_STUCK, 0);
	queue = queue_new(fd);
	queue_finish(&queue);
}

/* The device does not confirm that it has forgotten: it is cut off, and gone. */
TEST(no_acknowledgement, .seconds = 60, .faults = true)
{
	struct memory memory = memory_new(ANON, PAGE);
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct registration registration = register_memory(fd, memory.addr, PAGE, WRITE);
	struct pinmap_event event;
	long long pins = pins_held();

	queue_push(&queue, GPU_FILL, (uintptr_t)memory.addr, PAGE, 0x22);
	queue_finish(&queue);
	gpu_set_register(GPU_NO_ACK, NO_ACK_INVALIDATE);
	CHECK_ERR(EIO, try_release(fd, registration.handle));
	memset(memory.addr, 0x77, PAGE);
	queue_push(&queue, GPU_FILL, (uintptr_t)memory.addr, PAGE, 0x33);
	CHECK(try_queue_finish(&queue, 500) != 0);
	CHECK_EQ(memory.addr[0], 0x77);
	event = next_event(other);
	CHECK_EQ(event.type, PINMAP_EVENT_GONE);
	CHECK(get_info(fd).out_flags & PINMAP_INFO_GONE);
	CHECK_PINS_SOON(pins - 1);
	close(fd);
	close(other);
	gpu_rebind();
	queue = queue_new(open_gpu());
	queue_finish(&queue);
}
