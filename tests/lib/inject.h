/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The n-th thing that can fail in this task fails (/proc/self/fail-nth): allocations, copies from and to user space. */
#ifndef TESTS_INJECT_H
#define TESTS_INJECT_H

#include "harness.h"

/* Skips the test where the kernel cannot do it. */
void need_injection(void);

/*
 * Lets nothing fail below one of the kernel's functions: what happens there is not the driver's affair, and takes long or
 * ends badly.
 */
void fail_spare(const char *function);

/* The next page that whoever, below one of the kernel's functions, wants to have is not there; until it is ended. */
void fail_page_below(const char *function);
/* Returns whether that was so. */
bool fail_page_end(void);

/* Begins to count, from 1. */
void fail_begin(unsigned int n);
/* Ends it: whether the failure happened. */
bool fail_end(void);

#endif
