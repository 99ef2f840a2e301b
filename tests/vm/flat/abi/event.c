// SPDX-License-Identifier: MIT OR Apache-2.0
/* Reading events, and eventfds. */
#define _GNU_SOURCE
#include "device.h"
#include "edu.h"
#include "memory.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

static int new_eventfd(void)
{
	return SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
}

static uint64_t count(int fd)
{
	uint64_t value = 0;

	return read(fd, &value, sizeof(value)) == sizeof(value) ? value : 0;
}

static void nonblocking(int fd)
{
	SYS(fcntl(fd, F_SETFL, O_NONBLOCK));
}

static int try_read(int fd, void *buffer, size_t size)
{
	ssize_t got = read(fd, buffer, size);

	return got < 0 ? -errno : got;
}

TEST(read_nothing)
{
	struct pollfd poller = { .events = POLLIN | POLLOUT | POLLPRI };
	struct pinmap_event events[2];
	int fd = open_device(0);

	nonblocking(fd);
	poller.fd = fd;
	CHECK_EQ(poll(&poller, 1, 0), 0);
	CHECK_ERR(EAGAIN, try_read(fd, events, sizeof(events)));
	CHECK_ERR(EINVAL, try_read(fd, events, sizeof(events[0]) - 1));
	CHECK_ERR(EINVAL, try_read(fd, events, 1));
}

/* read() returns as many whole events as fit, the oldest first. */
TEST(read_several)
{
	char *memory[5], buffer[5 * sizeof(struct pinmap_event)];
	struct pinmap_event *events = (struct pinmap_event *)buffer;
	struct registration registrations[5];
	int fd = open_device(0), i;

	nonblocking(fd);
	for (i = 0; i < 5; i++) {
		memory[i] = anon(1);
		registrations[i] = register_memory(fd, memory[i], PAGE, NO_MAP);
	}
	for (i = 0; i < 5; i++) {
		SYS(munmap(memory[i], PAGE));
		CHECK(WAIT_FOR(2000, query_handle(fd, registrations[i].handle).out_state ==
					     PINMAP_STATE_STALE));
	}
	CHECK_ERR(EINVAL, try_read(fd, buffer, sizeof(events[0]) - 1));
	CHECK_EQ(try_read(fd, buffer, sizeof(events[0]) * 2 + 5), sizeof(events[0]) * 2);
	CHECK_EQ(events[0].handle, registrations[0].handle);
	CHECK_EQ(events[1].handle, registrations[1].handle);
	CHECK_EQ(try_read(fd, buffer, sizeof(buffer)), sizeof(events[0]) * 3);
	for (i = 0; i < 3; i++) {
		CHECK_EQ(events[i].type, PINMAP_EVENT_STALE);
		CHECK_EQ(events[i].handle, registrations[i + 2].handle);
	}
	CHECK_ERR(EAGAIN, try_read(fd, buffer, sizeof(buffer)));
}

/* An event that cannot be delivered is not lost. */
TEST(read_bad_buffer)
{
	char *page = anon(1), *hole = anon(1), *memory = anon(1);
	int fd = open_device(0);
	struct registration registration = register_memory(fd, memory, PAGE, NO_MAP);

	SYS(munmap(memory, PAGE));
	CHECK(WAIT_FOR(2000,
		       query_handle(fd, registration.handle).out_state == PINMAP_STATE_STALE));
	SYS(munmap(hole, PAGE));
	CHECK_ERR(EFAULT, try_read(fd, hole, 64));
	SYS(mprotect(page, PAGE, PROT_READ));
	CHECK_ERR(EFAULT, try_read(fd, page, 64));
	CHECK_STALE_EVENT(fd, registration);
	CHECK_NO_EVENT(fd);
}

TEST(node_calls)
{
	struct pinmap_event event;
	int fd = open_device(0);
	char byte = 0;

	CHECK_EQ(write(fd, &byte, 1), -1);
	CHECK_EQ(lseek(fd, 1, SEEK_SET), -1);
	CHECK_EQ(pread(fd, &event, sizeof(event), 0), -1);
}

TEST(eventfd_arguments)
{
	int fd = open_device(0), good = new_eventfd(),
	    file = SYS(open("/dev/null", O_RDONLY | O_CLOEXEC));

	CHECK_ERR(EBADF, try_set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, 999));
	CHECK_ERR(EBADF, try_set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, 999));
	CHECK_ERR(EINVAL, try_set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, file));
	CHECK_ERR(EINVAL, try_set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, file));
	CHECK_ERR(ENOENT, try_set_eventfd(fd, PINMAP_SOURCE_VECTOR, 1, good));
	CHECK_ERR(ENOENT, try_set_eventfd(fd, PINMAP_SOURCE_VECTOR, UINT32_MAX, good));
	CHECK_ERR(EINVAL, try_set_eventfd(fd, PINMAP_SOURCE_EVENTS, 1, good));
	CHECK_ERR(EOPNOTSUPP, try_set_eventfd(fd, 0, 0, good));
	CHECK_ERR(EOPNOTSUPP, try_set_eventfd(fd, 3, 0, good));
	CHECK_ERR(EBADF, try_set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, -2));
	/* removing an eventfd that is not there */
	set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, -1);
	set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, -1);
}

TEST(eventfd_of_events)
{
	int fd = open_device(0), first = new_eventfd(), second = new_eventfd();
	char *memory = anon(3);
	struct registration registrations[3];

	for (int i = 0; i < 3; i++)
		registrations[i] = register_memory(fd, memory + i * PAGE, PAGE, NO_MAP);
	set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, first);
	CHECK_EQ(count(first), 0);
	SYS(munmap(memory, PAGE));
	CHECK(WAIT_FOR(2000, count(first) == 1));
	CHECK_STALE_EVENT(fd, registrations[0]);
	/* a new eventfd takes the place of the old one */
	set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, second);
	SYS(munmap(memory + PAGE, PAGE));
	CHECK(WAIT_FOR(2000, count(second) == 1));
	CHECK_EQ(count(first), 0);
	set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, -1);
	SYS(munmap(memory + 2 * PAGE, PAGE));
	CHECK_EQ(query_handle(fd, registrations[2].handle).out_state, PINMAP_STATE_STALE);
	CHECK_EQ(count(first) + count(second), 0);
	/* what can be read already is told at once, also again */
	set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, first);
	CHECK_EQ(count(first), 1);
	CHECK_STALE_EVENT(fd, registrations[1]);
	set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, second);
	CHECK_EQ(count(second), 1);
	CHECK_STALE_EVENT(fd, registrations[2]);
	/* an eventfd that is set while there is no event is not signalled */
	set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, first);
	CHECK_EQ(count(first) + count(second), 0);
}
