// SPDX-License-Identifier: GPL-2.0
#include <linux/completion.h>
#include <linux/sched.h>
#include <linux/sched/vhost_task.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include "helpers.h"

#if IS_ENABLED(CONFIG_VHOST_TASK)

struct pinmap_companion {
	struct work_struct parting;
	struct vhost_task *task;
	struct completion done;
	/* Set by whoever comes first: the thread that begins, or the caller that has done everything. */
	atomic_t taken;
	void (*run)(void *data);
	void *data;
};

/* The thread calls this until it is told to stop. */
static bool pinmap_companion_run(void *data)
{
	struct pinmap_companion *companion = data;

	if (!atomic_xchg(&companion->taken, 1)) {
		__set_current_state(TASK_RUNNING);
		companion->run(companion->data);
		complete(&companion->done);
	}
	return false;
}

/* What the thread runs looks for fatal signals itself. */
static void pinmap_companion_killed(void *data)
{
}

static void pinmap_companion_part(struct work_struct *work)
{
	struct pinmap_companion *companion = container_of(work, struct pinmap_companion, parting);

	vhost_task_stop(companion->task);
	kfree(companion);
}

static struct pinmap_companion *pinmap_companion_start(void (*run)(void *), void *data)
{
	struct pinmap_companion *companion = kzalloc(sizeof(*companion), GFP_KERNEL);

	if (!companion)
		return NULL;
	INIT_WORK(&companion->parting, pinmap_companion_part);
	init_completion(&companion->done);
	companion->run = run;
	companion->data = data;
	companion->task = vhost_task_create(pinmap_companion_run, pinmap_companion_killed,
					    companion, "pinmap_pin");
	if (IS_ERR(companion->task)) {
		kfree(companion);
		return NULL;
	}
	vhost_task_start(companion->task);
	return companion;
}

/*
 * Calls @own, and meanwhile @other in another thread of the process, if there can be one and it has
 * time. @other is not called after this has returned. The thread ends later: it may be stopped with
 * the process before that, so only the work queue waits for its end.
 */
void pinmap_with_companion(void (*own)(void *), void *own_data,
			   void (*other)(void *), void *other_data)
{
	struct pinmap_companion *companion = pinmap_companion_start(other, other_data);

	own(own_data);
	if (!companion)
		return;
	if (atomic_xchg(&companion->taken, 1))
		wait_for_completion(&companion->done);
	queue_work(pinmap_queue(PINMAP_QUEUE_PART), &companion->parting);
}

#else

void pinmap_with_companion(void (*own)(void *), void *own_data,
			   void (*other)(void *), void *other_data)
{
	own(own_data);
}

#endif
