// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Memory is registered, released and unmapped after the kernel has reclaimed memory, so that
 * lockdep knows which locks reclaim takes, and that the notifier's are among them. A wrong order
 * shows in the log.
 */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pins.h"
#include "pressure.h"
#include "process.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

TEST(locks, .seconds = 60)
{
	long long reclaimed = file_field("/proc/vmstat", "pgsteal_kswapd"), pins = pins_held();
	struct memory anonymous, file;
	struct registration first, second;
	int fd;

	if (access("/proc/lockdep", F_OK))
		SKIP("the kernel has no lockdep");
	anonymous = memory_new(ANON, 256 * PAGE);
	file = memory_new(MEMFD, 256 * PAGE);
	fd = open_device(0);
	first = register_memory(fd, anonymous.addr, 256 * PAGE, WRITE);
	second = register_memory(fd, file.addr, 256 * PAGE, WRITE);
	swap_begin();
	/* reclaim meets registered memory: with huge pages, of files, on the way to swap */
	pressure();
	CHECK(file_field("/proc/vmstat", "pgsteal_kswapd") > reclaimed);
	SYS(madvise(file.addr, 256 * PAGE, MADV_PAGEOUT));
	CHECK_NO_EVENT(fd);
	CHECK_EQ(query_handle(fd, first.handle).out_state, PINMAP_STATE_LIVE);
	/* now everything that takes the notifier's locks */
	SYS(munmap(anonymous.addr, 8 * PAGE));
	CHECK_STALE_EVENT(fd, first);
	SYS(madvise(file.addr, PAGE, MADV_REMOVE));
	CHECK_STALE_EVENT(fd, second);
	register_memory(fd, anonymous.addr + 8 * PAGE, 16 * PAGE, WRITE);
	release(fd, first.handle);
	release(fd, second.handle);
	pressure();
	register_memory(fd, file.addr, 256 * PAGE, WRITE);
	close(fd);
	swap_end();
	CHECK_PINS_SOON(pins);
	/* lockdep switches itself off with its first report */
	CHECK_EQ(file_field("/proc/lockdep_stats", " debug_locks:"), 1);
}

/*
 * The locks are right in a cgroup that is too small: there the process itself reclaims, under its
 * own locks.
 */
TEST(locks_in_a_cgroup, .seconds = 60)
{
	long long pins = pins_held();
	struct memory anonymous, file;
	struct registration first, second;
	char *others;
	int fd;

	if (access("/proc/lockdep", F_OK))
		SKIP("the kernel has no lockdep");
	swap_begin();
	memory_cgroup(24 * MIB, true);
	anonymous = memory_new(ANON, 64 * PAGE);
	file = memory_new(MEMFD, 64 * PAGE);
	fd = open_device(0);
	first = register_memory(fd, anonymous.addr, 64 * PAGE, WRITE);
	second = register_memory(fd, file.addr, 64 * PAGE, WRITE);
	others = anon(34 * MIB / PAGE);
	for (unsigned int i = 0; i < 8; i++) {
		struct registration registration =
			register_memory(fd, others + i * MIB, MIB, WRITE);

		if (i % 2)
			release(fd, registration.handle);
		SYS(munmap(others + i * MIB, MIB));
		if (i % 2 == 0)
			CHECK_STALE_EVENT(fd, registration);
	}
	CHECK_EQ(query_handle(fd, first.handle).out_state, PINMAP_STATE_LIVE);
	CHECK_EQ(query_handle(fd, second.handle).out_state, PINMAP_STATE_LIVE);
	close(fd);
	SYS(munmap(others, 34 * MIB));
	swap_end();
	CHECK_PINS_SOON(pins);
	CHECK_EQ(file_field("/proc/lockdep_stats", " debug_locks:"), 1);
}
