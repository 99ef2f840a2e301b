// SPDX-License-Identifier: GPL-2.0
#include <linux/sched/mm.h>
#include "../helpers.h"

/* Tells lockdep that reclaim begins. Does nothing without lockdep. */
void pinmap_reclaim_begin(void)
{
	fs_reclaim_acquire(GFP_KERNEL);
}

void pinmap_reclaim_end(void)
{
	fs_reclaim_release(GFP_KERNEL);
}
