// SPDX-License-Identifier: GPL-2.0
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include "../helpers.h"

/* Returns the frame number of the first of @pages contiguous pages; 0: there are none. */
unsigned long pinmap_bounce_new(unsigned int pages)
{
	struct page *first = alloc_pages(GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN,
					 get_order(pages * PAGE_SIZE));

	return first ? page_to_pfn(first) : 0;
}

void pinmap_bounce_free(unsigned long pfn, unsigned int pages)
{
	__free_pages(pfn_to_page(pfn), get_order(pages * PAGE_SIZE));
}

/* Survives a memory error in the page that is read. */
int pinmap_copy_page(unsigned long to, unsigned long from)
{
	return copy_mc_highpage(pfn_to_page(to), pfn_to_page(from)) ? -EIO : 0;
}
