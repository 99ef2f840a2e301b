// SPDX-License-Identifier: GPL-2.0
#ifdef CONFIG_X86
#include <asm/cacheflush.h>
#include <asm/set_memory.h>
#elif defined(CONFIG_ARM64)
#include <asm/cpufeature.h>
#include <asm/sysreg.h>
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
	return IS_ENABLED(CONFIG_X86) || IS_ENABLED(CONFIG_ARM64);
}

/*
 * Writes back and invalidates each line, in one step: what another processor stores meanwhile must
 * not be lost. (What arm64 exports to modules does it in two.)
 */
void pinmap_flush(void *address, unsigned int bytes)
{
#ifdef CONFIG_X86
	clflush_cache_range(address, bytes);
#elif defined(CONFIG_ARM64)
	u64 kinds = read_sanitised_ftr_reg(SYS_CTR_EL0);
	unsigned long line = 4UL << SYS_FIELD_GET(CTR_EL0, DminLine, kinds);
	unsigned long at = (unsigned long)address & ~(line - 1);

	for (; at < (unsigned long)address + bytes; at += line)
		asm volatile("dc civac, %0" : : "r"(at) : "memory");
	dsb(sy);
#endif
}
