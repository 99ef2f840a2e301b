// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "moving.h"

#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const struct page_size page_sizes[2] = { { "small", false }, { "huge", true } };

struct pinmap_prefetch prefetch(int fd, uint32_t flags, const void *addr, size_t length)
{
	struct pinmap_prefetch args;

	CHECK_OK(try_prefetch(fd, flags, addr, length, &args));
	CHECK_EQ(args.out_moved + args.out_there + args.out_no_room + args.out_busy +
			 args.out_fixed,
		 length);
	return args;
}

static bool move_rest(int fd, const void *addr, size_t length, struct pinmap_prefetch *all)
{
	struct pinmap_prefetch next = prefetch(fd, 0, addr, length);

	all->out_moved += next.out_moved;
	all->out_no_room = next.out_no_room;
	all->out_busy = next.out_busy;
	all->out_fixed = next.out_fixed;
	return true;
}

struct pinmap_prefetch prefetch_all(int fd, const void *addr, size_t length, size_t busy)
{
	struct pinmap_prefetch all = prefetch(fd, 0, addr, length);

	CHECK(WAIT_FOR(5000, all.out_busy == busy ||
				     (move_rest(fd, addr, length, &all) && all.out_busy == busy)));
	return all;
}

/* The kernel may have some of the pages in its hands, to compact memory: then once more. */
static bool is_moved(int fd, uint32_t flags, const void *addr, size_t length,
		     struct pinmap_prefetch *args)
{
	*args = prefetch(fd, flags, addr, length);
	return args->out_moved + args->out_there == length;
}

void check_moves(const char *file, int line, int fd, uint32_t flags, const void *addr,
		 size_t length)
{
	struct pinmap_prefetch args;

	if (WAIT_FOR(5000, is_moved(fd, flags, addr, length, &args)))
		return;
	test_fail(file, line,
		  "of %zu bytes %llu move, %llu are there, %llu find no room, %llu are busy, "
		  "%llu fixed",
		  length, (unsigned long long)args.out_moved, (unsigned long long)args.out_there,
		  (unsigned long long)args.out_no_room, (unsigned long long)args.out_busy,
		  (unsigned long long)args.out_fixed);
}

size_t pages_away(const void *addr, size_t length)
{
	enum { MOST = 512 };
	int fd = SYS(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
	size_t pages = length / PAGE, away = 0;

	for (size_t done = 0; done < pages; done += MOST) {
		size_t count = pages - done < MOST ? pages - done : MOST;
		uint64_t entries[MOST];

		CHECK_EQ(pread(fd, entries, count * 8, ((uintptr_t)addr / PAGE + done) * 8),
			 count * 8);
		/* bit 63: present; bit 62: elsewhere */
		for (size_t i = 0; i < count; i++)
			away += entries[i] >> 62 == 1;
	}
	close(fd);
	return away;
}

void set_budget(int fd, uint64_t bytes)
{
	struct pinmap_budget args = {
		.size = sizeof(args),
		.flags = PINMAP_BUDGET_SET,
		.bytes = bytes,
	};

	CHECK_OK(try_ioctl(fd, PINMAP_BUDGET, &args));
	CHECK_EQ(args.out_bytes, bytes);
}

void leave_room(int fd, uint64_t bytes)
{
	uint64_t left = vram_free(fd);

	while (left > bytes + HUGE) {
		struct pinmap_alloc args = {
			.size = sizeof(args),
			.flags = PINMAP_ALLOC_VRAM,
			.length = (left - bytes) / HUGE * HUGE,
		};

		while (try_ioctl(fd, PINMAP_ALLOC, &args) && args.length > HUGE)
			args.length = args.length / 2 / HUGE * HUGE;
		left = vram_free(fd);
	}
	CHECK(left <= bytes + HUGE);
}

void write_pattern(void *memory, size_t length, uint32_t seed)
{
	uint32_t *words = memory;

	for (size_t i = 0; i < length / 4; i++)
		words[i] = seed + i * 2654435761u;
}

bool has_pattern(const void *memory, size_t length, uint32_t seed)
{
	const uint32_t *words = memory;

	for (size_t i = 0; i < length / 4; i++)
		if (words[i] != (uint32_t)(seed + i * 2654435761u))
			return false;
	return true;
}

char *block_of(bool huge)
{
	char *memory = small_blocks(1);

	SYS(madvise(memory, HUGE, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	return memory;
}

static void *make_call(void *argument)
{
	struct call *call = argument;

	call->error = try_prefetch(call->fd, call->flags, call->memory, call->length, &call->args);
	call->ended = true;
	return NULL;
}

struct call *begin_call(int fd, uint32_t flags, char *memory, size_t length)
{
	static struct call call;

	call = (struct call){ .fd = fd, .flags = flags, .memory = memory, .length = length };
	CHECK_OK(-pthread_create(&call.thread, NULL, make_call, &call));
	return &call;
}

int end_call(struct call *call)
{
	CHECK_OK(-pthread_join(call->thread, NULL));
	return call->error;
}

void scatter(int fd, char *memory, char *other, unsigned int pages)
{
	for (unsigned int page = 0; page < pages; page++) {
		MOVE_THERE(fd, memory + page * PAGE, PAGE);
		MOVE_THERE(fd, other + page * PAGE, PAGE);
	}
}

void break_up_vram(int fd, uint64_t (*read)(enum gpu_register offset))
{
	enum { MOST = 4096 };
	static uint64_t handles[MOST];
	struct pinmap_alloc args;
	int count = 0, error;
	uint64_t copies;

	while (!(error = try_alloc(fd, PINMAP_ALLOC_VRAM, MIB, &args)) && count < MOST)
		handles[count++] = args.out_handle;
	CHECK_EQ(error, -ENOSPC);
	CHECK(count > 4);
	for (int i = 0; i < count; i += 2)
		release(fd, handles[i]);
	/* Programs cannot allocate what is kept for page tables, and that is in one piece. */
	manage_all(fd);
	do {
		char *filler = block_of(true);

		memset(filler, 1, HUGE);
		copies = read(GPU_PAGING_DONE);
		MOVE_THERE(fd, filler, HUGE);
	} while (read(GPU_PAGING_DONE) == copies + 1);
}
