// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Parts of files that nobody has written yet: what the device sees there, and that the file keeps
 * what is written.
 */
#define _GNU_SOURCE
#include "alloc.h"
#include "edu.h"
#include "file.h"
#include "gpu.h"
#include "memory.h"
#include "pins.h"
#include "pressure.h"
#include "process.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ_WRITE = PROT_READ | PROT_WRITE };

static const struct fresh_kind {
	const char *name;
	enum { SMALL_FOLIOS, LARGE_FOLIOS, HUGE_PAGES } kind;
} kinds[] = { { "memfd", SMALL_FOLIOS },
	      { "huge_tmpfs", LARGE_FOLIOS },
	      { "hugetlb", HUGE_PAGES } };

/* Makes a file of so many bytes, none of which have pages yet. */
static int new_file(const struct fresh_kind *row, size_t length)
{
	static const char directory[] = "/run/pinmap-huge";
	int file;

	switch (row->kind) {
	case LARGE_FOLIOS:
		mkdir("/run", 0755);
		mkdir(directory, 0755);
		if (mount("tmpfs", directory, "tmpfs", 0, "huge=always"))
			SKIP("the kernel has no huge pages for tmpfs: %s", error_name(errno));
		file = SYS(open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
		/* the mount stays as long as the file is open */
		SYS(umount2(directory, MNT_DETACH));
		SYS(ftruncate(file, (off_t)length));
		return file;
	case HUGE_PAGES:
		need_hugetlb(length / HUGE);
		return new_memfd(length, MFD_HUGETLB);
	default:
		return new_memfd(length, 0);
	}
}

/* Leaves bytes of a process that ends in the pages that the kernel gives out next. */
static void leave_behind(size_t length)
{
	pid_t pid = fork();

	if (pid == 0) {
		char *all = mmap(NULL, length, READ_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

		if (all == MAP_FAILED)
			_exit(1);
		memset(all, 0xa5, length);
		_exit(0);
	}
	join(pid);
}

/* Reads memory by the device. */
static void device_reads(int fd, uint64_t device_addr, char content[PAGE])
{
	if (get_info(fd).out_kind == PINMAP_KIND_FLAT) {
		struct edu edu = edu_open(fd);

		edu_reads(&edu, device_addr, PAGE);
		edu_store(&edu, content);
		edu_close(&edu);
	} else {
		struct gpu_memory page = gpu_alloc(fd, 0, PAGE);
		struct gpu_queue queue = queue_new(fd);

		memset(page.addr, 0x33, PAGE);
		queue_push(&queue, GPU_COPY, device_addr, (uintptr_t)page.addr, PAGE);
		queue_finish(&queue);
		memcpy(content, page.addr, PAGE);
	}
}

/* Writes a pattern by the device. */
static void device_writes(int fd, uint64_t device_addr, unsigned char seed)
{
	if (get_info(fd).out_kind == PINMAP_KIND_FLAT) {
		struct edu edu = edu_open(fd);

		edu_load(&edu, seed);
		edu_writes(&edu, device_addr, PAGE);
		edu_close(&edu);
	} else {
		struct gpu_memory page = gpu_alloc(fd, 0, PAGE);
		struct gpu_queue queue = queue_new(fd);

		pattern_fill(page.addr, PAGE, seed);
		queue_push(&queue, GPU_COPY, (uintptr_t)page.addr, device_addr, PAGE);
		queue_finish(&queue);
	}
}

/*
 * Pages that fallocate() has put into a file show nothing old, whoever looks first: another
 * process, the device, or the file.
 */
TEST_EACH(fallocated_shows_nothing_old, kinds)
{
	size_t length = HUGE > 16 * MIB ? HUGE : 16 * MIB;
	int fd = open_device(0), file = new_file(row, length), dma_buf;
	struct pinmap_register_fd part;
	char content[PAGE], *view;

	leave_behind(2 * length);
	SYS(fallocate(file, 0, 0, (off_t)length));
	part = register_fd(fd, file, 0, length, WRITE);
	dma_buf = export_buffer(fd, part.out_handle, 0);
	view = SYS(mmap(NULL, length, PROT_READ, MAP_SHARED, dma_buf, 0));
	for (size_t at = 0; at < length; at += PAGE)
		if (!bytes_are(view + at, PAGE, 0))
			FAIL("page %zu of %zu shows what others left behind", at / PAGE,
			     length / PAGE);
	device_reads(fd, part.device_addr + length - PAGE, content);
	CHECK(bytes_are(content, PAGE, 0));
	for (size_t at = 0; at < length; at += MIB) {
		CHECK_EQ(pread(file, content, PAGE, (off_t)at), PAGE);
		CHECK(bytes_are(content, PAGE, 0));
	}
	SYS(munmap(view, length));
	close(dma_buf);
	release(fd, part.out_handle);
	CHECK_PINS_SOON(0);
}

/* Bytes that a device and a dma-buf write to such pages are the file's from then on. */
TEST_EACH(fallocated_keeps_what_is_written, kinds)
{
	size_t length = 2 * HUGE, other = length - 3 * PAGE;
	int fd = open_device(0), file = new_file(row, length), dma_buf;
	struct pinmap_register_fd part;
	char content[PAGE], *view;

	SYS(fallocate(file, 0, 0, (off_t)length));
	part = register_fd(fd, file, 0, length, WRITE);
	device_writes(fd, part.device_addr + PAGE, 17);
	CHECK_EQ(pread(file, content, PAGE, PAGE), PAGE);
	CHECK(pattern_is(content, PAGE, 17));
	dma_buf = export_buffer(fd, part.out_handle, PINMAP_EXPORT_WRITE);
	view = SYS(mmap(NULL, length, READ_WRITE, MAP_SHARED, dma_buf, 0));
	CHECK(pattern_is(view + PAGE, PAGE, 17));
	pattern_fill(view + other, PAGE, 18);
	/* again, and with a new mapping: neither clears what is there */
	SYS(fallocate(file, 0, 0, (off_t)length));
	SYS(munmap(view, length));
	close(dma_buf);
	for (unsigned int released = 0; released < 2; released++) {
		view = SYS(mmap(NULL, length, READ_WRITE, MAP_SHARED, file, 0));
		CHECK(pattern_is(view + PAGE, PAGE, 17));
		CHECK(pattern_is(view + other, PAGE, 18));
		CHECK(bytes_are(view, PAGE, 0));
		CHECK(bytes_are(view + 2 * PAGE, other - 2 * PAGE, 0));
		SYS(munmap(view, length));
		if (!released)
			release(fd, part.out_handle);
	}
	CHECK_PINS_SOON(0);
}

/*
 * A page that a page fault is just adding to the file is not shown before the fault has cleared it,
 * nor cleared later.
 */
struct toucher {
	char *memory;
	pthread_barrier_t *begin;
};

static void *touch(void *argument)
{
	struct toucher *toucher = argument;

	pthread_barrier_wait(toucher->begin);
	*(volatile char *)toucher->memory = 0;
	return NULL;
}

TEST_EACH(fault_under_way, kinds)
{
	int fd = open_device(0);

	for (unsigned int i = 0; i < rounds(20); i++) {
		int file = new_file(row, HUGE), dma_buf;
		char *memory = SYS(mmap(NULL, HUGE, READ_WRITE, MAP_SHARED, file, 0)), *view;
		struct pinmap_register_fd part;
		pthread_barrier_t begin;
		struct toucher toucher = { memory, &begin };
		pthread_t thread;

		leave_behind(HUGE);
		pthread_barrier_init(&begin, NULL, 2);
		CHECK_EQ(pthread_create(&thread, NULL, touch, &toucher), 0);
		pthread_barrier_wait(&begin);
		part = register_fd(fd, file, 0, PAGE, WRITE | NO_MAP);
		dma_buf = export_buffer(fd, part.out_handle, PINMAP_EXPORT_WRITE);
		view = SYS(mmap(NULL, PAGE, READ_WRITE, MAP_SHARED, dma_buf, 0));
		CHECK(bytes_are(view, PAGE, 0));
		view[9] = 9;
		pthread_join(thread, NULL);
		CHECK_EQ(memory[9], 9);
		SYS(munmap(view, PAGE));
		SYS(munmap(memory, HUGE));
		close(dma_buf);
		close(file);
		release(fd, part.out_handle);
		pthread_barrier_destroy(&begin);
	}
	CHECK_PINS_SOON(0);
}

/* A part of a file may have any mixture of pages: written, only allocated, not there, in swap. */
TEST(mixed_with_what_is_there)
{
	enum { PAGES = 96 };
	enum { HOLE, ALLOCATED, WRITTEN, IN_SWAP, STATES } state[PAGES];
	size_t length = PAGES * PAGE;
	int fd = open_device(0), file = new_memfd(length, 0), dma_buf;
	struct pinmap_register_fd part;
	char content[PAGE], *memory, *view;
	unsigned int in_swap = 0;
	long long written;

	swap_begin();
	leave_behind(4 * length);
	srandom(4);
	memory = SYS(mmap(NULL, length, READ_WRITE, MAP_SHARED, file, 0));
	for (unsigned int i = 0; i < PAGES; i++) {
		state[i] = random() % STATES;
		if (state[i] == IN_SWAP)
			pattern_fill(memory + i * PAGE, PAGE, i);
	}
	for (unsigned int i = 0; i < PAGES; i++)
		in_swap += state[i] == IN_SWAP;
	written = file_field("/proc/vmstat", "pswpout");
	/* what is held by somebody at that moment stays */
	CHECK(WAIT_FOR(10000, !madvise(memory, length, MADV_PAGEOUT) &&
				      file_field("/proc/vmstat", "pswpout") >= written + in_swap));
	for (unsigned int i = 0; i < PAGES; i++) {
		if (state[i] == ALLOCATED)
			SYS(fallocate(file, 0, (off_t)(i * PAGE), PAGE));
		if (state[i] == WRITTEN) {
			pattern_fill(content, PAGE, i);
			CHECK_EQ(pwrite(file, content, PAGE, (off_t)(i * PAGE)), PAGE);
		}
	}
	SYS(munmap(memory, length));
	part = register_fd(fd, file, 0, length, WRITE | NO_MAP);
	dma_buf = export_buffer(fd, part.out_handle, PINMAP_EXPORT_WRITE);
	view = SYS(mmap(NULL, length, READ_WRITE, MAP_SHARED, dma_buf, 0));
	for (unsigned int i = 0; i < PAGES; i++) {
		if (state[i] == HOLE || state[i] == ALLOCATED)
			CHECK(bytes_are(view + i * PAGE, PAGE, 0));
		else
			CHECK(pattern_is(view + i * PAGE, PAGE, i));
		pattern_fill(view + i * PAGE, PAGE, i + 1);
	}
	for (unsigned int i = 0; i < PAGES; i++) {
		CHECK_EQ(pread(file, content, PAGE, (off_t)(i * PAGE)), PAGE);
		CHECK(pattern_is(content, PAGE, i + 1));
	}
	SYS(munmap(view, length));
	close(dma_buf);
	release(fd, part.out_handle);
	CHECK_PINS_SOON(0);
	/* and back from swap once more */
	memory = SYS(mmap(NULL, length, READ_WRITE, MAP_SHARED, file, 0));
	SYS(madvise(memory, length, MADV_PAGEOUT));
	for (unsigned int i = 0; i < PAGES; i++)
		CHECK(pattern_is(memory + i * PAGE, PAGE, i + 1));
	close(file);
	SYS(munmap(memory, length));
	swap_end();
}

static long long huge_pages(const char *what)
{
	return file_field("/proc/meminfo", what);
}

/* Reserved huge pages are used, and none is reserved or taken that is not given back. */
TEST(hugetlb_reserve)
{
	enum { HOLES, ALLOCATED, RESERVED, CASES };

	need_hugetlb(8);
	for (unsigned int i = 0; i < CASES; i++) {
		long long available = huge_pages("HugePages_Free:"),
			  reserved = huge_pages("HugePages_Rsvd:");
		int fd = open_device(0), file = new_memfd(4 * HUGE, MFD_HUGETLB);
		struct pinmap_register_fd part;
		char *memory = NULL;

		if (i == ALLOCATED)
			SYS(fallocate(file, 0, 0, 4 * HUGE));
		if (i == RESERVED) {
			memory = SYS(mmap(NULL, 4 * HUGE, READ_WRITE, MAP_SHARED, file, 0));
			CHECK_EQ(huge_pages("HugePages_Rsvd:"), reserved + 4);
		}
		/* parts of three of them */
		part = register_fd(fd, file, PAGE, 2 * HUGE, WRITE | NO_MAP);
		CHECK_EQ(huge_pages("HugePages_Free:"), available - (i == ALLOCATED ? 4 : 3));
		CHECK_EQ(huge_pages("HugePages_Rsvd:"), reserved + (i == RESERVED ? 1 : 0));
		release(fd, part.out_handle);
		if (memory) {
			memset(memory, 1, 4 * HUGE);
			CHECK_EQ(huge_pages("HugePages_Rsvd:"), reserved);
			SYS(munmap(memory, 4 * HUGE));
		}
		close(file);
		close(fd);
		CHECK_EQ(huge_pages("HugePages_Free:"), available);
		CHECK_EQ(huge_pages("HugePages_Rsvd:"), reserved);
	}
}

static void live_on(int signal)
{
	(void)signal;
}

/* A page that the hardware has lost is not given to a device, just as no reader gets it. */
TEST(poisoned_page_of_a_file)
{
	int fd = open_device(0), file = new_memfd(8 * PAGE, 0);
	char *memory = SYS(mmap(NULL, 8 * PAGE, READ_WRITE, MAP_SHARED, file, 0)), byte;
	struct pinmap_register_fd args = fd_args(file, PAGE, 7 * PAGE, NO_MAP);

	memset(memory, 1, 8 * PAGE);
	/* the process that has it mapped is told at once */
	signal(SIGBUS, live_on);
	if (madvise(memory + 3 * PAGE, PAGE, MADV_HWPOISON))
		SKIP("the kernel poisons no memory: %s", error_name(errno));
	CHECK_EQ(pread(file, &byte, 1, 3 * PAGE), -1);
	check_fail(__FILE__, __LINE__, try_register_fd(fd, &args), EFAULT, &args.fail,
		   PINMAP_FAIL_FAULT, 3 * PAGE);
	CHECK_PINS(0);
	register_fd(fd, file, 4 * PAGE, 4 * PAGE, NO_MAP);
}

struct truncation {
	int file;
	size_t length;
	volatile bool stop;
	volatile unsigned int rounds;
};

static void *truncate_again_and_again(void *argument)
{
	struct truncation *truncation = argument;

	while (!truncation->stop) {
		SYS(ftruncate(truncation->file, 0));
		SYS(ftruncate(truncation->file, (off_t)truncation->length));
		SYS(fallocate(truncation->file, 0, 0, (off_t)truncation->length));
		truncation->rounds++;
	}
	return NULL;
}

/*
 * Pages leave the file while they are being pinned: either the file has them afterwards, or the
 * call says that it has not.
 */
TEST(truncated_meanwhile)
{
	struct truncation truncation = { .file = new_memfd(64 * PAGE, 0), .length = 64 * PAGE };
	unsigned int succeeded = 0, refused = 0;
	int fd = open_device(0);
	pthread_t thread;

	leave_behind(4 * MIB);
	CHECK_EQ(pthread_create(&thread, NULL, truncate_again_and_again, &truncation), 0);
	for (unsigned int i = 0; i < rounds(400) || succeeded < 5 || !refused; i++) {
		struct pinmap_register_fd args =
			fd_args(truncation.file, 0, truncation.length, WRITE | NO_MAP);
		int result = try_register_fd(fd, &args), dma_buf;
		char *view;

		if (result) {
			CHECK_ERR(EFAULT, result);
			CHECK_EQ(args.fail.reason, PINMAP_FAIL_FAULT);
			refused++;
			continue;
		}
		succeeded++;
		dma_buf = export_buffer(fd, args.out_handle, 0);
		view = SYS(mmap(NULL, truncation.length, PROT_READ, MAP_SHARED, dma_buf, 0));
		CHECK(bytes_are(view, truncation.length, 0));
		SYS(munmap(view, truncation.length));
		close(dma_buf);
		release(fd, args.out_handle);
	}
	truncation.stop = true;
	pthread_join(thread, NULL);
	diag("%u registered, %u refused, %u times truncated", succeeded, refused,
	     truncation.rounds);
	CHECK_PINS_SOON(0);
}
