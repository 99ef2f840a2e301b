// SPDX-License-Identifier: MIT OR Apache-2.0
/* The life of windows: their memory changes, and programs fork, race or are killed. */
#define _GNU_SOURCE
#include "window.h"

#include "edu.h"
#include "memory.h"
#include "pins.h"
#include "process.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Parent and child have the same addresses, each its own memory and its own window. */
TEST_EACH(window_and_fork, page_sizes)
{
	int fd = open_gpu();
	char *memory = memory_at(CHOSEN, LENGTH, row->huge);
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = window(fd, memory, LENGTH);
	struct gate wrote = gate_new(), looked = gate_new();
	pid_t pid;

	fill(&queue, memory, LENGTH, 0x81);
	CHECK_PLACE(fd, memory, LENGTH, ON_DEVICE, TOUCHED);
	pid = fork();
	if (!pid) {
		struct pinmap_manage args;
		struct gpu_queue own;
		int mine;

		CHECK_EQ(memory[PAGE], (char)0x81);
		/* the file is that of the parent */
		CHECK_ERR(EPERM, try_manage(fd, PINMAP_MANAGE_WINDOW, memory, LENGTH, &args));
		gate_pass(&wrote);
		CHECK(bytes_are(memory, LENGTH, 0x81));
		mine = open_gpu();
		window(mine, memory, LENGTH);
		own = queue_new(mine);
		copy(&own, memory, memory + LENGTH / 2, LENGTH / 2);
		fill(&own, memory, HUGE, 0x83);
		CHECK(bytes_are(memory, HUGE, 0x83));
		CHECK(bytes_are(memory + HUGE, LENGTH - HUGE, 0x81));
		CHECK_REGISTER_FAILS(mine, memory, PAGE, WRITE, EEXIST, PINMAP_FAIL_WINDOW, memory);
		gate_open(&looked);
		test_end(EXIT_PASS);
	}
	fill(&queue, memory, LENGTH, 0x82);
	gate_open(&wrote);
	gate_pass(&looked);
	join(pid);
	CHECK(bytes_are(memory, LENGTH, 0x82));
	fill(&queue, memory, LENGTH, 0x84);
	CHECK(bytes_are(memory, LENGTH, 0x84));
	release(fd, handle);
}

/* Asserts that the last fault of a window that was not served is this one. */
static void check_last(int fd, uint64_t handle, uint64_t count, const void *addr, uint32_t access,
		       uint32_t reason)
{
	struct pinmap_statistics seen = statistics(fd, handle);

	CHECK_EQ(seen.out_refused, count);
	CHECK_EQ(seen.out_last_addr, (uintptr_t)addr);
	CHECK_EQ(seen.out_last_access, access);
	CHECK_EQ(seen.out_last_reason, reason);
}

static const struct part {
	const char *name;
	bool huge;
	size_t begins;
} parts[] = {
	{ "small", false, HUGE },
	{ "huge", true, HUGE },
	{ "inside_huge", true, HUGE + 5 * PAGE },
};

/* Rights change, of all or of a part, and hold for the device; the last fault is told. */
TEST_EACH(window_and_mprotect, parts)
{
	int fd = open_gpu();
	char *memory = memory_at(CHOSEN, LENGTH, row->huge), *part = memory + row->begins;
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = window(fd, memory, LENGTH);

	fill(&queue, memory, LENGTH, 0x91);
	SYS(mprotect(part, HUGE, PROT_READ));
	CHECK_WRITE_REFUSED(fd, part, PERMISSION);
	check_last(fd, handle, 1, part, PINMAP_ACCESS_WRITE, PINMAP_FAULT_PERMISSION);
	copy(&queue, part, memory, HUGE);
	fill(&queue, part - PAGE, PAGE, 0x92);
	SYS(mprotect(part, HUGE, PROT_NONE));
	CHECK_READ_REFUSED(fd, part + PAGE, PERMISSION);
	check_last(fd, handle, 2, part + PAGE, PINMAP_ACCESS_READ, PINMAP_FAULT_PERMISSION);
	SYS(mprotect(part, HUGE, PROT_READ | PROT_WRITE));
	CHECK(bytes_are(part, HUGE, 0x91));
	CHECK(bytes_are(part - PAGE, PAGE, 0x92));
	fill(&queue, memory, LENGTH, 0x93);
	CHECK(bytes_are(memory, LENGTH, 0x93));
	check_last(fd, handle, 2, part + PAGE, PINMAP_ACCESS_READ, PINMAP_FAULT_PERMISSION);
	release(fd, handle);
}

/* Parts are unmapped, moved away, and mapped again, of other memory too. */
TEST_EACH(window_in_parts, page_sizes)
{
	int fd = open_gpu(), file = new_memfd(HUGE, 0);
	char *memory = memory_at(CHOSEN, LENGTH, row->huge), *part = memory + HUGE + 7 * PAGE;
	char *away = address_space(HUGE, HUGE);
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = window(fd, memory, LENGTH);

	fill(&queue, memory, LENGTH, 0xa1);
	SYS(munmap(part, 3 * PAGE));
	CHECK_WRITE_REFUSED(fd, part, HOLE);
	check_last(fd, handle, 1, part, PINMAP_ACCESS_WRITE, PINMAP_FAULT_HOLE);
	CHECK(bytes_are(memory, part - memory, 0xa1));
	CHECK(bytes_are(part + 3 * PAGE, memory + LENGTH - part - 3 * PAGE, 0xa1));
	/* the hole is nobody else's */
	CHECK_REGISTER_FAILS(fd, part, PAGE, WRITE, EEXIST, PINMAP_FAIL_WINDOW, memory);
	memory_at(part, 3 * PAGE, false);
	fill(&queue, part - PAGE, 5 * PAGE, 0xa2);
	CHECK(bytes_are(part - PAGE, 5 * PAGE, 0xa2));
	/* a part goes elsewhere, where the device does not reach it */
	CHECK(SYS(mremap(memory, HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, away)) == away);
	CHECK(bytes_are(away, HUGE, 0xa1));
	CHECK_WRITE_REFUSED(fd, away, UNMAPPED);
	CHECK_WRITE_REFUSED(fd, memory, HOLE);
	/* shared memory of a file in its place is used where it is */
	SYS(mmap(memory, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0));
	fill(&queue, memory, HUGE, 0xa3);
	CHECK(bytes_are(memory, HUGE, 0xa3));
	CHECK_PLACE(fd, memory, HUGE, ON_HOST, FIXED);
	check_last(fd, handle, 2, memory, PINMAP_ACCESS_WRITE, PINMAP_FAULT_HOLE);
	release(fd, handle);
}

/* Nothing is left of a program that is killed: tables, pages of the device, pins, its context. */
TEST_EACH(window_of_the_killed, page_sizes)
{
	int fd = open_gpu();
	uint64_t before = vram_free(fd), used = get_info(fd).out_memlock_used;
	unsigned int users = contexts();
	long long pins = pins_held();
	struct gate there = gate_new();
	pid_t pid = fork();

	if (!pid) {
		int own = open_gpu();
		char *memory = memory_at(CHOSEN, LENGTH, row->huge);
		struct gpu_queue queue = queue_new(own);

		window(own, memory, LENGTH);
		fill(&queue, memory, LENGTH, 0xb1);
		CHECK_PLACE(own, memory, LENGTH, ON_DEVICE, TOUCHED);
		/* it is killed while the device works on it */
		queue_push(&queue, gpu_launch(GPU_SPIN), 100000000, 0, 0);
		queue_push(&queue, GPU_FILL, (uintptr_t)memory, LENGTH, 0xb2);
		queue_ring(&queue);
		gate_open(&there);
		wait_for_ever(&queue);
	}
	gate_pass(&there);
	CHECK(vram_free(fd) < before);
	kill_now(pid);
	CHECK(WAIT_FOR(slow(5000), contexts() == users));
	CHECK(WAIT_FOR(slow(5000), vram_free(fd) == before));
	CHECK_EQ(get_info(fd).out_memlock_used, used);
	CHECK_PINS_SOON(pins);
	check_works();
}

/* The file is closed while the memory is on the device. */
TEST(window_of_a_closed_file)
{
	int fd = open_gpu(), other = open_gpu();
	char *memory = memory_at(CHOSEN, LENGTH, true);
	struct gpu_queue queue = queue_new(fd);
	uint64_t before = vram_free(other);

	window(fd, memory, LENGTH);
	fill(&queue, memory, LENGTH, 0xb3);
	queue_unmap(&queue);
	close(fd);
	CHECK(bytes_are(memory, LENGTH, 0xb3));
	CHECK(WAIT_FOR(slow(5000), vram_free(other) >= before));
	window(other, memory, LENGTH);
}

/**
 * struct race - two calls for the same addresses
 * @fd: the context
 * @memory: the addresses
 * @ready: where both wait for each other
 * @handle: what REGISTER made; 0: nothing
 */
struct race {
	int fd;
	char *memory;
	pthread_barrier_t ready;
	uint64_t handle;
};

enum { RACES = 300 };

static void *register_inside(void *data)
{
	struct race *race = data;

	for (int i = 0; i < RACES; i++) {
		struct pinmap_register args = register_args(race->memory + HUGE, PAGE, WRITE);
		int result;

		pthread_barrier_wait(&race->ready);
		result = try_register_args(race->fd, &args);
		race->handle = result ? 0 : args.out_handle;
		if (result)
			check_fail(__FILE__, __LINE__, result, EEXIST, &args.fail,
				   PINMAP_FAIL_WINDOW, (uintptr_t)race->memory);
		pthread_barrier_wait(&race->ready);
		pthread_barrier_wait(&race->ready);
	}
	return NULL;
}

/* A window and a registration want the same addresses at once: one of them is made. */
TEST(window_races_with_register, .seconds = 60)
{
	struct race race = { .fd = open_gpu(), .memory = small_blocks(BLOCKS) };
	unsigned int won = 0;
	pthread_t thread;

	memset(race.memory, 1, LENGTH);
	pthread_barrier_init(&race.ready, NULL, 2);
	pthread_create(&thread, NULL, register_inside, &race);
	for (int i = 0; i < RACES; i++) {
		struct pinmap_manage args;
		int result;

		pthread_barrier_wait(&race.ready);
		result = try_window(race.fd, race.memory, LENGTH, &args);
		if (result)
			check_fail(__FILE__, __LINE__, result, EEXIST, &args.fail,
				   PINMAP_FAIL_OVERLAP, (uintptr_t)race.memory + HUGE);
		pthread_barrier_wait(&race.ready);
		CHECK(!result == !race.handle);
		won += !result;
		release(race.fd, result ? race.handle : args.out_handle);
		pthread_barrier_wait(&race.ready);
	}
	pthread_join(thread, NULL);
	diag("the window was quicker %u times of %u", won, RACES);
}

/* Windows come and go where the device is at work. */
TEST(window_comes_and_goes, .seconds = 120)
{
	int fd = open_managed();
	char *memory = small_blocks(BLOCKS);
	struct gpu_queue queue = queue_new(fd);

	for (unsigned int i = 0; i < 40; i++) {
		uint64_t handle;

		for (unsigned int block = 0; block < BLOCKS; block++)
			queue_push(&queue, GPU_FILL, (uintptr_t)memory + block * HUGE, HUGE, i + 1);
		queue_submit(&queue);
		handle = window(fd, memory, LENGTH);
		SYS(madvise(memory + i % BLOCKS * HUGE, HUGE,
			    i % 2 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
		release(fd, handle);
		CHECK_OK(try_queue_wait(&queue, slow(30000)));
		CHECK(bytes_are(memory, LENGTH, i + 1));
	}
}

/* debugfs has a line for each range of each process, with its last fault. */
TEST(window_in_debugfs)
{
	int fd = open_gpu();
	char *memory = small_blocks(BLOCKS), path[96], line[512], start[64], end[96];
	uint64_t handle = window(fd, memory, LENGTH);
	unsigned int found = 0;
	FILE *file;

	if (access("/sys/kernel/debug/pinmap", F_OK))
		SKIP("debugfs is not mounted");
	SYS(munmap(memory + HUGE, PAGE));
	CHECK_READ_REFUSED(fd, memory + HUGE, HOLE);
	snprintf(path, sizeof(path), "/sys/kernel/debug/pinmap/%s/ranges", need_gpu());
	snprintf(start, sizeof(start), " %d %llu window %#lx %lu ", getpid(),
		 (unsigned long long)handle, (unsigned long)memory, (unsigned long)LENGTH);
	snprintf(end, sizeof(end), " 1 %#lx read hole\n", (unsigned long)memory + HUGE);
	file = fopen(path, "r");
	CHECK(file);
	while (fgets(line, sizeof(line), file))
		if (strstr(line, start)) {
			CHECK(strstr(line, end) == line + strlen(line) - strlen(end));
			found++;
		}
	fclose(file);
	CHECK_EQ(found, 1);
}
