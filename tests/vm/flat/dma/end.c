// SPDX-License-Identifier: MIT OR Apache-2.0
/* The promise when the owner goes while the device works, and when mappings come and go. */
#define _GNU_SOURCE
#include "edu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * Checks that the next owner gets a device that works, and memory of its own that only it writes.
 */
static void check_next_owner(void)
{
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *page = anon(1);

	CHECK_REACHES(&edu, register_memory(fd, page, PAGE, WRITE).device_addr, page, PAGE);
}

TEST(close_in_flight)
{
	struct pci_device device = need_device(0);
	struct memory memory = memory_new(MEMFD, PAGE);
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	struct registration registration = register_memory(fd, memory.addr, PAGE, WRITE);
	bool in_flight;

	edu_load(&edu, 4);
	edu_writes(&edu, registration.device_addr, PAGE);
	memset(memory.addr, 0x21, PAGE);
	edu_start(&edu, EDU_WRITES, registration.device_addr, PAGE, false);
	in_flight = edu_busy(&edu);
	edu_close(&edu);
	close(fd);
	CHECK(!pci_is_master(device.bdf));
	CHECK(in_flight);
	edu_settle(device.bdf);
	CHECK(bytes_are(memory.addr, PAGE, 0x21));
	check_next_owner();
}

/* The next owner registers memory while the last owner's transfer is still to come. */
TEST(close_in_flight_next_owner, .faults = true)
{
	struct memory memory = memory_new(MEMFD, PAGE);
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	struct registration registration = register_memory(fd, memory.addr, PAGE, WRITE);

	edu_load(&edu, 4);
	edu_start(&edu, EDU_WRITES, registration.device_addr, PAGE, false);
	edu_close(&edu);
	close(fd);
	/* other memory than the old owner's, to which no transfer leads */
	memset(memory.addr, 0x21, PAGE);
	check_next_owner();
	CHECK(bytes_are(memory.addr, PAGE, 0x21));
}

/* The memory of a program that ends is unmapped before its files are closed: the IOMMU may tell. */
TEST(kill_in_flight, .faults = true)
{
	struct pci_device device = need_device(0);
	struct memory memory = memory_new(MEMFD, PAGE);
	struct gate started = gate_new();
	long long pins = pins_held();
	pid_t pid;

	for (unsigned int i = 0; i < rounds(3); i++) {
		memset(memory.alias, 0x21, PAGE);
		pid = fork();
		if (pid == 0) {
			int fd = open_device(0);
			struct edu edu = edu_open(fd);
			struct registration registration =
				register_memory(fd, memory.addr, PAGE, WRITE);

			edu_load(&edu, 4);
			memset(memory.addr, 0x21, PAGE);
			edu_start(&edu, EDU_WRITES, registration.device_addr, PAGE, false);
			gate_open(&started);
			pause();
		}
		gate_pass(&started);
		sleep_ms(i * 10);
		kill_now(pid);
		CHECK(!pci_is_master(device.bdf));
		memset(memory.alias, 0x21, PAGE);
		edu_settle(device.bdf);
		CHECK(bytes_are(memory.alias, PAGE, 0x21));
		CHECK_PINS_SOON(pins);
	}
	check_next_owner();
}

/* Closing the file of a context that is no owner stops nothing for the owner. */
TEST(close_of_another)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0), other = open_device(0);
	struct edu edu = edu_open(fd);
	char *page = anon(1);
	struct registration registration = register_memory(fd, page, PAGE, WRITE);

	register_memory(other, page, PAGE, NO_MAP);
	edu_load(&edu, 4);
	edu_start(&edu, EDU_WRITES, registration.device_addr, PAGE, false);
	close(other);
	CHECK(pci_is_master(device.bdf));
	edu_wait(&edu);
	CHECK(pattern_is(page, PAGE, 4));
}

/*
 * One device address is mapped and unmapped while the device writes to it all the time. Between two
 * mappings the page must not change.
 */
TEST(map_unmap_race, .faults = true, .seconds = 40)
{
	const uint64_t device_addr = 0x50000000;
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *page = anon(1), *bystander = anon(1);
	struct registration registration = register_memory(fd, page, PAGE, WRITE | NO_MAP);
	unsigned int written = 0;

	register_memory(fd, bystander, PAGE, WRITE);
	edu_load(&edu, 6);
	edu_repeat(&edu, device_addr);
	for (unsigned int i = 0; i < rounds(60); i++) {
		memset(page, 0x21, PAGE);
		map(fd, registration.handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, device_addr);
		sleep_ms(i % 7 * 10);
		unmap(fd, registration.handle, device_addr);
		written += !bytes_are(page, PAGE, 0x21);
		memset(page, 0x22, PAGE);
		sleep_ms(i % 5 * 10);
		CHECK(bytes_are(page, PAGE, 0x22));
	}
	edu_repeat_end(&edu);
	diag("%u of %u mappings were written to", written, rounds(60));
	CHECK(bytes_are(bystander, PAGE, 0x11));
	map(fd, registration.handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, device_addr);
	CHECK_REACHES(&edu, device_addr, page, PAGE);
}

/*
 * Threads register, map, unmap and release all at once, while the device writes to memory of yet
 * another.
 */
struct worker {
	int fd;
	unsigned int number;
	unsigned int rounds;
};

static void *work(void *argument)
{
	struct worker *worker = argument;
	char *memory = anon(32);

	for (unsigned int i = 0; i < worker->rounds; i++) {
		struct registration registration = register_memory(
			worker->fd, memory + i % 8 * PAGE, (1 + i % 24) * PAGE, WRITE);
		uint64_t second = map(worker->fd, registration.handle, 0, 0);

		if (i % 2)
			unmap(worker->fd, registration.handle, registration.device_addr);
		if (i % 3)
			unmap(worker->fd, registration.handle, second);
		CHECK_EQ(query_addr(worker->fd, registration.addr).handle, registration.handle);
		release(worker->fd, registration.handle);
	}
	return NULL;
}

TEST(many_threads, .seconds = 40)
{
	enum { WORKERS = 6 };
	struct worker workers[WORKERS];
	pthread_t threads[WORKERS];
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *page = anon(1);
	struct registration registration = register_memory(fd, page, PAGE, WRITE);
	long long pins = pins_held();

	edu_load(&edu, 9);
	edu_repeat(&edu, registration.device_addr);
	for (unsigned int i = 0; i < WORKERS; i++) {
		workers[i] = (struct worker){ .fd = fd, .number = i, .rounds = rounds(400) };
		CHECK_OK(-pthread_create(&threads[i], NULL, work, &workers[i]));
	}
	for (unsigned int i = 0; i < WORKERS; i++)
		CHECK_OK(-pthread_join(threads[i], NULL));
	CHECK(WAIT_FOR(2000, edu.transfers > 0));
	edu_repeat_end(&edu);
	CHECK(pattern_is(page, PAGE, 9));
	CHECK_PINS(pins);
	CHECK_EQ(get_info(fd).out_registrations, 1);
}
