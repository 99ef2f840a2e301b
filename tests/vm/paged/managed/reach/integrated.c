// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * An integrated device (scripts/vm --device testgpu --gpu --integrated): its memory is a part of
 * the host's, so nothing moves.
 */
#define _GNU_SOURCE
#include "../managed.h"
#include "../moving.h"
#include "../told.h"

#include "edu.h"
#include "file.h"
#include "memory.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int open_integrated(void)
{
	int fd = open_gpu();

	if (!(get_info(fd).out_flags & PINMAP_INFO_INTEGRATED))
		SKIP("the device is not integrated: scripts/vm --gpu --integrated");
	return fd;
}

/* Memory that the device touches stays where it is, by a rule that says so. */
TEST(integrated_touches_in_place)
{
	enum { LENGTH = 4 * MIB };
	int fd = open_integrated();
	struct gpu_queue queue = queue_new(fd);
	uint64_t free = vram_free(fd);
	long long migrated = file_field("/proc/vmstat", "pgmigrate_success");
	char *memory = anon(LENGTH / PAGE);
	struct pinmap_manage managed;
	struct pinmap_residency args;
	struct pinmap_run runs[8];

	CHECK_OK(try_manage(fd, 0, memory, LENGTH, &managed));
	pattern_fill(memory, LENGTH, 0x11);
	gpu_fill(&queue, (uintptr_t)memory, LENGTH / 2, 0x22);
	gpu_copy(&queue, (uintptr_t)memory + LENGTH / 2 + PAGE, (uintptr_t)memory, PAGE);
	CHECK_OK(try_residency(fd, memory, LENGTH / 2, runs, 8, &args));
	CHECK_EQ(args.out_count, 1);
	CHECK_EQ(runs[0].place, PINMAP_PLACE_HOST);
	CHECK_EQ(runs[0].rule, PINMAP_RULE_FIXED);
	CHECK_EQ(runs[0].access & PINMAP_RUN_WRITE, PINMAP_RUN_WRITE);
	CHECK(bytes_are(memory, LENGTH / 2, 0x22));
	CHECK(bytes_are(memory + LENGTH / 2 + PAGE, PAGE, 0x22));
	CHECK_EQ(vram_free(fd), free);
	CHECK_EQ(file_field("/proc/vmstat", "pgmigrate_success"), migrated);
}

/* PREFETCH has nothing to do in either direction, and says that all is there. */
TEST(integrated_is_there)
{
	enum { LENGTH = 3 * MIB };
	int fd = open_integrated();
	char *memory = anon(LENGTH / PAGE);
	struct pinmap_manage managed;
	struct pinmap_prefetch args;
	const uint32_t flags[] = { 0, PINMAP_PREFETCH_HOST, PINMAP_PREFETCH_PREFLIGHT };

	CHECK_OK(try_manage(fd, 0, memory, LENGTH, &managed));
	for (unsigned int i = 0; i < 3; i++) {
		CHECK_OK(try_prefetch(fd, flags[i], memory, LENGTH, &args));
		CHECK_EQ(args.out_there, LENGTH);
		CHECK_EQ(args.out_moved | args.out_no_room | args.out_busy | args.out_fixed, 0);
	}
	CHECK_ERR(ENOENT, try_prefetch(fd, 0, memory + LENGTH, PAGE, &args));
}

/* Memory that is allocated as the device's is the host's. */
TEST(integrated_allocates_on_the_host)
{
	enum { LENGTH = 2 * MIB };
	int fd = open_integrated();
	struct gpu_queue queue = queue_new(fd);
	uint64_t free = vram_free(fd);
	struct gpu_memory memory = gpu_alloc(fd, PINMAP_ALLOC_VRAM, LENGTH);
	struct pinmap_alloc args;

	CHECK_EQ(query_handle(fd, memory.args.out_handle).out_kind, PINMAP_BUFFER_HOST);
	CHECK_EQ(vram_free(fd), free);
	CHECK(bytes_are(memory.addr, LENGTH, 0));
	gpu_fill(&queue, (uintptr_t)memory.addr, LENGTH, 0x33);
	CHECK(bytes_are(memory.addr, LENGTH, 0x33));
	CHECK_OK(try_alloc(fd, PINMAP_ALLOC_VRAM | PINMAP_ALLOC_P2PDMA, LENGTH, &args));
	release(fd, args.out_handle);
}

/* An atomic access would have to move the memory. */
TEST(integrated_refuses_atomics, .faults = true)
{
	int fd = open_integrated();
	struct gpu_queue queue = queue_new(fd);
	char *memory = anon(1);
	struct pinmap_manage managed;

	CHECK_OK(try_manage(fd, 0, memory, PAGE, &managed));
	memset(memory, 0, PAGE);
	queue_push_add(&queue, memory, 1, 1, 1);
	queue_submit(&queue);
	queue_stopped(&queue);
	CHECK_EQ(queue_query(&queue).out_reason, PINMAP_FAULT_ATOMIC);
	CHECK(bytes_are(memory, PAGE, 0));
}
