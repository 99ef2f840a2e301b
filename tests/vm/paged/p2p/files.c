// SPDX-License-Identifier: MIT OR Apache-2.0
/* Files that a disk reads into VRAM, and writes from it, by itself. */
#define _GNU_SOURCE
#include "p2p.h"

#include "file.h"
#include "memory.h"
#include "pci.h"
#include "process.h"
#include "ring.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRACING "/sys/kernel/tracing"

/* Writes different words to a file, past the page cache. */
static void write_words(int file, size_t length, uint32_t seed)
{
	uint32_t *words = (uint32_t *)anon(MIB / PAGE);

	for (size_t at = 0; at < length; at += MIB) {
		for (size_t i = 0; i < MIB / 4; i++)
			words[i] = seed + (at / 4 + i) * 2654435761u;
		CHECK_EQ(SYS(pwrite(file, words, MIB, at)), MIB);
	}
	SYS(munmap(words, MIB));
}

static bool are_words(const void *memory, size_t length, uint32_t seed)
{
	const uint32_t *words = memory;

	for (size_t i = 0; i < length / 4; i++)
		if (words[i] != (uint32_t)(seed + i * 2654435761u))
			return false;
	return true;
}

/* The sha256 sum of what is written to a pipe, by a program that is not ours. */
static void sha256(const void *memory, size_t length, int file, char sum[65])
{
	char copy[] = "/tmp/p2p-XXXXXX", command[64];
	int into = SYS(mkstemp(copy));
	FILE *output;

	if (memory) {
		CHECK_EQ(SYS(write(into, memory, length)), length);
		snprintf(command, sizeof(command), "sha256sum <%s", copy);
	} else {
		snprintf(command, sizeof(command), "sha256sum </proc/%d/fd/%d", getpid(), file);
	}
	output = popen(command, "re");
	CHECK(output && fgets(sum, 65, output));
	CHECK_EQ(pclose(output), 0);
	CHECK_EQ(strlen(sum), 64);
	SYS(unlink(copy));
	close(into);
}

/* Bytes that the page cache has of a file, where the kernel tells. */
static uint64_t cached(int file)
{
	struct { uint64_t offset, length; } range = { 0, 0 };
	struct { uint64_t cache, dirty, writeback, evicted, recently; } stat;
	long result = syscall(451 /* cachestat */, file, &range, &stat, 0);

	if (result < 0 && errno == ENOSYS)
		return 0;
	CHECK_EQ(SYS(result), 0);
	return stat.cache * PAGE;
}

/* Begins to record what IOMMUs map. Until record_end() a test checks nothing, so that it ends. */
static void record_begin(void)
{
	if (access(TRACING "/events/iommu/map", F_OK))
		SKIP("the kernel does not trace the IOMMU");
	file_write(TRACING "/buffer_size_kb", "4096");
	file_write(TRACING "/trace", "");
	file_write(TRACING "/events/iommu/map/enable", "1");
}

/* Where the BAR with VRAM begins and ends. */
static void vram_bar(uint64_t *first, uint64_t *last)
{
	FILE *file = fopen(pci_path(need_gpu(), "resource"), "re");
	char line[512];

	for (int bar = 0; bar < 3; bar++)
		CHECK(fgets(line, sizeof(line), file));
	CHECK_EQ(sscanf(line, "%lx %lx", first, last), 2);
	fclose(file);
}

/*
 * Ends that: how many bytes were mapped in the BAR with VRAM, and elsewhere, for all devices: the
 * kernel does not say for which. Only the disk works meanwhile.
 */
static void record_end(uint64_t *in_vram, uint64_t *elsewhere)
{
	uint64_t first = 0, last = 0;
	char line[512];
	FILE *file;

	file_write(TRACING "/events/iommu/map/enable", "0");
	vram_bar(&first, &last);
	*in_vram = *elsewhere = 0;
	file = fopen(TRACING "/trace", "re");
	while (fgets(line, sizeof(line), file)) {
		const char *words = strstr(line, "paddr=");
		uint64_t start, size;

		if (!words || sscanf(words, "paddr=%lx size=%lu", &start, &size) != 2)
			continue;
		*(start >= first && start <= last ? in_vram : elsewhere) += size;
	}
	fclose(file);
	file_write(TRACING "/buffer_size_kb", "1");
}

/*
 * A large file goes from the disk into VRAM: what the device copies out of there is the file; the
 * page cache has nothing of it; and what the IOMMU let the disk write was VRAM.
 */
TEST(read, .seconds = 200, .smoke = true)
{
	size_t length = debug_kernel() ? 16 * MIB : 100 * MIB;
	int file, fd;
	struct gpu_memory vram, host;
	uint64_t in_vram, elsewhere;
	char wanted[65], got[65];
	ssize_t done;
	struct gpu_queue queue;

	need_peers();
	file = open_file();
	fd = open_gpu();
	queue = queue_new(fd);
	write_words(file, length, 1);
	sha256(NULL, 0, file, wanted);
	SYS(posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED));
	CHECK_EQ(cached(file), 0);

	vram = gpu_alloc(fd, P2PDMA, length);
	host = gpu_alloc(fd, 0, length);
	record_begin();
	done = pread(file, vram.addr, length, 0);
	record_end(&in_vram, &elsewhere);
	CHECK_EQ(done, length);
	CHECK_EQ(cached(file), 0);
	diag("the disk was given %lu bytes of VRAM, and %lu others", in_vram, elsewhere);
	CHECK(in_vram >= length);
	CHECK(elsewhere < MIB);

	gpu_copy(&queue, (uintptr_t)host.addr, (uintptr_t)vram.addr, length);
	sha256(host.addr, length, -1, got);
	CHECK(!strcmp(wanted, got));
}

/* VRAM that the device has written goes from there to the disk. */
TEST(write)
{
	size_t length = 8 * MIB;
	char *seen = anon(length / PAGE);
	uint64_t in_vram, elsewhere;
	struct gpu_memory vram;
	struct gpu_queue queue;
	int file, fd;
	ssize_t done;

	need_peers();
	file = open_file();
	fd = open_gpu();
	queue = queue_new(fd);
	vram = gpu_alloc(fd, P2PDMA, length);
	gpu_fill(&queue, (uintptr_t)vram.addr, length, 0x31);
	gpu_fill(&queue, (uintptr_t)(vram.addr + MIB), MIB, 0x32);
	SYS(ftruncate(file, length));
	record_begin();
	done = pwrite(file, vram.addr, length, 0);
	record_end(&in_vram, &elsewhere);
	CHECK_EQ(done, length);
	CHECK_EQ(cached(file), 0);
	CHECK(in_vram >= length);
	CHECK(elsewhere < MIB);
	CHECK_EQ(SYS(pread(file, seen, length, 0)), length);
	CHECK(bytes_are(seen, MIB, 0x31));
	CHECK(bytes_are(seen + MIB, MIB, 0x32));
	CHECK(bytes_are(seen + 2 * MIB, length - 2 * MIB, 0x31));
}

/* io_uring does so, too. */
TEST(io_uring)
{
	char *seen = anon(HUGE / PAGE);
	struct gpu_memory vram;
	struct gpu_queue queue;
	struct ring ring;
	int file, fd;

	need_peers();
	file = open_file();
	fd = open_gpu();
	queue = queue_new(fd);
	vram = gpu_alloc(fd, P2PDMA, HUGE);
	write_words(file, HUGE, 2);
	ring = ring_new(NULL, 0);
	ring_transfer(&ring, IORING_OP_READ, file, vram.addr, HUGE);
	memset(seen, 0, HUGE);
	CHECK_EQ(SYS(write(new_memfd(HUGE, 0), vram.addr, HUGE)), HUGE);
	CHECK(are_words(vram.addr, HUGE, 2));
	gpu_fill(&queue, (uintptr_t)vram.addr, HUGE, 0x33);
	ring_transfer(&ring, IORING_OP_WRITE, file, vram.addr, HUGE);
	CHECK_EQ(SYS(pread(file, seen, HUGE, 0)), HUGE);
	CHECK(bytes_are(seen, HUGE, 0x33));
	ring_close(&ring);
}

/* Blocks of the disk are the unit, wherever they are in a page; anything else is refused whole. */
TEST(unaligned)
{
	int file, fd;
	struct gpu_memory vram;
	struct gpu_queue queue;

	need_peers();
	file = open_file();
	fd = open_gpu();
	queue = queue_new(fd);
	vram = gpu_alloc(fd, P2PDMA, 4 * PAGE);
	write_words(file, MIB, 3);
	gpu_fill(&queue, (uintptr_t)vram.addr, 4 * PAGE, 0x34);
	CHECK_EQ(pread(file, vram.addr + 512, 1000, 0), -1);
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(pread(file, vram.addr + 513, 512, 0), -1);
	CHECK_EQ(errno, EINVAL);
	CHECK_EQ(pread(file, vram.addr, 512, 100), -1);
	CHECK_EQ(errno, EINVAL);
	CHECK(bytes_are(vram.addr, 4 * PAGE, 0x34));

	CHECK_EQ(SYS(pread(file, vram.addr + PAGE + 512, PAGE + 1024, 0)), PAGE + 1024);
	CHECK(bytes_are(vram.addr, PAGE + 512, 0x34));
	CHECK(are_words(vram.addr + PAGE + 512, PAGE + 1024, 3));
	CHECK(bytes_are(vram.addr + 2 * PAGE + 1536, 2 * PAGE - 1536, 0x34));
}

/* A read beyond the end of the file is short, and changes nothing beyond what it asked for. */
TEST(end_of_file)
{
	struct gpu_memory vram;
	struct gpu_queue queue;
	int file, fd;

	need_peers();
	file = open_file();
	fd = open_gpu();
	queue = queue_new(fd);
	vram = gpu_alloc(fd, P2PDMA, 8 * PAGE);
	write_words(file, MIB, 4);
	SYS(ftruncate(file, PAGE + 100));
	gpu_fill(&queue, (uintptr_t)vram.addr, 8 * PAGE, 0x35);
	CHECK_EQ(SYS(pread(file, vram.addr, 4 * PAGE, 0)), PAGE + 100);
	CHECK(are_words(vram.addr, PAGE + 100, 4));
	CHECK(bytes_are(vram.addr + 4 * PAGE, 4 * PAGE, 0x35));
}

/* A part of the buffer is mapped; the rest stays what it was. */
TEST(part)
{
	struct registration vram;
	struct gpu_queue queue;
	struct pinmap_alloc args;
	struct pinmap_fail fail;
	char *view, *part;
	int file, fd;

	need_peers();
	file = open_file();
	fd = open_gpu();
	queue = queue_new(fd);
	CHECK_OK(try_alloc(fd, P2PDMA, 8 * PAGE, &args));
	view = alloc_view(fd, &args);
	vram.device_addr = (uintptr_t)view;
	CHECK_OK(try_map(fd, args.out_handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED,
			 &vram.device_addr, &fail));
	part = map_at(fd, args.out_offset + 2 * PAGE, 3 * PAGE);
	write_words(file, MIB, 5);
	gpu_fill(&queue, (uintptr_t)view, 8 * PAGE, 0x36);
	CHECK_EQ(SYS(pread(file, part, 3 * PAGE, 0)), 3 * PAGE);
	CHECK(are_words(view + 2 * PAGE, 3 * PAGE, 5));
	CHECK(bytes_are(view, 2 * PAGE, 0x36));
	CHECK(bytes_are(view + 5 * PAGE, 3 * PAGE, 0x36));
	/* a hole in the view */
	SYS(munmap(view + 6 * PAGE, PAGE));
	CHECK_EQ(pread(file, view + 5 * PAGE, 3 * PAGE, 0), -1);
	CHECK_EQ(errno, EFAULT);
	CHECK(bytes_are(view + 7 * PAGE, PAGE, 0x36));
}

/* One call reads into two extents, which the kernel describes apart. */
TEST(two_extents, .seconds = 120)
{
	size_t length = 4 * MIB;
	struct gpu_memory vram;
	uint64_t first, last;
	int file, fd;
	char *at;

	need_peers();
	if (gpu_register(GPU_VRAM_SIZE) < 256 * MIB)
		SKIP("there is too little VRAM for two");
	file = open_file();
	fd = open_gpu();
	vram = gpu_alloc(fd, P2PDMA, 200 * MIB);
	write_words(file, length, 6);
	CHECK_EQ(file_number(pci_path(need_gpu(), "p2pmem/size"), 0), 256 * MIB);
	/* where one ends and the other begins */
	vram_bar(&first, &last);
	CHECK_EQ(touch_read(vram.addr), 0);
	at = vram.addr + first + 128 * MIB - page_frame(vram.addr) * PAGE;
	CHECK_EQ(touch_read(at - PAGE), 0);
	CHECK_EQ(touch_read(at), 0);
	CHECK_EQ(page_frame(at) * PAGE, first + 128 * MIB);
	CHECK_EQ(page_frame(at - PAGE) * PAGE, first + 128 * MIB - PAGE);
	at -= length / 2;
	CHECK_EQ(SYS(pread(file, at, length, 0)), length);
	CHECK(are_words(at, length, 6));
}

/* Pages of a program move to the same VRAM, and home, while the disk reads into it. */
TEST(beside_managed)
{
	char *managed = anon(HUGE / PAGE);
	struct pinmap_prefetch moved;
	struct pinmap_manage args;
	struct gpu_memory vram;
	struct gpu_queue queue;
	struct held *held;
	int file, fd;

	need_peers();
	file = open_file();
	fd = open_gpu();
	queue = queue_new(fd);
	CHECK_OK(try_manage(fd, 0, managed, HUGE, &args));
	write_words(file, HUGE, 7);
	vram = gpu_alloc(fd, P2PDMA, 2 * HUGE);
	gpu_fill(&queue, (uintptr_t)vram.addr, 2 * HUGE, 0x37);
	memset(managed, 0x38, HUGE);
	held = held_begin(vram.addr);
	CHECK_OK(try_prefetch(fd, 0, managed, HUGE, &moved));
	gpu_fill(&queue, (uintptr_t)managed, HUGE / 2, 0x39);
	CHECK_EQ(SYS(pread(file, vram.addr + HUGE, HUGE, 0)), HUGE);
	CHECK_EQ(held_end(held), HELD_BYTES);
	CHECK(bytes_are(managed, HUGE / 2, 0x39));
	CHECK(bytes_are(managed + HUGE / 2, HUGE / 2, 0x38));
	CHECK(bytes_are(vram.addr, HELD_BYTES, 0));
	CHECK(bytes_are(vram.addr + HELD_BYTES, HUGE - HELD_BYTES, 0x37));
	CHECK(are_words(vram.addr + HUGE, HUGE, 7));
}

/* A child has no view, also if it was born while the disk writes; the parent has what was read. */
TEST(fork)
{
	struct gpu_memory vram;
	struct gpu_queue queue;
	struct held *held;
	pid_t pid;
	int fd;

	need_peers();
	fd = open_gpu();
	queue = queue_new(fd);
	vram = gpu_alloc(fd, P2PDMA, HUGE);
	gpu_fill(&queue, (uintptr_t)vram.addr, HUGE, 0x3a);
	held = held_begin(vram.addr);
	pid = fork();
	if (pid == 0) {
		CHECK_EQ(touch_read(vram.addr), SIGSEGV);
		_exit(0);
	}
	join(pid);
	CHECK_EQ(held_end(held), HELD_BYTES);
	CHECK(bytes_are(vram.addr, HELD_BYTES, 0));
	CHECK(bytes_are(vram.addr + HELD_BYTES, HUGE - HELD_BYTES, 0x3a));
}

/* Whoever may use the device and read the file needs no privilege. */
TEST(user)
{
	int file;
	pid_t pid;

	need_peers();
	file = open_file();
	write_words(file, MIB, 8);
	need_gpu();
	pid = fork();
	if (pid == 0) {
		struct gpu_memory vram;

		become_user(true);
		vram = gpu_alloc(open_gpu(), P2PDMA, MIB);
		CHECK_EQ(SYS(pread(file, vram.addr, MIB, 0)), MIB);
		CHECK(are_words(vram.addr, MIB, 8));
		_exit(0);
	}
	join(pid);
}
