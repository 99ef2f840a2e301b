// SPDX-License-Identifier: GPL-2.0
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include "../helpers.h"

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
 * Tells whether a locked page, which is not anonymous, is a page of a file and stays one.
 *
 * Truncation and hole punching hold the inode's lock from before they tell MMU notifiers until
 * after they have taken the page out of the file. While somebody holds that lock, the answer is
 * PINMAP_FILE_BUSY. The page's lock keeps the page in the file, which keeps the inode; so this
 * takes no reference, which could become the last one.
 */
u32 pinmap_page_in_file(struct page *page)
{
	struct address_space *mapping = folio_mapping(page_folio(page));

	/* A poisoned page stays in its file, where reading it is an error: it counts as gone. */
	if (!mapping || !mapping->host || is_page_hwpoison(page))
		return PINMAP_IN_NO_FILE;
	if (!inode_trylock_shared(mapping->host))
		return PINMAP_FILE_BUSY;
	inode_unlock_shared(mapping->host);
	return PINMAP_IN_ITS_FILE;
}
