// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The part of the bench that is about memory that moves, beside explicit copies of the same memory
 * in the same round, by the device's clock.
 */
#define _GNU_SOURCE
#include "../floor/floor.h"
#include "bench.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const size_t whole = 64 << 20;
enum { LINE = 64, TURNS = 10 };

/* A case: memory that moves, and what it is measured against. */
struct row {
	const char *name;
	const char *against;
	struct samples managed, other;
};

static void print(struct row *row)
{
	char name[256];

	snprintf(name, sizeof(name), "managed/%s", row->name);
	report(name, "managed", &row->managed);
	report(name, row->against, &row->other);
}

static uint64_t now(void)
{
	struct timespec time;

	if (!least)
		return gpu_register(GPU_TIME);
	/* It counts instructions; those of others, while this thread waits, do not count. */
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

/* Moves memory in calls for so many bytes; returns the time. */
static uint64_t move(int fd, uint32_t flags, char *memory, size_t length, size_t step)
{
	struct pinmap_prefetch args;
	uint64_t start = now(), moved = 0;

	for (size_t done = 0; done < length; done += step) {
		CHECK_OK(try_prefetch(fd, flags, memory + done, step, &args));
		moved += args.out_moved;
	}
	start = now() - start;
	/* A page that is in use at that moment stays where it is. */
	if (moved < length - length / 100)
		FAIL("%llu of %zu bytes have moved", (unsigned long long)moved, length);
	return start;
}

static void advise(int fd, const void *memory, size_t length, uint32_t advice)
{
	struct pinmap_advise args = {
		.size = sizeof(args),
		.addr = (uintptr_t)memory,
		.length = length,
		.advice = advice,
	};

	CHECK_OK(try_ioctl(fd, PINMAP_ADVISE, &args));
}

static struct pinmap_residency residency(int fd, const void *memory, size_t length)
{
	struct pinmap_residency args = {
		.size = sizeof(args),
		.addr = (uintptr_t)memory,
		.length = length,
	};

	CHECK_OK(try_ioctl(fd, PINMAP_RESIDENCY, &args));
	return args;
}

/* Runs a packet; returns how long the device took. */
static uint64_t timed(struct gpu_queue *queue, volatile uint64_t *stamps, uint64_t word0,
		      uint64_t word1, uint64_t word2, uint64_t word3)
{
	queue_push(queue, GPU_TIMESTAMP, (uintptr_t)&stamps[0], 0, 0);
	queue_push(queue, word0, word1, word2, word3);
	queue_push(queue, GPU_TIMESTAMP, (uintptr_t)&stamps[1], 0, 0);
	queue_finish(queue);
	return stamps[1] - stamps[0];
}

/* The CPU reads memory, in order; returns the time. */
static uint64_t read_all(const volatile char *memory, size_t length)
{
	uint64_t start = now();

	for (size_t at = 0; at < length; at += LINE)
		(void)memory[at];
	return now() - start;
}

static char *touched(size_t length, int advice)
{
	char *memory = fresh(length, advice);

	memset(memory, 1, length);
	return memory;
}

/* Prefetches and reads of the CPU, beside copies of the same memory by packets. */
static void bench_prefetch(int fd, struct gpu_queue *queue, volatile uint64_t *stamps,
			   struct row rows[5], int advice)
{
	struct gpu_memory vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, whole);

	for (unsigned int round = 0; round <= times; round++) {
		char *memory = touched(whole, advice);
		struct registration registration;
		uint64_t ns[5], in, out;

		ns[0] = move(fd, 0, memory, whole, whole);
		ns[1] = move(fd, PINMAP_PREFETCH_HOST, memory, whole, whole);
		ns[2] = move(fd, 0, memory, whole, HUGE);
		ns[3] = move(fd, PINMAP_PREFETCH_HOST, memory, whole, HUGE);
		move(fd, 0, memory, whole, whole);
		ns[4] = read_all(memory, whole);
		CHECK_EQ(residency(fd, memory, whole).out_device, 0);
		registration = register_memory(fd, memory, whole, WRITE);
		in = timed(queue, stamps, GPU_COPY, (uintptr_t)memory, (uintptr_t)vram.addr, whole);
		out = timed(queue, stamps, GPU_COPY, (uintptr_t)vram.addr, (uintptr_t)memory,
			    whole);
		release(fd, registration.handle);
		munmap(memory, whole);
		for (int i = 0; round && i < 5; i++) {
			sample(&rows[i].managed, ns[i]);
			sample(&rows[i].other, i == 0 || i == 2 ? in : out);
		}
	}
	munmap(vram.addr, whole);
	release(fd, vram.args.out_handle);
	for (int i = 0; i < 5; i++)
		print(&rows[i]);
}

/* Measures the CPU, which faults the same memory in with nothing to copy, and reads it. */
static void bench_floor(const char *name, int advice)
{
	static struct samples floor;

	floor.count = 0;
	for (unsigned int round = 0; round <= times; round++) {
		char *memory = fresh(whole, advice);
		uint64_t start = now();

		for (size_t at = 0; at < whole; at += PAGE)
			*(volatile char *)(memory + at) = 1;
		start = now() - start;
		start += read_all(memory, whole);
		munmap(memory, whole);
		if (round)
			sample(&floor, start);
	}
	report(name, "floor", &floor);
}

/* Measures the kernel, which moves the same memory there and back, and copies nothing. */
static void bench_bare(const char *there, const char *back, int advice)
{
	static struct samples floors[2];
	int fd = SYS(open("/dev/" BENCH_FLOOR_NODE, O_RDWR | O_CLOEXEC));

	floors[0].count = floors[1].count = 0;
	for (unsigned int round = 0; round <= times; round++) {
		char *memory = touched(whole, advice);
		struct bench_floor_move move = {
			.addr = (uintptr_t)memory,
			.length = whole,
			.flags = BENCH_FLOOR_THERE | BENCH_FLOOR_BACK,
		};

		SYS(ioctl(fd, BENCH_FLOOR_MOVE, &move));
		/* A page that is in use at that moment stays where it is. */
		if (move.out_moved < whole - whole / 100)
			FAIL("%llu of %zu bytes have moved", move.out_moved, whole);
		munmap(memory, whole);
		if (round) {
			sample(&floors[0], move.out_there_ns);
			sample(&floors[1], move.out_back_ns);
		}
	}
	close(fd);
	report(there, "floor", &floors[0]);
	report(back, "floor", &floors[1]);
}

/*
 * Kernels that read or write memory of the host, which moves by faults, beside copies; and over
 * memory that stays on the host, beside registered memory.
 */
static void bench_kernels(int fd, struct gpu_queue *queue, volatile uint64_t *stamps,
			  struct row rows[3], int advice)
{
	struct gpu_memory vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, whole);
	uint64_t there = 0;

	for (unsigned int round = 0; round <= times; round++) {
		char *memory[3];
		struct registration registration;
		uint64_t ns[3], copy, over;

		for (int i = 0; i < 3; i++)
			memory[i] = touched(whole, advice);
		/* A sum begins anew after each fault of this device. */
		ns[0] = timed(queue, stamps, gpu_launch(GPU_COPY_BYTES), (uintptr_t)vram.addr,
			      (uintptr_t)memory[0], whole);
		there = residency(fd, memory[0], whole).out_device;
		ns[1] = timed(queue, stamps, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)memory[1],
			      whole / 4, 0);
		advise(fd, memory[2], whole, PINMAP_ADVICE_PREFER_HOST);
		timed(queue, stamps, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)memory[2],
		      whole / 4, 0);
		ns[2] = timed(queue, stamps, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)memory[2],
			      whole / 4, 0);
		CHECK_EQ(residency(fd, memory[2], whole).out_device, 0);
		registration = register_memory(fd, memory[2], whole, WRITE);
		over = timed(queue, stamps, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)memory[2],
			     whole / 4, 0);
		copy = timed(queue, stamps, GPU_COPY, (uintptr_t)memory[2], (uintptr_t)vram.addr,
			     whole);
		release(fd, registration.handle);
		advise(fd, memory[2], whole, 0);
		for (int i = 0; i < 3; i++) {
			munmap(memory[i], whole);
			if (!round)
				continue;
			sample(&rows[i].managed, ns[i]);
			sample(&rows[i].other, i == 2 ? over : copy);
		}
	}
	munmap(vram.addr, whole);
	release(fd, vram.args.out_handle);
	fprintf(stderr, "bench-managed: %s: %llu of %zu MiB have moved\n", rows[0].name,
		(unsigned long long)there >> 20, whole >> 20);
	for (int i = 0; i < 3; i++)
		print(&rows[i]);
}

/* CPU and device read the same memory in turn, with and without advice. */
static void bench_turns(int fd, struct gpu_queue *queue, volatile uint64_t *stamps)
{
	static struct row row = { "turns/4MiB", "no-advice" };
	size_t length = 4 << 20;

	for (unsigned int round = 0; round <= times; round++) {
		uint64_t ns[2];

		for (int advised = 0; advised < 2; advised++) {
			char *memory = touched(length, MADV_HUGEPAGE);
			uint64_t start;

			if (advised)
				advise(fd, memory, length, PINMAP_ADVICE_ACCESSED_BY);
			start = now();
			for (int turn = 0; turn < TURNS; turn++) {
				timed(queue, stamps, gpu_launch(GPU_SUM_F32), (uintptr_t)memory,
				      length / 4, (uintptr_t)&stamps[2]);
				read_all(memory, length);
			}
			ns[advised] = now() - start;
			if (advised)
				advise(fd, memory, length, 0);
			munmap(memory, length);
		}
		if (round) {
			sample(&row.managed, ns[1]);
			sample(&row.other, ns[0]);
		}
	}
	print(&row);
}

/* The calls that are made beside a kernel. */
static const char *const calls[] = { "allocate", "prefetch", "advise", "ask", "free" };

static void do_calls(int fd, uint64_t ns[ARRAY_SIZE(calls)])
{
	uint64_t at[ARRAY_SIZE(calls) + 1];
	char *memory;

	at[0] = now();
	memory = touched(HUGE, MADV_HUGEPAGE);
	at[1] = now();
	move(fd, 0, memory, HUGE, HUGE);
	at[2] = now();
	advise(fd, memory, HUGE, PINMAP_ADVICE_PREFER_DEVICE);
	at[3] = now();
	residency(fd, memory, HUGE);
	at[4] = now();
	munmap(memory, HUGE);
	at[5] = now();
	for (size_t i = 0; i < ARRAY_SIZE(calls); i++)
		ns[i] = at[i + 1] - at[i];
}

/* Calls beside a kernel that runs for a second, and alone; the longest of each counts. */
static void bench_calls(int fd, struct gpu_queue *queue)
{
	static struct row rows[ARRAY_SIZE(calls)];
	static char names[ARRAY_SIZE(calls)][32];

	for (unsigned int round = 0; round < 2 * times; round++) {
		uint64_t ns[ARRAY_SIZE(calls)];
		bool beside = round % 2;
		uint64_t fence = 0;

		if (beside) {
			queue_push(queue, gpu_launch(GPU_SPIN), 1000000000, 0, 0);
			queue_submit(queue);
			fence = queue->fence;
			CHECK(WAIT_FOR(10000, gpu_register(GPU_ENGINE_BUSY)));
		}
		do_calls(fd, ns);
		/* They are done while the kernel still runs. */
		if (beside) {
			CHECK(queue->fences[0] < fence);
			queue_finish(queue);
		}
		for (size_t i = 0; i < ARRAY_SIZE(calls); i++)
			sample(beside ? &rows[i].managed : &rows[i].other, ns[i]);
	}
	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		snprintf(names[i], sizeof(names[i]), "beside-%s/2MiB", calls[i]);
		rows[i].name = names[i];
		rows[i].against = "alone";
		print(&rows[i]);
	}
}

enum { PIECE = 16 << 20, STREAMS = 3, IN_FLIGHT = 8 };

/* Pieces that have been through the kernel come home, while others go to the device. */
struct comer {
	int fd;
	char *memory;
	size_t pieces;
	volatile uint64_t *fence;
	uint64_t before;
	/* How many have come home. */
	size_t home;
};

static void *come_home(void *argument)
{
	struct comer *comer = argument;

	for (size_t i = 0; i < comer->pieces; i++) {
		while (comer->fence[0] < comer->before + i + 1)
			nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
		move(comer->fd, PINMAP_PREFETCH_HOST, comer->memory + i * PIECE, PIECE, PIECE);
		__atomic_store_n(&comer->home, i + 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

static uint64_t through_prefetched(int fd, struct gpu_queue *queue, char *memory, size_t pieces)
{
	struct comer comer = {
		.fd = fd,
		.memory = memory,
		.pieces = pieces,
		.fence = queue->fences,
		.before = queue->fence,
	};
	uint64_t start = now();
	pthread_t thread;

	CHECK_EQ(pthread_create(&thread, NULL, come_home, &comer), 0);
	for (size_t i = 0; i < pieces; i++) {
		char *piece = memory + i * PIECE;

		while (i >= IN_FLIGHT + __atomic_load_n(&comer.home, __ATOMIC_ACQUIRE))
			nanosleep(&(struct timespec){ .tv_nsec = 200000 }, NULL);
		move(fd, 0, piece, PIECE, PIECE);
		queue_push(queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)piece, PIECE / 4, 0);
		queue_submit(queue);
	}
	pthread_join(thread, NULL);
	return now() - start;
}

static uint64_t through_faults(int fd, struct gpu_queue *queue, char *memory, size_t pieces)
{
	uint64_t start = now();

	(void)fd;
	for (size_t i = 0; i < pieces; i++) {
		queue_push(queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)memory + i * PIECE,
			   PIECE / 4, 0);
		queue_finish(queue);
	}
	read_all(memory, pieces * PIECE);
	return now() - start;
}

static uint64_t through_copies(int fd, struct gpu_queue *queues, struct gpu_memory *staging,
			       char *memory, size_t pieces)
{
	struct registration registration = register_memory(fd, memory, pieces * PIECE, WRITE);
	uint64_t start = now();

	for (size_t i = 0; i < pieces; i++) {
		struct gpu_queue *queue = &queues[i % STREAMS];
		uint64_t there = (uintptr_t)staging[i % STREAMS].addr;
		uint64_t here = (uintptr_t)memory + i * PIECE;

		queue_push(queue, GPU_COPY, here, there, PIECE);
		queue_push(queue, gpu_launch(GPU_INCREMENT_F32), there, PIECE / 4, 0);
		queue_push(queue, GPU_COPY, there, here, PIECE);
		/* A ring holds what a stream is given between two waits. */
		if (i / STREAMS % 8 == 7)
			queue_finish(queue);
		else
			queue_ring(queue);
	}
	for (int i = 0; i < STREAMS; i++)
		queue_finish(&queues[i]);
	start = now() - start;
	release(fd, registration.handle);
	return start;
}

/* Twice the VRAM goes through a kernel and back. */
static void bench_through(int fd, struct gpu_queue *queue)
{
	static struct row rows[] = {
		{ "through-prefetched/512MiB", "copy" },
		{ "through-faults/512MiB", "copy" },
	};
	size_t pieces = 2 * gpu_register(GPU_VRAM_SIZE) / PIECE;
	char *memory = touched(pieces * PIECE, MADV_HUGEPAGE);
	struct gpu_queue queues[STREAMS];

	for (unsigned int round = 0; round < 3; round++) {
		struct gpu_memory staging[STREAMS];
		uint64_t ns[3];

		ns[0] = through_prefetched(fd, queue, memory, pieces);
		ns[1] = through_faults(fd, queue, memory, pieces);
		for (int i = 0; i < STREAMS; i++) {
			queues[i] = queue_new(fd);
			staging[i] = gpu_alloc(fd, PINMAP_ALLOC_VRAM, PIECE);
		}
		ns[2] = through_copies(fd, queues, staging, memory, pieces);
		for (int i = 0; i < STREAMS; i++) {
			queue_delete(&queues[i]);
			munmap(staging[i].addr, PIECE);
			release(fd, staging[i].args.out_handle);
		}
		for (int i = 0; i < 2; i++) {
			sample(&rows[i].managed, ns[i]);
			sample(&rows[i].other, ns[2]);
		}
	}
	munmap(memory, pieces * PIECE);
	for (int i = 0; i < 2; i++)
		print(&rows[i]);
}

void bench_moving(int fd, struct gpu_queue *queue)
{
	static struct row huge[] = {
		{ "to-device/64MiB", "copy" },
		{ "to-host/64MiB", "copy" },
		{ "to-device-by-2MiB/64MiB", "copy" },
		{ "to-host-by-2MiB/64MiB", "copy" },
		{ "cpu-reads/64MiB", "copy" },
	};
	static struct row small[] = {
		{ "4k-to-device/64MiB", "copy" },
		{ "4k-to-host/64MiB", "copy" },
		{ "4k-to-device-by-2MiB/64MiB", "copy" },
		{ "4k-to-host-by-2MiB/64MiB", "copy" },
		{ "4k-cpu-reads/64MiB", "copy" },
	};
	static struct row kernels[] = {
		{ "kernel-reads/64MiB", "copy" },
		{ "kernel-writes/64MiB", "copy" },
		{ "kept-on-host/64MiB", "registered" },
	};
	static struct row small_kernels[] = {
		{ "4k-kernel-reads/64MiB", "copy" },
		{ "4k-kernel-writes/64MiB", "copy" },
		{ "4k-kept-on-host/64MiB", "registered" },
	};
	struct gpu_memory stamps = gpu_alloc(fd, 0, PAGE);
	volatile uint64_t *words = (void *)stamps.addr;

	bench_prefetch(fd, queue, words, huge, MADV_HUGEPAGE);
	bench_floor("managed/cpu-reads/64MiB", MADV_HUGEPAGE);
	bench_bare("managed/to-device/64MiB", "managed/to-host/64MiB", MADV_HUGEPAGE);
	bench_prefetch(fd, queue, words, small, MADV_NOHUGEPAGE);
	bench_floor("managed/4k-cpu-reads/64MiB", MADV_NOHUGEPAGE);
	bench_bare("managed/4k-to-device/64MiB", "managed/4k-to-host/64MiB", MADV_NOHUGEPAGE);
	bench_kernels(fd, queue, words, kernels, MADV_HUGEPAGE);
	bench_kernels(fd, queue, words, small_kernels, MADV_NOHUGEPAGE);
	bench_turns(fd, queue, words);
	bench_calls(fd, queue);
	bench_through(fd, queue);
}

/* Ways of moving memory whose instructions are counted. */
enum { THERE, BACK, TOUCH, WAYS };

/* By which one is moved, there (if true) or back. */
typedef void move_by(int fd, char *memory, bool there);

static void move_by_prefetch(int fd, char *memory, bool there)
{
	move(fd, there ? 0 : PINMAP_PREFETCH_HOST, memory, HUGE, HUGE);
}

/* Small pages are copied by the CPU, as by pinmap. Huge ones a device copies. */
static void move_barely(int fd, char *memory, bool there)
{
	struct bench_floor_move move = {
		.addr = (uintptr_t)memory,
		.length = HUGE,
		.flags = (there ? BENCH_FLOOR_THERE : BENCH_FLOOR_BACK) | BENCH_FLOOR_COPY,
	};

	SYS(ioctl(fd, BENCH_FLOOR_MOVE, &move));
	if (there)
		CHECK_EQ(move.out_moved, HUGE);
}

static uint64_t moved_by(move_by *by, int fd, char *memory, bool there, const char *kind)
{
	uint64_t start = now();

	profile_begin(there ? "there" : "back", kind);
	by(fd, memory, there);
	profile_end();
	return now() - start;
}

/* Counts for 2 MiB there and back, and for one page back by a touch of the CPU. */
static void count(int fd, const char *system, const char *kind, int advice, move_by *by)
{
	static const char *const names[WAYS] = {
		[THERE] = "managed/%s-there/2MiB",
		[BACK] = "managed/%s-back/2MiB",
		[TOUCH] = "managed/%s-touch/4KiB",
	};
	static struct samples samples[WAYS];

	memset(samples, 0, sizeof(samples));
	for (unsigned int round = 0; round <= times; round++) {
		char *memory = touched(HUGE, advice);
		uint64_t counts[WAYS];

		counts[THERE] = moved_by(by, fd, memory, true, kind);
		counts[BACK] = moved_by(by, fd, memory, false, kind);
		by(fd, memory, true);
		counts[TOUCH] = now();
		profile_begin("touch", kind);
		(void)*(volatile char *)(memory + HUGE / 2);
		profile_end();
		counts[TOUCH] = now() - counts[TOUCH];
		munmap(memory, HUGE);
		for (int way = 0; round && way < WAYS; way++)
			sample(&samples[way], counts[way]);
	}
	for (int way = 0; way < WAYS; way++) {
		char name[64];

		snprintf(name, sizeof(name), names[way], kind);
		report(name, system, &samples[way]);
	}
}

/*
 * Instructions for moving memory. The bus takes no time, so that the test GPU, which answers when
 * its copies are done (--prompt), answers soon.
 */
void bench_counts(int fd)
{
	uint64_t bandwidth = gpu_register(GPU_LINK_BANDWIDTH);

	gpu_set_register(GPU_LINK_BANDWIDTH, 0);
	count(fd, "pinmap", "thp", MADV_HUGEPAGE, move_by_prefetch);
	count(fd, "pinmap", "4k", MADV_NOHUGEPAGE, move_by_prefetch);
	gpu_set_register(GPU_LINK_BANDWIDTH, bandwidth);
}

/* Counts the instructions of moves without a device. */
void bench_bare_counts(int fd)
{
	count(fd, "floor", "thp", MADV_HUGEPAGE, move_barely);
	count(fd, "floor", "4k", MADV_NOHUGEPAGE, move_barely);
}
