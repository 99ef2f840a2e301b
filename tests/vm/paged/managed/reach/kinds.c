// SPDX-License-Identifier: MIT OR Apache-2.0
/* The kinds of memory of the table. */
#define _GNU_SOURCE
#include "table.h"

#include "file.h"
#include "memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SMALL = 16 * 4096 };

/* Maps plain memory in which huge pages would have room, but are not wanted. */
static char *plain(size_t length, int flags)
{
	char *memory = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, flags, -1, 0));

	SYS(madvise(memory, length, MADV_NOHUGEPAGE));
	return memory;
}

bool is_absent(const char *addr, size_t length)
{
	static uint64_t zeros;

	if (!zeros) {
		char *page = plain(PAGE, MAP_PRIVATE | MAP_ANONYMOUS);

		touch_read(page);
		zeros = page_frame(page);
	}
	for (size_t at = 0; at < length; at += PAGE) {
		uint64_t frame = page_frame(addr + at);

		if (frame && frame != zeros)
			return false;
	}
	return true;
}

/* Fills the memory, each page with other bytes, by @to: where the program can write it. */
static void fill_pages(struct state *state, char *to)
{
	for (size_t at = 0; at < state->length; at += PAGE)
		memset(state->cpu + at, 1 + at / PAGE % 120, PAGE);
	memcpy(to, state->cpu, state->length);
	if (state->saved != state->cpu && state->saved)
		memcpy(state->saved, state->cpu, state->length);
}

static void sized(struct state *state, size_t length)
{
	state->length = state->usable = length;
	state->cpu = calloc(1, length);
	state->saved = NULL;
	if (state->traits & FILED)
		state->saved = state->traits & SHARED ? state->cpu : calloc(1, length);
}

static void make_small(struct state *state)
{
	sized(state, SMALL);
	state->addr = plain(SMALL, MAP_PRIVATE | MAP_ANONYMOUS);
	fill_pages(state, state->addr);
}

static void make_thp(struct state *state)
{
	sized(state, HUGE);
	state->addr = memory_new(THP, HUGE).addr;
	fill_pages(state, state->addr);
}

static void make_heap(struct state *state)
{
	char *end = SYS((char *)sbrk(0));
	size_t unaligned = (uintptr_t)end % PAGE;

	sized(state, SMALL);
	SYS(sbrk(SMALL + (unaligned ? PAGE - unaligned : 0)));
	state->addr = (char *)SYS(sbrk(0)) - SMALL;
	fill_pages(state, state->addr);
}

static void make_untouched(struct state *state)
{
	sized(state, SMALL);
	state->addr = plain(SMALL, MAP_PRIVATE | MAP_ANONYMOUS);
}

static void make_swapped(struct state *state)
{
	turn_on_swap();
	make_small(state);
	page_out(state);
}

static void make_shared(struct state *state)
{
	sized(state, SMALL);
	state->addr = plain(SMALL, MAP_SHARED | MAP_ANONYMOUS);
	fill_pages(state, state->addr);
}

/* Maps a new file of some kind, which gets its bytes by write(). */
static void make_file(struct state *state, enum memory_kind kind, size_t length)
{
	struct memory memory = memory_new(kind, length);

	sized(state, length);
	state->addr = memory.addr;
	state->file = memory.fd;
	fill_pages(state, memory.alias);
	SYS(munmap(memory.alias, memory.length));
	/* so that what is not modified later is not in the page table as modified */
	SYS(fsync(memory.fd));
}

static void make_memfd(struct state *state)
{
	make_file(state, MEMFD, SMALL);
}

static void make_tmpfs(struct state *state)
{
	make_file(state, TMPFS, SMALL);
}

/* Two huge pages, so that one can be cut off. */
static void make_hugetlb(struct state *state)
{
	make_file(state, HUGETLB, 2 * HUGE);
}

static void make_shared_file(struct state *state)
{
	make_file(state, EXT4_SHARED, SMALL);
}

static void make_private_file(struct state *state)
{
	make_file(state, EXT4_PRIVATE, SMALL);
}

/* A file that the program can only read. */
static void make_read_only(struct state *state)
{
	make_file(state, EXT4_SHARED, SMALL);
	SYS(mmap(state->addr, SMALL, PROT_READ, MAP_SHARED | MAP_FIXED, state->file, 0));
	state->read_only = true;
}

static void make_hole(struct state *state)
{
	sized(state, SMALL);
	state->addr = NOWHERE;
	state->usable = 0;
	state->beyond = PINMAP_FAULT_HOLE;
}

/* The stack's memory is given by the caller: see each_row(). */
static void make_stack(struct state *state)
{
	char *memory = state->addr;

	sized(state, SMALL);
	fill_pages(state, memory);
}

const struct kind kinds[] = {
	{ "small", ANONYMOUS | EVICTABLE, make_small },
	{ "thp", ANONYMOUS | EVICTABLE, make_thp },
	{ "stack", ANONYMOUS | EVICTABLE, make_stack },
	{ "heap", ANONYMOUS | EVICTABLE, make_heap },
	{ "untouched", ANONYMOUS | EVICTABLE, make_untouched },
	{ "swapped", ANONYMOUS | EVICTABLE, make_swapped },
	{ "shared", SHARED | EVICTABLE, make_shared },
	{ "memfd", SHARED | FILED | EVICTABLE, make_memfd },
	{ "tmpfs", SHARED | FILED | EVICTABLE, make_tmpfs },
	{ "hugetlb", SHARED | FILED | HUGETLBFS, make_hugetlb },
	{ "shared_file", SHARED | FILED | EVICTABLE, make_shared_file },
	{ "private_file", FILED | EVICTABLE, make_private_file },
	{ "read_only_file", SHARED | FILED | READ_ONLY | EVICTABLE, make_read_only },
	{ "hole", NOTHING, make_hole },
};
const size_t nr_kinds = ARRAY_SIZE(kinds);
