// SPDX-License-Identifier: MIT OR Apache-2.0
/* VRAM that two contexts of one device share. */
#define _GNU_SOURCE
#include "peer.h"

#include "memory.h"
#include "process.h"

#include <errno.h>
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

/* Bytes that the engines have read from the bus, and written to it. */
static uint64_t by_the_bus(int fd)
{
	struct pinmap_gpu_counters now = counters(fd);
	uint64_t bytes = 0;

	for (unsigned int i = 0; i < now.out_nr_engines; i++)
		bytes += now.out_engines[i].host_read + now.out_engines[i].host_written;
	return bytes;
}

/* Maps VRAM that was imported: 0 or -errno. */
static int try_view(int fd, const struct pinmap_import *import, size_t length, int access)
{
	void *seen = mmap(NULL, length, access, MAP_SHARED, fd, (off_t)import->out_offset);

	return seen == MAP_FAILED ? -errno : 0;
}

/* The other process: has the memory by the dma-buf that it was sent, as VRAM. */
static void use_shared(int socket)
{
	int dma_buf = receive_fd(socket), fd = open_gpu();
	struct pinmap_import import = import_buffer(fd, dma_buf);
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory mine = gpu_alloc(fd, PINMAP_ALLOC_VRAM, HUGE);
	uint64_t at = map(fd, import.out_handle, PINMAP_MAP_WRITE, 0), before;
	char byte = 0, *seen;

	before = by_the_bus(fd);
	gpu_copy(&queue, (uintptr_t)mine.addr, at, HUGE);
	CHECK(pattern_is(mine.addr, HUGE, 31));
	pattern_fill(mine.addr, HUGE, 32);
	gpu_copy(&queue, at, (uintptr_t)mine.addr, HUGE);
	/* nothing went by the bus */
	CHECK_EQ(by_the_bus(fd), before);
	/* nor by the CPU, which sees it, too */
	seen = SYS(mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			(off_t)import.out_offset));
	CHECK(pattern_is(seen, HUGE, 32));
	pattern_fill(seen, HUGE, 33);
	CHECK_EQ(SYS(write(socket, &byte, 1)), 1);
	CHECK_EQ(next_event(fd).type, PINMAP_EVENT_STALE);
	/* a worker ends the mappings */
	CHECK(WAIT_FOR(5000, touch_read(seen) == SIGBUS));
	CHECK_EQ(touch_read(seen + HUGE - 4), SIGBUS);
	CHECK(WAIT_FOR(5000, try_view(fd, &import, HUGE, PROT_READ) == -EINVAL));
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
		close(ends[0]);
		use_shared(ends[1]);
		_exit(EXIT_PASS);
	}
	/* if it fails, reading from it does not wait */
	close(ends[1]);
	vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, HUGE);
	pattern_fill(vram.addr, HUGE, 31);
	dma_buf = export_buffer(fd, vram.args.out_handle, PINMAP_EXPORT_WRITE);
	send_fd(ends[0], dma_buf);
	CHECK_EQ(SYS(read(ends[0], &byte, 1)), 1);
	CHECK(pattern_is(vram.addr, HUGE, 33));
	release(fd, vram.args.out_handle);
	SYS(munmap(vram.addr, HUGE));
	close(dma_buf);
	CHECK_EQ(SYS(read(ends[0], &byte, 1)), 1);
	join(pid);
	next = gpu_alloc(fd, PINMAP_ALLOC_VRAM, HUGE);
	CHECK(bytes_are(next.addr, HUGE, 0));
}

/* Exported for reading, VRAM is mapped for reading; releasing an import ends its mappings. */
TEST(vram_of_another_context_read_only)
{
	struct giver giver = { .fd = open_gpu() };
	int fd = open_gpu(), dma_buf;
	struct pinmap_import import;
	struct registration host;
	char *seen;

	giver.vram = gpu_alloc(giver.fd, PINMAP_ALLOC_VRAM, 2 * PAGE);
	pattern_fill(giver.vram.addr, 2 * PAGE, 5);
	dma_buf = export_buffer(giver.fd, giver.vram.args.out_handle, 0);
	import = import_buffer(fd, dma_buf);
	CHECK_ERR(EACCES, try_view(fd, &import, PAGE, PROT_WRITE));
	CHECK_ERR(EINVAL, try_view(fd, &import, 3 * PAGE, PROT_READ));
	seen = SYS(mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, (off_t)import.out_offset));
	CHECK(pattern_is(seen, 2 * PAGE, 5));
	CHECK(mprotect(seen, PAGE, PROT_READ | PROT_WRITE) && errno == EACCES);
	release(fd, import.out_handle);
	CHECK_EQ(touch_read(seen), SIGBUS);
	/* the owner has it still */
	CHECK(pattern_is(giver.vram.addr, 2 * PAGE, 5));
	/* other memory has no such offset */
	host = alloc_memory(fd, 0, PAGE);
	CHECK_EQ(import_buffer(fd, export_buffer(fd, host.handle, 0)).out_offset, 0);
}
