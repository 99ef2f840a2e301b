// SPDX-License-Identifier: GPL-2.0
#include <linux/kthread.h>
#include <linux/memcontrol.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include "../helpers.h"

struct pinmap_errand {
	void (*run)(void *data);
	void *data;
};

static int pinmap_run_killable(void *data)
{
	struct pinmap_errand errand = *(struct pinmap_errand *)data;

	kfree(data);
	allow_kernel_signal(SIGKILL);
	errand.run(errand.data);
	module_put_and_kthread_exit(0);
}

/*
 * Starts a thread that calls @run, holds the module, and gets no other signal than ours. Returns a
 * reference to it, or an error pointer.
 */
struct task_struct *pinmap_start_killable(void (*run)(void *data), void *data, const char *name)
{
	struct pinmap_errand *errand = kmalloc(sizeof(*errand), GFP_KERNEL);
	struct task_struct *task = ERR_PTR(-ENOMEM);

	if (!errand)
		return task;
	*errand = (struct pinmap_errand) { run, data };
	if (!try_module_get(THIS_MODULE)) {
		kfree(errand);
		return ERR_PTR(-ENODEV);
	}
	task = kthread_create(pinmap_run_killable, errand, "%s", name);
	if (IS_ERR(task)) {
		module_put(THIS_MODULE);
		kfree(errand);
		return task;
	}
	get_task_struct(task);
	wake_up_process(task);
	return task;
}

void pinmap_forget_signals(void)
{
	if (signal_pending(current))
		flush_signals(current);
}

/* Uses @mm, and charges what is allocated to its cgroup; false if it has ended. */
bool pinmap_use_mm(struct mm_struct *mm, struct pinmap_using *using)
{
	if (!mmget_not_zero(mm))
		return false;
	kthread_use_mm(mm);
	using->own = get_mem_cgroup_from_mm(mm);
	using->before = set_active_memcg(using->own);
	return true;
}

void pinmap_unuse_mm(struct mm_struct *mm, struct pinmap_using *using)
{
	set_active_memcg(using->before);
	mem_cgroup_put(using->own);
	kthread_unuse_mm(mm);
	mmput(mm);
}
