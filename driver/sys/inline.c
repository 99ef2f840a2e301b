// SPDX-License-Identifier: GPL-2.0
/* See inline.h. Nothing is decided here that could be decided in Rust. */
#include <linux/backing-dev.h>
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/dma-resv.h>
#include <linux/eventfd.h>
#include <linux/fcntl.h>
#include <linux/fs.h>
#include <linux/idr.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/kthread.h>
#include <linux/magic.h>
#include <linux/memcontrol.h>
#include <linux/mmu_context.h>
#include <linux/pagemap.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/rt.h>
#include <linux/sched/signal.h>
#include <linux/user_namespace.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/wait_bit.h>
#include <linux/shmem_fs.h>
#include <linux/srcu.h>
#include <linux/hugetlb.h>
#ifdef CONFIG_X86
#include <asm/cacheflush.h>
#include <asm/set_memory.h>
#endif
#include "inline.h"

unsigned long pinmap_page_to_pfn(const struct page *page)
{
	return page_to_pfn(page);
}

struct page *pinmap_pfn_to_page(unsigned long pfn)
{
	return pfn_to_page(pfn);
}

bool pinmap_page_is_anon(struct page *page)
{
	return folio_test_anon(page_folio(page));
}

bool pinmap_page_trylock(struct page *page)
{
	return folio_trylock(page_folio(page));
}

void pinmap_page_unlock(struct page *page)
{
	folio_unlock(page_folio(page));
}

/*
 * Whether a locked page, which is not anonymous, is a page of a file and stays one. Truncation and hole
 * punching hold the inode's lock from before they tell MMU notifiers until after they have taken the page
 * out of the file: as long as somebody has it, that is not known. The page's lock keeps the page in the
 * file, which keeps the inode, so no reference is needed that could be the last one.
 */
u32 pinmap_page_in_file(struct page *page)
{
	struct address_space *mapping = folio_mapping(page_folio(page));

	/* One that the memory has lost stays in its file, where reading it is an error; here it does not count. */
	if (!mapping || !mapping->host || is_page_hwpoison(page))
		return PINMAP_IN_NO_FILE;
	if (!inode_trylock_shared(mapping->host))
		return PINMAP_FILE_BUSY;
	inode_unlock_shared(mapping->host);
	return PINMAP_IN_ITS_FILE;
}

void pinmap_put_page(struct page *page)
{
	put_page(page);
}

/*
 * How many pages of the current task, from @addr on, one entry of the page table maps now, for
 * writing if @write: 1 where that is not a huge one. With @page, which must be pinned: 1 unless that
 * is what it maps @addr to; and never more than the rest of the folio of @page.
 *
 * Without a lock and by the rules of fast GUP: no page table is freed while interrupts are off, and an
 * entry that it would not take is not taken here.
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

/* Adds @pins to a pin of @page, for that many more pages of its folio. */
int pinmap_add_pins(struct page *page, unsigned int pins)
{
	return folio_add_pins(page_folio(page), pins);
}

/*
 * Whether the file system wants to know of each write to a shared mapping of its file, or writes back
 * what is dirty: GUP does not pin such memory for writing. As vma_needs_dirty_tracking(), which is not
 * exported.
 */
static bool pinmap_tracks_writes(const struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_WRITE) || !(vma->vm_flags & VM_SHARED))
		return false;
	if (vma->vm_ops && (vma->vm_ops->page_mkwrite || vma->vm_ops->pfn_mkwrite))
		return true;
	return vma->vm_file && vma->vm_file->f_mapping && mapping_can_writeback(vma->vm_file->f_mapping);
}

/* Whether the current task may access its area so, as GUP has it: who is to write need not be able to read. */
static bool pinmap_may_access(struct vm_area_struct *vma, bool write)
{
	vm_flags_t wanted = write ? VM_WRITE : VM_READ;

	if (!(vma->vm_flags & wanted) || (write && (vma->vm_flags & VM_SHADOW_STACK)))
		return false;
	return arch_vma_access_permitted(vma, write, false, false);
}

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

u32 pinmap_survey(unsigned long start, unsigned long last, bool write, u64 *addr)
{
	struct mm_struct *mm = current->mm;
	u32 reason = PINMAP_FAIL_NONE;

	*addr = start;
	mmap_read_lock(mm);
	while (*addr <= last) {
		struct vm_area_struct *vma = vma_lookup(mm, *addr);

		reason = vma ? pinmap_explain(vma, write) : PINMAP_FAIL_HOLE;
		/* Which is what is left when nothing is seen from here. */
		if (reason != PINMAP_FAIL_FAULT)
			break;
		reason = PINMAP_FAIL_NONE;
		*addr = vma->vm_end;
		cond_resched();
	}
	mmap_read_unlock(mm);
	return reason;
}

static unsigned int pinmap_seals(struct file *file)
{
#ifdef CONFIG_HUGETLBFS
	if (is_file_hugepages(file))
		return HUGETLBFS_I(file_inode(file))->seals;
#endif
	return SHMEM_I(file_inode(file))->seals;
}

/* Also says that the file is mapped for writing, if @write: then nobody can seal it against that. */
int pinmap_memfd_begin(struct file *file, bool write)
{
	int ret;

	if (!shmem_file(file) && !is_file_hugepages(file))
		return -EINVAL;
	if (!(file->f_mode & FMODE_READ) || (write && !(file->f_mode & FMODE_WRITE)))
		return -EACCES;
	if (!write)
		return 0;
	ret = mapping_map_writable(file->f_mapping);
	if (ret)
		return ret;
	if (pinmap_seals(file) & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) {
		mapping_unmap_writable(file->f_mapping);
		return -EPERM;
	}
	return 0;
}

/* Whether there may be no new way to write to it. */
bool pinmap_memfd_is_sealed(struct file *file)
{
	return pinmap_seals(file) & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE);
}

void pinmap_memfd_end(struct file *file)
{
	mapping_unmap_writable(file->f_mapping);
}

u64 pinmap_file_size(const struct file *file)
{
	return i_size_read(file_inode(file));
}

/* Bytes in the largest folios that the file can have: a power of two. */
u64 pinmap_memfd_folio_size(struct file *file)
{
	return is_file_hugepages(file) ? huge_page_size(hstate_file(file)) : PAGE_SIZE << MAX_PAGECACHE_ORDER;
}

/*
 * Whether a pinned @folio of @mapping can be shown to anybody: 0, or an errno. One that is not up to date,
 * by fallocate() or because somebody's fault has only just added it, still holds what its page held before,
 * and will be cleared by whoever comes next. So it is cleared here, under the lock that the file clears it
 * under. -EAGAIN: it has left the file, and another will be there.
 */
static int pinmap_make_uptodate(struct address_space *mapping, struct folio *folio)
{
	long i, pages = folio_nr_pages(folio);
	int ret;

	if (folio_contain_hwpoisoned_page(folio))
		return -EHWPOISON;
	if (folio_test_uptodate(folio))
		return 0;
	ret = folio_lock_killable(folio);
	if (ret)
		return ret;
	if (folio->mapping != mapping) {
		ret = -EAGAIN;
	} else if (!folio_test_uptodate(folio)) {
		for (i = 0; i < pages; i++) {
			clear_highpage(folio_page(folio, i));
			cond_resched();
		}
		flush_dcache_folio(folio);
		folio_mark_uptodate(folio);
	}
	folio_unlock(folio);
	return ret;
}

/*
 * @inside: pages before @start in the first folio. -EAGAIN: to be tried again, as long as it is wanted.
 * -EHWPOISON: of the folio that begins @inside pages behind @start, or around it.
 */
long pinmap_memfd_pin(struct file *file, u64 start, u64 last, struct folio **folios, unsigned int room,
		      u64 *inside)
{
	unsigned long before = READ_ONCE(file->f_mapping->nrpages);
	pgoff_t offset = 0;
	long i, ret = memfd_pin_folios(file, start, last, folios, room, &offset);
	s64 behind;

	*inside = offset >> PAGE_SHIFT;
	behind = -*inside;
	/* Of hugetlbfs it says so also when somebody's fault was quicker and took what was reserved. */
	if (ret == -ENOMEM && READ_ONCE(file->f_mapping->nrpages) > before)
		return -EAGAIN;
	for (i = 0; i < ret; i++) {
		int error = pinmap_make_uptodate(file->f_mapping, folios[i]);

		if (error) {
			*inside = max(behind, 0);
			unpin_folios(folios, ret);
			return error;
		}
		behind += folio_nr_pages(folios[i]);
	}
	return ret;
}

unsigned long pinmap_folio_pfn(const struct folio *folio)
{
	return folio_pfn(folio);
}

unsigned long pinmap_folio_pages(const struct folio *folio)
{
	return folio_nr_pages(folio);
}

/* Returns the first page behind the folio. */
unsigned long pinmap_unpin_folio_of(unsigned long pfn, bool dirty)
{
	struct folio *folio = page_folio(pfn_to_page(pfn));
	unsigned long end = folio_pfn(folio) + folio_nr_pages(folio);

	if (dirty && !folio_test_dirty(folio))
		folio_mark_dirty_lock(folio);
	unpin_folio(folio);
	return end;
}

/* One that user space would see: task work, as io_uring's, is none. */
bool pinmap_signal_pending(void)
{
	return task_sigpending(current);
}

bool pinmap_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}

void pinmap_clear_and_wake(u32 *word)
{
	store_release_wake_up(word, 0);
}

/* Waits until it is; -ERESTARTSYS if a fatal signal comes first. */
int pinmap_wait_for_zero(u32 *word)
{
	return wait_var_event_killable(word, !smp_load_acquire(word));
}

void pinmap_cond_resched(void)
{
	cond_resched();
}

/* For lockdep: nothing without it. */
void pinmap_reclaim_begin(void)
{
	fs_reclaim_acquire(GFP_KERNEL);
}

void pinmap_reclaim_end(void)
{
	fs_reclaim_release(GFP_KERNEL);
}

static struct workqueue_struct *pinmap_queue_of[PINMAP_QUEUES];

/*
 * None of the system's: user space decides how much work there is and, where it waits for something, for how
 * long, and everybody else's would wait behind it.
 */
int pinmap_queues_begin(void)
{
	static const struct {
		const char *name;
		int max_active;
	} queues[PINMAP_QUEUES] = {
		[PINMAP_QUEUE_WATCH] = { "pinmap_watch", 4 },
		[PINMAP_QUEUE_END] = { "pinmap_end", 64 },
		[PINMAP_QUEUE_MAP] = { "pinmap_map", 0 },
		[PINMAP_QUEUE_GUARD] = { "pinmap_guard", 0 },
	};

	for (u32 i = 0; i < PINMAP_QUEUES; i++) {
		pinmap_queue_of[i] = alloc_workqueue("%s", WQ_UNBOUND, queues[i].max_active, queues[i].name);
		if (!pinmap_queue_of[i]) {
			pinmap_queues_end();
			return -ENOMEM;
		}
	}
	return 0;
}

/* Runs what is queued. */
void pinmap_queues_end(void)
{
	for (u32 i = 0; i < PINMAP_QUEUES; i++) {
		if (pinmap_queue_of[i])
			destroy_workqueue(pinmap_queue_of[i]);
		pinmap_queue_of[i] = NULL;
	}
}

struct workqueue_struct *pinmap_queue(u32 which)
{
	return pinmap_queue_of[which];
}

void pinmap_gate_init(struct wait_queue_head *queue)
{
	init_waitqueue_head(queue);
}

void pinmap_gate_tell(struct wait_queue_head *queue)
{
	/* Its barrier pairs with that of whoever waits. */
	if (wq_has_sleeper(queue))
		wake_up_all(queue);
}

/* Fails only if it is @killable and the current task is killed. */
int pinmap_gate_wait(struct wait_queue_head *queue, bool (*done)(void *data), void *data, bool killable)
{
	if (killable)
		return wait_event_killable(*queue, done(data)) ? -EINTR : 0;
	wait_event(*queue, done(data));
	return 0;
}

struct pinmap_beside {
	struct work_struct work;
	struct mem_cgroup *memcg;
	void (*run)(void *data);
	void *data;
};

static void pinmap_run_beside(struct work_struct *work)
{
	struct pinmap_beside *beside = container_of(work, struct pinmap_beside, work);
	struct mem_cgroup *old = set_active_memcg(beside->memcg);

	beside->run(beside->data);
	set_active_memcg(old);
}

/* Whoever allocates for another task cannot be killed with it: rather it fails than has others killed. */
gfp_t pinmap_gfp_for_another(void)
{
	return GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL | __GFP_NOWARN;
}

/*
 * Calls @own and meanwhile, on another processor if one has time, @other, whose memory is charged to the
 * current task's cgroup. @other is not called later.
 */
void pinmap_beside(void (*own)(void *), void *own_data, void (*other)(void *), void *other_data)
{
	struct pinmap_beside beside = { .run = other, .data = other_data };

	/* What is urgent does not wait for what is not. */
	if (num_online_cpus() == 1 || rt_or_dl_task(current)) {
		own(own_data);
		return;
	}
	beside.memcg = get_mem_cgroup_from_mm(current->mm);
	INIT_WORK_ONSTACK(&beside.work, pinmap_run_beside);
	queue_work(pinmap_queue(PINMAP_QUEUE_MAP), &beside.work);
	own(own_data);
	cancel_work_sync(&beside.work);
	destroy_work_on_stack(&beside.work);
	mem_cgroup_put(beside.memcg);
}

unsigned long pinmap_task_size(void)
{
	return TASK_SIZE;
}

unsigned long pinmap_memlock_limit(void)
{
	return rlimit(RLIMIT_MEMLOCK);
}

struct user_struct *pinmap_get_current_user(void)
{
	return get_uid(current_user());
}

u32 pinmap_notice(const struct mmu_notifier_range *range)
{
	switch (range->event) {
	case MMU_NOTIFY_UNMAP:
	case MMU_NOTIFY_RELEASE:
		return PINMAP_NOTICE_GONE;
	case MMU_NOTIFY_CLEAR:
		return PINMAP_NOTICE_CLEAR;
	default:
		return PINMAP_NOTICE_IGNORE;
	}
}

bool pinmap_notice_blockable(const struct mmu_notifier_range *range)
{
	return mmu_notifier_range_blockable(range);
}

void pinmap_sg_set_run(struct scatterlist *sg, unsigned long pfn, unsigned int bytes)
{
	sg_set_page(sg, pfn_to_page(pfn), bytes, 0);
}

struct scatterlist *pinmap_sg_next(struct scatterlist *sg)
{
	return sg_next(sg);
}

void pinmap_dma_unmap_sgtable(struct device *dev, struct sg_table *table,
				enum dma_data_direction direction)
{
	dma_unmap_sgtable(dev, table, direction, 0);
}

void pinmap_dma_sync_for_cpu(struct device *dev, struct sg_table *table,
				enum dma_data_direction direction)
{
	dma_sync_sgtable_for_cpu(dev, table, direction);
}

void pinmap_dma_sync_for_device(struct device *dev, struct sg_table *table,
				enum dma_data_direction direction)
{
	dma_sync_sgtable_for_device(dev, table, direction);
}

bool pinmap_dma_may_write(enum dma_data_direction direction)
{
	return direction != DMA_TO_DEVICE;
}

/* The longest segment that the device takes, in whole pages. */
unsigned int pinmap_dma_max_segment(struct device *dev)
{
	return max_t(unsigned int, dma_get_max_seg_size(dev) & PAGE_MASK, PAGE_SIZE);
}

void pinmap_dma_buf_invalidate(struct dma_buf *dma_buf)
{
	dma_resv_lock(dma_buf->resv, NULL);
	dma_buf_invalidate_mappings(dma_buf);
	dma_resv_unlock(dma_buf->resv);
}

/*
 * Fills in the reserved regions of @dev, sorted by address. Returns how many there are, or -E2BIG if
 * there is no @room for them.
 */
int pinmap_reserved_regions(struct device *dev, struct pinmap_region *regions, unsigned int room)
{
	struct iommu_resv_region *region;
	unsigned int count = 0, i;
	int ret = 0;
	LIST_HEAD(list);

	iommu_get_resv_regions(dev, &list);
	list_for_each_entry(region, &list, list) {
		/* The kernel itself lets these be mapped over. */
		if (region->type == IOMMU_RESV_DIRECT_RELAXABLE || !region->length)
			continue;
		if (count == room) {
			ret = -E2BIG;
			break;
		}
		for (i = count++; i > 0 && regions[i - 1].start > region->start; i--)
			regions[i] = regions[i - 1];
		regions[i] = (struct pinmap_region){
			.start = region->start,
			.last = region->start + region->length - 1,
			.kind = region->type == IOMMU_RESV_MSI ? PINMAP_RESERVED_MSI :
								 PINMAP_RESERVED_OTHER,
			.refused = region->type == IOMMU_RESV_DIRECT ||
				   region->type == IOMMU_RESV_SW_MSI,
		};
	}
	iommu_put_resv_regions(dev, &list);
	return ret ?: count;
}

bool pinmap_is_coherent(struct device *dev)
{
	return device_iommu_capable(dev, IOMMU_CAP_CACHE_COHERENCY);
}

/* As VFIO does: otherwise a device that asks not to snoop reads what the caches have not written. */
void pinmap_enforce_coherency(struct iommu_domain *domain)
{
	if (domain->ops->enforce_cache_coherency)
		domain->ops->enforce_cache_coherency(domain);
}

/* VM_SHARED is not set for a file opened read-only; and bindgen's VM_MAYSHARE is wrong on 7.2. */
bool pinmap_vma_is_shared(const struct vm_area_struct *vma)
{
	return vma->vm_flags & VM_MAYSHARE;
}

/*
 * Zeroed, charged to the current memory cgroup; NULL without a word if there is none of that order. How
 * much is asked for is up to user space: nobody is killed for it.
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

/* For kvfree(). In a full memory cgroup it fails, where others have the OOM killer end somebody. */
void *pinmap_kvmalloc_or_fail(size_t size)
{
	return kvmalloc(size, GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL | __GFP_NOWARN);
}

bool pinmap_node_has_memory(u32 node)
{
	return node < MAX_NUMNODES && node_state(node, N_MEMORY);
}

/* In the kernel's own mapping. After a failure some of them may be. */
int pinmap_combine_writes(struct page **pages, int count)
{
#ifdef CONFIG_X86
	/* It says -EINVAL also when there is no memory to split a large page of the kernel's mapping. */
	return set_pages_array_wc(pages, count) ? -ENOMEM : 0;
#else
	return -EOPNOTSUPP;
#endif
}

/* Takes that back. After a failure some of them may still be. */
int pinmap_write_back(struct page **pages, int count)
{
#ifdef CONFIG_X86
	return set_pages_array_wb(pages, count);
#else
	return 0;
#endif
}

bool pinmap_can_flush(void)
{
	return IS_ENABLED(CONFIG_X86);
}

void pinmap_flush(void *address, unsigned int bytes)
{
#ifdef CONFIG_X86
	clflush_cache_range(address, bytes);
#endif
}

unsigned long pinmap_total_pages(void)
{
	return totalram_pages();
}

/* The order of the pages that one entry of a middle page table maps. */
unsigned int pinmap_huge_order(void)
{
	return IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE) ? PMD_SHIFT - PAGE_SHIFT : 0;
}

void *pinmap_page_address(const struct page *page)
{
	return page_address(page);
}

void pinmap_vma_of_device(struct vm_area_struct *vma, bool write_combine)
{
	vm_flags_set(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vm_flags_clear(vma, VM_MAYEXEC);
	vma->vm_page_prot = write_combine ? pgprot_writecombine(vma->vm_page_prot) :
					    pgprot_noncached(vma->vm_page_prot);
}

/*
 * Pages of a file, in an area that the file does not know: no page of it may count as mapped here, for who
 * truncates the file would find it so after having unmapped it everywhere.
 */
void pinmap_vma_of_file(struct vm_area_struct *vma)
{
	vm_flags_set(vma, VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vm_flags_clear(vma, VM_MAYEXEC);
}

/*
 * Neither VM_MIXEDMAP nor VM_PFNMAP: these are struct pages, of which GUP may take references; and with
 * either, splitting a huge mapping leaks it.
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

/* Whether a huge page of @order around the fault lies in the area, and at which @offset of the file. */
bool pinmap_huge_range(const struct vm_fault *vmf, unsigned int order, u64 *offset)
{
	const struct vm_area_struct *vma = vmf->vma;
	unsigned long start = vmf->address & PMD_MASK;

	if (order != PMD_ORDER || start < vma->vm_start || vma->vm_end - start < PMD_SIZE)
		return false;
	*offset = ((u64)vma->vm_pgoff << PAGE_SHIFT) + (start - vma->vm_start);
	return true;
}

/* @page: the first one of a folio of the order that was asked for */
vm_fault_t pinmap_insert_huge(struct vm_fault *vmf, struct page *page)
{
#ifdef CONFIG_TRANSPARENT_HUGEPAGE
	return vmf_insert_folio_pmd(vmf, page_folio(page), vmf->flags & FAULT_FLAG_WRITE);
#else
	return VM_FAULT_FALLBACK;
#endif
}

/* @pfn: the first one of device memory of that order */
vm_fault_t pinmap_insert_huge_pfn(struct vm_fault *vmf, unsigned long pfn)
{
#ifdef CONFIG_TRANSPARENT_HUGEPAGE
	return vmf_insert_pfn_pmd(vmf, pfn, vmf->flags & FAULT_FLAG_WRITE);
#else
	return VM_FAULT_FALLBACK;
#endif
}

/* Addresses congruent to the offset modulo the size of a huge page. */
unsigned long pinmap_get_unmapped_area(struct file *file, unsigned long addr, unsigned long length,
				       unsigned long pgoff, unsigned long flags)
{
#ifdef CONFIG_TRANSPARENT_HUGEPAGE
	return thp_get_unmapped_area(file, addr, length, pgoff, flags);
#else
	return mm_get_unmapped_area(file, addr, length, pgoff, flags);
#endif
}

const char *pinmap_device_name(const struct device *dev)
{
	return dev_name(dev);
}

static DEFINE_IDA(pinmap_numbers);

int pinmap_take_number(void)
{
	return ida_alloc(&pinmap_numbers, GFP_KERNEL);
}

void pinmap_return_number(int number)
{
	ida_free(&pinmap_numbers, number);
}

void pinmap_pci_bar(struct pci_dev *pdev, u32 bar, struct pinmap_pci_bar *out)
{
	unsigned long flags = pci_resource_flags(pdev, bar);

	out->start = pci_resource_start(pdev, bar);
	out->length = pci_resource_len(pdev, bar);
	out->flags = 0;
	/* Part of a page would expose its neighbours. */
	if ((flags & IORESOURCE_MEM) && out->length && PAGE_ALIGNED(out->start) &&
	    PAGE_ALIGNED(out->length))
		out->flags |= PINMAP_BAR_MMAP;
	if (flags & IORESOURCE_PREFETCH)
		out->flags |= PINMAP_BAR_PREFETCHABLE;
	if (flags & IORESOURCE_MEM_64)
		out->flags |= PINMAP_BAR_64BIT;
}

/*
 * Lets a prefetchable @bar be mapped write-combined, or no more. What a page table says does not count
 * on x86: inserting a PFN takes the memory type that its range was reserved with.
 */
int pinmap_pci_combine(struct pci_dev *pdev, u32 bar, bool on)
{
	struct pinmap_pci_bar info;

	pinmap_pci_bar(pdev, bar, &info);
	if (!(info.flags & PINMAP_BAR_MMAP) || !(info.flags & PINMAP_BAR_PREFETCHABLE))
		return 0;
	if (on)
		return arch_io_reserve_memtype_wc(info.start, info.length);
	arch_io_free_memtype_wc(info.start, info.length);
	return 0;
}

/*
 * The bytes of @bar that the MSI-X table and its pending bits occupy, smallest range that covers
 * both. Returns 0 if there are any, -ENOENT if not, -EIO if it cannot be told.
 */
int pinmap_pci_msix_hole(struct pci_dev *pdev, u32 bar, u64 *start, u64 *last)
{
	const int offsets[] = { PCI_MSIX_TABLE, PCI_MSIX_PBA };
	int vectors, i, ret = -ENOENT;

	if (!pdev->msix_cap)
		return -ENOENT;
	vectors = pci_msix_vec_count(pdev);
	if (vectors <= 0)
		return -EIO;
	for (i = 0; i < ARRAY_SIZE(offsets); i++) {
		u64 bytes = i ? DIV_ROUND_UP(vectors, 64) * 8 : vectors * PCI_MSIX_ENTRY_SIZE;
		u64 first;
		u32 where;

		if (pci_read_config_dword(pdev, pdev->msix_cap + offsets[i], &where))
			return -EIO;
		if ((where & PCI_MSIX_TABLE_BIR) != bar)
			continue;
		first = where & PCI_MSIX_TABLE_OFFSET;
		*start = ret ? first : min(*start, first);
		*last = ret ? first + bytes - 1 : max(*last, first + bytes - 1);
		ret = 0;
	}
	return ret;
}

bool pinmap_pci_can_reset(struct pci_dev *pdev)
{
	return pdev->reset_methods[0];
}

/* How many message-signalled vectors the function has. */
int pinmap_pci_vectors(struct pci_dev *pdev)
{
	int vectors = pci_msix_vec_count(pdev);

	return vectors > 0 ? vectors : max(pci_msi_vec_count(pdev), 0);
}

int pinmap_pci_alloc_vectors(struct pci_dev *pdev, unsigned int wanted)
{
	return pci_alloc_irq_vectors(pdev, 1, wanted, PCI_IRQ_MSIX | PCI_IRQ_MSI);
}

void pinmap_pci_ids(struct pci_dev *pdev, struct pinmap_info *info)
{
	info->out_vendor = pdev->vendor;
	info->out_device = pdev->device;
	info->out_subsystem_vendor = pdev->subsystem_vendor;
	info->out_subsystem_device = pdev->subsystem_device;
	info->out_class = pdev->class;
	info->out_pci_domain = pci_domain_nr(pdev->bus);
	info->out_pci_bus = pdev->bus->number;
	info->out_pci_devfn = pdev->devfn;
}

static irqreturn_t pinmap_signal_eventfd(int irq, void *slot)
{
	struct eventfd_ctx *eventfd = READ_ONCE(*(struct eventfd_ctx **)slot);

	if (eventfd)
		eventfd_signal(eventfd);
	return IRQ_HANDLED;
}

/* Each interrupt signals the eventfd that @slot points to then, if any. */
int pinmap_request_eventfd_irq(unsigned int irq, const char *name, void *slot)
{
	return request_irq(irq, pinmap_signal_eventfd, 0, name, slot);
}

static irqreturn_t pinmap_run_irq_thread(int irq, void *cookie)
{
	struct pinmap_irq_thread *thread = cookie;

	/*
	 * The kernel makes it a real-time thread. How often it has to run is up to programs here, and none of
	 * them is to keep a processor from others.
	 */
	if (rt_task(current))
		sched_set_normal(current, 0);
	thread->run(thread->data);
	return IRQ_HANDLED;
}

/* Each interrupt makes a thread call @thread, which must stay until the interrupt is freed. */
int pinmap_request_irq_thread(unsigned int irq, const char *name, struct pinmap_irq_thread *thread)
{
	return request_threaded_irq(irq, NULL, pinmap_run_irq_thread, IRQF_ONESHOT, name, thread);
}

/* NULL: there is no memory. */
struct srcu_struct *pinmap_srcu_new(void)
{
	struct srcu_struct *domain = kzalloc(sizeof(*domain), GFP_KERNEL);

	if (domain && init_srcu_struct(domain)) {
		kfree(domain);
		domain = NULL;
	}
	return domain;
}

void pinmap_srcu_free(struct srcu_struct *domain)
{
	cleanup_srcu_struct(domain);
	kfree(domain);
}

int pinmap_srcu_lock(struct srcu_struct *domain)
{
	return srcu_read_lock(domain);
}

void pinmap_srcu_unlock(struct srcu_struct *domain, int index)
{
	srcu_read_unlock(domain, index);
}

void pinmap_srcu_wait(struct srcu_struct *domain)
{
	synchronize_srcu(domain);
}

/* A thread that calls @run, with a reference, for kthread_stop_put(); or an error pointer. */
struct task_struct *pinmap_run_thread(int (*run)(void *data), void *data, const char *name)
{
	struct task_struct *task = kthread_create(run, data, "%s", name);

	if (!IS_ERR(task)) {
		get_task_struct(task);
		wake_up_process(task);
	}
	return task;
}

u64 pinmap_now_ns(void)
{
	return ktime_get_ns();
}

/* Also between stores that are combined. */
void pinmap_wmb(void)
{
	wmb();
}

void pinmap_sleep_us(unsigned long least, unsigned long most)
{
	usleep_range(least, most);
}

/* Rounded up: at least one. */
unsigned long pinmap_ns_to_jiffies(u64 ns)
{
	return nsecs_to_jiffies(ns) + 1;
}

struct pid *pinmap_get_current_process(void)
{
	return get_task_pid(current, PIDTYPE_TGID);
}

int pinmap_process_number(struct pid *process)
{
	return pid_nr(process);
}

/* Its RLIMIT_MEMLOCK in bytes; false: it has none, or does not run any more. */
bool pinmap_process_memlock(struct pid *process, u64 *limit)
{
	const struct cred *cred;
	struct task_struct *task;
	bool limited = false;

	rcu_read_lock();
	task = pid_task(process, PIDTYPE_TGID);
	if (task) {
		cred = __task_cred(task);
		*limit = task_rlimit(task, RLIMIT_MEMLOCK);
		/* As capable() sees it. */
		limited = *limit != RLIM_INFINITY &&
			  !(cred->user_ns == &init_user_ns && cap_raised(cred->cap_effective, CAP_IPC_LOCK));
	}
	rcu_read_unlock();
	return limited;
}

static struct dentry *pinmap_debug_root;

void pinmap_debug_begin(void)
{
	pinmap_debug_root = debugfs_create_dir("pinmap", NULL);
}

void pinmap_debug_end(void)
{
	debugfs_remove(pinmap_debug_root);
}

/* The directory, with one file that root may read. An error makes no difference to debugfs. */
struct dentry *pinmap_debug_files(const char *directory, const char *name, void *data,
				  const struct file_operations *operations)
{
	struct dentry *dir = debugfs_create_dir(directory, pinmap_debug_root);

	debugfs_create_file(name, 0400, dir, data, operations);
	return dir;
}
