// SPDX-License-Identifier: GPL-2.0
#include <linux/highmem.h>
#include <linux/io.h>
#include "../helpers.h"

void pinmap_copy_page_from_io(unsigned long pfn, const void __iomem *from)
{
	void *to = kmap_local_pfn(pfn);

	memcpy_fromio(to, from, PAGE_SIZE);
	kunmap_local(to);
}
