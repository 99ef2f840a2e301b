// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory of the driver that is portable. */
#define _GNU_SOURCE
#include "pair.h"

#include "alloc.h"
#include "edu.h"
#include "memory.h"

#include <unistd.h>

/* Two devices that are open, and portable memory of the driver's, which is not mapped yet. */
struct alloc_pair {
	int fd, other;
	struct pinmap_alloc args;
	char *memory;
};

static struct alloc_pair alloc_pair_new(void)
{
	struct alloc_pair pair;

	need_two();
	pair.fd = open_device(0);
	pair.other = open_device(1);
	CHECK_OK(try_alloc(pair.fd, PINMAP_ALLOC_PORTABLE, PAGES * PAGE, &pair.args));
	pair.memory = alloc_view(pair.fd, &pair.args);
	return pair;
}

static void map_it(const struct alloc_pair *pair)
{
	uint64_t addr = (uintptr_t)pair->memory;

	CHECK_EQ(map(pair->fd, pair->args.out_handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, addr),
		 addr);
}

/* The first mapping of portable memory is one on every device. */
TEST(portable_allocation_is_mapped_on_both)
{
	struct alloc_pair pair = alloc_pair_new();
	struct edu second = edu_open(pair.other);
	struct pinmap_query query;

	CHECK_ERR(ENOENT, try_query_addr(pair.other, pair.memory, &query));
	map_it(&pair);
	CHECK_EQ(query_addr(pair.other, pair.memory + PAGE + 1).out_device_addr,
		 (uintptr_t)pair.memory + PAGE + 1);
	CHECK_REACHES(&second, (uintptr_t)pair.memory + PAGE, pair.memory + PAGE, PAGE);
}

TEST(portable_allocation_is_told_on_the_other)
{
	struct alloc_pair pair = alloc_pair_new();
	struct pinmap_query query;

	map_it(&pair);
	query = query_addr(pair.other, pair.memory + PAGE + 1);
	CHECK_EQ(query.out_kind, PINMAP_BUFFER_HOST);
	CHECK_EQ(query.out_flags, WRITE | PORTABLE);
	CHECK_EQ(query.out_base, (uintptr_t)pair.memory);
	/* only the file that allocated it can be mapped */
	CHECK_EQ(query.out_offset, 0);
	CHECK_EQ(query_handle(pair.fd, pair.args.out_handle).out_offset, pair.args.out_offset);
}

TEST(portable_allocation_second_mapping_is_local)
{
	struct alloc_pair pair = alloc_pair_new();

	map_it(&pair);
	map(pair.fd, pair.args.out_handle, PINMAP_MAP_WRITE, 0);
	CHECK_EQ(query_handle(pair.fd, pair.args.out_handle).out_nr_mappings, 2);
	CHECK_EQ(query_addr(pair.other, pair.memory).out_nr_mappings, 1);
}

TEST(portable_allocation_on_a_device_opened_later)
{
	struct alloc_pair pair = alloc_pair_new();
	struct edu second;

	map_it(&pair);
	close(pair.other);
	pair.other = open_device(1);
	second = edu_open(pair.other);
	CHECK_REACHES(&second, (uintptr_t)pair.memory, pair.memory, PAGE);
}

TEST(portable_allocation_is_released_on_both)
{
	struct alloc_pair pair = alloc_pair_new();
	struct pinmap_query query;

	map_it(&pair);
	release(pair.fd, pair.args.out_handle);
	CHECK_ERR(ENOENT, try_query_addr(pair.other, pair.memory, &query));
	CHECK_EQ(get_info(pair.other).out_registrations, 0);
}

/* A mapping that one device cannot have is none; another address can be tried. */
TEST(portable_allocation_address_taken_on_another)
{
	struct alloc_pair pair = alloc_pair_new();
	struct pinmap_register taken = register_args(anon(1), PAGE, FIXED);
	uint64_t handle = pair.args.out_handle, addr = 64 * MIB;
	struct pinmap_fail fail;

	taken.device_addr = addr;
	CHECK_OK(try_register_args(pair.other, &taken));
	check_fail(__FILE__, __LINE__, try_map(pair.fd, handle, PINMAP_MAP_FIXED, &addr, &fail),
		   EEXIST, &fail, PINMAP_FAIL_OVERLAP, 64 * MIB);
	CHECK_EQ(query_handle(pair.fd, handle).out_nr_mappings, 0);
	addr = 192 * MIB;
	CHECK_OK(try_map(pair.fd, handle, PINMAP_MAP_FIXED, &addr, &fail));
	CHECK_EQ(get_info(pair.other).out_registrations, 2);
}

TEST(portable_allocation_of_vram)
{
	struct pinmap_alloc args;

	CHECK_ERR(EINVAL, try_alloc(open_device(0), PINMAP_ALLOC_PORTABLE | PINMAP_ALLOC_VRAM, PAGE,
				    &args));
}
