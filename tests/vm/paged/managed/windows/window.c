// SPDX-License-Identifier: MIT OR Apache-2.0
/* Windows: ranges of managed memory that have their addresses to themselves. */
#define _GNU_SOURCE
#include "window.h"

#include "alloc.h"
#include "edu.h"
#include "memory.h"
#include "pci.h"
#include "process.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int try_window(int fd, const void *addr, size_t length, struct pinmap_manage *args)
{
	if (!(get_info(fd).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel lets no driver follow the memory of programs");
	return try_manage(fd, PINMAP_MANAGE_WINDOW, addr, length, args);
}

uint64_t window(int fd, const void *addr, size_t length)
{
	struct pinmap_manage args;

	CHECK_OK(try_window(fd, addr, length, &args));
	return args.out_handle;
}

/* Asserts that a window is refused, and that nothing has come of it. */
#define CHECK_WINDOW_FAILS(fd, addr, length, error, reason, fail_addr)				\
	do {											\
		uint64_t number_ = totals(fd, PINMAP_TOTALS_CONTEXT).out_managed.number;	\
		uint64_t free_ = vram_free(fd);							\
		struct pinmap_manage args_;							\
		int failed_ = try_window(fd, addr, length, &args_);				\
		check_fail(__FILE__, __LINE__, failed_, error, &args_.fail, reason,		\
			   (uintptr_t)(fail_addr));						\
		CHECK_EQ(totals(fd, PINMAP_TOTALS_CONTEXT).out_managed.number, number_);	\
		CHECK_EQ(vram_free(fd), free_);							\
	} while (0)

char *memory_at(char *addr, size_t length, bool is_huge)
{
	char *memory = SYS(mmap(addr, length, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));

	CHECK(memory == addr);
	SYS(madvise(memory, length, is_huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	return memory;
}

/* The addresses are the same for the program and the device, and memory moves as everywhere. */
TEST_EACH(window_serves, page_sizes)
{
	int fd = open_gpu();
	char *memory = memory_at(CHOSEN, LENGTH, row->huge);
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle, before;
	struct pinmap_query query;
	struct pinmap_statistics seen;

	write_pattern(memory, LENGTH, 1);
	before = vram_free(fd);
	handle = window(fd, memory, LENGTH);
	query = query_handle(fd, handle);
	CHECK_EQ(query.out_kind, PINMAP_BUFFER_MANAGED);
	CHECK_EQ(query.out_base, (uintptr_t)memory);
	CHECK_EQ(query.out_length, LENGTH);
	CHECK_EQ(query.out_device_addr, (uintptr_t)memory);
	copy(&queue, memory, memory + LENGTH / 2, LENGTH / 2);
	CHECK_PLACE(fd, memory, LENGTH, ON_DEVICE, TOUCHED);
	CHECK(!memcmp(memory, memory + LENGTH / 2, LENGTH / 2));
	CHECK(has_pattern(memory, LENGTH / 2, 1));
	MOVE_THERE(fd, memory, LENGTH);
	fill(&queue, memory + PAGE, PAGE, 0x31);
	CHECK(bytes_are(memory + PAGE, PAGE, 0x31));
	seen = statistics(fd, handle);
	CHECK(seen.out_device_faults > 0 && seen.out_in_touched == LENGTH);
	CHECK(seen.out_in_prefetched == LENGTH && seen.out_home_touched > LENGTH);
	CHECK_EQ(seen.out_refused, 0);
	CHECK_EQ(seen.out_last_access, 0);
	advise(fd, memory, LENGTH, PREFER_HOST);
	prefetch(fd, PINMAP_PREFETCH_HOST, memory, LENGTH);
	fill(&queue, memory, LENGTH, 0x32);
	CHECK(bytes_are(memory, LENGTH, 0x32));
	release(fd, handle);
	CHECK_WRITE_REFUSED(fd, memory, UNMAPPED);
	CHECK(bytes_are(memory, LENGTH, 0x32));
	CHECK(WAIT_FOR(2000, vram_free(fd) == before));
}

TEST(window_of_nonsense)
{
	int fd = open_gpu();
	char *memory = small_blocks(BLOCKS);
	struct pinmap_manage args;
	uint64_t handle;

	CHECK_WINDOW_FAILS(fd, memory + PAGE, HUGE, EINVAL, PINMAP_FAIL_NONE, 0);
	CHECK_WINDOW_FAILS(fd, memory, HUGE + PAGE, EINVAL, PINMAP_FAIL_NONE, 0);
	CHECK_WINDOW_FAILS(fd, memory, 0, EINVAL, PINMAP_FAIL_NONE, 0);
	CHECK_WINDOW_FAILS(fd, (char *)(1ULL << 63), HUGE, EINVAL, PINMAP_FAIL_NONE, 0);
	CHECK_WINDOW_FAILS(fd, (char *)-HUGE, 2 * HUGE, EOVERFLOW, PINMAP_FAIL_NONE, 0);
	CHECK_ERR(EINVAL, try_manage(fd, PINMAP_MANAGE_ALL | PINMAP_MANAGE_WINDOW, NULL, 0, &args));
	/* nothing is mapped at some of it, or at all */
	SYS(munmap(memory + HUGE + 3 * PAGE, PAGE));
	CHECK_WINDOW_FAILS(fd, memory, LENGTH, EFAULT, PINMAP_FAIL_HOLE, memory + HUGE + 3 * PAGE);
	CHECK_WINDOW_FAILS(fd, CHOSEN, HUGE, EFAULT, PINMAP_FAIL_HOLE, CHOSEN);
	SYS(munmap(memory + LENGTH - PAGE, PAGE));
	CHECK_WINDOW_FAILS(fd, memory + 2 * HUGE, 2 * HUGE, EFAULT, PINMAP_FAIL_HOLE,
			   memory + LENGTH - PAGE);
	/* that it cannot be accessed does not matter */
	SYS(mprotect(memory, HUGE, PROT_NONE));
	handle = window(fd, memory, HUGE);
	CHECK_READ_REFUSED(fd, memory, PERMISSION);
	release(fd, handle);
}

/* How something lies to a window of LENGTH, in the middle of memory three times as large. */
static const struct lie {
	const char *name;
	size_t start;
	size_t length;
} lies[] = {
	{ "first_page", LENGTH, PAGE },
	{ "last_page", 2 * LENGTH - PAGE, PAGE },
	{ "inside", LENGTH + HUGE - PAGE, 3 * PAGE },
	{ "before_and_in", LENGTH - 2 * PAGE, 3 * PAGE },
	{ "in_and_behind", 2 * LENGTH - PAGE, 3 * PAGE },
	{ "all", LENGTH, LENGTH },
	{ "around", LENGTH - PAGE, LENGTH + 2 * PAGE },
};

/* Nothing can be registered where a window is, nor mapped. */
TEST_EACH(window_refuses, lies)
{
	int fd = open_gpu(), other = open_gpu(), file = new_memfd(row->length, 0);
	char *memory = small_blocks(3 * BLOCKS), *at = memory + row->start;
	char *start = memory + LENGTH;
	uint64_t handle = window(fd, start, LENGTH), address;
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_preflight preflight = {
		.size = sizeof(preflight),
		.addr = (uintptr_t)at,
		.length = row->length,
	};
	struct pinmap_register args;
	struct pinmap_register_fd part;
	struct gpu_memory vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, row->length);
	struct registration elsewhere, registration;
	struct pinmap_fail fail;
	int result;

	CHECK_REGISTER_FAILS(fd, at, row->length, WRITE, EEXIST, PINMAP_FAIL_WINDOW, start);
	CHECK_REGISTER_FAILS(fd, at, row->length, NO_MAP, EEXIST, PINMAP_FAIL_WINDOW, start);
	CHECK_REGISTER_FAILS(fd, at, row->length, WRITE | PINMAP_REGISTER_IDENTITY, EEXIST,
			     PINMAP_FAIL_WINDOW, start);
	CHECK_REGISTER_FAILS(fd, at, row->length, WRITE | PINMAP_REGISTER_PORTABLE, EEXIST,
			     PINMAP_FAIL_WINDOW, start);
	result = try_ioctl(fd, PINMAP_PREFLIGHT, &preflight);
	check_fail(__FILE__, __LINE__, result, EEXIST, &preflight.fail, PINMAP_FAIL_WINDOW,
		   (uintptr_t)start);
	/* memory of elsewhere, at these device addresses */
	elsewhere = register_memory(fd, anon(row->length / PAGE), row->length, WRITE);
	address = (uintptr_t)at;
	result = try_map(fd, elsewhere.handle, PINMAP_MAP_FIXED, &address, &fail);
	check_fail(__FILE__, __LINE__, result, EEXIST, &fail, PINMAP_FAIL_WINDOW, (uintptr_t)start);
	address = (uintptr_t)at;
	result = try_map(fd, vram.args.out_handle, PINMAP_MAP_FIXED, &address, &fail);
	check_fail(__FILE__, __LINE__, result, EEXIST, &fail, PINMAP_FAIL_WINDOW, (uintptr_t)start);
	args = register_args(elsewhere.addr, row->length, WRITE | PINMAP_REGISTER_FIXED);
	release(fd, elsewhere.handle);
	args.device_addr = (uintptr_t)at;
	result = try_register_args(fd, &args);
	check_fail(__FILE__, __LINE__, result, EEXIST, &args.fail, PINMAP_FAIL_WINDOW,
		   (uintptr_t)start);
	part = fd_args(file, 0, row->length, WRITE | PINMAP_REGISTER_FIXED);
	part.device_addr = (uintptr_t)at;
	result = try_register_fd(fd, &part);
	check_fail(__FILE__, __LINE__, result, EEXIST, &part.fail, PINMAP_FAIL_WINDOW,
		   (uintptr_t)start);
	/* another context can register the memory, but not for this one */
	CHECK_REGISTER_FAILS(other, at, row->length, WRITE | PINMAP_REGISTER_PORTABLE, EEXIST,
			     PINMAP_FAIL_WINDOW, start);
	registration = register_memory(other, at, row->length, WRITE);
	fill(&queue, start, LENGTH, 0x41);
	CHECK(bytes_are(start, LENGTH, 0x41));
	release(other, registration.handle);
	/* beside it all is as ever */
	registration = register_memory(fd, start - PAGE, PAGE, WRITE);
	CHECK_EQ(registration.device_addr, (uintptr_t)start - PAGE);
	release(fd, registration.handle);
	registration = register_memory(fd, start + LENGTH, PAGE, WRITE);
	CHECK_EQ(registration.device_addr, (uintptr_t)start + LENGTH);
	release(fd, registration.handle);
	release(fd, handle);
	registration = register_memory(fd, at, row->length, WRITE);
	CHECK_EQ(registration.device_addr, (uintptr_t)at);
	CHECK(bytes_are(start, LENGTH, 0x41));
}

/* A window is not made where something is registered or mapped. */
TEST_EACH(window_is_refused, lies)
{
	int fd = open_gpu(), other = open_gpu();
	char *memory = small_blocks(3 * BLOCKS), *at = memory + row->start;
	char *start = memory + LENGTH;
	struct gpu_queue queue = queue_new(fd);
	struct registration registration;
	uint64_t handle;

	memset(memory, 0x11, 3 * LENGTH);
	registration = register_memory(fd, at, row->length, WRITE);
	CHECK_WINDOW_FAILS(fd, start, LENGTH, EEXIST, PINMAP_FAIL_OVERLAP, at);
	fill(&queue, at, row->length, 0x42);
	CHECK(bytes_are(at, row->length, 0x42));
	/* what another context has is not in the way */
	release(other, window(other, start, LENGTH));
	release(fd, registration.handle);
	registration = register_memory(fd, at, row->length, NO_MAP);
	CHECK_WINDOW_FAILS(fd, start, LENGTH, EEXIST, PINMAP_FAIL_OVERLAP, at);
	release(fd, registration.handle);
	registration = register_memory(other, at, row->length, WRITE | PINMAP_REGISTER_PORTABLE);
	CHECK_WINDOW_FAILS(fd, start, LENGTH, EEXIST, PINMAP_FAIL_OVERLAP, at);
	release(other, registration.handle);
	/* a mapping at these device addresses, of memory elsewhere */
	registration = register_memory(fd, anon(row->length / PAGE), row->length, WRITE | NO_MAP);
	map(fd, registration.handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, (uintptr_t)at);
	CHECK_WINDOW_FAILS(fd, start, LENGTH, EEXIST, PINMAP_FAIL_OVERLAP, at);
	fill(&queue, at, row->length, 0x43);
	CHECK(bytes_are(registration.addr, row->length, 0x43));
	release(fd, registration.handle);
	/* what is stale is not in the way */
	registration = register_memory(fd, at, row->length, WRITE);
	SYS(mmap(at, row->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0));
	handle = window(fd, start, LENGTH);
	fill(&queue, start, LENGTH, 0x44);
	CHECK(bytes_are(start, LENGTH, 0x44));
	release(fd, registration.handle);
	fill(&queue, start, LENGTH, 0x45);
	CHECK(bytes_are(start, LENGTH, 0x45));
	release(fd, handle);
}

TEST(window_over_window)
{
	int fd = open_gpu();
	char *memory = small_blocks(3 * BLOCKS), *start = memory + LENGTH;
	uint64_t handle = window(fd, start, LENGTH), next;
	struct gpu_queue queue = queue_new(fd);

	CHECK_WINDOW_FAILS(fd, start, LENGTH, EEXIST, PINMAP_FAIL_WINDOW, start);
	CHECK_WINDOW_FAILS(fd, start + HUGE, HUGE, EEXIST, PINMAP_FAIL_WINDOW, start);
	CHECK_WINDOW_FAILS(fd, start - HUGE, 2 * HUGE, EEXIST, PINMAP_FAIL_WINDOW, start);
	CHECK_WINDOW_FAILS(fd, start + LENGTH - HUGE, 2 * HUGE, EEXIST, PINMAP_FAIL_WINDOW, start);
	CHECK_WINDOW_FAILS(fd, memory, 3 * LENGTH, EEXIST, PINMAP_FAIL_WINDOW, start);
	next = window(fd, start + LENGTH, LENGTH);
	window(fd, memory, LENGTH);
	fill(&queue, memory, 3 * LENGTH, 0x46);
	CHECK(bytes_are(memory, 3 * LENGTH, 0x46));
	release(fd, handle);
	CHECK_WINDOW_FAILS(fd, memory, 3 * LENGTH, EEXIST, PINMAP_FAIL_WINDOW, memory);
	CHECK_WRITE_REFUSED(fd, start, UNMAPPED);
	fill(&queue, start + LENGTH, LENGTH, 0x47);
	CHECK(bytes_are(start + LENGTH, LENGTH, 0x47));
	release(fd, next);
	handle = window(fd, start, 2 * LENGTH);
	fill(&queue, memory, 3 * LENGTH, 0x48);
	CHECK(bytes_are(memory, 3 * LENGTH, 0x48));
	release(fd, handle);
}

/* A window lies in other managed ranges, whichever comes first, and what happens in it is its. */
TEST(window_in_what_is_managed)
{
	int fd = open_gpu();
	char *memory = small_blocks(3 * BLOCKS), *start = memory + LENGTH;
	struct gpu_queue queue = queue_new(fd);
	uint64_t all, handle, faults;
	struct pinmap_manage args;

	for (int first = 0; first < 2; first++) {
		handle = first ? window(fd, start, LENGTH) : 0;
		all = manage_all(fd);
		fill(&queue, start, LENGTH, 0x51 + first);
		CHECK_ERR(EEXIST, try_manage(fd, 0, memory, PAGE, &args));
		if (!first)
			handle = window(fd, start, LENGTH);
		faults = statistics(fd, all).out_device_faults;
		prefetch(fd, PINMAP_PREFETCH_HOST, start, LENGTH);
		fill(&queue, start, LENGTH, 0x53 + first);
		CHECK_EQ(statistics(fd, all).out_device_faults, faults);
		CHECK(statistics(fd, handle).out_device_faults > 0);
		fill(&queue, memory + LENGTH - PAGE, LENGTH + 2 * PAGE, 0x55 + first);
		CHECK(statistics(fd, all).out_device_faults > faults);
		CHECK(bytes_are(memory + LENGTH - PAGE, LENGTH + 2 * PAGE, 0x55 + first));
		CHECK_EQ(tell(fd, memory, 3 * LENGTH)->args.out_end,
			 (uintptr_t)memory + 3 * LENGTH);
		release(fd, first ? handle : all);
		fill(&queue, start, LENGTH, 0x57 + first);
		CHECK(bytes_are(start, LENGTH, 0x57 + first));
		if (!first)
			CHECK_WRITE_REFUSED(fd, start - PAGE, UNMAPPED);
		release(fd, first ? all : handle);
		CHECK_WRITE_REFUSED(fd, start, UNMAPPED);
	}
}

/* A window is charged for all that it will ever need, until its end. */
TEST(window_is_charged)
{
	struct pinmap_manage args;
	uint64_t used, handle, owed;
	struct gpu_queue queue;
	char *memory;
	int fd;

	pci_adopt(need_gpu());
	set_memlock(1 << 20);
	become_user(true);
	fd = open_gpu();
	queue = queue_new(fd);
	memory = memory_at(CHOSEN, 2 * LENGTH, false);
	used = get_info(fd).out_memlock_used;
	handle = window(fd, memory, LENGTH);
	owed = (BLOCKS + UPPER_TABLES) * PAGE;
	CHECK_EQ(get_info(fd).out_memlock_used, used + owed);
	fill(&queue, memory, LENGTH, 0x61);
	CHECK(bytes_are(memory, LENGTH, 0x61));
	SYS(madvise(memory, LENGTH, MADV_DONTNEED));
	fill(&queue, memory + HUGE, 8, 0x62);
	SYS(munmap(memory, LENGTH));
	CHECK_EQ(get_info(fd).out_memlock_used, used + owed);
	/* the next one shares what is above */
	release(fd, window(fd, memory + LENGTH, LENGTH));
	CHECK_EQ(get_info(fd).out_memlock_used, used + owed);
	set_memlock(used + owed + (BLOCKS - 1) * PAGE);
	CHECK_ERR(ENOMEM, try_window(fd, memory + LENGTH, LENGTH, &args));
	CHECK_EQ(args.fail.reason, PINMAP_FAIL_MEMLOCK);
	CHECK_EQ(args.fail.needed, used + owed + BLOCKS * PAGE);
	CHECK_EQ(args.fail.allowed, used + owed + (BLOCKS - 1) * PAGE);
	CHECK_EQ(get_info(fd).out_memlock_used, used + owed);
	release(fd, handle);
	CHECK_EQ(get_info(fd).out_memlock_used, used);
}

unsigned int take_tables(int fd)
{
	struct pinmap_map map = { .size = sizeof(map), .flags = PINMAP_MAP_FIXED };
	char *memory = anon(8192 / 60 + 1);
	unsigned int place = 0;
	int result = 0;

	for (size_t length = 64 << 20; length >= PAGE; length /= 2) {
		struct pinmap_alloc args;

		do
			result = try_alloc(fd, PINMAP_ALLOC_VRAM, length, &args);
		while (!result);
	}
	result = 0;
	for (; place < 8192 && !result; place++) {
		if (place % 60 == 0) {
			struct registration registration;

			result = try_register_memory(fd, memory + place / 60 * PAGE, PAGE, WRITE,
						     &registration);
			if (result)
				break;
			map.handle = registration.handle;
		}
		map.device_addr = (1ULL << 40) + ((uint64_t)place << 30);
		result = try_ioctl(fd, PINMAP_MAP, &map);
	}
	CHECK_ERR(ENOSPC, result);
	return place;
}

/*
 * When the device has no page table left, a window has its own: its faults are served, large pages
 * or small, however often its memory goes away. Elsewhere a fault fails, and takes nothing from it.
 */
TEST_EACH(window_has_its_tables, page_sizes, .seconds = 120)
{
	enum { MANY = 12 };
	int fd = open_gpu(), other = open_gpu();
	char *memory = memory_at(CHOSEN, MANY * HUGE, row->huge);
	/* two tables away, for there may be one left */
	char *plain = memory_at(CHOSEN + (1ULL << 39), HUGE, row->huge);
	struct gpu_queue queue = queue_new(fd), bad = queue_new(fd);
	uint64_t handle = window(fd, memory, MANY * HUGE);
	uint32_t flags;

	manage_host(fd, plain, HUGE);
	take_tables(other);
	CHECK_WINDOW_FAILS(other, plain, HUGE, ENOSPC, PINMAP_FAIL_NONE, 0);
	fill(&queue, memory, 2 * PAGE, 0x71);
	CHECK_ERR(EIO, try_fill(&bad, plain, 8, 0x72));
	CHECK_STOPPED(&bad, plain, PINMAP_ACCESS_WRITE, PINMAP_FAULT_MEMORY);
	/* nothing was taken from the window for it */
	CHECK_OK(try_walk(fd, memory, &flags));
	for (unsigned int round = 0; round < 3; round++) {
		fill(&queue, memory, MANY * HUGE, 0x73 + round);
		CHECK(bytes_are(memory, MANY * HUGE, 0x73 + round));
		SYS(madvise(memory, MANY * HUGE, MADV_DONTNEED));
		CHECK_ERR(ENOENT, try_walk(fd, memory, &flags));
		/* pages of the other size */
		SYS(madvise(memory, MANY * HUGE,
			    row->huge == (round % 2) ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	}
	/* other memory, after there was none for a while */
	SYS(munmap(memory, MANY * HUGE));
	memory_at(CHOSEN, MANY * HUGE, false);
	fill(&queue, memory, MANY * HUGE, 0x76);
	CHECK(bytes_are(memory, MANY * HUGE, 0x76));
	CHECK_EQ(statistics(fd, handle).out_refused, 0);
	release(fd, handle);
}
