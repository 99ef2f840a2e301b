// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Large memory of small pages: a second thread of the process pins it from the back. Here the
 * memory lacks a page near its front and its last one, so that both threads wait for them.
 */
#define _GNU_SOURCE
#include "file.h"
#include "inject.h"
#include "memory.h"
#include "pins.h"
#include "process.h"
#include "uffd.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A thread takes 4 MiB at a time; the caller begins with the first. */
#define PIECE (4 * MIB)
#define LENGTH (6 * PIECE)
/* Offsets of pages. */
#define FRONT (PIECE + 3 * PAGE)
#define BACK (LENGTH - PAGE)

static char *small_pages(void)
{
	char *memory = address_space(LENGTH, PIECE);

	SYS(mmap(memory, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0));
	SYS(madvise(memory, LENGTH, MADV_NOHUGEPAGE));
	memset(memory, 0x11, LENGTH);
	return memory;
}

/**
 * struct call - a registration by a thread of its own
 * @front: where to supply the page at FRONT
 * @back: where to supply the page at BACK
 */
struct call {
	int fd;
	char *memory;
	int front, back;
	struct registration registration;
	int result;
	pthread_t thread;
};

static void call_prepare(struct call *call)
{
	call->fd = open_device(0);
	call->memory = small_pages();
	SYS(madvise(call->memory + FRONT, PAGE, MADV_DONTNEED));
	SYS(madvise(call->memory + BACK, PAGE, MADV_DONTNEED));
	call->front = uffd_new(call->memory + FRONT, PAGE);
	call->back = uffd_new(call->memory + BACK, PAGE);
}

static void *call_run(void *argument)
{
	struct call *call = argument;

	call->result = try_register_memory(call->fd, call->memory, LENGTH, WRITE,
					   &call->registration);
	return NULL;
}

static void call_begin(struct call *call)
{
	CHECK_OK(-pthread_create(&call->thread, NULL, call_run, call));
}

static void call_end(struct call *call)
{
	CHECK_OK(-pthread_join(call->thread, NULL));
	CHECK_OK(call->result);
	CHECK_EQ(query_handle(call->fd, call->registration.handle).out_pinned, LENGTH);
}

/*
 * Makes the call in another process. There this returns 0 after it; here, with the descriptors,
 * before it.
 */
static pid_t call_elsewhere(struct call *call)
{
	int sockets[2];
	pid_t pid;

	SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets));
	pid = fork();
	if (pid == 0) {
		call_prepare(call);
		send_fd(sockets[1], call->front);
		send_fd(sockets[1], call->back);
		SYS(write(sockets[1], &call->memory, sizeof(call->memory)));
		call_run(call);
		return 0;
	}
	call->front = receive_fd(sockets[0]);
	call->back = receive_fd(sockets[0]);
	SYS(read(sockets[0], &call->memory, sizeof(call->memory)));
	return pid;
}

static unsigned int threads(void)
{
	DIR *directory = opendir("/proc/self/task");
	unsigned int count = 0;

	CHECK(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	/* . and .. */
	return count - 2;
}

/* Whether a line of the file has these words. */
static bool has_line(const char *path, const char *words)
{
	FILE *file = fopen(path, "re");
	char line[512];
	bool found = false;

	while (file && !found && fgets(line, sizeof(line), file))
		found = strstr(line, words);
	if (file)
		fclose(file);
	return found;
}

/* Whether a task of the kernel is in one of its functions. */
static bool somebody_is_in(const char *function)
{
	DIR *directory = opendir("/proc");
	struct dirent *entry;
	bool found = false;
	char path[300];

	CHECK(directory);
	while (!found && (entry = readdir(directory))) {
		snprintf(path, sizeof(path), "/proc/%s/stack", entry->d_name);
		found = has_line(path, function);
	}
	closedir(directory);
	return found;
}

static void need_company(void)
{
	cpu_set_t own;

	SYS(sched_getaffinity(0, sizeof(own), &own));
	if (CPU_COUNT(&own) < 2)
		SKIP("this machine has one processor");
	if (!has_line("/proc/kallsyms", " vhost_task_create"))
		SKIP("the kernel makes no threads for drivers (VHOST_TASK)");
}

/* Both ends are being pinned before either can be; the second thread ends after the call. */
TEST(two_threads_at_once, .smoke = true)
{
	unsigned int before = threads();
	long long pins = pins_held();
	struct call call;

	need_company();
	call_prepare(&call);
	call_begin(&call);
	uffd_await(call.front, call.memory + FRONT);
	uffd_await(call.back, call.memory + BACK);
	CHECK_EQ(threads(), before + 2);
	uffd_supply(call.front, call.memory + FRONT, 0x22);
	uffd_supply(call.back, call.memory + BACK, 0x33);
	call_end(&call);
	CHECK_PINS(pins + LENGTH / PAGE);
	CHECK(WAIT_FOR(2000, threads() == before));
	release(call.fd, call.registration.handle);
	CHECK_PINS(pins);
}

/* The caller waits for the second thread, whatever that waits for. */
TEST(two_threads_back_is_late)
{
	long long pins = pins_held();
	struct call call;

	need_company();
	call_prepare(&call);
	call_begin(&call);
	uffd_await(call.back, call.memory + BACK);
	uffd_await(call.front, call.memory + FRONT);
	uffd_supply(call.front, call.memory + FRONT, 0x22);
	/* All but the last page: the caller has nothing left to do. */
	CHECK(WAIT_FOR(5000, pins_held() == pins + (long long)(LENGTH / PAGE) - 1));
	CHECK_EQ(pthread_tryjoin_np(call.thread, NULL), EBUSY);
	uffd_supply(call.back, call.memory + BACK, 0x33);
	call_end(&call);
	CHECK_PINS(pins + LENGTH / PAGE);
}

/* A task that may run on one processor only has no second thread. */
TEST(two_threads_one_processor)
{
	unsigned int before = threads();
	cpu_set_t one;
	struct call call;

	CPU_ZERO(&one);
	CPU_SET(0, &one);
	SYS(sched_setaffinity(0, sizeof(one), &one));
	call_prepare(&call);
	call_begin(&call);
	uffd_await(call.front, call.memory + FRONT);
	CHECK_EQ(threads(), before + 1);
	uffd_supply(call.front, call.memory + FRONT, 0x22);
	uffd_await(call.back, call.memory + BACK);
	uffd_supply(call.back, call.memory + BACK, 0x33);
	call_end(&call);
}

/* Nor has one that may have no more threads. */
TEST(two_threads_no_thread)
{
	char *memory = small_pages();
	pid_t pid;

	set_memlock(2 * LENGTH);
	pid = fork();
	if (pid == 0) {
		struct rlimit none = { 1, 1 };
		struct registration registration;
		int fd;

		become_user(true);
		SYS(setrlimit(RLIMIT_NPROC, &none));
		CHECK_ERR(EAGAIN, -pthread_create(&(pthread_t){ 0 }, NULL, call_run, NULL));
		fd = open_device(0);
		registration = register_memory(fd, memory, LENGTH, WRITE);
		CHECK_EQ(query_handle(fd, registration.handle).out_pinned, LENGTH);
		release(fd, registration.handle);
		test_end(EXIT_PASS);
	}
	join(pid);
}

/* A fatal signal ends both. */
TEST(two_threads_killed)
{
	long long pins = pins_held();
	struct call call;
	pid_t pid;

	need_company();
	pid = call_elsewhere(&call);
	if (pid == 0)
		FAIL("REGISTER returns %d without two pages", call.result);
	CHECK(WAIT_FOR(5000, uffd_touched(call.front)));
	CHECK(WAIT_FOR(5000, uffd_touched(call.back)));
	kill_now(pid);
	CHECK_PINS_SOON(pins);
}

/* Finds the second thread of a process. */
static int second_thread(pid_t pid)
{
	struct dirent *entry;
	DIR *directory;
	char path[300];
	int found = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	directory = opendir(path);
	CHECK(directory);
	while (!found && (entry = readdir(directory))) {
		snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", pid, entry->d_name);
		if (has_line(path, "pinmap_pin"))
			found = atoi(entry->d_name);
	}
	closedir(directory);
	CHECK(found);
	return found;
}

/*
 * The second thread of a process is told to stop, and so the process, while both threads wait for
 * pages. When it has done its part it stops. The caller does not wait for its end, and stops as
 * well.
 */
TEST(two_threads_stopped)
{
	int status, second;
	struct call call;
	char path[64];
	pid_t pid;

	need_company();
	pid = call_elsewhere(&call);
	if (pid == 0) {
		CHECK_OK(call.result);
		test_end(EXIT_PASS);
	}
	uffd_await(call.front, call.memory + FRONT);
	uffd_await(call.back, call.memory + BACK);
	second = second_thread(pid);
	SYS(syscall(SYS_tgkill, pid, second, SIGSTOP));
	uffd_supply(call.back, call.memory + BACK, 0x33);
	snprintf(path, sizeof(path), "/proc/%d/task/%d/status", pid, second);
	CHECK(WAIT_FOR(5000, has_line(path, "(stopped)")));
	uffd_supply(call.front, call.memory + FRONT, 0x22);
	CHECK(WAIT_FOR(5000, waitpid(pid, &status, WUNTRACED | WNOHANG) == pid));
	CHECK(WIFSTOPPED(status));
	/* Nor does a worker wait for it, as long as the process is stopped. */
	CHECK(!somebody_is_in("vhost_task_stop"));
	SYS(kill(pid, SIGCONT));
	join(pid);
}

/*
 * A page near the front cannot be pinned while the second thread waits for the last one: the call
 * fails as soon as that has come.
 */
TEST(two_threads_fail_while_waiting)
{
	long long pins = pins_held();
	struct call call;

	need_company();
	call_prepare(&call);
	SYS(munmap(call.memory + FRONT + PAGE, PAGE));
	call_begin(&call);
	uffd_await(call.back, call.memory + BACK);
	uffd_await(call.front, call.memory + FRONT);
	uffd_supply(call.front, call.memory + FRONT, 0x22);
	uffd_supply(call.back, call.memory + BACK, 0x33);
	CHECK_OK(-pthread_join(call.thread, NULL));
	CHECK_EQ(call.result, -EFAULT);
	CHECK_PINS(pins);
}

static const struct threads {
	const char *name, *function;
} without[] = {
	{ "first", "pinmap_companion_start" },
	{ "second", "pinmap_companion_run" },
};

/* Without memory for the second thread, or for what it does, the first does everything. */
TEST_EACH(two_threads_no_memory, without)
{
	int fd = open_device(0);
	long long pins = pins_held();
	char *memory = small_pages();
	bool struck = false;

	need_company();
	for (unsigned int i = 0; i < 20 && !struck; i++) {
		struct registration registration;

		fail_slab_below(row->function);
		registration = register_memory(fd, memory, LENGTH, WRITE);
		struck = fail_below_end();
		CHECK_PINS(pins + LENGTH / PAGE);
		release(fd, registration.handle);
		CHECK_PINS(pins);
	}
	if (!struck)
		SKIP("it never came to its turn");
}

static const struct holes {
	const char *name;
	size_t first, second;
} holes[] = {
	{ "front", FRONT, FRONT },
	{ "back", BACK, BACK },
	{ "both", FRONT, BACK },
	{ "middle", LENGTH / 2 + 7 * PAGE, BACK },
};

/* The failure is that of the first page that cannot be pinned, and nothing stays pinned. */
TEST_EACH(two_threads_fail, holes)
{
	int fd = open_device(0);
	long long pins = pins_held();
	long long charged = file_field("/proc/self/status", "VmPin:");
	char *memory = small_pages();

	SYS(munmap(memory + row->first, PAGE));
	if (row->second != row->first)
		SYS(munmap(memory + row->second, PAGE));
	for (unsigned int i = 0; i < rounds(5); i++) {
		struct pinmap_register args = register_args(memory, LENGTH, WRITE);

		CHECK_ERR(EFAULT, try_register_args(fd, &args));
		CHECK_EQ(args.fail.reason, PINMAP_FAIL_HOLE);
		CHECK_EQ(args.fail.addr, (uintptr_t)memory + row->first);
		CHECK_PINS(pins);
		CHECK_EQ(file_field("/proc/self/status", "VmPin:"), charged);
	}
}
