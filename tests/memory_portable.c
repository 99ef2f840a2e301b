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
	pid_t pid;

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
	pid = fork();
	if (pid == 0) {
		other = open_device(1);
		CHECK_ERR(ENOENT, try_query_addr(other, memory, &query));
		CHECK(!(get_info(other).out_flags & PINMAP_INFO_OWNED));
		_exit(0);
	}
	join(pid);
}

/* What one device cannot have fails as a whole, for the reason of that device. */
TEST(portable_refused)
{
	struct registration in_the_way;
	struct pinmap_register args;
	struct gate owned = gate_new(), checked = gate_new();
	struct pinmap_query query;
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
	CHECK_EQ(try_use_device(1), -EBUSY);
	/* open() itself does nothing to the device, and what failed can be tried again */
	other = SYS(try_open_device(1));
	CHECK_ERR(EBUSY, try_query_addr(other, memory, &query));
	CHECK_ERR(EBUSY, try_query_addr(other, memory, &query));
	gate_open(&checked);
	join(pid);
	CHECK(WAIT_FOR(2000, !try_query_addr(other, memory, &query)));
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
	CHECK_EQ(next_event(other).type, PINMAP_EVENT_STALE);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
	CHECK_PINS_SOON(pins);
	/* a device that is opened now needs nothing of it */
	close(open_device(1));
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
	/* the other one is told of both, and its device does not reach them any more */
	for (int i = 0; i < 2; i++) {
		struct pinmap_event event = next_event(other);

		CHECK_EQ(event.type, PINMAP_EVENT_STALE);
		CHECK_EQ(query_handle(other, event.handle).out_state, PINMAP_STATE_STALE);
		CHECK_EQ(query_handle(other, event.handle).out_nr_mappings, 0);
		CHECK_ERR(ESTALE, try_unmap(other, event.handle, event.addr));
		if (event.addr == (uintptr_t)memory)
			CHECK_EQ(event.length, 4 * PAGE);
		else
			release(other, event.handle);
	}
	CHECK_NO_EVENT(other);
	CHECK_EQ(get_info(other).out_registrations, 1);
	query = query_addr(other, memory);
	CHECK_EQ(query.out_state, PINMAP_STATE_STALE);
	/* what is stale is not in the way */
	register_memory(other, memory, 4 * PAGE, WRITE | IDENTITY);
	release(other, query.handle);
	CHECK_EQ(get_info(other).out_registrations, 1);
}

enum portable_end { UNMAPPED, DISCARDED, CLOSED, UNBOUND, RELEASED };

static const struct {
	const char *name;
	enum portable_end how;
} portable_ends_of[] = {
	{ "munmap", UNMAPPED }, { "madvise", DISCARDED }, { "close", CLOSED },
	{ "unbind", UNBOUND }, { "release", RELEASED },
};

/* Who did not register it learns that it is gone: by an event and by its generations; and that it was released, by those. */
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
	numbers = SYS(mmap(NULL, generations.out_length, PROT_READ, MAP_SHARED, other, (off_t)generations.out_offset));
	memory = anon(4);
	pins = pins_held();
	registration = register_memory(fd, memory, 4 * PAGE, WRITE | PORTABLE);
	query = query_addr(other, memory);
	/* handles of the two are not the same */
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

/* Releasing it, here or there, takes back an event that was not read. */
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

/* A device without an MMU has it by one context of the process; when that goes, by the next. */
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
		CHECK_EQ(query_addr(siblings[owner], memory + 5).out_device_addr, (uintptr_t)memory + 5);
		edu = edu_open(siblings[owner]);
		CHECK_REACHES(&edu, (uintptr_t)memory + PAGE, memory + PAGE, PAGE);
		edu_close(&edu);
		close(siblings[owner]);
		siblings[owner] = siblings[i];
	}
	/* whose owner has let go of it does not need it: others can be opened */
	siblings[0] = open_device(1);
	release(siblings[0], query_addr(siblings[0], memory).handle);
	siblings[1] = open_device(1);
	CHECK_ERR(ENOENT, try_query_addr(siblings[1], memory, &query));
	close(siblings[0]);
	CHECK_EQ(query_addr(siblings[1], memory).out_nr_mappings, 1);
	close(siblings[1]);
	CHECK_EQ(query_handle(fd, registration.handle).out_nr_mappings, 1);
}

/* How many mappings were made while that was traced. */
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
 * A process with a great deal of portable memory opens another device, gets all of it there by its first call, and is killed
 * meanwhile: it does not go on to the end.
 */
TEST(portable_killed_while_admitted, .seconds = 120)
{
	enum { MANY = 3000 };
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
			char *memory = anon(MANY);
			int fd = open_device(0), other;

			for (unsigned int i = 0; i < MANY; i++)
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
		diag("killed with %u of %d mapped", mapped, MANY);
		CHECK(mapped > 0 && mapped <= MANY);
		close(watcher);
		if (mapped < MANY)
			return;
	}
	FAIL("it has always had all of it mapped");
}

/*
 * A device that one context of a process has is another one's when that is closed, with all that is portable. Not where the
 * process has ended: nothing is mapped once more for nobody.
 */
TEST(portable_not_handed_over_at_the_end, .seconds = 60)
{
	enum { MANY = 500, SIBLINGS = 4 };
	struct gate ready = gate_new();

	need_two();
	/* files are closed from the first on, or from the last: the owner is one or the other */
	for (unsigned int owner = 0; owner < SIBLINGS; owner += SIBLINGS - 1) {
		struct pinmap_get_totals totals = { .size = sizeof(totals) };
		int watcher = SYS(open(need_device(1).node, O_RDWR | O_CLOEXEC));
		unsigned long long last = MANY;
		pid_t pid = fork();

		if (pid == 0) {
			int siblings[SIBLINGS], file = new_memfd(MANY * PAGE, 0), fd = owner ? open_device(0) : -1;

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
				FAIL("%llu are mapped again", (unsigned long long)totals.out_mapped.number - last);
			last = totals.out_mapped.number;
		} while (waitpid(pid, NULL, WNOHANG) == 0);
		close(watcher);
	}
}

/* A part of a file: at the same address everywhere, for others can name it by nothing else. */
TEST(portable_file)
{
	int fd, other, file = new_memfd(8 * PAGE, 0);
	struct pinmap_register_fd part, refused;
	struct registration taken;
	struct pinmap_event event;
	struct edu first, second;
	long long pins, kib;
	char *view, buffer[4096];

	need_two();
	fd = open_device(0);
	other = open_device(1);
	first = edu_open(fd);
	second = edu_open(other);
	view = SYS(mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
	pins = pins_held();
	kib = pinned_kib();
	part = register_fd(fd, file, 2 * PAGE, 4 * PAGE, WRITE | PORTABLE);
	CHECK_PINS(pins + 4);
	CHECK_EQ(pinned_kib(), kib + 16);
	CHECK_EQ(query_handle(fd, part.out_handle).out_flags, WRITE | PORTABLE);
	CHECK_EQ(get_info(other).out_registrations, 1);
	edu_load(&first, 31);
	edu_writes(&first, part.device_addr + PAGE, PAGE);
	CHECK(pattern_is(view + 3 * PAGE, PAGE, 31));
	edu_reads(&second, part.device_addr + PAGE, PAGE);
	edu_store(&second, buffer);
	CHECK(pattern_is(buffer, PAGE, 31));
	/* also later */
	edu_close(&second);
	close(other);
	other = open_device(1);
	second = edu_open(other);
	CHECK_REACHES(&second, part.device_addr, view + 2 * PAGE, PAGE);
	release(fd, part.out_handle);
	CHECK_PINS(pins);
	CHECK_EQ(get_info(other).out_registrations, 0);
	CHECK_NO_EVENT(other);
	/* where it cannot be, it fails */
	taken = register_memory(other, anon(1), PAGE, WRITE);
	refused = fd_args(file, 0, PAGE, WRITE | PORTABLE | FIXED);
	refused.device_addr = taken.device_addr;
	check_fail(__FILE__, __LINE__, try_register_fd(fd, &refused), EEXIST, &refused.fail, PINMAP_FAIL_OVERLAP,
		   taken.device_addr);
	CHECK_EQ(get_info(fd).out_registrations, 0);
	refused = fd_args(file, 0, PAGE, PORTABLE | NO_MAP);
	CHECK_ERR(EINVAL, try_register_fd(fd, &refused));
	release(other, taken.handle);
	/* and goes with who has it */
	register_fd(fd, file, 0, PAGE, WRITE | PORTABLE);
	edu_close(&first);
	close(fd);
	event = next_event(other);
	CHECK_EQ(event.type, PINMAP_EVENT_STALE);
	CHECK_EQ(event.length, PAGE);
	release(other, event.handle);
	CHECK_PINS(pins);
	edu_close(&second);
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
	/* only the file that it was allocated by shows it */
	CHECK_EQ(query.out_offset, 0);
	CHECK_EQ(query_handle(fd, args.out_handle).out_offset, args.out_offset);
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

/* What one thread lets go of while another maps it. */
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
	try_map(contest->fd, contest->handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, &contest->device_addr, &fail);
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

/* A context that lets go of another one's memory does not reach it any more, also by what is being mapped. */
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
	for (unsigned int round = 0; round < rounds(60); round++) {
		int fd = open_device(0);

		register_memory(fd, memory, 2 * PAGE, WRITE | PORTABLE);
		contest.handle = query_addr(contest.fd, memory).handle;
		compete(&contest);
		edu_load(&edu, 7);
		edu_writes(&edu, contest.device_addr, PAGE);
		CHECK(bytes_are(memory, 2 * PAGE, 0x5a));
		CHECK_EQ(get_info(contest.fd).out_registrations, 0);
		close(fd);
		CHECK_PINS_SOON(pins);
	}
}

/* Nor is memory shared that was released meanwhile. */
TEST(portable_released_while_shared, .seconds = 60)
{
	struct contest contest = { .device_addr = 64 * MIB };
	struct pinmap_alloc args;
	long long pins;

	need_two();
	contest.fd = open_device(0);
	pins = pins_held();
	for (unsigned int round = 0; round < rounds(100); round++) {
		args = (struct pinmap_alloc){ .size = sizeof(args), .flags = PINMAP_ALLOC_PORTABLE, .length = 4 * PAGE };
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

	/* on a slow machine perhaps not before the others have stopped */
	while (!race->stop || !race->good) {
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
