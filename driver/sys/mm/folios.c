// SPDX-License-Identifier: GPL-2.0
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/slab.h>
#include "../helpers.h"

/*
 * Allocates a zeroed folio, charged to the current memory cgroup. Returns NULL without a warning if
 * there is none of that order. User space decides how much is asked for, so the OOM killer is not
 * called.
 */
struct page *pinmap_alloc_folio(unsigned int order, int node)
{
	gfp_t gfp = GFP_USER | __GFP_ACCOUNT | __GFP_ZERO | __GFP_NOWARN;
	struct folio *folio;

	gfp |= order ? __GFP_NORETRY : __GFP_RETRY_MAYFAIL;
	if (node == NUMA_NO_NODE)
		folio = folio_alloc(gfp, order);
	else
		folio = __folio_alloc_node(gfp | __GFP_THISNODE, order, node);
	return folio ? folio_page(folio, 0) : NULL;
}

/*
 * Allocates memory for kvfree(). Fails in a full memory cgroup, instead of calling the OOM killer.
 */
void *pinmap_kvmalloc_or_fail(size_t size)
{
	return kvmalloc(size, GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL | __GFP_NOWARN);
}

bool pinmap_node_has_memory(u32 node)
{
	return node < MAX_NUMNODES && node_state(node, N_MEMORY);
}

unsigned long pinmap_total_pages(void)
{
	return totalram_pages();
}

/* The order of a page that one entry of a PMD table maps; 0 without huge pages. */
unsigned int pinmap_huge_order(void)
{
	return IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE) ? PMD_SHIFT - PAGE_SHIFT : 0;
}

void *pinmap_page_address(const struct page *page)
{
	return page_address(page);
}
