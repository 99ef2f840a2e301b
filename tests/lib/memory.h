/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* User memory of all kinds. */
#ifndef TESTS_MEMORY_H
#define TESTS_MEMORY_H

#include "device.h"

enum memory_kind {
	ANON,
	ANON_SHARED,
	THP,
	MEMFD,
	MEMFD_PRIVATE,
	HUGETLB,
	TMPFS,
	EXT4_SHARED,
	EXT4_PRIVATE,
	SECRET,
};

/**
 * struct memory - some memory
 * @addr: where it is mapped, aligned to 2 MiB
 * @length: bytes; whole huge pages for the kinds made of them
 * @fd: its file, or -1
 * @alias: the file mapped once more, shared: shows the file's pages whatever happens to @addr;
 *         NULL: no file
 */
struct memory {
	char *addr;
	size_t length;
	int fd;
	char *alias;
};

/* Makes memory and fills it with 0x11. Skips the test where the kernel has no such memory. */
struct memory memory_new(enum memory_kind kind, size_t length);
void memory_free(struct memory *memory);

/*
 * Maps read-only memory of any length that takes no more than 4 MiB: the same pages again and
 * again.
 */
char *tiled(size_t length, size_t align);

/* Maps plain pages, filled with 0x11: the usual memory. */
char *anon(size_t pages);

/*
 * Reserves address space at a multiple of @align, to map things over; nothing in it can be
 * accessed.
 */
char *address_space(size_t length, size_t align);

/*
 * Mounts the ext4 file system of /dev/vda and returns its directory; skips the test if there is
 * none.
 */
const char *need_ext4(void);

/* Opens an unlinked file there, past the page cache. */
int direct_file(void);

/* Makes sure that so many huge pages are free. */
void need_hugetlb(unsigned int pages);

/* The numbers of the page frames under so many pages (root only); 0: none. */
void page_frames(const void *addr, size_t pages, uint64_t *frames);
uint64_t page_frame(const void *addr);

/* Whether the page is part of a transparent huge page that is mapped as one. */
bool is_thp(const void *addr);

/*
 * Keeps a page in a pipe, so that its content can be read after it was unmapped. Called after the
 * page was pinned, so that it does not matter for that.
 */
int keep_page(const void *page);
void read_kept_page(int pipe, char content[PAGE]);

/* Makes a memfd of so many bytes, none of which have pages yet. */
int new_memfd(size_t length, unsigned int flags);

/* Makes the arguments of REGISTER_FD; outputs are filled with junk. */
struct pinmap_register_fd fd_args(int file, uint64_t offset, uint64_t length, uint32_t flags);
int try_register_fd(int fd, struct pinmap_register_fd *args);
#define register_fd(fd, file, offset, length, flags)					\
	({										\
		struct pinmap_register_fd args_ = fd_args(file, offset, length, flags);	\
		CHECK_OK(try_register_fd(fd, &args_));					\
		args_;									\
	})

/* Touch memory; return the number of the signal that this raises, or 0. */
int touch_read(const volatile void *addr);
int touch_write(volatile void *addr);

#endif
