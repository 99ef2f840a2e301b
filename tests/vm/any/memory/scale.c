// SPDX-License-Identifier: MIT OR Apache-2.0
/* No size and no number is built in, and no number makes the next call dearer. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "gpu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MANY = 65536, SAMPLE = 1000 };

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

/*
 * Returns a time that most of the calls take at least. Other work on the machine makes some of them
 * longer, and none shorter.
 */
static uint64_t undisturbed(uint64_t *times)
{
	qsort(times, SAMPLE, sizeof(*times), compare);
	return times[SAMPLE / 4];
}

static const struct many {
	const char *name;
	uint32_t flags, address_bits;
	unsigned int step;
	bool beside;
} manies[] = {
	{ "pinned", NO_MAP, 0, 1, false },
	{ "at_their_own_addresses", 0, 0, 1, false },
	/* no registration is at its own address, so that room must be found for each */
	{ "at_low_addresses", 0, 32, 1, false },
	{ "with_gaps_between_them", 0, 32, 2, false },
	/* on a paged device the other context has the same addresses on the bus */
	{ "beside_another_context", 0, 0, 1, true },
};

enum { REGISTER, FIND, RELEASE, CALLS };

/**
 * struct cost - the least that a call has cost in all rounds
 * @early: the first ones
 * @late: the last ones
 */
struct cost {
	uint64_t early, late;
};

/*
 * Takes another round; returns whether the first and the last thousand of 65,536 cost the same to
 * register, to find and to release.
 */
static bool costs_the_same(const struct many *row, int fd, int other, char *memory,
			   struct cost costs[CALLS])
{
	static uint64_t handles[MANY], first[CALLS][SAMPLE], last[CALLS][SAMPLE];
	const char *const calls[] = { "register", "query", "release" };
	bool same = true;

	for (unsigned int i = 0; i < MANY; i++) {
		struct pinmap_register args =
			register_args(memory + (size_t)i * row->step * PAGE, PAGE, row->flags);
		uint64_t begin;

		args.address_bits = row->address_bits;
		if (row->beside)
			CHECK_OK(try_ioctl(other, PINMAP_REGISTER, &(struct pinmap_register){
				.size = sizeof(args), .addr = args.addr, .length = args.length }));
		begin = now_ns();
		CHECK_OK(try_register_args(fd, &args));
		if (i < SAMPLE)
			first[REGISTER][i] = now_ns() - begin;
		if (i >= MANY - SAMPLE)
			last[REGISTER][i - (MANY - SAMPLE)] = now_ns() - begin;
		handles[i] = args.out_handle;
	}
	CHECK_EQ(get_info(fd).out_registrations, MANY);
	for (unsigned int i = 0; i < SAMPLE; i++) {
		uint64_t begin = now_ns();

		CHECK_EQ(query_addr(fd, memory + (size_t)i * row->step * PAGE + 17).handle,
			 handles[i]);
		first[FIND][i] = now_ns() - begin;
		begin = now_ns();
		CHECK_EQ(query_addr(fd, memory + (size_t)(MANY - 1 - i) * row->step * PAGE).handle,
			 handles[MANY - 1 - i]);
		last[FIND][i] = now_ns() - begin;
	}
	for (unsigned int i = 0; i < MANY; i++) {
		/* from the middle outwards, so that free ranges of all kinds become one */
		unsigned int index = i % 2 ? MANY / 2 + i / 2 : MANY / 2 - 1 - i / 2;
		uint64_t begin = now_ns();

		release(fd, handles[index]);
		if (i < SAMPLE)
			first[RELEASE][i] = now_ns() - begin;
		if (i >= MANY - SAMPLE)
			last[RELEASE][i - (MANY - SAMPLE)] = now_ns() - begin;
	}
	for (unsigned int call = 0; call < CALLS; call++) {
		uint64_t early = undisturbed(first[call]), late = undisturbed(last[call]);
		struct cost *cost = &costs[call];

		if (early < cost->early)
			cost->early = early;
		if (late < cost->late)
			cost->late = late;
		diag("%s: %llu ns each of the first %d, %llu ns of the last; in all rounds at "
		     "least %llu and %llu",
		     calls[call], (unsigned long long)early, SAMPLE, (unsigned long long)late,
		     (unsigned long long)cost->early, (unsigned long long)cost->late);
		same &= cost->late < 3 * cost->early + 5000 && cost->early < 3 * cost->late + 5000;
	}
	return same;
}

/*
 * The 65,536th registration costs what the first did. A busy machine may disturb this, so it is
 * measured again.
 */
TEST_EACH(many, manies, .seconds = 360)
{
	int fd = open_device(0), other = open_device(0);
	struct cost costs[CALLS];
	unsigned int round = 1;
	char *memory;

	if (debug_kernel())
		SKIP("takes too long on a debug kernel");
	if (row->beside && get_info(fd).out_kind != PINMAP_KIND_PAGED)
		SKIP("for devices with an MMU of their own");
	memory = tiled((size_t)MANY * row->step * PAGE, HUGE);
	memset(costs, 0xff, sizeof(costs));
	while (!costs_the_same(row, fd, other, memory, costs)) {
		CHECK(round++ < 8);
		close(other);
		other = open_device(0);
	}
	/* all of the room is there again */
	register_memory(fd, memory, (size_t)MANY * row->step * PAGE, row->flags);
}

/* So many portable registrations that no list of them could be contiguous in memory. */
TEST(many_portable, .seconds = 360)
{
	long long pins = pins_held();
	int fd = open_device(0);
	char *memory;

	if (debug_kernel())
		SKIP("takes too long on a debug kernel");
	memory = tiled((size_t)MANY * PAGE + HUGE, HUGE);
	for (size_t i = 0; i < MANY + 1; i++)
		register_memory(fd, memory + i * PAGE, PAGE, PINMAP_REGISTER_PORTABLE);
	CHECK_EQ(get_info(fd).out_registrations, MANY + 1);
	close(fd);
	CHECK_PINS_SOON(pins);
}

/*
 * A file of 1 TiB of which next to nothing is there: registering a part costs what the part does.
 */
TEST(sparse_tebibyte)
{
	size_t length = (size_t)1 << 40, part = MIB;
	int file = SYS(memfd_create("sparse", MFD_CLOEXEC)), fd = open_device(0);
	long long before = file_field("/proc/meminfo", "Shmem:");
	struct registration registration;
	long long pins = pins_held();
	char *memory;

	if (sizeof(void *) == 4)
		SKIP("not for 32-bit programs");
	SYS(ftruncate(file, (off_t)length));
	memory = SYS(
		mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0));
	for (size_t at = 0; at < length; at += length / 4) {
		registration = register_memory(fd, memory + at + 3 * PAGE, part, WRITE);
		CHECK_PINS(pins + (long long)(part / PAGE));
		release(fd, registration.handle);
	}
	registration = register_memory(fd, memory + length - part, part, WRITE);
	CHECK_EQ(query_addr(fd, memory + length - 1).out_base, (uintptr_t)memory + length - part);
	CHECK(file_field("/proc/meminfo", "Shmem:") - before < 64 * 1024);
	release(fd, registration.handle);
	CHECK_PINS(pins);
}
