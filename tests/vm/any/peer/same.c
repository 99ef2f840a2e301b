// SPDX-License-Identifier: MIT OR Apache-2.0
/* VRAM that two contexts of one device share. */
#define _GNU_SOURCE
#include "peer.h"

#include "memory.h"
#include "process.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct pinmap_gpu_counters counters(int fd)
{
	struct pinmap_gpu_counters counters = { .size = sizeof(counters) };

	CHECK_OK(try_ioctl(fd, PINMAP_GPU_COUNTERS, &counters));
	return counters;
}

static uint64_t read_from_host(int fd)
{
	struct pinmap_gpu_counters now = counters(fd);
	uint64_t bytes = 0;

	for (unsigned int i = 0; i < now.out_nr_engines; i++)
		bytes += now.out_engines[i].host_read;
	return bytes;
}

/* The other process: has the memory by the dma-buf that it was sent, as VRAM. */
static void use_shared(int socket)
{
	int dma_buf = receive_fd(socket), fd = open_gpu();
	struct pinmap_import import = import_buffer(fd, dma_buf);
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory mine = gpu_alloc(fd, PINMAP_ALLOC_VRAM, HUGE);
	uint64_t at = map(fd, import.out_handle, PINMAP_MAP_WRITE, 0), before;
	char byte = 0;

	before = read_from_host(fd);
	gpu_copy(&queue, (uintptr_t)mine.addr, at, HUGE);
	CHECK(pattern_is(mine.addr, HUGE, 31));
	pattern_fill(mine.addr, HUGE, 32);
	gpu_copy(&queue, at, (uintptr_t)mine.addr, HUGE);
	/* nothing went by the bus */
	CHECK_EQ(read_from_host(fd), before);
	CHECK_EQ(SYS(write(socket, &byte, 1)), 1);
	CHECK_EQ(next_event(fd).type, PINMAP_EVENT_STALE);
	gpu_copy_fails(&queue, at, (uintptr_t)mine.addr, HUGE);
	CHECK_EQ(SYS(write(socket, &byte, 1)), 1);
}

/* A process gives VRAM to another one, which uses it as its own until it is released. */
TEST(vram_of_another_process, .smoke = true)
{
	int fd = open_gpu(), ends[2], dma_buf;
	struct gpu_memory vram, next;
	char byte;
	pid_t pid;

	SYS(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	pid = SYS(fork());
	if (!pid) {
		use_shared(ends[1]);
		_exit(EXIT_PASS);
	}
	vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, HUGE);
	pattern_fill(vram.addr, HUGE, 31);
	dma_buf = export_buffer(fd, vram.args.out_handle, PINMAP_EXPORT_WRITE);
	send_fd(ends[0], dma_buf);
	CHECK_EQ(SYS(read(ends[0], &byte, 1)), 1);
	CHECK(pattern_is(vram.addr, HUGE, 32));
	release(fd, vram.args.out_handle);
	SYS(munmap(vram.addr, HUGE));
	close(dma_buf);
	CHECK_EQ(SYS(read(ends[0], &byte, 1)), 1);
	join(pid);
	next = gpu_alloc(fd, PINMAP_ALLOC_VRAM, HUGE);
	CHECK(bytes_are(next.addr, HUGE, 0));
}
