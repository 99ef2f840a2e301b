/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory by the GiB. */
#ifndef TESTS_LARGE_H
#define TESTS_LARGE_H

#include "device.h"

#define GIB ((size_t)1 << 30)

/*
 * Maps so many pages of 1 GiB. Skips the test if there are not that many to be had. 0: gives those
 * that were made back to the machine.
 */
char *gigantic_pages(unsigned int count);

/* GiB of memory for tests of scale: 3/4 of the machine's. Skips the test on a small one. */
unsigned int scale(void);

#endif
