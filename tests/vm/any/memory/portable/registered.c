// SPDX-License-Identifier: MIT OR Apache-2.0
/* Portable memory: on every device that the process has open, with one pin and one charge. */
#define _GNU_SOURCE
#include "pair.h"

#include "edu.h"
#include "gpu.h"
#include "memory.h"
#include "pins.h"
#include "process.h"

#include <string.h>
#include <unistd.h>

TEST(portable_pinned_once)
{
	struct pair pair = pair_open();
	long long kib = pinned_kib();

	pair.registration = register_memory(pair.fd, pair.memory, PAGES * PAGE, WRITE | PORTABLE);
	CHECK_PINS(pair.pins + PAGES);
	CHECK_EQ(pinned_kib(), kib + PAGES * PAGE / 1024);
	release(pair.fd, pair.registration.handle);
	CHECK_PINS(pair.pins);
	CHECK_EQ(pinned_kib(), kib);
}

TEST(portable_is_registered_on_the_other)
{
	struct pair pair = pair_new();
	struct pinmap_query query = query_addr(pair.other, pair.memory + PAGE + 3);

	CHECK(query.handle != 0);
	CHECK_EQ(query.out_base, (uintptr_t)pair.memory);
	CHECK_EQ(query.out_device_addr, (uintptr_t)pair.memory + PAGE + 3);
	CHECK_EQ(query.out_flags, WRITE | PORTABLE);
	CHECK_EQ(query.out_nr_mappings, 1);
	CHECK_EQ(query_handle(pair.fd, pair.registration.handle).out_nr_mappings, 1);
	CHECK_EQ(get_info(pair.other).out_registrations, 1);
	CHECK_REGISTER_FAILS(pair.other, pair.memory + 3 * PAGE, PAGE, WRITE, EEXIST,
			     PINMAP_FAIL_OVERLAP, pair.memory);
}

/* Several that one call registers come to the other device, and go, as by calls of their own. */
TEST(portable_registered_together, .faults = true)
{
	struct pair pair = pair_open();
	struct edu second = edu_open(pair.other);
	struct pinmap_registration entries[2] = {
		{ .addr = (uintptr_t)pair.memory, .length = PAGE },
		{ .addr = (uintptr_t)pair.memory + 2 * PAGE, .length = 2 * PAGE },
	};
	struct pinmap_register_buffers args = { .size = sizeof(args),
						.flags = WRITE | PORTABLE,
						.buffers = (uintptr_t)entries,
						.count = 2 };

	CHECK_OK(try_ioctl(pair.fd, PINMAP_REGISTER_BUFFERS, &args));
	for (int i = 0; i < 2; i++) {
		char *part = pair.memory + i * 2 * PAGE;
		uint64_t guest = query_addr(pair.other, part).handle;
		struct pinmap_query query;

		CHECK(guest != 0);
		CHECK_REACHES(&second, (uintptr_t)part, part, PAGE);
		release(pair.fd, entries[i].out_handle);
		CHECK_ERR(ESTALE, try_query_handle(pair.other, guest, &query));
	}
	CHECK_PINS(pair.pins);
}

TEST(portable_reached_by_both, .faults = true)
{
	struct pair pair = pair_new();
	struct edu first = edu_open(pair.fd), second = edu_open(pair.other);
	char *part = pair.memory + 2 * PAGE;

	CHECK_REACHES(&first, pair.registration.device_addr, pair.memory, PAGE);
	CHECK_REACHES(&second, (uintptr_t)part, part, PAGE);
}

TEST(portable_release_ends_reach, .faults = true)
{
	struct pair pair = pair_new();
	struct edu second = edu_open(pair.other);
	char *part = pair.memory + 2 * PAGE;

	CHECK_REACHES(&second, (uintptr_t)part, part, PAGE);
	release(pair.fd, pair.registration.handle);
	memset(pair.memory, 0x44, PAGES * PAGE);
	edu_load(&second, 9);
	edu_writes(&second, (uintptr_t)part, PAGE);
	CHECK(bytes_are(pair.memory, PAGES * PAGE, 0x44));
}

TEST(portable_release_ends_handles)
{
	struct pair pair = pair_new();
	struct pinmap_query query = query_addr(pair.other, pair.memory);
	uint64_t handle = query.handle;

	release(pair.fd, pair.registration.handle);
	CHECK_ERR(ENOENT, try_query_addr(pair.other, pair.memory, &query));
	CHECK_ERR(ESTALE, try_release(pair.other, handle));
	CHECK_EQ(get_info(pair.other).out_registrations, 0);
}

/* A call that would release a guest, and something that is not there, releases nothing. */
TEST(portable_none_is_released)
{
	struct pair pair = pair_new();
	uint64_t guest = query_addr(pair.other, pair.memory).handle;
	uint64_t handles[] = { guest, UINT64_MAX };
	struct pinmap_release_buffers args = { .size = sizeof(args),
					       .handles = (uintptr_t)handles,
					       .count = 2 };

	CHECK_ERR(ENOENT, try_ioctl(pair.other, PINMAP_RELEASE_BUFFERS, &args));
	CHECK_EQ(args.out_failed, 1);
	CHECK_EQ(query_addr(pair.other, pair.memory).handle, guest);
	CHECK_EQ(query_handle(pair.other, guest).out_nr_mappings, 1);
	/* The home finds the guest by its buffer. */
	release(pair.fd, pair.registration.handle);
	CHECK_PINS(pair.pins);
	CHECK_ERR(ESTALE, try_ioctl(pair.other, PINMAP_RELEASE_BUFFERS, &args));
	CHECK_EQ(args.out_failed, 0);
}

TEST(portable_on_a_device_opened_later)
{
	struct registration registration;
	struct edu edu;
	char *memory;
	int fd, other;

	need_two();
	fd = open_device(0);
	memory = anon(4);
	registration = register_memory(fd, memory, 4 * PAGE, WRITE | PORTABLE);
	for (int round = 0; round < 3; round++) {
		other = open_device(1);
		CHECK_EQ(query_addr(other, memory).out_state, PINMAP_STATE_LIVE);
		CHECK(get_info(other).out_flags & PINMAP_INFO_OWNER);
		edu = edu_open(other);
		CHECK_REACHES(&edu, (uintptr_t)memory + PAGE, memory + PAGE, PAGE);
		edu_close(&edu);
		close(other);
	}
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
}

TEST(portable_not_in_another_process)
{
	struct pinmap_query query;
	char *memory;
	pid_t pid;
	int other;

	need_two();
	memory = anon(4);
	register_memory(open_device(0), memory, 4 * PAGE, WRITE | PORTABLE);
	pid = fork();
	if (pid == 0) {
		other = open_device(1);
		CHECK_ERR(ENOENT, try_query_addr(other, memory, &query));
		CHECK(!(get_info(other).out_flags & PINMAP_INFO_OWNED));
		_exit(0);
	}
	join(pid);
}

/*
 * REGISTER of portable memory fails as a whole, for the reason of the device that cannot have it.
 */
TEST(portable_overlaps_on_another)
{
	struct pair pair = pair_open();
	char *part = pair.memory + 2 * PAGE;
	long long pins;

	register_memory(pair.other, part, PAGE, NO_MAP);
	pins = pins_held();
	CHECK_REGISTER_FAILS(pair.fd, pair.memory, PAGES * PAGE, WRITE | PORTABLE, EEXIST,
			     PINMAP_FAIL_OVERLAP, part);
	CHECK_PINS(pins);
	CHECK_EQ(get_info(pair.fd).out_registrations, 0);
}

/* Takes a device address in the middle of the memory on the other device. */
static void take_address(const struct pair *pair)
{
	struct pinmap_register args = register_args(pair->memory + 7 * PAGE, PAGE, FIXED);

	args.device_addr = (uintptr_t)pair->memory + PAGE;
	CHECK_OK(try_register_args(pair->other, &args));
}

TEST(portable_address_taken_on_another)
{
	struct pair pair = pair_open();
	long long pins;

	take_address(&pair);
	pins = pins_held();
	CHECK_REGISTER_FAILS(pair.fd, pair.memory, PAGES * PAGE, WRITE | PORTABLE | IDENTITY,
			     EEXIST, PINMAP_FAIL_OVERLAP, pair.memory + PAGE);
	CHECK_PINS(pins);
	CHECK_EQ(get_info(pair.fd).out_registrations, 0);
	CHECK_EQ(get_info(pair.other).out_registrations, 1);
	CHECK(!(get_info(pair.fd).out_flags & PINMAP_INFO_OWNED));
}

TEST(portable_at_another_address_there)
{
	struct pair pair = pair_open();
	uint64_t addr = (uintptr_t)pair.memory;

	take_address(&pair);
	register_memory(pair.fd, pair.memory, PAGES * PAGE, WRITE | PORTABLE);
	CHECK(query_addr(pair.other, pair.memory).out_device_addr != addr);
	CHECK_EQ(query_addr(pair.other, pair.memory).out_device_addr % HUGE, addr % HUGE);
}

TEST(portable_without_a_mapping)
{
	struct registration registration;
	char *memory = anon(1);

	CHECK_ERR(EINVAL, try_register_memory(open_device(0), memory, PAGE, NO_MAP | PORTABLE,
					      &registration));
}

/* A process that has the second device until it is told to end. */
struct owner {
	struct gate owned, ends;
	pid_t pid;
};

static struct owner owner_start(void)
{
	struct owner owner = { .owned = gate_new(), .ends = gate_new() };

	owner.pid = fork();
	if (owner.pid == 0) {
		register_memory(open_device(1), anon(1), PAGE, WRITE);
		gate_open(&owner.owned);
		gate_pass(&owner.ends);
		_exit(0);
	}
	gate_pass(&owner.owned);
	return owner;
}

static void owner_end(const struct owner *owner)
{
	gate_open(&owner->ends);
	join(owner->pid);
}

TEST(portable_where_another_process_is)
{
	struct owner owner;
	int fd, other;

	need_two();
	fd = open_device(0);
	owner = owner_start();
	other = open_device(1);
	CHECK_REGISTER_FAILS(fd, anon(1), PAGE, WRITE | PORTABLE, EBUSY, PINMAP_FAIL_NONE, 0);
	close(other);
	/* a device that is not open does not matter */
	register_memory(fd, anon(1), PAGE, WRITE | PORTABLE);
	owner_end(&owner);
}

/* open() itself does nothing to the device; a call that failed can be tried again. */
TEST(portable_once_another_process_has_gone)
{
	char *memory = anon(1);
	struct pinmap_query query;
	struct owner owner;
	int fd, other;

	need_two();
	fd = open_device(0);
	owner = owner_start();
	register_memory(fd, memory, PAGE, WRITE | PORTABLE);
	CHECK_EQ(try_use_device(1), -EBUSY);
	other = SYS(try_open_device(1));
	CHECK_ERR(EBUSY, try_query_addr(other, memory, &query));
	CHECK_ERR(EBUSY, try_query_addr(other, memory, &query));
	owner_end(&owner);
	CHECK(WAIT_FOR(2000, !try_query_addr(other, memory, &query)));
	CHECK_EQ(query_addr(other, memory).out_state, PINMAP_STATE_LIVE);
}

/*
 * Two contexts of one device: with an MMU each has the memory; without, the device has it by one of
 * them.
 */
TEST(portable_contexts)
{
	int fd = open_device(0), other = open_device(0);
	char *memory = anon(4);
	struct registration registration = register_memory(fd, memory, 4 * PAGE, WRITE | PORTABLE);
	struct pinmap_query query;

	if (get_info(fd).out_kind != PINMAP_KIND_PAGED) {
		CHECK_ERR(ENOENT, try_query_addr(other, memory, &query));
		return;
	}
	for (int round = 0; round < 2; round++) {
		struct gpu_queue queue = queue_new(other);

		CHECK_EQ(query_addr(other, memory + 5).out_device_addr, (uintptr_t)memory + 5);
		queue_push(&queue, GPU_FILL, (uintptr_t)memory, PAGE, 0x50 + (uint64_t)round);
		queue_finish(&queue);
		CHECK(bytes_are(memory, PAGE, (unsigned char)(0x50 + round)));
		close(other);
		other = open_device(0);
	}
	release(fd, registration.handle);
	CHECK_ERR(ENOENT, try_query_addr(other, memory, &query));
}
