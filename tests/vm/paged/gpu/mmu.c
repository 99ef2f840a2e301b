// SPDX-License-Identifier: MIT OR Apache-2.0
/* The page tables of a device: what they map, what they cost, and that nothing is left in them. */
#define _GNU_SOURCE
#include "gpu.h"
#include "memory.h"
#include "pci.h"
#include "process.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

static int walk(int fd, const char *addr, struct pinmap_gpu_walk *args)
{
	*args = (struct pinmap_gpu_walk){ .size = sizeof(*args), .addr = (uintptr_t)addr };
	return try_ioctl(fd, PINMAP_GPU_WALK, args);
}

/* GPU_WALK reads in the device's memory what was mapped. */
TEST(walk)
{
	int fd = open_gpu();
	char *small = anon(4), *far = (char *)(1ULL << 48);
	struct gpu_memory vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, 4 * MIB);
	struct memory huge = memory_new(ANON, 4 * MIB);
	struct registration registration = register_memory(fd, small, 4 * PAGE, 0);
	struct pinmap_gpu_walk args;

	CHECK_OK(walk(fd, small + PAGE + 5, &args));
	CHECK_EQ(args.out_flags & ~PINMAP_WALK_SNOOP, PINMAP_WALK_READ | PINMAP_WALK_HOST);
	CHECK_EQ(!!(args.out_flags & PINMAP_WALK_SNOOP),
		 !!(get_info(fd).out_flags & PINMAP_INFO_COHERENT));
	CHECK_EQ(args.out_leaf_length, PAGE);
	CHECK_EQ(args.out_levels, 4);
	CHECK_EQ(args.out_target % PAGE, 5);
	CHECK_ERR(ENOENT, walk(fd, small + 4 * PAGE, &args));
	release(fd, registration.handle);
	CHECK_ERR(ENOENT, walk(fd, small, &args));
	CHECK_ERR(EINVAL, walk(fd, far, &args));

	/* congruent, so that memory aligned for the CPU is aligned on the bus */
	register_memory(fd, huge.addr, huge.length, WRITE);
	CHECK_OK(walk(fd, huge.addr, &args));
	CHECK_EQ(args.out_flags & ~PINMAP_WALK_SNOOP,
		 PINMAP_WALK_READ | PINMAP_WALK_WRITE | PINMAP_WALK_HOST);
	CHECK_EQ(args.out_target % (2 * MIB), (uintptr_t)huge.addr % (2 * MIB));

	CHECK_OK(walk(fd, vram.addr + 3 * MIB, &args));
	CHECK_EQ(args.out_flags, PINMAP_WALK_READ | PINMAP_WALK_WRITE);
	CHECK(args.out_target < 256 * MIB);
}

/*
 * Page tables are charged, but for the root, so that no program can use up the device's memory by
 * them; and the charge is given back. Any limit lets a device be opened: its refusals come from
 * calls that can tell them.
 */
TEST(tables_are_charged)
{
	enum { APART = 1 << 30, PLACES = 16, MOST = 2 * PLACES * PAGE };
	struct rlimit none = { 0, MOST }, limit = { MOST, MOST };
	struct pinmap_queue_create queue;
	struct pinmap_map map = { .size = sizeof(map), .flags = PINMAP_MAP_FIXED };
	struct pinmap_gpu_info before = { .size = sizeof(before) }, after = before;
	char *memory = anon(1);
	struct registration registration;
	int result = 0, places, fd;
	uint64_t used;

	pci_adopt(need_gpu());
	SYS(setrlimit(RLIMIT_MEMLOCK, &none));
	become_user(true);
	fd = open_gpu();
	CHECK_EQ(get_info(fd).out_memlock_used, 0);
	CHECK_ERR(ENOMEM, try_queue_create(fd, GPU_BOTH, GPU_PACKETS, &queue));
	CHECK_EQ(queue.fail.reason, PINMAP_FAIL_MEMLOCK);
	CHECK_EQ(queue.fail.needed, PAGE);
	CHECK_EQ(queue.fail.allowed, 0);
	SYS(setrlimit(RLIMIT_MEMLOCK, &limit));
	CHECK_OK(try_ioctl(fd, PINMAP_GPU_INFO, &before));
	registration = register_memory(fd, memory, PAGE, WRITE);
	used = get_info(fd).out_memlock_used;
	CHECK(used >= 2 * PAGE && used <= 4 * PAGE);
	map.handle = registration.handle;
	for (places = 0; places < 2 * PLACES; places++) {
		map.device_addr = (1ULL << 40) + (uint64_t)places * APART;
		result = try_ioctl(fd, PINMAP_MAP, &map);
		if (result)
			break;
	}
	CHECK_ERR(ENOMEM, result);
	CHECK_EQ(map.fail.reason, PINMAP_FAIL_MEMLOCK);
	CHECK(places >= PLACES / 2 && places <= PLACES);
	release(fd, registration.handle);
	CHECK_EQ(get_info(fd).out_memlock_used, 0);
	CHECK_OK(try_ioctl(fd, PINMAP_GPU_INFO, &after));
	CHECK_EQ(after.out_vram_free, before.out_vram_free);
}

/*
 * VRAM is mapped by huge pages where it is large, and by small ones where it is not, or mapped in
 * part.
 */
TEST(vram_faults)
{
	int fd = open_gpu();
	struct gpu_memory large = gpu_alloc(fd, PINMAP_ALLOC_VRAM, 16 * MIB);
	struct gpu_memory small = gpu_alloc(fd, PINMAP_ALLOC_VRAM, MIB);
	struct rusage before, after;

	SYS(getrusage(RUSAGE_SELF, &before));
	for (size_t at = 0; at < 16 * MIB; at += PAGE)
		*(volatile uint64_t *)(large.addr + at) = at;
	SYS(getrusage(RUSAGE_SELF, &after));
	diag("%ld faults for 16 MiB", after.ru_minflt - before.ru_minflt);
	CHECK(after.ru_minflt - before.ru_minflt <= 16);
	for (size_t at = 0; at < MIB; at += PAGE)
		*(volatile uint64_t *)(small.addr + at) = ~at;
	/* a hole in the middle of a huge page, and what is around it */
	SYS(munmap(large.addr + 3 * MIB, PAGE));
	SYS(mprotect(large.addr + 5 * MIB, PAGE, PROT_READ));
	CHECK_EQ(touch_read(large.addr + 3 * MIB), SIGSEGV);
	CHECK_EQ(touch_write(large.addr + 5 * MIB), SIGSEGV);
	for (size_t at = 0; at < 16 * MIB; at += PAGE)
		if (at != 3 * MIB)
			CHECK_EQ(*(volatile uint64_t *)(large.addr + at), at);
	for (size_t at = 0; at < MIB; at += PAGE)
		CHECK_EQ(*(volatile uint64_t *)(small.addr + at), ~at);
	SYS(munmap(large.addr, 16 * MIB));
}

/* After RELEASE the device cannot reach the memory, whatever its TLB had. */
TEST(release_ends_reach, .smoke = true)
{
	struct memory memory = memory_new(ANON, PAGE);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct registration registration = register_memory(fd, memory.addr, PAGE, WRITE);

	queue_push(&queue, GPU_FILL, (uintptr_t)memory.addr, PAGE, 0x22);
	queue_finish(&queue);
	release(fd, registration.handle);
	queue_push(&queue, GPU_FILL, (uintptr_t)memory.addr, PAGE, 0x33);
	CHECK_ERR(EIO, try_queue_finish(&queue, slow(10000)));
	CHECK_EQ(queue_stopped(&queue), GPU_NOT_PRESENT);
	CHECK_EQ(memory.addr[0], 0x22);
}

/* Memory that is read-only for the device is so in its MMU. */
TEST(read_only)
{
	struct memory memory = memory_new(ANON, PAGE);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	register_memory(fd, memory.addr, PAGE, 0);
	queue_push(&queue, GPU_FILL, (uintptr_t)memory.addr, PAGE, 0x33);
	CHECK_ERR(EIO, try_queue_finish(&queue, slow(10000)));
	CHECK_EQ(queue_stopped(&queue), GPU_PERMISSION);
	CHECK_EQ(memory.addr[0], 0x11);
}

/* Memory that is unmapped while the device works on it goes stale, and is out of reach at once. */
TEST(munmap_while_busy, .faults = true)
{
	size_t length = 4 * MIB;
	struct memory memory = memory_new(MEMFD, length);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct registration registration = register_memory(fd, memory.addr, length, WRITE);

	for (int i = 0; i < 40; i++)
		queue_push(&queue, GPU_FILL, (uintptr_t)memory.addr, length, 0x40 + i);
	queue_ring(&queue);
	sleep_ms(5);
	munmap(memory.addr, length);
	memset(memory.alias, 0x77, length);
	queue_stopped(&queue);
	for (size_t i = 0; i < length; i++)
		if (memory.alias[i] != 0x77)
			FAIL("the device wrote %#x at %zu", memory.alias[i], i);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
}

/* Addresses can be registered again at once, for a queue that goes on. */
TEST(register_again)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	char *memory = anon(4);

	for (int i = 0; i < 20; i++) {
		CHECK_EQ(register_memory(fd, memory, 4 * PAGE, WRITE | IDENTITY).device_addr,
			 (uintptr_t)memory);
		queue_push(&queue, GPU_FILL, (uintptr_t)memory, 4 * PAGE, i);
		queue_finish(&queue);
		CHECK_EQ(memory[3 * PAGE], i);
		SYS(mmap(memory, 4 * PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
		memory[3 * PAGE] = 0;
	}
}
