// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The table of tests: each row is a test, KIND_EVENT_reads or KIND_EVENT_writes. Memory that could
 * move to the device has a third one, KIND_EVENT_writes_host, in which it is used where it is.
 *
 * The device accesses the memory, something happens to it, and the device accesses it again; then
 * the program writes it, and the device accesses it once more. Each time all bytes are looked at:
 * those that the device read, that the program has, that the file has, and, in some rows, that a
 * child has. Nothing is ever pinned.
 */
#define _GNU_SOURCE
#include "table.h"

#include "pins.h"

#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct row {
	const struct kind *kind;
	const struct event *event;
	bool writes;
	bool on_host;
};

static void compare(const char *whose, const void *found, const unsigned char *wanted,
		    size_t length)
{
	const unsigned char *bytes = found;

	if (!memcmp(bytes, wanted, length))
		return;
	for (size_t at = 0; at < length; at++)
		if (bytes[at] != wanted[at])
			FAIL("%s has %#x at %#zx and not %#x", whose, bytes[at], at, wanted[at]);
}

void check_bytes(const struct state *state)
{
	compare("the program", state->addr, state->cpu, state->usable);
	if (state->file >= 0) {
		char *content = malloc(state->length);
		ssize_t got = SYS(pread(state->file, content, state->length, 0));

		compare("the file", content, state->saved, got);
		free(content);
	}
}

unsigned char next_byte(struct state *state)
{
	/* the bytes that fill_pages() uses are less */
	state->last = state->last < 0x80 || state->last == 0xff ? 0x80 : state->last + 1;
	return state->last;
}

void device_accesses(struct state *state)
{
	size_t usable = state->usable;
	bool may_write = !state->read_only;

	if (usable < state->length) {
		bool by_right = state->writes && !may_write && state->beyond != PINMAP_FAULT_HOLE;

		CHECK_REFUSED(state->gpu, state->addr + usable,
			      state->writes ? PINMAP_ACCESS_WRITE : PINMAP_ACCESS_READ,
			      by_right ? PINMAP_FAULT_PERMISSION : state->beyond);
	}
	if (!usable)
		return;
	if (!state->writes) {
		memset(state->result.addr, 0xee, usable);
		copy(&state->queue, state->addr, state->result.addr, usable);
		compare("the device", state->result.addr, state->cpu, usable);
	} else if (may_write) {
		unsigned char byte = next_byte(state);

		/* the first and the last page keep some bytes */
		if (state->most && usable > state->most)
			usable = state->most;
		fill(&state->queue, state->addr + PAGE / 2, usable - PAGE, byte);
		memset(state->cpu + PAGE / 2, byte, usable - PAGE);
	} else {
		struct pinmap_queue_query query =
			CHECK_WRITE_REFUSED(state->gpu, state->addr, PERMISSION);

		CHECK_EQ(query.out_vma_flags & (PINMAP_VMA_READ | PINMAP_VMA_WRITE),
			 PINMAP_VMA_READ);
		CHECK_EQ(!!(query.out_vma_flags & PINMAP_VMA_SHARED), !!(state->traits & SHARED));
	}
}

void cpu_writes(struct state *state)
{
	if (state->read_only || !state->usable)
		return;
	memset(state->addr, next_byte(state), state->usable);
	memset(state->cpu, state->last, state->usable);
}

static void run_row(const struct row *row, char *stack)
{
	long long pins = pins_held();
	struct state state = {
		.traits = row->kind->traits,
		.writes = row->writes,
		.addr = stack,
		.file = -1,
		.gpu = open_gpu(),
	};

	state.queue = queue_new(state.gpu);
	if (row->on_host)
		manage_all_host(state.gpu);
	else
		manage_all(state.gpu);
	row->kind->make(&state);
	state.result = gpu_alloc(state.gpu, 0, state.length);
	device_accesses(&state);
	check_bytes(&state);
	row->event->happen(&state);
	device_accesses(&state);
	check_bytes(&state);
	cpu_writes(&state);
	device_accesses(&state);
	check_bytes(&state);
	if (row->event->end)
		row->event->end(&state);
	CHECK_PINS(pins);
}

static void each_row(const void *variant)
{
	/* for the kind `stack`: whole pages in the middle of what this function has */
	char *stack = alloca(24 * PAGE);

	stack = (char *)(((uintptr_t)stack + 4 * PAGE) & ~(PAGE - 1));
	run_row(variant, stack);
}

static bool fits(const struct kind *kind, const struct event *event)
{
	return !(kind->traits & event->not) && (!event->needs || kind->traits & event->needs);
}

static void add_row(struct row row, const char *access)
{
	struct row *kept = malloc(sizeof(*kept));
	char name[64];

	if (!kept)
		abort();
	*kept = row;
	snprintf(name, sizeof(name), "%s_%s", row.event->name, access);
	test_add(&(struct test){ .run = each_row, .variant = kept }, row.kind->name, name);
}

__attribute__((constructor)) static void add_rows(void)
{
	for (size_t i = 0; i < nr_kinds; i++) {
		for (size_t j = 0; j < nr_events; j++) {
			struct row row = { &kinds[i], &events[j] };

			if (!fits(row.kind, row.event))
				continue;
			add_row(row, "reads");
			row.writes = true;
			add_row(row, "writes");
			row.on_host = true;
			if (row.kind->traits & ANONYMOUS)
				add_row(row, "writes_host");
		}
	}
}
