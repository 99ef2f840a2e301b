/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory that runs short, and what the kernel then does. */
#ifndef TESTS_PRESSURE_H
#define TESTS_PRESSURE_H

#include "harness.h"

/* Some swap on the ext4 file system; ends with swap_end(). */
void swap_begin(void);
void swap_end(void);

/* Takes memory until the kernel reclaims pages, holds it for a moment and gives it back. */
void pressure(void);

/* Moves all that can be moved. */
void compact(void);

/* Puts this process into a cgroup of its own that may have so many bytes of memory, and swap too or not. */
void memory_cgroup(uint64_t limit, bool swap);

#endif
