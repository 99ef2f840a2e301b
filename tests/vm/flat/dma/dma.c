// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The promise, with a real device: the device reaches registered memory, and nothing else, and
 * nothing any more after the release. Tests let the device use an address just before, so that the
 * IOMMU has its translation in its cache.
 */
#define _GNU_SOURCE
#include "edu.h"
#include "iommu.h"
#include "kmsg.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

TEST(round_trip, .smoke = true)
{
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *from = anon(4), *to = anon(4);
	struct registration source = register_memory(fd, from, 4 * PAGE, 0);
	struct registration target = register_memory(fd, to, 4 * PAGE, WRITE);

	/* the same addresses as the program's */
	CHECK_EQ(source.device_addr, (uintptr_t)from);
	CHECK_EQ(target.device_addr, (uintptr_t)to);
	for (int i = 0; i < 4; i++) {
		pattern_fill(from + i * PAGE, PAGE, 10 + i);
		edu_reads(&edu, (uintptr_t)from + i * PAGE, PAGE);
		edu_writes(&edu, (uintptr_t)to + i * PAGE, PAGE);
	}
	for (int i = 0; i < 4; i++)
		CHECK(pattern_is(to + i * PAGE, PAGE, 10 + i));
}

/* A page to which the device has just written, for tests about the end of a mapping. */
struct used {
	int fd;
	struct edu edu;
	struct memory memory;
	struct registration registration;
};

static struct used use(uint32_t flags)
{
	struct used used = { .fd = open_device(0), .memory = memory_new(MEMFD, PAGE) };

	used.edu = edu_open(used.fd);
	edu_load(&used.edu, 17);
	used.registration = register_memory(used.fd, used.memory.addr, PAGE, flags);
	if (flags & NO_MAP)
		return used;
	edu_writes(&used.edu, used.registration.device_addr, PAGE);
	CHECK(pattern_is(used.memory.addr, PAGE, 17));
	memset(used.memory.addr, 0x21, PAGE);
	return used;
}

/* Checks that the device cannot write to the page any more. */
static void check_cut_off(const struct used *used, uint64_t device_addr)
{
	char buffer[PAGE];

	edu_writes(&used->edu, device_addr, PAGE);
	CHECK(bytes_are(used->memory.alias, PAGE, 0x21));
	pattern_fill(used->memory.alias, PAGE, 88);
	edu_reads(&used->edu, device_addr, PAGE);
	edu_store(&used->edu, buffer);
	CHECK(!pattern_is(buffer, PAGE, 88));
	memset(used->memory.alias, 0x21, PAGE);
}

/*
 * Without the flush the device would still use the translation that the IOMMU remembers (see
 * mutants/).
 */
TEST(release_flush, .smoke = true, .faults = true)
{
	struct used used = use(WRITE);

	release(used.fd, used.registration.handle);
	check_cut_off(&used, used.registration.device_addr);
}

/*
 * One flush serves all that one call releases: none of them can be reached after it. The device has
 * used each of them just before.
 */
TEST(release_buffers_flush, .faults = true)
{
	enum { COUNT = 5 };
	struct used used[COUNT];
	uint64_t handles[COUNT];
	struct pinmap_release_buffers args = { .size = sizeof(args),
					       .handles = (uintptr_t)handles,
					       .count = COUNT };

	used[0] = use(WRITE);
	for (int i = 1; i < COUNT; i++) {
		used[i] = (struct used){ .fd = used[0].fd,
					 .edu = used[0].edu,
					 .memory = memory_new(MEMFD, PAGE) };
		used[i].registration =
			register_memory(used[i].fd, used[i].memory.addr, PAGE, WRITE);
		edu_writes(&used[i].edu, used[i].registration.device_addr, PAGE);
		memset(used[i].memory.addr, 0x21, PAGE);
	}
	for (int i = 0; i < COUNT; i++)
		handles[i] = used[i].registration.handle;
	CHECK_OK(try_ioctl(used[0].fd, PINMAP_RELEASE_BUFFERS, &args));
	for (int i = 0; i < COUNT; i++)
		check_cut_off(&used[i], used[i].registration.device_addr);
}

TEST(unmap_flush, .faults = true)
{
	struct used used = use(WRITE);
	long long pins = pins_held();

	unmap(used.fd, used.registration.handle, used.registration.device_addr);
	CHECK_PINS(pins);
	check_cut_off(&used, used.registration.device_addr);
	/* mapped again, the memory is reached again */
	CHECK_EQ(map(used.fd, used.registration.handle, PINMAP_MAP_WRITE, 0),
		 used.registration.device_addr);
	CHECK_REACHES(&used.edu, used.registration.device_addr, used.memory.addr, PAGE);
}

TEST(munmap_flush, .faults = true)
{
	struct used used = use(WRITE);

	SYS(munmap(used.memory.addr, PAGE));
	check_cut_off(&used, used.registration.device_addr);
}

/* A transfer that is on its way when the memory is released does not arrive. */
TEST(release_in_flight, .faults = true)
{
	struct used used = use(WRITE);

	edu_start(&used.edu, EDU_WRITES, used.registration.device_addr, PAGE, false);
	release(used.fd, used.registration.handle);
	if (!edu_finish(&used.edu))
		memset(used.memory.alias, 0x21, PAGE);
	check_cut_off(&used, used.registration.device_addr);
}

TEST(release_leaves_neighbours, .faults = true)
{
	struct used used = use(WRITE);
	char *memory = memory_new(THP, HUGE).addr;
	struct registration first, second, third;

	/* three in one huge page */
	first = register_memory(used.fd, memory, 16 * PAGE, WRITE);
	second = register_memory(used.fd, memory + 16 * PAGE, 16 * PAGE, WRITE);
	third = register_memory(used.fd, memory + 32 * PAGE, 480 * PAGE, WRITE);
	CHECK_REACHES(&used.edu, second.device_addr, memory + 16 * PAGE, PAGE);
	release(used.fd, second.handle);
	CHECK_REACHES(&used.edu, first.device_addr + 15 * PAGE, memory + 15 * PAGE, PAGE);
	CHECK_REACHES(&used.edu, third.device_addr, memory + 32 * PAGE, PAGE);
	memset(memory + 16 * PAGE, 0x66, 16 * PAGE);
	edu_writes(&used.edu, second.device_addr, PAGE);
	CHECK(bytes_are(memory + 16 * PAGE, 16 * PAGE, 0x66));
	CHECK_REACHES(&used.edu, used.registration.device_addr, used.memory.addr, PAGE);
}

/*
 * A page that was released becomes somebody else's; the device, which knows its old address, does
 * not write to it.
 */
TEST(page_reused, .faults = true)
{
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *page = anon(1), *pool, *again = NULL;
	struct registration registration = register_memory(fd, page, PAGE, WRITE);
	uint64_t frame = page_frame(page);
	static uint64_t frames[16 * MIB / PAGE];
	size_t size = 16 * MIB, got = 0;

	CHECK(frame);
	edu_load(&edu, 5);
	edu_writes(&edu, registration.device_addr, PAGE);
	CHECK(pattern_is(page, PAGE, 5));
	release(fd, registration.handle);
	SYS(munmap(page, PAGE));
	/* takes memory until the very page comes back: usually it is among the first */
	while (!again && got < 20) {
		pool = SYS(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
				0));
		SYS(madvise(pool, size, MADV_NOHUGEPAGE));
		memset(pool, 0x66, size);
		page_frames(pool, size / PAGE, frames);
		for (size_t i = 0; i < size / PAGE && !again; i++)
			if (frames[i] == frame)
				again = pool + i * PAGE;
		got++;
	}
	if (!again)
		SKIP("the kernel did not give the page again among %zu MiB", got * 16);
	for (int i = 0; i < 5; i++)
		edu_writes(&edu, registration.device_addr, PAGE);
	CHECK(bytes_are(again, PAGE, 0x66));
}

/* A device address is used for another page: the device gets the new page. */
TEST(address_reused)
{
	struct used used = use(WRITE);
	char *other = anon(1);
	struct pinmap_register args = register_args(other, PAGE, WRITE | FIXED);

	release(used.fd, used.registration.handle);
	args.device_addr = used.registration.device_addr;
	CHECK_OK(try_register_args(used.fd, &args));
	CHECK_EQ(args.device_addr, used.registration.device_addr);
	CHECK_REACHES(&used.edu, args.device_addr, other, PAGE);
	CHECK(bytes_are(used.memory.addr, PAGE, 0x21));
}

/*
 * A registration that was released keeps its device address for the next one, unless somebody else
 * takes it first: then that one has it, and the next one gets another.
 */
TEST(address_taken_meanwhile, .faults = true)
{
	struct used used = use(WRITE);
	uint64_t at = used.registration.device_addr;
	char *other = anon(2);
	struct pinmap_register args = register_args(other, 2 * PAGE, WRITE | FIXED);
	struct pinmap_register same = register_args(used.memory.addr, PAGE, WRITE | FIXED);
	struct registration again;

	for (unsigned int i = 0; i < rounds(20); i++) {
		release(used.fd, used.registration.handle);
		args.device_addr = at;
		CHECK_OK(try_register_args(used.fd, &args));
		same.device_addr = at;
		CHECK_ERR(EEXIST, try_register_args(used.fd, &same));
		again = register_memory(used.fd, used.memory.addr, PAGE, WRITE);
		CHECK(again.device_addr + PAGE <= at || again.device_addr >= at + 2 * PAGE);
		CHECK_REACHES(&used.edu, at, other, PAGE);
		CHECK_REACHES(&used.edu, again.device_addr, used.memory.addr, PAGE);
		memset(used.memory.addr, 0x21, PAGE);
		release(used.fd, again.handle);
		check_cut_off(&used, again.device_addr);
		release(used.fd, args.out_handle);
		used.registration = register_memory(used.fd, used.memory.addr, PAGE, WRITE);
		CHECK_EQ(used.registration.device_addr, at);
		CHECK_REACHES(&used.edu, at, used.memory.addr, PAGE);
		memset(used.memory.addr, 0x21, PAGE);
	}
}

/* Threads that want the same device address: at most one of them has it at a time. */
struct wanting {
	int fd;
	unsigned int number;
	uint64_t at;
	atomic_uint *owner;
	unsigned int had;
};

static void *want(void *argument)
{
	struct wanting *wanting = argument;
	size_t length = (1 + wanting->number % 2) * PAGE;
	struct pinmap_register args = register_args(anon(2), length, WRITE | FIXED);

	for (unsigned int i = 0; i < rounds(3000); i++) {
		int result;

		args.device_addr = wanting->at;
		result = try_register_args(wanting->fd, &args);
		if (result == -EEXIST)
			continue;
		CHECK_OK(result);
		CHECK_EQ(atomic_exchange(wanting->owner, wanting->number + 1), 0);
		wanting->had++;
		CHECK_EQ(atomic_exchange(wanting->owner, 0), wanting->number + 1);
		release(wanting->fd, args.out_handle);
	}
	return NULL;
}

TEST(address_wanted_by_many, .seconds = 40)
{
	enum { THREADS = 4 };
	struct used used = use(WRITE);
	struct wanting wanting[THREADS];
	pthread_t threads[THREADS];
	atomic_uint owner = 0;
	unsigned int had = 0;

	release(used.fd, used.registration.handle);
	for (unsigned int i = 0; i < THREADS; i++) {
		wanting[i] = (struct wanting){ .fd = used.fd,
					       .number = i,
					       .at = used.registration.device_addr,
					       .owner = &owner };
		CHECK_OK(-pthread_create(&threads[i], NULL, want, &wanting[i]));
	}
	for (unsigned int i = 0; i < THREADS; i++) {
		CHECK_OK(-pthread_join(threads[i], NULL));
		had += wanting[i].had;
	}
	diag("%u times", had);
	CHECK(had != 0);
	used.registration = register_memory(used.fd, used.memory.addr, PAGE, WRITE);
	CHECK_EQ(used.registration.device_addr, wanting[0].at);
	CHECK_REACHES(&used.edu, wanting[0].at, used.memory.addr, PAGE);
}

TEST(alias, .faults = true)
{
	struct used used = use(WRITE);
	uint64_t second = map(used.fd, used.registration.handle, PINMAP_MAP_WRITE, 0);

	CHECK(second != used.registration.device_addr);
	CHECK_REACHES(&used.edu, second, used.memory.addr, PAGE);
	CHECK_REACHES(&used.edu, used.registration.device_addr, used.memory.addr, PAGE);
	/* one mapping goes, the other stays */
	unmap(used.fd, used.registration.handle, second);
	memset(used.memory.addr, 0x21, PAGE);
	check_cut_off(&used, second);
	CHECK_REACHES(&used.edu, used.registration.device_addr, used.memory.addr, PAGE);
	/* all mappings go with the memory */
	second = map(used.fd, used.registration.handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED,
		     0x30000000);
	CHECK_REACHES(&used.edu, second, used.memory.addr, PAGE);
	release(used.fd, used.registration.handle);
	memset(used.memory.addr, 0x21, PAGE);
	check_cut_off(&used, second);
	check_cut_off(&used, used.registration.device_addr);
}

TEST(alias_read_only, .faults = true)
{
	struct used used = use(WRITE);
	uint64_t second = map(used.fd, used.registration.handle, 0, 0);
	char buffer[PAGE];

	edu_writes(&used.edu, second, PAGE);
	CHECK(bytes_are(used.memory.addr, PAGE, 0x21));
	edu_reads(&used.edu, second, PAGE);
	edu_store(&used.edu, buffer);
	CHECK(bytes_are(buffer, PAGE, 0x21));
	edu_writes(&used.edu, second, PAGE);
	CHECK_REACHES(&used.edu, used.registration.device_addr, used.memory.addr, PAGE);
}

TEST(not_mapped, .faults = true)
{
	struct used used = use(WRITE | NO_MAP);

	memset(used.memory.addr, 0x21, PAGE);
	check_cut_off(&used, (uintptr_t)used.memory.addr);
	CHECK_EQ(map(used.fd, used.registration.handle, PINMAP_MAP_WRITE, 0),
		 (uintptr_t)used.memory.addr);
	CHECK_REACHES(&used.edu, (uintptr_t)used.memory.addr, used.memory.addr, PAGE);
}

/*
 * A transfer that begins inside and ends outside leaves the bytes behind the last one as they are.
 */
TEST(over_the_end, .faults = true)
{
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *memory = anon(4);
	struct registration registration = register_memory(fd, memory + PAGE, 2 * PAGE, WRITE);

	edu_load(&edu, 33);
	memset(memory, 0x21, 4 * PAGE);
	edu_writes(&edu, registration.device_addr + 2 * PAGE - 64, PAGE);
	CHECK(bytes_are(memory + 3 * PAGE, PAGE, 0x21));
	edu_writes(&edu, registration.device_addr - 64, 128);
	CHECK(bytes_are(memory, PAGE, 0x21));
	/* between bad transfers the good ones work */
	CHECK_REACHES(&edu, registration.device_addr, memory + PAGE, PAGE);
	edu_writes(&edu, 0x123000, PAGE);
	CHECK_REACHES(&edu, registration.device_addr + PAGE, memory + 2 * PAGE, PAGE);
}

/*
 * The device does not reach addresses that it was never given: its own BAR, the interrupt window,
 * the kernel's memory, page 0.
 */
TEST(elsewhere, .faults = true)
{
	struct pci_device device = need_device(0);
	struct used used = use(WRITE);
	char *other = anon(1);

	(void)device;
	edu_writes(&used.edu, 0, PAGE);
	edu_writes(&used.edu, 0x1000000, PAGE);
	edu_writes(&used.edu, page_frame(other) * PAGE, PAGE);
	edu_writes(&used.edu, (uintptr_t)other, PAGE);
	CHECK(bytes_are(other, PAGE, 0x11));
	CHECK_REACHES(&used.edu, used.registration.device_addr, used.memory.addr, PAGE);
}
