// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory of a program that the kernel frees before the program has ended, and without waiting. */
#define _GNU_SOURCE
#include "told.h"

#include "edu.h"
#include "memory.h"
#include "process.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COPY_ENGINES = 3, PTRACE_EXIT_STOP = SIGTRAP | PTRACE_EVENT_EXIT << 8 };

struct shared {
	struct gate filled, go, pushed;
	int fd;
};

/* A program whose memory is on the device, and whose queue has the next packet ready. */
static pid_t victim_new(struct shared *shared, bool huge)
{
	pid_t pid = fork();

	if (!pid) {
		char *memory = block_of(huge);
		struct gpu_queue queue;

		shared->fd = open_gpu();
		queue = queue_new(shared->fd);
		manage_all(shared->fd);
		fill(&queue, memory, HUGE, 0x51);
		CHECK_EQ(on_device(shared->fd, memory, HUGE), HUGE);
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

/*
 * The kernel frees the memory of a killed program as when it has run out of memory: its notices may
 * not wait for the device. What the device knows of the memory then leads nowhere that is somebody
 * else's by now, in VRAM neither.
 */
TEST_EACH(reaped_memory_is_out_of_reach, page_sizes, .seconds = 60)
{
	struct shared *shared = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
					 MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	int other = open_gpu(), pidfd, status;
	uint64_t free;
	struct gpu_memory vram;
	pid_t pid;

	if (!(get_info(other).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel lets no driver follow the memory of programs");
	*shared = (struct shared){ gate_new(), gate_new(), gate_new(), -1 };
	leave_room(other, 2 * HUGE);
	pid = victim_new(shared, row->huge);
	gate_pass(&shared->filled);
	pidfd = SYS(syscall(SYS_pidfd_open, pid, 0));
	/* the file, and so the queue, outlives the program */
	SYS(syscall(SYS_pidfd_getfd, pidfd, shared->fd, 0));
	free = vram_free(other);
	gpu_set_register(GPU_STUCK, COPY_ENGINES);
	gate_open(&shared->go);
	gate_pass(&shared->pushed);
	CHECK(WAIT_FOR(10000, gpu_register(GPU_ENGINE_BUSY) & COPY_ENGINES));

	kill_and_hold(pid);
	SYS(syscall(SYS_process_mrelease, pidfd, 0));
	CHECK(WAIT_FOR(10000, vram_free(other) >= free + HUGE));
	free = vram_free(other) / HUGE * HUGE;
	vram = gpu_alloc(other, PINMAP_ALLOC_VRAM, free);
	write_pattern(vram.addr, free, 53);
	gpu_set_register(GPU_STUCK, 0);
	CHECK(WAIT_FOR(10000, !(gpu_register(GPU_ENGINE_BUSY) & COPY_ENGINES)));
	CHECK(has_pattern(vram.addr, free, 53));

	SYS(ptrace(PTRACE_DETACH, pid, 0, 0));
	CHECK_EQ(SYS(waitpid(pid, &status, 0)), pid);
	CHECK(WIFSIGNALED(status));
	CHECK(has_pattern(vram.addr, free, 53));
	check_works();
}
