// SPDX-License-Identifier: GPL-2.0
#include <linux/wait_bit.h>
#include "../helpers.h"

void pinmap_clear_and_wake(u32 *word)
{
	store_release_wake_up(word, 0);
}

/* Waits until @word is 0. Returns -ERESTARTSYS if a fatal signal comes first. */
int pinmap_wait_for_zero(u32 *word)
{
	return wait_var_event_killable(word, !smp_load_acquire(word));
}
