// SPDX-License-Identifier: MIT OR Apache-2.0
/* Signals and death in the middle of a call, and limits. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pins.h"
#include "pressure.h"
#include "process.h"
#include "uffd.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* A process is killed at some moment of registering, mapping or releasing; nothing of it stays. */
TEST(kill_at_random, .seconds = 60)
{
	unsigned int tries = rounds(120), seed = 1;
	long long pins = pins_held();

	for (unsigned int i = 0; i < tries; i++) {
		struct gate ready = gate_new();
		pid_t pid = fork();

		if (pid == 0) {
			size_t length = 8 * MIB;
			int fd = open_device(0);

			gate_open(&ready);
			for (;;) {
				char *memory = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE,
							MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
				struct registration registration;

				madvise(memory, length, i % 2 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
				registration = register_memory(fd, memory, length, WRITE);
				if (i % 3)
					release(fd, registration.handle);
				munmap(memory, length);
			}
		}
		gate_pass(&ready);
		usleep(rand_r(&seed) % slow(25) * 1000);
		kill_now(pid);
		close(ready.ends[0]);
		close(ready.ends[1]);
	}
	CHECK_PINS_SOON(pins);
	register_memory(open_device(0), anon(1), PAGE, WRITE);
}

/* Memory whose last page is missing, so that pinning it waits. */
struct blocked {
	char *memory;
	size_t pages;
	int uffd;
	int fd;
	struct registration registration;
	int result;
	pthread_t thread;
};

static void block(struct blocked *blocked, int fd)
{
	blocked->fd = fd;
	blocked->pages = 8;
	blocked->memory = anon(blocked->pages);
	SYS(madvise(blocked->memory + 7 * PAGE, PAGE, MADV_DONTNEED));
	blocked->uffd = uffd_new(blocked->memory + 7 * PAGE, PAGE);
}

static void *register_blocked(void *argument)
{
	struct blocked *blocked = argument;

	blocked->result = try_register_memory(blocked->fd, blocked->memory, blocked->pages * PAGE,
					      WRITE, &blocked->registration);
	return NULL;
}

TEST(kill_while_pinning)
{
	long long pins = pins_held();
	struct blocked blocked;
	int sockets[2], uffd;
	pid_t pid;

	SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets));
	pid = fork();
	if (pid == 0) {
		block(&blocked, open_device(0));
		send_fd(sockets[1], blocked.uffd);
		register_blocked(&blocked);
		FAIL("REGISTER returns %d without a page", blocked.result);
	}
	uffd = receive_fd(sockets[0]);
	CHECK(WAIT_FOR(3000, uffd_touched(uffd)));
	kill_now(pid);
	CHECK_PINS_SOON(pins);
}

static void ignore(int signal)
{
	(void)signal;
}

/* Signals that do not end the process do not end the call either. */
TEST(signal_while_pinning)
{
	struct sigaction action = { .sa_handler = ignore };
	struct blocked blocked;

	SYS(sigaction(SIGUSR1, &action, NULL));
	block(&blocked, open_device(0));
	CHECK_OK(-pthread_create(&blocked.thread, NULL, register_blocked, &blocked));
	uffd_await(blocked.uffd, blocked.memory + 7 * PAGE);
	for (int i = 0; i < 5; i++) {
		CHECK_OK(-pthread_kill(blocked.thread, SIGUSR1));
		sleep_ms(10);
	}
	uffd_supply(blocked.uffd, blocked.memory + 7 * PAGE, 0x22);
	CHECK_OK(-pthread_join(blocked.thread, NULL));
	CHECK_OK(blocked.result);
	CHECK_EQ(query_handle(blocked.fd, blocked.registration.handle).out_length, 8 * PAGE);
}

/*
 * Nothing waits for a process that pins: neither other registrations, nor releases, other files, or
 * munmap().
 */
TEST(others_while_pinning)
{
	struct registration before, during;
	struct blocked blocked;
	char *memory = anon(4);
	int fd = open_device(0), other = open_device(0);

	before = register_memory(fd, memory, PAGE, WRITE);
	block(&blocked, fd);
	CHECK_OK(-pthread_create(&blocked.thread, NULL, register_blocked, &blocked));
	uffd_await(blocked.uffd, blocked.memory + 7 * PAGE);
	during = register_memory(fd, memory + PAGE, PAGE, WRITE);
	release(fd, during.handle);
	get_info(fd);
	CHECK_EQ(query_handle(fd, before.handle).out_state, PINMAP_STATE_LIVE);
	register_memory(other, memory, 4 * PAGE, NO_MAP);
	SYS(munmap(memory, 4 * PAGE));
	CHECK_STALE_EVENT(fd, before);
	release(fd, before.handle);
	uffd_supply(blocked.uffd, blocked.memory + 7 * PAGE, 0x22);
	CHECK_OK(-pthread_join(blocked.thread, NULL));
	CHECK_OK(blocked.result);
}

/* The file is closed while a call on it waits; the call ends as usual, and then everything goes. */
TEST(close_while_pinning)
{
	struct blocked blocked;
	long long pins = pins_held();
	int fd = open_device(0);

	block(&blocked, fd);
	CHECK_OK(-pthread_create(&blocked.thread, NULL, register_blocked, &blocked));
	uffd_await(blocked.uffd, blocked.memory + 7 * PAGE);
	close(fd);
	/* the owner may have been asked for already */
	uffd_supply(blocked.uffd, blocked.memory + 7 * PAGE, 0x22);
	CHECK_OK(-pthread_join(blocked.thread, NULL));
	CHECK_OK(blocked.result);
	CHECK_PINS_SOON(pins);
	register_memory(open_device(0), blocked.memory, 8 * PAGE, WRITE | IDENTITY);
}

/* One of two registrations of the same memory at once succeeds. */
TEST(same_memory_at_once)
{
	struct blocked blocked;
	struct registration none;
	int fd = open_device(0);

	block(&blocked, fd);
	CHECK_OK(-pthread_create(&blocked.thread, NULL, register_blocked, &blocked));
	uffd_await(blocked.uffd, blocked.memory + 7 * PAGE);
	CHECK_ERR(EEXIST, try_register_memory(fd, blocked.memory, 2 * PAGE, WRITE, &none));
	uffd_supply(blocked.uffd, blocked.memory + 7 * PAGE, 0x22);
	CHECK_OK(-pthread_join(blocked.thread, NULL));
	CHECK_OK(blocked.result);
}

TEST(registration_limit, .seconds = 60)
{
	int fd = open_device(0);
	uint32_t limit = get_info(fd).out_max_registrations, i;
	struct registration registration = { 0 };
	struct pinmap_register args;
	char *memory;

	if (debug_kernel())
		SKIP("takes too long on a debug kernel");
	if (limit > 1 << 19)
		SKIP("the limit of %u registrations is too high to get there", limit);
	memory = tiled((limit + 1) * PAGE, PAGE);
	for (i = 0; i < limit; i++)
		registration = register_memory(fd, memory + i * PAGE, PAGE, NO_MAP);
	CHECK_EQ(get_info(fd).out_registrations, limit);
	args = register_args(memory + limit * PAGE, PAGE, NO_MAP);
	check_fail(__FILE__, __LINE__, try_register_args(fd, &args), ENOSPC, &args.fail,
		   PINMAP_FAIL_OBJECTS, 0);
	CHECK_EQ(args.fail.needed, limit + 1);
	CHECK_EQ(args.fail.allowed, limit);
	release(fd, registration.handle);
	register_memory(fd, memory + limit * PAGE, PAGE, NO_MAP);
}

/* Several processes at once, each with its own context, on one device. */
TEST(many_processes)
{
	enum { PROCESSES = 8 };
	long long pins = pins_held();
	pid_t pids[PROCESSES];

	for (int i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			char *memory = anon(64);
			int fd = open_device(0);

			for (unsigned int round = 0; round < rounds(200); round++) {
				struct registration one =
					register_memory(fd, memory, 32 * PAGE, WRITE | NO_MAP);
				struct registration two =
					register_memory(fd, memory + 32 * PAGE, 32 * PAGE, NO_MAP);

				release(fd, round % 2 ? one.handle : two.handle);
				if (round % 16 == 0) {
					close(fd);
					fd = open_device(0);
					continue;
				}
				release(fd, round % 2 ? two.handle : one.handle);
			}
			_exit(0);
		}
	}
	for (int i = 0; i < PROCESSES; i++)
		join(pids[i]);
	CHECK_PINS_SOON(pins);
}

/*
 * In a cgroup with less memory than the buffer the process is killed or refused, and nothing stays
 * pinned.
 */
TEST(memory_cgroup)
{
	long long pins = pins_held();
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		size_t length = 32 * MIB;
		char *memory = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		struct registration none;
		int fd = open_device(0);

		memory_cgroup(8 * MIB, false);
		CHECK_ERR(ENOMEM, try_register_memory(fd, memory, length, WRITE, &none));
		_exit(0);
	}
	waitpid(pid, &status, 0);
	if (WIFEXITED(status))
		CHECK_EQ(WEXITSTATUS(status), 0);
	else
		CHECK_EQ(WTERMSIG(status), SIGKILL);
	CHECK_PINS_SOON(pins);
}

/*
 * The OOM killer takes the memory of a process that does not end soon enough while it dies. The
 * callbacks must not sleep then.
 */
TEST(reaped, .faults = true)
{
	struct memory memory = memory_new(MEMFD, PAGE);
	long long pins = pins_held();
	struct gate ready = gate_new();
	int sockets[2], fd, pidfd;
	long released = -1;
	struct edu edu;
	pid_t pid;

	SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets));
	pid = fork();
	if (pid == 0) {
		/* enough that its end takes a while */
		char *bulk = anon(32 * MIB / PAGE);

		fd = open_device(0);
		register_memory(fd, memory.addr, PAGE, WRITE);
		register_memory(fd, bulk, 4 * MIB, WRITE);
		send_fd(sockets[1], fd);
		gate_open(&ready);
		pause();
	}
	gate_pass(&ready);
	fd = receive_fd(sockets[0]);
	edu = edu_open(fd);
	pidfd = SYS(syscall(SYS_pidfd_open, pid, 0));
	SYS(kill(pid, SIGKILL));
	for (int i = 0; i < 100 && released < 0; i++)
		released = syscall(SYS_process_mrelease, pidfd, 0);
	diag("process_mrelease: %s", released < 0 ? error_name(errno) : "done");
	join_killed(pid, SIGKILL);
	edu_writes(&edu, (uintptr_t)memory.addr, PAGE);
	CHECK(bytes_are(memory.alias, PAGE, 0x11));
	CHECK_PINS_SOON(pins);
	CHECK_EQ(next_event(fd).type, PINMAP_EVENT_STALE);
	CHECK_EQ(next_event(fd).type, PINMAP_EVENT_STALE);
	CHECK_NO_EVENT(fd);
}
