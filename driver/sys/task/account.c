// SPDX-License-Identifier: GPL-2.0
#include <linux/cred.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include "../helpers.h"

unsigned long pinmap_memlock_limit(void)
{
	return rlimit(RLIMIT_MEMLOCK);
}

struct user_struct *pinmap_get_current_user(void)
{
	return get_uid(current_user());
}
