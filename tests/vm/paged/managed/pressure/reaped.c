// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory of a program that the kernel frees before the program has ended, and without waiting. */
#define _GNU_SOURCE
#include "../told.h"

#include "edu.h"
#include "file.h"
#include "memory.h"
#include "process.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COPY_ENGINES = 3, PTRACE_EXIT_STOP = SIGTRAP | PTRACE_EVENT_EXIT << 8 };

/**
 * struct shared - what a program and its parent share
 * @filled: opened when the device has the memory
 * @go: opened when the next packet may begin
 * @pushed: opened when it was pushed
 * @fd: the context
 * @handle: the block of memory, if it is managed by itself
 */
struct shared {
	struct gate filled, go, pushed;
	int fd;
	uint64_t handle;
};

static struct shared *shared_new(void)
{
	struct shared *shared = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
					 MAP_SHARED | MAP_ANONYMOUS, -1, 0));

	*shared = (struct shared){ gate_new(), gate_new(), gate_new(), -1, 0 };
	return shared;
}

/*
 * A program with a block of memory that the device has filled, and whose queue has the next packet
 * for it ready. With @on_host the block stays on the host, and is managed by itself; the block
 * behind it is managed, too, so that the device's page tables stay when the first one goes.
 */
static pid_t victim_new(struct shared *shared, bool huge, bool on_host)
{
	pid_t pid = fork();

	if (!pid) {
		char *memory = small_blocks(2);
		struct gpu_queue queue;

		SYS(madvise(memory, 2 * HUGE, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
		shared->fd = open_gpu();
		queue = queue_new(shared->fd);
		if (on_host) {
			shared->handle = manage(shared->fd, memory, HUGE);
			manage(shared->fd, memory + HUGE, HUGE);
			advise(shared->fd, memory, 2 * HUGE, PREFER_HOST);
			fill(&queue, memory + HUGE, HUGE, 0x50);
		} else {
			manage_all(shared->fd);
		}
		fill(&queue, memory, HUGE, 0x51);
		CHECK_EQ(on_device(shared->fd, memory, HUGE), on_host ? 0 : HUGE);
		gate_open(&shared->filled);
		gate_pass(&shared->go);
		queue_push(&queue, GPU_FILL, (uintptr_t)memory, HUGE, 0x52);
		queue_ring(&queue);
		gate_open(&shared->pushed);
		for (;;)
			pause();
	}
	return pid;
}

/* Stops a program that is killed where it has its memory still. */
static void kill_and_hold(pid_t pid)
{
	int status;

	SYS(ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACEEXIT));
	SYS(kill(pid, SIGKILL));
	CHECK_EQ(SYS(waitpid(pid, &status, 0)), pid);
	CHECK(WIFSTOPPED(status));
	CHECK_EQ(status >> 8, PTRACE_EXIT_STOP);
}

/* Returns the private memory of a process that is in use, in bytes. */
static size_t anonymous_of(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	return (size_t)file_field(path, "RssAnon:") * 1024;
}

/*
 * Kills a program while its packet is on its way, and has the kernel free its memory as when it
 * has run out of memory: the notices may not wait for the device. The program has its address
 * space still.
 */
static void reap(struct shared *shared, pid_t pid, int pidfd)
{
	gpu_set_register(GPU_STUCK, COPY_ENGINES);
	gate_open(&shared->go);
	gate_pass(&shared->pushed);
	CHECK(WAIT_FOR(10000, gpu_register(GPU_ENGINE_BUSY) & COPY_ENGINES));
	kill_and_hold(pid);
	SYS(syscall(SYS_process_mrelease, pidfd, 0));
}

/* Has the packet go on. It finds no memory. */
static void let_go_on(pid_t pid)
{
	gpu_set_register(GPU_STUCK, 0);
	CHECK(WAIT_FOR(10000, !(gpu_register(GPU_ENGINE_BUSY) & COPY_ENGINES)));
	CHECK(anonymous_of(pid) < HUGE);
}

static void end(pid_t pid)
{
	int status;

	SYS(ptrace(PTRACE_DETACH, pid, 0, 0));
	CHECK_EQ(SYS(waitpid(pid, &status, 0)), pid);
	CHECK(WIFSIGNALED(status));
}

/*
 * The device's entries for memory that was freed without waiting for it lead nowhere that is
 * somebody else's by now, in VRAM neither.
 */
TEST_EACH(reaped_memory_is_out_of_reach, page_sizes, .seconds = 60)
{
	struct shared *shared = shared_new();
	int other = open_gpu(), pidfd;
	uint64_t free;
	struct gpu_memory vram;
	pid_t pid;

	if (!(get_info(other).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel lets no driver follow the memory of programs");
	leave_room(other, 2 * HUGE);
	pid = victim_new(shared, row->huge, false);
	gate_pass(&shared->filled);
	pidfd = SYS(syscall(SYS_pidfd_open, pid, 0));
	/* the file, and so the queue, outlives the program */
	SYS(syscall(SYS_pidfd_getfd, pidfd, shared->fd, 0));
	free = vram_free(other);

	reap(shared, pid, pidfd);
	CHECK(WAIT_FOR(10000, vram_free(other) >= free + HUGE));
	free = vram_free(other) / HUGE * HUGE;
	vram = gpu_alloc(other, PINMAP_ALLOC_VRAM, free);
	write_pattern(vram.addr, free, 53);
	let_go_on(pid);
	CHECK(has_pattern(vram.addr, free, 53));
	end(pid);
	CHECK(has_pattern(vram.addr, free, 53));
	check_works();
}

/*
 * Addresses on the bus where such memory was are given to others only when the device has
 * forgotten it: it confirms late here.
 */
TEST_EACH(reaped_addresses_are_out_of_reach, page_sizes, .seconds = 60)
{
	enum { OTHERS = 8 };
	struct shared *shared = shared_new();
	int other = open_gpu(), pidfd, fd;
	char *memory = small_blocks(OTHERS);
	uint64_t forgotten;
	pid_t pid;

	if (!(get_info(other).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel lets no driver follow the memory of programs");
	SYS(madvise(memory, OTHERS * HUGE, row->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	write_pattern(memory, OTHERS * HUGE, 54);
	pid = victim_new(shared, row->huge, true);
	gate_pass(&shared->filled);
	pidfd = SYS(syscall(SYS_pidfd_open, pid, 0));
	fd = SYS(syscall(SYS_pidfd_getfd, pidfd, shared->fd, 0));

	forgotten = gpu_register(GPU_INV_DONE);
	gpu_set_register(GPU_DELAY_NS, 500000000);
	reap(shared, pid, pidfd);
	release(fd, shared->handle);
	CHECK(gpu_register(GPU_INV_DONE) > forgotten);
	gpu_set_register(GPU_DELAY_NS, 0);
	for (unsigned int i = 0; i < OTHERS; i++)
		register_memory(other, memory + i * HUGE, HUGE, WRITE);
	let_go_on(pid);
	CHECK(has_pattern(memory, OTHERS * HUGE, 54));
	end(pid);
	close(fd);
	check_works();
}
