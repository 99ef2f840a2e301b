// SPDX-License-Identifier: MIT OR Apache-2.0
/* A preflight: PREFETCH tells what it would do, before it does anything. */
#define _GNU_SOURCE
#include "../told.h"

#include "memory.h"

#include <string.h>
#include <sys/mman.h>

static struct pinmap_prefetch preflight(int fd, uint32_t flags, const void *addr, size_t length)
{
	return prefetch(fd, flags | PINMAP_PREFETCH_PREFLIGHT, addr, length);
}

/* A preflight tells what then happens, and moves nothing. */
TEST_EACH(preflight_moves_nothing, page_sizes)
{
	char *memory = small_blocks(2);
	int fd = open_gpu();
	struct pinmap_prefetch told;
	uint64_t free;

	SYS(madvise(memory, 2 * HUGE, row->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	manage_all(fd);
	/* the second block has no pages yet */
	write_pattern(memory, HUGE, 1);
	free = vram_free(fd);
	told = preflight(fd, 0, memory, 2 * HUGE);
	CHECK_EQ(told.out_moved, 2 * HUGE);
	CHECK_EQ(on_device(fd, memory, 2 * HUGE), 0);
	CHECK_EQ(vram_free(fd), free);
	CHECK_EQ(preflight(fd, PINMAP_PREFETCH_HOST, memory, 2 * HUGE).out_there, 2 * HUGE);

	MOVE_THERE(fd, memory, HUGE);
	told = preflight(fd, 0, memory, 2 * HUGE);
	CHECK_EQ(told.out_there, HUGE);
	CHECK_EQ(told.out_moved, HUGE);
	told = preflight(fd, PINMAP_PREFETCH_HOST, memory, 2 * HUGE);
	CHECK_EQ(told.out_moved, HUGE);
	CHECK_EQ(told.out_there, HUGE);
	CHECK_EQ(on_device(fd, memory, 2 * HUGE), HUGE);
	CHECK(has_pattern(memory, HUGE, 1));
}

/* A range that is larger than VRAM, or than the budget, is told to lack the difference. */
TEST(preflight_lacks_room)
{
	enum { ROOM = 4 * HUGE, BUDGET = HUGE };
	char *memory = small_blocks(2 * ROOM / HUGE);
	int fd = open_gpu(), other = open_gpu();
	struct pinmap_prefetch told;
	uint64_t room;

	manage_all(fd);
	leave_room(other, ROOM);
	room = vram_free(fd);
	told = preflight(fd, 0, memory, 2 * ROOM);
	CHECK_EQ(told.out_moved, room);
	CHECK_EQ(told.out_no_room, 2 * ROOM - room);
	/* what others have there would go home, and what the range has there would not */
	MOVE_THERE(fd, memory, HUGE);
	told = preflight(fd, 0, memory + HUGE, 2 * ROOM - HUGE);
	CHECK_EQ(told.out_moved, room);
	told = preflight(fd, 0, memory, 2 * ROOM);
	CHECK_EQ(told.out_there, HUGE);
	CHECK_EQ(told.out_moved, room - HUGE);
	CHECK_EQ(told.out_no_room, 2 * ROOM - room);
	set_budget(fd, HUGE + BUDGET);
	told = preflight(fd, 0, memory, 2 * ROOM);
	CHECK_EQ(told.out_moved, BUDGET);
	CHECK_EQ(told.out_there + told.out_no_room, 2 * ROOM - BUDGET);
}

/*
 * PREFETCH of more than fits does what its preflight says, for parts in any order and both ways;
 * the same call again moves nothing. Preflight does not know of pages that somebody holds at the
 * moment of the call, which are few: such a turn is not looked at.
 */
TEST_EACH(preflight_is_right, page_sizes, .seconds = 200)
{
	enum { ROOM = 6, BLOCKS = 3 * ROOM, TURNS = 60 };
	char *memory = small_blocks(BLOCKS);
	int fd = open_gpu(), other = open_gpu();
	uint64_t handle = manage(fd, memory, BLOCKS * HUGE), evicted = 0;
	struct pinmap_prefetch told, done;
	uint32_t random = 1, held = 0;

	SYS(madvise(memory, BLOCKS * HUGE, row->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	write_pattern(memory, BLOCKS * HUGE, 3);
	leave_room(other, ROOM * HUGE);
	for (unsigned int turn = 0; turn < TURNS; turn++, random = random * 1664525 + 1013904223) {
		uint32_t first = (random >> 8) % BLOCKS;
		uint32_t count = (random >> 16) % (BLOCKS - first) + 1;
		uint32_t flags = random >> 31 ? PINMAP_PREFETCH_HOST : 0;
		char *part = memory + first * HUGE;

		told = preflight(fd, flags, part, count * HUGE);
		done = prefetch(fd, flags, part, count * HUGE);
		if (done.out_busy) {
			held++;
			continue;
		}
		CHECK_EQ(done.out_moved, told.out_moved);
		CHECK_EQ(done.out_there, told.out_there);
		CHECK_EQ(done.out_no_room, told.out_no_room);
		CHECK_EQ(done.out_moved + done.out_there + done.out_no_room, count * HUGE);
		if (!flags) {
			uint64_t bytes = on_device(fd, part, count * HUGE);

			CHECK_EQ(bytes, done.out_moved + done.out_there);
		}
		evicted = statistics(fd, handle).out_home_evicted;
		done = prefetch(fd, flags, part, count * HUGE);
		CHECK_EQ(done.out_moved, 0);
		CHECK_EQ(statistics(fd, handle).out_home_evicted, evicted);
	}
	CHECK(held < TURNS / 2);
	CHECK(evicted > 0);
	CHECK(has_pattern(memory, BLOCKS * HUGE, 3));
}

/* Memory that never moves is told as such; memory that is not managed is refused. */
TEST(preflight_of_others)
{
	char *file = SYS(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			      -1, 0));
	char *memory = anon(4), *stranger = anon(1);
	struct pinmap_prefetch args;
	int fd = open_gpu();

	manage(fd, memory, 4 * PAGE);
	manage(fd, file, 4 * PAGE);
	CHECK_EQ(preflight(fd, 0, file, 4 * PAGE).out_fixed, 4 * PAGE);
	CHECK_EQ(preflight(fd, 0, memory, 4 * PAGE).out_moved, 4 * PAGE);
	CHECK_ERR(ENOENT, try_prefetch(fd, PINMAP_PREFETCH_PREFLIGHT, stranger, PAGE, &args));
	CHECK_ERR(EINVAL, try_prefetch(fd, PINMAP_PREFETCH_PREFLIGHT, memory, 1, &args));
}
