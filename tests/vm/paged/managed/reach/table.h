/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The table of tests: a kind of memory, what happens to it, and whether the device reads or writes
 * it. What the bytes have to be is kept in a model.
 */
#ifndef TESTS_MANAGED_TABLE_H
#define TESTS_MANAGED_TABLE_H

#include "../managed.h"

enum trait {
	/* Pages of the process alone, with no file. */
	ANONYMOUS = 1 << 0,
	/* What is written goes to the file, or to all who share the memory. */
	SHARED = 1 << 1,
	/* Has a file that the test can read. */
	FILED = 1 << 2,
	READ_ONLY = 1 << 3,
	HUGETLBFS = 1 << 4,
	/* Nothing is mapped. */
	NOTHING = 1 << 5,
	/* The kernel can put it aside: to swap, or by forgetting what the file has. */
	EVICTABLE = 1 << 6,
};

/**
 * struct state - the memory of a row, and what its bytes have to be
 * @traits: of the kind
 * @writes: the device writes it; otherwise it reads
 * @addr: where it is
 * @length: bytes
 * @file: its file, or -1
 * @cpu: bytes that the program has to see, and so the device
 * @saved: bytes of the file; the same as @cpu if @traits has SHARED
 * @usable: bytes that can be accessed, from @addr on
 * @beyond: why the device cannot access the rest
 * @read_only: writing is not permitted
 * @most: so many bytes are written by the device at most; 0: all
 * @last: the byte that was written last
 * @gpu: the context
 * @queue: a queue in it
 * @result: where the device copies what it reads
 */
struct state {
	unsigned int traits;
	bool writes;
	char *addr;
	size_t length;
	int file;
	unsigned char *cpu;
	unsigned char *saved;
	size_t usable;
	uint32_t beyond;
	bool read_only;
	size_t most;
	unsigned char last;
	int gpu;
	struct gpu_queue queue;
	struct gpu_memory result;
};

struct kind {
	const char *name;
	unsigned int traits;
	void (*make)(struct state *state);
};

/**
 * struct event - something that happens to memory
 * @name: part of the test's name
 * @needs: traits of which the kind must have one; 0: none
 * @not: traits of which the kind must have none
 * @happen: does it, and changes the model
 * @end: what is looked at in the end, or NULL
 */
struct event {
	const char *name;
	unsigned int needs;
	unsigned int not;
	void (*happen)(struct state *state);
	void (*end)(struct state *state);
};

extern const struct kind kinds[];
extern const size_t nr_kinds;
extern const struct event events[];
extern const size_t nr_events;

/* Has the device read or write all that is usable, and find that the rest is not. */
void device_accesses(struct state *state);

/* The program writes new bytes everywhere, if it may. */
void cpu_writes(struct state *state);

/* The next byte to write: none that is in the memory. */
unsigned char next_byte(struct state *state);

/* Asserts that the program and the file have the bytes that they have to have. */
void check_bytes(const struct state *state);

/* Whether no page is in the page table, but for the one of zeros that all share. */
bool is_absent(const char *addr, size_t length);

/* Turns on swap, which stays on for as long as some of the memory may be there. */
void turn_on_swap(void);

/* Puts the memory aside: nothing of it is in the page table then. */
void page_out(struct state *state);

#endif
