// SPDX-License-Identifier: MIT OR Apache-2.0
/* Portable memory: on every device that the process has open, with one pin and one charge. */
#define _GNU_SOURCE
#include "alloc.h"
#include "edu.h"
#include "file.h"
#include "gpu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRACING "/sys/kernel/tracing"

enum { PORTABLE = PINMAP_REGISTER_PORTABLE };

/* Skips the test if there is no second device. */
static void need_two(void)
{
	need_device(1);
}

static long long pinned_kib(void)
{
	return file_field("/proc/self/status", "VmPin:");
}

/* Two devices that are open, and memory that is portable between them. */
struct pair {
	int fd, other;
	long long pins;
	char *memory;
	struct registration registration;
};

enum { PAGES = 4 };

static struct pair pair_open(void)
{
	struct pair pair;

	need_two();
	pair.fd = open_device(0);
	pair.other = open_device(1);
	pair.memory = anon(2 * PAGES);
	pair.pins = pins_held();
	return pair;
}

static struct pair pair_new(void)
{
	struct pair pair = pair_open();

	pair.registration = register_memory(pair.fd, pair.memory, PAGES * PAGE, WRITE | PORTABLE);
	return pair;
}

TEST(portable_pinned_once)
{
	struct pair pair = pair_open();
	long long kib = pinned_kib();

	pair.registration = register_memory(pair.fd, pair.memory, PAGES * PAGE, WRITE | PORTABLE);
	CHECK_PINS(pair.pins + PAGES);
	CHECK_EQ(pinned_kib(), kib + 4 * PAGES);
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
	CHECK_EQ(next_event(other).type, PINMAP_EVENT_STALE);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
	CHECK_PINS_SOON(pins);
	/* a device that is opened now needs nothing of it */
	close(open_device(1));
	release(fd, registration.handle);
	CHECK_EQ(get_info(other).out_registrations, 0);
}

/* Each context can let go of the memory without harm to the other. */
TEST(portable_released_by_one)
{
	struct pair pair = pair_new();
	struct edu first = edu_open(pair.fd);
	struct pinmap_query query;

	release(pair.other, query_addr(pair.other, pair.memory).handle);
	CHECK_ERR(ENOENT, try_query_addr(pair.other, pair.memory, &query));
	CHECK_PINS(pair.pins + PAGES);
	CHECK_REACHES(&first, pair.registration.device_addr, pair.memory, PAGE);
}

TEST(portable_unmapped_by_one)
{
	struct pair pair = pair_new();
	struct edu first = edu_open(pair.fd);
	struct pinmap_query query = query_addr(pair.other, pair.memory);

	unmap(pair.other, query.handle, query.out_device_addr);
	CHECK_EQ(query_addr(pair.other, pair.memory).out_nr_mappings, 0);
	CHECK_REACHES(&first, pair.registration.device_addr, pair.memory, PAGE);
	CHECK_EQ(map(pair.other, query.handle, PINMAP_MAP_WRITE, 0), (uintptr_t)pair.memory);
}

TEST(portable_when_one_device_goes)
{
	struct pair pair = pair_new();
	struct pci_device device = need_device(1);
	struct edu first = edu_open(pair.fd);

	pci_unbind(device.bdf);
	CHECK_REACHES(&first, pair.registration.device_addr, pair.memory, PAGE);
	register_memory(pair.fd, anon(1), PAGE, WRITE | PORTABLE);
	CHECK_PINS(pair.pins + PAGES + 1);
	pci_bind(device.bdf);
}

/* Memory goes with the context that registered it, and the other one is told of each. */
TEST(portable_goes_with_its_context)
{
	struct pair pair = pair_new();

	register_memory(pair.fd, anon(1), PAGE, WRITE | PORTABLE);
	CHECK_EQ(get_info(pair.other).out_registrations, 2);
	close(pair.fd);
	CHECK_PINS(pair.pins);
	for (int i = 0; i < 2; i++) {
		struct pinmap_event event = next_event(pair.other);

		CHECK_EQ(event.type, PINMAP_EVENT_STALE);
		CHECK_EQ(event.length, event.addr == (uintptr_t)pair.memory ? PAGES * PAGE : PAGE);
		CHECK_EQ(query_handle(pair.other, event.handle).out_state, PINMAP_STATE_STALE);
		CHECK_EQ(query_handle(pair.other, event.handle).out_nr_mappings, 0);
		CHECK_ERR(ESTALE, try_unmap(pair.other, event.handle, event.addr));
	}
	CHECK_NO_EVENT(pair.other);
}

TEST(portable_stale_is_not_in_the_way)
{
	struct pair pair = pair_new();
	struct pinmap_query query;

	close(pair.fd);
	query = query_addr(pair.other, pair.memory);
	CHECK_EQ(query.out_state, PINMAP_STATE_STALE);
	register_memory(pair.other, pair.memory, PAGES * PAGE, WRITE | IDENTITY);
	release(pair.other, query.handle);
	CHECK_EQ(get_info(pair.other).out_registrations, 1);
}

enum portable_end { UNMAPPED, DISCARDED, CLOSED, UNBOUND, RELEASED };

static const struct {
	const char *name;
	enum portable_end how;
} portable_ends_of[] = {
	{ "munmap", UNMAPPED }, { "madvise", DISCARDED }, { "close", CLOSED },
	{ "unbind", UNBOUND }, { "release", RELEASED },
};

/*
 * A context that did not register portable memory learns from an event and its generations that the
 * memory is gone; and from its generations that it was released.
 */
TEST_EACH(portable_told, portable_ends_of)
{
	struct pinmap_generations generations = { .size = sizeof(generations) };
	struct registration registration, late;
	const volatile uint64_t *numbers;
	struct pci_device device;
	struct pinmap_query query;
	uint64_t before;
	long long pins;
	int fd, other;
	char *memory;

	need_two();
	device = need_device(0);
	fd = open_device(0);
	other = open_device(1);
	CHECK_OK(try_ioctl(other, PINMAP_GENERATIONS, &generations));
	numbers = SYS(mmap(NULL, generations.out_length, PROT_READ, MAP_SHARED, other,
			   (off_t)generations.out_offset));
	memory = anon(4);
	pins = pins_held();
	registration = register_memory(fd, memory, 4 * PAGE, WRITE | PORTABLE);
	query = query_addr(other, memory);
	/* the handles of the two contexts differ */
	late = registration;
	late.handle = query.handle;
	before = numbers[query.handle % (generations.out_length / 8)];
	switch (row->how) {
	case UNMAPPED: SYS(munmap(memory + PAGE, PAGE)); break;
	case DISCARDED: SYS(madvise(memory + PAGE, PAGE, MADV_DONTNEED)); break;
	case CLOSED: close(fd); break;
	case UNBOUND: pci_unbind(device.bdf); break;
	case RELEASED: release(fd, registration.handle); break;
	}
	CHECK(numbers[query.handle % (generations.out_length / 8)] != before);
	if (row->how == RELEASED) {
		CHECK_NO_EVENT(other);
		CHECK_ERR(ESTALE, try_query_handle(other, query.handle, &query));
	} else {
		CHECK_STALE_EVENT(other, late);
		CHECK_NO_EVENT(other);
		query = query_handle(other, late.handle);
		CHECK_EQ(query.out_state, PINMAP_STATE_STALE);
		CHECK_EQ(query.out_nr_mappings, 0);
		release(other, late.handle);
	}
	CHECK_PINS_SOON(pins);
	CHECK_EQ(get_info(other).out_registrations, 0);
	if (row->how == UNBOUND) {
		struct pinmap_event event = next_event(fd);

		CHECK_EQ(event.type, PINMAP_EVENT_GONE);
		pci_bind(device.bdf);
	}
}

/* The release of portable memory, by either context, takes back an event that was not read. */
TEST(portable_withdrawn)
{
	struct registration registration;
	struct pinmap_query query;
	int fd, other;
	char *memory;

	need_two();
	fd = open_device(0);
	other = open_device(1);
	for (int round = 0; round < 2; round++) {
		memory = anon(1);
		registration = register_memory(fd, memory, PAGE, PORTABLE);
		query = query_addr(other, memory);
		SYS(munmap(memory, PAGE));
		CHECK_EQ(query_handle(other, query.handle).out_state, PINMAP_STATE_STALE);
		if (round)
			release(other, query.handle);
		release(fd, registration.handle);
		CHECK_NO_EVENT(other);
		CHECK_NO_EVENT(fd);
		CHECK_EQ(get_info(other).out_registrations, 0);
	}
}

/*
 * A device without an MMU has portable memory by one context of the process; when that goes, by the
 * next.
 */
TEST(portable_handed_over)
{
	struct registration registration;
	struct pinmap_query query;
	int fd, siblings[3];
	struct edu edu;
	char *memory;

	need_two();
	fd = open_device(0);
	for (int i = 0; i < 3; i++)
		siblings[i] = open_device(1);
	memory = anon(4);
	registration = register_memory(fd, memory, 4 * PAGE, WRITE | PORTABLE);
	for (int i = 0; i < 3; i++) {
		int owner = -1;

		for (int j = i; j < 3; j++) {
			if (get_info(siblings[j]).out_flags & PINMAP_INFO_OWNER) {
				CHECK(owner < 0);
				owner = j;
			} else {
				CHECK_ERR(ENOENT, try_query_addr(siblings[j], memory, &query));
			}
		}
		CHECK(owner >= 0);
		CHECK_EQ(query_addr(siblings[owner], memory + 5).out_device_addr,
			 (uintptr_t)memory + 5);
		edu = edu_open(siblings[owner]);
		CHECK_REACHES(&edu, (uintptr_t)memory + PAGE, memory + PAGE, PAGE);
		edu_close(&edu);
		close(siblings[owner]);
		siblings[owner] = siblings[i];
	}
	/* a device whose owner has let go of the memory does not need it: others can open it */
	siblings[0] = open_device(1);
	release(siblings[0], query_addr(siblings[0], memory).handle);
	siblings[1] = open_device(1);
	CHECK_ERR(ENOENT, try_query_addr(siblings[1], memory, &query));
	close(siblings[0]);
	CHECK_EQ(query_addr(siblings[1], memory).out_nr_mappings, 1);
	close(siblings[1]);
	CHECK_EQ(query_handle(fd, registration.handle).out_nr_mappings, 1);
}

/* Counts the mappings that were made while that was traced. */
static unsigned int mappings_traced(void)
{
	FILE *trace = fopen(TRACING "/trace", "re");
	unsigned int found = 0;
	char line[512];

	CHECK(trace);
	while (fgets(line, sizeof(line), trace))
		found += strstr(line, " pinmap_map: ") != NULL;
	fclose(trace);
	return found;
}

/*
 * A process with a great deal of portable memory opens another device, gets all of it there by its
 * first call, and is killed meanwhile: it does not go on to the end.
 */
TEST(portable_killed_while_admitted, .seconds = 120)
{
	const unsigned int many = rounds(3000);
	struct gate ready = gate_new(), go = gate_new();
	unsigned int mapped;

	need_two();
	if (access(TRACING "/events/pinmap", F_OK))
		SKIP("the kernel has no tracepoints");
	for (unsigned int attempt = 0; attempt < 5; attempt++) {
		struct pinmap_get_totals totals = { .size = sizeof(totals) };
		int watcher = SYS(open(need_device(1).node, O_RDWR | O_CLOEXEC));
		pid_t pid = fork();

		if (pid == 0) {
			char *memory = anon(many);
			int fd = open_device(0), other;

			for (unsigned int i = 0; i < many; i++)
				register_memory(fd, memory + i * PAGE, PAGE, WRITE | PORTABLE);
			other = SYS(open(need_device(1).node, O_RDWR | O_CLOEXEC));
			gate_open(&ready);
			gate_pass(&go);
			get_info(other);
			pause();
		}
		gate_pass(&ready);
		file_write(TRACING "/trace", "");
		file_write(TRACING "/events/pinmap/pinmap_map/enable", "1");
		gate_open(&go);
		do
			CHECK_OK(try_ioctl(watcher, PINMAP_GET_TOTALS, &totals));
		while (!totals.out_mapped.number);
		kill_now(pid);
		file_write(TRACING "/events/pinmap/pinmap_map/enable", "0");
		mapped = mappings_traced();
		diag("killed with %u of %u mapped", mapped, many);
		CHECK(mapped > 0 && mapped <= many);
		close(watcher);
		if (mapped < many)
			return;
	}
	FAIL("it has always had all of it mapped");
}

/*
 * A process with many contexts registers portable memory, which all of them get, and is killed
 * meanwhile: it does not go on to the end.
 */
TEST(portable_killed_while_shared, .seconds = 120)
{
	/* a buffer has 64 mappings at most */
	enum { MANY = 64 };
	unsigned long long most = 0;
	struct gate ready = gate_new();

	need_gpu();
	for (unsigned int attempt = 0; attempt < 5; attempt++) {
		struct pinmap_get_totals totals = { .size = sizeof(totals) };
		int watcher = open_gpu();
		bool killed = false;
		pid_t pid = fork();

		if (pid == 0) {
			char *memory = anon(2);
			int fds[MANY];

			for (unsigned int i = 0; i < MANY; i++) {
				fds[i] = open_gpu();
				get_info(fds[i]);
			}
			/* The page tables are there: making them would stop for a signal, too. */
			register_memory(fds[0], memory, PAGE, WRITE | PORTABLE);
			gate_open(&ready);
			register_memory(fds[0], memory + PAGE, PAGE, WRITE | PORTABLE);
			pause();
		}
		gate_pass(&ready);
		most = 0;
		do {
			CHECK_OK(try_ioctl(watcher, PINMAP_GET_TOTALS, &totals));
			if (totals.out_mapped.number > most)
				most = totals.out_mapped.number;
			if (most > MANY && !killed) {
				SYS(kill(pid, SIGKILL));
				killed = true;
			}
		} while (waitpid(pid, NULL, WNOHANG) == 0);
		CHECK(killed);
		diag("killed with %llu of %d mapped", most - MANY, MANY);
		close(watcher);
		if (most < 2 * MANY)
			return;
	}
	FAIL("it has always had all of it mapped");
}

/*
 * When the context that has a device is closed, another context of the process gets the device,
 * with all portable memory. Not if the process has ended: nothing is mapped again for nobody.
 */
TEST(portable_not_handed_over_at_the_end, .seconds = 60)
{
	enum { MANY = 500, SIBLINGS = 4 };
	struct gate ready = gate_new();

	need_two();
	/* the owner is the first file or the last, since files may be closed in either order */
	for (unsigned int owner = 0; owner < SIBLINGS; owner += SIBLINGS - 1) {
		struct pinmap_get_totals totals = { .size = sizeof(totals) };
		int watcher = SYS(open(need_device(1).node, O_RDWR | O_CLOEXEC));
		unsigned long long last = MANY;
		pid_t pid = fork();

		if (pid == 0) {
			int siblings[SIBLINGS], file = new_memfd(MANY * PAGE, 0),
						fd = owner ? open_device(0) : -1;

			for (unsigned int i = 0; i < SIBLINGS; i++)
				siblings[i] = SYS(open(need_device(1).node, O_RDWR | O_CLOEXEC));
			if (fd < 0)
				fd = open_device(0);
			for (unsigned int i = 0; i < SIBLINGS; i++)
				get_info(siblings[owner ? SIBLINGS - 1 - i : i]);
			for (unsigned int i = 0; i < MANY; i++)
				register_fd(fd, file, i * PAGE, PAGE, WRITE | PORTABLE);
			gate_open(&ready);
			pause();
		}
		gate_pass(&ready);
		CHECK_OK(try_ioctl(watcher, PINMAP_GET_TOTALS, &totals));
		CHECK_EQ(totals.out_mapped.number, MANY);
		SYS(kill(pid, SIGKILL));
		do {
			CHECK_OK(try_ioctl(watcher, PINMAP_GET_TOTALS, &totals));
			if (totals.out_mapped.number > last)
				FAIL("%llu are mapped again",
				     (unsigned long long)totals.out_mapped.number - last);
			last = totals.out_mapped.number;
		} while (waitpid(pid, NULL, WNOHANG) == 0);
		close(watcher);
	}
}

/* Two devices that are open, and a part of a file that is portable between them. */
struct file_pair {
	int fd, other, file;
	char *view;
	struct pinmap_register_fd part;
};

static struct file_pair file_pair_open(void)
{
	struct file_pair pair;

	need_two();
	pair.fd = open_device(0);
	pair.other = open_device(1);
	pair.file = new_memfd(8 * PAGE, 0);
	pair.view = SYS(mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, pair.file, 0));
	return pair;
}

static struct file_pair file_pair_new(void)
{
	struct file_pair pair = file_pair_open();

	pair.part = register_fd(pair.fd, pair.file, 2 * PAGE, 4 * PAGE, WRITE | PORTABLE);
	return pair;
}

TEST(portable_file_is_pinned_once)
{
	struct file_pair pair = file_pair_open();
	long long pins = pins_held(), kib = pinned_kib();

	pair.part = register_fd(pair.fd, pair.file, 2 * PAGE, 4 * PAGE, WRITE | PORTABLE);
	CHECK_PINS(pins + 4);
	CHECK_EQ(pinned_kib(), kib + 16);
	CHECK_EQ(query_handle(pair.fd, pair.part.out_handle).out_flags, WRITE | PORTABLE);
	CHECK_EQ(get_info(pair.other).out_registrations, 1);
	release(pair.fd, pair.part.out_handle);
	CHECK_PINS(pins);
	CHECK_EQ(get_info(pair.other).out_registrations, 0);
	CHECK_NO_EVENT(pair.other);
}

TEST(portable_file_is_reached_by_both)
{
	struct file_pair pair = file_pair_new();
	struct edu first = edu_open(pair.fd), second = edu_open(pair.other);
	char buffer[4096];

	edu_load(&first, 31);
	edu_writes(&first, pair.part.device_addr + PAGE, PAGE);
	CHECK(pattern_is(pair.view + 3 * PAGE, PAGE, 31));
	edu_reads(&second, pair.part.device_addr + PAGE, PAGE);
	edu_store(&second, buffer);
	CHECK(pattern_is(buffer, PAGE, 31));
}

TEST(portable_file_on_a_device_opened_later)
{
	struct file_pair pair = file_pair_new();
	struct edu second;

	close(pair.other);
	pair.other = open_device(1);
	second = edu_open(pair.other);
	CHECK_REACHES(&second, pair.part.device_addr, pair.view + 2 * PAGE, PAGE);
}

TEST(portable_file_address_taken_on_another)
{
	struct file_pair pair = file_pair_open();
	struct registration taken = register_memory(pair.other, anon(1), PAGE, WRITE);
	struct pinmap_register_fd refused = fd_args(pair.file, 0, PAGE, WRITE | PORTABLE | FIXED);

	refused.device_addr = taken.device_addr;
	check_fail(__FILE__, __LINE__, try_register_fd(pair.fd, &refused), EEXIST, &refused.fail,
		   PINMAP_FAIL_OVERLAP, taken.device_addr);
	CHECK_EQ(get_info(pair.fd).out_registrations, 0);
}

TEST(portable_file_without_a_mapping)
{
	struct pinmap_register_fd refused = fd_args(new_memfd(PAGE, 0), 0, PAGE, PORTABLE | NO_MAP);

	CHECK_ERR(EINVAL, try_register_fd(open_device(0), &refused));
}

TEST(portable_file_goes_with_its_context)
{
	struct file_pair pair = file_pair_open();
	long long pins = pins_held();
	struct pinmap_event event;

	register_fd(pair.fd, pair.file, 0, PAGE, WRITE | PORTABLE);
	close(pair.fd);
	event = next_event(pair.other);
	CHECK_EQ(event.type, PINMAP_EVENT_STALE);
	CHECK_EQ(event.length, PAGE);
	release(pair.other, event.handle);
	CHECK_PINS(pins);
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
	addr = 128 * MIB;
	CHECK_OK(try_map(pair.fd, handle, PINMAP_MAP_FIXED, &addr, &fail));
	CHECK_EQ(get_info(pair.other).out_registrations, 2);
}

TEST(portable_allocation_of_vram)
{
	struct pinmap_alloc args;

	CHECK_ERR(EINVAL, try_alloc(open_device(0), PINMAP_ALLOC_PORTABLE | PINMAP_ALLOC_VRAM, PAGE,
				    &args));
}

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
