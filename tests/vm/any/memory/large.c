// SPDX-License-Identifier: MIT OR Apache-2.0
/* Large memory of small pages: pinned by the caller alone, from the front, in several chunks. */
#define _GNU_SOURCE
#include "file.h"
#include "memory.h"
#include "pins.h"
#include "process.h"
#include "uffd.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHUNK (4 * MIB)
#define LENGTH (6 * CHUNK)
/* Offsets of pages. */
#define FRONT (CHUNK + 3 * PAGE)
#define BACK (LENGTH - PAGE)

static char *small_pages(void)
{
	char *memory = address_space(LENGTH, CHUNK);

	SYS(mmap(memory, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0));
	SYS(madvise(memory, LENGTH, MADV_NOHUGEPAGE));
	memset(memory, 0x11, LENGTH);
	return memory;
}

/* Counts the threads of a process. */
static unsigned int threads_of(pid_t pid)
{
	unsigned int count = 0;
	DIR *directory;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	directory = opendir(path);
	CHECK(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	/* . and .. */
	return count - 2;
}

/* Whether a line of /proc/TASK/NAME has these words. */
static bool has_line(const char *task, const char *name, const char *words)
{
	char path[300], line[512];
	bool found = false;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%s/%s", task, name);
	file = fopen(path, "re");
	while (file && !found && fgets(line, sizeof(line), file))
		found = strstr(line, words);
	if (file)
		fclose(file);
	return found;
}

/* Whether a kernel worker does something for pinmap. */
static bool worker_is_busy(void)
{
	DIR *directory = opendir("/proc");
	struct dirent *entry;
	bool found = false;

	CHECK(directory);
	while (!found && (entry = readdir(directory)))
		found = has_line(entry->d_name, "comm", "kworker") &&
			has_line(entry->d_name, "stack", "[pinmap]");
	closedir(directory);
	return found;
}

struct call {
	int fd, result;
	char *memory;
	struct registration registration;
};

static void *call_run(void *argument)
{
	struct call *call = argument;

	call->result = try_register_memory(call->fd, call->memory, LENGTH, WRITE,
					   &call->registration);
	return NULL;
}

/* The call makes no thread, and touches nothing behind the page that it waits for. */
TEST(large_by_the_caller_alone, .smoke = true)
{
	struct call call = { open_device(0), 0, small_pages(), { 0 } };
	long long pins = pins_held();
	int front, back;
	pthread_t thread;

	SYS(madvise(call.memory + FRONT, PAGE, MADV_DONTNEED));
	SYS(madvise(call.memory + BACK, PAGE, MADV_DONTNEED));
	front = uffd_new(call.memory + FRONT, PAGE);
	back = uffd_new(call.memory + BACK, PAGE);
	CHECK_OK(-pthread_create(&thread, NULL, call_run, &call));
	uffd_await(front, call.memory + FRONT);
	CHECK_EQ(threads_of(getpid()), 2);
	CHECK_PINS(pins + (long long)(FRONT / PAGE));
	CHECK(!uffd_touched(back));
	uffd_supply(front, call.memory + FRONT, 0x22);
	uffd_await(back, call.memory + BACK);
	CHECK_EQ(threads_of(getpid()), 2);
	uffd_supply(back, call.memory + BACK, 0x33);
	CHECK_OK(-pthread_join(thread, NULL));
	CHECK_OK(call.result);
	CHECK_EQ(query_handle(call.fd, call.registration.handle).out_pinned, LENGTH);
	CHECK_PINS(pins + (long long)(LENGTH / PAGE));
	release(call.fd, call.registration.handle);
	CHECK_PINS(pins);
}

/* A process may be stopped at any moment, for as long as anybody likes: no worker waits for it. */
TEST(large_stopped)
{
	pid_t pid = fork();

	if (pid == 0) {
		struct call call = { open_device(0), 0, small_pages(), { 0 } };

		for (;;) {
			struct registration one = register_memory(call.fd, call.memory, LENGTH,
								  WRITE | NO_MAP);

			release(call.fd, one.handle);
		}
	}
	for (unsigned int i = 0; i < rounds(40); i++) {
		int status;

		/* anywhere in a call */
		usleep(10000 + 1000 * (i % 20));
		SYS(kill(pid, SIGSTOP));
		CHECK_EQ(SYS(waitpid(pid, &status, WUNTRACED)), pid);
		CHECK(WIFSTOPPED(status));
		CHECK_EQ(threads_of(pid), 1);
		CHECK(WAIT_FOR(5000, !worker_is_busy()));
		SYS(kill(pid, SIGCONT));
	}
	kill_now(pid);
}

static const struct holes {
	const char *name;
	size_t first, second;
} holes[] = {
	{ "front", FRONT, FRONT },
	{ "back", BACK, BACK },
	{ "both", FRONT, BACK },
};

/* The failure is that of the first page that cannot be pinned, and nothing stays pinned. */
TEST_EACH(large_fails, holes)
{
	int fd = open_device(0);
	long long pins = pins_held();
	long long charged = file_field("/proc/self/status", "VmPin:");
	char *memory = small_pages();
	struct pinmap_register args = register_args(memory, LENGTH, WRITE);

	SYS(munmap(memory + row->first, PAGE));
	if (row->second != row->first)
		SYS(munmap(memory + row->second, PAGE));
	CHECK_ERR(EFAULT, try_register_args(fd, &args));
	CHECK_EQ(args.fail.reason, PINMAP_FAIL_HOLE);
	CHECK_EQ(args.fail.addr, (uintptr_t)memory + row->first);
	CHECK_PINS(pins);
	CHECK_EQ(file_field("/proc/self/status", "VmPin:"), charged);
}
