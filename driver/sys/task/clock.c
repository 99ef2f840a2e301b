// SPDX-License-Identifier: GPL-2.0
#include <linux/jiffies.h>
#include "../helpers.h"

/* Rounds up; returns at least 1. */
unsigned long pinmap_ns_to_jiffies(u64 ns)
{
	return nsecs_to_jiffies(ns) + 1;
}
