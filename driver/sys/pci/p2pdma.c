// SPDX-License-Identifier: GPL-2.0
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/pci-p2pdma.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include "../helpers.h"

/*
 * Pages are counted by the one reference that we have of each, and those of page tables and of I/O.
 * The kernel initialises the counts with 0, and gives the memory to whoever asks for some: we ask
 * for all of it at once, so that nobody else gets any. Since our references stay, the counts never
 * reach 0, where the kernel would take a page back.
 */

/* Describes @bytes of @bar from @offset on. Returns where the kernel has mapped them. */
void *pinmap_p2pdma_add(struct pci_dev *pdev, u32 bar, u64 bytes, u64 offset)
{
	int ret = pci_p2pdma_add_resource(pdev, bar, bytes, offset);
	struct page *page;
	void *addr;

	/* What the kernel says otherwise is about the BAR, and not about the caller. */
	if (ret)
		return ERR_PTR(ret == -ENOMEM ? ret : -EOPNOTSUPP);
	addr = pci_alloc_p2pmem(pdev, bytes);
	if (!addr)
		return ERR_PTR(-EBUSY);
	page = virt_to_page(addr);
	if (page_to_phys(page) != pci_resource_start(pdev, bar) + offset) {
		pci_free_p2pmem(pdev, addr, bytes);
		return ERR_PTR(-EBUSY);
	}
	for (u64 i = 0; i < bytes >> PAGE_SHIFT; i++)
		set_page_count(page + i, 1);
	return addr;
}

/*
 * Whoever takes a reference without a lock, by a page table that had the page a moment ago, has
 * dropped it when this returns.
 */
void pinmap_p2pdma_settle(void)
{
	synchronize_rcu();
}

/* Only we have references of the pages. The kernel removes them when the function is unbound. */
void pinmap_p2pdma_end(struct pci_dev *pdev, void *addr, u64 bytes)
{
	struct page *page = virt_to_page(addr);

	for (u64 i = 0; i < bytes >> PAGE_SHIFT; i++)
		set_page_count(page + i, 0);
	pci_free_p2pmem(pdev, addr, bytes);
}

unsigned long pinmap_p2pdma_pfn(void *addr)
{
	return page_to_pfn(virt_to_page(addr));
}

/* How many of the @pages pages from @pfn on nobody but us has, up to the first that others have. */
unsigned long pinmap_p2pdma_idle(unsigned long pfn, unsigned long pages)
{
	unsigned long i;

	for (i = 0; i < pages && page_ref_count(pfn_to_page(pfn + i)) == 1; i++)
		if (i % 4096 == 4095)
			cond_resched();
	/* What is done with the pages from now on comes after what others have done. */
	smp_acquire__after_ctrl_dep();
	return i;
}
