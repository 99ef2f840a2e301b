// SPDX-License-Identifier: MIT OR Apache-2.0
/* Many contexts of one user. */
#define _GNU_SOURCE
#include "device.h"
#include "pci.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
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

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Closing a context does not wait for a grace period of RCU, for which a membarrier waits. */
TEST(contexts_are_closed_quickly, .seconds = 120)
{
	enum { COUNT = 64 };
	double closing = 0, waiting = 0;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		SKIP("a grace period takes no time with one processor");
	for (unsigned int i = 0; i < 5; i++) {
		struct pollfd files[COUNT];

		for (int file = 0; file < COUNT; file++)
			files[file] = (struct pollfd){ .fd = open_device(0), .events = POLLIN };
		CHECK_EQ(poll(files, COUNT, 0), 0);
		waiting = now();
		for (int file = 0; file < COUNT; file++)
			SYS(syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0));
		closing = now();
		waiting = closing - waiting;
		for (int file = 0; file < COUNT; file++)
			close(files[file].fd);
		closing = now() - closing;
		if (closing < waiting / 3)
			return;
	}
	FAIL("%d contexts are closed in %.3f s; so many grace periods take %.3f s", COUNT, closing,
	     waiting);
}
