// SPDX-License-Identifier: GPL-2.0
#include <linux/poll.h>
#include <linux/wait.h>
#include "../helpers.h"

void pinmap_wait_queue_init(struct wait_queue_head *queue)
{
	init_waitqueue_head(queue);
}

void pinmap_wake_up(struct wait_queue_head *queue)
{
	/* The barrier in it pairs with that of prepare_to_wait(). */
	if (wq_has_sleeper(queue))
		wake_up_all(queue);
}

/*
 * Waits until done(@data), and returns 0. By what @how says, -EINTR if the current task is killed,
 * or -ERESTARTSYS if it gets a signal.
 */
int pinmap_wait_event(struct wait_queue_head *queue, bool (*done)(void *data), void *data, u32 how)
{
	switch (how) {
	case PINMAP_WAIT_KILLABLE:
		return wait_event_killable(*queue, done(data)) ? -EINTR : 0;
	case PINMAP_WAIT_INTERRUPTIBLE:
		return wait_event_interruptible(*queue, done(data));
	default:
		wait_event(*queue, done(data));
		return 0;
	}
}
