// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Memory that is on the device in the hands of others: system calls that read and write it, other
 * processes, and whoever pins it.
 */
#define _GNU_SOURCE
#include "../moving.h"

#include "edu.h"
#include "memory.h"
#include "process.h"
#include "ring.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Pages on the device are buffers for read() and write() as any others. */
TEST_EACH(moved_read_write, page_sizes)
{
	char *memory = block_of(row->huge), *seen = anon(HUGE / PAGE);
	int fd = open_gpu(), file = new_memfd(HUGE, 0);
	struct gpu_queue queue = queue_new(fd);

	manage_all(fd);
	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, 0x21);
	CHECK_EQ(pwrite(file, memory, HUGE, 0), HUGE);
	CHECK_EQ(pread(file, seen, HUGE, 0), HUGE);
	CHECK(bytes_are(seen, HUGE, 0x21));

	memset(seen, 0x22, HUGE);
	CHECK_EQ(pwrite(file, seen, HUGE, 0), HUGE);
	fill(&queue, memory, HUGE, 0x23);
	MOVE_THERE(fd, memory, HUGE);
	/* not whole pages */
	CHECK_EQ(pread(file, memory + 100, HUGE / 2, 0), HUGE / 2);
	copy(&queue, memory, seen, HUGE);
	CHECK(bytes_are(seen, 100, 0x23));
	CHECK(bytes_are(seen + 100, HUGE / 2, 0x22));
	CHECK(bytes_are(seen + 100 + HUGE / 2, HUGE / 2 - 100, 0x23));
	CHECK(!memcmp(memory, seen, HUGE));
}

/* Another process reads and writes it. */
TEST_EACH(moved_process_vm, page_sizes)
{
	char *memory = block_of(row->huge), *seen = anon(HUGE / PAGE);
	struct iovec own = { seen, HUGE }, other = { memory, HUGE };
	struct gate moved = gate_new(), written = gate_new();
	pid_t pid = fork();

	if (pid == 0) {
		int fd = open_gpu();
		struct gpu_queue queue = queue_new(fd);

		manage_all(fd);
		for (int i = 0; i < 2; i++) {
			MOVE_THERE(fd, memory, HUGE);
			if (i == 0)
				fill(&queue, memory, HUGE, 0x24);
			gate_open(&moved);
			gate_pass(&written);
		}
		copy(&queue, memory, seen, HUGE);
		CHECK(bytes_are(seen, HUGE, 0x25));
		CHECK(bytes_are(memory, HUGE, 0x25));
		_exit(0);
	}
	gate_pass(&moved);
	CHECK_EQ(SYS(process_vm_readv(pid, &own, 1, &other, 1, 0)), HUGE);
	CHECK(bytes_are(seen, HUGE, 0x24));
	gate_open(&written);
	gate_pass(&moved);
	memset(seen, 0x25, HUGE);
	CHECK_EQ(SYS(process_vm_writev(pid, &own, 1, &other, 1, 0)), HUGE);
	gate_open(&written);
	join(pid);
}

/* A ring's buffers come home when they are registered, and stay until the ring ends. */
TEST_EACH(moved_io_uring, page_sizes)
{
	char *memory = block_of(row->huge), *seen = anon(HUGE / PAGE);
	int fd = open_gpu(), file = direct_file();
	struct gpu_queue queue = queue_new(fd);
	struct ring ring;

	manage_all(fd);
	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, 0x26);
	ring = ring_new(memory, HUGE);
	CHECK_EQ(pages_away(memory, HUGE), 0);
	CHECK_EQ(prefetch(fd, 0, memory, HUGE).out_busy, HUGE);
	ring_write(&ring, file, memory, HUGE);
	CHECK_EQ(pread(file, seen, HUGE, 0), HUGE);
	CHECK(bytes_are(seen, HUGE, 0x26));
	fill(&queue, memory, HUGE, 0x27);
	CHECK_EQ(prefetch(fd, 0, memory, HUGE).out_busy, HUGE);
	ring_read(&ring, file, memory, HUGE);
	copy(&queue, memory, seen, HUGE);
	CHECK(bytes_are(seen, HUGE, 0x26));
	ring_close(&ring);
	CHECK(WAIT_FOR(5000, prefetch(fd, 0, memory, HUGE).out_busy == 0));
	CHECK_EQ(pages_away(memory, HUGE), HUGE / PAGE);
	CHECK(bytes_are(memory, HUGE, 0x26));
}

/* A page in a pipe stays at home, with what it had. */
TEST_EACH(moved_vmsplice, page_sizes)
{
	char *memory = block_of(row->huge), content[PAGE];
	int fd = open_gpu(), pipe;
	struct gpu_queue queue = queue_new(fd);

	manage_all(fd);
	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, 0x28);
	pipe = keep_page(memory);
	CHECK(prefetch(fd, 0, memory, PAGE).out_busy == PAGE);
	CHECK_EQ(pages_away(memory, PAGE), 0);
	read_kept_page(pipe, content);
	CHECK(bytes_are(content, PAGE, 0x28));
	close(pipe);
	CHECK(bytes_are(memory, HUGE, 0x28));
}

struct wanderer {
	int fd;
	char *memory;
	size_t length;
	volatile bool stop;
	/* pages that went there and came home */
	size_t there, home;
};

/* Moves memory to the device and home, in parts of different sizes, until it is told to stop. */
static void *wander(void *argument)
{
	struct wanderer *wanderer = argument;
	size_t pages = wanderer->length / PAGE;
	unsigned int seed = 3;

	while (!wanderer->stop) {
		size_t first = rand_r(&seed) % pages, count = 1 + rand_r(&seed) % (pages - first);
		char *addr = wanderer->memory + first * PAGE;

		wanderer->there += prefetch(wanderer->fd, 0, addr, count * PAGE).out_moved / PAGE;
		wanderer->home += prefetch(wanderer->fd, PINMAP_PREFETCH_HOST, addr,
					   count * PAGE).out_moved / PAGE;
	}
	return NULL;
}

/*
 * The disk reads and writes memory that wanders between host and device meanwhile. Every transfer
 * is of the bytes that the memory has, and none is lost.
 */
TEST_EACH(moved_direct_io, page_sizes, .seconds = 180)
{
	enum { LENGTH = 64 * 4096 };
	char *memory = block_of(row->huge), *other = anon(LENGTH / PAGE);
	int fd = open_gpu(), file = direct_file();
	struct wanderer wanderer = { fd, memory, row->huge ? HUGE : LENGTH, false, 0, 0 };
	unsigned int done = 0, wanted = rounds(150);
	pthread_t thread;

	manage_all(fd);
	memset(memory, 0, HUGE);
	memset(other, 0, LENGTH);
	CHECK_EQ(pwrite(file, other, LENGTH, 0), LENGTH);
	CHECK_OK(-pthread_create(&thread, NULL, wander, &wanderer));
	while (done < wanted || wanderer.there < 1000) {
		/* into memory that wanders */
		write_pattern(other, LENGTH, done);
		CHECK_EQ(pwrite(file, other, LENGTH, 0), LENGTH);
		CHECK_EQ(pread(file, memory, LENGTH, 0), LENGTH);
		if (!has_pattern(memory, LENGTH, done))
			FAIL("round %u: another thing was read", done);
		/* and out of it */
		write_pattern(memory, LENGTH, ~done);
		CHECK_EQ(pwrite(file, memory, LENGTH, 0), LENGTH);
		CHECK_EQ(pread(file, other, LENGTH, 0), LENGTH);
		if (!has_pattern(other, LENGTH, ~done))
			FAIL("round %u: another thing was written", done);
		done++;
	}
	wanderer.stop = true;
	CHECK_OK(-pthread_join(thread, NULL));
	diag("%u rounds; %zu pages went there, %zu came home by call", done, wanderer.there,
	     wanderer.home);
}

/* O_DIRECT reads and writes memory while it moves, and the device writes and reads it. */
TEST(moved_direct_io_and_device, .seconds = 180)
{
	enum { LENGTH = 32 * 4096 };
	char *memory = block_of(false), *other = anon(LENGTH / PAGE);
	int fd = open_gpu(), file = direct_file();
	struct gpu_queue queue = queue_new(fd);
	struct wanderer wanderer = { fd, memory, LENGTH, false, 0, 0 };
	unsigned int done = 0, wanted = rounds(60);
	pthread_t thread;

	manage_all(fd);
	memset(memory, 0, HUGE);
	memset(other, 0, LENGTH);
	CHECK_OK(-pthread_create(&thread, NULL, wander, &wanderer));
	while (done < wanted || wanderer.there < 1000) {
		unsigned char byte = 1 + done % 250;

		fill(&queue, memory, LENGTH, byte);
		CHECK_EQ(pwrite(file, memory, LENGTH, 0), LENGTH);
		CHECK_EQ(pread(file, other, LENGTH, 0), LENGTH);
		if (!bytes_are(other, LENGTH, byte))
			FAIL("round %u: another thing was written", done);
		memset(other, byte + 1, LENGTH);
		CHECK_EQ(pwrite(file, other, LENGTH, 0), LENGTH);
		CHECK_EQ(pread(file, memory, LENGTH, 0), LENGTH);
		memset(other, 0, LENGTH);
		copy(&queue, memory, other, LENGTH);
		if (!bytes_are(other, LENGTH, byte + 1))
			FAIL("round %u: the device reads another thing", done);
		done++;
	}
	wanderer.stop = true;
	CHECK_OK(-pthread_join(thread, NULL));
	diag("%u rounds; %zu pages went there", done, wanderer.there);
}
