// SPDX-License-Identifier: MIT OR Apache-2.0
/* Handles, QUERY, MAP and UNMAP. */
#define _GNU_SOURCE
#include "device.h"
#include "edu.h"
#include "memory.h"
#include "pins.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Checks what every call that takes a handle says about this one. */
static void check_handle(int fd, uint64_t handle, int error)
{
	struct pinmap_query query;
	struct pinmap_fail fail;
	uint64_t device_addr = 0;

	CHECK_ERR(error, try_map(fd, handle, 0, &device_addr, &fail));
	CHECK_ERR(error, try_unmap(fd, handle, 0x10000));
	if (handle)
		CHECK_ERR(error, try_query_handle(fd, handle, &query));
	CHECK_ERR(error, try_release(fd, handle));
}

TEST(handle_missing)
{
	int fd = open_device(0);

	check_handle(fd, 0, ENOENT);
	check_handle(fd, 1, ENOENT);
	check_handle(fd, 12345, ENOENT);
	check_handle(fd, 1ULL << 32 | 1, ENOENT);
	check_handle(fd, UINT64_MAX, ENOENT);
}

TEST(handle_released)
{
	char *memory = anon(2);
	int fd = open_device(0);
	struct registration first = register_memory(fd, memory, PAGE, NO_MAP);
	struct registration second = register_memory(fd, memory + PAGE, PAGE, NO_MAP);

	release(fd, first.handle);
	check_handle(fd, first.handle, ESTALE);
	/* registered again at the same place, it has another handle */
	second = register_memory(fd, memory, PAGE, NO_MAP);
	CHECK(second.handle != first.handle);
	check_handle(fd, first.handle, ESTALE);
	CHECK_EQ(query_handle(fd, second.handle).out_state, PINMAP_STATE_LIVE);
}

TEST(handle_of_another_file)
{
	char *memory = anon(4);
	int fd = open_device(0), other = open_device(0);
	struct registration registration;
	struct pinmap_query query;

	for (int i = 0; i < 4; i++)
		registration = register_memory(fd, memory + i * PAGE, PAGE, NO_MAP);
	check_handle(other, registration.handle, ENOENT);
	CHECK_ERR(ENOENT, try_query_addr(other, memory, &query));
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
}

TEST(handle_never_again)
{
	uint64_t seen[200];
	char *page = anon(1);
	int fd = open_device(0);

	for (size_t i = 0; i < ARRAY_SIZE(seen); i++) {
		seen[i] = register_memory(fd, page, PAGE, i % 2 ? NO_MAP : WRITE).handle;
		CHECK(seen[i] != 0);
		for (size_t before = 0; before < i; before++)
			CHECK(seen[i] != seen[before]);
		release(fd, seen[i]);
	}
}

TEST(query)
{
	char *memory = anon(8);
	int fd = open_device(0);
	struct registration read_only = register_memory(fd, memory + PAGE, 2 * PAGE, 0);
	struct registration writable =
		register_memory(fd, memory + 4 * PAGE, 3 * PAGE, WRITE | NO_MAP);
	struct pinmap_query query = query_handle(fd, read_only.handle);

	CHECK_EQ(query.handle, read_only.handle);
	CHECK_EQ(query.out_base, (uintptr_t)read_only.addr);
	CHECK_EQ(query.out_length, 2 * PAGE);
	CHECK_EQ(query.out_device_addr, read_only.device_addr);
	CHECK_EQ(query.out_flags, 0);
	CHECK_EQ(query.out_kind, PINMAP_BUFFER_USER);
	CHECK_EQ(query.out_state, PINMAP_STATE_LIVE);
	CHECK_EQ(query.out_nr_mappings, 1);
	CHECK_EQ(query.out_generation, 1);
	query = query_handle(fd, writable.handle);
	CHECK_EQ(query.out_flags, PINMAP_REGISTER_WRITE);
	CHECK_EQ(query.out_device_addr, 0);
	CHECK_EQ(query.out_nr_mappings, 0);
}

/* Every address inside of a registration leads to it, addresses outside to none. */
TEST(query_interior)
{
	static const size_t inside[] = { 0, 1, 8, 4095, 4096, 8191, 3 * 4096 - 1 };
	char *memory = anon(8);
	int fd = open_device(0);
	struct pinmap_register args = register_args(memory + 2 * PAGE, 3 * PAGE, FIXED);
	struct pinmap_query query;

	args.device_addr = 0x40000000;
	CHECK_OK(try_register_args(fd, &args));
	for (size_t i = 0; i < ARRAY_SIZE(inside); i++) {
		query = query_addr(fd, memory + 2 * PAGE + inside[i]);
		CHECK_EQ(query.handle, args.out_handle);
		CHECK_EQ(query.out_base, (uintptr_t)memory + 2 * PAGE);
		CHECK_EQ(query.out_device_addr, 0x40000000 + inside[i]);
	}
	/* a query by handle tells the start, whatever addr says */
	query.handle = args.out_handle;
	query.addr = (uintptr_t)memory;
	CHECK_OK(try_ioctl(fd, PINMAP_QUERY, &query));
	CHECK_EQ(query.out_device_addr, 0x40000000);
	CHECK_ERR(ENOENT, try_query_addr(fd, memory + 2 * PAGE - 1, &query));
	CHECK_ERR(ENOENT, try_query_addr(fd, memory + 5 * PAGE, &query));
	CHECK_ERR(ENOENT, try_query_addr(fd, NULL, &query));
	CHECK_ERR(ENOENT, try_query_addr(fd, (void *)UINTPTR_MAX, &query));
}

TEST(map_again)
{
	char *memory = memory_new(ANON, 4 * PAGE).addr;
	int fd = open_device(0);
	struct registration registration = register_memory(fd, memory, 4 * PAGE, WRITE | NO_MAP);
	uint64_t first, second, third;
	long long pins = pins_held();

	first = map(fd, registration.handle, PINMAP_MAP_WRITE, 0);
	CHECK_EQ(first, (uintptr_t)memory);
	second = map(fd, registration.handle, 0, 0);
	CHECK(second != first);
	CHECK_EQ(second % HUGE, (uintptr_t)memory % HUGE);
	third = map(fd, registration.handle, PINMAP_MAP_FIXED, 0x20000000);
	CHECK_EQ(third, 0x20000000);
	CHECK_EQ(query_handle(fd, registration.handle).out_nr_mappings, 3);
	/* a pin is one pin, however often it is mapped */
	CHECK_PINS(pins);
	unmap(fd, registration.handle, first);
	CHECK_EQ(query_handle(fd, registration.handle).out_nr_mappings, 2);
	CHECK_PINS(pins);
	/* its device address is free again */
	CHECK_EQ(map(fd, registration.handle, PINMAP_MAP_FIXED, first), first);
}

TEST(map_arguments)
{
	char *memory = anon(4);
	int fd = open_device(0);
	struct registration read_only = register_memory(fd, memory, 2 * PAGE, NO_MAP);
	struct registration other = register_memory(fd, memory + 2 * PAGE, PAGE, WRITE);
	uint64_t last = get_info(fd).out_aperture_last, address = 0;
	struct pinmap_fail fail;
	int result;

	CHECK_ERR(EACCES, try_map(fd, read_only.handle, PINMAP_MAP_WRITE, &address, &fail));
	CHECK_ERR(EOPNOTSUPP, try_map(fd, read_only.handle, PINMAP_MAP_EXECUTE, &address, &fail));
	address = 0x20000800;
	CHECK_ERR(EINVAL, try_map(fd, read_only.handle, PINMAP_MAP_FIXED, &address, &fail));
	address = 0x20000000;
	CHECK_ERR(EINVAL, try_map(fd, read_only.handle, 0, &address, &fail));
	address = -(uint64_t)PAGE;
	CHECK_ERR(EOVERFLOW, try_map(fd, read_only.handle, PINMAP_MAP_FIXED, &address, &fail));
	address = other.device_addr - PAGE;
	result = try_map(fd, read_only.handle, PINMAP_MAP_FIXED, &address, &fail);
	check_fail(__FILE__, __LINE__, result, EEXIST, &fail, PINMAP_FAIL_OVERLAP,
		   other.device_addr);
	address = interrupt_address(fd);
	result = try_map(fd, read_only.handle, PINMAP_MAP_FIXED, &address, &fail);
	check_fail(__FILE__, __LINE__, result, ENOSPC, &fail, PINMAP_FAIL_RESERVED, 0);
	if (last != UINT64_MAX) {
		address = last - (PAGE - 1);
		result = try_map(fd, read_only.handle, PINMAP_MAP_FIXED, &address, &fail);
		check_fail(__FILE__, __LINE__, result, ENOSPC, &fail, PINMAP_FAIL_APERTURE, 0);
		CHECK_EQ(fail.allowed, last);
	}
	CHECK_EQ(query_handle(fd, read_only.handle).out_nr_mappings, 0);
}

TEST(map_limit)
{
	char *page = anon(1);
	int fd = open_device(0);
	struct registration registration = register_memory(fd, page, PAGE, 0);
	uint64_t address = 0;
	struct pinmap_fail fail;
	int result;

	for (int i = 1; i < 64; i++)
		map(fd, registration.handle, 0, 0);
	CHECK_EQ(query_handle(fd, registration.handle).out_nr_mappings, 64);
	result = try_map(fd, registration.handle, 0, &address, &fail);
	check_fail(__FILE__, __LINE__, result, ENOSPC, &fail, PINMAP_FAIL_OBJECTS, 0);
	CHECK_EQ(fail.needed, 65);
	CHECK_EQ(fail.allowed, 64);
	unmap(fd, registration.handle, registration.device_addr);
	map(fd, registration.handle, 0, 0);
}

TEST(unmap_exactly)
{
	char *memory = anon(4);
	int fd = open_device(0);
	struct registration registration = register_memory(fd, memory, 4 * PAGE, 0);
	struct registration other = register_memory(fd, anon(1), PAGE, 0);

	CHECK_ERR(ENOENT, try_unmap(fd, registration.handle, registration.device_addr + PAGE));
	CHECK_ERR(ENOENT, try_unmap(fd, registration.handle, registration.device_addr - PAGE));
	CHECK_ERR(ENOENT, try_unmap(fd, registration.handle, registration.device_addr + 1));
	CHECK_ERR(ENOENT, try_unmap(fd, registration.handle, 0));
	/* another context's handle */
	CHECK_ERR(ENOENT, try_unmap(fd, registration.handle, other.device_addr));
	CHECK_EQ(query_handle(fd, registration.handle).out_nr_mappings, 1);
	unmap(fd, registration.handle, registration.device_addr);
	CHECK_ERR(ENOENT, try_unmap(fd, registration.handle, registration.device_addr));
	CHECK_EQ(query_handle(fd, registration.handle).out_device_addr, 0);
	CHECK_EQ(query_handle(fd, other.handle).out_nr_mappings, 1);
}
