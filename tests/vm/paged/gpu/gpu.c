// SPDX-License-Identifier: MIT OR Apache-2.0
/* Paged devices: memory and queues. */
#define _GNU_SOURCE
#include "edu.h"
#include "gpu.h"
#include "memory.h"
#include "pins.h"
#include "process.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
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
	CHECK_EQ(info.out_aperture_last, GPU_END - 1);
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

/* A queue works on the memory of the process that opened the device, so no other makes one. */
TEST(queue_in_another_process)
{
	int fd = open_gpu();
	struct pinmap_queue_create args;
	pid_t pid = SYS(fork());

	if (pid == 0) {
		CHECK_ERR(EPERM, try_queue_create(fd, GPU_BOTH, 64, &args));
		_exit(0);
	}
	join(pid);
	CHECK_OK(try_queue_create(fd, GPU_BOTH, 64, &args));
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
