// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory that moves because somebody touches it. */
#define _GNU_SOURCE
#include "../told.h"

#include "edu.h"
#include "memory.h"
#include "process.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { AROUND = 16 };

/* A read of 8 bytes moves 64 KiB, from that page on, and nothing else. */
TEST(touched_window)
{
	char *memory = small_blocks(1), *there = memory + 32 * PAGE;
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, HUGE);
	struct pinmap_statistics seen;

	write_pattern(memory, HUGE, 11);
	device_reads(&queue, there + 40);
	CHECK_PLACE(fd, there, AROUND * PAGE, ON_DEVICE, TOUCHED);
	CHECK_EQ(on_device(fd, memory, HUGE), AROUND * PAGE);
	seen = statistics(fd, handle);
	CHECK_EQ(seen.out_in_touched, AROUND * PAGE);
	CHECK_EQ(seen.out_device_faults, 1);
	CHECK(seen.out_device_ns > 0);
	CHECK_EQ(seen.out_in_prefetched + seen.out_host_faults + seen.out_home_touched +
			 seen.out_home_prefetched + seen.out_home_evicted + seen.out_refaults +
			 seen.out_thrashing + seen.out_host_ns,
		 0);
	CHECK(has_pattern(memory, HUGE, 11));
}

/* Memory that the device goes through costs few faults. */
TEST(touched_in_order)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, HUGE);

	memset(memory, 0x41, HUGE);
	fill(&queue, memory, HUGE, 0x42);
	CHECK_PLACE(fd, memory, HUGE, ON_DEVICE, TOUCHED);
	CHECK_EQ(statistics(fd, handle).out_in_touched, HUGE);
	CHECK(statistics(fd, handle).out_device_faults <= 8);
	CHECK(bytes_are(memory, HUGE, 0x42));
}

/* A huge page moves whole, for one fault, and comes home whole, for one. */
TEST(touched_huge)
{
	char *memory = block_of(true), *middle = memory + HUGE / 2;
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, HUGE);
	struct pinmap_statistics seen;

	memset(memory, 0x43, HUGE);
	if (!is_thp(memory))
		SKIP("there is no huge page");
	device_writes(&queue, middle, 0x44);
	CHECK_PLACE(fd, memory, HUGE, ON_DEVICE, TOUCHED);
	CHECK_EQ(statistics(fd, handle).out_device_faults, 1);
	CHECK(bytes_are(middle, 8, 0x44));
	seen = statistics(fd, handle);
	CHECK_EQ(seen.out_home_touched, HUGE);
	CHECK_EQ(seen.out_host_faults, 1);
	CHECK(bytes_are(memory, HUGE / 2, 0x43));
	CHECK(bytes_are(middle + 8, HUGE / 2 - 8, 0x43));
}

/*
 * A kernel that goes through huge pages has more of them each time, before they are touched; one
 * that jumps has the page that was touched, and what is to stay on the host stays.
 */
TEST(touched_ahead, .seconds = 60)
{
	enum { BLOCKS = 12, KEPT = 9 };
	char *memory = address_space(BLOCKS * HUGE, HUGE);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	SYS(mmap(memory, BLOCKS * HUGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	SYS(madvise(memory, BLOCKS * HUGE, MADV_HUGEPAGE));
	manage(fd, memory, BLOCKS * HUGE);
	write_pattern(memory, BLOCKS * HUGE, 21);
	for (int block = 0; block < BLOCKS; block++)
		if (!is_thp(memory + block * HUGE))
			SKIP("there are not enough huge pages");
	CHECK_OK(try_advise(fd, memory + KEPT * HUGE, HUGE, PINMAP_ADVICE_PREFER_HOST));

	device_reads(&queue, memory);
	CHECK_EQ(on_device(fd, memory, BLOCKS * HUGE), HUGE);
	device_reads(&queue, memory + HUGE);
	CHECK_PLACE(fd, memory + HUGE, 2 * HUGE, ON_DEVICE, TOUCHED);
	CHECK_EQ(on_device(fd, memory, BLOCKS * HUGE), 3 * HUGE);
	/* it is there */
	device_reads(&queue, memory + 2 * HUGE);
	CHECK_EQ(on_device(fd, memory, BLOCKS * HUGE), 3 * HUGE);
	device_reads(&queue, memory + 3 * HUGE);
	CHECK_PLACE(fd, memory + 3 * HUGE, 4 * HUGE, ON_DEVICE, TOUCHED);
	CHECK_EQ(on_device(fd, memory, BLOCKS * HUGE), 7 * HUGE);
	device_reads(&queue, memory + 10 * HUGE);
	CHECK_EQ(on_device(fd, memory, BLOCKS * HUGE), 8 * HUGE);
	device_reads(&queue, memory + 7 * HUGE);
	CHECK_PLACE(fd, memory + 7 * HUGE, 2 * HUGE, ON_DEVICE, TOUCHED);
	CHECK_EQ(on_device(fd, memory, BLOCKS * HUGE), 10 * HUGE);
	CHECK_EQ(on_device(fd, memory + KEPT * HUGE, HUGE), 0);
	CHECK(has_pattern(memory, BLOCKS * HUGE, 21));
}

/* A range keeps its memory on the host, also if a kernel goes through what is before it. */
TEST(touched_ahead_of_host)
{
	char *memory = address_space(4 * HUGE, HUGE);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	SYS(mmap(memory, 4 * HUGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	SYS(madvise(memory, 4 * HUGE, MADV_HUGEPAGE));
	manage(fd, memory, 2 * HUGE);
	manage_host(fd, memory + 2 * HUGE, 2 * HUGE);
	write_pattern(memory, 4 * HUGE, 22);
	if (!is_thp(memory) || !is_thp(memory + HUGE))
		SKIP("there are not enough huge pages");
	device_reads(&queue, memory);
	device_reads(&queue, memory + HUGE);
	CHECK_PLACE(fd, memory, 2 * HUGE, ON_DEVICE, TOUCHED);
	CHECK_EQ(on_device(fd, memory + 2 * HUGE, 2 * HUGE), 0);
	CHECK(has_pattern(memory, 4 * HUGE, 22));
}

/* The CPU takes 64 KiB back for one fault; both times are told. */
TEST(touched_by_cpu)
{
	char *memory = small_blocks(1), *there = memory + 32 * PAGE;
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, HUGE);
	struct pinmap_statistics seen;

	memset(memory, 0x45, HUGE);
	device_writes(&queue, there, 0x46);
	CHECK(bytes_are(there, 8, 0x46));
	CHECK_PLACE(fd, there, AROUND * PAGE, ON_HOST, HOME);
	seen = statistics(fd, handle);
	CHECK_EQ(seen.out_home_touched, AROUND * PAGE);
	CHECK_EQ(seen.out_host_faults, 1);
	CHECK(seen.out_host_ns > 0);
}

/* Memory that nobody has touched is made on the device, of zeros, as much as moves otherwise. */
TEST(touched_first_by_device)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	manage(fd, memory, HUGE);
	device_writes(&queue, memory, 0x47);
	CHECK_PLACE(fd, memory, AROUND * PAGE, ON_DEVICE, TOUCHED);
	CHECK_PLACE(fd, memory + AROUND * PAGE, HUGE - AROUND * PAGE, ABSENT, NONE);
	CHECK(bytes_are(memory, 8, 0x47));
	CHECK(bytes_are(memory + 8, AROUND * PAGE - 8, 0));
}

/* Bytes that the device writes after fork() are the parent's, wherever they are then. */
TEST_EACH(touched_after_fork, page_sizes)
{
	char *memory = block_of(row->huge);
	struct gate go = gate_new();
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	pid_t pid;

	manage(fd, memory, HUGE);
	memset(memory, 0x48, HUGE);
	device_reads(&queue, memory);
	CHECK(on_device(fd, memory, HUGE) != 0);
	pid = fork();
	if (pid == 0) {
		gate_pass(&go);
		CHECK(bytes_are(memory, HUGE, 0x48));
		_exit(EXIT_PASS);
	}
	device_writes(&queue, memory, 0x49);
	gate_open(&go);
	join(pid);
	CHECK(bytes_are(memory, 8, 0x49));
	CHECK(bytes_are(memory + 8, HUGE - 8, 0x48));
}

static const struct {
	const char *name;
	enum memory_kind kind;
} fixed[] = { { "memfd", MEMFD },
	      { "shared", ANON_SHARED },
	      { "hugetlb", HUGETLB },
	      { "file", EXT4_SHARED },
	      { "tmpfs", TMPFS } };

/* Memory that never moves is used where it is. */
TEST_EACH(touched_fixed, fixed)
{
	struct memory memory = memory_new(row->kind, HUGE);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory.addr, HUGE);

	device_writes(&queue, memory.addr, 0x4a);
	CHECK_PLACE(fd, memory.addr, PAGE, ON_HOST, FIXED);
	CHECK_EQ(tell_page(fd, memory.addr).access, PINMAP_RUN_READ | PINMAP_RUN_WRITE);
	CHECK_EQ(statistics(fd, handle).out_in_touched, 0);
	CHECK(bytes_are(memory.addr, 8, 0x4a));
	memory_free(&memory);
}

/* So is memory whose pages the kernel may merge with others. */
TEST(touched_mergeable)
{
	char *memory = small_blocks(1);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x4c, HUGE);
	if (madvise(memory, HUGE, MADV_MERGEABLE))
		SKIP("the kernel merges no pages");
	device_writes(&queue, memory, 0x4d);
	CHECK_PLACE(fd, memory, PAGE, ON_HOST, FIXED);
	CHECK(bytes_are(memory, 8, 0x4d));
	CHECK_EQ(prefetch(fd, 0, memory, HUGE).out_fixed, HUGE);
	SYS(madvise(memory, HUGE, MADV_UNMERGEABLE));
}

/* A page that is pinned stays, is used there, and is not tried again and again; others move. */
TEST(touched_pinned)
{
	char *memory = small_blocks(1), *pinned = memory + 5 * PAGE;
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, HUGE), faults;
	struct registration registration;

	memset(memory, 0x4b, HUGE);
	registration = register_memory(other, pinned, PAGE, WRITE);
	device_reads(&queue, memory);
	CHECK_EQ(on_device(fd, memory, HUGE), (AROUND - 1) * PAGE);
	device_writes(&queue, pinned, 0x4c);
	CHECK_PLACE(fd, pinned, PAGE, ON_HOST, FIXED);
	faults = statistics(fd, handle).out_device_faults;
	for (int i = 0; i < 10; i++)
		device_writes(&queue, pinned, 0x4d);
	CHECK_EQ(statistics(fd, handle).out_device_faults, faults);
	CHECK(bytes_are(pinned, 8, 0x4d));
	release(other, registration.handle);
}

/* A page comes home to be pinned, by the CPU's rule. */
TEST(touched_by_pin)
{
	char *memory = small_blocks(1);
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, HUGE);
	struct registration registration;

	memset(memory, 0x4e, HUGE);
	device_writes(&queue, memory, 0x4f);
	registration = register_memory(other, memory, PAGE, WRITE);
	CHECK_EQ(tell_page(fd, memory).place, ON_HOST);
	CHECK_EQ(tell_page(fd, memory).rule, PINMAP_RULE_HOME);
	CHECK(statistics(fd, handle).out_host_faults >= 1);
	CHECK(bytes_are(memory, 8, 0x4f));
	release(other, registration.handle);
}

/* With MANAGE_HOST nothing moves by faults. */
TEST(touched_managed_for_host)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage_host(fd, memory, HUGE);

	fill(&queue, memory, HUGE, 0x50);
	CHECK_PLACE(fd, memory, HUGE, ON_HOST, ADVISED);
	CHECK_EQ(statistics(fd, handle).out_in_touched, 0);
	CHECK(bytes_are(memory, HUGE, 0x50));
}

/* Memory moves no further than the range that is managed. */
TEST(touched_at_end_of_range)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x51, HUGE);
	manage(fd, memory, 5 * PAGE);
	device_reads(&queue, memory + PAGE);
	CHECK_EQ(pages_away(memory, HUGE), 4);
	CHECK_PLACE(fd, memory + PAGE, 4 * PAGE, ON_DEVICE, TOUCHED);
}

/*
 * Pages of a block are neighbours in VRAM, but not where one entry can begin: each has its own.
 */
TEST(touched_neighbours, .seconds = 60)
{
	enum { STEP = 16 * PAGE };
	char *first = small_blocks(1), *memory = small_blocks(1);
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	manage_all(fd);
	leave_room(other, 2 * HUGE);
	write_pattern(first, STEP, 3);
	write_pattern(memory, HUGE, 4);
	MOVE_THERE(fd, first, STEP);
	for (size_t at = 0; at < HUGE; at += STEP)
		MOVE_THERE(fd, memory + at, STEP);
	fill(&queue, memory + PAGE, HUGE - PAGE, 0x63);
	copy(&queue, memory, first, PAGE);
	CHECK(has_pattern(first, PAGE, 4));
	CHECK(bytes_are(memory + PAGE, HUGE - PAGE, 0x63));
}

/* Both sides in turn, each somewhere else: every byte is right in the end. */
TEST(touched_in_turn)
{
	enum { BLOCKS = 4, ROUNDS = 40 };
	char *memory = small_blocks(BLOCKS);
	unsigned char wanted[BLOCKS * HUGE / PAGE] = { 0 };
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	unsigned int at = 7;

	memset(memory, 0, BLOCKS * HUGE);
	for (unsigned int i = 1; i <= ROUNDS; i++) {
		at = (at * 1103515245 + 12345) % ARRAY_SIZE(wanted);
		fill(&queue, memory + at * PAGE, PAGE, i);
		wanted[at] = i;
		at = (at * 1103515245 + 12345) % ARRAY_SIZE(wanted);
		CHECK(bytes_are(memory + at * PAGE, PAGE, wanted[at]));
		memset(memory + at * PAGE, i, PAGE);
		wanted[at] = i;
	}
	for (unsigned int page = 0; page < ARRAY_SIZE(wanted); page++)
		CHECK(bytes_are(memory + page * PAGE, PAGE, wanted[page]));
}

/* Numbers of a range are asked for by its handle and by nothing else. */
TEST(statistics_arguments)
{
	char *memory = small_blocks(1);
	int fd = open_gpu(), other = open_gpu();
	struct pinmap_statistics args;
	uint64_t handle = manage(fd, memory, HUGE);
	struct registration registration = register_memory(fd, anon(1), PAGE, WRITE);

	CHECK_ERR(ENOENT, try_statistics(fd, 0, &args));
	CHECK_ERR(ENOENT, try_statistics(fd, registration.handle, &args));
	CHECK_ERR(ENOENT, try_statistics(other, handle, &args));
	release(fd, handle);
	CHECK_ERR(ENOENT, try_statistics(fd, handle, &args));
}

/* Pages that PREFETCH moves are counted as such, and for each of two ranges by itself. */
TEST(statistics_prefetched)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();
	uint64_t first = manage(fd, memory, HUGE / 2);
	uint64_t second = manage(fd, memory + HUGE / 2, HUGE / 2);

	memset(memory, 1, HUGE);
	MOVE_THERE(fd, memory, HUGE / 2 + PAGE);
	MOVE_HOME(fd, memory + HUGE / 2, PAGE);
	CHECK_EQ(statistics(fd, first).out_in_prefetched, HUGE / 2);
	CHECK_EQ(statistics(fd, first).out_home_prefetched, 0);
	CHECK_EQ(statistics(fd, second).out_in_prefetched, PAGE);
	CHECK_EQ(statistics(fd, second).out_home_prefetched, PAGE);
}
