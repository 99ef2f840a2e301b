/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory that two devices manage. */
#ifndef TESTS_MANAGED_TWO_H
#define TESTS_MANAGED_TWO_H

#include "../told.h"

/**
 * struct two - a context of each of two devices, which manage the same memory
 * @fds: the contexts
 * @queues: a queue in each
 * @handles: of what they manage
 */
struct two {
	int fds[2];
	struct gpu_queue queues[2];
	uint64_t handles[2];
};

/* Skips the test if there is only one test GPU. */
struct two two_new(const void *addr, size_t length);

/* Has a device add 1 to each float. */
void increment(struct gpu_queue *queue, const void *addr, size_t length);

void check_floats(const void *addr, size_t length, float value);

#endif
