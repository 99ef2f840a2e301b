// SPDX-License-Identifier: MIT OR Apache-2.0
/* More managed memory in use than there is VRAM. */
#define _GNU_SOURCE
#include "../told.h"

#include "edu.h"
#include "memory.h"
#include "process.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROOM = 8 << 20, WORK = 3 * ROOM, EACH = 1 << 20 };

/* Fills memory piece by piece, each with another byte. */
static void fill_all(struct gpu_queue *queue, char *memory, size_t length, unsigned char byte)
{
	for (size_t at = 0; at < length; at += EACH)
		fill(queue, memory + at, EACH, byte + at / EACH);
}

static void check_all(const char *memory, size_t length, unsigned char byte)
{
	for (size_t at = 0; at < length; at += EACH)
		CHECK(bytes_are(memory + at, EACH, (unsigned char)(byte + at / EACH)));
}

/* Work over three times the VRAM comes to its end, with the right contents, again and again. */
TEST_EACH(crowded_work, page_sizes, .seconds = 120)
{
	char *memory = small_blocks(WORK / HUGE);
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage(fd, memory, WORK);
	struct pinmap_statistics seen;

	SYS(madvise(memory, WORK, row->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	leave_room(other, ROOM);
	for (unsigned int i = 0; i < 3; i++) {
		fill_all(&queue, memory, WORK, 10 * i);
		CHECK(on_device(fd, memory, WORK) <= ROOM + HUGE);
	}
	check_all(memory, WORK, 20);
	seen = statistics(fd, handle);
	CHECK(seen.out_home_evicted > 0);
	CHECK(seen.out_refaults > 0);
	CHECK(seen.out_in_touched > ROOM);
}

/* A kernel that reads and writes numbers, over more than fits. */
TEST(crowded_kernel, .seconds = 120)
{
	char *memory = small_blocks(WORK / HUGE);
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	float *numbers = (float *)memory;

	manage_all(fd);
	leave_room(other, ROOM);
	for (size_t i = 0; i < WORK / 4; i++)
		numbers[i] = i % 1000;
	for (unsigned int i = 0; i < 2; i++)
		queue_push(&queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)numbers, WORK / 4, 0);
	queue_finish_within(&queue, slow(60000));
	for (size_t i = 0; i < WORK / 4; i++)
		CHECK(numbers[i] == i % 1000 + 2);
}

/* Several contexts, each of which needs two places at once for each packet, all come to an end. */
TEST(crowded_by_several, .seconds = 200)
{
	enum { USERS = 4, ROUNDS = 3 };
	int other = open_gpu();
	pid_t pids[USERS];

	if (!(get_info(other).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel lets no driver follow the memory of programs");
	leave_room(other, ROOM);
	for (unsigned int user = 0; user < USERS; user++) {
		pids[user] = fork();
		if (pids[user])
			continue;
		char *from = small_blocks(2 * ROOM / HUGE), *to = from + ROOM;
		int fd = open_gpu();
		struct gpu_queue queue = queue_new(fd);

		manage_all(fd);
		for (unsigned int i = 0; i < ROUNDS; i++) {
			unsigned char byte = user * 16 + i;

			memset(from, byte, ROOM);
			for (size_t at = 0; at < ROOM; at += HUGE)
				queue_push(&queue, GPU_COPY, (uintptr_t)from + at,
					   (uintptr_t)to + at, HUGE);
			queue_finish_within(&queue, slow(120000));
			CHECK(bytes_are(to, ROOM, byte));
		}
		test_end(EXIT_PASS);
	}
	for (unsigned int user = 0; user < USERS; user++)
		join(pids[user]);
}

/* One packet that needs more places at once than there is room for comes to an end. */
TEST(crowded_packet, .seconds = 120)
{
	char *from = small_blocks(2 * WORK / HUGE), *to = from + WORK;
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	manage_all(fd);
	leave_room(other, ROOM);
	write_pattern(from, WORK, 77);
	copy(&queue, from, to, WORK);
	CHECK(has_pattern(to, WORK, 77));
	CHECK(has_pattern(from, WORK, 77));
}

/* PREFETCH of more than fits says so, and evicts nothing of what it has moved. */
TEST_EACH(crowded_prefetch, page_sizes, .seconds = 60)
{
	char *memory = small_blocks(WORK / HUGE);
	int fd = open_gpu(), other = open_gpu();
	uint64_t handle = manage(fd, memory, WORK);
	struct pinmap_prefetch moved;

	SYS(madvise(memory, WORK, row->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	leave_room(other, ROOM);
	write_pattern(memory, WORK, 5);
	moved = prefetch(fd, 0, memory, WORK);
	CHECK(moved.out_moved > 0 && moved.out_no_room > 0);
	CHECK_EQ(moved.out_moved + moved.out_no_room, WORK);
	CHECK_EQ(on_device(fd, memory, WORK), moved.out_moved);
	CHECK_EQ(statistics(fd, handle).out_home_evicted, 0);
	CHECK(has_pattern(memory, WORK, 5));
}

/* PREFETCH makes room of what was moved before. */
TEST(crowded_prefetch_evicts, .seconds = 60)
{
	char *memory = small_blocks(2 * ROOM / HUGE);
	int fd = open_gpu(), other = open_gpu();
	uint64_t handle = manage(fd, memory, 2 * ROOM), first;

	leave_room(other, ROOM);
	write_pattern(memory, 2 * ROOM, 6);
	first = prefetch(fd, 0, memory, ROOM).out_moved;
	CHECK(first > 0);
	CHECK(prefetch(fd, 0, memory + ROOM, ROOM).out_moved >= first / 2);
	CHECK(statistics(fd, handle).out_home_evicted > 0);
	CHECK(on_device(fd, memory, ROOM) < first);
	CHECK(has_pattern(memory, 2 * ROOM, 6));
}

/* Memory that was evicted again and again stays on the host, where the device reaches it. */
TEST(crowded_stays_at_home, .seconds = 120)
{
	char *memory = small_blocks(WORK / HUGE);
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	unsigned int crowded = 0;

	manage_all(fd);
	leave_room(other, ROOM);
	for (unsigned int i = 0; i < 8; i++)
		fill_all(&queue, memory, WORK, 10 * i);
	for (char *at = memory; at < memory + WORK; at += HUGE) {
		struct pinmap_run run = tell_page(fd, at);

		if (run.rule != PINMAP_RULE_CROWDED)
			continue;
		CHECK_EQ(run.place, ON_HOST);
		CHECK_EQ(run.access, PINMAP_RUN_READ | PINMAP_RUN_WRITE);
		crowded++;
	}
	CHECK(crowded > 0);
	check_all(memory, WORK, 70);
}

/* The oldest goes first: what the device was given last is there still. */
TEST(crowded_by_age, .seconds = 60)
{
	char *memory = small_blocks(WORK / HUGE), *last = memory + WORK - HUGE;
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	manage_all(fd);
	leave_room(other, ROOM);
	for (char *at = memory; at < memory + WORK; at += HUGE)
		fill(&queue, at, HUGE, 0x61);
	CHECK(on_device(fd, last, HUGE) > 0);
	CHECK_EQ(on_device(fd, memory, HUGE), 0);
	CHECK_EQ(tell_page(fd, memory).rule, PINMAP_RULE_EVICTED);
}

/* Allocations of programs go before managed pages, which go home. */
TEST(crowded_by_allocation, .seconds = 60)
{
	char *memory = small_blocks(ROOM / HUGE);
	int fd = open_gpu(), other = open_gpu();
	uint64_t handle = manage(fd, memory, ROOM), moved;
	struct gpu_memory vram;

	leave_room(other, ROOM);
	write_pattern(memory, ROOM, 8);
	moved = prefetch(fd, 0, memory, ROOM).out_moved;
	CHECK(moved > ROOM / 2);
	vram = gpu_alloc(other, PINMAP_ALLOC_VRAM, ROOM / 2);
	memset(vram.addr, 0x62, ROOM / 2);
	CHECK(statistics(fd, handle).out_home_evicted > 0);
	CHECK(has_pattern(memory, ROOM, 8));
	CHECK(bytes_are(vram.addr, ROOM / 2, 0x62));
}

/*
 * An allocation that cannot succeed evicts nothing: more than there is, or more than fits between
 * what programs have. One that can evicts what is in its place, and not what is older elsewhere.
 */
TEST(crowded_in_one_place, .seconds = 60)
{
	enum { MOST = 1024 };
	static uint64_t handles[MOST];
	char *memory = small_blocks(3);
	int fd = open_gpu(), other = open_gpu();
	uint64_t whole = vram_free(other);
	struct pinmap_alloc args;
	/* twice the part that is kept for page tables, which is in one piece */
	int count = 0, wanted = whole / HUGE / 8;

	manage(fd, memory, 3 * HUGE);
	write_pattern(memory, 3 * HUGE, 9);
	while (count < MOST && !try_alloc(other, PINMAP_ALLOC_VRAM, HUGE, &args))
		handles[count++] = args.out_handle;
	CHECK(wanted > 10 && count > 2 * wanted + 4);
	for (int i = 0; i < 6; i += 2)
		release(other, handles[i]);
	MOVE_THERE(fd, memory, 3 * HUGE);

	CHECK_ERR(ENOSPC, try_alloc(other, PINMAP_ALLOC_VRAM, (wanted / 2 - 1) * HUGE, &args));
	for (int i = 6; i < count; i += 2)
		release(other, handles[i]);
	CHECK_ERR(ENOSPC, try_alloc(other, PINMAP_ALLOC_VRAM, (size_t)1 << 40, &args));
	CHECK_ERR(ENOSPC, try_alloc(other, PINMAP_ALLOC_VRAM, wanted * HUGE, &args));
	CHECK_EQ(on_device(fd, memory, 3 * HUGE), 3 * HUGE);

	for (int i = 3; i <= wanted + 1; i += 2)
		release(other, handles[i]);
	CHECK_OK(try_alloc(other, PINMAP_ALLOC_VRAM, wanted * HUGE, &args));
	CHECK_EQ(on_device(fd, memory, HUGE), HUGE);
	CHECK_EQ(on_device(fd, memory + HUGE, 2 * HUGE), 0);
	CHECK(has_pattern(memory, 3 * HUGE, 9));
}

struct change {
	char *memory;
	volatile bool ended;
};

static void *forbid_writing(void *argument)
{
	struct change *change = argument;

	mprotect(change->memory, HUGE, PROT_READ);
	change->ended = true;
	gpu_set_register(GPU_DELAY_NS, 0);
	return NULL;
}

/*
 * A program that needs room does not wait for the mmap lock of another whose memory is in the way:
 * here mprotect() holds it, and waits for the device. That memory stays, and there is no room.
 */
TEST(crowded_beside_a_held_lock, .seconds = 20)
{
	enum { TRIES = 4 };
	char *memory = small_blocks(ROOM / HUGE);
	struct change change = { .memory = small_blocks(1) };
	int fd = open_gpu(), other = open_gpu(), error;
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_alloc args;
	unsigned int tries = 0;
	uint64_t invalidates;
	pthread_t thread;
	bool in_time;

	manage(fd, memory, ROOM);
	manage_host(fd, change.memory, HUGE);
	leave_room(other, ROOM);
	write_pattern(memory, ROOM, 10);
	do {
		CHECK(tries++ < TRIES);
		prefetch(fd, 0, memory, ROOM);
		change.ended = false;
		SYS(mprotect(change.memory, HUGE, PROT_READ | PROT_WRITE));
		fill(&queue, change.memory, HUGE, 1);
		invalidates = gpu_register(GPU_INVALIDATES);
		gpu_set_register(GPU_DELAY_NS, 1000000000);
		CHECK_OK(-pthread_create(&thread, NULL, forbid_writing, &change));
		while (gpu_register(GPU_INVALIDATES) == invalidates)
			;
		error = try_alloc(other, PINMAP_ALLOC_VRAM, ROOM / 2, &args);
		in_time = !change.ended;
		CHECK_OK(-pthread_join(thread, NULL));
		if (!error)
			release(other, args.out_handle);
	} while (!in_time);
	CHECK_EQ(error, -ENOSPC);
	CHECK(on_device(fd, memory, ROOM) > ROOM / 2);
	CHECK_OK(try_alloc(other, PINMAP_ALLOC_VRAM, ROOM / 2, &args));
	CHECK(has_pattern(memory, ROOM, 10));
}

/* A program that is killed in the midst of that is gone at once, and gives everything back. */
TEST(crowded_killed, .seconds = 60)
{
	int other = open_gpu();
	struct gate begun = gate_new();
	uint64_t before;
	pid_t pid;

	if (!(get_info(other).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel lets no driver follow the memory of programs");
	leave_room(other, ROOM);
	before = vram_free(other);
	pid = fork();
	if (pid == 0) {
		char *memory = small_blocks(WORK / HUGE);
		int fd = open_gpu();
		struct gpu_queue queue = queue_new(fd);

		manage_all(fd);
		fill_all(&queue, memory, WORK, 1);
		gate_open(&begun);
		for (;;)
			fill_all(&queue, memory, WORK, 2);
	}
	gate_pass(&begun);
	kill_now(pid);
	CHECK(WAIT_FOR(5000, vram_free(other) == before));
}
