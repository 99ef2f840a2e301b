// SPDX-License-Identifier: MIT OR Apache-2.0
/* Protection that changes after the registration, or during it. */
#define _GNU_SOURCE
#include "edu.h"
#include "memory.h"
#include "pins.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * Taking away the right to write has no effect on registered memory: it was checked when the memory
 * was pinned.
 */
TEST(mprotect_after)
{
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *memory = anon(2);
	struct registration registration = register_memory(fd, memory, 2 * PAGE, WRITE);

	edu_load(&edu, 61);
	SYS(mprotect(memory, 2 * PAGE, PROT_READ));
	edu_writes(&edu, registration.device_addr, PAGE);
	CHECK(pattern_is(memory, PAGE, 61));
	SYS(mprotect(memory, 2 * PAGE, PROT_NONE));
	edu_writes(&edu, registration.device_addr + PAGE, PAGE);
	SYS(mprotect(memory, 2 * PAGE, PROT_READ | PROT_WRITE));
	CHECK(pattern_is(memory + PAGE, PAGE, 61));
	CHECK_NO_EVENT(fd);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
}

struct race {
	char *memory;
	size_t length;
	volatile bool stop;
};

static void *toggle(void *argument)
{
	struct race *race = argument;

	while (!race->stop) {
		SYS(mprotect(race->memory, race->length, PROT_READ));
		SYS(mprotect(race->memory, race->length, PROT_READ | PROT_WRITE));
	}
	return NULL;
}

/*
 * Registering for writing while the right to write comes and goes works, or fails for that reason.
 */
TEST(mprotect_during)
{
	struct race race = { .memory = anon(64), .length = 64 * PAGE };
	unsigned int good = 0, refused = 0, i;
	int fd = open_device(0);
	long long pins = pins_held();
	pthread_t thread;

	CHECK_OK(-pthread_create(&thread, NULL, toggle, &race));
	for (i = 0; i < rounds(20000) && (i < rounds(2000) || !good || !refused); i++) {
		struct pinmap_register args =
			register_args(race.memory, race.length, WRITE | NO_MAP);
		int result = try_register_args(fd, &args);

		if (result == 0) {
			release(fd, args.out_handle);
			good++;
			continue;
		}
		refused++;
		CHECK_ERR(EFAULT, result);
		/* when the reason is looked for, the right may be there again */
		CHECK(args.fail.reason == PINMAP_FAIL_PERMISSION ||
		      args.fail.reason == PINMAP_FAIL_FAULT);
		CHECK(args.fail.addr >= (uintptr_t)race.memory &&
		      args.fail.addr < (uintptr_t)race.memory + race.length);
	}
	race.stop = true;
	CHECK_OK(-pthread_join(thread, NULL));
	diag("%u registered, %u refused", good, refused);
	CHECK(good > 0 && refused > 0);
	CHECK_PINS(pins);
}

static void *discard(void *argument)
{
	struct race *race = argument;

	while (!race->stop)
		SYS(madvise(race->memory, race->length, MADV_DONTNEED));
	return NULL;
}

/*
 * The race of "Dirty COW": copy-on-write of a private mapping is broken while the copy is thrown
 * away again and again. The file must keep its content, though the device writes.
 */
TEST(copy_thrown_away, .faults = true, .seconds = 40)
{
	struct memory memory = memory_new(EXT4_PRIVATE, PAGE);
	struct race race = { .memory = memory.addr, .length = PAGE };
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	long long pins = pins_held();
	pthread_t thread;

	edu_load(&edu, 1);
	CHECK_OK(-pthread_create(&thread, NULL, discard, &race));
	for (unsigned int i = 0; i < rounds(1000); i++) {
		struct registration registration;
		int result = try_register_memory(fd, memory.addr, PAGE, WRITE, &registration);

		if (result) {
			CHECK_ERR(ESTALE, result);
			continue;
		}
		if (i % 50 == 0)
			edu_writes(&edu, registration.device_addr, PAGE);
		release(fd, registration.handle);
	}
	race.stop = true;
	CHECK_OK(-pthread_join(thread, NULL));
	CHECK(bytes_are(memory.alias, PAGE, 0x11));
	CHECK_PINS_SOON(pins);
}
