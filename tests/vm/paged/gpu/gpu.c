// SPDX-License-Identifier: MIT OR Apache-2.0
/* Paged devices: memory and queues. */
#define _GNU_SOURCE
#include "edu.h"
#include "gpu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

TEST(info, .smoke = true)
{
	int fd = open_gpu();
	struct pinmap_info info = get_info(fd);
	struct pinmap_gpu_info gpu = { .size = sizeof(gpu) };
	struct pinmap_gpu_counters counters = { .size = sizeof(counters) };
	struct pinmap_reserved reserved;

	CHECK_EQ(info.out_kind, PINMAP_KIND_PAGED);
	CHECK_EQ(info.out_aperture_start, 0);
	CHECK_EQ(info.out_aperture_last, (1ULL << 47) - 1);
	CHECK_EQ(info.out_nr_reserved, 0);
	CHECK_EQ(info.out_nr_vectors, 0);
	CHECK_EQ(info.out_flags & (PINMAP_INFO_RESET | PINMAP_INFO_OWNED), 0);
	for (int i = 0; i < PINMAP_NR_BARS; i++)
		CHECK_EQ(info.out_bars[i].length, 0);
	CHECK_ERR(ENOENT, try_get_reserved(fd, 0, &reserved));
	CHECK_OK(try_ioctl(fd, PINMAP_GPU_INFO, &gpu));
	CHECK_EQ(gpu.out_nr_queues, 1024);
	CHECK_EQ(gpu.out_nr_vmids, 15);
	CHECK_EQ(gpu.out_max_priority, 3);
	CHECK(gpu.out_vram_free <= gpu.out_vram_length);
	CHECK_OK(try_ioctl(fd, PINMAP_GPU_COUNTERS, &counters));
	CHECK_EQ(counters.out_nr_engines, gpu.out_nr_copy_engines + gpu.out_nr_compute_slots);
}

/* Calls that belong to the driver are refused. */
TEST(not_for_users)
{
	int fd = open_gpu();

	CHECK_ERR(EOPNOTSUPP, try_reset_device(fd));
	CHECK_ERR(EOPNOTSUPP, try_set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, -1));
	CHECK_ERR(EOPNOTSUPP,
		  mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -errno : 0);
}

/*
 * The calls for paged devices, and their error with all values zero (sizes and flags: any/ioctl).
 */
TEST(values_of_zero)
{
	static const struct {
		unsigned long number;
		uint32_t size;
		int error;
	} calls[] = {
		{ PINMAP_ALLOC, sizeof(struct pinmap_alloc), EINVAL },
		{ PINMAP_GPU_INFO, sizeof(struct pinmap_gpu_info), 0 },
		{ PINMAP_GPU_COUNTERS, sizeof(struct pinmap_gpu_counters), 0 },
		{ PINMAP_GPU_WALK, sizeof(struct pinmap_gpu_walk), ENOENT },
		{ PINMAP_QUEUE_CREATE, sizeof(struct pinmap_queue_create), EINVAL },
		{ PINMAP_QUEUE_DESTROY, sizeof(struct pinmap_queue_destroy), ENOENT },
		{ PINMAP_QUEUE_WAIT, sizeof(struct pinmap_queue_wait), ENOENT },
		{ PINMAP_QUEUE_QUERY, sizeof(struct pinmap_queue_query), ENOENT },
		{ PINMAP_QUEUE_SUBMIT, sizeof(struct pinmap_queue_submit), ENOENT },
		{ PINMAP_QUEUE_NOTIFY, sizeof(struct pinmap_queue_notify), ENOENT },
	};
	int fd = open_gpu();

	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		uint32_t words[256] = { calls[i].size };
		int result = try_ioctl(fd, calls[i].number, words);

		if (result != -calls[i].error)
			FAIL("call %zu: %s", i, error_name(-result));
	}
}

TEST(queue_values)
{
	static const uint32_t bad[] = { 0, 1, 32, 63, 65, 1U << 17, ~0U };
	int fd = open_gpu();
	struct pinmap_queue_create args;

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		CHECK_ERR(EINVAL, try_queue_create(fd, GPU_BOTH, bad[i], &args));
	CHECK_ERR(EINVAL, try_queue_create(fd, 0, 64, &args));
	args = (struct pinmap_queue_create){
		.size = sizeof(args), .flags = GPU_BOTH, .packets = 64, .priority = 4
	};
	CHECK_ERR(EINVAL, try_ioctl(fd, PINMAP_QUEUE_CREATE, &args));
	CHECK_OK(try_queue_create(fd, GPU_BOTH, 65536, &args));
	CHECK_OK(try_queue_destroy(fd, args.out_queue));
	CHECK_ERR(ESTALE, try_queue_destroy(fd, args.out_queue));
	CHECK_ERR(ENOENT, try_queue_destroy(fd, args.out_queue + 1));
}

/* The kernel works on the very pages that were registered. */
TEST(zero_copy, .smoke = true)
{
	struct memory memory = memory_new(ANON, 4 * PAGE);
	float *floats = (float *)memory.addr;
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	for (int i = 0; i < 1024; i++)
		floats[i] = i;
	CHECK_EQ(register_memory(fd, memory.addr, memory.length, WRITE).device_addr,
		 (uintptr_t)memory.addr);
	queue_push(&queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)floats, 1024, 0);
	queue_finish(&queue);
	for (int i = 0; i < 1024; i++)
		CHECK_EQ(floats[i], i + 1);
}

/* Host memory and VRAM are allocated, and copied at the address where the program has them. */
TEST(alloc_copy, .smoke = true)
{
	size_t length = 5 * MIB + 3 * PAGE;
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory host = gpu_alloc(fd, 0, length),
			  vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, length);
	struct gpu_memory back = gpu_alloc(fd, 0, length);

	for (size_t i = 0; i < length; i += PAGE)
		CHECK(!host.addr[i] && !vram.addr[i]);
	for (size_t i = 0; i < length; i++)
		host.addr[i] = i * 7 + i / PAGE;
	queue_push(&queue, GPU_COPY, (uintptr_t)host.addr, (uintptr_t)vram.addr, length);
	queue_push(&queue, GPU_COPY, (uintptr_t)vram.addr, (uintptr_t)back.addr, length);
	queue_finish(&queue);
	CHECK(!memcmp(host.addr, back.addr, length));
	CHECK(!memcmp(host.addr, vram.addr, length));
	/* the handle goes, the memory stays while it is mapped; the device cannot reach it */
	release(fd, back.args.out_handle);
	CHECK_EQ(back.addr[PAGE], host.addr[PAGE]);
	queue_push(&queue, GPU_FILL, (uintptr_t)back.addr, PAGE, 0xee);
	CHECK_ERR(EIO, try_queue_finish(&queue, slow(10000)));
	CHECK_EQ(back.addr[0], host.addr[0]);
}

static const struct gpu_kind {
	const char *name;
	uint32_t flags;
} gpu_kinds[] = {
	{ "plain", 0 },
	{ "write_combined", PINMAP_ALLOC_WRITE_COMBINED },
	{ "node", PINMAP_ALLOC_NODE },
	{ "write_combined_node", PINMAP_ALLOC_WRITE_COMBINED | PINMAP_ALLOC_NODE },
	{ "portable", PINMAP_ALLOC_PORTABLE },
	{ "portable_write_combined", PINMAP_ALLOC_PORTABLE | PINMAP_ALLOC_WRITE_COMBINED },
	{ "portable_node", PINMAP_ALLOC_PORTABLE | PINMAP_ALLOC_NODE },
	{ "portable_write_combined_node",
	  PINMAP_ALLOC_PORTABLE | PINMAP_ALLOC_WRITE_COMBINED | PINMAP_ALLOC_NODE },
	{ "vram", PINMAP_ALLOC_VRAM },
};

/*
 * Memory of every combination of flags is zeroed, told by QUERY, and reached in the contexts that
 * are to have it.
 */
TEST_EACH(alloc_kind, gpu_kinds)
{
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd), others = queue_new(other);
	struct gpu_memory memory = gpu_alloc(fd, row->flags, 17 * PAGE);
	struct pinmap_query query = query_addr(fd, memory.addr + 5);
	bool portable = row->flags & PINMAP_ALLOC_PORTABLE;
	uint64_t addr = (uintptr_t)memory.addr;

	CHECK_EQ(query.handle, memory.args.out_handle);
	CHECK_EQ(query.out_kind,
		 row->flags & PINMAP_ALLOC_VRAM ? PINMAP_BUFFER_VRAM : PINMAP_BUFFER_HOST);
	CHECK_EQ(query.out_flags, WRITE | (portable ? PINMAP_REGISTER_PORTABLE : 0));
	CHECK_EQ(query.out_length, 17 * PAGE);
	CHECK_EQ(query.out_device_addr, addr + 5);
	CHECK(bytes_are(memory.addr, 17 * PAGE, 0));
	queue_push(&queue, GPU_FILL, addr, 17 * PAGE, 0x51);
	queue_finish(&queue);
	CHECK(bytes_are(memory.addr, 17 * PAGE, 0x51));
	if (portable) {
		CHECK_EQ(query_addr(other, memory.addr + 5).out_device_addr, addr + 5);
		queue_push(&others, GPU_FILL, addr + 16 * PAGE, PAGE, 0x52);
		queue_finish(&others);
		CHECK(bytes_are(memory.addr, 16 * PAGE, 0x51));
		CHECK(bytes_are(memory.addr + 16 * PAGE, PAGE, 0x52));
	} else {
		CHECK_ERR(ENOENT, try_query_addr(other, memory.addr, &query));
	}
	release(fd, memory.args.out_handle);
	CHECK_ERR(ENOENT, try_query_addr(other, memory.addr, &query));
	SYS(munmap(memory.addr, 17 * PAGE));
}

TEST(alloc_too_much)
{
	int fd = open_gpu();
	struct pinmap_alloc args;

	CHECK_ERR(ENOSPC, try_alloc(fd, PINMAP_ALLOC_VRAM, 1UL << 40, &args));
	CHECK_EQ(args.fail.reason, PINMAP_FAIL_FULL);
	CHECK_ERR(ENOMEM, try_alloc(fd, 0, 1UL << 46, &args));
	CHECK_EQ(args.fail.reason, PINMAP_FAIL_MEMORY);
	set_memlock(MIB);
	become_user(true);
	CHECK_ERR(ENOMEM, try_alloc(fd, 0, 2 * MIB, &args));
	CHECK_EQ(args.fail.reason, PINMAP_FAIL_MEMLOCK);
}

TEST(alloc_mmap)
{
	int fd = open_gpu();
	struct gpu_memory memory = gpu_alloc(fd, 0, 4 * PAGE);
	uint64_t offset = memory.args.out_offset;
	pid_t pid;

	CHECK(mmap(NULL, 5 * PAGE, PROT_READ, MAP_SHARED, fd, offset) == MAP_FAILED &&
	      errno == EINVAL);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, offset + 4 * PAGE) == MAP_FAILED &&
	      errno == EINVAL);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, offset) == MAP_FAILED &&
	      errno == EINVAL);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, offset) == MAP_FAILED &&
	      errno == EACCES);
	CHECK(mremap(memory.addr, 4 * PAGE, 8 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	memory.addr[0] = 1;
	munmap(memory.addr + PAGE, PAGE);
	memory.addr[2 * PAGE] = 2;
	pid = fork();
	if (pid == 0) {
		CHECK_EQ(touch_read(memory.addr), SIGSEGV);
		CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, offset) == MAP_FAILED &&
		      errno == EPERM);
		_exit(0);
	}
	join(pid);
	CHECK_EQ(memory.addr[0], 1);
}

/* Atomic additions to VRAM and to registered memory, where the program may ask for them. */
TEST(atomic, .smoke = true)
{
	struct memory memory = memory_new(ANON, 2 * PAGE);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, PAGE);
	uint64_t *places[] = { (uint64_t *)memory.addr, (uint64_t *)vram.addr };
	struct pinmap_event event;

	memset(memory.addr, 0, 2 * PAGE);
	register_memory(fd, memory.addr, PAGE, WRITE);
	register_memory(fd, memory.addr + PAGE, PAGE, 0);
	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		places[i][511] = 7;
		queue_push_add(&queue, places[i] + 1, 511, 3, 2);
		queue_finish(&queue);
		CHECK_EQ(places[i][0], 0);
		CHECK_EQ(places[i][1], 6);
		CHECK_EQ(places[i][511], 7 + 6);
	}
	queue_push_add(&queue, memory.addr + PAGE + 8, 1, 1, 1);
	CHECK_ERR(EIO, try_queue_finish(&queue, slow(10000)));
	CHECK_EQ(queue_stopped(&queue), GPU_PERMISSION);
	CHECK_EQ(queue_query(&queue).out_addr, (uintptr_t)memory.addr + PAGE + 8);
	CHECK_EQ(queue_query(&queue).out_access, PINMAP_ACCESS_ATOMIC);
	event = next_event(fd);
	CHECK_EQ(event.type, PINMAP_EVENT_FAULT);
	CHECK_EQ(event.access, PINMAP_ACCESS_ATOMIC);
	CHECK_EQ(((uint64_t *)memory.addr)[PAGE / 8 + 1], 0);
}

/* Another context's work cannot reach this memory. */
TEST(isolation, .smoke = true)
{
	struct memory memory = memory_new(ANON, 2 * PAGE);
	int mine = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(other), good = queue_new(mine);
	struct pinmap_event event;

	register_memory(mine, memory.addr, memory.length, WRITE);
	queue_push(&queue, GPU_FILL, (uintptr_t)memory.addr, PAGE, 0xee);
	CHECK_ERR(EIO, try_queue_finish(&queue, slow(10000)));
	CHECK_EQ(queue_stopped(&queue), GPU_NOT_PRESENT);
	CHECK_EQ(queue_query(&queue).out_addr, (uintptr_t)memory.addr);
	CHECK_EQ(queue_query(&queue).out_access, PINMAP_ACCESS_WRITE);
	event = next_event(other);
	CHECK_EQ(event.type, PINMAP_EVENT_FAULT);
	CHECK_EQ(event.handle, queue.args.out_queue);
	CHECK_EQ(event.access, PINMAP_ACCESS_WRITE);
	CHECK_EQ(event.addr, (uintptr_t)memory.addr);
	CHECK_EQ(memory.addr[0], 0x11);
	queue_push(&good, GPU_FILL, (uintptr_t)memory.addr, PAGE, 0x55);
	queue_finish(&good);
	CHECK_EQ(memory.addr[0], 0x55);
}

/*
 * A doorbell is its context's: another context's cannot be mapped, and the same offset leads to
 * one's own.
 */
TEST(doorbells_are_apart, .smoke = true)
{
	int mine = open_gpu(), other = open_gpu();
	struct gpu_queue own = queue_new(mine), theirs = queue_new(other), more = queue_new(other);
	uint64_t offsets[] = { more.args.out_doorbell_offset, more.args.out_ring_offset,
			       more.args.out_fence_offset };

	for (unsigned int i = 0; i < 3; i++) {
		errno = 0;
		CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, mine, offsets[i]) ==
		      MAP_FAILED);
		CHECK_EQ(errno, EINVAL);
	}
	CHECK_EQ(own.args.out_doorbell_offset, theirs.args.out_doorbell_offset);
	/* ringing an empty ring stops a queue: packets of zeros make no sense */
	queue_push(&own, GPU_NOP, 0, 0, 0);
	queue_finish(&own);
	sleep_ms(50);
	CHECK_EQ(queue_query(&theirs).out_index, 0);
	CHECK_EQ(queue_query(&theirs).out_state, PINMAP_QUEUE_READY);
	CHECK_EQ(queue_query(&more).out_state, PINMAP_QUEUE_READY);
	*theirs.doorbell = 1;
	CHECK_EQ(queue_stopped(&theirs), GPU_BAD_OPCODE);
	CHECK_EQ(queue_query(&own).out_state, PINMAP_QUEUE_READY);
}

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
 * Page tables are charged, the root first, so that no program can use up the device's memory by
 * them; and the charge is given back.
 */
TEST(tables_are_charged)
{
	enum { APART = 1 << 30, PLACES = 16 };
	struct pinmap_map map = { .size = sizeof(map), .flags = PINMAP_MAP_FIXED };
	struct pinmap_gpu_info before = { .size = sizeof(before) }, after = before;
	char *memory = anon(1);
	struct registration registration;
	int result = 0, places, fd;
	uint64_t used;

	pci_adopt(need_gpu());
	set_memlock((1 + 2 * PLACES) * PAGE);
	become_user(true);
	fd = open_gpu();
	CHECK_EQ(get_info(fd).out_memlock_used, PAGE);
	CHECK_OK(try_ioctl(fd, PINMAP_GPU_INFO, &before));
	registration = register_memory(fd, memory, PAGE, WRITE);
	used = get_info(fd).out_memlock_used;
	CHECK(used >= 3 * PAGE && used <= 5 * PAGE);
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
	CHECK_EQ(get_info(fd).out_memlock_used, PAGE);
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

TEST(wait_ends)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	queue.fence = 1;
	CHECK_ERR(ETIMEDOUT, try_queue_wait(&queue, 30));
	CHECK_ERR(ETIMEDOUT, try_queue_wait(&queue, 0));
	queue.fences[0] = 1;
	CHECK_OK(try_queue_wait(&queue, 0));
	queue_push(&queue, 0, 0, 0, 0);
	queue_ring(&queue);
	CHECK_EQ(queue_stopped(&queue), GPU_BAD_OPCODE);
	queue.fence = 2;
	CHECK_ERR(EIO, try_queue_wait(&queue, 1000));
}

static int try_notify(const struct gpu_queue *queue, uint32_t fence, uint64_t value, int eventfd)
{
	return try_queue_notify(queue->fd, queue->args.out_queue, fence, value, eventfd);
}

/* Counts the signals of an eventfd, after so many milliseconds at most. */
static uint64_t signals(int eventfd, int milliseconds)
{
	struct pollfd file = { .fd = eventfd, .events = POLLIN };
	uint64_t count = 0;

	SYS(poll(&file, 1, milliseconds));
	if (read(eventfd, &count, sizeof(count)) != sizeof(count))
		return 0;
	return count;
}

/* A queue, and an eventfd that is to be told of its fences. */
struct notices {
	int fd, tells;
	struct gpu_queue queue;
};

static struct notices notices_new(void)
{
	struct notices notices = { .fd = open_gpu(),
				   .tells = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) };

	notices.queue = queue_new(notices.fd);
	return notices;
}

TEST(notify_values)
{
	struct notices notices = notices_new();

	CHECK_ERR(EBADF, try_notify(&notices.queue, 0, 1, -1));
	CHECK_ERR(EINVAL, try_notify(&notices.queue, 0, 1, notices.fd));
	CHECK_ERR(EINVAL, try_notify(&notices.queue, 512, 1, notices.tells));
}

TEST(notify_of_a_fence_that_is_passed)
{
	struct notices notices = notices_new();

	CHECK_OK(try_notify(&notices.queue, 0, 0, notices.tells));
	CHECK_EQ(signals(notices.tells, 0), 1);
}

/* The eventfd is signalled once. */
TEST(notify_of_a_fence_that_comes)
{
	struct notices notices = notices_new();

	CHECK_OK(try_notify(&notices.queue, 0, notices.queue.fence + 1, notices.tells));
	CHECK_EQ(signals(notices.tells, 0), 0);
	queue_finish(&notices.queue);
	CHECK_EQ(signals(notices.tells, slow(5000)), 1);
	queue_finish(&notices.queue);
	CHECK_EQ(signals(notices.tells, 100), 0);
}

/* Interrupts and fences of another queue do not count, nor do other fences of this one. */
TEST(notify_is_for_one_fence)
{
	struct notices notices = notices_new();
	struct gpu_queue other = queue_new(notices.fd);

	CHECK_OK(try_notify(&notices.queue, 0, notices.queue.fence + 2, notices.tells));
	CHECK_OK(try_notify(&notices.queue, 511, 1, notices.tells));
	queue_finish(&other);
	queue_finish(&other);
	queue_finish(&notices.queue);
	CHECK_EQ(signals(notices.tells, 100), 0);
}

/* A notice whose eventfd was closed counts until it is told. */
TEST(notify_limit)
{
	struct notices notices = notices_new();
	struct gpu_queue *queue = &notices.queue;

	for (int i = 0; i < 64; i++) {
		int closed = SYS(eventfd(0, EFD_CLOEXEC));

		CHECK_OK(try_notify(queue, 0, queue->fence + 1, closed));
		SYS(close(closed));
	}
	CHECK_ERR(ENOSPC, try_notify(queue, 0, queue->fence + 1, notices.tells));
	queue_finish(queue);
	CHECK(WAIT_FOR(slow(5000), !try_notify(queue, 0, queue->fence + 2, notices.tells)));
}

/* All notices are told, and later ones at once. */
TEST(notify_of_a_queue_that_stops)
{
	struct notices notices = notices_new();
	uint64_t told;

	CHECK_OK(try_notify(&notices.queue, 0, notices.queue.fence + 1, notices.tells));
	CHECK_OK(try_notify(&notices.queue, 511, 1, notices.tells));
	queue_push(&notices.queue, 0, 0, 0, 0);
	queue_ring(&notices.queue);
	told = signals(notices.tells, slow(5000));
	/* the eventfd may be read between the two */
	if (told < 2)
		told += signals(notices.tells, slow(5000));
	CHECK_EQ(told, 2);
	CHECK_OK(try_notify(&notices.queue, 0, ~0ULL, notices.tells));
	CHECK_EQ(signals(notices.tells, 0), 1);
}

TEST(notify_of_a_queue_that_is_destroyed)
{
	struct notices notices = notices_new();

	CHECK_OK(try_notify(&notices.queue, 0, ~0ULL, notices.tells));
	CHECK_EQ(signals(notices.tells, 0), 0);
	CHECK_OK(try_queue_destroy(notices.fd, notices.queue.args.out_queue));
	CHECK_EQ(signals(notices.tells, 0), 1);
	CHECK_ERR(ESTALE, try_notify(&notices.queue, 0, 1, notices.tells));
}

/* An interrupt that gets lost delays the notice, and does no more. */
TEST(notify_without_interrupt)
{
	int fd = open_gpu(), tells = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	struct gpu_queue queue = queue_new(fd);

	for (int i = 0; i < 3; i++) {
		CHECK_OK(try_notify(&queue, 0, queue.fence + 1, tells));
		gpu_set_register(GPU_LOSE_INTERRUPTS, 1000);
		queue_submit(&queue);
		CHECK_EQ(signals(tells, slow(5000)), 1);
		gpu_set_register(GPU_LOSE_INTERRUPTS, 0);
	}
}

/* A notice needs no interrupt packet: the driver looks by itself. */
TEST(notify_by_looking)
{
	int fd = open_gpu(), tells = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	struct gpu_queue queue = queue_new(fd);

	CHECK_OK(try_notify(&queue, 0, 1, tells));
	queue_push(&queue, GPU_FENCE_WRITE, queue.args.out_fence_addr, 1, 0);
	queue_ring(&queue);
	CHECK_EQ(signals(tells, slow(5000)), 1);
}

/* A call that waits sleeps: it looks by itself ever less often. */
TEST(waiting_sleeps)
{
	struct gpu_queue queue = queue_new(open_gpu());
	struct rusage before, after;

	queue.fence = 1;
	SYS(getrusage(RUSAGE_THREAD, &before));
	CHECK_ERR(ETIMEDOUT, try_queue_wait(&queue, 2000));
	SYS(getrusage(RUSAGE_THREAD, &after));
	diag("woken %ld times in 2 s", after.ru_nvcsw - before.ru_nvcsw);
	CHECK(after.ru_nvcsw - before.ru_nvcsw <= 20);
}

TEST(submit)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t packets[64][8] = { 0 };
	struct pinmap_queue_submit args = {
		.size = sizeof(args),
		.queue = queue.args.out_queue,
		.packets = (uintptr_t)packets,
		.count = 64,
	};

	for (int i = 0; i < 62; i++)
		packets[i][0] = GPU_NOP;
	packets[62][0] = GPU_FENCE_WRITE;
	packets[62][1] = queue.args.out_fence_addr;
	packets[63][0] = GPU_INTERRUPT;
	for (unsigned int i = 1; i <= 5; i++) {
		packets[62][2] = queue.fence = i;
		if (!WAIT_FOR(5000, !try_ioctl(fd, PINMAP_QUEUE_SUBMIT, &args)))
			FAIL("the ring stays full");
		CHECK_EQ(args.out_index, i * 64);
		CHECK_OK(try_queue_wait(&queue, slow(5000)));
	}
	args.count = 65;
	CHECK_ERR(EINVAL, try_ioctl(fd, PINMAP_QUEUE_SUBMIT, &args));
}

/* A doorbell outlives its queue without effect, and its id is not used again meanwhile. */
TEST(doorbell_of_a_destroyed_queue)
{
	int fd = open_gpu();
	struct gpu_queue old = queue_new(fd), queue;
	uint64_t ignored;

	CHECK_OK(try_queue_destroy(fd, old.args.out_queue));
	queue = queue_new(fd);
	ignored = gpu_register(GPU_IGNORED_DOORBELLS);
	old.doorbell[0] = 1000;
	CHECK(WAIT_FOR(2000, gpu_register(GPU_IGNORED_DOORBELLS) > ignored));
	queue_finish(&queue);
	CHECK_EQ(queue_query(&queue).out_state, PINMAP_QUEUE_READY);
}

/* More contexts than VMIDs have work, each of which waits for what another one does. */
TEST(many_contexts, .seconds = 60)
{
	enum { CONTEXTS = 40, ROUNDS = 5 };
	static struct gpu_queue queues[CONTEXTS];
	static char *memory[CONTEXTS];

	for (int i = 0; i < CONTEXTS; i++) {
		int fd = open_gpu();

		queues[i] = queue_new(fd);
		memory[i] = anon(1);
		register_memory(fd, memory[i], PAGE, WRITE);
	}
	for (int round = 1; round <= ROUNDS; round++) {
		for (int i = 0; i < CONTEXTS; i++) {
			queue_push(&queues[i], gpu_launch(GPU_SPIN), 3000000, 0, 0);
			queue_push(&queues[i], GPU_FILL, (uintptr_t)memory[i], PAGE, round + i);
			queue_submit(&queues[i]);
		}
		for (int i = 0; i < CONTEXTS; i++) {
			CHECK_OK(try_queue_wait(&queues[i], slow(30000)));
			CHECK_EQ((unsigned char)memory[i][17], (unsigned char)(round + i));
		}
	}
}

/*
 * A context that is given a VMID uses no translation of the context that had it before. Both have
 * their own memory at the same device address, so that a stale entry of the TLB would be used.
 */
TEST(vmid_of_another)
{
	enum { CONTEXTS = 40 };
	static struct gpu_queue queues[CONTEXTS];
	static char *memory[CONTEXTS];
	struct pinmap_gpu_info gpu = { .size = sizeof(gpu) };
	struct pinmap_gpu_counters before = { .size = sizeof(before) }, after = before;
	char *area = address_space(64 * PAGE, PAGE);
	uint64_t place[CONTEXTS];

	for (int i = 0; i < CONTEXTS; i++) {
		struct registration registration;

		queues[i] = queue_new(open_gpu());
		CHECK_OK(try_ioctl(queues[i].fd, PINMAP_GPU_INFO, &gpu));
		memory[i] = anon(1);
		registration = register_memory(queues[i].fd, memory[i], PAGE, WRITE | NO_MAP);
		/*
		 * contexts take turns: as many later as there are VMIDs, another one is given this
		 * VMID
		 */
		place[i] = (uintptr_t)area + i % gpu.out_nr_vmids * PAGE;
		map(queues[i].fd, registration.handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED,
		    place[i]);
	}
	CHECK(gpu.out_nr_vmids <= 32 && gpu.out_nr_vmids < CONTEXTS);
	CHECK_OK(try_ioctl(queues[0].fd, PINMAP_GPU_COUNTERS, &before));
	for (int i = 0; i < CONTEXTS; i++) {
		queue_push(&queues[i], GPU_FILL, place[i], PAGE, i + 1);
		queue_finish(&queues[i]);
		CHECK(bytes_are(memory[i], PAGE, i + 1));
	}
	CHECK_OK(try_ioctl(queues[0].fd, PINMAP_GPU_COUNTERS, &after));
	CHECK(after.out_vmid_binds - before.out_vmid_binds >= CONTEXTS);
}

/*
 * 64 contexts with unfinished work share the VMIDs, 960 kernels each. The test takes seconds, but a
 * minute where a busy host lets each access to a register wait.
 */
TEST(contexts_take_turns, .seconds = 300)
{
	enum { CONTEXTS = 64, ROUNDS = 16, BATCH = 60 };
	static struct gpu_queue queues[CONTEXTS];
	static float *memory[CONTEXTS];
	struct pinmap_gpu_counters before = { .size = sizeof(before) }, after = before;
	unsigned int total = rounds(ROUNDS);

	for (int i = 0; i < CONTEXTS; i++) {
		queues[i] = queue_new(open_gpu());
		memory[i] = (float *)anon(1);
		memset(memory[i], 0, PAGE);
		register_memory(queues[i].fd, memory[i], PAGE, WRITE);
	}
	CHECK_OK(try_ioctl(queues[0].fd, PINMAP_GPU_COUNTERS, &before));
	for (unsigned int round = 0; round < total; round++) {
		for (int i = 0; i < CONTEXTS; i++) {
			if (round)
				CHECK_OK(try_queue_wait(&queues[i], slow(150000)));
			for (int packet = 0; packet < BATCH; packet++)
				queue_push(&queues[i], gpu_launch(GPU_INCREMENT_F32),
					   (uintptr_t)memory[i], 1024, 0);
			queue_submit(&queues[i]);
		}
	}
	for (int i = 0; i < CONTEXTS; i++) {
		CHECK_OK(try_queue_wait(&queues[i], slow(150000)));
		CHECK_EQ(memory[i][0], total * BATCH);
		CHECK_EQ(memory[i][1023], total * BATCH);
	}
	CHECK_OK(try_ioctl(queues[0].fd, PINMAP_GPU_COUNTERS, &after));
	diag("VMIDs given %llu times, slots %llu times, for %u batches",
	     (unsigned long long)(after.out_vmid_binds - before.out_vmid_binds),
	     (unsigned long long)(after.out_binds - before.out_binds), total * CONTEXTS);
}

/* A program that is killed in the midst of everything leaves nothing. */
TEST(kill, .seconds = 60, .faults = true)
{
	long long pins = pins_held();

	for (unsigned int i = 0; i < rounds(20); i++) {
		struct gate ready = gate_new();
		pid_t pid = fork();

		if (pid == 0) {
			int fd = open_gpu();
			struct gpu_queue queue = queue_new(fd);
			struct gpu_memory vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, MIB);
			char *memory = anon(256);

			register_memory(fd, memory, MIB, WRITE);
			gate_open(&ready);
			for (;;) {
				queue_push(&queue, GPU_COPY, (uintptr_t)memory,
					   (uintptr_t)vram.addr, MIB);
				queue_push(&queue, gpu_launch(GPU_SPIN), 5000000, 0, 0);
				queue_finish(&queue);
			}
		}
		gate_pass(&ready);
		sleep_ms(i * 3 % 25);
		kill_now(pid);
		close(ready.ends[0]);
		close(ready.ends[1]);
	}
	CHECK_PINS_SOON(pins);
}
