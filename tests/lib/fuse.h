/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A FUSE file system with one file, whose daemon answers reads when the test says so. Whoever
 * touches a page of the file before that waits.
 */
#ifndef TESTS_FUSE_H
#define TESTS_FUSE_H

#include "harness.h"

/**
 * struct fuse - the file system
 * @path: of its file
 * @device: of the daemon, which is a thread of the process that mounted it
 * @reads: reads that the kernel has asked for; children that are forked later see it as well
 */
struct fuse {
	char path[64];
	int device;
	volatile unsigned int reads;
	/* the daemon's own */
	volatile bool answers;
	char byte;
	bool in_turn;
	size_t length;
	unsigned int waiting;
	struct {
		uint64_t unique;
		uint32_t length;
	} held[64];
};

/*
 * Mounts it; its file has @length bytes. With @in_turn the kernel asks for one read at a time, and
 * waits for the answer where nothing can end the wait, not even a fatal signal. Skips the test
 * where the kernel has no FUSE.
 */
struct fuse *fuse_mount(size_t length, bool in_turn);

/* Answers all reads, and those to come: the file is full of this byte. */
void fuse_answer(struct fuse *fuse, char byte);

/*
 * Takes the file system away. What waits for it fails. Called before the process ends, at the
 * latest by the end of the mount namespace.
 */
void fuse_unmount(struct fuse *fuse);

#endif
