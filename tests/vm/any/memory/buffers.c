// SPDX-License-Identifier: MIT OR Apache-2.0
/* Several buffers registered by one call, and released by one: all of them or none. */
#define _GNU_SOURCE
#include "edu.h"
#include "memory.h"
#include "pins.h"
#include "process.h"

#include <string.h>
#include <sys/mman.h>

enum { COUNT = 8 };

static struct pinmap_register_buffers all_args(struct pinmap_registration *entries, uint32_t count,
					       uint32_t flags)
{
	struct pinmap_register_buffers args;

	memset(&args, 0xa5, sizeof(args));
	args.size = sizeof(args);
	args.flags = flags;
	args.buffers = (uintptr_t)entries;
	args.count = count;
	args.address_bits = 0;
	args.__reserved = 0;
	return args;
}

static int try_register_all(int fd, struct pinmap_registration *entries, uint32_t count,
			    uint32_t flags)
{
	struct pinmap_register_buffers args = all_args(entries, count, flags);

	return try_ioctl(fd, PINMAP_REGISTER_BUFFERS, &args);
}

static int try_release_all(int fd, const uint64_t *handles, uint32_t count, uint32_t *failed)
{
	struct pinmap_release_buffers args = { .size = sizeof(args),
					       .handles = (uintptr_t)handles,
					       .count = count,
					       .out_failed = 12345 };
	int result = try_ioctl(fd, PINMAP_RELEASE_BUFFERS, &args);

	*failed = args.out_failed;
	return result;
}

/* Every second page of some memory, so that no two are neighbours; i has i + 1 pages. */
static void entries_of(char *memory, struct pinmap_registration entries[COUNT])
{
	for (size_t i = 0; i < COUNT; i++)
		entries[i] = (struct pinmap_registration){ .addr = (uintptr_t)memory +
								   i * 16 * PAGE,
							   .length = (i + 1) * PAGE };
}

enum { ALL_PAGES = COUNT * (COUNT + 1) / 2 };

static void handles_of(const struct pinmap_registration entries[COUNT], uint64_t handles[COUNT])
{
	for (size_t i = 0; i < COUNT; i++)
		handles[i] = entries[i].out_handle;
}

/* Each is as if a call of its own had registered it. */
TEST(buffers_are_registered, .smoke = true)
{
	int fd = open_device(0);
	char *memory = anon(COUNT * 16);
	struct pinmap_registration entries[COUNT];
	uint64_t handles[COUNT];
	long long pins = pins_held();
	uint32_t failed;

	/* Twice: the second time with what the first has left for it. */
	for (int round = 0; round < 2; round++) {
		entries_of(memory, entries);
		CHECK_OK(try_register_all(fd, entries, COUNT, WRITE));
		CHECK_PINS(pins + ALL_PAGES);
		handles_of(entries, handles);
		for (size_t i = 0; i < COUNT; i++) {
			struct pinmap_query query = query_handle(fd, handles[i]);

			CHECK_EQ(query.out_base, entries[i].addr);
			CHECK_EQ(query.out_length, (i + 1) * PAGE);
			CHECK_EQ(query.out_device_addr, entries[i].device_addr);
			CHECK_EQ(entries[i].device_addr, entries[i].addr);
			CHECK_EQ(query.out_state, PINMAP_STATE_LIVE);
			CHECK_EQ(query.out_nr_mappings, 1);
			CHECK_EQ(query.out_flags, WRITE);
			for (size_t before = 0; before < i; before++)
				CHECK(handles[before] != handles[i]);
		}
		CHECK_OK(try_release_all(fd, handles, COUNT, &failed));
		CHECK_PINS(pins);
		CHECK_ERR(ESTALE, try_release(fd, handles[COUNT - 1]));
		CHECK_EQ(get_info(fd).out_registrations, 0);
	}
}

/* They can be released one by one, too, and by any call. */
TEST(buffers_are_released_one_by_one)
{
	int fd = open_device(0);
	struct pinmap_registration entries[COUNT];
	uint64_t handles[COUNT];
	long long pins = pins_held();
	uint32_t failed;

	entries_of(anon(COUNT * 16), entries);
	CHECK_OK(try_register_all(fd, entries, COUNT, WRITE));
	handles_of(entries, handles);
	release(fd, handles[3]);
	CHECK_PINS(pins + ALL_PAGES - 4);
	handles[3] = register_memory(fd, (void *)(uintptr_t)entries[3].addr, PAGE, 0).handle;
	CHECK_OK(try_release_all(fd, handles, COUNT, &failed));
	CHECK_PINS(pins);
}

/* One buffer that fails is told, with its number. The others before it are released again. */
TEST(buffers_none_is_registered)
{
	int fd = open_device(0);
	char *memory = anon(COUNT * 16);
	struct pinmap_registration entries[COUNT];
	struct pinmap_info before = get_info(fd), after;
	long long pins = pins_held();

	for (size_t bad = 0; bad < COUNT; bad += 3) {
		struct pinmap_register_buffers args = all_args(entries, COUNT, WRITE);
		char *hole;

		/* A hole, found when it is pinned. */
		entries_of(memory, entries);
		hole = address_space(16 * PAGE, PAGE);
		entries[bad].addr = (uintptr_t)hole;
		CHECK_ERR(EFAULT, try_ioctl(fd, PINMAP_REGISTER_BUFFERS, &args));
		CHECK_EQ(args.out_failed, bad);
		CHECK_EQ(args.fail.reason, PINMAP_FAIL_PERMISSION);
		CHECK_EQ(args.fail.addr, (uintptr_t)hole);
		CHECK_PINS(pins);
		/* Nothing was written. */
		CHECK_EQ(entries[0].out_handle, 0);

		/* An overlap, found when the addresses are taken. */
		entries_of(memory, entries);
		entries[bad].addr = entries[(bad + 1) % COUNT].addr;
		args = all_args(entries, COUNT, WRITE);
		CHECK_ERR(EEXIST, try_ioctl(fd, PINMAP_REGISTER_BUFFERS, &args));
		CHECK_EQ(args.out_failed, bad + 1 < COUNT ? bad + 1 : bad);
		CHECK_EQ(args.fail.reason, PINMAP_FAIL_OVERLAP);
		CHECK_PINS(pins);

		/* A bad argument, found before anything is done. */
		entries_of(memory, entries);
		entries[bad].length = 5;
		args = all_args(entries, COUNT, WRITE);
		CHECK_ERR(EINVAL, try_ioctl(fd, PINMAP_REGISTER_BUFFERS, &args));
		CHECK_EQ(args.out_failed, bad);
		CHECK_EQ(args.fail.reason, 0);
		CHECK_PINS(pins);
	}
	after = get_info(fd);
	CHECK_EQ(after.out_registrations, before.out_registrations);
	CHECK_EQ(after.out_memlock_used, before.out_memlock_used);
	/* Nothing is in the way of the same memory. */
	entries_of(memory, entries);
	CHECK_OK(try_register_all(fd, entries, COUNT, WRITE | IDENTITY));
}

/* A limit that the last one exceeds. */
TEST(buffers_over_the_limit)
{
	int fd;
	struct pinmap_registration entries[COUNT];
	struct pinmap_register_buffers args = all_args(entries, COUNT, WRITE);
	char *memory = anon(COUNT * 16);

	set_memlock((ALL_PAGES - 1) * PAGE);
	become_user(true);
	fd = open_device(0);
	entries_of(memory, entries);
	CHECK_ERR(ENOMEM, try_ioctl(fd, PINMAP_REGISTER_BUFFERS, &args));
	CHECK_EQ(args.out_failed, COUNT - 1);
	CHECK_EQ(args.fail.reason, PINMAP_FAIL_MEMLOCK);
	CHECK_OK(try_register_all(fd, entries, COUNT - 1, WRITE));
}

TEST(buffers_bad_arrays)
{
	int fd = open_device(0);
	struct pinmap_registration entry = { .addr = (uintptr_t)anon(1), .length = PAGE };
	struct pinmap_register_buffers args = all_args(&entry, 0, WRITE);
	long long pins = pins_held();
	uint64_t handle = 1;
	uint32_t failed;
	char *page;

	CHECK_ERR(EINVAL, try_ioctl(fd, PINMAP_REGISTER_BUFFERS, &args));
	CHECK_EQ(args.out_failed, 0);
	args.count = PINMAP_MAX_BUFFERS + 1;
	CHECK_ERR(EINVAL, try_ioctl(fd, PINMAP_REGISTER_BUFFERS, &args));
	args.count = UINT32_MAX;
	CHECK_ERR(EINVAL, try_ioctl(fd, PINMAP_REGISTER_BUFFERS, &args));
	args.count = 1;
	args.buffers = 0;
	CHECK_ERR(EFAULT, try_ioctl(fd, PINMAP_REGISTER_BUFFERS, &args));
	CHECK_EQ(args.out_failed, 1);
	CHECK_EQ(args.fail.reason, 0);
	CHECK_ERR(EINVAL, try_release_all(fd, &handle, 0, &failed));
	CHECK_ERR(EINVAL, try_release_all(fd, &handle, PINMAP_MAX_BUFFERS + 1, &failed));
	CHECK_ERR(EFAULT, try_release_all(fd, NULL, 1, &failed));

	/* An array that can be read and not written: nothing is left. */
	page = anon(1);
	memcpy(page, &entry, sizeof(entry));
	SYS(mprotect(page, PAGE, PROT_READ));
	args = all_args((void *)page, 1, WRITE);
	CHECK_ERR(EFAULT, try_ioctl(fd, PINMAP_REGISTER_BUFFERS, &args));
	CHECK_PINS(pins);
	CHECK_EQ(get_info(fd).out_registrations, 0);
}

/* As many as there may be. */
TEST(buffers_most)
{
	enum { MOST = PINMAP_MAX_BUFFERS };
	int fd = open_device(0);
	static struct pinmap_registration entries[MOST];
	static uint64_t handles[MOST];
	char *memory = anon(2 * MOST);
	long long pins = pins_held();
	uint32_t failed;

	for (size_t i = 0; i < MOST; i++)
		entries[i] = (struct pinmap_registration){
			.addr = (uintptr_t)memory + 2 * i * PAGE, .length = PAGE
		};
	CHECK_OK(try_register_all(fd, entries, MOST, 0));
	CHECK_PINS(pins + MOST);
	for (size_t i = 0; i < MOST; i++)
		handles[i] = entries[i].out_handle;
	CHECK_OK(try_release_all(fd, handles, MOST, &failed));
	CHECK_PINS(pins);
}

/* A handle that cannot be released: none is. */
TEST(buffers_none_is_released)
{
	int fd = open_device(0);
	struct pinmap_registration entries[COUNT];
	uint64_t handles[COUNT], good[COUNT];
	long long pins = pins_held();
	uint32_t failed;

	entries_of(anon(COUNT * 16), entries);
	CHECK_OK(try_register_all(fd, entries, COUNT, WRITE));
	handles_of(entries, good);
	memcpy(handles, good, sizeof(good));

	handles[5] = handles[2];
	CHECK_ERR(EINVAL, try_release_all(fd, handles, COUNT, &failed));
	CHECK_EQ(failed, 5);
	handles[5] = 0;
	CHECK_ERR(ENOENT, try_release_all(fd, handles, COUNT, &failed));
	CHECK_EQ(failed, 5);
	handles[5] = good[5];
	handles[7] = UINT64_MAX;
	CHECK_ERR(ENOENT, try_release_all(fd, handles, COUNT, &failed));
	CHECK_EQ(failed, 7);
	CHECK_PINS(pins + ALL_PAGES);
	/* They are found as before, and have their addresses. */
	CHECK_EQ(get_info(fd).out_registrations, COUNT);
	for (size_t i = 0; i < COUNT; i++) {
		CHECK_EQ(query_handle(fd, good[i]).out_base, entries[i].addr);
		CHECK_EQ(query_addr(fd, (void *)(uintptr_t)entries[i].addr).handle, good[i]);
		entries[i].device_addr = 0;
	}
	CHECK_ERR(EEXIST, try_register_all(fd, entries, COUNT, WRITE));

	release(fd, good[0]);
	CHECK_ERR(ESTALE, try_release_all(fd, good, COUNT, &failed));
	CHECK_EQ(failed, 0);
	CHECK_PINS(pins + ALL_PAGES - 1);
	CHECK_OK(try_release_all(fd, good + 1, COUNT - 1, &failed));
	CHECK_PINS(pins);
}

/* A call that fails leaves the addresses to a stale registration, whose turn did not come. */
TEST(buffers_behind_the_failed)
{
	int fd = open_device(0);
	char *memory = anon(COUNT * 16);
	struct pinmap_registration entries[COUNT];
	uint64_t handles[COUNT];
	struct registration stale;
	uint32_t failed;

	/* so that there is memory for all of them */
	entries_of(memory, entries);
	CHECK_OK(try_register_all(fd, entries, COUNT, WRITE));
	handles_of(entries, handles);
	CHECK_OK(try_release_all(fd, handles, COUNT, &failed));
	entries_of(memory, entries);
	stale = register_memory(fd, (void *)(uintptr_t)entries[2].addr, PAGE, WRITE);
	SYS(mmap(stale.addr, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0));
	CHECK_STALE_EVENT(fd, stale);
	entries[0].addr = (uintptr_t)address_space(16 * PAGE, PAGE);
	CHECK_ERR(EFAULT, try_register_all(fd, entries, COUNT, WRITE));
	CHECK_EQ(query_addr(fd, stale.addr).handle, stale.handle);
	entries[0].addr = (uintptr_t)memory;
	CHECK_OK(try_register_all(fd, entries, COUNT, WRITE));
	CHECK_EQ(query_addr(fd, stale.addr).handle, entries[2].out_handle);
}

/* Memory that went away is released with the others, and its event is taken back. */
TEST(buffers_that_are_stale)
{
	int fd = open_device(0);
	struct pinmap_registration entries[COUNT];
	uint64_t handles[COUNT];
	long long pins = pins_held();
	struct registration gone;
	uint32_t failed;

	entries_of(anon(COUNT * 16), entries);
	CHECK_OK(try_register_all(fd, entries, COUNT, WRITE));
	handles_of(entries, handles);
	gone = (struct registration){ .addr = (void *)(uintptr_t)entries[4].addr,
				      .length = entries[4].length,
				      .handle = handles[4] };
	SYS(munmap(gone.addr, gone.length));
	CHECK_STALE_EVENT(fd, gone);
	SYS(munmap((void *)(uintptr_t)entries[6].addr, PAGE));
	CHECK_OK(try_release_all(fd, handles, COUNT, &failed));
	CHECK_PINS(pins);
	CHECK_NO_EVENT(fd);
}
