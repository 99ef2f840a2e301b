// SPDX-License-Identifier: MIT OR Apache-2.0
/* Device addresses of 64 bits: both ends of them, where sums of addresses wrap. */
#define _GNU_SOURCE
#include "alloc.h"
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pins.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The last pages are mapped in blocks of 512 runs; the last block is shorter. */
enum { FIRST_PAGES = 400, LAST_PAGES = 8 * 512 + 376 };

static const uint64_t last_page = 0 - (uint64_t)PAGE;

/* Opens a device that has all addresses of 64 bits; skips the test if there is none. */
static int open_wide(void)
{
	int fd = open_device(0);
	struct pinmap_info info = get_info(fd);

	if (info.out_aperture_start != 0 || info.out_aperture_last != ~0ULL)
		SKIP("the IOMMU translates no addresses of 64 bits (--iommu virtio64)");
	return fd;
}

static int try_register_at(int fd, char *memory, size_t length, uint32_t flags, uint64_t wish,
			   struct pinmap_register *args)
{
	*args = register_args(memory, length, flags | FIXED);
	args->device_addr = wish;
	return try_register_args(fd, args);
}

static uint64_t register_at(int fd, char *memory, size_t length, uint64_t wish)
{
	struct pinmap_register args;

	CHECK_OK(try_register_at(fd, memory, length, WRITE, wish, &args));
	CHECK_EQ(args.device_addr, wish);
	return args.out_handle;
}

/*
 * Maps pages of which hardly two neighbours have neighbouring frames, so that nearly each is a run
 * of its own.
 */
static char *scattered(size_t pages)
{
	char *memory = address_space(pages * PAGE, HUGE);
	static uint64_t frames[LAST_PAGES];
	size_t runs = 1;

	SYS(mmap(memory, pages * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	SYS(madvise(memory, pages * PAGE, MADV_NOHUGEPAGE));
	for (size_t i = 0; i < pages; i++)
		memset(memory + i * 2477 % pages * PAGE, 0x11, PAGE);
	page_frames(memory, pages, frames);
	for (size_t i = 1; i < pages; i++)
		runs += frames[i] != frames[i - 1] + 1;
	CHECK(runs > pages / 2);
	return memory;
}

/* Checks that the device does not reach this page at this address any more. */
static void check_unreached(const struct edu *edu, uint64_t device_addr, char *page)
{
	memset(page, 0x11, 64);
	edu_load(edu, 5);
	edu_writes(edu, device_addr, 64);
	CHECK(bytes_are(page, 64, 0x11));
}

TEST(wide_ends, .faults = true)
{
	int fd = open_wide();
	struct memory kept = memory_new(MEMFD, 8 * PAGE);
	struct edu edu = edu_open(fd);
	char *memory = kept.addr;
	struct pinmap_register args;
	struct pinmap_query query;
	uint64_t first, last;

	first = register_at(fd, memory, 2 * PAGE, 0);
	last = register_at(fd, memory + 2 * PAGE, 2 * PAGE, last_page - PAGE);
	CHECK_REACHES(&edu, 0, memory, 64);
	CHECK_REACHES(&edu, PAGE, memory + PAGE, 64);
	CHECK_REACHES(&edu, last_page - PAGE, memory + 2 * PAGE, 64);
	CHECK_REACHES(&edu, last_page, memory + 3 * PAGE, 64);
	/* up to the last byte */
	CHECK_REACHES(&edu, last_page + PAGE - 64, memory + 4 * PAGE - 64, 64);
	query = query_handle(fd, last);
	CHECK_EQ(query.out_device_addr, last_page - PAGE);
	/* addresses that are taken, or go over the end */
	check_fail(__FILE__, __LINE__,
		   try_register_at(fd, memory + 4 * PAGE, PAGE, 0, last_page, &args), EEXIST,
		   &args.fail, PINMAP_FAIL_OVERLAP, last_page - PAGE);
	check_fail(__FILE__, __LINE__,
		   try_register_at(fd, memory + 4 * PAGE, 2 * PAGE, 0, last_page - 2 * PAGE, &args),
		   EEXIST, &args.fail, PINMAP_FAIL_OVERLAP, last_page - PAGE);
	check_fail(__FILE__, __LINE__, try_register_at(fd, memory + 4 * PAGE, PAGE, 0, 0, &args),
		   EEXIST, &args.fail, PINMAP_FAIL_OVERLAP, 0);
	CHECK_ERR(EOVERFLOW, try_register_at(fd, memory + 4 * PAGE, 2 * PAGE, 0, last_page, &args));
	args = register_args(memory + 4 * PAGE, PAGE, FIXED);
	args.device_addr = last_page;
	args.address_bits = 63;
	check_fail(__FILE__, __LINE__, try_register_args(fd, &args), ENOSPC, &args.fail,
		   PINMAP_FAIL_APERTURE, 0);
	CHECK_EQ(args.fail.allowed, ~0ULL >> 1);
	/* one mapping goes, and the other stays */
	release(fd, last);
	check_unreached(&edu, last_page, memory + 3 * PAGE);
	CHECK_REACHES(&edu, 0, memory, 64);
	last = register_at(fd, memory + 3 * PAGE, PAGE, last_page);
	release(fd, first);
	check_unreached(&edu, 0, memory);
	CHECK_REACHES(&edu, last_page, memory + 3 * PAGE, 64);
	/* memory goes away at such an address */
	SYS(munmap(memory + 3 * PAGE, PAGE));
	check_unreached(&edu, last_page, kept.alias + 3 * PAGE);
}

/*
 * Memory that wants an address gets it if it is free, a congruent one elsewhere if not, and never
 * one past the end.
 */
TEST(wide_placement)
{
	int fd = open_wide(), file = new_memfd(0, 0);
	const uint64_t offset = (1ULL << 63) - 4 * PAGE;
	struct registration near;
	struct pinmap_register_fd part;
	char *memory = anon(4), *large = memory_new(ANON, 4 * HUGE).addr;
	struct edu edu = edu_open(fd);
	uint64_t blocked, handle;
	uint64_t address = last_page;
	struct pinmap_fail fail;

	/* a part of a file as high as the file system allows */
	SYS(ftruncate(file, (off_t)(offset + 2 * PAGE)));
	part = register_fd(fd, file, offset, 2 * PAGE, WRITE);
	CHECK_EQ(part.device_addr, offset);
	release(fd, part.out_handle);
	/* all addresses above 2^48 are free, and used on demand only */
	blocked = register_at(fd, large, 2 * HUGE, (uintptr_t)memory & ~(HUGE - 1));
	near = register_memory(fd, memory, 2 * PAGE, WRITE);
	CHECK(near.device_addr != (uintptr_t)memory);
	CHECK_EQ(near.device_addr % HUGE, (uintptr_t)memory % HUGE);
	CHECK_REACHES(&edu, near.device_addr, memory, 64);
	/* once more at the very end, and not behind it */
	handle = near.handle;
	CHECK_EQ(map(fd, handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, last_page - PAGE),
		 last_page - PAGE);
	CHECK_REACHES(&edu, last_page, memory + PAGE, 64);
	CHECK_ERR(EOVERFLOW,
		  try_map(fd, handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, &address, &fail));
	unmap(fd, handle, last_page - PAGE);
	CHECK_EQ(map(fd, handle, PINMAP_MAP_FIXED, last_page - PAGE), last_page - PAGE);
	release(fd, handle);
	release(fd, blocked);
	CHECK_PINS(0);
}

/* A page of 1 GiB is registered as one, and the device has it at a multiple of its size. */
TEST(wide_gigantic_page)
{
	const char *pool = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";
	const size_t length = (size_t)1 << 30;
	struct registration registration;
	int fd = open_wide();
	struct edu edu = edu_open(fd);
	char *memory;

	if (file_number(pool, 0) < 1)
		SKIP("there is no page of 1 GiB (--append 'hugepagesz=1G hugepages=1')");
	memory = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 30 << MAP_HUGE_SHIFT, -1, 0));
	registration = register_memory(fd, memory, length, WRITE);
	CHECK_EQ(registration.device_addr % length, 0);
	CHECK_REACHES(&edu, registration.device_addr, memory, 64);
	CHECK_REACHES(&edu, registration.device_addr + length - PAGE, memory + length - PAGE, PAGE);
	release(fd, registration.handle);
	CHECK_PINS(0);
	SYS(munmap(memory, length));
}

struct interruption {
	int fd;
	char *memory;
	pthread_t whom;
	volatile bool stop;
	volatile unsigned int sent;
};

static void interrupted(int signal)
{
	(void)signal;
}

/* Sends a signal once all pages are pinned, that is, while they are being mapped. */
static void *interrupt(void *argument)
{
	struct interruption *interruption = argument;
	struct pinmap_query query;

	while (!interruption->stop) {
		if (try_query_addr(interruption->fd, interruption->memory, &query))
			continue;
		if (query.out_state != PINMAP_STATE_BUILDING ||
		    query.out_pinned != LAST_PAGES * PAGE)
			continue;
		/* at some moment of the mapping */
		usleep((useconds_t)(interruption->sent++ * 700 % 8000));
		pthread_kill(interruption->whom, SIGUSR1);
		while (!interruption->stop &&
		       !try_query_addr(interruption->fd, interruption->memory, &query))
			;
	}
	return NULL;
}

/*
 * A call that is interrupted takes away what two processors have mapped up to the last address, and
 * nothing else.
 */
TEST(wide_interrupted, .faults = true, .seconds = 60)
{
	struct sigaction action = { .sa_handler = interrupted };
	int fd = open_wide(), ended = 0;
	uint64_t start = 0 - (uint64_t)LAST_PAGES * PAGE;
	struct edu edu = edu_open(fd);
	char *first = scattered(FIRST_PAGES), *last = scattered(LAST_PAGES);
	struct interruption interruption = { .fd = fd, .memory = last, .whom = pthread_self() };
	pthread_t thread;

	sigaction(SIGUSR1, &action, NULL);
	register_at(fd, first, FIRST_PAGES * PAGE, 0);
	CHECK_EQ(pthread_create(&thread, NULL, interrupt, &interruption), 0);
	for (unsigned int i = 0; i < 200 && ended < 8; i++) {
		struct pinmap_register args;
		int result = try_register_at(fd, last, LAST_PAGES * PAGE,
					     WRITE | PINMAP_REGISTER_INTERRUPTIBLE, start, &args);

		CHECK(!(get_info(fd).out_flags & PINMAP_INFO_GONE));
		if (!result) {
			release(fd, args.out_handle);
			continue;
		}
		CHECK_ERR(EINTR, result);
		ended++;
		CHECK_PINS(FIRST_PAGES);
		CHECK_REACHES(&edu, 0, first, 64);
		check_unreached(&edu, last_page, last + (LAST_PAGES - 1) * PAGE);
	}
	interruption.stop = true;
	pthread_join(thread, NULL);
	diag("%u signals, %d calls ended by them", interruption.sent, ended);
	CHECK(ended > 0);
	CHECK_REACHES(&edu, (FIRST_PAGES - 1) * PAGE, first + (FIRST_PAGES - 1) * PAGE, 64);
	/* all of it is free still */
	register_at(fd, last, LAST_PAGES * PAGE, start);
	CHECK_REACHES(&edu, start, last, 64);
	CHECK_REACHES(&edu, last_page, last + (LAST_PAGES - 1) * PAGE, 64);
}
