/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The bench: registering memory with pinmap and with its peers, on the same pages, in turns.
 *
 * It runs as root in the VM and prints one JSON record a measurement. A failure ends it: a bench
 * that leaves something out would be read as if it had not.
 */
#ifndef BENCH_H
#define BENCH_H

#include "profile/mark.h"
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define HUGE (2 * MIB)

#define DIE(...) die(__FILE__, __LINE__, __VA_ARGS__)
void die(const char *file, int line, const char *format, ...)
	__attribute__((noreturn, format(printf, 3, 4)));
#define SYS(call)							\
	({								\
		__typeof__(call) value_ = (call);			\
		if ((intptr_t)value_ == -1)				\
			DIE("%s: %s", #call, error_name(errno));	\
		value_;							\
	})
const char *error_name(int error);

/* Writes a line into a file of sysfs, procfs or debugfs; false: it could not be written. */
bool try_write_file(const char *path, const char *text);
void write_file(const char *path, const char *text);

/*
 * Moves this process into a cgroup of its own, or back into the root's; false: it cannot be moved.
 */
bool try_enter_cgroup(bool own);
/* Bytes that the own cgroup is charged for the kernel's small objects that cannot be reclaimed. */
uint64_t slab_bytes(void);

/* Nanoseconds; in a VM that counts instructions, instructions. */
uint64_t now(void);

/* Begin and end what scripts/bench --profile shows. */
static inline void profile_begin(void)
{
	mark(MARK_BEGIN);
}

static inline void profile_end(void)
{
	mark(MARK_END);
}

/* --- memory --- */

/*
 * Kinds of memory, in the order of measurement: the scattered ones leave the kernel's lists of free
 * pages in disorder.
 */
enum kind {
	THP,
	HUGETLB,
	MEMFD_HUGE,
	NATURAL,
	SCATTERED,
	KINDS,
};
extern const char *const kind_names[KINDS];

/**
 * struct memory - user memory whose pages are there
 * @addr: where it is mapped, aligned to 2 MiB
 * @length: bytes, at least what was asked for
 * @fd: its file, or -1
 * @kind: what it is made of
 */
struct memory {
	char *addr;
	size_t length;
	int fd;
	enum kind kind;
};
struct memory memory_new(enum kind kind, size_t length);
/* As memory_new(), but if @apart is set, every huge page of THP is a run of its own. */
struct memory memory_of_runs(enum kind kind, size_t length);
/*
 * Set where the counts of pinmap alone are compared with recorded ones: a run takes instructions,
 * and how many huge pages are neighbours would be chance.
 */
extern bool apart;
void memory_free(struct memory *memory);
/* Writes a word into each page. */
void memory_touch(char *addr, size_t length);
/* Runs of neighbouring page frames under the first @length bytes. */
size_t memory_runs(const struct memory *memory, size_t length);

/* --- systems --- */

/**
 * struct system - something that makes memory reachable for a device
 * @name: as in the records
 * @open: with the function that it may have; NULL: it needs none
 * @fits: whether it takes such memory; NULL: all of it
 * @add: makes the range reachable; what remove() needs goes to @token
 * @remove: undoes that
 * @measure: in place of add() and remove(): does both and tells how long each took
 */
struct system {
	const char *name;
	const char *driver;
	void (*open)(const char *bdf);
	bool (*fits)(const struct memory *memory);
	void (*add)(const struct memory *memory, char *addr, size_t length, uint64_t *token);
	void (*remove)(char *addr, size_t length, uint64_t token);
	void (*measure)(char *addr, size_t length, uint64_t *add_ns, uint64_t *remove_ns);
};
extern const struct system pinmap_system, iommufd_system, vfio_system, udmabuf_system, floor_system;

/* Registers pages at different places by one call, and releases them by another. */
enum { BATCH = 64 };
void pinmap_add_all(char *const addrs[BATCH], uint64_t handles[BATCH]);
void pinmap_remove_all(const uint64_t handles[BATCH]);

/* Memory of the driver's own: allocated, mapped for the CPU and the device. */
struct pinmap_memory {
	char *addr;
	uint64_t handle;
};
struct pinmap_memory pinmap_alloc_memory(size_t length);
void pinmap_free_memory(struct pinmap_memory memory, size_t length);

/* The edu functions of the machine. */
enum { MAX_FUNCTIONS = 8 };
struct function {
	char bdf[16];
};
size_t functions_find(struct function functions[MAX_FUNCTIONS]);
void function_bind(const char *bdf, const char *driver);

/* --- results --- */

enum { MAX_ROUNDS = 64 };
struct samples {
	uint64_t ns[MAX_ROUNDS];
	size_t count;
};
void sample(struct samples *samples, uint64_t ns);
/* Returns the median, and forgets the samples. */
uint64_t median(struct samples *samples);

/* report() tells the least of the samples, in place of the median. */
extern bool least;
/* Prints the record and forgets the samples. */
void report(const char *operation, size_t length, enum kind kind, const char *system,
	    struct samples *samples);
extern const char *label;

#endif
