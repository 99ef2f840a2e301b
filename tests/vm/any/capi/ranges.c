// SPDX-License-Identifier: MIT OR Apache-2.0
/* libpinmap: several registrations by one call, pointers, windows, budgets, all memory managed. */
#define _GNU_SOURCE
#include "capi.h"
#include "pins.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MIB ((size_t)1 << 20)
#define HUGE (2 * MIB)

TEST(several_pieces_by_one_call)
{
	enum { COUNT = 1030 };
	struct pinmap_device *device = capi_any();
	static struct pinmap_memory *memory[COUNT];
	static struct pinmap_range ranges[COUNT];
	char *pages = capi_pages(2 * COUNT);
	long long pins = pins_held();
	char piece[16];

	for (size_t i = 0; i < COUNT; i++)
		ranges[i] = (struct pinmap_range){ pages + 2 * i * PAGE, PAGE };
	DONE(pinmap_register_all(device, ranges, COUNT, NULL, memory));
	CHECK_PINS(pins + COUNT);
	for (size_t i = 0; i < COUNT; i++) {
		CHECK(pinmap_address(memory[i]) == ranges[i].address);
		DONE(pinmap_release(memory[i]));
	}
	CHECK_PINS(pins);
	/* all or none, also when the one that is refused is not of the driver's first call */
	munmap(ranges[COUNT - 1].address, PAGE);
	memset(memory, 0, sizeof(memory));
	snprintf(piece, sizeof(piece), "index %d", COUNT - 1);
	REFUSED(pinmap_register_all(device, ranges, COUNT, NULL, memory), EFAULT, BAD_ADDRESS,
		piece);
	CHECK(!memory[0]);
	CHECK_PINS(pins);
	REFUSED(pinmap_register_all(device, ranges, 1, NULL, NULL), EINVAL, INVALID_INPUT, "NULL");
	DONE(pinmap_register_all(device, NULL, 0, NULL, NULL));
	pinmap_close(device);
}

/* Pointers into memory of all kinds; what is not registered is lent for the copy. */
TEST(pointers_are_copied)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	struct pinmap_memory *vram = MADE(pinmap_alloc_vram(gpu, 4 * PAGE));
	struct pinmap_memory *host = MADE(pinmap_alloc(gpu, PAGE, NULL));
	char *own = capi_pages(2), *local = pinmap_address(vram), *pinned = pinmap_address(host);
	char small[64] = "", *heap = malloc(100);
	long long pins = pins_held();

	strcpy(own + PAGE - 3, "across pages");
	DONE(pinmap_stream_memcpy(stream, local + 5, own + PAGE - 3, 13));
	DONE(pinmap_stream_memcpy(stream, pinned + 100, local + 5, 13));
	DONE(pinmap_stream_memcpy(stream, heap, pinned + 100, 13));
	DONE(pinmap_stream_memcpy(stream, small, heap, 13));
	DONE(pinmap_stream_synchronize(stream, -1));
	CHECK(!strcmp(small, "across pages") && !strcmp(heap, small) && !strcmp(local + 5, small));
	CHECK_PINS_SOON(pins);
	REFUSED(pinmap_stream_memcpy(stream, own, own, 16), EINVAL, INVALID_INPUT, "overlap");
	DONE(pinmap_release(vram));
	DONE(pinmap_release(host));
	pinmap_stream_destroy(stream);
	free(heap);
	pinmap_close(gpu);
}

static struct pinmap_device *managing(void)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_device_info info;

	DONE(pinmap_get_info(gpu, &info, sizeof(info)));
	if (!(info.flags & PINMAP_DEVICE_INFO_MANAGED))
		SKIP("the device can have no managed memory");
	return gpu;
}

TEST(all_memory_is_managed)
{
	struct pinmap_device *gpu = managing();
	struct pinmap_memory *all = MADE(pinmap_manage_all(gpu));
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	struct pinmap_prefetched moved;
	struct pinmap_budget_info budget;
	char *memory = capi_pages(4 * HUGE / PAGE);

	memset(memory, 0x31, HUGE);
	DONE(pinmap_stream_memcpy(stream, memory + HUGE, memory, HUGE));
	DONE(pinmap_stream_synchronize(stream, -1));
	CHECK_EQ(memory[2 * HUGE - 1], 0x31);
	REFUSED(pinmap_stream_copy(stream, all, 0, all, 0, 0), EOPNOTSUPP, UNSUPPORTED, "all");

	DONE(pinmap_get_budget(gpu, &budget, sizeof(budget)));
	CHECK_EQ(budget.limit, UINT64_MAX);
	CHECK(budget.room >= 2 * HUGE);
	DONE(pinmap_set_budget(gpu, HUGE));
	DONE(pinmap_prefetch(gpu, memory, 2 * HUGE, PINMAP_TO_HOST, NULL, 0));
	DONE(pinmap_prefetch(gpu, memory, 2 * HUGE, PINMAP_TO_VRAM, &moved, sizeof(moved)));
	DONE(pinmap_get_budget(gpu, &budget, sizeof(budget)));
	CHECK(budget.limit == HUGE && budget.used <= HUGE && budget.used > 0);
	CHECK(moved.moved <= HUGE);
	DONE(pinmap_set_budget(gpu, UINT64_MAX));
	DONE(pinmap_get_budget(gpu, &budget, sizeof(budget)));
	CHECK_EQ(budget.limit, UINT64_MAX);
	pinmap_stream_destroy(stream);
	DONE(pinmap_release(all));
	pinmap_close(gpu);
}

TEST(windows_have_equal_addresses)
{
	struct pinmap_memory_options options = { .size = sizeof(options),
						 .flags = PINMAP_AT_ADDRESS,
						 .device_address = 0x100000000000 };
	struct pinmap_device *gpu = managing();
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	struct pinmap_window *window = MADE(pinmap_window_create(gpu, 4 * HUGE, &options));
	char *start = pinmap_window_address(window);
	struct pinmap_memory *first, *at;
	uint64_t address;

	CHECK_EQ((uintptr_t)start, 0x100000000000);
	first = MADE(pinmap_window_alloc(window, SIZE_MAX, 3 * PAGE));
	at = MADE(pinmap_window_alloc(window, 2 * HUGE, HUGE));
	CHECK(pinmap_address(at) == start + 2 * HUGE);
	DONE(pinmap_device_address(at, 5, &address));
	CHECK_EQ(address, (uintptr_t)start + 2 * HUGE + 5);
	DONE(pinmap_stream_fill(stream, at, 0, HUGE, 0x44, 1));
	DONE(pinmap_stream_copy(stream, first, 0, at, HUGE - PAGE, PAGE));
	DONE(pinmap_stream_synchronize(stream, -1));
	CHECK_EQ(((char *)pinmap_address(first))[PAGE - 1], 0x44);
	REFUSED(pinmap_window_alloc(window, 2 * HUGE, PAGE), EEXIST, ALREADY_EXISTS, "allocated");
	REFUSED(pinmap_window_alloc(window, SIZE_MAX, 4 * HUGE), ENOMEM, OUT_OF_MEMORY, "room");
	REFUSED(pinmap_window_create(gpu, 4 * HUGE, &options), EEXIST, ALREADY_EXISTS, "window");
	REFUSED(pinmap_window_create(gpu, PAGE, NULL), EINVAL, INVALID_INPUT, "2 MiB");
	/* it stays as long as memory of it does */
	pinmap_window_destroy(window);
	CHECK_EQ(start[2 * HUGE], 0x44);
	DONE(pinmap_release(first));
	DONE(pinmap_release(at));
	window = MADE(pinmap_window_create(gpu, 4 * HUGE, &options));
	pinmap_window_destroy(window);
	pinmap_window_destroy(NULL);
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
}
