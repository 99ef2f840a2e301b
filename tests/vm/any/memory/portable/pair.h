/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two devices that are open, and memory that is portable between them. */
#ifndef TESTS_PORTABLE_PAIR_H
#define TESTS_PORTABLE_PAIR_H

#include "memory.h"

enum { PORTABLE = PINMAP_REGISTER_PORTABLE, PAGES = 4 };

struct pair {
	int fd, other;
	long long pins;
	char *memory;
	struct registration registration;
};

/* Opens the devices, without portable memory yet. */
struct pair pair_open(void);
struct pair pair_new(void);

/* Skips the test if there is no second device. */
void need_two(void);

long long pinned_kib(void);

#endif
