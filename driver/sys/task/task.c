// SPDX-License-Identifier: GPL-2.0
#include <linux/lockdep.h>
#include <linux/mm_types.h>
#include <linux/sched.h>
#include <linux/sched/rt.h>
#include <linux/sched/signal.h>
#include "../helpers.h"

/*
 * Whether a signal waits that user space would see. signal_pending() also counts task work
 * (io_uring's).
 */
bool pinmap_signal_pending(void)
{
	return task_sigpending(current);
}

bool pinmap_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}

void pinmap_assert_mmap_unlocked(void)
{
	if (current->mm)
		lockdep_assert_not_held(&current->mm->mmap_lock);
}

void pinmap_cond_resched(void)
{
	cond_resched();
}

unsigned long pinmap_task_size(void)
{
	return TASK_SIZE;
}

/* Where the addresses end that are given to those who do not ask for higher ones. */
unsigned long pinmap_default_task_size(void)
{
#ifdef DEFAULT_MAP_WINDOW
	return DEFAULT_MAP_WINDOW;
#else
	return TASK_SIZE;
#endif
}
