// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "told.h"

#include "memory.h"

#include <string.h>
#include <sys/mman.h>

int try_advise(int fd, const void *addr, size_t length, uint32_t advice)
{
	struct pinmap_advise args = {
		.size = sizeof(args),
		.addr = (uintptr_t)addr,
		.length = length,
		.advice = advice,
	};

	return try_ioctl(fd, PINMAP_ADVISE, &args);
}

int try_residency(int fd, const void *addr, size_t length, struct pinmap_run *runs,
		  uint32_t capacity, struct pinmap_residency *args)
{
	*args = (struct pinmap_residency){
		.size = sizeof(*args),
		.addr = (uintptr_t)addr,
		.length = length,
		.runs = (uintptr_t)runs,
		.capacity = capacity,
	};
	return try_ioctl(fd, PINMAP_RESIDENCY, args);
}

static bool is_alike(const struct pinmap_run *run, const struct pinmap_run *other)
{
	return run->place == other->place && run->access == other->access &&
	       run->advice == other->advice && run->rule == other->rule;
}

const struct told *tell(int fd, const void *addr, size_t length)
{
	static struct told told;
	uint64_t at = (uintptr_t)addr, sums[3] = { 0 };

	CHECK_OK(try_residency(fd, addr, length, told.runs, MOST_RUNS, &told.args));
	for (uint32_t i = 0; i < told.args.out_count; i++) {
		const struct pinmap_run *run = &told.runs[i];

		CHECK_EQ(run->addr, at);
		CHECK(run->length && run->length % PAGE == 0);
		CHECK(run->place <= ON_DEVICE && run->rule <= PINMAP_RULE_CROWDED);
		if (i)
			CHECK(!is_alike(run, run - 1));
		sums[run->place] += run->length;
		at += run->length;
	}
	CHECK_EQ(told.args.out_end, at);
	CHECK_EQ(told.args.out_absent, sums[ABSENT]);
	CHECK_EQ(told.args.out_host, sums[ON_HOST]);
	CHECK_EQ(told.args.out_device, sums[ON_DEVICE]);
	return &told;
}

struct pinmap_run tell_page(int fd, const void *addr)
{
	const struct told *told = tell(fd, addr, PAGE);

	CHECK_EQ(told->args.out_count, 1);
	return told->runs[0];
}

void check_place(const char *file, int line, int fd, const void *addr, size_t length,
		 uint32_t place, uint32_t rule)
{
	static const char *const places[] = { "absent", "on the host", "on the device" };
	const struct told *told = tell(fd, addr, length);

	for (uint32_t i = 0; i < told->args.out_count; i++) {
		const struct pinmap_run *run = &told->runs[i];

		if (run->place != place || run->rule != rule)
			test_fail(file, line,
				  "page %llu and %llu behind it are %s by rule %u, not %s by "
				  "rule %u",
				  (unsigned long long)(run->addr - (uintptr_t)addr) / PAGE,
				  (unsigned long long)run->length / PAGE - 1, places[run->place],
				  run->rule, places[place], rule);
	}
	if (told->args.out_end != (uintptr_t)addr + length)
		test_fail(file, line, "not all is told");
}

uint64_t on_device(int fd, const void *addr, size_t length)
{
	struct pinmap_residency args;

	CHECK_OK(try_residency(fd, addr, length, NULL, 0, &args));
	return args.out_device;
}

int try_statistics(int fd, uint64_t handle, struct pinmap_statistics *args)
{
	*args = (struct pinmap_statistics){ .size = sizeof(*args), .handle = handle };
	return try_ioctl(fd, PINMAP_STATISTICS, args);
}

struct pinmap_statistics statistics(int fd, uint64_t handle)
{
	struct pinmap_statistics args;

	CHECK_OK(try_statistics(fd, handle, &args));
	return args;
}

void device_reads(struct gpu_queue *queue, const void *addr)
{
	/* to where the device has its fences, which is no managed memory */
	copy(queue, addr, (void *)(queue->args.out_fence_addr + 8 * 500), 8);
}

void device_writes(struct gpu_queue *queue, void *addr, unsigned char byte)
{
	fill(queue, addr, 8, byte);
}
