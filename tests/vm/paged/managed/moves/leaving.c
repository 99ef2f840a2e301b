// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Pages that leave the device while somebody else frees, moves or touches them.
 *
 * A page may have many owners after fork(). While it goes home, the kernel takes it from the page
 * table of each, one after the other, and puts the new page there later. Whoever frees its part in
 * between must take nothing from the others. What would be left behind in one of them belongs to
 * another program soon: so each owner's bytes are compared, through the CPU or through the device,
 * and the frames and AnonPages are counted afterwards.
 */
#define _GNU_SOURCE
#include "../moving.h"

#include "alloc.h"
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "process.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	/* Children that have the pages, too; the first frees them, the last compares. */
	CHILDREN = 8,
	/* Blocks of 2 MiB, each of which leaves once. */
	ROUNDS = 6,
	/* Counters of the system are exact but for this: other programs run, too. */
	SLACK_KB = 8192,
};

/**
 * struct counts - what has to be as it was
 * @fd: a context
 * @vram: bytes of VRAM that are free
 * @anon: KiB of anonymous memory in the system
 */
struct counts {
	int fd;
	uint64_t vram;
	long long anon;
};

static struct counts counts_now(int fd)
{
	return (struct counts){ .fd = fd,
				.vram = vram_free(fd),
				.anon = file_field("/proc/meminfo", "AnonPages:") };
}

static void check_counts(const struct counts *before)
{
	CHECK(WAIT_FOR(10000, vram_free(before->fd) == before->vram));
	CHECK(WAIT_FOR(10000, llabs(file_field("/proc/meminfo", "AnonPages:") - before->anon) <=
				      SLACK_KB));
}

/* How the first child lets go of a block. */
enum leave { DONTNEED, UNMAP, END };

static const struct {
	const char *name;
	enum leave leave;
	bool huge, prefetched, by_device, as_user;
} forked[] = {
	{ "dontneed", DONTNEED, true, false, false, false },
	{ "dontneed_small", DONTNEED, false, false, false, false },
	{ "dontneed_user", DONTNEED, true, false, true, true },
	{ "dontneed_prefetch", DONTNEED, true, true, true, false },
	{ "munmap", UNMAP, true, false, true, true },
	{ "munmap_prefetch", UNMAP, true, true, false, false },
	{ "end", END, true, false, false, true },
	{ "end_prefetch", END, true, true, true, false },
};

/* Memory that parent and children share. */
struct stage {
	/* The round for which the first child begins. */
	volatile int go;
};

static void leave_block(enum leave leave, char *block)
{
	if (leave == DONTNEED)
		SYS(madvise(block, HUGE, MADV_DONTNEED));
	else if (leave == UNMAP)
		SYS(munmap(block, HUGE));
	else
		_exit(0);
}

/* Frees the block of each round from @round on, up to 0.4 ms after the parent has said so. */
static void first_child(enum leave leave, struct stage *stage, const struct gate *gates,
			char *memory, int round)
{
	unsigned int seed = getpid();

	gate_open(&gates[1]);
	for (; round < ROUNDS; round++) {
		while (stage->go <= round)
			;
		spin_ns(rand_r(&seed) % 400000);
		leave_block(leave, memory + (size_t)round * HUGE);
		gate_open(&gates[1]);
	}
	_exit(0);
}

/* Compares the block of each round, when it is told to. */
static void last_child(bool by_device, const struct gate *gates, char *memory)
{
	char *seen = anon(HUGE / PAGE);
	struct gpu_queue queue;

	if (by_device) {
		int fd = open_gpu();

		manage_all(fd);
		queue = queue_new(fd);
	}
	gate_open(&gates[1]);
	for (int round = 0; round < ROUNDS; round++) {
		char *block = memory + (size_t)round * HUGE;

		gate_pass(&gates[0]);
		/* Each second block is compared by the device, as long as it is still there. */
		if (by_device && round % 2 == 0) {
			copy(&queue, block, seen, HUGE);
			CHECK(has_pattern(seen, HUGE, 100 + round));
		}
		CHECK(has_pattern(block, HUGE, 100 + round));
		gate_open(&gates[1]);
	}
	_exit(0);
}

static void be_a_user(void)
{
	become_user(true);
	/* So that it can still read its own pagemap. */
	SYS(prctl(PR_SET_DUMPABLE, 1));
}

/* A child frees its part of the memory of all while the parent brings it home. */
TEST_EACH(freed_while_leaving, forked, .seconds = 120)
{
	struct stage *stage = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
				       MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	struct gate first[2] = { gate_new(), gate_new() }, last[2] = { gate_new(), gate_new() };
	struct gate never = gate_new();
	size_t length = (size_t)ROUNDS * HUGE;
	pid_t children[CHILDREN];
	struct counts before;
	char *memory;
	int fd;

	if (row->as_user)
		be_a_user();
	fd = open_gpu();
	manage_all(fd);
	before = counts_now(fd);
	memory = small_blocks(ROUNDS);
	SYS(madvise(memory, length, row->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	for (int round = 0; round < ROUNDS; round++)
		write_pattern(memory + (size_t)round * HUGE, HUGE, 100 + round);
	prefetch_all(fd, memory, length, 0);
	for (int i = 0; i < CHILDREN; i++) {
		children[i] = SYS(fork());
		if (children[i] != 0)
			continue;
		if (i == 0)
			first_child(row->leave, stage, first, memory, 0);
		if (i == CHILDREN - 1)
			last_child(row->by_device, last, memory);
		gate_pass(&never);
	}
	gate_pass(&first[1]);
	gate_pass(&last[1]);
	for (int round = 0; round < ROUNDS; round++) {
		char *block = memory + (size_t)round * HUGE;

		stage->go = round + 1;
		if (row->prefetched)
			prefetch(fd, PINMAP_PREFETCH_HOST, block, HUGE);
		else
			*(volatile char *)block;
		if (row->leave == END) {
			join(children[0]);
			children[0] = SYS(fork());
			if (children[0] == 0)
				first_child(row->leave, stage, first, memory, round + 1);
		}
		gate_pass(&first[1]);
		gate_open(&last[0]);
		gate_pass(&last[1]);
		CHECK(has_pattern(block, HUGE, 100 + round));
	}
	stage->go = ROUNDS + 1;
	for (int i = 0; i < CHILDREN; i++) {
		if (i == 0 || i == CHILDREN - 1)
			join(children[i]);
		else
			kill_now(children[i]);
	}
	SYS(munmap(memory, length));
	SYS(munmap(stage, PAGE));
	check_counts(&before);
	check_works();
}

/* A part of the memory, which a thread frees each time that it is told to. */
struct dropper {
	char *memory;
	uint64_t most;
	volatile int go, done;
};

static void *drop(void *argument)
{
	struct dropper *dropper = argument;
	unsigned int seed = 7;

	for (int round = 1; dropper->go >= 0; round++) {
		while (dropper->go >= 0 && dropper->go < round)
			;
		if (dropper->go < 0)
			break;
		spin_ns(rand_r(&seed) % dropper->most);
		madvise(dropper->memory, HUGE, MADV_DONTNEED);
		dropper->done = round;
	}
	return NULL;
}

/* A thread of the same process frees it. */
TEST_EACH(freed_while_leaving_by_a_thread, page_sizes, .seconds = 120)
{
	enum { TIMES = 40 };
	char *memory = block_of(row->huge);
	struct dropper dropper = { .memory = memory, .most = 100000 };
	int fd = open_managed();
	struct counts before;
	uint64_t took = 0;
	pthread_t thread;

	before = counts_now(fd);
	CHECK_OK(-pthread_create(&thread, NULL, drop, &dropper));
	for (int round = 1; round <= TIMES; round++) {
		struct pinmap_prefetch args = {};
		uint64_t begun;

		write_pattern(memory, HUGE, round);
		prefetch(fd, 0, memory, HUGE);
		dropper.go = round;
		begun = now_ns();
		args = prefetch(fd, PINMAP_PREFETCH_HOST, memory, HUGE);
		CHECK(args.out_moved <= HUGE);
		took += now_ns() - begun;
		while (dropper.done != round)
			;
		CHECK(bytes_are(memory, HUGE, 0));
		SYS(madvise(memory, HUGE, MADV_DONTNEED));
		/* Later rounds are as long as it takes to go home. */
		dropper.most = took / round + 20000;
	}
	dropper.go = -1;
	CHECK_OK(-pthread_join(thread, NULL));
	check_counts(&before);
	check_works();
}

/*
 * One has a block mapped by small entries go home together with another one. Its child has both at
 * an address that is not a multiple of 2 MiB, and touches where they meet. Nobody waits for a page
 * while others wait for one that it has.
 */
TEST(touched_while_leaving, .seconds = 120)
{
	enum { TIMES = 4 };
	char *there = address_space(4 * HUGE, HUGE);
	struct stage *stage = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
				       MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	int fd = open_managed();

	for (int round = 1; round <= TIMES; round++) {
		struct gate ready = gate_new();
		char *memory = small_blocks(2);
		struct call *call;
		pid_t pid;

		SYS(madvise(memory, 2 * HUGE, MADV_HUGEPAGE));
		write_pattern(memory, 2 * HUGE, round);
		MOVE_THERE(fd, memory, 2 * HUGE);
		stage->go = 0;
		pid = SYS(fork());
		if (pid == 0) {
			unsigned int seed = getpid();

			SYS(mremap(memory, 2 * HUGE, 2 * HUGE, MREMAP_MAYMOVE | MREMAP_FIXED,
				   there + PAGE));
			gate_open(&ready);
			while (!stage->go)
				;
			spin_ns(rand_r(&seed) % 1500000);
			*(volatile char *)(there + PAGE + HUGE);
			CHECK(has_pattern(there + PAGE, 2 * HUGE, round));
			_exit(0);
		}
		gate_pass(&ready);
		/* The second one is mapped by small entries from now on. */
		SYS(mprotect(memory + HUGE + HUGE / 2, PAGE, PROT_READ));
		SYS(mprotect(memory + HUGE + HUGE / 2, PAGE, PROT_READ | PROT_WRITE));
		stage->go = 1;
		call = begin_call(fd, PINMAP_PREFETCH_HOST, memory, 2 * HUGE);
		CHECK(WAIT_FOR(30000, call->ended));
		CHECK_OK(end_call(call));
		join(pid);
		CHECK(has_pattern(memory, 2 * HUGE, round));
		SYS(munmap(memory, 2 * HUGE));
	}
	check_works();
}

static const struct {
	const char *name;
	bool huge, forked, moved, dev_zero;
} whose[] = {
	{ "moved", true, false, true },
	{ "moved_small", false, false, true },
	{ "of_a_child", true, true, false },
	{ "of_a_child_small", false, true, false },
	{ "of_a_child_moved", false, true, true },
	/* The kernel knows such memory by an offset that is not that of the file. */
	{ "of_dev_zero", false, false, false, true },
	{ "of_dev_zero_moved", false, false, true, true },
	{ "of_a_child_dev_zero", false, true, false, true },
};

/* A block of a private mapping of /dev/zero, which is anonymous memory. */
static char *block_of_dev_zero(void)
{
	int file = SYS(open("/dev/zero", O_RDWR | O_CLOEXEC));
	char *memory = SYS(mmap(address_space(HUGE, HUGE), HUGE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_FIXED, file, 5 * PAGE));

	SYS(close(file));
	return memory;
}

/* Eviction finds memory wherever it is, also if only a child has it any more. */
TEST_EACH(evicted, whose, .seconds = 60)
{
	struct gate ready = gate_new(), compare = gate_new();
	char *memory = row->dev_zero ? block_of_dev_zero() : block_of(row->huge);
	char *there = address_space(2 * HUGE, HUGE) + 3 * PAGE;
	int fd = open_gpu(), other = open_gpu();
	struct pinmap_alloc args;
	pid_t pid = 0;
	int error;

	manage_all(fd);
	write_pattern(memory, HUGE, 31);
	MOVE_THERE(fd, memory, HUGE);
	if (row->forked)
		pid = SYS(fork());
	if (pid == 0) {
		if (row->moved) {
			SYS(mremap(memory, HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, there));
			memory = there;
		}
		CHECK_EQ(pages_away(memory, HUGE), HUGE / PAGE);
		if (row->forked) {
			gate_open(&ready);
			gate_pass(&compare);
			CHECK_EQ(pages_away(memory, HUGE), 0);
			CHECK(has_pattern(memory, HUGE, 31));
			_exit(0);
		}
	} else {
		gate_pass(&ready);
		SYS(munmap(memory, HUGE));
	}
	do
		error = try_alloc(other, PINMAP_ALLOC_VRAM, HUGE, &args);
	while (!error);
	CHECK_EQ(error, -ENOSPC);
	if (row->forked) {
		gate_open(&compare);
		join(pid);
	} else {
		CHECK_EQ(pages_away(memory, HUGE), 0);
		CHECK(has_pattern(memory, HUGE, 31));
	}
}
