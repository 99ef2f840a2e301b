// SPDX-License-Identifier: GPL-2.0
#include <linux/fs.h>
#include <linux/hmm.h>
#include <linux/hugetlb.h>
#include <linux/magic.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <linux/pagemap.h>
#include <linux/swap.h>
#include <linux/userfaultfd_k.h>
#include "../helpers.h"

/*
 * Reads the page table of a process, faults pages in, and tells why that failed. The last takes
 * flags of VMAs, whose bindings differ from kernel to kernel.
 */

#if IS_ENABLED(CONFIG_HMM_MIRROR)

/* As hmm.rs has them. */
static_assert(HMM_PFN_VALID == 1UL << 63 && HMM_PFN_WRITE == 1UL << 62);
static_assert(HMM_PFN_ERROR == 1UL << 61 && ~HMM_PFN_FLAGS == (1UL << 53) - 1);
static_assert(HMM_PFN_ORDER_SHIFT == 53);

/* vma_is_secretmem() is not exported. */
static bool pinmap_is_secret(const struct vm_area_struct *vma)
{
	return vma->vm_file && file_inode(vma->vm_file)->i_sb->s_magic == SECRETMEM_MAGIC;
}

/* Takes from @leaves what no device may have of @vma, though the page table has it. */
static void pinmap_censor_vma(const struct vm_area_struct *vma, unsigned long start,
			      unsigned long end, unsigned long *leaves)
{
	unsigned long at = max(vma->vm_start, start), last = min(vma->vm_end, end);
	bool secret = pinmap_is_secret(vma);

	if (!secret && !(vma->vm_flags & (VM_SHADOW_STACK | VM_MIXEDMAP | VM_UFFD_RWP)))
		return;
	for (; at < last; at += PAGE_SIZE) {
		unsigned long *leaf = &leaves[(at - start) >> PAGE_SHIFT];

		if (vma->vm_flags & VM_SHADOW_STACK)
			*leaf &= ~HMM_PFN_WRITE;
		if (secret || ((*leaf & HMM_PFN_VALID) &&
			       is_pci_p2pdma_page(hmm_pfn_to_page(*leaf))))
			*leaf = HMM_PFN_ERROR;
		/*
		 * HMM does not see whether userfaultfd is to be told of an access. Faulted in, it
		 * is.
		 */
		else if ((vma->vm_flags & VM_UFFD_RWP) && (*leaf & HMM_PFN_VALID) &&
			 is_device_private_page(hmm_pfn_to_page(*leaf)))
			*leaf = 0;
	}
}

/* Asks the same of all memory from @start to @end. */
static void pinmap_censor(struct mm_struct *mm, unsigned long start, unsigned long end,
			  unsigned long *leaves)
{
	struct vm_area_struct *vma;
	VMA_ITERATOR(vmi, mm, start);

	for_each_vma_range(vmi, vma, end) {
		pinmap_censor_vma(vma, start, end, leaves);
		/* Mostly one area has all of it, and the next one need not be found. */
		if (vma->vm_end >= end)
			break;
	}
}

/*
 * With the mmap lock of @mm held, reads its page table from @start on, for @pages pages: one of
 * @leaves for each. Faults nothing in. What is read is true only if an MMU notifier tells of no
 * change since. @owner has the device whose pages are told.
 *
 * HMM uses the interval notifier that it is given to stop early if the range changes. This one
 * never changes, because the caller asks its own notifier.
 *
 * HMM writes all @leaves, and keeps of each what says how it is mapped for DMA. Nobody says that
 * here: they are zeros at first, or what an earlier call has read.
 */
int pinmap_read_leaves_locked(struct mm_struct *mm, unsigned long start, unsigned int pages,
			      void *owner, unsigned long *leaves)
{
	struct mmu_interval_notifier constant = { .mm = mm };
	struct hmm_range range = {
		.notifier = &constant,
		.start = start,
		.end = start + pages * PAGE_SIZE,
		.hmm_pfns = leaves,
		/* pages on another device are not reported */
		.dev_private_owner = owner,
	};
	int ret;

	ret = hmm_range_fault(&range);
	if (!ret)
		pinmap_censor(mm, range.start, range.end, leaves);
	return ret;
}

/* Does the same without the lock. Only a fatal signal ends the wait for it. */
int pinmap_read_leaves(struct mm_struct *mm, unsigned long start, unsigned int pages, void *owner,
		       unsigned long *leaves)
{
	int ret = mmap_read_lock_killable(mm);

	if (ret)
		return ret;
	ret = pinmap_read_leaves_locked(mm, start, pages, owner, leaves);
	mmap_read_unlock(mm);
	return ret;
}

/*
 * Faults in the page at @addr, and up to @most behind it that would be alike: fewer, but not fewer
 * than @least, if others wait for the mmap lock. Returns how many of those behind. Unlike
 * hmm_range_fault(), fixup_user_fault() can be killed while it waits for a file or a userfaultfd.
 */
int pinmap_fault_in(struct mm_struct *mm, unsigned long addr, bool write, unsigned int least,
		    unsigned int most)
{
	unsigned int flags = FAULT_FLAG_REMOTE | (write ? FAULT_FLAG_WRITE : 0), done = 0;
	unsigned int ahead = flags | FAULT_FLAG_ALLOW_RETRY | FAULT_FLAG_KILLABLE;
	struct vm_area_struct *vma = NULL;
	bool unlocked = false, permitted;
	int ret;

	ret = mmap_read_lock_killable(mm);
	if (ret)
		return ret;
	ret = fixup_user_fault(mm, addr, flags, &unlocked);
	/*
	 * What the program would have from the page allocator is faulted in ahead. Files read ahead
	 * by themselves, and a userfaultfd is asked for nothing that was not touched.
	 */
	while (!ret && done < most && !unlocked && !fatal_signal_pending(current)) {
		if (done >= least && mmap_lock_is_contended(mm))
			break;
		cond_resched();
		addr += PAGE_SIZE;
		/* The lock was held all the time, so what an area permits has not changed. */
		permitted = vma && addr < vma->vm_end;
		if (!permitted)
			vma = vma_lookup(mm, addr);
		if (!vma || !vma_is_anonymous(vma) || userfaultfd_armed(vma) ||
		    (vma->vm_flags & (VM_IO | VM_PFNMAP)))
			break;
		if (!permitted) {
			if (fixup_user_fault(mm, addr, flags, &unlocked))
				break;
		} else {
			vm_fault_t fault = handle_mm_fault(vma, addr, ahead, NULL);

			/* The lock was given up. The page, if it is not there, can wait. */
			if (fault & (VM_FAULT_COMPLETED | VM_FAULT_RETRY))
				return done + !!(fault & VM_FAULT_COMPLETED);
			if (fault & VM_FAULT_ERROR)
				break;
		}
		done++;
	}
	mmap_read_unlock(mm);
	return ret ?: done;
}

/* Why a page of @vma cannot be faulted in, if it is not poisoned and there is memory. */
static u32 pinmap_explain_vma(struct vm_area_struct *vma, unsigned long addr)
{
	loff_t offset;

	if (userfaultfd_armed(vma))
		return PINMAP_FAULT_USERFAULTFD;
	if (!vma->vm_file)
		return PINMAP_FAULT_GUARD;
	offset = (loff_t)linear_page_index(vma, addr) << PAGE_SHIFT;
	if (offset >= i_size_read(file_inode(vma->vm_file)))
		return PINMAP_FAULT_FILE;
	if (is_vm_hugetlb_page(vma))
		return PINMAP_FAULT_MEMORY;
	return vma->vm_flags & VM_MAYBE_GUARD ? PINMAP_FAULT_GUARD : PINMAP_FAULT_FILE;
}

/* Says why an access is refused, as far as @vma alone tells. */
static u32 pinmap_explain_access(struct vm_area_struct *vma, bool write)
{
	vm_flags_t wanted = VM_READ | (write ? VM_WRITE : 0);

	if (vma->vm_flags & (VM_IO | VM_PFNMAP))
		return PINMAP_FAULT_DEVICE;
	if (pinmap_is_secret(vma))
		return PINMAP_FAULT_SECRET;
	/* HMM knows no memory that may be written and not read. */
	if ((vma->vm_flags & wanted) != wanted || (write && (vma->vm_flags & VM_SHADOW_STACK)))
		return PINMAP_FAULT_PERMISSION;
	return PINMAP_FAULT_NONE;
}

/*
 * Why the page at @addr cannot be had: a value of enum pinmap_fault_reason, and the area around it.
 * @error is what pinmap_fault_in() said, or 0 if the page table has something that no device may
 * have. PINMAP_FAULT_NONE: there is no reason, any more.
 */
u32 pinmap_explain_fault(struct mm_struct *mm, unsigned long addr, bool write, int error,
			 struct pinmap_area *area)
{
	unsigned int flags = FOLL_HWPOISON | (write ? FOLL_WRITE : 0);
	struct vm_area_struct *vma;
	struct page *page = NULL;
	int locked = 1;
	u32 reason;
	long ret;

	memset(area, 0, sizeof(*area));
	if (mmap_read_lock_killable(mm))
		return PINMAP_FAULT_NONE;
	vma = vma_lookup(mm, addr);
	if (!vma) {
		mmap_read_unlock(mm);
		return PINMAP_FAULT_HOLE;
	}
	area->start = vma->vm_start;
	area->end = vma->vm_end;
	area->flags = (vma->vm_flags & VM_READ ? PINMAP_VMA_READ : 0) |
		      (vma->vm_flags & VM_WRITE ? PINMAP_VMA_WRITE : 0) |
		      (vma->vm_flags & VM_EXEC ? PINMAP_VMA_EXEC : 0) |
		      (vma->vm_flags & VM_SHARED ? PINMAP_VMA_SHARED : 0);
	reason = pinmap_explain_access(vma, write);
	if (reason != PINMAP_FAULT_NONE) {
		/* The area says it. */
	} else if (!error) {
		if (vma->vm_flags & VM_MIXEDMAP)
			reason = PINMAP_FAULT_DEVICE;
	} else if (error == -ENOMEM) {
		reason = PINMAP_FAULT_MEMORY;
	} else {
		reason = pinmap_explain_vma(vma, addr);
		/* GUP tells, other than fixup_user_fault(), whether the page is poisoned. */
		if (reason != PINMAP_FAULT_USERFAULTFD) {
			ret = get_user_pages_remote(mm, addr, 1, flags, &page, &locked);
			if (ret == 1) {
				put_page(page);
				reason = PINMAP_FAULT_NONE;
			} else if (ret == -EHWPOISON) {
				reason = PINMAP_FAULT_POISON;
			}
		}
	}
	if (locked)
		mmap_read_unlock(mm);
	return reason;
}

#endif

void pinmap_hold_page(unsigned long pfn)
{
	get_page(pfn_to_page(pfn));
}

void pinmap_let_go_of_page(unsigned long pfn)
{
	put_page(pfn_to_page(pfn));
}

/* Whether the @count pages from @pfn on, of which the caller has the first, are of one folio. */
bool pinmap_is_one_folio(unsigned long pfn, unsigned long count)
{
	struct folio *folio = pfn_folio(pfn);

	return pfn - folio_pfn(folio) + count <= folio_nr_pages(folio);
}

/*
 * Whether a page counts as modified, so that a device can be let write to it without changing what
 * the kernel does with it. A page that is not may be dropped and read again.
 */
bool pinmap_is_modified(unsigned long pfn)
{
	struct folio *folio = pfn_folio(pfn);

	if (folio_test_dirty(folio))
		return true;
	return folio_test_anon(folio) && folio_test_swapbacked(folio) &&
	       !folio_test_swapcache(folio);
}

/* Whether both are pages of one folio. */
bool pinmap_is_same_folio(unsigned long a, unsigned long b)
{
	return pfn_folio(a) == pfn_folio(b);
}

void pinmap_mark_modified(unsigned long pfn)
{
	struct folio *folio = pfn_folio(pfn);

	if (!folio_test_dirty(folio))
		folio_mark_dirty(folio);
}
