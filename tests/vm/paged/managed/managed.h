/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Managed memory: calls, accesses by the device, and faults that are not served. */
#ifndef TESTS_MANAGED_H
#define TESTS_MANAGED_H

#include "gpu.h"

/* An address where nothing is mapped, nor will be by chance. */
#define NOWHERE ((char *)(1ULL << 40))

/* Maps so many blocks of 2 MiB, for pages of 4 KiB; nobody has touched them. */
char *small_blocks(size_t count);

/* Manages a range; returns the handle. */
uint64_t manage(int fd, const void *addr, size_t length);
/*
 * Manages all addresses of the program; returns the handle. Skips the test if that is impossible.
 */
uint64_t manage_all(int fd);
/* Opens the test GPU, and does that. */
int open_managed(void);
/* Manages memory that stays on the host where the device touches it. */
uint64_t manage_host(int fd, const void *addr, size_t length);
uint64_t manage_all_host(int fd);

/* The device fills memory, or copies it; 0, or what try_queue_finish() says. */
int try_fill(struct gpu_queue *queue, const void *addr, size_t length, unsigned char byte);
int try_copy(struct gpu_queue *queue, const void *from, void *to, size_t length);
#define fill(...) CHECK_OK(try_fill(__VA_ARGS__))
#define copy(...) CHECK_OK(try_copy(__VA_ARGS__))

/*
 * Asserts that the queue has stopped at an address, for this access and reason, and returns what
 * QUEUE_QUERY says.
 */
struct pinmap_queue_query check_stopped(const char *file, int line, const struct gpu_queue *queue,
					const void *addr, uint32_t access, uint32_t reason);
#define CHECK_STOPPED(...) check_stopped(__FILE__, __LINE__, __VA_ARGS__)

/*
 * Asserts that an access of 8 bytes, by a queue of its own, is not served, for this reason and at
 * this address. Returns what QUEUE_QUERY says.
 */
struct pinmap_queue_query check_refused(const char *file, int line, int fd, const void *addr,
					uint32_t access, uint32_t reason);
#define CHECK_REFUSED(...) check_refused(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK_READ_REFUSED(fd, addr, reason) \
	CHECK_REFUSED(fd, addr, PINMAP_ACCESS_READ, PINMAP_FAULT_##reason)
#define CHECK_WRITE_REFUSED(fd, addr, reason) \
	CHECK_REFUSED(fd, addr, PINMAP_ACCESS_WRITE, PINMAP_FAULT_##reason)

/* Calls GPU_WALK for an address; returns 0 or -errno, and the flags. */
int try_walk(int fd, const void *addr, uint32_t *flags);

struct pinmap_get_totals totals(int fd, uint32_t flags);

/* Actions of a process while its fault waits, until it is killed: none, or closing its file. */
void wait_for_ever(struct gpu_queue *queue) __attribute__((noreturn));
void close_all(struct gpu_queue *queue);

/* How many contexts the device has, with one more for the question. */
unsigned int contexts(void);

/* Asserts that a new context can use the device. */
void check_works(void);

/*
 * Returns the bytes that the IOMMU lets the test GPU write, or with @all reach. Skips the test
 * where the IOMMU's driver does not show its page table.
 */
size_t bus_reach(bool all);

#endif
