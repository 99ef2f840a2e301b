// SPDX-License-Identifier: MIT OR Apache-2.0
/* Stale registrations, and races with memory that goes. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"
#include "uffd.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

static void replace(char *memory, size_t length)
{
	SYS(munmap(memory, length));
	SYS(mmap(memory, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0));
	memset(memory, 0x44, length);
}

/* New memory at the address of a stale registration can be registered at once, and works. */
TEST(over_a_stale_one)
{
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *memory = anon(4);
	struct registration old = register_memory(fd, memory, 4 * PAGE, WRITE), new;
	struct pinmap_query query;

	edu_writes(&edu, old.device_addr, PAGE);
	replace(memory, 4 * PAGE);
	new = register_memory(fd, memory, 4 * PAGE, WRITE | IDENTITY);
	CHECK(new.handle != old.handle);
	CHECK_REACHES(&edu, new.device_addr, memory, PAGE);
	/* a query by address finds the live one, by handle each */
	CHECK_EQ(query_addr(fd, memory + PAGE).handle, new.handle);
	CHECK_EQ(query_addr(fd, memory + PAGE).out_state, PINMAP_STATE_LIVE);
	CHECK_EQ(query_handle(fd, old.handle).out_state, PINMAP_STATE_STALE);
	CHECK_STALE_EVENT(fd, old);
	release(fd, old.handle);
	CHECK_REACHES(&edu, new.device_addr, memory, PAGE);
	replace(memory, PAGE);
	CHECK_STALE_EVENT(fd, new);
	/* both are stale, then one */
	CHECK_EQ(query_addr(fd, memory).out_state, PINMAP_STATE_STALE);
	release(fd, new.handle);
	CHECK_ERR(ENOENT, try_query_addr(fd, memory, &query));
}

/*
 * Memory that an allocator gives back and gets again at the same address has the same device
 * address again.
 */
TEST(same_address_again)
{
	struct registration registration = { 0 };
	char *memory = anon(64);
	int fd = open_device(0);

	for (unsigned int i = 0; i < rounds(100); i++) {
		struct registration stale = registration;

		registration =
			register_memory(fd, memory, 64 * PAGE, i % 2 ? WRITE : WRITE | IDENTITY);
		CHECK_EQ(registration.device_addr, (uintptr_t)memory);
		if (stale.handle)
			release(fd, stale.handle);
		replace(memory, 64 * PAGE);
	}
}

TEST(release_withdraws_the_event)
{
	struct pollfd poller = { .events = POLLIN };
	char *memory = anon(2);
	int fd = open_device(0);
	struct registration first = register_memory(fd, memory, PAGE, WRITE);
	struct registration second = register_memory(fd, memory + PAGE, PAGE, WRITE);

	poller.fd = fd;
	SYS(munmap(memory, 2 * PAGE));
	CHECK(WAIT_FOR(2000, query_handle(fd, second.handle).out_state == PINMAP_STATE_STALE));
	CHECK(WAIT_FOR(2000, query_handle(fd, first.handle).out_state == PINMAP_STATE_STALE));
	CHECK_EQ(poll(&poller, 1, 0), 1);
	release(fd, first.handle);
	CHECK_STALE_EVENT(fd, second);
	CHECK_EQ(poll(&poller, 1, 0), 0);
	CHECK_NO_EVENT(fd);
	release(fd, second.handle);
}

/* One munmap() of many registrations: each has its event, none gets lost, whoever reads late. */
TEST(many_at_once)
{
	enum { COUNT = 300 };
	struct registration registrations[COUNT];
	bool seen[COUNT] = { false };
	char *memory = anon(COUNT);
	int fd = open_device(0);
	long long pins = pins_held();

	for (int i = 0; i < COUNT; i++)
		registrations[i] =
			register_memory(fd, memory + i * PAGE, PAGE, i % 2 ? WRITE : NO_MAP);
	SYS(munmap(memory, COUNT * PAGE));
	CHECK_PINS_SOON(pins);
	for (int i = 0; i < COUNT; i++) {
		struct pinmap_event event = next_event(fd);
		size_t which = (event.addr - (uintptr_t)memory) / PAGE;

		CHECK_EQ(event.type, PINMAP_EVENT_STALE);
		CHECK(which < COUNT && !seen[which]);
		CHECK_EQ(event.handle, registrations[which].handle);
		seen[which] = true;
	}
	CHECK_NO_EVENT(fd);
	CHECK_EQ(get_info(fd).out_registrations, COUNT);
	for (int i = 0; i < COUNT; i++)
		release(fd, registrations[i].handle);
	CHECK_EQ(get_info(fd).out_registrations, 0);
}

/* A process that waits for events in read() or poll() is woken by one. */
static void *wait_in_read(void *argument)
{
	struct pinmap_event *event = argument;
	int fd = event->access;

	CHECK_EQ(read(fd, event, sizeof(*event)), sizeof(*event));
	return NULL;
}

TEST(wakes_a_reader)
{
	char *memory = anon(1);
	int fd = open_device(0);
	struct registration registration = register_memory(fd, memory, PAGE, NO_MAP);
	struct pinmap_event event = { .access = fd };
	pthread_t thread;

	CHECK_OK(-pthread_create(&thread, NULL, wait_in_read, &event));
	sleep_ms(50);
	SYS(munmap(memory, PAGE));
	CHECK_OK(-pthread_join(thread, NULL));
	CHECK_EQ(event.type, PINMAP_EVENT_STALE);
	CHECK_EQ(event.handle, registration.handle);
}

struct late {
	int fd;
	char *memory;
	struct pinmap_register args;
	int result;
};

static void *register_late(void *argument)
{
	struct late *late = argument;

	late->args = register_args(late->memory, 4 * PAGE, WRITE);
	late->result = try_register_args(late->fd, &late->args);
	return NULL;
}

static const struct {
	const char *name;
	bool anew;
} replacements[] = { { "gone", false }, { "new", true } };

/*
 * Registering waits for the end of the memory while its beginning, which is pinned already, is
 * unmapped or replaced. The registered pages would not be the program's: the call must notice.
 */
TEST_EACH(replaced_while_registering, replacements)
{
	struct late late = { .fd = open_device(0), .memory = anon(4) };
	long long pins = pins_held();
	pthread_t thread;
	int uffd;

	SYS(madvise(late.memory + 3 * PAGE, PAGE, MADV_DONTNEED));
	uffd = uffd_new(late.memory + 3 * PAGE, PAGE);
	CHECK_OK(-pthread_create(&thread, NULL, register_late, &late));
	uffd_await(uffd, late.memory + 3 * PAGE);
	if (row->anew)
		replace(late.memory, PAGE);
	else
		SYS(munmap(late.memory, PAGE));
	uffd_supply(uffd, late.memory + 3 * PAGE, 0x22);
	CHECK_OK(-pthread_join(thread, NULL));
	if (row->anew || late.result == -ESTALE) {
		check_fail(__FILE__, __LINE__, late.result, ESTALE, &late.args.fail,
			   PINMAP_FAIL_STALE, 0);
		CHECK(late.args.fail.addr >= (uintptr_t)late.memory);
		CHECK(late.args.fail.addr < (uintptr_t)late.memory + 4 * PAGE);
	} else {
		check_fail(__FILE__, __LINE__, late.result, EFAULT, &late.args.fail,
			   PINMAP_FAIL_HOLE, (uintptr_t)late.memory);
	}
	CHECK_PINS_SOON(pins);
	CHECK_EQ(get_info(late.fd).out_registrations, 0);
	CHECK_NO_EVENT(late.fd);
	/* the same call works with better luck */
	if (row->anew)
		register_memory(late.fd, late.memory, 4 * PAGE, WRITE | IDENTITY);
}

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

static void *keep_busy(void *argument)
{
	volatile bool *stop = argument;

	while (!*stop)
		;
	return NULL;
}

/* Keeps all other threads from the processors while this process does something. */
static void hog_begin(pthread_t *threads, int others, volatile bool *stop)
{
	struct sched_param parameter = { .sched_priority = 1 };
	cpu_set_t set;

	*stop = false;
	CPU_ZERO(&set);
	CPU_SET(0, &set);
	SYS(sched_setaffinity(0, sizeof(set), &set));
	for (int i = 0; i < others; i++) {
		pthread_attr_t attributes;

		CPU_ZERO(&set);
		CPU_SET(i + 1, &set);
		pthread_attr_init(&attributes);
		pthread_attr_setaffinity_np(&attributes, sizeof(set), &set);
		pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
		pthread_attr_setschedpolicy(&attributes, SCHED_FIFO);
		pthread_attr_setschedparam(&attributes, &parameter);
		CHECK_OK(-pthread_create(&threads[i], &attributes, keep_busy, (void *)stop));
	}
	SYS(sched_setscheduler(0, SCHED_FIFO, &parameter));
}

static void hog_end(pthread_t *threads, int others, volatile bool *stop)
{
	struct sched_param parameter = { 0 };

	*stop = true;
	SYS(sched_setscheduler(0, SCHED_OTHER, &parameter));
	for (int i = 0; i < others; i++)
		CHECK_OK(-pthread_join(threads[i], NULL));
}

/*
 * Memory goes, and what was registered of it is released before the driver's worker has had time:
 * the work that is taken off the worker's queue leaks no kernel memory.
 */
TEST(released_before_the_worker_came)
{
	enum { MOST = 2000, ROUNDS = 4 };
	static struct registration registrations[MOST];
	/* kmemleak finds a single one */
	size_t count = debug_kernel() ? 200 : MOST;
	int others = sysconf(_SC_NPROCESSORS_ONLN) - 1, fd = open_device(0);
	long long before = 0, lost;
	pthread_t threads[64];
	volatile bool stop;

	CHECK(others < 64);
	for (unsigned int round = 0; round <= ROUNDS; round++) {
		char *memory = anon(count);

		/* the first round fills the kernel's caches */
		if (round == 1)
			before = file_field("/proc/meminfo", "SUnreclaim:");
		for (size_t i = 0; i < count; i++)
			registrations[i] = register_memory(fd, memory + i * PAGE, PAGE, NO_MAP);
		hog_begin(threads, others, &stop);
		SYS(munmap(memory, count * PAGE));
		for (size_t i = 0; i < count; i++)
			release(fd, registrations[i].handle);
		hog_end(threads, others, &stop);
	}
	lost = file_field("/proc/meminfo", "SUnreclaim:") - before;
	diag("%lld KiB more than before", lost);
	/*
	 * A registration takes more than 512 bytes. A debug kernel does not reuse at once what was
	 * freed; it has kmemleak.
	 */
	CHECK(debug_kernel() || lost < ROUNDS * MOST / 4);
}

/*
 * A page of a file is lost, and released before the driver's worker could look: then the pin was
 * the last to hold the page. If it is given up before the IOMMU has let go of the page, a kernel
 * that watches that (debug) says so.
 */
TEST(release_before_it_was_noticed)
{
	int others = sysconf(_SC_NPROCESSORS_ONLN) - 1;
	int fd = open_device(0);
	long long pins = pins_held();
	pthread_t threads[64];
	volatile bool stop;

	CHECK(others < 64);
	for (unsigned int i = 0; i < rounds(50); i++) {
		struct memory memory = memory_new(MEMFD, 4 * PAGE);
		struct registration registration =
			register_memory(fd, memory.addr, 4 * PAGE, WRITE);

		hog_begin(threads, others, &stop);
		SYS(fallocate(memory.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4 * PAGE));
		release(fd, registration.handle);
		hog_end(threads, others, &stop);
		memory_free(&memory);
	}
	CHECK_PINS_SOON(pins);
	CHECK_NO_EVENT(fd);
}

/*
 * If not all of the memory could be removed from the IOMMU, the device is cut off before the call
 * says so, and not when the driver's worker has time.
 */
TEST(cut_off_before_the_answer, .faults = true, .leaks = 3)
{
	int others = sysconf(_SC_NPROCESSORS_ONLN) - 1, fd = open_device(0), file, error;
	struct memory memory = memory_new(MEMFD, 3 * PAGE);
	struct registration registration = register_memory(fd, memory.addr, 3 * PAGE, WRITE);
	struct pci_device device = need_device(0);
	struct edu edu = edu_open(fd);
	pthread_t threads[64];
	volatile bool stop;

	CHECK(others < 64);
	memset(memory.addr, 0x21, 3 * PAGE);
	edu_load(&edu, 4);
	edu_close(&edu);
	/* the memory does not go when the device does */
	file = SYS(open(pci_path(device.bdf, "resource0"), O_RDWR | O_CLOEXEC));
	edu.bar = SYS(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));

	hog_begin(threads, others, &stop);
	error = try_release(fd, registration.handle);
	if (error == -EIO) {
		edu_start(&edu, EDU_WRITES, registration.device_addr + 2 * PAGE, PAGE, false);
		while (edu_busy(&edu))
			;
	}
	hog_end(threads, others, &stop);

	if (!error)
		SKIP("needs an IOMMU that fails to unmap, which a mutant of the driver has");
	CHECK_EQ(error, -EIO);
	CHECK(bytes_are(memory.addr, 3 * PAGE, 0x21));

	CHECK(WAIT_FOR(3000, get_info(fd).out_flags & PINMAP_INFO_GONE));
	edu_close(&edu);
	close(file);
	close(fd);
	CHECK_OK(try_pci_unbind(device.bdf));
	CHECK_OK(try_pci_bind(device.bdf));
}

/* Memory is registered in two contexts: both are told. */
TEST(two_contexts)
{
	char *memory = anon(4);
	int first = open_device(0), second = open_device(0);
	struct registration here = register_memory(first, memory, 4 * PAGE, WRITE);
	struct registration there = register_memory(second, memory + PAGE, PAGE, NO_MAP);

	SYS(munmap(memory + PAGE, PAGE));
	CHECK_STALE_EVENT(first, here);
	CHECK_STALE_EVENT(second, there);
}
