/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory that the driver allocates, and memory that is shared as dma-bufs. */
#ifndef TESTS_ALLOC_H
#define TESTS_ALLOC_H

#include "device.h"

/* The flag for write-combined memory where there is such memory, for tests of many kinds. */
#if defined(__x86_64__) || defined(__i386__)
#define COMBINED ((uint32_t)PINMAP_ALLOC_WRITE_COMBINED)
#else
#define COMBINED 0u
#endif

int try_alloc(int fd, uint32_t flags, size_t length, struct pinmap_alloc *args);

/* Skips the test where there is no memory of this kind. */
void need_kind(uint32_t flags);

/* Maps what ALLOC returned for the CPU. */
char *alloc_view(int fd, const struct pinmap_alloc *args);

/*
 * Allocates memory and maps it at the same address for CPU and device, or, if the IOMMU has not
 * that address, at two. Skips the test where there is no memory of this kind.
 */
struct registration alloc_memory(int fd, uint32_t flags, size_t length);

/* Exports a buffer: a dma-buf, or -errno. */
int try_export(int fd, uint64_t handle, uint32_t flags);
#define export_buffer(fd, handle, flags)						\
	({										\
		int export_ = try_export(fd, handle, flags);				\
		if (export_ < 0)							\
			FAIL("exporting %s: %s", #handle, error_name(-export_));	\
		export_;								\
	})

int try_import(int fd, int dma_buf, struct pinmap_import *args);
#define import_buffer(fd, dma_buf)					\
	({								\
		struct pinmap_import import_;				\
		CHECK_OK(try_import(fd, dma_buf, &import_));		\
		import_;						\
	})

int try_sync(int fd, uint64_t handle, uint32_t flags, uint64_t offset, uint64_t length);

/*
 * Reads the flags of the page-table entry, of whatever level, for an address of this process, or
 * for a page frame in the kernel's own mapping; false: there is none. Skips the test where the
 * kernel does not show page tables.
 */
bool user_entry(const volatile void *addr, char flags[256]);
bool kernel_entry(uint64_t frame, char flags[256]);

/* Whether an entry says write-combined: the PAT's entries as Linux sets them up. */
bool is_write_combined(const char *flags);

#endif
