// SPDX-License-Identifier: GPL-2.0
#include <asm/barrier.h>
#include <linux/mmu_notifier.h>
#include "../helpers.h"

u32 pinmap_notice(const struct mmu_notifier_range *range)
{
	switch (range->event) {
	case MMU_NOTIFY_UNMAP:
	case MMU_NOTIFY_RELEASE:
		return PINMAP_NOTICE_GONE;
	case MMU_NOTIFY_CLEAR:
		return PINMAP_NOTICE_CLEAR;
	default:
		return PINMAP_NOTICE_IGNORE;
	}
}

bool pinmap_notice_blockable(const struct mmu_notifier_range *range)
{
	return mmu_notifier_range_blockable(range);
}

/*
 * Reads the first of each of PINMAP_GRANULES @pairs of words, which are accessed atomically, before
 * anything that is read afterwards. Each fault does so, hence without a loop.
 */
void pinmap_read_pairs(const u32 *pairs, u32 *firsts)
{
#pragma GCC unroll 32
	for (unsigned int i = 0; i < PINMAP_GRANULES; i++)
		firsts[i] = smp_load_acquire(&pairs[2 * i]);
}
