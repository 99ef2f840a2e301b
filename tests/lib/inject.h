/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Fault injection: allocations, and copies from and to user space, that fail.
 *
 * The kernel lets the n-th thing that can fail in a task fail (/proc/self/fail-nth). fail_each()
 * makes a call that works again and again with n = 1, 2, 3, ... until nothing fails any more. What
 * counts is not the result but that nothing leaks, hangs or crashes, and that a call that failed
 * has changed nothing.
 */
#ifndef TESTS_INJECT_H
#define TESTS_INJECT_H

#include "harness.h"

/* Skips the test where the kernel cannot inject faults. */
void need_injection(void);

/*
 * Lets nothing fail below one of the kernel's functions: what happens there is not the driver's
 * affair, and takes long or ends badly.
 */
void fail_spare(const char *function);

/**
 * struct attempt - a call that fail_each() makes
 * @begin: makes what the call needs, before failures begin
 * @call: the call: 0 or -errno
 * @failed: checks that the call, which failed, has changed nothing and works the next time; or NULL
 * @end: takes away what is there after the call, which returned @result, and checks that nothing
 *       is left
 */
struct attempt {
	void (*begin)(void *data);
	int (*call)(void *data);
	void (*failed)(void *data);
	void (*end)(void *data, int result);
};

/*
 * Makes the call until nothing fails any more; the test fails if that takes more than @most times.
 */
void fail_each(const struct attempt *attempt, void *data, unsigned int most);

/*
 * Lets things fail in another task from now on, a thread of the kernel for example; 0: in this one.
 */
void fail_in(int task);

/*
 * Makes the next allocation of pages, or of an object, below one of the kernel's functions fail, in
 * any task, until fail_below_end().
 */
void fail_page_below(const char *function);
void fail_slab_below(const char *function);
/* Makes every allocation of pages below that function fail, until fail_below_end(). */
void fail_pages_below(const char *function);
/* Returns whether an allocation failed. */
bool fail_below_end(void);

/* Lets each allocation of 2 MiB fail, until it is called again with false. */
void fail_huge_pages(bool fail);

#endif
