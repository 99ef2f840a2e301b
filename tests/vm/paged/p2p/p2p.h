/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Disks, VRAM that they read and write, and what can be seen of that. */
#ifndef TESTS_P2P_H
#define TESTS_P2P_H

#include "edu.h"
#include "gpu.h"
#include "pci.h"

#include <pthread.h>
#include <sys/types.h>

enum { P2PDMA = PINMAP_ALLOC_VRAM | PINMAP_ALLOC_P2PDMA };

/* The namespaces of the disk: one with ext4, and one that can be held up, and reads 0. */
enum { FILES = 1, HELD = 2 };

/* The path of the block device of a namespace; skips the test if the machine has no such disk. */
const char *need_disk(unsigned int namespace);

/* Opens an unlinked file on the disk with O_DIRECT. */
int open_file(void);

/**
 * struct held - a read of 256 KiB of the second namespace, in a thread
 * @file: the namespace
 * @memory: the buffer
 * @result: what pread() returned, or -errno
 */
struct held {
	pthread_t thread;
	int file;
	void *memory;
	ssize_t result;
};
enum { HELD_BYTES = 256 << 10 };

/* Begins the read; returns when the disk has the request, which it keeps. */
struct held *held_begin(void *memory);

/* How much I/O of that namespace is under way. */
unsigned int held_requests(void);

/* Lets the disk do what it has kept. */
void held_release(void);

/* Does so, and waits until the read has ended; returns its result. */
ssize_t held_end(struct held *held);

#endif
