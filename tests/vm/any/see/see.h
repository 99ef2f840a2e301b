/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reads what can be observed of buffers: fdinfo, the totals, and each buffer in debugfs. */
#ifndef TESTS_SEE_SEE_H
#define TESTS_SEE_SEE_H

#include "device.h"
#include "pci.h"

struct pinmap_get_totals totals(int fd, uint32_t flags);

#define CHECK_TOTAL(total, number_, bytes_)				\
	do {								\
		CHECK_EQ((total).number, number_);			\
		CHECK_EQ((total).bytes, bytes_);			\
	} while (0)

/*
 * Reads the number behind "pinmap-KEY:" in the fdinfo of a descriptor of this process; -1: no such
 * key.
 */
long long fdinfo(int fd, const char *key);

/* Writes the path of a device's file in debugfs. Skips the test if there is no debugfs. */
void debugfs_path(const struct pci_device *device, char path[128]);

/**
 * struct line - a buffer as debugfs shows it
 * @words: device context pid handle kind access state address length runs huge mapped-at
 */
struct line {
	char words[12][160];
};

/* Finds the line of a buffer that begins at @addr. */
bool find_line(const char *path, const void *addr, struct line *line);

/*
 * Checks the line of the buffer that the context of @fd, which has no other of that kind, calls
 * @handle.
 */
void check_line(const char *path, int fd, const char *kind, uint64_t handle, const char *access,
		const char *state, const char *mapped_at);

#endif
