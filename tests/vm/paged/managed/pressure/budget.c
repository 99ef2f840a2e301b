// SPDX-License-Identifier: MIT OR Apache-2.0
/* How much VRAM a context may take for managed memory. */
#define _GNU_SOURCE
#include "../told.h"

#include "edu.h"
#include "memory.h"
#include "pressure.h"
#include "process.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int try_budget(int fd, uint32_t flags, uint64_t bytes, struct pinmap_budget *args)
{
	*args = (struct pinmap_budget){ .size = sizeof(*args), .flags = flags, .bytes = bytes };
	return try_ioctl(fd, PINMAP_BUDGET, args);
}

static struct pinmap_budget budget(int fd)
{
	struct pinmap_budget args;

	CHECK_OK(try_budget(fd, 0, 0, &args));
	return args;
}

/* At first there is no limit; what moves is used, and what is freed is not any more. */
TEST_EACH(budget_used, page_sizes)
{
	char *memory = block_of(row->huge);
	int fd = open_managed();

	CHECK_EQ(budget(fd).out_bytes, UINT64_MAX);
	CHECK_EQ(budget(fd).out_used, 0);
	CHECK(budget(fd).out_room >= HUGE);
	MOVE_THERE(fd, memory, HUGE);
	CHECK_EQ(budget(fd).out_used, HUGE);
	MOVE_HOME(fd, memory, HUGE);
	CHECK(WAIT_FOR(5000, budget(fd).out_used == 0));
	memset(memory, 1, HUGE);
	MOVE_THERE(fd, memory, HUGE);
	SYS(munmap(memory, HUGE));
	CHECK(WAIT_FOR(5000, budget(fd).out_used == 0));
}

/* PREFETCH moves as much as the budget has room for. */
TEST_EACH(budget_prefetch, page_sizes)
{
	char *memory = small_blocks(4);
	struct pinmap_prefetch moved;
	int fd = open_gpu();

	SYS(madvise(memory, 4 * HUGE, row->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	manage_all(fd);
	memset(memory, 0x71, 4 * HUGE);
	set_budget(fd, 2 * HUGE);
	moved = prefetch_all(fd, memory, 4 * HUGE, 0);
	CHECK_EQ(moved.out_moved, 2 * HUGE);
	CHECK_EQ(moved.out_no_room, 2 * HUGE);
	CHECK_EQ(budget(fd).out_used, 2 * HUGE);
	CHECK(bytes_are(memory, 4 * HUGE, 0x71));
}

/* Memory that the device touches beyond the budget is used where it is. */
TEST(budget_touched)
{
	char *memory = small_blocks(2);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x72, 2 * HUGE);
	set_budget(fd, 0);
	fill(&queue, memory, HUGE, 0x73);
	CHECK_PLACE(fd, memory, HUGE, ON_HOST, NO_ROOM);
	CHECK(bytes_are(memory, HUGE, 0x73));
	set_budget(fd, UINT64_MAX);
	fill(&queue, memory + HUGE, HUGE, 0x74);
	CHECK_PLACE(fd, memory + HUGE, HUGE, ON_DEVICE, TOUCHED);
}

/* The budget is kept while the device works on more than it has room for. */
TEST(budget_kept)
{
	char *memory = small_blocks(8);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	set_budget(fd, 3 * HUGE);
	for (unsigned int i = 0; i < 24; i++) {
		fill(&queue, memory + i % 8 * HUGE, HUGE, i);
		CHECK(budget(fd).out_used <= 3 * HUGE);
		CHECK_EQ(on_device(fd, memory, 8 * HUGE), budget(fd).out_used);
	}
	for (unsigned int i = 0; i < 8; i++)
		CHECK(bytes_are(memory + i * HUGE, HUGE, 16 + i));
}

/* Another context has a budget of its own. */
TEST(budget_of_each_context)
{
	char *memory = small_blocks(2);
	int fd = open_gpu(), other = open_gpu();

	manage_all(fd);
	manage_all(other);
	set_budget(fd, 0);
	CHECK_EQ(prefetch(fd, 0, memory, HUGE).out_no_room, HUGE);
	MOVE_THERE(other, memory, HUGE);
	CHECK_EQ(budget(other).out_used, HUGE);
	CHECK_EQ(budget(fd).out_used, 0);
}

/*
 * Two programs, of which only one has a limit, work on more than there is room for: they evict each
 * other's memory, each is right, and the limit is kept.
 */
TEST(budget_of_two_programs, .seconds = 120)
{
	enum { BLOCKS = 6, ROOM = 8 << 20 };
	static const uint64_t limits[] = { 2 * HUGE, UINT64_MAX };
	int other = open_gpu();
	struct gate ready = gate_new(), go = gate_new();
	uint64_t before;
	pid_t pids[2];

	if (!(get_info(other).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel lets no driver follow the memory of programs");
	leave_room(other, ROOM);
	before = vram_free(other);
	for (int i = 0; i < 2; i++) {
		pids[i] = SYS(fork());
		if (pids[i])
			continue;
		char *memory = small_blocks(BLOCKS);
		int fd = open_gpu();
		struct gpu_queue queue = queue_new(fd);
		uint64_t handle = manage(fd, memory, BLOCKS * HUGE);

		set_budget(fd, limits[i]);
		gate_open(&ready);
		gate_pass(&go);
		for (unsigned int turn = 0; turn < 4 * BLOCKS; turn++) {
			fill(&queue, memory + turn % BLOCKS * HUGE, HUGE, 16 * i + turn);
			CHECK(budget(fd).out_used <= limits[i]);
		}
		for (unsigned int block = 0; block < BLOCKS; block++)
			CHECK(bytes_are(memory + block * HUGE, HUGE, 16 * i + 3 * BLOCKS + block));
		CHECK(statistics(fd, handle).out_in_touched >= 2 * HUGE);
		test_end(EXIT_PASS);
	}
	for (int i = 0; i < 2; i++)
		gate_pass(&ready);
	for (int i = 0; i < 2; i++)
		gate_open(&go);
	for (int i = 0; i < 2; i++)
		join(pids[i]);
	CHECK(WAIT_FOR(5000, vram_free(other) == before));
}

/*
 * A user opens context after context, and each leaves a page in VRAM, which keeps the number by
 * which it is counted. Others still get numbers, without which they would have no room under a
 * limit; and what the user's contexts have beyond its share counts together.
 */
TEST(budget_beside_a_greedy_user, .seconds = 120)
{
	enum { CONTEXTS = 1023 };
	struct gate full = gate_new();
	pid_t greedy = fork(), other;

	if (greedy == 0) {
		char *memory = SYS(mmap(NULL, (CONTEXTS + 1) * PAGE, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		int fd;

		SYS(madvise(memory, (CONTEXTS + 1) * PAGE, MADV_NOHUGEPAGE));
		memset(memory, 0x11, (CONTEXTS + 1) * PAGE);
		become_user(true);
		for (unsigned int i = 0; i < CONTEXTS; i++) {
			fd = open_gpu();
			manage_all(fd);
			MOVE_THERE(fd, memory + i * PAGE, PAGE);
			close(fd);
		}
		fd = open_gpu();
		manage_all(fd);
		CHECK(budget(fd).out_used >= PAGE);
		gate_open(&full);
		for (;;)
			pause();
	}
	gate_pass(&full);
	other = fork();
	if (other == 0) {
		char *memory = small_blocks(2);
		struct gpu_queue queue;
		int fd;

		memory_cgroup(400 << 20, false);
		fd = open_gpu();
		queue = queue_new(fd);
		manage_all(fd);
		memset(memory, 0, 2 * HUGE);
		CHECK_EQ(budget(fd).out_used, 0);
		MOVE_THERE(fd, memory, HUGE);
		CHECK_EQ(budget(fd).out_used, HUGE);
		queue_push_add(&queue, memory + HUGE, 1, 7, 3);
		queue_finish(&queue);
		CHECK(pages_away(memory + HUGE, HUGE) > 0);
		CHECK_EQ(*(uint64_t *)(memory + HUGE), 21);
		test_end(EXIT_PASS);
	}
	join(other);
	kill_now(greedy);
}

/* Memory that is on the device when the budget is made smaller stays there. */
TEST(budget_made_smaller)
{
	char *memory = small_blocks(2);
	int fd = open_managed();

	MOVE_THERE(fd, memory, HUGE);
	set_budget(fd, PAGE);
	CHECK_EQ(on_device(fd, memory, HUGE), HUGE);
	CHECK_EQ(budget(fd).out_used, HUGE);
	CHECK_EQ(budget(fd).out_room, 0);
}

TEST(budget_arguments)
{
	char *memory = small_blocks(1);
	struct pinmap_budget args;
	int fd = open_gpu();

	CHECK_ERR(ENOENT, try_budget(fd, 0, 0, &args));
	manage(fd, memory, HUGE);
	CHECK_ERR(EINVAL, try_budget(fd, 0, 1, &args));
	CHECK_ERR(EOPNOTSUPP, try_budget(fd, 2, 0, &args));
	CHECK_EQ(budget(fd).out_bytes, UINT64_MAX);
	if (fork() == 0) {
		CHECK_ERR(EPERM, try_budget(fd, PINMAP_BUDGET_SET, 0, &args));
		test_end(EXIT_PASS);
	}
	SYS(wait(NULL));
	CHECK_EQ(budget(fd).out_bytes, UINT64_MAX);
}
