/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls by which the driver tells of managed memory, and programs tell it. */
#ifndef TESTS_MANAGED_TOLD_H
#define TESTS_MANAGED_TOLD_H

#include "moving.h"

enum {
	ABSENT = PINMAP_PLACE_ABSENT,
	ON_HOST = PINMAP_PLACE_HOST,
	ON_DEVICE = PINMAP_PLACE_DEVICE,
	MOST_RUNS = 600,
};

/* Advises for memory: a set of these without PINMAP_ADVICE_ in front. */
enum {
	PREFER_HOST = PINMAP_ADVICE_PREFER_HOST,
	PREFER_DEVICE = PINMAP_ADVICE_PREFER_DEVICE,
	ACCESSED_BY = PINMAP_ADVICE_ACCESSED_BY,
	READ_MOSTLY = PINMAP_ADVICE_READ_MOSTLY,
};
int try_advise(int fd, const void *addr, size_t length, uint32_t advice);
#define advise(...) CHECK_OK(try_advise(__VA_ARGS__))

int try_residency(int fd, const void *addr, size_t length, struct pinmap_run *runs,
		  uint32_t capacity, struct pinmap_residency *args);

/**
 * struct told - where memory is
 * @args: the numbers
 * @runs: the runs
 */
struct told {
	struct pinmap_residency args;
	struct pinmap_run runs[MOST_RUNS];
};

/*
 * Asks where memory is. Asserts that the runs are in order, without holes and overlaps, different
 * from their neighbours, and as many bytes as the sums say. The answer is overwritten by the next.
 */
const struct told *tell(int fd, const void *addr, size_t length);

/* Returns what is told of one page. */
struct pinmap_run tell_page(int fd, const void *addr);

/* Asserts that memory is in one place, and by one rule. */
void check_place(const char *file, int line, int fd, const void *addr, size_t length,
		 uint32_t place, uint32_t rule);
#define CHECK_PLACE(fd, addr, length, place, rule) \
	check_place(__FILE__, __LINE__, fd, addr, length, place, PINMAP_RULE_##rule)

/* Bytes of memory that are on the device. */
uint64_t on_device(int fd, const void *addr, size_t length);

int try_statistics(int fd, uint64_t handle, struct pinmap_statistics *args);
struct pinmap_statistics statistics(int fd, uint64_t handle);

/* The device reads 8 bytes, or writes 8 bytes that are all @byte. */
void device_reads(struct gpu_queue *queue, const void *addr);
void device_writes(struct gpu_queue *queue, void *addr, unsigned char byte);

#endif
