// SPDX-License-Identifier: MIT OR Apache-2.0
/* Ownership of memory across fork, exec, exit, and descriptors that live on elsewhere. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Everything that a context has is gone when close() returns. */
TEST(release_on_close, .smoke = true)
{
	char *memory = anon(64);
	int fd = open_device(0);
	long long pins = pins_held();

	for (int i = 0; i < 16; i++)
		register_memory(fd, memory + 4 * i * PAGE, 4 * PAGE, i % 2 ? WRITE : NO_MAP);
	CHECK_PINS(pins + 64);
	close(fd);
	CHECK_PINS(pins);
	/* the device addresses are free again, too */
	register_memory(open_device(0), memory, 64 * PAGE, WRITE | IDENTITY);
}

TEST(duplicate_descriptor)
{
	char *memory = anon(4);
	int fd = open_device(0), duplicate = SYS(dup(fd));
	long long pins = pins_held();
	struct registration registration = register_memory(fd, memory, 4 * PAGE, WRITE);

	close(fd);
	CHECK_PINS(pins + 4);
	CHECK_EQ(query_handle(duplicate, registration.handle).out_state, PINMAP_STATE_LIVE);
	close(duplicate);
	CHECK_PINS(pins);
}

/* A child has the file but not the memory. */
TEST(fork_child_registers)
{
	char *memory = anon(4);
	int fd = open_device(0);
	struct registration registration = register_memory(fd, memory, PAGE, WRITE), none;
	pid_t pid = fork();

	if (pid == 0) {
		char *own = anon(1);

		CHECK_ERR(EPERM, try_register_memory(fd, own, PAGE, WRITE, &none));
		CHECK_ERR(EPERM, try_register_memory(fd, own, PAGE, NO_MAP, &none));
		CHECK_ERR(EPERM, try_register_memory(fd, memory + PAGE, PAGE, 0, &none));
		/* nonsense is said first */
		CHECK_ERR(EINVAL, try_register_memory(fd, own, 0, WRITE, &none));
		CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
		get_info(fd);
		/* with a file of its own the child is like any process */
		register_memory(open_device(0), own, PAGE, NO_MAP);
		_exit(0);
	}
	join(pid);
	/* the child's exit means nothing to the parent's memory */
	CHECK_NO_EVENT(fd);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
	register_memory(fd, memory + PAGE, PAGE, WRITE);
}

static void *register_in_thread(void *argument)
{
	int fd = *(int *)argument;
	char *memory = anon(1);

	register_memory(fd, memory, PAGE, WRITE);
	return NULL;
}

TEST(thread_registers)
{
	int fd = open_device(0);
	pthread_t thread;

	CHECK_OK(-pthread_create(&thread, NULL, register_in_thread, &fd));
	CHECK_OK(-pthread_join(thread, NULL));
	CHECK_EQ(get_info(fd).out_registrations, 1);
}

/*
 * Runs what exec() starts in the middle of a test: "--after-exec DEVICE FILE HANDLE ADDRESS", or
 * nothing.
 */
bool helper_main(int argc, char **argv)
{
	struct registration registration = { 0 }, none;
	struct edu edu;
	char *alias, *own;
	int fd, file;

	if (argc == 2 && !strcmp(argv[1], "--nothing"))
		return true;
	if (argc != 6 || strcmp(argv[1], "--after-exec"))
		return false;
	fd = atoi(argv[2]);
	file = atoi(argv[3]);
	registration.handle = strtoull(argv[4], NULL, 0);
	registration.addr = (char *)strtoul(argv[5], NULL, 0);
	registration.length = PAGE;
	alias = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
	memset(alias, 0x55, PAGE);

	CHECK_STALE_EVENT(fd, registration);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
	CHECK_EQ(query_handle(fd, registration.handle).out_generation, 2);
	own = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	CHECK_ERR(EPERM, try_register_memory(fd, own, PAGE, WRITE, &none));
	/* this process owns the device still, but the old address leads nowhere */
	edu = edu_open(fd);
	CHECK(bytes_are(alias, PAGE, 0x55));
	edu_writes(&edu, (uintptr_t)registration.addr, PAGE);
	CHECK(bytes_are(alias, PAGE, 0x55));
	release(fd, registration.handle);
	CHECK_ERR(ESTALE, try_release(fd, registration.handle));
	return true;
}

/* exec() ends the address space: everything goes stale, though the file is inherited. */
TEST(exec, .faults = true)
{
	struct memory memory = memory_new(MEMFD, PAGE);
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	struct registration registration = register_memory(fd, memory.addr, PAGE, WRITE);
	char text[4][32];

	edu_load(&edu, 3);
	edu_writes(&edu, registration.device_addr, PAGE);
	CHECK(pattern_is(memory.alias, PAGE, 3));
	SYS(fcntl(fd, F_SETFD, 0));
	SYS(fcntl(memory.fd, F_SETFD, 0));
	snprintf(text[0], 32, "%d", fd);
	snprintf(text[1], 32, "%d", memory.fd);
	snprintf(text[2], 32, "%llu", (unsigned long long)registration.handle);
	snprintf(text[3], 32, "%p", (void *)registration.addr);
	/* one transfer is in flight */
	edu_start(&edu, EDU_WRITES, registration.device_addr, PAGE, false);
	SYS(execl("/proc/self/exe", program_name(), "--after-exec", text[0], text[1], text[2],
		  text[3], NULL));
}

/*
 * A descriptor is inherited on purpose only, and exec() of a child does not concern the parent's
 * memory.
 */
TEST(exec_of_a_child)
{
	char *memory = anon(1);
	int fd = open_device(0);
	struct registration registration = register_memory(fd, memory, PAGE, WRITE);
	pid_t pid = fork();

	if (pid == 0) {
		SYS(fcntl(fd, F_SETFD, 0));
		execl("/proc/self/exe", program_name(), "--nothing", NULL);
		_exit(1);
	}
	join(pid);
	CHECK_NO_EVENT(fd);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
}

/*
 * The owner exits while another process has its file: no memory is reachable or pinned any more,
 * and the file works.
 */
TEST(exit_with_file_elsewhere, .faults = true)
{
	struct memory memory = memory_new(MEMFD, 2 * PAGE);
	struct registration registration, none;
	struct gate ready = gate_new();
	long long pins = pins_held();
	uint64_t handles[2];
	int sockets[2], fd;
	struct edu edu;
	pid_t pid;

	SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets));
	pid = fork();
	if (pid == 0) {
		fd = open_device(0);
		edu = edu_open(fd);
		registration = register_memory(fd, memory.addr, PAGE, WRITE);
		edu_load(&edu, 3);
		edu_writes(&edu, registration.device_addr, PAGE);
		CHECK(pattern_is(memory.alias, PAGE, 3));
		handles[0] = registration.handle;
		handles[1] = register_memory(fd, memory.addr + PAGE, PAGE, NO_MAP).handle;
		send_fd(sockets[1], fd);
		CHECK_EQ(write(sockets[1], handles, sizeof(handles)), sizeof(handles));
		gate_open(&ready);
		pause();
	}
	gate_pass(&ready);
	fd = receive_fd(sockets[0]);
	CHECK_EQ(read(sockets[0], handles, sizeof(handles)), sizeof(handles));
	CHECK_PINS(pins + 2);
	edu = edu_open(fd);
	edu_start(&edu, EDU_WRITES, (uintptr_t)memory.addr, PAGE, false);
	memset(memory.alias, 0x77, 2 * PAGE);
	kill_now(pid);
	/* unmapped before the process has gone; the transfer comes later */
	if (!edu_finish(&edu))
		memset(memory.alias, 0x77, 2 * PAGE);
	CHECK(bytes_are(memory.alias, 2 * PAGE, 0x77));
	edu_writes(&edu, (uintptr_t)memory.addr, PAGE);
	CHECK(bytes_are(memory.alias, 2 * PAGE, 0x77));
	CHECK_PINS_SOON(pins);
	for (int i = 0; i < 2; i++) {
		struct pinmap_event event = next_event(fd);

		CHECK_EQ(event.type, PINMAP_EVENT_STALE);
		CHECK(event.handle == handles[0] || event.handle == handles[1]);
	}
	CHECK_NO_EVENT(fd);
	CHECK_EQ(query_handle(fd, handles[0]).out_state, PINMAP_STATE_STALE);
	CHECK_ERR(EPERM, try_register_memory(fd, memory.addr, PAGE, WRITE, &none));
	release(fd, handles[0]);
	close(fd);
	edu_close(&edu);
	/* and the next one can have the device */
	fd = open_device(0);
	register_memory(fd, memory.addr, PAGE, WRITE);
}

/* Memory that vfork()'s child registers belongs to the address space that both share. */
TEST(vfork_child_registers)
{
	static char page[PAGE] __attribute__((aligned(PAGE)));
	static int result;
	int fd = open_device(0);
	static struct registration registration;
	pid_t pid = vfork();

	if (pid == 0) {
		result = try_register_memory(fd, page, PAGE, WRITE, &registration);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	CHECK_OK(result);
	CHECK_NO_EVENT(fd);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
}
