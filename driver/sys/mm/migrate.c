// SPDX-License-Identifier: GPL-2.0
#include <linux/gfp.h>
#include <linux/hugetlb.h>
#include <linux/ksm.h>
#include <linux/mempolicy.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/pagemap.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/rmap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/userfaultfd_k.h>
#include "../helpers.h"

/*
 * A batch of pages that migrate together, of at most one block of 2 MiB. There are no bindings for
 * struct migrate_vma, nor for the bits of its entries.
 *
 * Pages move by address only, and one by one: neither MIGRATE_VMA_SELECT_COMPOUND nor
 * migrate_device_pfns() is asked for. Both have faults in the kernels that there are, which
 * docs/kernel-bugs.md describes. A migration entry for 2 MiB of a device is freed too early by
 * whoever zaps it; and without the mmap lock of a process that maps the pages, the reverse map may
 * be freed while it is walked. Neighbouring pages are copied as one all the same.
 */

#if IS_ENABLED(CONFIG_DEVICE_PRIVATE) && IS_ENABLED(CONFIG_HMM_MIRROR)

struct pinmap_batch {
	struct migrate_vma args;
	unsigned long source[PINMAP_BATCH_PAGES], target[PINMAP_BATCH_PAGES];
};

struct pinmap_batch *pinmap_batch_new(void)
{
	return kvmalloc(sizeof(struct pinmap_batch), GFP_KERNEL);
}

/*
 * Whether pages of @vma that are on a device may leave it, in the kernel's eyes. What a program
 * makes of the memory while they are there (mlock2(MLOCK_ONFAULT), MADV_MERGEABLE) is no reason
 * against it, or else it could keep them there for ever.
 */
static bool pinmap_can_leave(struct vm_area_struct *vma)
{
	return vma_is_anonymous(vma) && !is_vm_hugetlb_page(vma) && !(vma->vm_flags & VM_SPECIAL);
}

/*
 * Whether pages of @vma may be on a device: anonymous memory that nothing keeps in place.
 *
 * Not what KSM may merge. migrate_vma_setup() takes a page from the page table by itself, and it is
 * put back there by the reverse map. A page that KSM is about to merge has none for a moment, and
 * would never come back.
 *
 * Not where userfaultfd is told of each access: a device would reach a page in VRAM untold.
 */
static bool pinmap_can_migrate(struct vm_area_struct *vma)
{
	return pinmap_can_leave(vma) && !(vma->vm_flags & (VM_SHADOW_STACK | VM_LOCKED |
							   VM_MERGEABLE | VM_UFFD_RWP));
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
 * The linear address of @addr in @vma: where its anonymous memory was when it was first touched.
 * mremap() does not change it. For private mappings of /dev/zero, too, it is no offset in the file.
 */
unsigned long pinmap_linear_address(struct vm_area_struct *vma, unsigned long addr)
{
	return __linear_anon_page_index(vma, addr) << PAGE_SHIFT;
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

/* Whether user space lets @vma have huge pages where the system gives them. */
bool pinmap_may_be_huge(const struct vm_area_struct *vma)
{
	return !(vma->vm_flags & VM_NOHUGEPAGE);
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

/*
 * Collects the pages from @start to @end, in one block: takes them from all page tables, also those
 * of devices, and locks them. @sources are those of the system, those on the device of @owner, or
 * both. The mmap lock is held until pinmap_batch_end(). Huge pages of the system are split.
 *
 * Pages on a device are only tried to be locked, as they are all small. For a huge page of the
 * system that is mapped by small entries, migrate_vma_setup() sleeps until it has the lock.
 */
int pinmap_batch_begin(struct pinmap_batch *batch, struct vm_area_struct *vma, unsigned long start,
		       unsigned long end, unsigned int sources, void *owner,
		       struct page *fault_page)
{
	bool system = sources & PINMAP_PAGES_OF_SYSTEM, device = sources & PINMAP_PAGES_OF_DEVICE;

	/* migrate_vma_setup() writes the arrays, as far as there are pages. */
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
	return migrate_vma_setup(&batch->args);
}

/*
 * Whether the page of @entry may be another process's too, after fork(): it could be written to,
 * but is not as it is. Such a page stays where it is: to move it would give both processes a page
 * that the CPU brings home at once.
 */
static bool pinmap_may_be_shared(const struct pinmap_batch *batch, unsigned long entry)
{
	const struct vm_area_struct *vma = batch->args.vma;

	return (batch->args.flags & MIGRATE_VMA_SELECT_SYSTEM) && (vma->vm_flags & VM_WRITE) &&
	       !(entry & MIGRATE_PFN_WRITE);
}

/*
 * Returns what a place in the batch has. The kernel would let a page that KSM has merged move to a
 * device, where KSM would go on comparing it with others.
 */
struct pinmap_batch_item pinmap_batch_item(const struct pinmap_batch *batch, unsigned int index)
{
	unsigned long entry = batch->source[index];
	struct page *page = migrate_pfn_to_page(entry);
	struct pinmap_batch_item item = {
		.moves = (entry & MIGRATE_PFN_MIGRATE) &&
			 !(page && (folio_test_ksm(page_folio(page)) ||
				    pinmap_may_be_shared(batch, entry))),
		.empty = !page,
		.pfn = page ? page_to_pfn(page) : 0,
	};

	return item;
}

/* Has the page at @index move to @pfn, whose folio is locked and has one reference. */
void pinmap_batch_to(struct pinmap_batch *batch, unsigned int index, unsigned long pfn)
{
	batch->target[index] = migrate_pfn(pfn) | (batch->source[index] & MIGRATE_PFN_WRITE);
}

/* Puts the new pages in the place of the old ones, whose contents were copied. */
void pinmap_batch_commit(struct pinmap_batch *batch)
{
	migrate_vma_pages(&batch->args);
}

/* Lets go of all pages, and of those that did not move where they are. */
void pinmap_batch_end(struct pinmap_batch *batch)
{
	migrate_vma_finalize(&batch->args);
}

/*
 * Locks a new page for one that comes home. What the device wrote is nowhere else, so the new page
 * counts as modified.
 */
static void pinmap_begin_home(struct folio *folio)
{
	folio_lock(folio);
	folio_mark_dirty(folio);
}

/* Allocates a page of the system's memory, for @addr of @vma. It is locked. 0: there is none. */
unsigned long pinmap_alloc_home(struct vm_area_struct *vma, unsigned long addr)
{
	struct folio *folio = vma_alloc_folio(GFP_HIGHUSER_MOVABLE, 0, vma, addr);

	if (!folio)
		return 0;
	pinmap_begin_home(folio);
	return folio_pfn(folio);
}

/*
 * Allocates pages of the system's memory for a block of @vma, which are neighbours. Returns the
 * frame number of the first; each is locked, and a folio. 0: there are none without reclaim, or
 * @vma says on which nodes its pages are to be.
 */
unsigned long pinmap_alloc_neighbours(struct vm_area_struct *vma)
{
	struct page *first;

	if (vma_policy(vma))
		return 0;
	first = alloc_pages(GFP_TRANSHUGE_LIGHT & ~__GFP_COMP, HPAGE_PMD_ORDER);
	if (!first)
		return 0;
	split_page(first, HPAGE_PMD_ORDER);
	for (unsigned int i = 0; i < HPAGE_PMD_NR; i++)
		pinmap_begin_home(page_folio(first + i));
	return page_to_pfn(first);
}

/* Drops a page that was allocated or taken for a batch and is in none. */
void pinmap_drop_page(unsigned long pfn)
{
	struct folio *folio = page_folio(pfn_to_page(pfn));

	folio_unlock(folio);
	folio_put(folio);
}

/*
 * Where in the reverse map the page with frame number @pfn is, which is on a device. False: nobody
 * maps it at this moment. It is a hint: the page may be somebody else's right after that.
 *
 * An anon_vma is freed by RCU, and its memory stays that of anon_vmas for as long. Since the folio
 * was mapped after rcu_read_lock(), so long can the root be read. It is only compared.
 */
bool pinmap_rmap_of(unsigned long pfn, struct pinmap_rmap *rmap)
{
	struct folio *folio = page_folio(pfn_to_page(pfn));
	unsigned long mapping;
	bool found = false;

	rcu_read_lock();
	mapping = (unsigned long)READ_ONCE(folio->mapping);
	if ((mapping & FOLIO_MAPPING_FLAGS) == FOLIO_MAPPING_ANON && folio_mapped(folio)) {
		struct anon_vma *anon = (void *)(mapping - FOLIO_MAPPING_ANON);

		rmap->index = READ_ONCE(folio->index);
		rmap->root = READ_ONCE(anon->root);
		found = true;
	}
	rcu_read_unlock();
	return found;
}

/* With the mmap lock held: whether @vma may map what is at @rmap. */
static bool pinmap_may_map(const struct vm_area_struct *vma, const struct pinmap_rmap *rmap)
{
	const struct anon_vma *anon = READ_ONCE(vma->anon_vma);

	return anon && anon->root == rmap->root &&
	       rmap->index - vma_start_anon_pgoff(vma) < vma_pages(vma);
}

/*
 * With the mmap lock of @mm held, finds the first area that ends behind @from, that may map what is
 * at @rmap, and whose pages can leave a device. *@area is where it is, *@addr the address there.
 */
struct vm_area_struct *pinmap_find_rmap(struct mm_struct *mm, const struct pinmap_rmap *rmap,
					unsigned long from, struct pinmap_area *area,
					unsigned long *addr)
{
	struct vm_area_struct *vma;
	VMA_ITERATOR(vmi, mm, from);

	for_each_vma(vmi, vma) {
		if (!pinmap_may_map(vma, rmap) || !pinmap_can_leave(vma))
			continue;
		area->start = vma->vm_start;
		area->end = vma->vm_end;
		*addr = vma->vm_start + ((rmap->index - vma_start_anon_pgoff(vma)) << PAGE_SHIFT);
		return vma;
	}
	return NULL;
}

/*
 * Returns the memory of the next process behind number *@number, to be given back by mmput_async(),
 * or NULL. Of the threads of a process, the first counts unless it has ended.
 */
struct mm_struct *pinmap_next_process(int *number)
{
	struct mm_struct *mm = NULL;
	struct pid *pid;

	rcu_read_lock();
	while (!mm && (pid = find_ge_pid(*number + 1, &init_pid_ns))) {
		struct task_struct *task = pid_task(pid, PIDTYPE_PID);

		*number = pid_nr(pid);
		if (task && (thread_group_leader(task) || !READ_ONCE(task->group_leader->mm)))
			mm = get_task_mm(task);
	}
	rcu_read_unlock();
	return mm;
}

/* Describes a CPU fault on a device page. */
struct pinmap_home_fault pinmap_home_fault(struct vm_fault *vmf)
{
	struct pinmap_home_fault fault = {
		.vma = vmf->vma,
		.page = vmf->page,
		.pfn = page_to_pfn(vmf->page),
		.addr = vmf->address,
		.start = vmf->vma->vm_start,
		.end = vmf->vma->vm_end,
		/*
		 * Kernel threads with the memory of a program touch it for devices: for another
		 * one, or for this one if a process shares the page, so that it has to be copied.
		 * khugepaged has no memory of its own.
		 */
		.by_device = (current->flags & PF_KTHREAD) && current->mm == vmf->vma->vm_mm &&
			     PageAnonExclusive(vmf->page),
	};

	return fault;
}

bool pinmap_home_fault_is_in(const struct pinmap_home_fault *fault, const struct mm_struct *mm)
{
	return fault->vma->vm_mm == mm;
}

#endif
