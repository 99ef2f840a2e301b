// SPDX-License-Identifier: MIT OR Apache-2.0
/* Calls of portable memory at the same time. */
#define _GNU_SOURCE
#include "pair.h"

#include "edu.h"
#include "memory.h"
#include "pins.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct race {
	int fd;
	char *memory;
	volatile bool stop;
	unsigned int good, bad;
};

/* Memory that one thread releases while another maps it. */
struct contest {
	int fd;
	uint64_t handle;
	uint64_t device_addr;
	pthread_barrier_t *start;
};

static void *contest_map(void *argument)
{
	struct contest *contest = argument;
	struct pinmap_fail fail;

	pthread_barrier_wait(contest->start);
	try_map(contest->fd, contest->handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED,
		&contest->device_addr, &fail);
	return NULL;
}

static void *contest_release(void *argument)
{
	struct contest *contest = argument;

	pthread_barrier_wait(contest->start);
	release(contest->fd, contest->handle);
	return NULL;
}

static void compete(struct contest *contest)
{
	pthread_barrier_t start;
	pthread_t mapper, releaser;

	CHECK_OK(-pthread_barrier_init(&start, NULL, 2));
	contest->start = &start;
	CHECK_OK(-pthread_create(&mapper, NULL, contest_map, contest));
	CHECK_OK(-pthread_create(&releaser, NULL, contest_release, contest));
	CHECK_OK(-pthread_join(mapper, NULL));
	CHECK_OK(-pthread_join(releaser, NULL));
	pthread_barrier_destroy(&start);
}

/*
 * The device of a context that lets go of another one's memory does not reach it any more, also by
 * a mapping that is being made.
 */
TEST(portable_released_while_mapped, .seconds = 60, .faults = true)
{
	struct contest contest = { .device_addr = 64 * MIB };
	char *memory = anon(2);
	long long pins;
	struct edu edu;

	need_two();
	contest.fd = open_device(1);
	edu = edu_open(contest.fd);
	pins = pins_held();
	memset(memory, 0x5a, 2 * PAGE);
	edu_load(&edu, 7);
	/* each round takes 100 ms: a transfer that does not arrive */
	for (unsigned int round = 0; round < rounds(60); round++) {
		int fd = open_device(0);

		register_memory(fd, memory, 2 * PAGE, WRITE | PORTABLE);
		contest.handle = query_addr(contest.fd, memory).handle;
		compete(&contest);
		edu_writes(&edu, contest.device_addr, PAGE);
		CHECK(bytes_are(memory, 2 * PAGE, 0x5a));
		CHECK_EQ(get_info(contest.fd).out_registrations, 0);
		close(fd);
		CHECK_PINS_SOON(pins);
	}
}

/* Memory that is released while it is being shared is not shared. */
TEST(portable_released_while_shared, .seconds = 60)
{
	struct contest contest = { .device_addr = 64 * MIB };
	struct pinmap_alloc args;
	long long pins;

	need_two();
	contest.fd = open_device(0);
	pins = pins_held();
	for (unsigned int round = 0; round < rounds(100); round++) {
		args = (struct pinmap_alloc){ .size = sizeof(args),
					      .flags = PINMAP_ALLOC_PORTABLE,
					      .length = 4 * PAGE };
		CHECK_OK(try_ioctl(contest.fd, PINMAP_ALLOC, &args));
		contest.handle = args.out_handle;
		compete(&contest);
		close(open_device(1));
		CHECK_EQ(get_info(contest.fd).out_registrations, 0);
	}
	CHECK_PINS_SOON(pins);
}

static void *open_and_close(void *argument)
{
	struct race *race = argument;

	while (!race->stop) {
		int fd = try_use_device(1);

		if (fd >= 0)
			close(fd);
	}
	return NULL;
}

static void *register_and_release(void *argument)
{
	struct race *race = argument;

	/* on a slow machine the first success may come after the others have stopped */
	while (!race->stop || !race->good) {
		struct registration registration;

		if (try_register_memory(race->fd, race->memory, 4 * PAGE, WRITE | PORTABLE,
					&registration)) {
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
		SYS(mmap(memory + 8 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
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
