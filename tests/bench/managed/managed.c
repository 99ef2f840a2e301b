// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The part of the bench that is about managed memory: what it costs the driver to serve a fault,
 * and what faults cost a kernel that runs over memory which nobody registered.
 *
 * usage: bench-managed LABEL ROUNDS [--moving | --count [CASE] | --floor [CASE]], as root in the
 * VM, with the test GPU bound to pinmap. Prints one JSON record a measurement. A failure ends it.
 * --floor counts what the floor's module (tests/bench/floor) takes for the cases of --count, in a
 * process without managed memory. What scripts/bench --profile shows is CASE: there-thp, back-4k,
 * fault-present and so on.
 */
#define _GNU_SOURCE
#include "../floor/floor.h"
#include "bench.h"
#include "file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t whole = 64 << 20;

/* Pages that the first fault in a block makes. */
enum { FAULTED_IN = 16 };

/* The function that scripts/vm has beside the test GPUs, and does not bind. */
#define SPARE "0000:00:19.0"

static const char *label;
/* The case that is profiled. */
static const char *profiled = "";
bool least;
unsigned int times;

void profile_begin(const char *operation, const char *kind)
{
	size_t length = strlen(operation);

	if (!strncmp(profiled, operation, length) && profiled[length] == '-' &&
	    !strcmp(profiled + length + 1, kind))
		mark(MARK_BEGIN);
}

void profile_end(void)
{
	mark(MARK_END);
}

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

void report(const char *name, const char *system, struct samples *samples)
{
	CHECK(samples->count);
	qsort(samples->values, samples->count, sizeof(*samples->values), compare);
#define QUARTER(n) ((unsigned long long)samples->values[(samples->count - 1) * (n) / 4])
	printf("{\"case\": \"%s\", \"system\": \"%s\", \"median_ns\": %llu, "
	       "\"q1_ns\": %llu, \"q3_ns\": %llu, \"rounds\": %u}\n",
	       name, system, QUARTER(least ? 0 : 2), QUARTER(1), QUARTER(3), samples->count);
}

static void report_kind(const char *operation, const char *size, const char *kind,
			const char *system, struct samples *samples)
{
	char name[128];

	snprintf(name, sizeof(name), "%s/%s/%s/%s", operation, size, kind, label);
	report(name, system, samples);
}

void sample(struct samples *samples, uint64_t value)
{
	if (samples->count < MAX_ROUNDS)
		samples->values[samples->count++] = value;
}

static struct pinmap_get_totals totals(int fd)
{
	struct pinmap_get_totals totals = {
		.size = sizeof(totals),
		.flags = PINMAP_TOTALS_CONTEXT,
	};

	CHECK_OK(try_ioctl(fd, PINMAP_GET_TOTALS, &totals));
	return totals;
}

char *fresh(size_t length, int advice)
{
	char *all = mmap(NULL, length + HUGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *memory;

	CHECK(all != MAP_FAILED);
	memory = (char *)(((uintptr_t)all + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
	CHECK_OK(madvise(memory, length, advice) ? -errno : 0);
	return memory;
}

/*
 * Measures the service of one fault, by the driver's own clock: the time in which a thread serves
 * it. Each fault is in a block of 2 MiB of its own.
 */
static void bench_fault(int fd, struct gpu_queue *queue, const char *size, const char *kind,
			int advice, bool present)
{
	static struct samples served;
	unsigned int faults = times + 1;
	char *memory = fresh((size_t)faults * HUGE, advice);

	served.count = 0;
	for (unsigned int i = 0; i < faults; i++) {
		char *page = memory + (size_t)i * HUGE;
		struct pinmap_get_totals before = totals(fd), after;

		if (present)
			*(volatile char *)page = 1;
		profile_begin("fault", kind);
		queue_push(queue, GPU_FILL, (uintptr_t)page, 8, 0);
		queue_finish(queue);
		profile_end();
		after = totals(fd);
		CHECK_EQ(after.out_faults_served - before.out_faults_served, 1);
		/* In the first round the thread is made. */
		if (i)
			sample(&served, after.out_fault_ns - before.out_fault_ns);
	}
	report_kind("fault", size, kind, "pinmap", &served);
}

/* Measures the kernel alone for such a fault, where @made pages are missing. */
static void bench_bare_fault(int fd, const char *size, const char *kind, int advice, size_t made)
{
	size_t present = made ? made : advice == MADV_HUGEPAGE ? HUGE / PAGE : 1;
	static struct samples served;
	char *memory = fresh((size_t)times * HUGE, advice);

	served.count = 0;
	for (unsigned int i = 0; i < times; i++) {
		char *page = memory + (size_t)i * HUGE;
		struct bench_floor_fault fault = {
			.addr = (uintptr_t)page,
			.made = made * PAGE,
		};

		if (!made)
			*(volatile char *)page = 1;
		profile_begin("fault", kind);
		SYS(ioctl(fd, BENCH_FLOOR_FAULT, &fault));
		profile_end();
		CHECK_EQ(fault.out_present, present);
		sample(&served, fault.out_ns);
	}
	munmap(memory, (size_t)times * HUGE);
	report_kind("fault", size, kind, "floor", &served);
}

/* Binds the test FPGA, which nobody uses, so that the floor has a page table of the IOMMU. */
static void bind_floor(void)
{
	file_write("/sys/bus/pci/devices/" SPARE "/driver_override", BENCH_FLOOR_NODE);
	file_write("/sys/bus/pci/drivers_probe", SPARE);
	CHECK_OK(access("/sys/bus/pci/drivers/" BENCH_FLOOR_NODE "/" SPARE, F_OK));
}

/* Instructions of the kernel alone. */
static void bench_bare(void)
{
	int fd = SYS(open("/dev/" BENCH_FLOOR_NODE, O_RDWR | O_CLOEXEC));

	bind_floor();
	bench_bare_counts(fd);
	bench_bare_fault(fd, "4KiB", "present", MADV_NOHUGEPAGE, 0);
	bench_bare_fault(fd, "4KiB", "absent", MADV_NOHUGEPAGE, FAULTED_IN);
	bench_bare_fault(fd, "2MiB", "thp", MADV_HUGEPAGE, 0);
	close(fd);
}

/* The device's time for a kernel that adds 1 to each float. */
static uint64_t kernel(struct gpu_queue *queue, char *memory, volatile uint64_t *stamps)
{
	queue_push(queue, GPU_TIMESTAMP, (uintptr_t)&stamps[0], 0, 0);
	queue_push(queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)memory, whole / 4, 0);
	queue_push(queue, GPU_TIMESTAMP, (uintptr_t)&stamps[1], 0, 0);
	queue_finish(queue);
	return stamps[1] - stamps[0];
}

/*
 * Measures a kernel over memory that is managed: that nobody has touched, that the program has,
 * that the device has; and over memory that is registered.
 */
static void bench_kernel(int fd, struct gpu_queue *queue, const char *kind, int advice)
{
	static struct samples registered, untouched, first, again;
	struct gpu_memory stamps = gpu_alloc(fd, 0, PAGE);
	uint64_t made = 0, faults = 0, pages = 0;

	registered.count = untouched.count = first.count = again.count = 0;
	for (unsigned int round = 0; round <= times; round++) {
		char *memory = fresh(whole, advice);
		struct pinmap_get_totals before, after;
		struct registration registration;
		uint64_t ns[4];

		before = totals(fd);
		ns[3] = kernel(queue, memory, (void *)stamps.addr);
		after = totals(fd);
		made = after.out_faults_served - before.out_faults_served;
		munmap(memory, whole);
		memory = fresh(whole, advice);
		memset(memory, 0, whole);
		before = totals(fd);
		ns[0] = kernel(queue, memory, (void *)stamps.addr);
		after = totals(fd);
		ns[1] = kernel(queue, memory, (void *)stamps.addr);
		faults = after.out_faults_served - before.out_faults_served;
		pages = after.out_fault_pages - before.out_fault_pages;
		registration = register_memory(fd, memory, whole, WRITE);
		ns[2] = kernel(queue, memory, (void *)stamps.addr);
		release(fd, registration.handle);
		munmap(memory, whole);
		if (round) {
			sample(&untouched, ns[3]);
			sample(&first, ns[0]);
			sample(&again, ns[1]);
			sample(&registered, ns[2]);
		}
	}
	fprintf(stderr,
		"bench-managed: kernel over 64 MiB, %s: %llu faults if untouched, else %llu, "
		"of %llu pages\n",
		kind, (unsigned long long)made, (unsigned long long)faults,
		(unsigned long long)pages);
	report_kind("kernel", "64MiB", kind, "registered", &registered);
	report_kind("kernel", "64MiB", kind, "managed-untouched", &untouched);
	report_kind("kernel", "64MiB", kind, "managed", &first);
	report_kind("kernel", "64MiB", kind, "managed-again", &again);
}

bool helper_main(int argc, char **argv)
{
	struct pinmap_manage all = { .size = sizeof(all), .flags = PINMAP_MANAGE_ALL };
	const char *what = argc > 3 ? argv[3] : "";
	bool moving = !strcmp(what, "--moving"), bare = !strcmp(what, "--floor");
	struct gpu_queue queue;
	int fd;

	if (argc < 3) {
		fprintf(stderr, "usage: bench-managed LABEL ROUNDS "
				"[--moving | --count [CASE] | --floor [CASE]]\n");
		return false;
	}
	label = argv[1];
	least = bare || !strcmp(what, "--count");
	profiled = argc > 4 ? argv[4] : "";
	times = strtoul(argv[2], NULL, 10);
	CHECK(times && times < MAX_ROUNDS);
	if (bare) {
		bench_bare();
		fflush(stdout);
		return true;
	}
	fd = open_gpu();
	/* What faults cost by themselves is measured where nothing moves. */
	if (!moving)
		all.flags |= PINMAP_MANAGE_HOST;
	CHECK_OK(try_ioctl(fd, PINMAP_MANAGE, &all));
	queue = queue_new(fd);
	if (moving) {
		bench_moving(fd, &queue);
		fflush(stdout);
		return true;
	}
	if (least)
		bench_counts(fd);
	bench_fault(fd, &queue, "4KiB", "present", MADV_NOHUGEPAGE, true);
	bench_fault(fd, &queue, "4KiB", "absent", MADV_NOHUGEPAGE, false);
	bench_fault(fd, &queue, "2MiB", "thp", MADV_HUGEPAGE, true);
	/* The device's clock does not count instructions. */
	if (!least) {
		bench_kernel(fd, &queue, "4k-natural", MADV_NOHUGEPAGE);
		bench_kernel(fd, &queue, "thp", MADV_HUGEPAGE);
	}
	fflush(stdout);
	return true;
}
