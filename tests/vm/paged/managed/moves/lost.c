// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Memory that is on the device when that goes: it comes home before, or it is lost, and the program
 * that touches it gets to know.
 */
#define _GNU_SOURCE
#include "../moving.h"

#include "edu.h"
#include "file.h"
#include "kmsg.h"
#include "memory.h"
#include "pci.h"
#include "process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Asserts that the log tells, by now, that these pages are lost. */
static void check_told(int kmsg, const void *addr, size_t length)
{
	char line[512], wanted[64];

	snprintf(wanted, sizeof(wanted), "%#lx to %#lx", (uintptr_t)addr,
		 (uintptr_t)addr + length - 1);
	while (kmsg_next(kmsg, line, sizeof(line)))
		if (strstr(line, "lost") && strstr(line, wanted))
			return;
	FAIL("nothing tells that %s are lost", wanted);
}

/*
 * The device has forgotten everything, and nobody asked the driver. Whoever touches what was there
 * gets a SIGBUS, also by a system call, and each time; everything else goes on.
 */
TEST_EACH(moved_lost, page_sizes, .faults = true)
{
	size_t around = row->huge ? HUGE : 16 * PAGE;
	char *memory = block_of(row->huge), *home = block_of(row->huge), *twin = block_of(false);
	struct gate checked = gate_new();
	int fd = open_gpu(), kmsg = kmsg_open();
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_prefetch args;
	pid_t pid;

	manage_all(fd);
	memset(memory, 0x41, HUGE);
	memset(home, 0x42, HUGE);
	memset(twin, 0x43, HUGE);
	MOVE_THERE(fd, memory, HUGE);
	MOVE_THERE(fd, home, HUGE);
	fill(&queue, home, HUGE, 0x44);
	MOVE_HOME(fd, home, HUGE);
	/*
	 * Not a huge page that two processes share: when a migration of one is undone, a check of
	 * the kernel's (CONFIG_DEBUG_VM, remove_migration_pmd()) reads its entry as if it were one
	 * of memory, and warns.
	 */
	if (row->huge)
		SYS(madvise(memory, HUGE, MADV_DONTFORK));
	pid = fork();
	if (pid == 0) {
		gate_pass(&checked);
		CHECK(bytes_are(home, HUGE, 0x44));
		CHECK(bytes_are(twin, HUGE, 0x43));
		if (!row->huge)
			CHECK_EQ(touch_read(memory + 32 * PAGE), SIGBUS);
		_exit(0);
	}
	gpu_reset_behind();
	CHECK_EQ(touch_read(memory), SIGBUS);
	check_told(kmsg, memory, around);
	CHECK_EQ(touch_write(memory), SIGBUS);
	CHECK_EQ(touch_read(memory + HUGE - PAGE), SIGBUS);
	CHECK(bytes_are(home, HUGE, 0x44));
	CHECK(bytes_are(twin, HUGE, 0x43));
	CHECK_EQ(write(new_memfd(PAGE, 0), memory, PAGE), -1);
	CHECK_EQ(errno, EFAULT);
	CHECK(WAIT_FOR(10000, try_prefetch(fd, PINMAP_PREFETCH_HOST, memory, HUGE, &args) ==
			      -ENODEV));
	gate_open(&checked);
	join(pid);
	gpu_rebind();
	check_works();
	/* what takes the place of lost memory is good */
	CHECK_EQ(touch_read(memory), SIGBUS);
	SYS(madvise(memory, HUGE, MADV_DONTNEED));
	CHECK(bytes_are(memory, HUGE, 0));
}

/*
 * The IOMMU does not unmap what a copy was made from: the device is cut off before the call
 * returns, and the program has its memory.
 */
TEST(moved_unmap_fails, .faults = true)
{
	enum { SOME = 24 * PAGE };
	char *memory = block_of(true);
	int fd = open_gpu(), kmsg = kmsg_open();
	struct pinmap_prefetch args;
	int error;

	manage(fd, memory, HUGE);
	write_pattern(memory, HUGE, 5);
	error = try_prefetch(fd, 0, memory, SOME, &args);
	if (!error)
		SKIP("needs an IOMMU that fails to unmap, which a mutant of the driver has");
	CHECK_EQ(error, -EIO);
	CHECK(kmsg_count(kmsg, "its DMA is out of control") == 1);
	CHECK(WAIT_FOR(10000, get_info(fd).out_flags & PINMAP_INFO_GONE));
	CHECK(has_pattern(memory, HUGE, 5));
	gpu_rebind();
	check_works();
}

/* A reset that the kernel makes waits until all is at home. */
TEST_EACH(moved_reset, page_sizes, .faults = true)
{
	char *memory = block_of(row->huge);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, 0x45);
	file_write(pci_path(need_gpu(), "reset"), "1");
	CHECK_EQ(pages_away(memory, HUGE), 0);
	CHECK(bytes_are(memory, HUGE, 0x45));
	gpu_rebind();
	check_works();
}

/* The function is removed from the bus, with the pages of two processes there. */
TEST_EACH(moved_removed, page_sizes, .faults = true)
{
	char *memory = block_of(row->huge), bdf[16];
	struct gate child = gate_new(), removed = gate_new();
	pid_t pid = fork();
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	snprintf(bdf, sizeof(bdf), "%.15s", need_gpu());
	manage_all(fd);
	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, pid ? 0x46 : 0x47);
	if (pid == 0) {
		gate_open(&child);
		gate_pass(&removed);
		CHECK(bytes_are(memory, HUGE, 0x47));
		_exit(0);
	}
	gate_pass(&child);
	file_write(pci_path(bdf, "remove"), "1");
	gate_open(&removed);
	CHECK(bytes_are(memory, HUGE, 0x46));
	join(pid);
	file_write("/sys/bus/pci/rescan", "1");
	pci_bind(bdf);
	check_works();
}

static const struct {
	const char *name;
	bool locked;
} kinds[] = { { "mergeable", false }, { "locked", true } };

/* Memory that could not move there any more comes home all the same. */
TEST_EACH(moved_unbind_now, kinds)
{
	char *memory = block_of(false);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	MOVE_THERE(fd, memory, HUGE);
	fill(&queue, memory, HUGE, 0x4c);
	if (row->locked)
		SYS(mlock2(memory, HUGE, MLOCK_ONFAULT));
	else
		SYS(madvise(memory, HUGE, MADV_MERGEABLE));
	CHECK_EQ(pages_away(memory, HUGE), HUGE / PAGE);
	gpu_rebind();
	CHECK_EQ(pages_away(memory, HUGE), 0);
	CHECK(bytes_are(memory, HUGE, 0x4c));
	check_works();
}

static const struct {
	const char *name;
	bool huge, parent_exits;
} families[] = { { "small", false, false },
		 { "huge", true, false },
		 { "orphan", false, true },
		 { "orphan_huge", true, true } };

/*
 * Pages that were moved before a fork are those of both, though only one of them has the file. They
 * come home when the device goes, also if only the other process is left.
 */
TEST_EACH(moved_unbind_forked, families)
{
	char *memory = block_of(row->huge);
	struct gate moved = gate_new(), unbound = gate_new(), looked = gate_new();
	pid_t mover, child;

	mover = fork();
	if (mover == 0) {
		int fd = open_gpu();
		struct gpu_queue queue = queue_new(fd);

		manage_all(fd);
		MOVE_THERE(fd, memory, HUGE);
		fill(&queue, memory, HUGE, 0x48);
		child = fork();
		if (child == 0) {
			close(fd);
			gate_open(&moved);
			gate_pass(&unbound);
			CHECK_EQ(pages_away(memory, HUGE), 0);
			CHECK(bytes_are(memory, HUGE, 0x48));
			memset(memory, 0x49, HUGE);
			gate_open(&looked);
			_exit(0);
		}
		if (row->parent_exits)
			_exit(0);
		join(child);
		CHECK(bytes_are(memory, HUGE, 0x48));
		_exit(0);
	}
	gate_pass(&moved);
	if (row->parent_exits)
		join(mover);
	gpu_rebind();
	gate_open(&unbound);
	gate_pass(&looked);
	if (!row->parent_exits)
		join(mover);
	check_works();
}

static const struct {
	const char *name;
	bool huge, killed;
} exits[] = { { "small", false, false },
	      { "huge", true, false },
	      { "killed_small", false, true },
	      { "killed_huge", true, true } };

/* A program that ends takes its pages along: there is as much VRAM as before. */
TEST_EACH(moved_exit, exits)
{
	struct gate moved = gate_new();
	int other = open_gpu();
	uint64_t before = vram_free(other);
	pid_t pid = fork();

	if (pid == 0) {
		char *memory = block_of(row->huge);
		int fd = open_gpu();
		struct gpu_queue queue = queue_new(fd);

		manage_all(fd);
		MOVE_THERE(fd, memory, HUGE);
		fill(&queue, memory, HUGE, 0x4a);
		gate_open(&moved);
		while (row->killed)
			fill(&queue, memory, HUGE, 0x4b);
		_exit(0);
	}
	gate_pass(&moved);
	if (row->killed)
		kill_now(pid);
	else
		join(pid);
	CHECK(WAIT_FOR(5000, vram_free(other) == before));
	check_works();
}
