// SPDX-License-Identifier: GPL-2.0
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/ktime.h>
#include <linux/timekeeping.h>
#include "../helpers.h"

u64 pinmap_now_ns(void)
{
	return ktime_get_ns();
}

u64 pinmap_wall_seconds(void)
{
	return ktime_get_real_seconds();
}

void pinmap_sleep_us(unsigned long least, unsigned long most)
{
	usleep_range(least, most);
}

/* Rounds up; returns at least 1. */
unsigned long pinmap_ns_to_jiffies(u64 ns)
{
	return nsecs_to_jiffies(ns) + 1;
}
