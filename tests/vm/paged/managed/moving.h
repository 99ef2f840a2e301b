/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory that moves: calls, and what can be seen of where it is. */
#ifndef TESTS_MANAGED_MOVING_H
#define TESTS_MANAGED_MOVING_H

#include "managed.h"

#include <pthread.h>

/*
 * Moves memory to the device, or with PINMAP_PREFETCH_HOST home, and asserts that each byte is
 * counted once.
 */
struct pinmap_prefetch prefetch(int fd, uint32_t flags, const void *addr, size_t length);

/*
 * Moves memory to the device until only @busy bytes stay behind because somebody has their pages:
 * the kernel has some for a moment, to compact memory. What moved is of all calls, what was there
 * of the first.
 */
struct pinmap_prefetch prefetch_all(int fd, const void *addr, size_t length, size_t busy);

/* Moves memory to the device, or home, and asserts that all of it did. */
#define MOVE_THERE(fd, addr, length) \
	check_moves(__FILE__, __LINE__, fd, 0, addr, length)
#define MOVE_HOME(fd, addr, length) \
	check_moves(__FILE__, __LINE__, fd, PINMAP_PREFETCH_HOST, addr, length)
void check_moves(const char *file, int line, int fd, uint32_t flags, const void *addr,
		 size_t length);

/*
 * How many of these pages of this process are on a device, from /proc/self/pagemap. Not while there
 * is swap, which looks the same there.
 */
size_t pages_away(const void *addr, size_t length);

/*
 * Allocates VRAM until no more than @bytes are left, or 2 MiB more, as long as the context lives.
 */
void leave_room(int fd, uint64_t bytes);

/* Limits the VRAM that the context's pages may have. */
void set_budget(int fd, uint64_t bytes);

/**
 * struct call - a PREFETCH in a thread of its own
 * @fd: the context
 * @flags: of the call
 * @memory: and
 * @length: what is to move
 * @args: what the call says
 * @error: 0 or -errno
 * @ended: the call has returned
 */
struct call {
	pthread_t thread;
	int fd;
	uint32_t flags;
	char *memory;
	size_t length;
	struct pinmap_prefetch args;
	int error;
	volatile bool ended;
};

/* Begins the call: one at a time. */
struct call *begin_call(int fd, uint32_t flags, char *memory, size_t length);
/* Waits until it has returned; returns its error. */
int end_call(struct call *call);

/*
 * Moves pages of @memory and @other to the device by turns, so that no two pages of either that
 * follow each other do so in VRAM.
 */
void scatter(int fd, char *memory, char *other, unsigned int pages);

/*
 * Leaves no 2 MiB of VRAM in one piece: fills it with blocks of 1 MiB, of which each second one is
 * free again. @fd is a context for this alone; @read reads registers of its device.
 */
void break_up_vram(int fd, uint64_t (*read)(enum gpu_register offset));

/* Words that are different everywhere, and with each seed. */
void write_pattern(void *memory, size_t length, uint32_t seed);
bool has_pattern(const void *memory, size_t length, uint32_t seed);

/* A block of 2 MiB that nobody has touched: for one huge page, or for small ones. */
char *block_of(bool huge);

/* The sizes of pages that a test of both runs for. */
extern const struct page_size {
	const char *name;
	bool huge;
} page_sizes[2];

#endif
