// SPDX-License-Identifier: MIT OR Apache-2.0
/* Waits for fences of a queue, and eventfds that are told of them. */
#define _GNU_SOURCE
#include "gpu.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

TEST(wait_ends)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	queue.fence = 1;
	CHECK_ERR(ETIMEDOUT, try_queue_wait(&queue, 30));
	CHECK_ERR(ETIMEDOUT, try_queue_wait(&queue, 0));
	queue.fences[0] = 1;
	CHECK_OK(try_queue_wait(&queue, 0));
	queue_push(&queue, 0, 0, 0, 0);
	queue_ring(&queue);
	CHECK_EQ(queue_stopped(&queue), GPU_BAD_OPCODE);
	queue.fence = 2;
	CHECK_ERR(EIO, try_queue_wait(&queue, 1000));
}

static int try_notify(const struct gpu_queue *queue, uint32_t fence, uint64_t value, int eventfd)
{
	return try_queue_notify(queue->fd, queue->args.out_queue, fence, value, eventfd);
}

/* Counts the signals of an eventfd, after so many milliseconds at most. */
static uint64_t signals(int eventfd, int milliseconds)
{
	struct pollfd file = { .fd = eventfd, .events = POLLIN };
	uint64_t count = 0;

	SYS(poll(&file, 1, milliseconds));
	if (read(eventfd, &count, sizeof(count)) != sizeof(count))
		return 0;
	return count;
}

/* A queue, and an eventfd that is to be told of its fences. */
struct notices {
	int fd, tells;
	struct gpu_queue queue;
};

static struct notices notices_new(void)
{
	struct notices notices = { .fd = open_gpu(),
				   .tells = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) };

	notices.queue = queue_new(notices.fd);
	return notices;
}

TEST(notify_values)
{
	struct notices notices = notices_new();

	CHECK_ERR(EBADF, try_notify(&notices.queue, 0, 1, -1));
	CHECK_ERR(EINVAL, try_notify(&notices.queue, 0, 1, notices.fd));
	CHECK_ERR(EINVAL, try_notify(&notices.queue, 512, 1, notices.tells));
}

TEST(notify_of_a_fence_that_is_passed)
{
	struct notices notices = notices_new();

	CHECK_OK(try_notify(&notices.queue, 0, 0, notices.tells));
	CHECK_EQ(signals(notices.tells, 0), 1);
}

/* The eventfd is signalled once. */
TEST(notify_of_a_fence_that_comes)
{
	struct notices notices = notices_new();

	CHECK_OK(try_notify(&notices.queue, 0, notices.queue.fence + 1, notices.tells));
	CHECK_EQ(signals(notices.tells, 0), 0);
	queue_finish(&notices.queue);
	CHECK_EQ(signals(notices.tells, slow(5000)), 1);
	queue_finish(&notices.queue);
	CHECK_EQ(signals(notices.tells, 100), 0);
}

/* Interrupts and fences of another queue do not count, nor do other fences of this one. */
TEST(notify_is_for_one_fence)
{
	struct notices notices = notices_new();
	struct gpu_queue other = queue_new(notices.fd);

	CHECK_OK(try_notify(&notices.queue, 0, notices.queue.fence + 2, notices.tells));
	CHECK_OK(try_notify(&notices.queue, 511, 1, notices.tells));
	queue_finish(&other);
	queue_finish(&other);
	queue_finish(&notices.queue);
	CHECK_EQ(signals(notices.tells, 100), 0);
}

/* A notice whose eventfd was closed counts until it is told. */
TEST(notify_limit)
{
	struct notices notices = notices_new();
	struct gpu_queue *queue = &notices.queue;

	for (int i = 0; i < 64; i++) {
		int closed = SYS(eventfd(0, EFD_CLOEXEC));

		CHECK_OK(try_notify(queue, 0, queue->fence + 1, closed));
		SYS(close(closed));
	}
	CHECK_ERR(ENOSPC, try_notify(queue, 0, queue->fence + 1, notices.tells));
	queue_finish(queue);
	CHECK(WAIT_FOR(slow(5000), !try_notify(queue, 0, queue->fence + 2, notices.tells)));
}

/* All notices are told, and later ones at once. */
TEST(notify_of_a_queue_that_stops)
{
	struct notices notices = notices_new();
	uint64_t told;

	CHECK_OK(try_notify(&notices.queue, 0, notices.queue.fence + 1, notices.tells));
	CHECK_OK(try_notify(&notices.queue, 511, 1, notices.tells));
	queue_push(&notices.queue, 0, 0, 0, 0);
	queue_ring(&notices.queue);
	told = signals(notices.tells, slow(5000));
	/* the eventfd may be read between the two */
	if (told < 2)
		told += signals(notices.tells, slow(5000));
	CHECK_EQ(told, 2);
	CHECK_OK(try_notify(&notices.queue, 0, ~0ULL, notices.tells));
	CHECK_EQ(signals(notices.tells, 0), 1);
}

TEST(notify_of_a_queue_that_is_destroyed)
{
	struct notices notices = notices_new();

	CHECK_OK(try_notify(&notices.queue, 0, ~0ULL, notices.tells));
	CHECK_EQ(signals(notices.tells, 0), 0);
	CHECK_OK(try_queue_destroy(notices.fd, notices.queue.args.out_queue));
	CHECK_EQ(signals(notices.tells, 0), 1);
	CHECK_ERR(ESTALE, try_notify(&notices.queue, 0, 1, notices.tells));
}

/* An interrupt that gets lost delays the notice, and does no more. */
TEST(notify_without_interrupt)
{
	int fd = open_gpu(), tells = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	struct gpu_queue queue = queue_new(fd);

	for (int i = 0; i < 3; i++) {
		CHECK_OK(try_notify(&queue, 0, queue.fence + 1, tells));
		gpu_set_register(GPU_LOSE_INTERRUPTS, 1000);
		queue_submit(&queue);
		CHECK_EQ(signals(tells, slow(5000)), 1);
		gpu_set_register(GPU_LOSE_INTERRUPTS, 0);
	}
}

/* A notice needs no interrupt packet: the driver looks by itself. */
TEST(notify_by_looking)
{
	int fd = open_gpu(), tells = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	struct gpu_queue queue = queue_new(fd);

	CHECK_OK(try_notify(&queue, 0, 1, tells));
	queue_push(&queue, GPU_FENCE_WRITE, queue.args.out_fence_addr, 1, 0);
	queue_ring(&queue);
	CHECK_EQ(signals(tells, slow(5000)), 1);
}

/* A call that waits sleeps: it looks by itself ever less often. */
TEST(waiting_sleeps)
{
	struct gpu_queue queue = queue_new(open_gpu());
	struct rusage before, after;

	queue.fence = 1;
	SYS(getrusage(RUSAGE_THREAD, &before));
	CHECK_ERR(ETIMEDOUT, try_queue_wait(&queue, 2000));
	SYS(getrusage(RUSAGE_THREAD, &after));
	diag("woken %ld times in 2 s", after.ru_nvcsw - before.ru_nvcsw);
	CHECK(after.ru_nvcsw - before.ru_nvcsw <= 20);
}
