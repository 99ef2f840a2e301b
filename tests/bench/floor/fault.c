// SPDX-License-Identifier: GPL-2.0
/*
 * The floor of a device's fault on managed memory: the time of hmm_range_fault(), and of mapping
 * the pages in a page table of the IOMMU, without a device that has faulted.
 *
 * What is missing is asked for by one call for exactly these pages, with HMM_PFN_REQ_FAULT and
 * HMM_PFN_REQ_WRITE: for a hole in the page table, HMM makes all pages of the call. The 2 MiB
 * around are read by another call, without flags, since one fault brings all that the page table
 * has of them. No notifier is registered: it would count changes, and nobody asks for them here.
 *
 * The pages are mapped, a huge page by one iommu_map(), all others by one iommu_map_sg(), which
 * tells the IOMMU once. Whether pages are neighbours is chance, so they are mapped in an order in
 * which none follows its neighbour. Finding out which pages there are is not timed, nor is
 * unmapping.
 */
#include <linux/hmm.h>
#include <linux/huge_mm.h>
#include <linux/iommu.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/scatterlist.h>

#include "floor.h"
#include "move.h"

/* Guarded by the lock of the ioctls. */
static unsigned long leaves[HPAGE_PMD_NR];
static struct scatterlist entries[HPAGE_PMD_NR];

static int fault_range(struct mm_struct *mm, unsigned long start, unsigned long length,
		       unsigned long flags)
{
	/* HMM looks at it to stop early if something changes. This one never changes. */
	struct mmu_interval_notifier constant = { .mm = mm };
	struct hmm_range range = {
		.notifier = &constant,
		.start = start,
		.end = start + length,
		.hmm_pfns = leaves,
		.default_flags = flags,
	};

	return hmm_range_fault(&range);
}

/* Maps the @present pages at @addr, which are there from the first one on, and unmaps them. */
static int map_pages(struct iommu_domain *domain, unsigned long addr, unsigned long present,
		     u64 *ns)
{
	const int prot = IOMMU_READ | IOMMU_WRITE | IOMMU_CACHE;
	unsigned long length = present * PAGE_SIZE;
	struct scatterlist *entry = NULL;
	bool huge = hmm_pfn_to_map_order(leaves[0]) >= HPAGE_PMD_ORDER;
	ssize_t ret;
	u64 began;

	sg_init_table(entries, HPAGE_PMD_NR);
	for (unsigned long i = 0; i < present; i++) {
		if (!(leaves[i] & HMM_PFN_VALID))
			return -EINVAL;
		/* first those with even numbers, then the others */
		entry = &entries[i % 2 ? (present + 1) / 2 + i / 2 : i / 2];
		sg_set_page(entry, hmm_pfn_to_page(leaves[i]), PAGE_SIZE, 0);
	}
	if (!entry)
		return -EINVAL;
	began = ktime_get_ns();
	if (huge)
		ret = iommu_map(domain, addr, page_to_phys(hmm_pfn_to_page(leaves[0])), length,
				prot, GFP_KERNEL_ACCOUNT);
	else
		ret = iommu_map_sg(domain, addr, entries, present, prot, GFP_KERNEL_ACCOUNT);
	*ns += ktime_get_ns() - began;
	if (ret < 0)
		return ret;
	iommu_unmap(domain, addr, length);
	return 0;
}

int floor_fault(struct iommu_domain *domain, struct bench_floor_fault *fault)
{
	const unsigned long made = HMM_PFN_REQ_FAULT | HMM_PFN_REQ_WRITE;
	struct mm_struct *mm = current->mm;
	u64 began;
	int ret = 0;

	if (!IS_ALIGNED(fault->addr, HPAGE_PMD_SIZE) || !PAGE_ALIGNED(fault->made) ||
	    fault->made > HPAGE_PMD_SIZE)
		return -EINVAL;
	began = ktime_get_ns();
	if (mmap_read_lock_killable(mm))
		return -EINTR;
	if (fault->made)
		ret = fault_range(mm, fault->addr, fault->made, made);
	if (!ret)
		ret = fault_range(mm, fault->addr, HPAGE_PMD_SIZE, 0);
	mmap_read_unlock(mm);
	fault->out_ns = ktime_get_ns() - began;
	fault->out_present = 0;
	for (unsigned long i = 0; i < HPAGE_PMD_NR; i++)
		fault->out_present += !!(leaves[i] & HMM_PFN_VALID);
	return ret ?: map_pages(domain, fault->addr, fault->out_present, &fault->out_ns);
}
