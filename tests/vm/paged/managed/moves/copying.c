// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The engine that copies pages is late, fails, or stops, at any copy, and the device goes in the
 * midst of it. After each the memory has its contents, or the program is told that it has not.
 */
#define _GNU_SOURCE
#include "../moving.h"

#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "process.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 64, LENGTH = PAGES * 4096 };

/*
 * Makes memory of which no two pages that follow each other do so in VRAM, so that each is a copy
 * of its own, and writes the pattern there. It is on the device then if @there.
 */
static char *scattered(int fd, bool there, uint32_t seed)
{
	char *memory = small_blocks(1), *other = small_blocks(1);

	scatter(fd, memory, other, PAGES);
	write_pattern(memory, LENGTH, seed);
	if (there)
		for (int page = 0; page < PAGES; page++)
			MOVE_THERE(fd, memory + page * PAGE, PAGE);
	return memory;
}

/* Waits until so many copies of a call have ended, and the next one runs. */
static void await_copies(uint64_t before, unsigned int count)
{
	while (gpu_register(GPU_PAGING_DONE) < before + count)
		;
	while (!(gpu_register(GPU_ENGINE_BUSY) >> GPU_PAGING_ENGINE & 1))
		;
}

static const struct {
	const char *name;
	bool home;
	unsigned int copies;
} failures[] = {
	{ "there_first", false, 0 }, { "there_second", false, 1 }, { "there_late", false, 40 },
	{ "home_first", true, 0 },   { "home_second", true, 1 },   { "home_late", true, 40 },
};

/*
 * A copy fails: those before it are good, and yet none of the call counts. What was to go there
 * stays; what was to come home is copied by the CPU. The next call works.
 */
TEST_EACH(moved_copy_fails, failures, .seconds = 120)
{
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	struct call *call;
	uint64_t before;
	char *memory;

	memory = scattered(fd, row->home, 11);
	before = gpu_register(GPU_PAGING_DONE);
	if (row->copies == 0)
		gpu_set_register(GPU_STUCK, 1 << GPU_PAGING_ENGINE);
	else
		gpu_set_register(GPU_LINK_BANDWIDTH, 200000);
	call = begin_call(fd, row->home ? PINMAP_PREFETCH_HOST : 0, memory, LENGTH);
	await_copies(before, row->copies);
	/* the one that runs ends, and the next one does not before the reset, which clears this */
	gpu_set_register(GPU_STUCK, 1 << GPU_PAGING_ENGINE);
	gpu_set_register(GPU_LINK_BANDWIDTH, 1000000000);
	sleep_ms(300);
	CHECK(gpu_register(GPU_ENGINE_BUSY) >> GPU_PAGING_ENGINE & 1);
	gpu_set_register(GPU_ENGINE_RESET, 1 << GPU_PAGING_ENGINE);
	if (row->home) {
		CHECK_OK(end_call(call));
		CHECK_EQ(call->args.out_moved, LENGTH);
	} else {
		CHECK_ERR(EIO, end_call(call));
	}
	CHECK_EQ(pages_away(memory, LENGTH), 0);
	CHECK(has_pattern(memory, LENGTH, 11));
	MOVE_THERE(fd, memory, LENGTH);
	fill(&queue, memory, PAGE, 0x71);
	CHECK(bytes_are(memory, PAGE, 0x71));
	MOVE_HOME(fd, memory + 16 * PAGE, LENGTH - 16 * PAGE);
}

static const struct {
	const char *name;
	bool home, huge, touched;
} ways[] = {
	{ "there", false, false, false },     { "home", true, false, false },
	{ "touched", true, false, true },     { "there_huge", false, true, false },
	{ "home_huge", true, true, false },   { "touched_huge", true, true, true },
};

/* The engine begins a copy late: until then nobody takes the pages for copied, or goes on. */
TEST_EACH(moved_late, ways, .seconds = 120)
{
	char *memory = block_of(row->huge), *seen = anon(HUGE / PAGE), *next = block_of(row->huge);
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct call *call;

	manage_all(fd);
	write_pattern(memory, HUGE, 12);
	if (row->home)
		MOVE_THERE(fd, memory, HUGE);
	gpu_set_register(GPU_STUCK, 1 << GPU_PAGING_ENGINE);
	if (row->touched) {
		pid_t pid = fork();

		if (pid == 0) {
			CHECK(has_pattern(memory, HUGE, 12));
			_exit(0);
		}
		CHECK(WAIT_FOR(1000, gpu_register(GPU_ENGINE_BUSY) >> GPU_PAGING_ENGINE & 1));
		sleep_ms(300);
		CHECK_EQ(waitpid(pid, NULL, WNOHANG), 0);
		gpu_set_register(GPU_STUCK, 0);
		join(pid);
	} else {
		call = begin_call(fd, row->home ? PINMAP_PREFETCH_HOST : 0, memory, HUGE);
		CHECK(WAIT_FOR(1000, gpu_register(GPU_ENGINE_BUSY) >> GPU_PAGING_ENGINE & 1));
		sleep_ms(300);
		CHECK(!call->ended);
		gpu_set_register(GPU_STUCK, 0);
		CHECK_OK(end_call(call));
		CHECK_EQ(call->args.out_moved, HUGE);
	}
	/* who gets the memory that became free writes it */
	memset(next, 0x72, HUGE);
	MOVE_THERE(fd, next, HUGE);
	gpu_alloc(other, PINMAP_ALLOC_VRAM, HUGE);
	copy(&queue, memory, seen, HUGE);
	CHECK(has_pattern(seen, HUGE, 12));
	CHECK(has_pattern(memory, HUGE, 12));
	CHECK(bytes_are(next, HUGE, 0x72));
}

static const struct {
	const char *name;
	bool home, huge, forked;
} freed[] = {
	{ "there", false, false, false },    { "there_huge", false, true, false },
	{ "home", true, false, false },      { "home_huge", true, true, false },
	{ "home_forked", true, false, true }, { "home_huge_forked", true, true, true },
};

/*
 * Memory that is freed while it moves is gone: the device is left with nothing of it. After a fork
 * the child ends meanwhile, and the parent has the memory still.
 */
TEST_EACH(moved_freed_meanwhile, freed, .seconds = 60)
{
	size_t length = row->huge ? HUGE : LENGTH;
	char *memory = block_of(row->huge);
	struct gate end = gate_new();
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	uint64_t before, used;
	struct call *call;
	uint32_t flags;
	pid_t pid = 0;

	before = vram_free(fd);
	write_pattern(memory, length, 13);
	if (row->home)
		MOVE_THERE(fd, memory, length);
	if (row->forked) {
		pid = SYS(fork());
		if (pid == 0) {
			gate_pass(&end);
			_exit(0);
		}
	}
	gpu_set_register(GPU_LINK_BANDWIDTH, row->huge ? 4000000 : 1000000);
	call = begin_call(fd, row->home ? PINMAP_PREFETCH_HOST : 0, memory, length);
	await_copies(gpu_register(GPU_PAGING_DONE), 0);
	used = vram_free(fd);
	if (row->forked) {
		gate_open(&end);
		join(pid);
	} else {
		SYS(madvise(memory, length, MADV_DONTNEED));
	}
	/* what is being copied is nobody else's yet */
	CHECK(vram_free(fd) <= used);
	CHECK(gpu_register(GPU_ENGINE_BUSY) >> GPU_PAGING_ENGINE & 1);
	gpu_set_register(GPU_LINK_BANDWIDTH, 1000000000);
	CHECK_OK(end_call(call));
	for (size_t at = 0; at < length; at += PAGE)
		CHECK_ERR(ENOENT, try_walk(fd, memory + at, &flags));
	if (row->forked)
		CHECK(has_pattern(memory, length, 13));
	else
		CHECK(bytes_are(memory, length, 0));
	CHECK(WAIT_FOR(5000, vram_free(fd) >= before - HUGE));
	fill(&queue, memory, length, 0x72);
	CHECK(bytes_are(memory, length, 0x72));
}

/* Each copy is told a while after it was made, and in each a program waits for it. */
TEST_EACH(moved_told_late, page_sizes, .seconds = 120)
{
	char *memory = block_of(row->huge);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	gpu_set_register(GPU_DELAY_NS, 30000000);
	for (unsigned int i = 0; i < rounds(8); i++) {
		write_pattern(memory, HUGE, i);
		MOVE_THERE(fd, memory, HUGE);
		fill(&queue, memory, PAGE, i);
		if (i % 2)
			MOVE_HOME(fd, memory, HUGE);
		CHECK(bytes_are(memory, PAGE, i));
		write_pattern(memory, PAGE, i);
		CHECK(has_pattern(memory, HUGE, i));
	}
	gpu_set_register(GPU_DELAY_NS, 0);
}

static const struct {
	const char *name;
	/* what is done to the device in the midst of a call */
	enum { UNBIND, RESET, ENGINE_DEAD, DEVICE_RESET } what;
	bool home;
} ends[] = {
	{ "unbind_there", UNBIND, false },	   { "unbind_home", UNBIND, true },
	{ "reset_there", RESET, false },	   { "reset_home", RESET, true },
	{ "dead_there", ENGINE_DEAD, false },	   { "dead_home", ENGINE_DEAD, true },
	{ "forgotten_there", DEVICE_RESET, false }, { "forgotten_home", DEVICE_RESET, true },
};

/*
 * The device goes while pages are on their way: it is unbound or reset by the kernel; its engine
 * stops, and cannot be reset; it was reset by a program, and has forgotten the copies. What it has
 * comes home in time, or is still readable.
 */
TEST_EACH(moved_ends_meanwhile, ends, .seconds = 120, .faults = true)
{
	int fd = open_managed();
	struct call *call;
	uint64_t before;
	char *memory;
	int error;

	memory = scattered(fd, row->home, 13);
	before = gpu_register(GPU_PAGING_DONE);
	gpu_set_register(GPU_LINK_BANDWIDTH, 1000000);
	call = begin_call(fd, row->home ? PINMAP_PREFETCH_HOST : 0, memory, LENGTH);
	await_copies(before, 5);
	switch (row->what) {
	case UNBIND:
		gpu_rebind();
		break;
	case RESET:
		file_write(pci_path(need_gpu(), "reset"), "1");
		break;
	case ENGINE_DEAD:
		gpu_set_register(GPU_NO_ACK, NO_ACK_ENGINE_RESET);
		gpu_set_register(GPU_STUCK, 1 << GPU_PAGING_ENGINE);
		break;
	case DEVICE_RESET:
		gpu_set_register(GPU_RESET, 1);
		break;
	}
	error = end_call(call);
	if (row->what == UNBIND || row->what == RESET)
		CHECK(error == 0 || error == -ENODEV || error == -EIO);
	else if (row->home)
		CHECK_OK(error);
	else
		CHECK_ERR(EIO, error);
	if (row->what == UNBIND || row->what == RESET)
		CHECK_EQ(pages_away(memory, LENGTH), 0);
	CHECK(has_pattern(memory, LENGTH, 13));
	if (row->what != UNBIND) {
		CHECK(WAIT_FOR(10000, try_prefetch(fd, 0, memory, LENGTH, &call->args) == -ENODEV));
		gpu_rebind();
	}
	check_works();
	CHECK(has_pattern(memory, LENGTH, 13));
}

/* A program is killed in the midst of a call: nothing of what it had there is kept. */
TEST_EACH(moved_killed, failures, .seconds = 120)
{
	struct gate ready = gate_new();
	int other = open_gpu();
	uint64_t free = vram_free(other), before;
	pid_t pid = fork();

	if (pid == 0) {
		struct pinmap_prefetch args;
		int fd = open_gpu();
		char *memory;

		manage_all(fd);
		memory = scattered(fd, row->home, 14);
		gate_open(&ready);
		/* until the registers say that copies are slow */
		while (gpu_register(GPU_LINK_BANDWIDTH) != 1000000)
			;
		try_prefetch(fd, row->home ? PINMAP_PREFETCH_HOST : 0, memory, LENGTH, &args);
		pause();
		_exit(0);
	}
	gate_pass(&ready);
	before = gpu_register(GPU_PAGING_DONE);
	gpu_set_register(GPU_LINK_BANDWIDTH, 1000000);
	await_copies(before, row->copies);
	kill_now(pid);
	gpu_set_register(GPU_LINK_BANDWIDTH, 1000000000);
	CHECK(WAIT_FOR(5000, vram_free(other) == free));
	check_works();
}

/* While pages are copied to VRAM, the device may read them, and not write them. */
TEST(moved_pages_are_only_read)
{
	enum { SOME = 24 * PAGE };
	char *memory = block_of(true);
	int fd = open_gpu();
	size_t before = bus_reach(true), writable = bus_reach(false), during, written;
	struct call *call;
	bool in_time;

	manage(fd, memory, HUGE);
	write_pattern(memory, HUGE, 12);
	/* the engine is stuck until it is reset, so the look has to be quick */
	do {
		MOVE_HOME(fd, memory, HUGE);
		gpu_set_register(GPU_STUCK, 1 << GPU_PAGING_ENGINE);
		call = begin_call(fd, 0, memory, SOME);
		await_copies(gpu_register(GPU_PAGING_DONE), 0);
		during = bus_reach(true);
		written = bus_reach(false);
		in_time = gpu_register(GPU_STUCK) != 0;
		gpu_set_register(GPU_STUCK, 0);
		end_call(call);
	} while (!in_time);
	CHECK_EQ(during, before + SOME);
	CHECK_EQ(written, writable);
	CHECK(has_pattern(memory, HUGE, 12));
}
