// SPDX-License-Identifier: MIT OR Apache-2.0
/* A device that register writes reach late, as they may on any bus. */
#define _GNU_SOURCE
#include "gpu.h"
#include "memory.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Whether an eventfd is signalled within so many milliseconds. */
static bool is_told(int eventfd, unsigned int milliseconds)
{
	struct pollfd poller = { .fd = eventfd, .events = POLLIN };
	uint64_t count;

	return poll(&poller, 1, milliseconds) == 1 &&
	       read(eventfd, &count, sizeof(count)) == sizeof(count);
}

/*
 * Register writes arrive late, as on a bus: a register that the driver clears is not cleared when
 * it looks at a fence, unless it has read a register between. Each notice must come with its
 * interrupt, and not when the driver looks by itself, twice a second.
 */
TEST(notify_with_late_writes, .seconds = 60)
{
	enum { TIMES = 9 };
	int fd = open_gpu(), tells = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	struct gpu_queue queue = queue_new(fd);
	unsigned int late = 0;

	gpu_set_register(GPU_POST_NS, 60000000);
	for (int i = 0; i < TIMES; i++) {
		uint64_t start;

		queue_push(&queue, GPU_FENCE_WRITE, queue.args.out_fence_addr, ++queue.fence, 0);
		queue_push(&queue, GPU_INTERRUPT, 0, 0, 0);
		/*
		 * long enough for the first interrupt to be handled, and shorter than its writes
		 * take to arrive
		 */
		queue_push(&queue, gpu_launch(GPU_SPIN), 30000000, 0, 0);
		CHECK_OK(try_queue_notify(fd, queue.args.out_queue, 0, queue.fence + 1, tells));
		queue_submit(&queue);
		CHECK_OK(WAIT_FOR(slow(5000), queue.fences[0] >= queue.fence) ? 0 : -ETIMEDOUT);
		start = now_ms();
		CHECK(is_told(tells, slow(5000)));
		late += now_ms() - start > 200;
	}
	gpu_set_register(GPU_POST_NS, 0);
	diag("%u of %d notices came late", late, TIMES);
	CHECK(late <= TIMES / 3);
}

/* Everything else works with late writes, too. */
TEST(late_writes, .seconds = 60)
{
	gpu_set_register(GPU_POST_NS, 5000000);
	for (int i = 0; i < 5; i++) {
		int fd = open_gpu();
		struct gpu_queue queue = queue_new(fd), other = queue_new(fd);
		char *memory = anon(1);
		struct registration registration = register_memory(fd, memory, PAGE, WRITE);

		/* the last owner of its id rang it a moment before */
		queue_push(&queue, GPU_FILL, (uintptr_t)memory, PAGE, 0x11 + i);
		queue_finish(&queue);
		CHECK_EQ(memory[PAGE - 1], 0x11 + i);
		release(fd, registration.handle);
		queue_push(&queue, GPU_FILL, (uintptr_t)memory, PAGE, 0x55);
		queue_ring(&queue);
		CHECK_EQ(queue_stopped(&queue), GPU_NOT_PRESENT);
		CHECK_EQ(memory[PAGE - 1], 0x11 + i);
		CHECK_EQ(queue_query(&other).out_index, 0);
		queue_ring(&other);
		CHECK_OK(try_queue_destroy(fd, other.args.out_queue));
		close(fd);
	}
	gpu_set_register(GPU_POST_NS, 0);
}
