// SPDX-License-Identifier: GPL-2.0
#ifdef CONFIG_X86
#include <asm/cacheflush.h>
#include <asm/set_memory.h>
#endif
#include "../helpers.h"

/* Makes @pages write-combined in the kernel's own mapping. After a failure some of them may be. */
int pinmap_combine_writes(struct page **pages, int count)
{
#ifdef CONFIG_X86
	/*
	 * The call returns -EINVAL even if it has no memory to split a large page of the kernel's
	 * mapping.
	 */
	return set_pages_array_wc(pages, count) ? -ENOMEM : 0;
#else
	return -EOPNOTSUPP;
#endif
}

/* Makes @pages cached again. After a failure some of them may still be write-combined. */
int pinmap_write_back(struct page **pages, int count)
{
#ifdef CONFIG_X86
	return set_pages_array_wb(pages, count);
#else
	return 0;
#endif
}

bool pinmap_can_flush(void)
{
	return IS_ENABLED(CONFIG_X86);
}

void pinmap_flush(void *address, unsigned int bytes)
{
#ifdef CONFIG_X86
	clflush_cache_range(address, bytes);
#endif
}
