// SPDX-License-Identifier: MIT OR Apache-2.0
/* Managed memory in use: the calls, together with registrations, with files, and counted. */
#define _GNU_SOURCE
#include "../managed.h"

#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "pressure.h"
#include "process.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int try_range(int fd, const void *addr, size_t length, struct pinmap_manage *args)
{
	return try_manage(fd, 0, addr, length, args);
}

TEST(values)
{
	char *memory = anon(8);
	struct pinmap_manage args;
	int fd = open_gpu();

	manage(fd, memory + 2 * PAGE, 2 * PAGE);
	CHECK_ERR(EINVAL, try_range(fd, memory + 1, PAGE, &args));
	CHECK_ERR(EINVAL, try_range(fd, memory, PAGE + 1, &args));
	CHECK_ERR(EINVAL, try_range(fd, memory, 0, &args));
	CHECK_ERR(EINVAL, try_range(fd, (void *)GPU_END, PAGE, &args));
	CHECK_ERR(EINVAL, try_range(fd, (void *)(GPU_END - PAGE), 2 * PAGE, &args));
	CHECK_ERR(EINVAL, try_range(fd, (void *)(1ULL << 63), PAGE, &args));
	CHECK_ERR(EOVERFLOW, try_range(fd, (void *)-PAGE, 2 * PAGE, &args));
	CHECK_ERR(EOPNOTSUPP, try_manage(fd, 1 << 3, memory, PAGE, &args));
	CHECK_ERR(EINVAL, try_manage(fd, PINMAP_MANAGE_ALL, memory, 0, &args));
	CHECK_ERR(EINVAL, try_manage(fd, PINMAP_MANAGE_ALL, NULL, PAGE, &args));
	/* none of them has left anything */
	manage(fd, memory, 2 * PAGE);
	manage(fd, memory + 4 * PAGE, 4 * PAGE);
}

/*
 * A module for a kernel without HMM_MIRROR refuses to manage memory, says so beforehand, and tells
 * faults as if nothing were managed.
 */
TEST(without_mirrors)
{
	static const uint32_t flags[] = { 0, PINMAP_MANAGE_ALL, 2 };
	struct registration registration;
	char *memory = anon(1);
	struct gpu_queue queue;
	int fd = open_gpu();

	if (get_info(fd).out_flags & PINMAP_INFO_MANAGED)
		SKIP("this module manages memory");
	for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
		bool all = flags[i] == PINMAP_MANAGE_ALL;
		struct pinmap_manage args;

		CHECK_ERR(EOPNOTSUPP, try_manage(fd, flags[i], all ? NULL : memory, all ? 0 : PAGE,
						 &args));
	}
	queue = queue_new(fd);
	CHECK_ERR(EIO, try_fill(&queue, memory, 8, 1));
	CHECK_STOPPED(&queue, memory, PINMAP_ACCESS_WRITE, PINMAP_FAULT_UNMAPPED);
	queue_delete(&queue);
	/* registered it is reached */
	queue = queue_new(fd);
	registration = register_memory(fd, memory, PAGE, WRITE);
	fill(&queue, memory, PAGE, 0x21);
	release(fd, registration.handle);
	CHECK(bytes_are(memory, PAGE, 0x21));
}

static const struct {
	const char *name;
	size_t first, pages;
	uint32_t flags;
} overlaps[] = {
	{ "same", 2, 4, 0 },	{ "start", 1, 2, 0 },  { "end", 5, 2, 0 },
	{ "inside", 3, 1, 0 },	{ "around", 0, 8, 0 }, { "all", 0, 0, PINMAP_MANAGE_ALL },
};

TEST_EACH(overlap, overlaps)
{
	char *memory = anon(8);
	struct pinmap_manage args;
	int fd = open_gpu();
	uint64_t handle = manage(fd, memory + 2 * PAGE, 4 * PAGE);

	CHECK_ERR(EEXIST, try_manage(fd, row->flags, row->flags ? NULL : memory + row->first * PAGE,
				     row->pages * PAGE, &args));
	CHECK_EQ(args.fail.reason, PINMAP_FAIL_OVERLAP);
	CHECK_EQ(args.fail.addr, (uintptr_t)memory + 2 * PAGE);
	release(fd, handle);
	CHECK_OK(try_manage(fd, row->flags, row->flags ? NULL : memory + row->first * PAGE,
			    row->pages * PAGE, &args));
}

/* Another process may not, though it has the file. */
TEST(another_address_space)
{
	char *memory = anon(1);
	int fd = open_gpu();
	pid_t pid;

	manage(fd, memory, PAGE);
	pid = fork();
	if (pid == 0) {
		struct pinmap_manage args;

		CHECK_ERR(EPERM, try_range(fd, memory + 16 * PAGE, PAGE, &args));
		CHECK_ERR(EPERM, try_manage(fd, PINMAP_MANAGE_ALL, NULL, 0, &args));
		_exit(0);
	}
	join(pid);
}

/* Ranges need no memory: what is there when the device comes counts. */
TEST(nothing_is_there_yet)
{
	char *memory = address_space(HUGE, HUGE);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	SYS(munmap(memory, HUGE));
	manage(fd, memory, HUGE);
	CHECK_WRITE_REFUSED(fd, memory, HOLE);
	SYS(mmap(memory, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0));
	fill(&queue, memory, HUGE, 0x21);
	CHECK(bytes_are(memory, HUGE, 0x21));
}

TEST(query)
{
	char *memory = anon(4);
	struct pinmap_query query;
	struct pinmap_info info;
	struct pinmap_fail fail;
	int fd = open_gpu();
	uint64_t part, all, address = 0;

	part = manage(fd, memory, 4 * PAGE);
	query = query_handle(fd, part);
	CHECK_EQ(query.out_kind, PINMAP_BUFFER_MANAGED);
	CHECK_EQ(query.out_base, (uintptr_t)memory);
	CHECK_EQ(query.out_length, 4 * PAGE);
	CHECK_EQ(query.out_device_addr, (uintptr_t)memory);
	CHECK_EQ(query.out_pinned, 0);
	/* the range has no memory of its own that could be mapped elsewhere */
	CHECK_ERR(EINVAL, try_map(fd, part, 0, &address, &fail));
	CHECK_EQ(totals(fd, PINMAP_TOTALS_CONTEXT).out_managed.number, 1);
	CHECK_EQ(totals(fd, PINMAP_TOTALS_CONTEXT).out_managed.bytes, 4 * PAGE);
	release(fd, part);
	CHECK_ERR(ESTALE, try_query_handle(fd, part, &query));
	CHECK_ERR(ESTALE, try_release(fd, part));
	CHECK_EQ(totals(fd, PINMAP_TOTALS_CONTEXT).out_managed.number, 0);
	all = manage_all(fd);
	CHECK(all != part);
	query = query_handle(fd, all);
	info = get_info(fd);
	CHECK_EQ(query.out_kind, PINMAP_BUFFER_MANAGED);
	CHECK(query.out_base + query.out_length <= info.out_aperture_last + 1);
	CHECK(query.out_length > 1ULL << 46);
}

/* When RELEASE returns, the device cannot reach the memory, whatever it had before. */
TEST(release_ends_reach, .smoke = true)
{
	char *memory = anon(2);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, 2 * PAGE);
	uint32_t flags;

	fill(&queue, memory, 2 * PAGE, 0x22);
	CHECK_OK(try_walk(fd, memory, &flags));
	CHECK_EQ(flags & (PINMAP_WALK_READ | PINMAP_WALK_WRITE),
		 PINMAP_WALK_READ | PINMAP_WALK_WRITE);
	release(fd, handle);
	CHECK_ERR(ENOENT, try_walk(fd, memory, &flags));
	CHECK_WRITE_REFUSED(fd, memory, UNMAPPED);
	CHECK(bytes_are(memory, 2 * PAGE, 0x22));
	handle = manage(fd, memory, 2 * PAGE);
	fill(&queue, memory, 2 * PAGE, 0x23);
	CHECK(bytes_are(memory, 2 * PAGE, 0x23));
}

/* Reading takes no page of its own for memory that was never written; writing does. */
TEST(page_of_zeros)
{
	char *memory = anon(2);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory result = gpu_alloc(fd, 0, PAGE);
	uint32_t flags;

	SYS(madvise(memory, 2 * PAGE, MADV_DONTNEED));
	manage_host(fd, memory, 2 * PAGE);
	memset(result.addr, 1, PAGE);
	copy(&queue, memory, result.addr, PAGE);
	CHECK(bytes_are(result.addr, PAGE, 0));
	CHECK_OK(try_walk(fd, memory, &flags));
	CHECK(!(flags & PINMAP_WALK_WRITE));
	fill(&queue, memory, 8, 0x24);
	CHECK_OK(try_walk(fd, memory, &flags));
	CHECK(flags & PINMAP_WALK_WRITE);
	CHECK(bytes_are(memory, 8, 0x24));
	CHECK(bytes_are(memory + 8, PAGE - 8, 0));
}

/* Registrations and allocations inside a managed range are what the device reaches. */
TEST(registration_inside)
{
	struct memory memory = memory_new(MEMFD_PRIVATE, 16 * PAGE);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	long long pins = pins_held();
	struct registration registration;

	fill(&queue, memory.addr, 16 * PAGE, 0x31);
	CHECK_PINS(pins);
	registration = register_memory(fd, memory.addr + 4 * PAGE, 4 * PAGE, WRITE);
	CHECK_PINS(pins + 4);
	fill(&queue, memory.addr, 16 * PAGE, 0x32);
	CHECK(bytes_are(memory.addr, 16 * PAGE, 0x32));
	release(fd, registration.handle);
	CHECK_PINS(pins);
	fill(&queue, memory.addr, 16 * PAGE, 0x33);
	CHECK(bytes_are(memory.addr, 16 * PAGE, 0x33));
	/* Stale: once it is released, the addresses are managed again. */
	registration = register_memory(fd, memory.addr + 4 * PAGE, 4 * PAGE, WRITE);
	SYS(mmap(memory.addr + 4 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	CHECK_STALE_EVENT(fd, registration);
	release(fd, registration.handle);
	fill(&queue, memory.addr, 16 * PAGE, 0x34);
	CHECK(bytes_are(memory.addr, 16 * PAGE, 0x34));
	CHECK_PINS(pins);
}

/* A packet whose operands are on different pages gets all of them. */
TEST(operands_on_many_pages)
{
	enum { FLOATS = 4096, TERMS = 3 };
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	for (unsigned int i = 0; i < rounds(20); i++) {
		/* each on two pages or more that the device has never seen */
		float *x = (float *)(anon(8) + 8), *y = (float *)(anon(8) + 2 * PAGE - 8);
		float a = 2;
		uint32_t bits;

		memcpy(&bits, &a, sizeof(bits));
		for (int k = 0; k < FLOATS; k++) {
			x[k] = k;
			y[k] = i;
		}
		queue.ring[queue.written % GPU_PACKETS][4] = 0;
		queue_push(&queue, GPU_LAUNCH | 4ULL << 32, (uintptr_t)x, (uintptr_t)y, FLOATS);
		queue.ring[(queue.written - 1) % GPU_PACKETS][4] = bits;
		queue_finish(&queue);
		for (int k = 0; k < FLOATS; k++)
			CHECK_EQ(y[k], 2 * k + i);
	}
}

struct turn {
	volatile uint32_t *word;
	volatile bool stop;
	volatile unsigned int forks;
};

/* Takes the page from the device again and again, and writes to it. */
static void *write_in_turn(void *argument)
{
	struct turn *turn = argument;

	while (!turn->stop) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(0);
		++*turn->word;
		SYS(waitpid(pid, NULL, 0));
		turn->forks++;
	}
	return NULL;
}

/* CPU and device write one page in turn: both get on, and nothing of either is lost. */
TEST(one_page_in_turn, .seconds = 120)
{
	char *memory = anon(1);
	float *floats = (float *)memory;
	struct turn turn = { .word = (uint32_t *)(memory + 2048) };
	unsigned int launches = 0;
	pthread_t thread;
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0, PAGE);
	manage_all(fd);
	CHECK_OK(-pthread_create(&thread, NULL, write_in_turn, &turn));
	while (turn.forks < rounds(50) || launches < rounds(200)) {
		for (int i = 0; i < 20; i++, launches++)
			queue_push(&queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)memory, 256,
				   0);
		queue_finish(&queue);
	}
	turn.stop = true;
	CHECK_OK(-pthread_join(thread, NULL));
	diag("%u forks, %u launches", turn.forks, launches);
	CHECK_EQ(*turn.word, turn.forks);
	for (int i = 0; i < 256; i++)
		CHECK_EQ(floats[i], launches);
}

/* Bytes that the device writes to a file's pages are on the disk after fsync(). */
TEST(files_reach_the_disk)
{
	struct memory memory = memory_new(EXT4_SHARED, 16 * PAGE);
	char path[64], *content = SYS(mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE,
					   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	int fd = open_gpu(), disk;
	struct gpu_queue queue = queue_new(fd);

	manage_all(fd);
	SYS(munmap(memory.alias, memory.length));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", memory.fd);
	disk = SYS(open(path, O_RDONLY | O_DIRECT | O_CLOEXEC));
	for (int i = 0; i < 3; i++) {
		SYS(fsync(memory.fd));
		/* clean, and mapped for reading */
		CHECK_EQ(touch_read(memory.addr), 0);
		fill(&queue, memory.addr, 16 * PAGE, 0x41 + i);
		SYS(fsync(memory.fd));
		CHECK_EQ(pread(disk, content, 16 * PAGE, 0), 16 * PAGE);
		CHECK(bytes_are(content, 16 * PAGE, 0x41 + i));
	}
	memory.alias = NULL;
	memory_free(&memory);
}

/* read() and write() around the page cache, to and from memory that the device has. */
TEST(direct_io)
{
	struct memory file = memory_new(EXT4_SHARED, 16 * PAGE);
	char *memory = anon(16), path[64];
	struct gpu_memory result;
	int fd = open_gpu(), disk;
	struct gpu_queue queue = queue_new(fd);

	manage_all(fd);
	result = gpu_alloc(fd, 0, 16 * PAGE);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file.fd);
	disk = SYS(open(path, O_RDWR | O_DIRECT | O_CLOEXEC));
	memory_free(&(struct memory){ .addr = file.addr, .length = file.length,
				      .alias = file.alias, .fd = -1 });
	fill(&queue, memory, 16 * PAGE, 0x51);
	CHECK_EQ(pwrite(disk, memory, 16 * PAGE, 0), 16 * PAGE);
	fill(&queue, memory, 16 * PAGE, 0x52);
	CHECK_EQ(pread(disk, memory, 8 * PAGE, 0), 8 * PAGE);
	copy(&queue, memory, result.addr, 16 * PAGE);
	CHECK(bytes_are(result.addr, 8 * PAGE, 0x51));
	CHECK(bytes_are(result.addr + 8 * PAGE, 8 * PAGE, 0x52));
	CHECK(!memcmp(memory, result.addr, 16 * PAGE));
}

/*
 * Pages that the device touches count for the memory cgroup of the program, and are reclaimed when
 * that is full: what the device wrote comes back from swap.
 */
TEST(memory_max)
{
	size_t length = 12 * MIB;
	struct gpu_queue queue;
	long long swapped;
	char *memory;
	int fd;

	swap_begin();
	memory_cgroup(8 * MIB, true);
	memory = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			  0));
	SYS(madvise(memory, length, MADV_NOHUGEPAGE));
	fd = open_gpu();
	queue = queue_new(fd);
	manage_all(fd);
	for (size_t at = 0; at < length; at += MIB)
		fill(&queue, memory + at, MIB, 0x61 + at / MIB);
	swapped = file_number("/sys/fs/cgroup/pinmap-test/memory.swap.current", -1);
	CHECK(swapped >= (long long)(length - 8 * MIB));
	for (size_t at = 0; at < length; at += MIB)
		CHECK(bytes_are(memory + at, MIB, 0x61 + at / MIB));
	SYS(munmap(memory, length));
	swap_end();
}

/* Faults are counted for the context, for the device, in fdinfo and in sysfs. */
TEST(counters)
{
	char *memory = anon(64), path[64], served[96];
	struct pinmap_get_totals before, after, whole;
	struct pci_device device;
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	snprintf(device.bdf, sizeof(device.bdf), "%s", need_gpu());
	pci_look(&device);
	manage(fd, memory, 64 * PAGE);
	whole = totals(fd, 0);
	before = totals(fd, PINMAP_TOTALS_CONTEXT);
	CHECK_EQ(before.out_faults_served, 0);
	fill(&queue, memory, 64 * PAGE, 0x71);
	after = totals(fd, PINMAP_TOTALS_CONTEXT);
	CHECK(after.out_faults_served >= 1);
	CHECK(after.out_fault_pages >= 64);
	CHECK(after.out_fault_ns > 0);
	CHECK_EQ(after.out_faults_failed, 0);
	/* no more faults where the device has been */
	fill(&queue, memory, 64 * PAGE, 0x72);
	CHECK_EQ(totals(fd, PINMAP_TOTALS_CONTEXT).out_faults_served, after.out_faults_served);
	CHECK_WRITE_REFUSED(fd, memory + 64 * PAGE, UNMAPPED);
	CHECK_EQ(totals(fd, PINMAP_TOTALS_CONTEXT).out_faults_failed, 1);
	CHECK(totals(fd, 0).out_faults_served >= whole.out_faults_served + 1);
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	CHECK_EQ(file_field(path, "pinmap-managed:"), 64 * PAGE / 1024);
	CHECK_EQ(file_field(path, "pinmap-faults-served:"), after.out_faults_served);
	CHECK_EQ(file_field(path, "pinmap-faults-failed:"), 1);
	snprintf(served, sizeof(served), "/sys/class/misc/%s/faults_served",
		 strrchr(device.node, '/') + 1);
	CHECK_EQ(file_number(served, -1), totals(fd, 0).out_faults_served);
	CHECK_EQ(get_info(fd).out_memlock_used, 0);
}

/* Nothing is charged to RLIMIT_MEMLOCK, and so nobody needs any of it but for tables. */
TEST(nothing_is_locked)
{
	size_t length = 8 * MIB;
	uint64_t used;
	char *memory;
	int fd;
	struct gpu_queue queue;

	pci_adopt(need_gpu());
	set_memlock(MIB);
	become_user(true);
	memory = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			  0));
	fd = open_gpu();
	queue = queue_new(fd);
	manage_all(fd);
	used = get_info(fd).out_memlock_used;
	fill(&queue, memory, length, 0x73);
	CHECK(bytes_are(memory, length, 0x73));
	CHECK(get_info(fd).out_memlock_used < used + 16 * PAGE);
}

/* Each queue has its first faults one right behind the other, while its thread is being made. */
TEST(first_faults_of_many_queues, .seconds = 120)
{
	enum { QUEUES = 32, FAULTS = 4 };
	char *memory = small_blocks(QUEUES * FAULTS);
	int fd = open_gpu();

	manage(fd, memory, QUEUES * FAULTS * HUGE);
	for (unsigned int i = 0; i < QUEUES; i++) {
		struct gpu_queue queue = queue_new(fd);
		char *page = memory + i * FAULTS * HUGE;

		for (unsigned int k = 0; k < FAULTS; k++)
			queue_push(&queue, GPU_FILL, (uintptr_t)page + k * HUGE, PAGE, 0x31 + k);
		queue_finish(&queue);
		for (unsigned int k = 0; k < FAULTS; k++)
			CHECK(bytes_are(page + k * HUGE, PAGE, 0x31 + k));
		queue_delete(&queue);
	}
}
