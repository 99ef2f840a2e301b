// SPDX-License-Identifier: GPL-2.0
/*
 * The floor of memory that moves: the time of migrate_vma_setup(), migrate_vma_pages() and
 * migrate_vma_finalize(), and of taking the new pages. Nothing is copied, so the contents are lost,
 * and no device has a page table. On demand the CPU copies each small page to or from a buffer,
 * always the same one, as a driver has to do whose device cannot reach scattered pages well.
 */
#include <linux/highmem.h>
#include <linux/ioport.h>
#include <linux/ktime.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/migrate.h>
#include <linux/slab.h>

#include "floor.h"
#include "move.h"

/* Pages that stand for those of a device. There is no memory behind them. */
static struct resource *move_frames;
static struct dev_pagemap *move_pagemap;
/* The next page that is free, and how many are in use: all that move come back before the next. */
static unsigned long move_next;
static atomic_long_t move_used = ATOMIC_LONG_INIT(0);

/* Pages are copied to it, or from it. */
static struct page *move_buffer;
static bool move_copies;

/* Inside the mmap lock, for the arrays: a CPU fault uses them too. */
static DEFINE_MUTEX(move_lock);
static unsigned long source[HPAGE_PMD_NR], target[HPAGE_PMD_NR];
/* Bytes around a small page that the CPU has touched, which come back with it. */
enum { MOVE_AROUND = SZ_64K };

static void move_freed(struct folio *folio)
{
	atomic_long_sub(folio_nr_pages(folio), &move_used);
}

static vm_fault_t move_to_ram(struct vm_fault *vmf);

static const struct dev_pagemap_ops move_ops = {
	.folio_free = move_freed,
	.migrate_to_ram = move_to_ram,
};

static struct folio *move_take(unsigned int order)
{
	unsigned long first = PHYS_PFN(move_frames->start) + move_next;
	/* It may have been in a large folio before. */
	struct folio *folio = (struct folio *)pfn_to_page(first);

	move_next += 1UL << order;
	atomic_long_add(1L << order, &move_used);
	zone_device_folio_init(folio, move_pagemap, order);
	return folio;
}

static struct folio *move_alloc(struct vm_area_struct *vma, unsigned long addr, unsigned int order)
{
	struct folio *folio = vma_alloc_folio(order ? GFP_TRANSHUGE : GFP_HIGHUSER_MOVABLE, order,
					      vma, addr);

	if (folio)
		folio_lock(folio);
	return folio;
}

/* Copies a small page that goes there, from @source, or comes back. */
static int move_copy(unsigned long source, struct folio *folio, bool back)
{
	struct page *page = back ? folio_page(folio, 0) : migrate_pfn_to_page(source);

	if (!move_copies || !page)
		return 0;
	return back ? copy_mc_highpage(page, move_buffer) : copy_mc_highpage(move_buffer, page);
}

/*
 * Moves the pages of a block there or back, with the one that the CPU has @touched; returns how
 * many did.
 */
static long move_block(struct vm_area_struct *vma, unsigned long start, unsigned long end,
		       bool back, struct page *touched)
{
	struct migrate_vma args = {
		.vma = vma,
		.src = source,
		.dst = target,
		.start = start,
		.end = end,
		.pgmap_owner = move_pagemap,
		.flags = (back ? MIGRATE_VMA_SELECT_DEVICE_PRIVATE : MIGRATE_VMA_SELECT_SYSTEM),
		.fault_page = touched,
	};
	unsigned long i, count = (end - start) >> PAGE_SHIFT, moved = 0;
	unsigned int order;
	int ret;

	if (count == HPAGE_PMD_NR && IS_ALIGNED(start, HPAGE_PMD_SIZE))
		args.flags |= MIGRATE_VMA_SELECT_COMPOUND;
	ret = migrate_vma_setup(&args);
	if (ret)
		return ret;
	for (i = 0; i < count; i += 1UL << order) {
		struct folio *folio;

		order = source[i] & MIGRATE_PFN_COMPOUND ? HPAGE_PMD_ORDER : 0;
		if (!(source[i] & MIGRATE_PFN_MIGRATE))
			continue;
		folio = back ? move_alloc(vma, start + i * PAGE_SIZE, order) : move_take(order);
		if (!folio)
			continue;
		if (!order && move_copy(source[i], folio, back)) {
			folio_unlock(folio);
			folio_put(folio);
			continue;
		}
		target[i] = migrate_pfn(folio_pfn(folio)) | (order ? MIGRATE_PFN_COMPOUND : 0);
		moved += 1UL << order;
	}
	migrate_vma_pages(&args);
	migrate_vma_finalize(&args);
	return moved;
}

/* Brings back memory that the CPU touches: a huge page, or the small ones around. */
static vm_fault_t move_to_ram(struct vm_fault *vmf)
{
	bool huge = !vmf->pte && folio_test_large(page_folio(vmf->page));
	unsigned long size = huge ? HPAGE_PMD_SIZE : MOVE_AROUND;
	unsigned long start = max(ALIGN_DOWN(vmf->address, size), vmf->vma->vm_start);
	unsigned long end = min(ALIGN_DOWN(vmf->address, size) + size, vmf->vma->vm_end);
	long moved;

	mutex_lock(&move_lock);
	moved = move_block(vmf->vma, start, end, true, vmf->page);
	mutex_unlock(&move_lock);
	return moved > 0 ? 0 : VM_FAULT_SIGBUS;
}

/* The time that the range takes there, or back. */
static int move_range(const struct bench_floor_move *move, bool back, u64 *ns)
{
	unsigned long addr = move->addr, end = addr + move->length;
	struct mm_struct *mm = current->mm;
	u64 began = ktime_get_ns();
	long moved = 0;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	mutex_lock(&move_lock);
	while (addr < end && moved >= 0) {
		struct vm_area_struct *vma = vma_lookup(mm, addr);
		unsigned long next = min(end, ALIGN(addr + 1, HPAGE_PMD_SIZE));

		if (!vma || next > vma->vm_end)
			moved = -EFAULT;
		else
			moved = move_block(vma, addr, next, back, NULL);
		addr = next;
		cond_resched();
	}
	mutex_unlock(&move_lock);
	mmap_read_unlock(mm);
	*ns = ktime_get_ns() - began;
	return min(moved, 0L);
}

int floor_move(struct bench_floor_move *move)
{
	const u64 ways = BENCH_FLOOR_THERE | BENCH_FLOOR_BACK;
	int ret = 0, back = 0;

	if (!move->length || !PAGE_ALIGNED(move->addr | move->length) ||
	    move->length > BENCH_FLOOR_MOVE_MOST || !(move->flags & ways) ||
	    move->flags & ~(ways | BENCH_FLOOR_COPY))
		return -EINVAL;
	if (move->flags & BENCH_FLOOR_THERE) {
		if (atomic_long_read(&move_used))
			return -EBUSY;
		move_next = 0;
		move_copies = move->flags & BENCH_FLOOR_COPY;
		ret = move_range(move, false, &move->out_there_ns);
		move->out_moved = atomic_long_read(&move_used) * PAGE_SIZE;
	}
	/* Whatever came of it, nothing stays there. */
	if (move->flags & BENCH_FLOOR_BACK)
		back = move_range(move, true, &move->out_back_ns);
	return back ?: ret;
}

int floor_move_init(void)
{
	void *ret = ERR_PTR(-ENOMEM);

	move_pagemap = kzalloc(sizeof(*move_pagemap), GFP_KERNEL);
	if (!move_pagemap)
		return -ENOMEM;
	move_buffer = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!move_buffer)
		goto free;
	move_frames = request_free_mem_region(&iomem_resource, BENCH_FLOOR_MOVE_MOST,
					      BENCH_FLOOR_NODE);
	ret = move_frames;
	if (IS_ERR(ret))
		goto free;
	move_pagemap->type = MEMORY_DEVICE_PRIVATE;
	move_pagemap->ops = &move_ops;
	move_pagemap->owner = move_pagemap;
	move_pagemap->nr_range = 1;
	move_pagemap->range.start = move_frames->start;
	move_pagemap->range.end = move_frames->end;
	ret = memremap_pages(move_pagemap, NUMA_NO_NODE);
	if (!IS_ERR(ret))
		return 0;
	release_mem_region(move_frames->start, resource_size(move_frames));
free:
	if (move_buffer)
		__free_page(move_buffer);
	kfree(move_pagemap);
	return PTR_ERR(ret);
}

void floor_move_exit(void)
{
	memunmap_pages(move_pagemap);
	release_mem_region(move_frames->start, resource_size(move_frames));
	__free_page(move_buffer);
	kfree(move_pagemap);
}
