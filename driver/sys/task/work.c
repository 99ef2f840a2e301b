// SPDX-License-Identifier: GPL-2.0
#include <linux/workqueue.h>
#include "../helpers.h"

static struct workqueue_struct *pinmap_queue_of[PINMAP_QUEUES];

int pinmap_queues_begin(void)
{
	static const struct {
		const char *name;
		int max_active;
	} queues[PINMAP_QUEUES] = {
		[PINMAP_QUEUE_WATCH] = { "pinmap_watch", 4 },
		[PINMAP_QUEUE_END] = { "pinmap_end", 64 },
		[PINMAP_QUEUE_GUARD] = { "pinmap_guard", 0 },
		[PINMAP_QUEUE_START] = { "pinmap_start", 16 },
	};

	for (u32 i = 0; i < PINMAP_QUEUES; i++) {
		pinmap_queue_of[i] = alloc_workqueue("%s", WQ_UNBOUND, queues[i].max_active,
						     queues[i].name);
		if (!pinmap_queue_of[i]) {
			pinmap_queues_end();
			return -ENOMEM;
		}
	}
	return 0;
}

/* Runs what is queued, then frees the queues. */
void pinmap_queues_end(void)
{
	for (u32 i = 0; i < PINMAP_QUEUES; i++) {
		if (pinmap_queue_of[i])
			destroy_workqueue(pinmap_queue_of[i]);
		pinmap_queue_of[i] = NULL;
	}
}

struct workqueue_struct *pinmap_queue(u32 which)
{
	return pinmap_queue_of[which];
}
