/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * userfaultfd: pages that come when the test says so. A touch before that waits, and so does
 * pinning in the kernel.
 */
#ifndef TESTS_UFFD_H
#define TESTS_UFFD_H

#include "harness.h"

/* Makes a descriptor for missing pages; the range must not be populated. */
int uffd_new(void *addr, size_t length);

/* As uffd_new(), but for touches in user mode alone: any other one fails. */
int uffd_new_user_mode(void *addr, size_t length);

/* Waits until somebody touches this page. */
void uffd_await(int uffd, const void *page);

/* Whether a thread waits for a page now. */
bool uffd_touched(int uffd);

/* Supplies the page, filled with a byte, and wakes those that wait. */
void uffd_supply(int uffd, void *page, char byte);

/* Write-protects the range, or lifts the protection; the range needs uffd_new_protect(). */
int uffd_new_protect(void *addr, size_t length);
void uffd_protect(int uffd, void *addr, size_t length, bool protect);

/*
 * Makes pages inaccessible, so that each access is told, or lifts that; the range needs
 * uffd_new_access().
 */
int uffd_new_access(void *addr, size_t length);
void uffd_forbid(int uffd, void *addr, size_t length, bool forbid);

/* Moves pages (UFFDIO_MOVE): 0 or -errno. */
int uffd_move(int uffd, void *to, void *from, size_t length);

#endif
