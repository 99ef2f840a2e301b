// SPDX-License-Identifier: GPL-2.0
#include <linux/highmem.h>
#include <linux/io.h>
#include "../helpers.h"

/* A macro of some architectures. */
void __iomem *pinmap_ioremap_wc(u64 start, size_t bytes)
{
	return ioremap_wc(start, bytes);
}

void pinmap_copy_page_from_io(unsigned long pfn, const void __iomem *from)
{
	void *to = kmap_local_pfn(pfn);

	memcpy_fromio(to, from, PAGE_SIZE);
	kunmap_local(to);
}
