// SPDX-License-Identifier: MIT OR Apache-2.0
/* The events that happen to memory in the rows of the table. */
#define _GNU_SOURCE
#include "table.h"

#include "file.h"
#include "memory.h"
#include "pressure.h"
#include "process.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

/* Pages that are copied one by one when they are written. */
enum { FEW = 32 * 4096 };

static void nothing(struct state *state)
{
	(void)state;
}

static void protect(struct state *state, int protection)
{
	SYS(mprotect(state->addr, state->length, protection));
}

static void protect_read(struct state *state)
{
	protect(state, PROT_READ);
	state->read_only = true;
}

static void write_again(struct state *state)
{
	protect(state, PROT_READ | PROT_WRITE);
	state->read_only = false;
	device_accesses(state);
	check_bytes(state);
}

static void protect_none_and_back(struct state *state)
{
	protect(state, PROT_NONE);
	state->usable = 0;
	state->beyond = PINMAP_FAULT_PERMISSION;
	device_accesses(state);
	protect(state, state->read_only ? PROT_READ : PROT_READ | PROT_WRITE);
	state->usable = state->length;
}

static void unmapped(struct state *state, size_t usable)
{
	SYS(munmap(state->addr + usable, state->length - usable));
	state->usable = usable;
	state->beyond = PINMAP_FAULT_HOLE;
}

static void unmap_all(struct state *state)
{
	unmapped(state, 0);
}

static void unmap_half(struct state *state)
{
	unmapped(state, state->length / 2);
}

/* The file keeps what it has; the program has new memory. */
static void map_over(struct state *state)
{
	if (state->saved == state->cpu) {
		state->saved = malloc(state->length);
		memcpy(state->saved, state->cpu, state->length);
	}
	SYS(mmap(state->addr, state->length, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	memset(state->cpu, 0, state->length);
	state->traits = ANONYMOUS;
	state->read_only = false;
	state->usable = state->length;
}

static void move(struct state *state)
{
	char *old = state->addr, *new = address_space(state->length, HUGE);

	state->addr = SYS(mremap(old, state->length, state->length,
				 MREMAP_MAYMOVE | MREMAP_FIXED, new));
	if (state->writes)
		CHECK_WRITE_REFUSED(state->gpu, old, HOLE);
	else
		CHECK_READ_REFUSED(state->gpu, old, HOLE);
}

/* Records what the program has instead of memory that it gave back. */
static void given_back(struct state *state, size_t from)
{
	if (state->traits & SHARED)
		return;
	if (state->traits & FILED)
		memcpy(state->cpu + from, state->saved + from, state->length - from);
	else
		memset(state->cpu + from, 0, state->length - from);
}

static void dont_need(struct state *state)
{
	SYS(madvise(state->addr, state->length, MADV_DONTNEED));
	given_back(state, 0);
}

static bool is_paged_out(const struct state *state)
{
	SYS(madvise(state->addr, state->length, MADV_PAGEOUT));
	if (is_absent(state->addr, state->length))
		return true;
	/* has every processor put its pages on the lists that reclaim looks at */
	compact();
	return false;
}

void page_out(struct state *state)
{
	/* the kernel forgets only what the file has */
	if (state->file >= 0 && state->traits & SHARED)
		SYS(fsync(state->file));
	if (!WAIT_FOR(5000, is_paged_out(state)))
		FAIL("the memory stays where it is");
}

static bool has_swap;

void turn_on_swap(void)
{
	/* what a test that failed has left is of no use */
	if (!has_swap)
		swap_begin();
	has_swap = true;
}

static void page_out_first(struct state *state)
{
	turn_on_swap();
	page_out(state);
}

static void page_out_again(struct state *state)
{
	page_out(state);
	device_accesses(state);
	page_out(state);
	check_bytes(state);
	swap_end();
}

/*
 * The kernel may drop what was freed and not written since. What was written since it must keep,
 * whoever wrote it.
 */
static void free_lazily(struct state *state)
{
	turn_on_swap();
	SYS(madvise(state->addr, state->length, MADV_FREE));
	device_accesses(state);
	page_out(state);
	if (state->writes)
		return;
	for (size_t at = 0; at < state->length; at += PAGE)
		if (!state->addr[at])
			memset(state->cpu + at, 0, PAGE);
}

static void end_swap(struct state *state)
{
	SYS(madvise(state->addr, state->length, MADV_DONTNEED));
	swap_end();
}

/* A child that looks at the memory when it is told, or writes it first. */
static struct {
	pid_t pid;
	struct gate look, done;
	unsigned char *bytes;
} child;

static void have_child(struct state *state, bool writes)
{
	state->most = FEW;
	/* what a child has of memory that is not shared is its own */
	child.look = gate_new();
	child.done = gate_new();
	child.pid = SYS(fork());
	if (child.pid == 0) {
		unsigned char *copy = malloc(state->length);

		if (writes)
			cpu_writes(state);
		memcpy(copy, state->cpu, state->length);
		gate_open(&child.done);
		gate_pass(&child.look);
		/* the parent says what was written to shared memory meanwhile */
		if (state->traits & SHARED)
			memcpy(copy, child.bytes, state->length);
		CHECK(!memcmp(state->addr, copy, state->length));
		if (writes && !(state->traits & SHARED)) {
			cpu_writes(state);
			CHECK(!memcmp(state->addr, state->cpu, state->length));
		}
		_exit(0);
	}
	gate_pass(&child.done);
	if (writes && state->traits & SHARED)
		memset(state->cpu, next_byte(state), state->length);
}

static void share_bytes(struct state *state)
{
	child.bytes = SYS(mmap(NULL, state->length, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

static void fork_reader(struct state *state)
{
	share_bytes(state);
	have_child(state, false);
}

static void fork_writer(struct state *state)
{
	share_bytes(state);
	have_child(state, true);
}

static void child_looks(struct state *state)
{
	memcpy(child.bytes, state->cpu, state->length);
	gate_open(&child.look);
	join(child.pid);
	device_accesses(state);
	check_bytes(state);
}

/* Whether a page in the middle is another page, too: not all are one, if they are many. */
static bool is_merged(const struct state *state)
{
	uint64_t frame = page_frame(state->addr + PAGE);

	for (size_t at = 2 * PAGE; frame && at < state->length; at += PAGE)
		if (page_frame(state->addr + at) == frame)
			return true;
	return false;
}

static void merge(struct state *state)
{
	state->most = FEW;
	memset(state->addr, 0x77, state->length);
	memset(state->cpu, 0x77, state->length);
	device_accesses(state);
	/* what the device has written is the same in all pages but the first and the last */
	SYS(madvise(state->addr, state->length, MADV_MERGEABLE));
	/* what is on the device is not merged */
	check_bytes(state);
	if (!ksm_begin())
		SKIP("the kernel has no KSM");
	if (!WAIT_FOR(10000, is_merged(state)))
		FAIL("the kernel does not merge pages");
	ksm_end();
}

static void unmerge(struct state *state)
{
	SYS(madvise(state->addr, state->length, MADV_UNMERGEABLE));
	check_bytes(state);
}

static int node_of(void *page)
{
	int node = -1;

	SYS(syscall(SYS_move_pages, 0, 1, &page, NULL, &node, 0));
	return node;
}

static bool moved_to(char *page, int node)
{
	enum { MOVE_ALL = 4 };
	int status;

	syscall(SYS_move_pages, 0, 1, &page, &node, &status, MOVE_ALL);
	return node_of(page) == node;
}

static void move_to_other_node(struct state *state)
{
	int to = -1;

	if (access("/sys/devices/system/node/node1", F_OK))
		SKIP("the machine has one NUMA node");
	for (size_t at = 0; at < state->length; at += PAGE) {
		int node = node_of(state->addr + at);

		if (to < 0)
			to = !node;
		/* the page of zeros that all share stays where it is */
		if (node >= 0 && !WAIT_FOR(5000, moved_to(state->addr + at, to)))
			FAIL("page %zu does not move", at / PAGE);
	}
}

static void compact_all(struct state *state)
{
	(void)state;
	compact();
}

/* The second half of the file goes, and comes back with zeros. */
static void truncate_half(struct state *state)
{
	size_t half = state->length / 2;

	SYS(ftruncate(state->file, half));
	state->usable = half;
	state->beyond = PINMAP_FAULT_FILE;
	device_accesses(state);
	check_bytes(state);
	SYS(ftruncate(state->file, state->length));
	state->usable = state->length;
	memset(state->cpu + half, 0, half);
	memset(state->saved + half, 0, half);
}

static void punch_hole(struct state *state)
{
	size_t half = state->length / 2;

	SYS(fallocate(state->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, half, half));
	memset(state->saved + half, 0, half);
	/* what the process has copied is its own */
	if (!state->writes)
		memset(state->cpu + half, 0, half);
}

static void guard(struct state *state)
{
	size_t half = state->length / 2;

	if (madvise(state->addr + half, half, MADV_GUARD_INSTALL)) {
		CHECK_EQ(errno, EINVAL);
		SKIP("the kernel has no guards in such memory");
	}
	state->usable = half;
	state->beyond = PINMAP_FAULT_GUARD;
	device_accesses(state);
	check_bytes(state);
	SYS(madvise(state->addr + half, half, MADV_GUARD_REMOVE));
	state->usable = state->length;
	given_back(state, half);
}

const struct event events[] = {
	{ "alone", 0, 0, nothing, NULL },
	{ "protect_read", 0, READ_ONLY | NOTHING, protect_read, write_again },
	{ "protect_none_and_back", 0, NOTHING, protect_none_and_back, NULL },
	{ "munmap", 0, NOTHING, unmap_all, NULL },
	{ "munmap_half", 0, NOTHING, unmap_half, NULL },
	{ "map_over", 0, 0, map_over, NULL },
	{ "mremap", 0, NOTHING, move, NULL },
	{ "dontneed", 0, NOTHING, dont_need, NULL },
	{ "free", ANONYMOUS, 0, free_lazily, end_swap },
	{ "fork_reader", 0, NOTHING, fork_reader, child_looks },
	{ "fork_writer", 0, NOTHING | READ_ONLY, fork_writer, child_looks },
	{ "ksm", ANONYMOUS, 0, merge, unmerge },
	{ "move_pages", 0, NOTHING | HUGETLBFS, move_to_other_node, NULL },
	{ "compaction", 0, NOTHING, compact_all, NULL },
	{ "pageout", EVICTABLE, 0, page_out_first, page_out_again },
	{ "truncate", FILED, 0, truncate_half, NULL },
	{ "punch_hole", FILED, 0, punch_hole, NULL },
	{ "guard", 0, NOTHING | HUGETLBFS, guard, NULL },
};
const size_t nr_events = ARRAY_SIZE(events);
