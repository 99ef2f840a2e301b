// SPDX-License-Identifier: GPL-2.0
#include <linux/err.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/shmem_fs.h>
#include <linux/swap.h>
#include "../helpers.h"

/* Makes @bytes bytes of zeros that the kernel may swap out. */
struct file *pinmap_shmem_new(u64 bytes)
{
	return shmem_kernel_file_setup("pinmap", bytes, EMPTY_VMA_FLAGS);
}

/* Returns how many pages there is room for, if others are to keep a half of what is available. */
u64 pinmap_shmem_room(void)
{
	return max(si_mem_available(), 0L) / 2 + max(get_nr_swap_pages(), 0L);
}

/*
 * Returns page @number, in memory until pinmap_shmem_put(), or an error pointer. If it @may_fail,
 * no program is killed to make room.
 */
void *pinmap_shmem_get(struct file *file, u64 number, bool may_fail)
{
	gfp_t gfp = GFP_KERNEL;
	struct page *page;

	if (may_fail)
		gfp |= __GFP_RETRY_MAYFAIL | __GFP_NOWARN;
	page = shmem_read_mapping_page_gfp(file->f_mapping, number, gfp);
	return IS_ERR(page) ? ERR_CAST(page) : page_address(page);
}

/* Frees pages from @first on. */
void pinmap_shmem_free(struct file *file, u64 first, u64 pages)
{
	shmem_truncate_range(file_inode(file), first << PAGE_SHIFT,
			     ((first + pages) << PAGE_SHIFT) - 1);
}

void pinmap_shmem_put(void *address, bool dirty)
{
	struct page *page = virt_to_page(address);

	if (dirty)
		set_page_dirty(page);
	put_page(page);
}
