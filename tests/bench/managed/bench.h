/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The parts of the bench of managed memory share this. */
#ifndef BENCH_MANAGED_H
#define BENCH_MANAGED_H

#include "../profile/mark.h"
#include "gpu.h"
#include "memory.h"

enum { MAX_ROUNDS = 64 };

/* The values of one system in one case. */
struct samples {
	uint64_t values[MAX_ROUNDS];
	unsigned int count;
};

/* Takes the least of the instructions that were counted: interrupts only add to them. */
extern bool least;
/* How often each thing is measured. */
extern unsigned int times;

void sample(struct samples *samples, uint64_t value);
/* Prints the record of a case. */
void report(const char *name, const char *system, struct samples *samples);

/* Begins and ends what scripts/bench --profile shows, if that is this operation. */
void profile_begin(const char *operation, const char *kind);
void profile_end(void);

/* New memory on a boundary of 2 MiB. */
char *fresh(size_t length, int advice);

/* Measures memory that moves; by instructions. */
void bench_moving(int fd, struct gpu_queue *queue);
void bench_counts(int fd);
/* Counts the instructions of the kernel alone for that. @fd is the file of the floor's module. */
void bench_bare_counts(int fd);

#endif
