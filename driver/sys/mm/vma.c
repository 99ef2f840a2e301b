// SPDX-License-Identifier: GPL-2.0
#include <linux/huge_mm.h>
#include <linux/mm.h>
#include "../helpers.h"

void pinmap_vma_of_device(struct vm_area_struct *vma, bool write_combine)
{
	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vm_flags_clear(vma, VM_MAYEXEC);
	vma->vm_page_prot = write_combine ? pgprot_writecombine(vma->vm_page_prot) :
					    pgprot_noncached(vma->vm_page_prot);
}

/*
 * Makes @vma an area for P2PDMA pages of a device, of which GUP takes references where the caller
 * can do with such pages. VM_MIXEDMAP says that they are no memory of the system's. All are small
 * ones, so that no huge mapping is split.
 */
void pinmap_vma_of_p2pdma(struct vm_area_struct *vma)
{
	vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vm_flags_clear(vma, VM_MAYEXEC);
	vma->vm_page_prot = pgprot_writecombine(vma->vm_page_prot);
}

/*
 * Makes @vma an area for pages of a file that does not know the area. No page may count as mapped
 * here: truncation unmaps a page everywhere that the file knows, and then expects it to be mapped
 * nowhere.
 */
void pinmap_vma_of_file(struct vm_area_struct *vma)
{
	vm_flags_set(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vm_flags_clear(vma, VM_MAYEXEC);
}

/*
 * Makes @vma an area for pages that the driver allocated. It sets neither VM_MIXEDMAP nor
 * VM_PFNMAP: these are struct pages, of which GUP may take references; and with either flag,
 * splitting a huge mapping leaks it.
 */
void pinmap_vma_of_pages(struct vm_area_struct *vma, bool write_combine)
{
	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vm_flags_clear(vma, VM_MAYEXEC);
	if (IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE))
		vm_flags_set(vma, VM_HUGEPAGE);
	if (write_combine)
		vma->vm_page_prot = pgprot_writecombine(vma->vm_page_prot);
}

void pinmap_vma_forbid_writing(struct vm_area_struct *vma)
{
	vm_flags_clear(vma, VM_MAYWRITE);
}

vm_fault_t pinmap_insert_page(struct vm_fault *vmf, struct page *page)
{
	return vmf_insert_page_mkwrite(vmf, page, vmf->flags & FAULT_FLAG_WRITE);
}

/* Maps a page frame that is no memory of the system's; a P2PDMA page with a reference. */
vm_fault_t pinmap_insert_frame(struct vm_fault *vmf, unsigned long pfn)
{
	if (vmf->vma->vm_flags & VM_MIXEDMAP)
		return pinmap_insert_page(vmf, pfn_to_page(pfn));
	return vmf_insert_pfn(vmf->vma, vmf->address, pfn);
}

/*
 * Whether a huge page of @order around the fault lies in the area; @offset becomes its place in the
 * file.
 */
bool pinmap_huge_range(const struct vm_fault *vmf, unsigned int order, u64 *offset)
{
	const struct vm_area_struct *vma = vmf->vma;
	unsigned long start = vmf->address & PMD_MASK;

	if (order != PMD_ORDER || start < vma->vm_start || vma->vm_end - start < PMD_SIZE)
		return false;
	*offset = ((u64)vma->vm_pgoff << PAGE_SHIFT) + (start - vma->vm_start);
	return true;
}

/* Maps a folio of the order of the fault; @page is its first page. */
vm_fault_t pinmap_insert_huge(struct vm_fault *vmf, struct page *page)
{
#ifdef CONFIG_TRANSPARENT_HUGEPAGE
	return vmf_insert_folio_pmd(vmf, page_folio(page), vmf->flags & FAULT_FLAG_WRITE);
#else
	return VM_FAULT_FALLBACK;
#endif
}

/* Maps device memory of the order of the fault; @pfn is its first page frame. */
vm_fault_t pinmap_insert_huge_pfn(struct vm_fault *vmf, unsigned long pfn)
{
#ifdef CONFIG_TRANSPARENT_HUGEPAGE
	return vmf_insert_pfn_pmd(vmf, pfn, vmf->flags & FAULT_FLAG_WRITE);
#else
	return VM_FAULT_FALLBACK;
#endif
}
