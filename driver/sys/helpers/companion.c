// SPDX-License-Identifier: GPL-2.0
#include <linux/completion.h>
#include <linux/kref.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sched/vhost_task.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include "helpers.h"

#if IS_ENABLED(CONFIG_VHOST_TASK)

/*
 * A second thread of the process. The caller has a reference, and another one belongs to the thread
 * until the work queue has waited for its end. It holds the module.
 */
struct pinmap_companion {
	struct kref refs;
	struct work_struct parting;
	struct vhost_task *task;
	struct completion done;
	/* Set by whoever is first: the thread that begins, or the caller that is done. */
	atomic_t taken;
	/* Whether the thread, which alone uses this, has queued its parting. */
	bool parted;
	void (*run)(void *data);
	void *data;
};

static void pinmap_companion_free(struct kref *refs)
{
	kfree(container_of(refs, struct pinmap_companion, refs));
}

/* The thread has nothing to do any more, or dies: vhost_task_stop() returns soon. */
static void pinmap_companion_stop(struct work_struct *work)
{
	struct pinmap_companion *companion = container_of(work, struct pinmap_companion, parting);

	vhost_task_stop(companion->task);
	kref_put(&companion->refs, pinmap_companion_free);
	module_put(THIS_MODULE);
}

static void pinmap_companion_part(struct pinmap_companion *companion)
{
	if (!companion->parted) {
		companion->parted = true;
		queue_work(pinmap_queue(PINMAP_QUEUE_PART), &companion->parting);
	}
}

/*
 * The thread calls this until it is told to stop. A thread that is to stop, freeze or be traced
 * does so between two calls, and may stay like that for as long as user space likes. So it parts
 * only when no signal waits: nobody waits for it before that.
 */
static bool pinmap_companion_run(void *data)
{
	struct pinmap_companion *companion = data;

	if (!atomic_xchg(&companion->taken, 1)) {
		__set_current_state(TASK_RUNNING);
		companion->run(companion->data);
		complete(&companion->done);
	}
	if (signal_pending(current)) {
		__set_current_state(TASK_RUNNING);
		return true;
	}
	pinmap_companion_part(companion);
	return false;
}

/* What the thread runs looks for fatal signals itself. */
static void pinmap_companion_killed(void *data)
{
	pinmap_companion_part(data);
}

/* Tests find it by its name. */
static noinline struct pinmap_companion *pinmap_companion_start(void (*run)(void *), void *data)
{
	struct pinmap_companion *companion = kzalloc(sizeof(*companion), GFP_KERNEL);

	if (!companion)
		return NULL;
	kref_init(&companion->refs);
	INIT_WORK(&companion->parting, pinmap_companion_stop);
	init_completion(&companion->done);
	companion->run = run;
	companion->data = data;
	companion->task = vhost_task_create(pinmap_companion_run, pinmap_companion_killed,
					    companion, "pinmap_pin");
	if (IS_ERR(companion->task)) {
		kfree(companion);
		return NULL;
	}
	__module_get(THIS_MODULE);
	kref_get(&companion->refs);
	vhost_task_start(companion->task);
	return companion;
}

/*
 * Calls @own, and meanwhile @other in another thread of the process, if there can be one and it has
 * time. @other is not called after this has returned; the thread ends soon after.
 */
void pinmap_with_companion(void (*own)(void *), void *own_data,
			   void (*other)(void *), void *other_data)
{
	struct pinmap_companion *companion = pinmap_companion_start(other, other_data);

	own(own_data);
	if (!companion)
		return;
	/* The signal that ends this wait ends what the thread waits for. */
	if (atomic_xchg(&companion->taken, 1) && wait_for_completion_killable(&companion->done))
		wait_for_completion(&companion->done);
	kref_put(&companion->refs, pinmap_companion_free);
}

#else

void pinmap_with_companion(void (*own)(void *), void *own_data,
			   void (*other)(void *), void *other_data)
{
	own(own_data);
}

#endif
