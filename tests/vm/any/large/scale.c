// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The cost of registering most of a machine's memory, also for others. Not part of any run of
 * scripts/test: the machine needs 8 GiB at least. docs/speed.md has the command, and numbers.
 */
#define _GNU_SOURCE
#include "file.h"
#include "gpu.h"
#include "large.h"
#include "memory.h"
#include "pins.h"
#include "process.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

unsigned int scale(void)
{
	long long total = file_field("/proc/meminfo", "MemTotal:") >> 20;

	if (total < 7)
		SKIP("the machine has %lld GiB (scripts/vm --mem 16G)", total);
	return (unsigned int)total * 3 / 4;
}

static double ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

enum kind { SMALL, TRANSPARENT, GIGANTIC };

static const struct large {
	const char *name;
	enum kind kind;
} larges[] = {
	{ "gigantic", GIGANTIC },
	{ "thp", TRANSPARENT },
	{ "small", SMALL },
};

static char *populated(enum kind kind, unsigned int gibs)
{
	size_t length = gibs * GIB;
	char *memory;

	if (kind == GIGANTIC) {
		memory = gigantic_pages(gibs);
	} else {
		memory = address_space(length + GIB, GIB);
		SYS(mmap(memory, length, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0));
		SYS(madvise(memory, length, kind == SMALL ? MADV_NOHUGEPAGE : MADV_HUGEPAGE));
	}
	SYS(madvise(memory, length, MADV_POPULATE_WRITE));
	return memory;
}

/**
 * struct neighbour - another program, which registers and releases 1 MiB again and again
 * @worst: the longest time that a pair has taken, in ns
 * @pairs: how many
 */
struct neighbour {
	volatile uint64_t worst, pairs;
	volatile bool stop;
};

static void be_neighbour(struct neighbour *shared)
{
	char *memory = anon(MIB / PAGE);
	int fd = open_gpu();

	while (!shared->stop) {
		uint64_t begin = now_ns(), took;

		release(fd, register_memory(fd, memory, MIB, WRITE).handle);
		took = now_ns() - begin;
		if (took > shared->worst)
			shared->worst = took;
		shared->pairs++;
	}
	_exit(0);
}

static void tell(struct neighbour *neighbour, uint64_t ns, const char *while_)
{
	diag("  another program %s: %.0f pairs a second, the longest %.2f ms", while_,
	     (double)neighbour->pairs * 1e9 / (double)ns, ms(neighbour->worst));
	neighbour->worst = 0;
	neighbour->pairs = 0;
}

/* Times and kept memory for a quarter, half, and all of the memory: these must be linear. */
TEST_EACH(register_most, larges, .seconds = 600)
{
	/* no machine can have most of its memory in pages of 1 GiB */
	unsigned int most = row->kind == GIGANTIC ? scale() / 4 * 2 : scale();
	struct neighbour *neighbour = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
					       MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	double each[2][3];
	int fd = open_gpu(), turn = 0;
	char *memory;
	pid_t pid;

	pid = fork();
	if (pid == 0)
		be_neighbour(neighbour);
	usleep(500000);
	tell(neighbour, 500000000, "alone");
	memory = populated(row->kind, most);
	for (unsigned int gibs = most / 4; gibs <= most; gibs *= 2, turn++) {
		long long free = file_field("/proc/meminfo", "MemFree:");
		struct registration registration;
		uint64_t begin, made, gone;

		neighbour->worst = neighbour->pairs = 0;
		begin = now_ns();
		registration = register_memory(fd, memory, gibs * GIB, WRITE);
		made = now_ns();
		tell(neighbour, made - begin, "meanwhile");
		free -= file_field("/proc/meminfo", "MemFree:");
		gone = now_ns();
		release(fd, registration.handle);
		gone = now_ns() - gone;
		tell(neighbour, gone, "during the release");
		each[0][turn] = ms(made - begin) / gibs;
		each[1][turn] = ms(gone) / gibs;
		diag("%u GiB of %s pages: registered in %.1f ms, released in %.1f ms; "
		     "%lld KiB kept for each GiB",
		     gibs, row->name, ms(made - begin), ms(gone), free / gibs);
	}
	neighbour->stop = true;
	join(pid);
	if (row->kind == GIGANTIC) {
		SYS(munmap(memory, most * GIB));
		gigantic_pages(0);
	}
	/* others have the processors, too */
	for (int call = 0; call < 2; call++)
		CHECK(each[call][turn - 1] < 3 * each[call][0] + 1);
}

/* All registrations that a file may have, a quarter at a time. */
TEST(register_all_that_may_be, .seconds = 600)
{
	unsigned int most = scale() ? get_info(open_gpu()).out_max_registrations : 0;
	static uint64_t handles[1 << 18];
	char *memory = populated(SMALL, 1 + most / (GIB / PAGE));
	struct registration refused;
	int fd = open_gpu();

	CHECK(most <= ARRAY_SIZE(handles));
	for (unsigned int quarter = 0; quarter < 4; quarter++) {
		long long free = file_field("/proc/meminfo", "MemFree:");
		uint64_t begin = now_ns();

		for (unsigned int i = most / 4 * quarter; i < most / 4 * (quarter + 1); i++)
			handles[i] = register_memory(fd, memory + i * PAGE, PAGE, WRITE).handle;
		diag("registrations of quarter %u: %.0f ns each, %lld bytes kept for each", quarter,
		     (double)(now_ns() - begin) / (most / 4),
		     (free - file_field("/proc/meminfo", "MemFree:")) * 1024 / (most / 4));
	}
	CHECK_ERR(ENOSPC, try_register_memory(fd, memory + most * PAGE, PAGE, WRITE, &refused));
	for (unsigned int quarter = 0; quarter < 4; quarter++) {
		uint64_t begin = now_ns();

		for (unsigned int i = most / 4 * quarter; i < most / 4 * (quarter + 1); i++)
			release(fd, handles[i]);
		diag("releases of quarter %u: %.0f ns each", quarter,
		     (double)(now_ns() - begin) / (most / 4));
	}
}

/* Managed memory of many times the device's own: each GiB costs what the first one did. */
TEST(manage_most, .seconds = 600)
{
	unsigned int most = scale();
	char *memory = populated(TRANSPARENT, most);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_manage manage;

	CHECK_OK(try_manage(fd, 0, memory, most * GIB, &manage));
	for (unsigned int round = 0; round < 2; round++)
		for (unsigned int gib = 0; gib < most; gib++) {
			uint64_t begin = now_ns();

			for (size_t at = gib * GIB; at < (gib + 1) * GIB; at += 64 * MIB)
				queue_push(&queue, GPU_FILL | 3 << 8, (uintptr_t)memory + at,
					   64 * MIB, 0x1111111111111111 * (round + 1));
			queue_finish_within(&queue, 60000);
			if (gib % (most / 4) == 0)
				diag("round %u, GiB %u: %.0f ms", round, gib, ms(now_ns() - begin));
		}
	for (size_t at = 0; at < most * GIB; at += HUGE)
		CHECK_EQ(*(volatile uint64_t *)(memory + at + 8 * (at / HUGE % 512)),
			 0x2222222222222222);
}
