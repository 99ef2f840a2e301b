/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory that runs short: swap, reclaim, compaction, merging, cgroups. */
#ifndef TESTS_PRESSURE_H
#define TESTS_PRESSURE_H

#include "harness.h"

/* Turns on some swap on the ext4 file system, until swap_end(). */
void swap_begin(void);
void swap_end(void);

/* Takes memory until the kernel reclaims pages, holds it for a moment and gives it back. */
void pressure(void);

/* Compacts memory: the kernel moves all pages that can be moved. */
void compact(void);

/*
 * Lets KSM merge pages of the same contents, in memory with MADV_MERGEABLE, without a pause, until
 * ksm_end(). Returns false if the kernel has no KSM.
 */
bool ksm_begin(void);
void ksm_end(void);

/*
 * Puts this process into a cgroup of its own that may have so many bytes of memory, and swap too or
 * not.
 */
void memory_cgroup(uint64_t limit, bool swap);

#endif
