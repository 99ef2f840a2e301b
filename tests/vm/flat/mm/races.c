// SPDX-License-Identifier: MIT OR Apache-2.0
/* Races of calls with memory that goes. */
#define _GNU_SOURCE
#include "memory.h"
#include "pins.h"
#include "uffd.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct churn {
	char *memory;
	volatile bool stop;
};

static void *replace_repeatedly(void *argument)
{
	struct churn *churn = argument;
	unsigned int seed = 3;

	while (!churn->stop) {
		size_t first = rand_r(&seed) % 16;

		if (rand_r(&seed) % 2)
			SYS(madvise(churn->memory + first * PAGE, PAGE, MADV_DONTNEED));
		else
			SYS(mmap(churn->memory + first * PAGE, PAGE, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	}
	return NULL;
}

/*
 * Memory that another thread replaces meanwhile is registered and released: each call does one
 * thing or the other.
 */
TEST(churn, .faults = true, .seconds = 40)
{
	struct churn churn = { .memory = anon(16) };
	unsigned int good = 0, late = 0;
	struct registration registration = { 0 };
	int fd = open_device(0);
	long long pins = pins_held();
	pthread_t thread;

	CHECK_OK(-pthread_create(&thread, NULL, replace_repeatedly, &churn));
	for (unsigned int i = 0; i < rounds(3000); i++) {
		struct registration next;
		int result = try_register_memory(fd, churn.memory, 16 * PAGE, WRITE, &next);

		if (result == 0) {
			good++;
			if (i % 2)
				release(fd, next.handle);
			else
				registration = next;
			continue;
		}
		late++;
		/* a live one is at the same place; replaced; unmapped for the moment */
		CHECK(result == -EEXIST || result == -ESTALE || result == -EFAULT);
		if (result == -EEXIST)
			release(fd, registration.handle);
	}
	churn.stop = true;
	CHECK_OK(-pthread_join(thread, NULL));
	diag("%u registered, %u not", good, late);
	CHECK(good > 0);
	close(fd);
	CHECK_PINS_SOON(pins);
}

/* RELEASE and munmap() of the same memory happen at once, many times. */
struct partner {
	int fd;
	struct registration registration;
	pthread_barrier_t barrier;
	volatile bool stop;
};

static void *release_partner(void *argument)
{
	struct partner *partner = argument;

	for (;;) {
		pthread_barrier_wait(&partner->barrier);
		if (partner->stop)
			return NULL;
		CHECK_OK(try_release(partner->fd, partner->registration.handle));
		pthread_barrier_wait(&partner->barrier);
	}
}

TEST(release_meets_munmap)
{
	struct partner partner = { .fd = open_device(0) };
	long long pins = pins_held();
	pthread_t thread;

	pthread_barrier_init(&partner.barrier, NULL, 2);
	CHECK_OK(-pthread_create(&thread, NULL, release_partner, &partner));
	for (unsigned int i = 0; i < rounds(500); i++) {
		char *memory = anon(4);

		partner.registration =
			register_memory(partner.fd, memory, 4 * PAGE, i % 2 ? WRITE : NO_MAP);
		pthread_barrier_wait(&partner.barrier);
		SYS(munmap(memory, 4 * PAGE));
		pthread_barrier_wait(&partner.barrier);
	}
	partner.stop = true;
	pthread_barrier_wait(&partner.barrier);
	CHECK_OK(-pthread_join(thread, NULL));
	CHECK_PINS_SOON(pins);
	CHECK_NO_EVENT(partner.fd);
	CHECK_EQ(get_info(partner.fd).out_registrations, 0);
}

/* When munmap() returns nothing is mapped any more, though nobody has looked at the memory yet. */
TEST(munmap_unmaps_at_once)
{
	struct pinmap_get_totals totals = { .size = sizeof(totals) };
	int fd = open_device(0);

	for (unsigned int i = 0; i < rounds(500); i++) {
		char *memory = anon(1);
		struct registration registration = register_memory(fd, memory, PAGE, WRITE);

		SYS(munmap(memory, PAGE));
		CHECK_OK(try_ioctl(fd, PINMAP_GET_TOTALS, &totals));
		CHECK_EQ(totals.out_mapped.number, 0);
		release(fd, registration.handle);
	}
}

struct unmapper {
	char *memory;
	pthread_barrier_t barrier;
	volatile bool stop;
};

enum { UNMAPPED_PAGES = 1024 };

static void *unmap_partner(void *argument)
{
	struct unmapper *unmapper = argument;

	for (;;) {
		pthread_barrier_wait(&unmapper->barrier);
		if (unmapper->stop)
			return NULL;
		SYS(munmap(unmapper->memory, UNMAPPED_PAGES * PAGE));
		pthread_barrier_wait(&unmapper->barrier);
	}
}

/*
 * Memory is registered while it is being unmapped: pages that are in the page table still can be
 * pinned, though nobody was told of the change that began before. When munmap() has returned the
 * driver knows that they are gone.
 */
TEST(munmap_meets_registering, .seconds = 60)
{
	struct unmapper unmapper = { 0 };
	int fd = open_device(0);
	long long pins = pins_held();
	unsigned int late = 0;
	pthread_t thread;

	pthread_barrier_init(&unmapper.barrier, NULL, 2);
	CHECK_OK(-pthread_create(&thread, NULL, unmap_partner, &unmapper));
	for (unsigned int i = 0; i < rounds(200); i++) {
		struct registration registration;
		uint32_t flags;
		char *last;
		int result;

		unmapper.memory = anon(UNMAPPED_PAGES);
		last = unmapper.memory + (UNMAPPED_PAGES - 1) * PAGE;
		pthread_barrier_wait(&unmapper.barrier);
		for (volatile unsigned int pause = 0; pause < i % 20 * 1000; pause++)
			;
		/*
		 * for reading, the driver looks for the VMA, which is gone: for writing it does not
		 */
		flags = i % 40 < 20 ? NO_MAP : WRITE | NO_MAP;
		result = try_register_memory(fd, last, PAGE, flags, &registration);
		pthread_barrier_wait(&unmapper.barrier);
		if (result) {
			CHECK(result == -EFAULT || result == -ESTALE);
			continue;
		}
		late++;
		CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
		CHECK_PINS(pins);
		release(fd, registration.handle);
	}
	unmapper.stop = true;
	pthread_barrier_wait(&unmapper.barrier);
	CHECK_OK(-pthread_join(thread, NULL));
	diag("%u registered", late);
	CHECK_NO_EVENT(fd);
}

/*
 * As munmap_meets_registering, with a munmap() that is known to have begun and takes long: one
 * context has many mappings to undo before any page goes. Another context, whose notifier was
 * called before and had nothing there, registers the last page meanwhile.
 */
TEST(munmap_has_begun, .seconds = 60)
{
	enum { SLOW = UNMAPPED_PAGES - 1 };
	static struct registration many[SLOW];
	struct unmapper unmapper = { 0 };
	int slower = open_device(0), quicker = open_device(0);
	long long pins = pins_held();
	unsigned int late = 0;
	pthread_t thread;

	/* the notifier that was registered last is called first */
	register_memory(slower, anon(1), PAGE, NO_MAP);
	register_memory(quicker, anon(1), PAGE, NO_MAP);
	pthread_barrier_init(&unmapper.barrier, NULL, 2);
	CHECK_OK(-pthread_create(&thread, NULL, unmap_partner, &unmapper));
	for (unsigned int i = 0; i < 100 && late < rounds(10); i++) {
		struct pollfd poller = { .fd = slower, .events = POLLIN };
		struct registration registration;
		char *last;
		int result;

		unmapper.memory = anon(UNMAPPED_PAGES);
		for (size_t k = 0; k < SLOW; k++)
			many[k] = register_memory(slower, unmapper.memory + k * PAGE, PAGE, WRITE);
		last = unmapper.memory + SLOW * PAGE;
		pthread_barrier_wait(&unmapper.barrier);
		CHECK_EQ(poll(&poller, 1, slow(10000)), 1);
		result = try_register_memory(quicker, last, PAGE, WRITE | NO_MAP, &registration);
		pthread_barrier_wait(&unmapper.barrier);
		for (size_t k = 0; k < SLOW; k++)
			release(slower, many[k].handle);
		if (result) {
			CHECK(result == -EFAULT || result == -ESTALE);
			continue;
		}
		late++;
		CHECK_EQ(query_handle(quicker, registration.handle).out_state, PINMAP_STATE_STALE);
		CHECK_PINS(pins + 2);
		release(quicker, registration.handle);
	}
	unmapper.stop = true;
	pthread_barrier_wait(&unmapper.barrier);
	CHECK_OK(-pthread_join(thread, NULL));
	diag("%u registered", late);
	CHECK(late > 0);
	CHECK_NO_EVENT(quicker);
}

struct waiting {
	int fd;
	char *memory;
	int result;
	struct registration registration;
};

static void *register_waiting(void *argument)
{
	struct waiting *waiting = argument;

	waiting->result = try_register_memory(waiting->fd, waiting->memory, 4 * PAGE, WRITE,
					      &waiting->registration);
	return NULL;
}

/* Memory goes while its registration waits for another page: once it is live, it goes stale. */
TEST(goes_while_it_is_registered)
{
	struct waiting waiting = { .fd = open_device(0), .memory = anon(4) };
	char *missing = waiting.memory + 2 * PAGE, *other = anon(1);
	struct registration witness = register_memory(waiting.fd, other, PAGE, NO_MAP);
	long long pins = pins_held();
	pthread_t thread;
	int uffd;

	SYS(madvise(missing, PAGE, MADV_DONTNEED));
	uffd = uffd_new(missing, PAGE);
	CHECK_OK(-pthread_create(&thread, NULL, register_waiting, &waiting));
	uffd_await(uffd, missing);
	SYS(madvise(waiting.memory, PAGE, MADV_DONTNEED));
	/* when the driver's worker has seen that this one went, it has looked at that one, too */
	SYS(madvise(other, PAGE, MADV_DONTNEED));
	CHECK_STALE_EVENT(waiting.fd, witness);
	uffd_supply(uffd, missing, 1);
	CHECK_OK(-pthread_join(thread, NULL));
	CHECK_OK(waiting.result);
	CHECK_STALE_EVENT(waiting.fd, waiting.registration);
	CHECK_PINS_SOON(pins - 1);
}
