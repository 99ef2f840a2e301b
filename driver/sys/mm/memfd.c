// SPDX-License-Identifier: GPL-2.0
#include <linux/fcntl.h>
#include <linux/fs.h>
#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/shmem_fs.h>
#include "../helpers.h"

/*
 * Pinning pages of a file (pinmap_memfd_pin) is more than a call: each folio is checked for poison
 * and cleared if nobody has written it yet. That takes folio flags and locks, all of them static
 * inlines.
 */

static unsigned int pinmap_seals(struct file *file)
{
#ifdef CONFIG_HUGETLBFS
	if (is_file_hugepages(file))
		return HUGETLBFS_I(file_inode(file))->seals;
#endif
	return SHMEM_I(file_inode(file))->seals;
}

/*
 * Checks that @file is a memory file which is open for reading (and writing if @write). One that
 * can only be appended to (chattr +a) is not written, as with mmap(). With @write, counts the file
 * as mapped for writing, so that nobody can seal it against that: ended by pinmap_memfd_end().
 */
int pinmap_memfd_begin(struct file *file, bool write)
{
	int ret;

	if (!shmem_file(file) && !is_file_hugepages(file))
		return -EINVAL;
	if (!(file->f_mode & FMODE_READ) || (write && !(file->f_mode & FMODE_WRITE)))
		return -EACCES;
	if (!write)
		return 0;
	if (IS_APPEND(file_inode(file)))
		return -EPERM;
	ret = mapping_map_writable(file->f_mapping);
	if (ret)
		return ret;
	if (pinmap_seals(file) & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) {
		mapping_unmap_writable(file->f_mapping);
		return -EPERM;
	}
	return 0;
}

/* Whether a seal forbids new ways to write to @file. */
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

/* Bytes in the largest folios that @file can have: a power of two. */
u64 pinmap_memfd_folio_size(struct file *file)
{
	if (is_file_hugepages(file))
		return huge_page_size(hstate_file(file));
	return PAGE_SIZE << MAX_PAGECACHE_ORDER;
}

/*
 * Makes a pinned @folio of @mapping fit to be shown to anybody. Returns 0 or an errno.
 *
 * A folio that is not up to date (because of fallocate(), or because somebody's fault has only just
 * added it) still holds what its pages held before, and will be cleared by whoever uses it next. So
 * it is cleared here, under the lock under which the file clears it. -EAGAIN: the folio has left
 * the file, and another one will be there.
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
 * Pins folios of @file from the offset @start up to @last, as many as there is @room for. Returns
 * how many; @inside becomes the number of pages before @start in the first one.
 *
 * -EAGAIN: pages came or went meanwhile; to be tried again. -EHWPOISON: a folio is poisoned, and
 * @inside is the number of pages from @start to where that folio begins (0 if it begins before).
 */
long pinmap_memfd_pin(struct file *file, u64 start, u64 last, struct folio **folios,
		      unsigned int room, u64 *inside)
{
	unsigned long before = READ_ONCE(file->f_mapping->nrpages);
	pgoff_t offset = 0;
	long i, ret = memfd_pin_folios(file, start, last, folios, room, &offset);
	s64 behind;

	*inside = offset >> PAGE_SHIFT;
	behind = -*inside;
	/* hugetlbfs also says -ENOMEM when somebody's fault took what was reserved. */
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

/* Unpins the folio around @pfn. Returns the first page frame behind it. */
unsigned long pinmap_unpin_folio_of(unsigned long pfn, bool dirty)
{
	struct folio *folio = page_folio(pfn_to_page(pfn));
	unsigned long end = folio_pfn(folio) + folio_nr_pages(folio);

	if (dirty && !folio_test_dirty(folio))
		folio_mark_dirty_lock(folio);
	unpin_folio(folio);
	return end;
}
