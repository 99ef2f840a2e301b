// SPDX-License-Identifier: GPL-2.0
#include <linux/mmu_notifier.h>
#include "helpers.h"

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
