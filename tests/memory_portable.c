// SPDX-License-Identifier: MIT OR Apache-2.0
/* Group B: portable memory: on every device that the process has open, with one pin and one charge. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "gpu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PORTABLE = PINMAP_REGISTER_PORTABLE };

/* A second device that can be driven. */
static void need_two(void)
{
	need_device(1);
}

static long long pinned_kib(void)
{
	return file_field("/proc/self/status", "VmPin:");
}

TEST(portable_devices, .faults = true)
{
	struct registration registration;
	struct pinmap_query query;
	struct edu first, second;
	long long pins, kib;
	char *memory;
	int fd, other;

	need_two();
	fd = open_device(0);
	other = open_device(1);
	first = edu_open(fd);
	second = edu_open(other);
	memory = anon(4);
	pins = pins_held();
	kib = pinned_kib();
	registration = register_memory(fd, memory, 4 * PAGE, WRITE | PORTABLE);
	/* one pin, one charge */
	CHECK_PINS(pins + 4);
	CHECK_EQ(pinned_kib(), kib + 16);
	query = query_addr(other, memory + PAGE + 3);
	CHECK(query.handle != 0);
	CHECK_EQ(query.out_base, (uintptr_t)memory);
	CHECK_EQ(query.out_device_addr, (uintptr_t)memory + PAGE + 3);
	CHECK_EQ(query.out_flags, WRITE | PORTABLE);
	CHECK_EQ(query.out_nr_mappings, 1);
	CHECK_EQ(query_handle(fd, registration.handle).out_nr_mappings, 1);
	CHECK_EQ(get_info(other).out_registrations, 1);
	CHECK_REACHES(&first, registration.device_addr, memory, PAGE);
	CHECK_REACHES(&second, (uintptr_t)memory + 2 * PAGE, memory + 2 * PAGE, PAGE);
	/* it counts as registered there */
	CHECK_REGISTER_FAILS(other, memory + 3 * PAGE, PAGE, WRITE, EEXIST, PINMAP_FAIL_OVERLAP, memory);
	release(fd, registration.handle);
	CHECK_PINS(pins);
	CHECK_EQ(pinned_kib(), kib);
	CHECK_ERR(ENOENT, try_query_addr(other, memory, &query));
	CHECK_ERR(ESTALE, try_release(other, query.handle ?: 1));
	CHECK_EQ(get_info(other).out_registrations, 0);
	/* neither device reaches it any more */
	memset(memory, 0x44, 4 * PAGE);
	edu_load(&second, 9);
	edu_writes(&second, (uintptr_t)memory + 2 * PAGE, PAGE);
	CHECK(bytes_are(memory, 4 * PAGE, 0x44));
}

/* Also on a device that is opened later; and what another process does is no matter. */
TEST(portable_later)
{
	struct registration registration;
	struct pinmap_query query;
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
	if (fork() == 0) {
		other = open_device(1);
		CHECK_ERR(ENOENT, try_query_addr(other, memory, &query));
		CHECK(!(get_info(other).out_flags & PINMAP_INFO_OWNED));
		_exit(0);
	}
}

/* What one device cannot have fails as a whole, for the reason of that device. */
TEST(portable_refused)
{
	struct registration in_the_way;
	struct pinmap_register args;
	struct gate owned = gate_new(), checked = gate_new();
	long long pins;
	char *memory;
	int fd, other;
	pid_t pid;

	need_two();
	fd = open_device(0);
	other = open_device(1);
	memory = anon(8);
	/* the same memory is registered there */
	in_the_way = register_memory(other, memory + 2 * PAGE, PAGE, NO_MAP);
	pins = pins_held();
	CHECK_REGISTER_FAILS(fd, memory, 4 * PAGE, WRITE | PORTABLE, EEXIST, PINMAP_FAIL_OVERLAP, memory + 2 * PAGE);
	release(other, in_the_way.handle);
	/* the address is taken there */
	args = register_args(memory + 7 * PAGE, PAGE, FIXED);
	args.device_addr = (uintptr_t)memory + PAGE;
	CHECK_OK(try_register_args(other, &args));
	CHECK_REGISTER_FAILS(fd, memory, 4 * PAGE, WRITE | PORTABLE | IDENTITY, EEXIST, PINMAP_FAIL_OVERLAP,
			     memory + PAGE);
	CHECK_PINS(pins);
	CHECK_EQ(get_info(fd).out_registrations, 0);
	CHECK_EQ(get_info(other).out_registrations, 1);
	CHECK(!(get_info(fd).out_flags & PINMAP_INFO_OWNED));
	/* who does not insist gets another address there */
	register_memory(fd, memory, 4 * PAGE, WRITE | PORTABLE);
	CHECK(query_addr(other, memory).out_device_addr != (uintptr_t)memory);
	CHECK_EQ(query_addr(other, memory).out_device_addr % HUGE, (uintptr_t)memory % HUGE);
	close(other);
	close(fd);
	/* somebody else has the device */
	fd = open_device(0);
	pid = fork();
	if (pid == 0) {
		register_memory(open_device(1), anon(1), PAGE, WRITE);
		gate_open(&owned);
		gate_pass(&checked);
		_exit(0);
	}
	gate_pass(&owned);
	other = open_device(1);
	CHECK_REGISTER_FAILS(fd, memory, PAGE, WRITE | PORTABLE, EBUSY, PINMAP_FAIL_NONE, 0);
	close(other);
	/* it is not open: no matter */
	register_memory(fd, memory, PAGE, WRITE | PORTABLE);
	CHECK_ERR(EBUSY, try_open_device(1) < 0 ? -EBUSY : 0);
	CHECK(try_open_device(1) == -EBUSY);
	gate_open(&checked);
	join(pid);
	CHECK(WAIT_FOR(2000, (other = try_open_device(1)) >= 0));
	CHECK_EQ(query_addr(other, memory).out_state, PINMAP_STATE_LIVE);
	CHECK_ERR(EINVAL, try_register_memory(fd, memory + PAGE, PAGE, NO_MAP | PORTABLE, &in_the_way));
}

/* When the memory goes, it goes from all devices, before munmap() returns. */
TEST(portable_stale, .faults = true)
{
	struct registration registration;
	struct edu second;
	long long pins;
	char *memory, copy[4096];
	int fd, other, kept;

	need_two();
	fd = open_device(0);
	other = open_device(1);
	second = edu_open(other);
	edu_load(&second, 5);
	memory = anon(4);
	pins = pins_held();
	registration = register_memory(fd, memory, 4 * PAGE, WRITE | PORTABLE);
	CHECK_REACHES(&second, (uintptr_t)memory, memory, PAGE);
	memset(memory, 0x77, PAGE);
	kept = keep_page(memory);
	SYS(munmap(memory, 4 * PAGE));
	edu_writes(&second, (uintptr_t)memory, PAGE);
	read_kept_page(kept, copy);
	CHECK(bytes_are(copy, PAGE, 0x77));
	CHECK_STALE_EVENT(fd, registration);
	CHECK_NO_EVENT(other);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
	CHECK_PINS_SOON(pins);
	release(fd, registration.handle);
	CHECK_EQ(get_info(other).out_registrations, 0);
}

/* Each context can go without the other's harm; what the first registered goes with it. */
TEST(portable_ends)
{
	struct registration registration;
	struct pinmap_query query;
	struct edu first;
	struct pci_device device;
	long long pins;
	char *memory;
	int fd, other;

	need_two();
	device = need_device(1);
	fd = open_device(0);
	first = edu_open(fd);
	memory = anon(4);
	pins = pins_held();
	other = open_device(1);
	registration = register_memory(fd, memory, 4 * PAGE, WRITE | PORTABLE);
	/* let go of in one context only */
	release(other, query_addr(other, memory).handle);
	CHECK_ERR(ENOENT, try_query_addr(other, memory, &query));
	CHECK_PINS(pins + 4);
	CHECK_REACHES(&first, registration.device_addr, memory, PAGE);
	close(other);
	/* unmapped in one context only */
	other = open_device(1);
	query = query_addr(other, memory);
	unmap(other, query.handle, query.out_device_addr);
	CHECK_EQ(query_addr(other, memory).out_nr_mappings, 0);
	CHECK_REACHES(&first, registration.device_addr, memory, PAGE);
	CHECK_EQ(map(other, query.handle, PINMAP_MAP_WRITE, 0), (uintptr_t)memory);
	/* the device of one goes */
	pci_unbind(device.bdf);
	CHECK_REACHES(&first, registration.device_addr, memory, PAGE);
	register_memory(fd, anon(1), PAGE, WRITE | PORTABLE);
	CHECK_PINS(pins + 5);
	close(other);
	pci_bind(device.bdf);
	/* the first one goes */
	other = open_device(1);
	CHECK_EQ(get_info(other).out_registrations, 2);
	edu_close(&first);
	close(fd);
	CHECK_PINS(pins);
	CHECK_EQ(get_info(other).out_registrations, 0);
	CHECK_ERR(ENOENT, try_query_addr(other, memory, &query));
	register_memory(other, memory, 4 * PAGE, WRITE | IDENTITY);
}

/* Two contexts of one device: with an MMU each has the memory; without, the device has it by one of them. */
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

/* The same for memory that the driver allocates: the first mapping of it is one on every device. */
TEST(portable_allocation)
{
	struct pinmap_alloc args = { .size = sizeof(args), .flags = PINMAP_ALLOC_PORTABLE, .length = 4 * PAGE };
	struct pinmap_query query;
	struct pinmap_map again;
	struct edu second;
	char *memory;
	int fd, other;

	need_two();
	fd = open_device(0);
	other = open_device(1);
	second = edu_open(other);
	CHECK_OK(try_ioctl(fd, PINMAP_ALLOC, &args));
	memory = SYS(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)args.out_offset));
	CHECK_ERR(ENOENT, try_query_addr(other, memory, &query));
	CHECK_EQ(map(fd, args.out_handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, (uintptr_t)memory), (uintptr_t)memory);
	query = query_addr(other, memory + PAGE + 1);
	CHECK_EQ(query.out_device_addr, (uintptr_t)memory + PAGE + 1);
	CHECK_EQ(query.out_kind, PINMAP_BUFFER_HOST);
	CHECK_EQ(query.out_flags, WRITE | PORTABLE);
	CHECK_EQ(query.out_base, (uintptr_t)memory);
	CHECK_REACHES(&second, (uintptr_t)memory + PAGE, memory + PAGE, PAGE);
	/* once more here is only here */
	map(fd, args.out_handle, PINMAP_MAP_WRITE, 0);
	CHECK_EQ(query_handle(fd, args.out_handle).out_nr_mappings, 2);
	CHECK_EQ(query_addr(other, memory).out_nr_mappings, 1);
	/* opened later */
	edu_close(&second);
	close(other);
	other = open_device(1);
	second = edu_open(other);
	CHECK_REACHES(&second, (uintptr_t)memory, memory, PAGE);
	release(fd, args.out_handle);
	CHECK_ERR(ENOENT, try_query_addr(other, memory, &query));
	CHECK_EQ(get_info(other).out_registrations, 0);
	/* a mapping that one device cannot have is none */
	args = (struct pinmap_alloc){ .size = sizeof(args), .flags = PINMAP_ALLOC_PORTABLE, .length = PAGE };
	CHECK_OK(try_ioctl(fd, PINMAP_ALLOC, &args));
	register_memory(other, anon(1), PAGE, WRITE);
	{
		struct pinmap_register taken = register_args(anon(1), PAGE, FIXED);

		taken.device_addr = 64 * MIB;
		CHECK_OK(try_register_args(other, &taken));
	}
	again = (struct pinmap_map){ .size = sizeof(again), .flags = PINMAP_MAP_FIXED, .handle = args.out_handle,
				     .device_addr = 64 * MIB };
	check_fail(__FILE__, __LINE__, try_ioctl(fd, PINMAP_MAP, &again), EEXIST, &again.fail, PINMAP_FAIL_OVERLAP,
		   64 * MIB);
	CHECK_EQ(query_handle(fd, args.out_handle).out_nr_mappings, 0);
	again.device_addr = 128 * MIB;
	CHECK_OK(try_ioctl(fd, PINMAP_MAP, &again));
	CHECK_EQ(get_info(other).out_registrations, 3);
	args.flags |= PINMAP_ALLOC_VRAM;
	CHECK_ERR(EINVAL, try_ioctl(fd, PINMAP_ALLOC, &args));
}

struct race {
	int fd;
	char *memory;
	volatile bool stop;
	unsigned int good, bad;
};

static void *open_and_close(void *argument)
{
	struct race *race = argument;

	while (!race->stop) {
		int fd = try_open_device(1);

		if (fd >= 0)
			close(fd);
	}
	return NULL;
}

static void *register_and_release(void *argument)
{
	struct race *race = argument;

	while (!race->stop) {
		struct registration registration;

		if (try_register_memory(race->fd, race->memory, 4 * PAGE, WRITE | PORTABLE, &registration)) {
			race->bad++;
			continue;
		}
		race->good++;
		release(race->fd, registration.handle);
	}
	return NULL;
}

/* Opening, closing, registering, releasing and losing memory, all at once. */
TEST(portable_race, .seconds = 60)
{
	struct race races[3];
	pthread_t openers[2], owners[3];
	char *memory = anon(12);
	long long pins;
	int fd;

	need_two();
	fd = open_device(0);
	pins = pins_held();
	for (int i = 0; i < 3; i++) {
		races[i] = (struct race){ .fd = fd, .memory = memory + i * 4 * PAGE };
		CHECK_OK(-pthread_create(&owners[i], NULL, register_and_release, &races[i]));
	}
	for (int i = 0; i < 2; i++)
		CHECK_OK(-pthread_create(&openers[i], NULL, open_and_close, &races[0]));
	for (unsigned int round = 0; round < rounds(100); round++) {
		SYS(mmap(memory + 8 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
			 -1, 0));
		sleep_ms(5);
	}
	for (int i = 0; i < 3; i++)
		races[i].stop = true;
	for (int i = 0; i < 3; i++) {
		CHECK_OK(-pthread_join(owners[i], NULL));
		diag("%u registrations, %u refused", races[i].good, races[i].bad);
		CHECK(races[i].good > 0);
	}
	for (int i = 0; i < 2; i++)
		CHECK_OK(-pthread_join(openers[i], NULL));
	CHECK_PINS_SOON(pins);
	CHECK_EQ(get_info(fd).out_registrations, 0);
}
