// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory that calls keep in the kernel while user space delays them is charged to the cgroup. */
#define _GNU_SOURCE
#include "file.h"
#include "memory.h"
#include "pressure.h"
#include "process.h"
#include "uffd.h"

#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define USED "/sys/fs/cgroup/pinmap-test/memory.current"

enum { MANY = PINMAP_MAX_BUFFERS };

static const struct waiting {
	const char *name;
	bool many; /* REGISTER_BUFFERS */
	unsigned int threads;
	size_t length; /* of each thread's memory, of which the first page is missing */
	size_t each; /* what each call keeps at least: arrays */
} calls[] = {
	{ "register", false, 256, 1024 * PAGE, 7 * 1024 },
	{ "register_buffers", true, 32, MANY * PAGE, 96 * 1024 },
};

struct call {
	const struct waiting *row;
	int fd;
	char *memory;
	struct pinmap_registration *buffers;
	pthread_barrier_t *prepared;
};

static void *call_run(void *argument)
{
	struct call *call = argument;
	struct pinmap_register_buffers many = { .size = sizeof(many),
						.flags = NO_MAP,
						.buffers = (uintptr_t)call->buffers,
						.count = MANY };
	struct registration one;

	pthread_barrier_wait(call->prepared);
	pthread_barrier_wait(call->prepared);
	if (call->row->many)
		try_ioctl(call->fd, PINMAP_REGISTER_BUFFERS, &many);
	else
		try_register_memory(call->fd, call->memory, call->row->length, NO_MAP, &one);
	return NULL;
}

static void call_prepare(struct call *call)
{
	/* the page tables are there before the call */
	call->memory[PAGE] = 1;
	call->buffers = calloc(MANY, sizeof(*call->buffers));
	for (unsigned int i = 0; i < MANY; i++) {
		call->buffers[i].addr = (uintptr_t)call->memory + i * PAGE;
		call->buffers[i].length = PAGE;
	}
}

static void wait_for_messages(int uffd, unsigned int count)
{
	struct pollfd poller = { .fd = uffd, .events = POLLIN };
	struct uffd_msg message;

	while (count--) {
		CHECK_EQ(poll(&poller, 1, slow(60000)), 1);
		CHECK_EQ(SYS(read(uffd, &message, sizeof(message))), sizeof(message));
	}
}

TEST_EACH(charged, calls, .seconds = 120)
{
	pid_t pid = fork();

	if (pid == 0) {
		struct call all[256];
		pthread_barrier_t prepared;
		size_t length = row->threads * row->length;
		long long before;
		pthread_attr_t small;
		pthread_t thread;
		char *memory;
		int uffd, fd;

		memory_cgroup(1024ull * MIB, true);
		fd = open_device(0);
		memory = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
		SYS(madvise(memory, length, MADV_NOHUGEPAGE));
		pthread_barrier_init(&prepared, NULL, row->threads + 1);
		pthread_attr_init(&small);
		pthread_attr_setstacksize(&small, 64 * 1024);
		for (unsigned int i = 0; i < row->threads; i++) {
			all[i] = (struct call){ .row = row,
						.fd = fd,
						.memory = memory + i * row->length,
						.prepared = &prepared };
			call_prepare(&all[i]);
		}
		uffd = uffd_new(memory, length);
		for (unsigned int i = 0; i < row->threads; i++)
			CHECK_OK(-pthread_create(&thread, &small, call_run, &all[i]));
		pthread_barrier_wait(&prepared);
		before = file_number(USED, -1);
		pthread_barrier_wait(&prepared);
		wait_for_messages(uffd, row->threads);
		diag("%lld KiB for %u calls", (file_number(USED, -1) - before) >> 10, row->threads);
		CHECK(file_number(USED, -1) - before >= (long long)(row->threads * row->each));
		test_end(EXIT_PASS);
	}
	join(pid);
}
