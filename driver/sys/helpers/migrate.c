// SPDX-License-Identifier: GPL-2.0
#include <linux/gfp.h>
#include <linux/hugetlb.h>
#include <linux/ksm.h>
#include <linux/memcontrol.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/pagemap.h>
#include <linux/rmap.h>
#include <linux/slab.h>
#include <linux/userfaultfd_k.h>
#include "helpers.h"

/*
 * A batch of pages that migrate together, of at most one block of 2 MiB. There are no bindings for
 * struct migrate_vma, nor for the bits of its entries.
 */

#if IS_ENABLED(CONFIG_DEVICE_PRIVATE) && IS_ENABLED(CONFIG_HMM_MIRROR)

struct pinmap_batch {
	struct migrate_vma args;
	unsigned long source[PINMAP_BATCH_PAGES], target[PINMAP_BATCH_PAGES];
	unsigned long count;
	/* A huge page on a device, which is collected, and has GUARD more references. */
	struct folio *guarded;
};

/*
 * The kernel has a fault in zap_huge_pmd(). When it clears a migration entry for 2 MiB, it looks at
 * the folio: if that is on a device it takes the entry for one of the device, and drops a mapping
 * and a reference of the folio that the entry no longer has. Whoever frees memory while a huge page
 * of it leaves its device, and be it a forked child that ends, so frees the folio too early; then
 * it is freed twice, and CPU faults find it gone. So such a folio has more references as long as it
 * is collected, and what was dropped too much is put back. It has none of them while
 * migrate_vma_pages() runs, which compares their number.
 */
enum { GUARD = 1 << 16 };

/* What the core adds to the number of mapped pages for a mapping of all (mm/internal.h). */
enum { ALL_MAPPED = 0x800000 };

/* Guards the huge page on a device that @batch has collected, if there is one. */
static void pinmap_guard(struct pinmap_batch *batch)
{
	unsigned long entry = batch->source[0], wanted = MIGRATE_PFN_MIGRATE | MIGRATE_PFN_COMPOUND;
	struct page *page = migrate_pfn_to_page(entry);

	if (!page || (entry & wanted) != wanted || !is_device_private_page(page))
		return;
	batch->guarded = page_folio(page);
	folio_ref_add(batch->guarded, GUARD);
}

/* Puts back what was dropped too much of a guarded folio that nothing maps. */
static void pinmap_mend(struct folio *folio)
{
	int missing = -folio_mapcount(folio);

	if (missing <= 0)
		return;
	atomic_add(missing, &folio->_large_mapcount);
	atomic_add(missing, &folio->_entire_mapcount);
	atomic_add(missing * ALL_MAPPED, &folio->_nr_pages_mapped);
	folio_ref_add(folio, missing);
}

struct pinmap_batch *pinmap_batch_new(void)
{
	return kvmalloc(sizeof(struct pinmap_batch), GFP_KERNEL);
}

void pinmap_batch_free(struct pinmap_batch *batch)
{
	kvfree(batch);
}

/*
 * Whether pages of @vma may be on a device: anonymous memory that nothing keeps in place.
 *
 * Not what KSM may merge. migrate_vma_setup() takes a page from the page table by itself, and it is
 * put back there by the reverse map. A page that KSM is about to merge has none for a moment, and
 * would never come back.
 */
static bool pinmap_can_migrate(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) && !is_vm_hugetlb_page(vma) &&
	       !(vma->vm_flags & (VM_SPECIAL | VM_SHADOW_STACK | VM_LOCKED | VM_MERGEABLE));
}

/*
 * With the mmap lock of @mm held, finds the area at @addr, or the hole. Returns its end, but no
 * more than @end. *@vma is NULL if its pages cannot migrate, or if it is a hole.
 */
unsigned long pinmap_migratable(struct mm_struct *mm, unsigned long addr, unsigned long end,
				struct vm_area_struct **vma)
{
	struct vm_area_struct *found = find_vma(mm, addr);

	*vma = NULL;
	if (!found || found->vm_start > addr)
		return found ? min(found->vm_start, end) : end;
	if (pinmap_can_migrate(found))
		*vma = found;
	return min(found->vm_end, end);
}

/*
 * With the mmap lock of @mm held, finds the area of @addr. *@vma is NULL if its pages cannot
 * migrate.
 */
bool pinmap_area_at(struct mm_struct *mm, unsigned long addr, struct pinmap_area *area,
		    struct vm_area_struct **vma)
{
	struct vm_area_struct *found = vma_lookup(mm, addr);

	*vma = NULL;
	if (!found)
		return false;
	area->start = found->vm_start;
	area->end = found->vm_end;
	if (pinmap_can_migrate(found))
		*vma = found;
	return true;
}

/* With the mmap lock of @mm held, finds the first area that ends behind @from. */
bool pinmap_next_area(struct mm_struct *mm, unsigned long from, struct pinmap_area *area)
{
	struct vm_area_struct *found = find_vma(mm, from);

	if (!found)
		return false;
	area->start = found->vm_start;
	area->end = found->vm_end;
	return true;
}

/*
 * The linear address of @addr in @vma, which has anonymous memory: where it was when it was first
 * touched. mremap() does not change it.
 */
unsigned long pinmap_linear_address(struct vm_area_struct *vma, unsigned long addr)
{
	return linear_page_index(vma, addr) << PAGE_SHIFT;
}

/*
 * Whether @vma may be written to, and nothing in it is shared since fork(): it is in the process
 * that made the memory, and that has no children any more. With the mmap lock held.
 */
bool pinmap_is_unshared(struct vm_area_struct *vma)
{
	struct anon_vma *anon = vma->anon_vma;

	/* The first of a family counts itself among its children. */
	return (vma->vm_flags & VM_WRITE) && anon && anon->root == anon &&
	       READ_ONCE(anon->num_children) <= 1;
}

/* Whether @vma is of @mm, which is only compared. */
bool pinmap_area_is_in(const struct vm_area_struct *vma, const struct mm_struct *mm)
{
	return vma->vm_mm == mm;
}

bool pinmap_asks_user_space(struct vm_area_struct *vma)
{
	return userfaultfd_armed(vma);
}

/*
 * With the mmap lock of @mm held, finds the first area of anonymous memory that ends behind @from,
 * and that mremap() has moved away from its linear address, which is @linear.
 */
bool pinmap_next_moved(struct mm_struct *mm, unsigned long from, struct pinmap_area *area,
		       u64 *linear)
{
	struct vm_area_struct *vma;
	VMA_ITERATOR(vmi, mm, from);

	for_each_vma(vmi, vma) {
		*linear = pinmap_linear_address(vma, vma->vm_start);
		if (!vma_is_anonymous(vma) || *linear == vma->vm_start)
			continue;
		area->start = vma->vm_start;
		area->end = vma->vm_end;
		return true;
	}
	return false;
}

int pinmap_mmap_lock_killable(struct mm_struct *mm)
{
	return mmap_read_lock_killable(mm);
}

bool pinmap_mmap_is_contended(struct mm_struct *mm)
{
	return mmap_lock_is_contended(mm);
}

void pinmap_mmap_unlock(struct mm_struct *mm)
{
	mmap_read_unlock(mm);
}

/*
 * Collects the pages from @start to @end, in one block: takes them from all page tables, also those
 * of devices, and locks them. @sources are those of the system, those on the device of @owner, or
 * both. The mmap lock is held until pinmap_batch_end().
 */
int pinmap_batch_begin(struct pinmap_batch *batch, struct vm_area_struct *vma, unsigned long start,
		       unsigned long end, unsigned int sources, void *owner,
		       struct page *fault_page)
{
	bool system = sources & PINMAP_PAGES_OF_SYSTEM, device = sources & PINMAP_PAGES_OF_DEVICE;
	int ret;

	/* migrate_vma_setup() writes the arrays, as far as there are pages. */
	batch->guarded = NULL;
	batch->count = (end - start) >> PAGE_SHIFT;
	batch->args = (struct migrate_vma){
		.vma = vma,
		.src = batch->source,
		.dst = batch->target,
		.start = start,
		.end = end,
		.pgmap_owner = owner,
		.flags = (system ? MIGRATE_VMA_SELECT_SYSTEM : 0) |
			 (device ? MIGRATE_VMA_SELECT_DEVICE_PRIVATE : 0),
		.fault_page = fault_page,
	};
	/* A program that wants no huge pages has none on the device either. */
	if (end - start == HPAGE_PMD_SIZE && IS_ALIGNED(start, HPAGE_PMD_SIZE) &&
	    (!system || !(vma->vm_flags & VM_NOHUGEPAGE)))
		batch->args.flags |= MIGRATE_VMA_SELECT_COMPOUND;
	ret = migrate_vma_setup(&batch->args);
	if (!ret)
		pinmap_guard(batch);
	return ret;
}

/*
 * Whether a device page belongs to no address and to no cgroup: it was taken for memory and did not
 * become it, or its memory has moved elsewhere. The last reference of such a page goes right after
 * its lock, and somebody may look at it in between.
 */
static bool pinmap_is_unused(struct folio *folio)
{
#ifdef CONFIG_MEMCG
	if (!mem_cgroup_disabled() && !folio_memcg_charged(folio))
		return true;
#endif
	return !folio_test_anon(folio);
}

/* Leaves unused pages where they are. */
static void pinmap_leave_unused(struct pinmap_batch *batch)
{
	for (unsigned int i = 0; i < batch->count; i++) {
		struct page *page = migrate_pfn_to_page(batch->source[i]);

		if (page && pinmap_is_unused(page_folio(page)))
			batch->source[i] &= ~MIGRATE_PFN_MIGRATE;
	}
}

/*
 * The same for device pages wherever they are mapped: @count small folios, or if the first is a
 * large one, that one.
 */
int pinmap_batch_begin_pages(struct pinmap_batch *batch, const unsigned long *pfns,
			     unsigned int count)
{
	struct folio *folio = page_folio(pfn_to_page(*pfns));
	bool is_large = folio_test_large(folio), has = is_large && folio_try_get(folio);
	int ret;

	memset(batch, 0, sizeof(*batch));
	memcpy(batch->source, pfns, count * sizeof(*pfns));
	/* the rest of a large folio is cleared in the array */
	batch->count = is_large ? HPAGE_PMD_NR : count;
	/* One more reference does not keep pages on a device from being collected. */
	ret = migrate_device_pfns(batch->source, batch->count);
	if (!ret) {
		pinmap_leave_unused(batch);
		pinmap_guard(batch);
	}
	if (has)
		folio_put(folio);
	return ret;
}

unsigned int pinmap_batch_count(const struct pinmap_batch *batch)
{
	return batch->count;
}

/*
 * Whether the page of @entry may be another process's too, after fork(): it could be written to,
 * but is not as it is. Such a page stays where it is. To move it would give both processes a page
 * that the CPU brings home at once; and for a huge one a check of the kernel's (CONFIG_DEBUG_VM,
 * remove_migration_pmd()) takes its entry for one of memory, and warns.
 */
static bool pinmap_may_be_shared(const struct pinmap_batch *batch, unsigned long entry)
{
	const struct vm_area_struct *vma = batch->args.vma;

	return (batch->args.flags & MIGRATE_VMA_SELECT_SYSTEM) && vma &&
	       (vma->vm_flags & VM_WRITE) && !(entry & MIGRATE_PFN_WRITE);
}

/*
 * What a place in the batch has. The kernel would let a page that KSM has merged move to a device,
 * where KSM would go on comparing it with others.
 */
struct pinmap_batch_item pinmap_batch_item(const struct pinmap_batch *batch, unsigned int index)
{
	unsigned long entry = batch->source[index];
	struct page *page = migrate_pfn_to_page(entry);
	struct pinmap_batch_item item = {
		.moves = (entry & MIGRATE_PFN_MIGRATE) &&
			 !(page && (folio_test_ksm(page_folio(page)) ||
				    pinmap_may_be_shared(batch, entry))),
		.huge = entry & MIGRATE_PFN_COMPOUND,
		.write = entry & MIGRATE_PFN_WRITE,
		.empty = !page,
		.pfn = page ? page_to_pfn(page) : 0,
	};

	return item;
}

/* Has the page at @index move to @pfn, whose folio is locked and has one reference. */
void pinmap_batch_to(struct pinmap_batch *batch, unsigned int index, unsigned long pfn, bool huge)
{
	unsigned long write = batch->source[index] & MIGRATE_PFN_WRITE;

	batch->target[index] = migrate_pfn(pfn) | write | (huge ? MIGRATE_PFN_COMPOUND : 0);
}

/* Puts the new pages in the place of the old ones, whose contents were copied. */
void pinmap_batch_commit(struct pinmap_batch *batch)
{
	/* The number of references is compared. */
	if (batch->guarded) {
		pinmap_mend(batch->guarded);
		folio_ref_sub(batch->guarded, GUARD);
	}
	if (batch->args.vma)
		migrate_vma_pages(&batch->args);
	else
		migrate_device_pages(batch->source, batch->target, batch->count);
	/* One that was split has entries for single pages, for which all is well. */
	if (batch->guarded && !folio_test_large(batch->guarded))
		batch->guarded = NULL;
	if (batch->guarded)
		folio_ref_add(batch->guarded, GUARD);
}

/* Lets go of all pages, and of those that did not move where they are. */
void pinmap_batch_end(struct pinmap_batch *batch)
{
	struct folio *folio = batch->guarded;

	if (folio)
		pinmap_mend(folio);
	if (batch->args.vma)
		migrate_vma_finalize(&batch->args);
	else
		migrate_device_finalize(batch->source, batch->target, batch->count);
	if (folio) {
		pinmap_mend(folio);
		folio_put_refs(folio, GUARD);
	}
}

/*
 * Allocates a folio of the system's memory, for @addr of @vma if that is known. It is locked, and
 * counts as modified: what a device wrote to the page is nowhere else. 0: there is none.
 */
unsigned long pinmap_alloc_home(struct vm_area_struct *vma, unsigned long addr, bool huge)
{
	gfp_t gfp = huge ? GFP_TRANSHUGE : GFP_HIGHUSER_MOVABLE;
	unsigned int order = huge ? HPAGE_PMD_ORDER : 0;
	struct folio *folio;

	/* Without an area a huge page cannot be split, and has to come home as one. */
	if (vma)
		folio = vma_alloc_folio(gfp, order, vma, addr);
	else
		folio = folio_alloc(huge ? gfp | __GFP_RETRY_MAYFAIL : gfp, order);
	if (!folio)
		return 0;
	folio_lock(folio);
	folio_mark_dirty(folio);
	return folio_pfn(folio);
}

/* Drops a page that was allocated or taken for a batch and is in none. */
void pinmap_drop_page(unsigned long pfn)
{
	struct folio *folio = page_folio(pfn_to_page(pfn));

	folio_unlock(folio);
	folio_put(folio);
}

/*
 * What a CPU fault on a device page is about.
 *
 * A huge page whose mapping is split is split itself when pages of it are collected. The fault's
 * lock is on the whole before, and on the page that was touched afterwards, but the kernel goes on
 * to take the first page for locked (migrate_vma_collect_pmd() does not look again for the folio of
 * the fault), and unlocks it in the end. So the page that was touched is collected alone then,
 * unless it is the first: it is split off, and moves when it is touched again.
 */
struct pinmap_home_fault pinmap_home_fault(struct vm_fault *vmf)
{
	struct folio *folio = page_folio(vmf->page);
	struct pinmap_home_fault fault = {
		.vma = vmf->vma,
		.page = vmf->page,
		.addr = vmf->address,
		.start = vmf->vma->vm_start,
		.end = vmf->vma->vm_end,
		/*
		 * Kernel threads touch memory of programs for devices: for another one, or for this
		 * one if a process shares the page, so that it has to be copied.
		 */
		.by_device = (current->flags & PF_KTHREAD) && PageAnonExclusive(vmf->page),
		/* A huge folio may also be mapped by entries for single pages. */
		.huge = !vmf->pte && folio_test_large(folio),
		.alone = vmf->pte && vmf->page != folio_page(folio, 0),
	};

	return fault;
}

bool pinmap_home_fault_is_in(const struct pinmap_home_fault *fault, const struct mm_struct *mm)
{
	return fault->vma->vm_mm == mm;
}

#endif
