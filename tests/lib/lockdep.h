/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Lockdep, the kernel's validator of locks. */
#ifndef TESTS_LOCKDEP_H
#define TESTS_LOCKDEP_H

#include "file.h"

/*
 * Whether lockdep works, or the kernel has none. It switches itself off for good with its first
 * report.
 */
static inline bool lockdep_works(void)
{
	return file_field("/proc/lockdep_stats", " debug_locks:") != 0;
}

#endif
