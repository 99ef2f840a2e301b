// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "pressure.h"

#include "device.h"
#include "file.h"
#include "memory.h"
#include "process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/wait.h>
#include <unistd.h>

#define CGROUP "/sys/fs/cgroup"

static char swap_path[64];

/* The header of swap space in the first page, as mkswap writes it. */
struct swap_header {
	char boot[1024];
	uint32_t version;
	uint32_t last_page;
	uint32_t bad_pages;
	char unused[PAGE - 1024 - 12 - 10];
	char magic[10];
};

void swap_begin(void)
{
	enum { PAGES = 16 * MIB / PAGE };
	struct swap_header header = { .version = 1, .last_page = PAGES - 1 };
	int fd;

	_Static_assert(sizeof(header) == PAGE, "one page");
	if (access("/proc/swaps", F_OK))
		SKIP("the kernel has no swap");
	snprintf(swap_path, sizeof(swap_path), "%s/swap", need_ext4());
	swapoff(swap_path);
	memcpy(header.magic, "SWAPSPACE2", 10);
	fd = SYS(open(swap_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
	if (fallocate(fd, 0, 0, PAGES * PAGE)) {
		unlink(swap_path);
		SKIP("no room for swap on the ext4 file system");
	}
	CHECK_EQ(write(fd, &header, sizeof(header)), sizeof(header));
	SYS(fsync(fd));
	close(fd);
	SYS(swapon(swap_path, 0));
}

void swap_end(void)
{
	SYS(swapoff(swap_path));
	unlink(swap_path);
}

static long long reclaimed(void)
{
	return file_field("/proc/vmstat", "pgsteal_kswapd") +
	       file_field("/proc/vmstat", "pgsteal_direct");
}

static void squeeze(void)
{
	size_t size = 256 * MIB;
	long long before = reclaimed();
	char *all = SYS(mmap(NULL, size, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));

	file_write("/proc/self/oom_score_adj", "1000");
	SYS(madvise(all, size, MADV_NOHUGEPAGE));
	for (size_t at = 0; at < size && reclaimed() < before + 512; at += 256 * PAGE)
		for (size_t page = 0; page < 256; page++)
			all[at + page * PAGE] = 1;
	CHECK(reclaimed() > before);
}

/*
 * Puts most of the memory away as huge pages, which nobody has to touch, so that the rest is soon
 * full.
 */
void pressure(void)
{
	long long had = file_number("/proc/sys/vm/nr_hugepages", 0);
	long long more = (file_field("/proc/meminfo", "MemFree:") - 64 * 1024) / 2048;
	char count[32];
	pid_t pid;

	snprintf(count, sizeof(count), "%lld", had + (more > 0 ? more : 0));
	file_write("/proc/sys/vm/nr_hugepages", count);
	pid = fork();
	if (pid == 0) {
		squeeze();
		_exit(0);
	}
	snprintf(count, sizeof(count), "%lld", had);
	/* the memory is given back before a failure of the child ends this process */
	SYS(waitid(P_PID, pid, &(siginfo_t){ 0 }, WNOWAIT | WEXITED));
	file_write("/proc/sys/vm/nr_hugepages", count);
	join(pid);
}

void compact(void)
{
	if (try_file_write("/proc/sys/vm/compact_memory", "1"))
		SKIP("the kernel has no compaction");
}

#define KSM "/sys/kernel/mm/ksm/"

bool ksm_begin(void)
{
	if (access(KSM "run", F_OK))
		return false;
	file_write(KSM "pages_to_scan", "4000");
	file_write(KSM "sleep_millisecs", "0");
	/* does not leave out pages that were looked at in vain */
	try_file_write(KSM "smart_scan", "0");
	file_write(KSM "run", "1");
	return true;
}

void ksm_end(void)
{
	file_write(KSM "run", "0");
	file_write(KSM "sleep_millisecs", "20");
}

void memory_cgroup(uint64_t limit, bool swap)
{
	char text[32];

	try_file_write(CGROUP "/cgroup.subtree_control", "+memory");
	mkdir(CGROUP "/pinmap-test", 0755);
	if (access(CGROUP "/pinmap-test/memory.max", F_OK))
		SKIP("needs cgroup2 with the memory controller at " CGROUP);
	/* a test that failed may have left a limit behind */
	file_write(CGROUP "/pinmap-test/memory.high", "max");
	snprintf(text, sizeof(text), "%llu", (unsigned long long)limit);
	file_write(CGROUP "/pinmap-test/memory.max", text);
	try_file_write(CGROUP "/pinmap-test/memory.swap.max", swap ? "max" : "0");
	snprintf(text, sizeof(text), "%d", getpid());
	file_write(CGROUP "/pinmap-test/cgroup.procs", text);
}
