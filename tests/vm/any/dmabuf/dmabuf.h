/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory that is shared as dma-bufs: calls that its tests share. */
#ifndef TESTS_DMABUF_DMABUF_H
#define TESTS_DMABUF_DMABUF_H

#include "file.h"
#include "memory.h"

#include <sys/mman.h>

enum { EXPORT_WRITE = PINMAP_EXPORT_WRITE };

static inline long long pinned_kib(void)
{
	return file_field("/proc/self/status", "VmPin:");
}

/* Maps a dma-buf for reading and writing. */
static inline char *view(int dma_buf, size_t length)
{
	return SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, dma_buf, 0));
}

#endif
