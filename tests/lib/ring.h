/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An io_uring, with one registered buffer or none, which makes one transfer at a time. */
#ifndef TESTS_RING_H
#define TESTS_RING_H

#include "harness.h"

#include <linux/io_uring.h>

struct ring {
	int fd;
	struct io_uring_params params;
	char *submissions, *completions;
	struct io_uring_sqe *entries;
};

/*
 * Makes a ring and registers the buffer, if that is not NULL, which pins it until ring_close().
 * Skips the test if the kernel has no io_uring.
 */
struct ring ring_new(void *buffer, size_t length);
void ring_close(struct ring *ring);

/* Makes a transfer (IORING_OP_), from or to the beginning of a file. */
void ring_transfer(struct ring *ring, uint8_t opcode, int file, const void *addr,
		   uint32_t length);
/* Transfers a part of the buffer that is registered. */
void ring_read(struct ring *ring, int file, void *addr, uint32_t length);
void ring_write(struct ring *ring, int file, const void *addr, uint32_t length);

/*
 * Sends a part of the buffer by a connection, without a copy, and waits until the memory may be
 * written again. Returns what the kernel then says of it: 0 or IORING_NOTIF_USAGE_ZC_COPIED.
 */
uint32_t ring_send_zc(struct ring *ring, int socket, const void *addr, uint32_t length);

#endif
