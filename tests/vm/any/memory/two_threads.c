// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Large memory of small pages: a second thread of the process pins it from the back. Here the
 * memory lacks a page near its front and its last one, so that both threads wait for them.
 */
#define _GNU_SOURCE
#include "file.h"
#include "memory.h"
#include "pins.h"
#include "process.h"
#include "uffd.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
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

static void need_processors(void)
{
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		SKIP("this machine has one processor");
}

/* Both ends are being pinned before either can be; the second thread ends after the call. */
TEST(two_threads_at_once, .smoke = true)
{
	unsigned int before = threads();
	long long pins = pins_held();
	struct call call;

	need_processors();
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

	need_processors();
	call_prepare(&call);
	call_begin(&call);
	uffd_await(call.back, call.memory + BACK);
	uffd_await(call.front, call.memory + FRONT);
	uffd_supply(call.front, call.memory + FRONT, 0x22);
	/* The caller pins all other pieces, and is done then. */
	CHECK(WAIT_FOR(5000, pins_held() >= pins + (long long)((LENGTH - PIECE) / PAGE)));
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
	int sockets[2], front, back;
	struct call call;
	pid_t pid;

	need_processors();
	SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets));
	pid = fork();
	if (pid == 0) {
		call_prepare(&call);
		send_fd(sockets[1], call.front);
		send_fd(sockets[1], call.back);
		call_run(&call);
		FAIL("REGISTER returns %d without two pages", call.result);
	}
	front = receive_fd(sockets[0]);
	back = receive_fd(sockets[0]);
	CHECK(WAIT_FOR(5000, uffd_touched(front)));
	CHECK(WAIT_FOR(5000, uffd_touched(back)));
	kill_now(pid);
	CHECK_PINS_SOON(pins);
}

/*
 * A process is stopped while it pins. The second thread stops as soon as it has done its part; the
 * caller does not wait for that thread's end, and stops as well.
 */
TEST(two_threads_stopped)
{
	int sockets[2], front, status;
	struct call call;
	pid_t pid;

	SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets));
	pid = fork();
	if (pid == 0) {
		call_prepare(&call);
		send_fd(sockets[1], call.front);
		/* Where the page is, and then that the call has ended. */
		SYS(write(sockets[1], &call.memory, sizeof(call.memory)));
		uffd_supply(call.back, call.memory + BACK, 0x33);
		call_run(&call);
		CHECK_OK(call.result);
		SYS(write(sockets[1], "", 1));
		test_end(EXIT_PASS);
	}
	front = receive_fd(sockets[0]);
	SYS(read(sockets[0], &call.memory, sizeof(call.memory)));
	uffd_await(front, call.memory + FRONT);
	SYS(kill(pid, SIGSTOP));
	uffd_supply(front, call.memory + FRONT, 0x22);
	CHECK(WAIT_FOR(5000, waitpid(pid, &status, WUNTRACED | WNOHANG) == pid));
	CHECK(WIFSTOPPED(status));
	SYS(kill(pid, SIGCONT));
	SYS(read(sockets[0], &(char){ 0 }, 1));
	join(pid);
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
