// SPDX-License-Identifier: MIT OR Apache-2.0
/* Charges for registered memory, and the limit. */
#define _GNU_SOURCE
#include "device.h"
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pins.h"
#include "process.h"
#include "ring.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static long long locked(const char *word)
{
	return file_field("/proc/self/status", word);
}

/* Checks that a call over the limit by so many bytes says what would have been needed. */
static void check_limit(int fd, char *memory, size_t length, uint64_t needed, uint64_t allowed)
{
	struct pinmap_register args = register_args(memory, length, NO_MAP);

	check_fail(__FILE__, __LINE__, try_register_args(fd, &args), ENOMEM, &args.fail,
		   PINMAP_FAIL_MEMLOCK, 0);
	CHECK_EQ(args.fail.needed, needed);
	CHECK_EQ(args.fail.allowed, allowed);
}

TEST(limit)
{
	struct registration first, second;
	char *memory = anon(20);
	int fd;

	set_memlock(16 * PAGE);
	become_user(true);
	fd = open_device(0);
	CHECK_EQ(get_info(fd).out_memlock_limit, 16 * PAGE);
	CHECK_EQ(get_info(fd).out_memlock_used, 0);
	check_limit(fd, memory, 17 * PAGE, 17 * PAGE, 16 * PAGE);
	/* the limit exactly */
	first = register_memory(fd, memory, 16 * PAGE, NO_MAP);
	CHECK_EQ(get_info(fd).out_memlock_used, 16 * PAGE);
	check_limit(fd, memory + 16 * PAGE, PAGE, 17 * PAGE, 16 * PAGE);
	release(fd, first.handle);
	CHECK_EQ(get_info(fd).out_memlock_used, 0);
	/* the limit in parts */
	first = register_memory(fd, memory, 10 * PAGE, WRITE);
	second = register_memory(fd, memory + 10 * PAGE, 6 * PAGE, WRITE);
	check_limit(fd, memory + 16 * PAGE, 3 * PAGE, 19 * PAGE, 16 * PAGE);
	release(fd, second.handle);
	check_limit(fd, memory + 13 * PAGE, 7 * PAGE, 17 * PAGE, 16 * PAGE);
	register_memory(fd, memory + 13 * PAGE, 6 * PAGE, 0);
	release(fd, first.handle);
}

/* A limit that is not whole pages ends at the last whole one. */
TEST(limit_odd)
{
	struct registration registration;
	char *memory = anon(4);
	int fd;

	set_memlock(2 * PAGE + 100);
	become_user(true);
	fd = open_device(0);
	CHECK_ERR(ENOMEM, try_register_memory(fd, memory, 3 * PAGE, NO_MAP, &registration));
	register_memory(fd, memory, 2 * PAGE, NO_MAP);
}

TEST(limit_zero)
{
	char *memory = anon(1);
	int fd;

	set_memlock(0);
	become_user(true);
	fd = open_device(0);
	check_limit(fd, memory, PAGE, PAGE, 0);
}

/* With CAP_IPC_LOCK there is no limit. */
TEST(no_limit)
{
	char *memory = anon(64);
	int fd = open_device(0);

	set_memlock(0);
	CHECK_EQ(get_info(fd).out_memlock_limit, UINT64_MAX);
	register_memory(fd, memory, 64 * PAGE, WRITE);
}

/* The limit is one for all processes of a user, and for all of its files. */
TEST(limit_of_the_user)
{
	struct gate registered = gate_new(), checked = gate_new();
	char *memory = anon(16);
	int fd, other;
	pid_t pid;

	set_memlock(16 * PAGE);
	become_user(true);
	fd = open_device(0);
	other = open_device(0);
	pid = fork();
	if (pid == 0) {
		int own = open_device(0);

		register_memory(own, memory, 10 * PAGE, NO_MAP);
		gate_open(&registered);
		gate_pass(&checked);
		_exit(0);
	}
	gate_pass(&registered);
	CHECK_EQ(get_info(fd).out_memlock_used, 10 * PAGE);
	check_limit(fd, memory, 7 * PAGE, 17 * PAGE, 16 * PAGE);
	register_memory(fd, memory, 4 * PAGE, NO_MAP);
	check_limit(other, memory, 3 * PAGE, 17 * PAGE, 16 * PAGE);
	register_memory(other, memory, 2 * PAGE, NO_MAP);
	gate_open(&checked);
	join(pid);
	/* the share of a process that ended is free again */
	CHECK(WAIT_FOR(2000, get_info(fd).out_memlock_used == 6 * PAGE));
	register_memory(fd, memory + 4 * PAGE, 10 * PAGE, NO_MAP);
}

/* The limit is one for what the user has locked by io_uring, too. */
TEST(limit_with_io_uring)
{
	char *memory = anon(32);
	struct ring ring;
	uint64_t used;
	int fd;

	set_memlock(16 * PAGE);
	become_user(true);
	fd = open_device(0);
	ring = ring_new(memory, 10 * PAGE);
	used = get_info(fd).out_memlock_used;
	CHECK(used >= 10 * PAGE && used <= 12 * PAGE);
	check_limit(fd, memory + 16 * PAGE, 7 * PAGE, used + 7 * PAGE, 16 * PAGE);
	register_memory(fd, memory + 16 * PAGE, 16 * PAGE - used, NO_MAP);
	ring_close(&ring);
	/* the kernel lets go of a ring in its own time */
	CHECK(WAIT_FOR(slow(5000), get_info(fd).out_memlock_used <= 6 * PAGE));
}

/* Charges go back however the memory goes: by failure, by munmap() and with the file. */
TEST(charge_goes_back)
{
	char *memory = anon(16), *more = anon(8);
	struct registration registration;
	int fd;

	set_memlock(16 * PAGE);
	become_user(true);
	fd = open_device(0);
	SYS(munmap(more + 7 * PAGE, PAGE));
	for (int i = 0; i < 10; i++)
		CHECK_REGISTER_FAILS(fd, more, 8 * PAGE, WRITE, EFAULT, PINMAP_FAIL_HOLE,
				     more + 7 * PAGE);
	CHECK_EQ(get_info(fd).out_memlock_used, 0);
	registration = register_memory(fd, more, 7 * PAGE, WRITE);
	SYS(munmap(more, 7 * PAGE));
	CHECK(WAIT_FOR(2000, get_info(fd).out_memlock_used == 0));
	/* all of the limit, while the stale registration is there still */
	register_memory(fd, memory, 16 * PAGE, WRITE);
	release(fd, registration.handle);
	CHECK_EQ(get_info(fd).out_memlock_used, 16 * PAGE);
	close(fd);
	fd = open_device(0);
	CHECK_EQ(get_info(fd).out_memlock_used, 0);
	register_memory(fd, memory, 16 * PAGE, WRITE);
}

static void *register_again_and_again(void *memory)
{
	int fd = open_device(0);

	for (unsigned int i = 0; i < rounds(200); i++)
		release(fd, register_memory(fd, memory, PAGE, NO_MAP).handle);
	close(fd);
	return NULL;
}

/* Calls that charge the same user at the same time are all counted. */
TEST(charges_at_once)
{
	char *memory = anon(18);
	pthread_t threads[2];
	int fd;

	set_memlock(20 * PAGE);
	become_user(true);
	fd = open_device(0);
	register_memory(fd, memory, 16 * PAGE, NO_MAP);
	for (unsigned int i = 0; i < 2; i++)
		CHECK_OK(-pthread_create(&threads[i], NULL, register_again_and_again,
					 memory + (16 + i) * PAGE));
	for (unsigned int i = 0; i < 2; i++)
		CHECK_OK(-pthread_join(threads[i], NULL));
	CHECK_EQ(get_info(fd).out_memlock_used, 16 * PAGE);
}

/* The memory is charged to the process's pinned memory, once, and not to its locked memory. */
TEST(process_status)
{
	char *memory = anon(64);
	int fd = open_device(0);
	long long pinned = locked("VmPin:"), mlocked = locked("VmLck:");
	struct registration registration = register_memory(fd, memory, 64 * PAGE, WRITE | NO_MAP);

	CHECK_EQ(locked("VmPin:"), pinned + 64 * PAGE / 1024);
	CHECK_EQ(locked("VmLck:"), mlocked);
	map(fd, registration.handle, 0, 0);
	map(fd, registration.handle, 0, 0);
	CHECK_EQ(locked("VmPin:"), pinned + 64 * PAGE / 1024);
	release(fd, registration.handle);
	CHECK_EQ(locked("VmPin:"), pinned);
	registration = register_memory(fd, memory, 64 * PAGE, WRITE);
	close(fd);
	CHECK_EQ(locked("VmPin:"), pinned);
	CHECK_EQ(locked("VmLck:"), mlocked);
}

/* Whether a process has a limit is asked at each registration, and not at its first only. */
TEST(charge_without_the_privilege)
{
	char *memory = anon(8);
	int fd = open_device(0);
	uint64_t used = get_info(fd).out_memlock_used;
	struct registration registration = register_memory(fd, memory, 8 * PAGE, NO_MAP);

	CHECK_EQ(get_info(fd).out_memlock_used, used);
	release(fd, registration.handle);
	become_user(true);
	registration = register_memory(fd, memory, 8 * PAGE, NO_MAP);
	CHECK_EQ(get_info(fd).out_memlock_used, used + 8 * PAGE);
	release(fd, registration.handle);
	CHECK_EQ(get_info(fd).out_memlock_used, used);
}

/* The user who registered gets the charge back, though root closes the file. */
TEST(charge_of_another_user)
{
	struct gate registered = gate_new(), closed = gate_new();
	char *memory = anon(8);
	int sockets[2], fd;
	pid_t pid;

	SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets));
	pid = fork();
	if (pid == 0) {
		set_memlock(8 * PAGE);
		become_user(true);
		fd = open_device(0);
		register_memory(fd, memory, 8 * PAGE, NO_MAP);
		send_fd(sockets[1], fd);
		close(fd);
		gate_open(&registered);
		gate_pass(&closed);
		fd = open_device(0);
		CHECK_EQ(get_info(fd).out_memlock_used, 0);
		register_memory(fd, memory, 8 * PAGE, NO_MAP);
		_exit(0);
	}
	fd = receive_fd(sockets[0]);
	gate_pass(&registered);
	close(fd);
	gate_open(&closed);
	join(pid);
}
