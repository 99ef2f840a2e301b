// SPDX-License-Identifier: MIT OR Apache-2.0
/* The device goes and comes: unbind, bind, remove, rescan. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "kmsg.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"
#include "uffd.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

static int try_read(int fd, void *buffer, size_t size)
{
	ssize_t got = read(fd, buffer, size);

	return got < 0 ? -errno : got;
}

/* Checks what a file says whose device is gone. */
static void check_gone(int fd, const struct registration *registration)
{
	struct pollfd poller = { .fd = fd, .events = POLLIN };
	struct pinmap_reserved reserved;
	struct registration none;
	struct pinmap_query query;
	struct pinmap_event event;
	struct pinmap_fail fail;
	uint64_t device_addr = 0;
	char *page = anon(1);

	CHECK(get_info(fd).out_flags & PINMAP_INFO_GONE);
	CHECK_EQ(get_info(fd).out_vendor, 0x1234);
	CHECK_ERR(ENODEV, try_register_memory(fd, page, PAGE, WRITE, &none));
	CHECK_ERR(ENODEV, try_register_memory(fd, page, PAGE, NO_MAP, &none));
	CHECK_ERR(ENODEV, try_release(fd, registration->handle));
	CHECK_ERR(ENODEV, try_query_handle(fd, registration->handle, &query));
	CHECK_ERR(ENODEV, try_map(fd, registration->handle, 0, &device_addr, &fail));
	CHECK_ERR(ENODEV, try_unmap(fd, registration->handle, registration->device_addr));
	CHECK_ERR(ENODEV, try_set_eventfd(fd, PINMAP_SOURCE_EVENTS, 0, -1));
	CHECK_ERR(ENODEV, try_set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, -1));
	CHECK_ERR(ENODEV, try_get_reserved(fd, 0, &reserved));
	CHECK((try_reset_device(fd) == -ENODEV) | (try_reset_device(fd) == -EOPNOTSUPP));

	CHECK_EQ(poll(&poller, 1, 0), 1);
	CHECK(poller.revents & POLLIN);
	CHECK(poller.revents & POLLHUP);
	CHECK_OK(try_next_event(fd, &event, 0));
	CHECK_EQ(event.type, PINMAP_EVENT_GONE);
	CHECK_EQ(event.handle, 0);
	CHECK_EQ(event.addr, 0);
	CHECK_EQ(event.length, 0);
	CHECK_EQ(event.access, 0);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(try_read(fd, &event, sizeof(event)), 0);
	poller.revents = 0;
	CHECK_EQ(poll(&poller, 1, 0), 1);
	CHECK(poller.revents & POLLHUP);
}

/*
 * A device in the middle of its work: memory registered, registers mapped, interrupts, a transfer
 * in flight.
 */
struct busy {
	struct pci_device device;
	int fd;
	int eventfd;
	struct edu edu;
	struct memory memory;
	struct registration registration;
	long long pins;
};

static struct busy busy_new(unsigned int index)
{
	struct busy busy = { .device = need_device(index) };

	busy.memory = memory_new(MEMFD, 4 * PAGE);
	busy.fd = open_device(index);
	busy.edu = edu_open(busy.fd);
	busy.pins = pins_held();
	busy.registration = register_memory(busy.fd, busy.memory.addr, 4 * PAGE, WRITE);
	busy.eventfd = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	set_eventfd(busy.fd, PINMAP_SOURCE_VECTOR, 0, busy.eventfd);
	edu_load(&busy.edu, 12);
	edu_writes(&busy.edu, busy.registration.device_addr, PAGE);
	CHECK(pattern_is(busy.memory.addr, PAGE, 12));
	memset(busy.memory.addr, 0x21, 4 * PAGE);
	edu_start(&busy.edu, EDU_WRITES, busy.registration.device_addr, PAGE, true);
	return busy;
}

/* Checks that all work of the device is over, and stays so. */
static void check_over(struct busy *busy)
{
	struct pinmap_event event;
	uint64_t count;

	CHECK_PINS(busy->pins);
	CHECK_EQ(touch_read(busy->edu.bar), SIGBUS);
	if (!access(pci_path(busy->device.bdf, "resource0"), F_OK))
		edu_settle(busy->device.bdf);
	else
		sleep_ms(2 * EDU_MS);
	CHECK(bytes_are(busy->memory.addr, 4 * PAGE, 0x21));
	CHECK_EQ(read(busy->eventfd, &count, sizeof(count)), -1);
	check_gone(busy->fd, &busy->registration);
	/* the process's memory is its own again, and can go without an event */
	SYS(munmap(busy->memory.addr, 4 * PAGE));
	CHECK_EQ(try_read(busy->fd, &event, sizeof(event)), 0);
}

static void check_works(unsigned int index)
{
	int fd = open_device(index);
	struct edu edu = edu_open(fd);
	char *page = anon(1);

	CHECK_REACHES(&edu, register_memory(fd, page, PAGE, WRITE).device_addr, page, PAGE);
	edu_close(&edu);
	close(fd);
}

TEST(unbind, .smoke = true)
{
	struct busy busy = busy_new(0);

	pci_unbind(busy.device.bdf);
	CHECK_EQ(access(busy.device.node, F_OK), -1);
	check_over(&busy);
	/* bound again while the old file is open */
	pci_bind(busy.device.bdf);
	check_works(0);
	CHECK(get_info(busy.fd).out_flags & PINMAP_INFO_GONE);
	close(busy.fd);
	check_works(0);
}

/* The second device works on while the first goes. */
TEST(unbind_leaves_the_other)
{
	struct pci_device first = need_device(0), second = need_device(1);
	struct registration registration;
	char *page = anon(1);
	struct edu edu;
	int fd;

	fd = SYS(open(second.node, O_RDWR | O_CLOEXEC));
	edu = edu_open(fd);
	registration = register_memory(fd, page, PAGE, WRITE);
	pci_unbind(first.bdf);
	CHECK_REACHES(&edu, registration.device_addr, page, PAGE);
	pci_bind(first.bdf);
	CHECK_REACHES(&edu, registration.device_addr, page, PAGE);
	CHECK_NO_EVENT(fd);
}

/* The function is removed from the system, as by unplugging it, and found again. */
static void check_remove(unsigned int index)
{
	struct busy busy = busy_new(index);

	file_write(pci_path(busy.device.bdf, "remove"), "1");
	CHECK_EQ(access(busy.device.node, F_OK), -1);
	CHECK_EQ(access(pci_path(busy.device.bdf, ""), F_OK), -1);
	check_over(&busy);
	file_write("/sys/bus/pci/rescan", "1");
	pci_bind(busy.device.bdf);
	check_works(index);
	close(busy.fd);
}

TEST(remove)
{
	check_remove(0);
}

TEST(remove_second)
{
	check_remove(1);
}

/* Unbinding wakes processes that wait for events. */
static void *read_event(void *argument)
{
	struct pinmap_event *event = argument;
	int fd = event->access;

	CHECK_EQ(try_read(fd, event, sizeof(*event)), sizeof(*event));
	return NULL;
}

static void *poll_hangup(void *argument)
{
	struct pollfd *poller = argument;

	CHECK_EQ(poll(poller, 1, slow(5000)), 1);
	return NULL;
}

TEST(unbind_wakes)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0), other = open_device(0),
	    eventfd_ = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	struct pinmap_event event = { .access = fd };
	struct pollfd poller = { .fd = other };
	pthread_t reader, waiter;
	uint64_t count;

	set_eventfd(other, PINMAP_SOURCE_EVENTS, 0, eventfd_);
	CHECK_OK(-pthread_create(&reader, NULL, read_event, &event));
	CHECK_OK(-pthread_create(&waiter, NULL, poll_hangup, &poller));
	sleep_ms(50);
	pci_unbind(device.bdf);
	CHECK_OK(-pthread_join(reader, NULL));
	CHECK_OK(-pthread_join(waiter, NULL));
	CHECK_EQ(event.type, PINMAP_EVENT_GONE);
	CHECK(poller.revents & POLLHUP);
	CHECK_EQ(read(eventfd_, &count, sizeof(count)), sizeof(count));
	CHECK_EQ(count, 1);
	pci_bind(device.bdf);
}

/* The event that the device is gone comes after all others. */
TEST(gone_after_stale)
{
	struct pci_device device = need_device(0);
	char *memory = anon(2);
	int fd = open_device(0);
	struct registration registration = register_memory(fd, memory, PAGE, WRITE);

	register_memory(fd, memory + PAGE, PAGE, WRITE);
	SYS(munmap(memory, PAGE));
	CHECK(WAIT_FOR(2000,
		       query_handle(fd, registration.handle).out_state == PINMAP_STATE_STALE));
	pci_unbind(device.bdf);
	CHECK_STALE_EVENT(fd, registration);
	CHECK_EQ(next_event(fd).type, PINMAP_EVENT_GONE);
	pci_bind(device.bdf);
}

struct reader {
	int fd;
	struct pinmap_event *event;
};

static void *read_into(void *argument)
{
	struct reader *reader = argument;

	size_t size = sizeof(*reader->event);

	CHECK_EQ(try_read(reader->fd, reader->event, size), size);
	return NULL;
}

/* The last event also waits for one that a thread is still reading, into memory that is missing. */
TEST(gone_after_what_is_being_read)
{
	struct pci_device device = need_device(0);
	char *memory = anon(1), *page = anon(1);
	int fd = open_device(0), uffd;
	struct registration registration = register_memory(fd, memory, PAGE, NO_MAP);
	struct reader reader = { .fd = fd, .event = (struct pinmap_event *)page };
	struct pinmap_event event;
	pthread_t thread;

	SYS(madvise(page, PAGE, MADV_DONTNEED));
	uffd = uffd_new(page, PAGE);
	SYS(munmap(memory, PAGE));
	CHECK_OK(-pthread_create(&thread, NULL, read_into, &reader));
	uffd_await(uffd, page);
	pci_unbind(device.bdf);
	SYS(fcntl(fd, F_SETFL, O_NONBLOCK));
	CHECK_ERR(EAGAIN, try_read(fd, &event, sizeof(event)));
	uffd_supply(uffd, page, 0);
	CHECK_OK(-pthread_join(thread, NULL));
	CHECK_EQ(reader.event->type, PINMAP_EVENT_STALE);
	CHECK_EQ(reader.event->handle, registration.handle);
	CHECK_EQ(next_event(fd).type, PINMAP_EVENT_GONE);
	pci_bind(device.bdf);
}

struct pinner {
	int fd;
	char *memory;
	int result;
};

static void *pin(void *argument)
{
	struct pinner *pinner = argument;
	struct registration registration;

	pinner->result =
		try_register_memory(pinner->fd, pinner->memory, 4 * PAGE, WRITE, &registration);
	return NULL;
}

/*
 * Unbinding does not wait for a page that may never come; the call that waits for the page is told
 * in the end.
 */
TEST(unbind_while_pinning)
{
	struct pci_device device = need_device(0);
	struct pinner pinner = { .fd = open_device(0), .memory = anon(4) };
	long long pins = pins_held();
	pthread_t thread;
	int uffd;

	SYS(madvise(pinner.memory + 3 * PAGE, PAGE, MADV_DONTNEED));
	uffd = uffd_new(pinner.memory + 3 * PAGE, PAGE);
	CHECK_OK(-pthread_create(&thread, NULL, pin, &pinner));
	uffd_await(uffd, pinner.memory + 3 * PAGE);
	pci_unbind(device.bdf);
	pci_bind(device.bdf);
	check_works(0);
	uffd_supply(uffd, pinner.memory + 3 * PAGE, 1);
	CHECK_OK(-pthread_join(thread, NULL));
	CHECK_ERR(ENODEV, pinner.result);
	CHECK_PINS_SOON(pins);
}

/* The file of a device that is gone can be passed on, forked and closed late. */
TEST(old_file)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0);
	struct registration registration = register_memory(fd, anon(1), PAGE, WRITE);
	pid_t pid;

	pci_unbind(device.bdf);
	pci_bind(device.bdf);
	pid = fork();
	if (pid == 0) {
		check_gone(fd, &registration);
		_exit(0);
	}
	join(pid);
	close(fd);
	check_works(0);
}

/* Opens, registers and releases without end, while the device comes and goes. */
static void *use_device(void *argument)
{
	volatile bool *stop = argument;
	char *memory = anon(4);

	while (!*stop) {
		int fd = try_open_device(0);
		struct registration registration;

		if (fd < 0)
			continue;
		for (int i = 0; i < 20; i++) {
			int result = try_register_memory(fd, memory, 4 * PAGE,
							 i % 2 ? WRITE : NO_MAP, &registration);

			/* another thread may own the device */
			if (result && result != -ENODEV && result != -EBUSY)
				FAIL("REGISTER: %s", error_name(-result));
			if (result == -ENODEV)
				break;
			if (result == 0)
				try_release(fd, registration.handle);
		}
		close(fd);
	}
	return NULL;
}

TEST(unbind_often, .seconds = 40)
{
	struct pci_device device = need_device(0);
	volatile bool stop = false;
	long long pins = pins_held();
	pthread_t threads[3];

	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		CHECK_OK(-pthread_create(&threads[i], NULL, use_device, (void *)&stop));
	for (unsigned int i = 0; i < rounds(40); i++) {
		sleep_ms(i % 20);
		pci_unbind(device.bdf);
		pci_bind(device.bdf);
	}
	stop = true;
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		CHECK_OK(-pthread_join(threads[i], NULL));
	CHECK_PINS_SOON(pins);
	check_works(0);
}

/* The number that a device gets next: the lowest that none has. */
static int lowest_free(void)
{
	char node[32];
	int number = -1;

	do
		snprintf(node, sizeof(node), "/dev/pinmap%d", ++number);
	while (!access(node, F_OK));
	return number;
}

/* A device that is bound gets the lowest number that is free, whichever it had before. */
TEST(lowest_number)
{
	struct pci_device devices[] = { need_device(1), need_device(0) };
	char node[32];

	for (int i = 0; i < 2; i++)
		pci_unbind(devices[i].bdf);
	for (int i = 0; i < 2; i++) {
		snprintf(node, sizeof(node), "/dev/pinmap%d", lowest_free());
		pci_bind(devices[i].bdf);
		pci_look(&devices[i]);
		CHECK(!strcmp(devices[i].node, node));
	}
}

/* A device that nobody has open is unbound and bound. */
TEST(unbind_idle)
{
	struct pci_device device = need_device(0);

	for (unsigned int i = 0; i < rounds(20); i++) {
		pci_unbind(device.bdf);
		CHECK(!pci_is_master(device.bdf));
		pci_bind(device.bdf);
	}
	check_works(0);
}

/* Binding by the device's ids, as an administrator would who has many of them. */
TEST(new_id)
{
	static const char driver[] = "/sys/bus/pci/drivers/" PCI_DRIVER;
	struct pci_device device = need_device(1);
	char path[64];

	pci_unbind(device.bdf);
	file_write(pci_path(device.bdf, "driver_override"), "\n");
	snprintf(path, sizeof(path), "%s/bind", driver);
	/* not one of the driver's ids: it has none */
	CHECK_ERR(ENODEV, try_file_write(path, device.bdf));
	snprintf(path, sizeof(path), "%s/new_id", driver);
	file_write(path, "1234 11e8");
	CHECK_EQ(access(pci_path(device.bdf, "driver"), F_OK), 0);
	check_works(1);
	snprintf(path, sizeof(path), "%s/remove_id", driver);
	file_write(path, "1234 11e8");
	check_works(1);
}

/* VFIO can have the device when the driver lets it go, and the driver can have it back. */
TEST(vfio_takes_over)
{
	struct pci_device device = need_device(1);

	if (access("/sys/bus/pci/drivers/vfio-pci", F_OK))
		SKIP("the kernel has no vfio-pci");
	file_write(pci_path(device.bdf, "driver_override"), "vfio-pci");
	/* a device that VFIO has cannot be taken */
	CHECK(try_file_write("/sys/bus/pci/drivers/vfio-pci/bind", device.bdf) < 0);
	check_works(1);
	pci_unbind(device.bdf);
	file_write("/sys/bus/pci/drivers/vfio-pci/bind", device.bdf);
	/* the other way round */
	CHECK(try_pci_bind(device.bdf) < 0);
	file_write("/sys/bus/pci/drivers/vfio-pci/unbind", device.bdf);
	pci_bind(device.bdf);
	check_works(1);
}

/*
 * A device that does nothing but touch forbidden addresses leaves the machine usable, and itself.
 */
TEST(fault_storm, .faults = true)
{
	int fd = open_device(0), kmsg = kmsg_open();
	struct edu edu = edu_open(fd);
	char *page = anon(1);
	struct registration registration = register_memory(fd, page, PAGE, WRITE);

	edu_load(&edu, 2);
	for (unsigned int i = 0; i < rounds(30); i++)
		edu_writes(&edu, 0x60000000 + i * PAGE, PAGE);
	/* how much is logged is limited */
	CHECK(kmsg_count(kmsg, "") < 300);
	CHECK_REACHES(&edu, registration.device_addr, page, PAGE);
	CHECK_NO_EVENT(fd);
}

/*
 * Memory that could not be unmapped is not given to anybody else, and the device is cut off from
 * everything.
 */
TEST(unmap_fails, .faults = true, .leaks = 3)
{
	struct pci_device device = need_device(0);
	struct memory memory = memory_new(MEMFD, 3 * PAGE);
	int fd = open_device(0), bar;
	struct edu edu = edu_open(fd);
	struct registration registration = register_memory(fd, memory.addr, 3 * PAGE, WRITE);
	long long pins = pins_held();

	memset(memory.addr, 0x21, 3 * PAGE);
	edu_load(&edu, 4);
	switch (try_release(fd, registration.handle)) {
	case 0:
		SKIP("needs an IOMMU that fails to unmap, which a mutant of the driver has");
	case -EIO:
		break;
	default:
		FAIL("the release neither succeeds nor fails as it should");
	}
	CHECK_EQ(pins_held(), pins);
	CHECK(WAIT_FOR(3000, get_info(fd).out_flags & PINMAP_INFO_GONE));
	check_gone(fd, &registration);
	CHECK_ERR(ENODEV, try_open_device(0));

	/* the device reaches nothing even as a bus master */
	bar = SYS(open(pci_path(device.bdf, "resource0"), O_RDWR | O_CLOEXEC));
	edu.bar = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, bar, 0));
	pci_set_master(device.bdf);
	edu_writes(&edu, registration.device_addr, PAGE);
	CHECK(bytes_are(memory.addr, 3 * PAGE, 0x21));

	/* with the next domain the device works again */
	edu_close(&edu);
	close(bar);
	close(fd);
	CHECK_OK(try_pci_unbind(device.bdf));
	CHECK_OK(try_pci_bind(device.bdf));
	fd = open_device(0);
	edu = edu_open(fd);
	CHECK_REACHES(&edu, register_memory(fd, memory.addr, PAGE, WRITE).device_addr, memory.addr,
		      PAGE);
}
