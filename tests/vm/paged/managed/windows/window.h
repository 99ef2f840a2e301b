/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Windows: ranges of managed memory that have their addresses to themselves. */
#ifndef TESTS_MANAGED_WINDOW_H
#define TESTS_MANAGED_WINDOW_H

#include "../told.h"

enum {
	BLOCKS = 4,
	LENGTH = BLOCKS * HUGE,
	/* Those of 1 GiB and of 512 GiB. */
	UPPER_TABLES = 2,
};

/* Addresses that a program chooses: in one GiB, where nothing is mapped. */
#define CHOSEN ((char *)((1ULL << 44) + (64ULL << 20)))

/* Makes a window. Skips the test if nothing can be managed. */
int try_window(int fd, const void *addr, size_t length, struct pinmap_manage *args);
uint64_t window(int fd, const void *addr, size_t length);

/* Maps memory where the program wants it. */
char *memory_at(char *addr, size_t length, bool is_huge);

/*
 * Takes all of the device's memory, and then all page tables but for what others have aside.
 * Returns for how many mappings they were enough.
 */
unsigned int take_tables(int fd);

#endif
