// SPDX-License-Identifier: MIT OR Apache-2.0
/* Stale registrations, and memory that is replaced. */
#define _GNU_SOURCE
#include "edu.h"
#include "memory.h"
#include "pins.h"
#include "uffd.h"

#include <poll.h>
#include <pthread.h>
#include <string.h>
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
