// SPDX-License-Identifier: GPL-2.0
#include <linux/backing-dev.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/mmu_context.h>
#include <linux/pagemap.h>
#include "../helpers.h"

/*
 * Two things are decided here. How many pages an entry of a page table maps (pinmap_leaf_pages)
 * takes the page-table accessors, which are macros and static inlines throughout. Why a page cannot
 * be pinned (pinmap_explain) takes flags of VMAs, whose bindings differ from kernel to kernel, and
 * what GUP asks without exporting it.
 */

unsigned long pinmap_page_to_pfn(const struct page *page)
{
	return page_to_pfn(page);
}

struct page *pinmap_pfn_to_page(unsigned long pfn)
{
	return pfn_to_page(pfn);
}

void pinmap_put_page(struct page *page)
{
	put_page(page);
}

/*
 * Unpins pages and, if @dirty, marks them as dirty. Most are dirty already, since a program has
 * written them: then nothing has to be locked or marked.
 */
void pinmap_unpin_pages(struct page **pages, unsigned long count, bool dirty)
{
	unsigned long i = dirty ? 0 : count;

	while (i < count && folio_test_dirty(page_folio(pages[i])))
		i++;
	if (i < count)
		unpin_user_pages_dirty_lock(pages, count, true);
	else
		unpin_user_pages(pages, count);
}

void pinmap_unpin_page(unsigned long pfn, bool dirty)
{
	struct page *page = pfn_to_page(pfn);

	if (!dirty || folio_test_dirty(page_folio(page)))
		unpin_user_page(page);
	else
		unpin_user_pages_dirty_lock(&page, 1, true);
}

/*
 * Returns how many pages of the current task, from @addr on, one entry of the page table maps now
 * (for writing if @write): 1 unless the entry is a huge one. With @page, which must be pinned,
 * returns 1 unless the entry maps @addr to @page, and never more than the rest of the folio of
 * @page.
 *
 * Walks without a lock, by the rules of fast GUP: no page table is freed while interrupts are off,
 * and an entry that fast GUP would not take is not taken here.
 */
unsigned long pinmap_leaf_pages(unsigned long addr, struct page *page, bool write)
{
	unsigned long flags, inside, pages = 1;
	struct page *first = NULL;
	struct folio *folio;
	pgd_t pgd, *pgdp;
	p4d_t p4d, *p4dp;
	pud_t pud, *pudp;
	pmd_t pmd;

	if (!IS_ENABLED(CONFIG_HAVE_GUP_FAST) || addr >= TASK_SIZE_MAX)
		return 1;
	local_irq_save(flags);
	pgdp = pgd_offset(current->mm, addr);
	pgd = pgdp_get(pgdp);
	if (pgd_none(pgd))
		goto out;
	p4dp = p4d_offset_lockless(pgdp, pgd, addr);
	p4d = p4dp_get(p4dp);
	if (!p4d_present(p4d))
		goto out;
	pudp = pud_offset_lockless(p4dp, p4d, addr);
	pud = pudp_get(pudp);
	if (!pud_present(pud))
		goto out;
	if (pud_leaf(pud)) {
		if (!pud_access_permitted(pud, write) || pud_special(pud))
			goto out;
		pages = PUD_SIZE >> PAGE_SHIFT;
		first = pud_page(pud);
		goto out;
	}
	pmd = pmdp_get_lockless(pmd_offset_lockless(pudp, pud, addr));
	if (!pmd_present(pmd) || !pmd_leaf(pmd) || pmd_protnone(pmd) ||
	    !pmd_access_permitted(pmd, write) || pmd_special(pmd))
		goto out;
	pages = PMD_SIZE >> PAGE_SHIFT;
	first = pmd_page(pmd);
out:
	local_irq_restore(flags);
	if (!first)
		return 1;
	inside = (addr >> PAGE_SHIFT) & (pages - 1);
	if (!page)
		return pages - inside;
	if (first + inside != page)
		return 1;
	folio = page_folio(page);
	return min(pages - inside, folio_nr_pages(folio) - folio_page_idx(folio, page));
}

/* Adds @pins pins to @page, which is pinned: one for each of so many further pages of its folio. */
int pinmap_add_pins(struct page *page, unsigned int pins)
{
	return folio_add_pins(page_folio(page), pins);
}

/*
 * Whether a file system wants to know of each write to a shared mapping of its file, or writes back
 * what is dirty: GUP does not pin such memory for writing. Does what vma_needs_dirty_tracking()
 * does, which is not exported.
 */
static bool pinmap_tracks_writes(const struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_WRITE) || !(vma->vm_flags & VM_SHARED))
		return false;
	if (vma->vm_ops && (vma->vm_ops->page_mkwrite || vma->vm_ops->pfn_mkwrite))
		return true;
	return vma->vm_file && vma->vm_file->f_mapping &&
	       mapping_can_writeback(vma->vm_file->f_mapping);
}

/* Whether GUP lets the current task access @vma: a task may write where it cannot read. */
static bool pinmap_may_access(struct vm_area_struct *vma, bool write)
{
	vm_flags_t wanted = write ? VM_WRITE : VM_READ;

	if (!(vma->vm_flags & wanted) || (write && (vma->vm_flags & VM_SHADOW_STACK)))
		return false;
	return arch_vma_access_permitted(vma, write, false, false);
}

/*
 * Why GUP refuses pages of @vma: a value of enum pinmap_fail_reason. PINMAP_FAIL_FAULT if the area
 * gives no reason. The mmap lock is held.
 */
u32 pinmap_explain(struct vm_area_struct *vma, bool write)
{
	if (vma->vm_flags & (VM_IO | VM_PFNMAP))
		return PINMAP_FAIL_DEVICE;
	/* vma_is_secretmem() is not exported. */
	if (vma->vm_file && file_inode(vma->vm_file)->i_sb->s_magic == SECRETMEM_MAGIC)
		return PINMAP_FAIL_SECRET;
	if (!pinmap_may_access(vma, write))
		return PINMAP_FAIL_PERMISSION;
	if (write && pinmap_tracks_writes(vma))
		return PINMAP_FAIL_FILE;
	return PINMAP_FAIL_FAULT;
}
