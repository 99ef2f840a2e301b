// SPDX-License-Identifier: MIT OR Apache-2.0
/* Many contexts of one user. */
#define _GNU_SOURCE
#include "device.h"
#include "pci.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MOST = 1024 };

static int opens(const char *node)
{
	int fd = open(node, O_RDWR | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

/* A user has so many contexts of a flat device; others have theirs, and what is closed is free. */
TEST(contexts_of_a_user)
{
	struct pci_device device = need_device(0);
	struct gate full = gate_new();
	pid_t pid = fork();

	if (pid == 0) {
		struct rlimit files = { MOST + 100, MOST + 100 };
		int last = -1;

		SYS(setrlimit(RLIMIT_NOFILE, &files));
		become_user(true);
		for (int i = 0; i < MOST; i++)
			last = SYS(open(device.node, O_RDWR | O_CLOEXEC));
		CHECK_ERR(ENOSPC, opens(device.node));
		close(last);
		last = SYS(open(device.node, O_RDWR | O_CLOEXEC));
		CHECK_ERR(ENOSPC, opens(device.node));
		gate_open(&full);
		for (;;)
			pause();
	}
	gate_pass(&full);
	close(open_device(0));
	kill_now(pid);
	pid = fork();
	if (pid == 0) {
		become_user(true);
		SYS(open(device.node, O_RDWR | O_CLOEXEC));
		test_end(EXIT_PASS);
	}
	join(pid);
}

/* How often this thread has slept. */
static long sleeps(void)
{
	struct rusage usage;

	SYS(getrusage(RUSAGE_THREAD, &usage));
	return usage.ru_nvcsw;
}

/* Closing a context does not wait for a grace period of RCU, in which the thread would sleep. */
TEST(contexts_are_closed_quickly)
{
	enum { COUNT = 64 };
	struct pollfd files[COUNT];
	long before;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		SKIP("a grace period takes no time with one processor");
	for (int file = 0; file < COUNT; file++)
		files[file] = (struct pollfd){ .fd = open_device(0), .events = POLLIN };
	CHECK_EQ(poll(files, COUNT, 0), 0);
	before = sleeps();
	for (int file = 0; file < COUNT; file++)
		close(files[file].fd);
	before = sleeps() - before;
	if (before >= COUNT / 2)
		FAIL("to close %d contexts, the thread has slept %ld times", COUNT, before);
}
