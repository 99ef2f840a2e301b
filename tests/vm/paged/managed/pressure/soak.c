// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Eight processes work on twice as much managed memory as there is VRAM, while everything happens
 * to it that happens to memory.
 *
 * In the first half of each page the device counts, in floats, and behind it the CPU does, in one
 * word. The process knows what each page must have.
 */
#define _GNU_SOURCE
#include "../told.h"

#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pins.h"
#include "pressure.h"
#include "process.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	USERS = 8,
	ROOM = 16 << 20,
	EACH = 2 * ROOM / USERS,
	PAGES = EACH / PAGE,
	/* Floats of a page that the device counts in. */
	FLOATS = PAGE / 2 / 4,
	/* Packets of a step at most, which the ring has room for with what follows them. */
	PACKETS = 24,
	STEPS = 20,
};

/**
 * struct user - a process and its memory
 * @fd: its context
 * @queue: a queue in it
 * @memory: EACH bytes
 * @seed: of what it does
 * @device: how often the device has counted in each page
 * @cpu: how often the CPU has
 */
struct user {
	int fd;
	struct gpu_queue queue;
	char *memory;
	unsigned int seed;
	uint32_t device[PAGES];
	uint32_t cpu[PAGES];
};

/* Counts of what all of them have done, for the reader of the results. */
static struct sums {
	unsigned long steps, lives, kills, forks, moved, home;
} *sums;

static void count(unsigned long *sum, unsigned long more)
{
	__atomic_fetch_add(sum, more, __ATOMIC_RELAXED);
}

/* A random number below @limit. */
static unsigned int pick(struct user *user, unsigned int limit)
{
	return rand_r(&user->seed) % limit;
}

/* Some pages that follow each other: the first, and how many, but no more than @most. */
struct part {
	unsigned int first, count;
};

static struct part pick_part(struct user *user, unsigned int most)
{
	struct part part = { .count = 1 + pick(user, most) };

	part.first = pick(user, PAGES - part.count + 1);
	return part;
}

static char *at(const struct user *user, unsigned int page)
{
	return user->memory + page * PAGE;
}

static volatile uint32_t *word_of(const struct user *user, unsigned int page)
{
	return (volatile uint32_t *)(at(user, page) + PAGE / 2);
}

static void check_part(const struct user *user, struct part part)
{
	for (unsigned int page = part.first; page < part.first + part.count; page++) {
		const float *floats = (const float *)at(user, page);

		CHECK_EQ(*word_of(user, page), user->cpu[page]);
		for (int i = 0; i < FLOATS; i++)
			if (floats[i] != user->device[page])
				FAIL("float %d of page %u is %g instead of %u", i, page,
				     floats[i], user->device[page]);
		CHECK(bytes_are(at(user, page) + PAGE / 2 + 4, PAGE / 2 - 4, 0));
	}
}

/* Both count in some pages at the same time. */
static void count_by_both(struct user *user)
{
	struct part device = pick_part(user, PACKETS), cpu = pick_part(user, PACKETS);
	unsigned int stride = pick(user, 2) ? 1 : 1 + pick(user, PAGES / PACKETS);

	for (unsigned int i = 0; i < device.count; i++) {
		unsigned int page = (device.first + i * stride) % PAGES;

		queue_push(&user->queue, gpu_launch(GPU_INCREMENT_F32),
			   (uintptr_t)at(user, page), FLOATS, 0);
		user->device[page]++;
	}
	queue_submit(&user->queue);
	for (unsigned int i = 0; i < cpu.count; i++) {
		unsigned int page = (pick(user, 2) ? device.first + i : cpu.first + i) % PAGES;

		++*word_of(user, page);
		user->cpu[page]++;
	}
}

static void finish(struct user *user)
{
	queue_finish_within(&user->queue, slow(240000));
}

/* The device copies pages, as many as move at once and more. */
static void copy_pages(struct user *user)
{
	struct part from = pick_part(user, PAGES / 2);
	unsigned int to = from.first + from.count;

	if (to + from.count > PAGES)
		to = from.first < from.count ? PAGES : from.first - from.count;
	if (to == PAGES)
		return;
	queue_push(&user->queue, GPU_COPY, (uintptr_t)at(user, from.first),
		   (uintptr_t)at(user, to), (uint64_t)from.count * PAGE);
	finish(user);
	memcpy(&user->device[to], &user->device[from.first], from.count * 4);
	memcpy(&user->cpu[to], &user->cpu[from.first], from.count * 4);
}

static void forget(struct user *user)
{
	struct part part = pick_part(user, PAGES / 4);

	SYS(madvise(at(user, part.first), part.count * PAGE, MADV_DONTNEED));
	memset(&user->device[part.first], 0, part.count * 4);
	memset(&user->cpu[part.first], 0, part.count * 4);
}

static void ask_to_move(struct user *user, bool home)
{
	struct part part = pick_part(user, PAGES);
	struct pinmap_prefetch args = prefetch(user->fd, home ? PINMAP_PREFETCH_HOST : 0,
					       at(user, part.first), part.count * PAGE);

	count(home ? &sums->home : &sums->moved, args.out_moved / PAGE);
}

static void give_advice(struct user *user)
{
	static const uint32_t all[] = { 0, 0, PREFER_DEVICE, PREFER_HOST, ACCESSED_BY,
					READ_MOSTLY };
	struct part part = pick_part(user, PAGES);

	advise(user->fd, at(user, part.first), part.count * PAGE,
	       all[pick(user, ARRAY_SIZE(all))]);
}

/* A mapping for EACH bytes, of which the first half may be huge pages. */
static char *new_memory(void)
{
	char *memory = small_blocks(EACH / HUGE);

	SYS(madvise(memory, EACH / 2, MADV_HUGEPAGE));
	return memory;
}

static void move_elsewhere(struct user *user)
{
	char *there = address_space(EACH, HUGE);

	/* the areas of both halves */
	for (unsigned int half = 0; half < 2; half++) {
		char *from = user->memory + half * EACH / 2;

		SYS(mremap(from, EACH / 2, EACH / 2, MREMAP_MAYMOVE | MREMAP_FIXED,
			   there + half * EACH / 2));
	}
	user->memory = there;
}

/* A child has what its parent had when it was made, whatever both do then. */
static void fork_and_look(struct user *user)
{
	struct part part = pick_part(user, 32);
	pid_t pid = SYS(fork());

	if (pid == 0) {
		check_part(user, part);
		for (unsigned int page = part.first; page < part.first + part.count; page++)
			*word_of(user, page) = ~0u;
		_exit(0);
	}
	count(&sums->forks, 1);
	count_by_both(user);
	finish(user);
	join(pid);
	check_part(user, part);
}

/* A child uses the device itself, and is killed in the midst of that, or ends. */
static void fork_and_work(struct user *user)
{
	bool killed = pick(user, 2);
	struct gate begun = gate_new();
	pid_t pid = SYS(fork());

	if (pid == 0) {
		user->fd = open_gpu();
		user->queue = queue_new(user->fd);
		manage_all(user->fd);
		do {
			count_by_both(user);
			finish(user);
			check_part(user, pick_part(user, 8));
			gate_open(&begun);
		} while (killed);
		_exit(0);
	}
	count(&sums->forks, 1);
	count_by_both(user);
	finish(user);
	gate_pass(&begun);
	if (killed)
		kill_now(pid);
	else
		join(pid);
	close(begun.ends[0]);
	close(begun.ends[1]);
}

static void step(struct user *user)
{
	struct part part = pick_part(user, PAGES / 8);
	char *addr = at(user, part.first);

	switch (pick(user, 20)) {
	case 0:
		copy_pages(user);
		break;
	case 1:
		forget(user);
		break;
	case 2:
	case 3:
		ask_to_move(user, false);
		break;
	case 4:
		ask_to_move(user, true);
		break;
	case 5:
		give_advice(user);
		break;
	case 6:
		move_elsewhere(user);
		break;
	case 7:
		SYS(mprotect(addr, part.count * PAGE, PROT_READ));
		SYS(mprotect(addr, part.count * PAGE, PROT_READ | PROT_WRITE));
		break;
	case 8:
		SYS(madvise(addr, part.count * PAGE, MADV_PAGEOUT));
		break;
	case 9:
		fork_and_look(user);
		break;
	case 10:
		fork_and_work(user);
		break;
	}
	count_by_both(user);
	finish(user);
	check_part(user, pick_part(user, 8));
	count(&sums->steps, 1);
}

/* The life of a process: it ends with all sums right, or when it is killed after @kill steps. */
static void live(unsigned int seed, unsigned int kill, const struct gate *reached)
{
	static struct user user;

	user = (struct user){ .seed = seed, .memory = new_memory(), .fd = open_gpu() };
	user.queue = queue_new(user.fd);
	manage_all(user.fd);
	for (unsigned int done = 0; done < STEPS || kill; done++) {
		if (kill && done == kill)
			gate_open(reached);
		step(&user);
	}
	check_part(&user, (struct part){ 0, PAGES });
	test_end(EXIT_PASS);
}

/* Has processes live one after the other; kills every other one. */
static void manage_lives(unsigned int number, unsigned int lives)
{
	for (unsigned int life = 0; life < lives; life++) {
		unsigned int seed = number * 1000 + life, kill = life % 2 ? 1 + seed % 7 : 0;
		struct gate reached = gate_new();
		pid_t pid = SYS(fork());

		if (pid == 0)
			live(seed, kill, &reached);
		if (kill) {
			gate_pass(&reached);
			kill_now(pid);
			count(&sums->kills, 1);
		} else {
			join(pid);
		}
		count(&sums->lives, 1);
		close(reached.ends[0]);
		close(reached.ends[1]);
	}
	test_end(EXIT_PASS);
}

/*
 * All sums are right, and all VRAM and memory is given back. PINMAP_TEST_SCALE makes it long: 20
 * minutes on the kernel `debug` are a scale of about 45.
 */
TEST(soak, .seconds = 600)
{
	int other = open_gpu();
	long long pins = pins_held(), anonymous;
	unsigned int lives = rounds(3) + 1;
	uint64_t before;
	pid_t pids[USERS];

	if (!(get_info(other).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel lets no driver follow the memory of programs");
	sums = SYS(mmap(NULL, sizeof(*sums), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			-1, 0));
	swap_begin();
	leave_room(other, ROOM);
	before = vram_free(other);
	anonymous = file_field("/proc/vmstat", "nr_anon_pages");
	for (unsigned int number = 0; number < USERS; number++) {
		pids[number] = SYS(fork());
		if (pids[number] == 0)
			manage_lives(number, lives);
	}
	for (unsigned int number = 0; number < USERS; number++)
		join(pids[number]);
	diag("%lu lives, %lu of them killed; %lu steps, %lu forks; asked for, %lu pages went to "
	     "VRAM and %lu home",
	     sums->lives, sums->kills, sums->steps, sums->forks, sums->moved, sums->home);
	CHECK(sums->moved != 0);
	CHECK(WAIT_FOR(5000, vram_free(other) == before));
	CHECK_PINS(pins);
	/* the kernel adds up some pages late */
	CHECK(WAIT_FOR(5000, file_field("/proc/vmstat", "nr_anon_pages") < anonymous + 256));
	swap_end();
}
