// SPDX-License-Identifier: GPL-2.0
#include <linux/kthread.h>
#include "../helpers.h"

/*
 * Starts a thread that calls @run. Returns a reference for kthread_stop_put(), or an error pointer.
 */
struct task_struct *pinmap_run_thread(int (*run)(void *data), void *data, const char *name)
{
	struct task_struct *task = kthread_create(run, data, "%s", name);

	if (!IS_ERR(task)) {
		get_task_struct(task);
		wake_up_process(task);
	}
	return task;
}
