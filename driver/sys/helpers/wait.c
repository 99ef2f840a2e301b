// SPDX-License-Identifier: GPL-2.0
#include <linux/wait.h>
#include "helpers.h"

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
 * Waits until done(@data). Returns -EINTR if @killable and the current task is killed, 0 otherwise.
 */
int pinmap_wait_event(struct wait_queue_head *queue, bool (*done)(void *data), void *data,
		      bool killable)
{
	if (killable)
		return wait_event_killable(*queue, done(data)) ? -EINTR : 0;
	wait_event(*queue, done(data));
	return 0;
}
