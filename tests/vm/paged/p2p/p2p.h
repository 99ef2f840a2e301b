/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Disks, VRAM that they read and write, and what can be seen of that. */
#ifndef TESTS_P2P_H
#define TESTS_P2P_H

#include "gpu.h"

#include <pthread.h>
#include <sys/types.h>

enum { P2PDMA = PINMAP_ALLOC_VRAM | PINMAP_ALLOC_P2PDMA };

/* The namespaces of the disk: one with ext4, and one whose commands take a second, and read 0. */
enum { FILES = 1, LATE = 2 };

/*
 * The path of the block device of a namespace; loads the kernel's driver. Skips the test if there
 * is no such disk.
 */
const char *need_disk(unsigned int namespace);

/* Skips the test if the bus does not let the disk reach the test GPU. */
void need_peers(void);

/* Opens an unlinked file on the disk with O_DIRECT, and the late namespace. */
int open_file(void);
int open_late(void);

/* How much I/O of the late namespace is under way. */
unsigned int late_requests(void);

/* Has the device fill memory, and copy it. */
void gpu_fill(struct gpu_queue *queue, void *memory, size_t length, uint8_t byte);
void gpu_copy(struct gpu_queue *queue, void *to, const void *from, size_t length);

/* Whether all bytes are the same. */
bool all_are(const void *memory, size_t length, uint8_t byte);

/* Bytes of VRAM that a program could allocate. */
uint64_t vram_free(int fd);

/**
 * struct late - a read of 256 KiB of the late namespace, in a thread
 * @file: the namespace
 * @memory: the buffer
 * @result: what pread() returned, or -errno
 */
struct late {
	pthread_t thread;
	int file;
	void *memory;
	ssize_t result;
};
enum { LATE_BYTES = 256 << 10 };

/* Begins the read; returns when the disk has the request. */
struct late *late_begin(void *memory);
/* Waits until the read has ended; returns its result. */
ssize_t late_end(struct late *late);

#endif
