// SPDX-License-Identifier: MIT OR Apache-2.0
/* Resets of functions: by their users, between owners, and while the BAR is touched. */
#define _GNU_SOURCE
#include "nvme.h"

#include "device.h"
#include "file.h"
#include "importer/importer.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* A reset clears the device's state, and leaves mappings, memory and interrupts alone. */
TEST(reset)
{
	struct nvme nvme = nvme_open();
	int other = SYS(open(nvme.device.node, O_RDWR | O_CLOEXEC));
	int eventfd_ = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	struct registration registration;
	uint64_t count = 0;
	char *page = anon(1);

	CHECK(get_info(nvme.fd).out_flags & PINMAP_INFO_RESET);
	CHECK_EQ(get_info(nvme.fd).out_flags & PINMAP_INFO_OWNED, 0);
	/* the context that resets the function owns it */
	reset_device(nvme.fd);
	CHECK(get_info(nvme.fd).out_flags & PINMAP_INFO_OWNER);
	nvme_map(&nvme);
	CHECK_ERR(EBUSY, try_reset_device(other));
	set_eventfd(nvme.fd, PINMAP_SOURCE_VECTOR, 0, eventfd_);
	registration = register_memory(nvme.fd, page, PAGE, WRITE);
	for (int i = 0; i < 2; i++) {
		nvme_start(&nvme);
		CHECK_EQ(nvme_get(&nvme, CONFIG) & 1, 1);
		CHECK_EQ(nvme_identify(&nvme, registration.device_addr), 0);
		CHECK(!memcmp(page + 4, "pinmap", 6));
		CHECK(WAIT_FOR(2000, read(eventfd_, &count, sizeof(count)) == sizeof(count)));
		memset(page, 0, PAGE);
		reset_device(nvme.fd);
		CHECK_EQ(nvme_get(&nvme, STATUS) & 1, 0);
		CHECK_EQ(nvme_get(&nvme, CONFIG) & 1, 0);
		CHECK(pci_is_master(nvme.device.bdf));
		CHECK_EQ(query_handle(nvme.fd, registration.handle).out_nr_mappings, 1);
	}
	CHECK_NO_EVENT(nvme.fd);
	close(other);
	nvme_close(&nvme);
}

struct reader {
	const struct nvme *nvme;
	uint32_t version;
	volatile bool stop;
	unsigned int reads, lost;
};

static void *read_version(void *argument)
{
	struct reader *reader = argument;

	while (!reader->stop) {
		/* a function that does not decode its memory answers something else, or nothing */
		reader->lost += nvme_get(reader->nvme, VERSION) != reader->version;
		reader->reads++;
	}
	return NULL;
}

/*
 * While a function is being reset, whoever resets it, a touch of its memory waits until it answers
 * again.
 */
TEST(reset_while_reading, .seconds = 60)
{
	struct nvme nvme = nvme_open();
	struct reader reader = { .nvme = &nvme };
	pthread_t thread;

	nvme_map(&nvme);
	reader.version = nvme_get(&nvme, VERSION);
	CHECK_OK(-pthread_create(&thread, NULL, read_version, &reader));
	for (unsigned int i = 0; i < rounds(20); i++) {
		unsigned int before = reader.reads;

		reset_device(nvme.fd);
		file_write(pci_path(nvme.device.bdf, "reset"), "1");
		CHECK(pci_is_master(nvme.device.bdf));
		CHECK(WAIT_FOR(3000, reader.reads != before));
	}
	reader.stop = true;
	CHECK_OK(-pthread_join(thread, NULL));
	diag("%u reads", reader.reads);
	CHECK_EQ(reader.lost, 0);
	nvme_close(&nvme);
}

/* A function without an owner that is reset through sysfs does not become a bus master. */
TEST(reset_without_owner)
{
	struct nvme nvme = nvme_open();

	pci_set_master(nvme.device.bdf);
	file_write(pci_path(nvme.device.bdf, "reset"), "1");
	CHECK(!pci_is_master(nvme.device.bdf));
	nvme_close(&nvme);
}

/* The next owner finds nothing of the last one's in the device. */
TEST(reset_between_owners)
{
	struct nvme nvme = nvme_open(), next = nvme_open();

	nvme_map(&nvme);
	nvme_start(&nvme);
	CHECK(nvme_get(&nvme, STATUS) & 1);
	SYS(munmap((void *)nvme.bar, NVME_REGISTERS));
	close(nvme.fd);
	CHECK(!pci_is_master(next.device.bdf));
	nvme_map(&next);
	CHECK_EQ(nvme_get(&next, STATUS) & 1, 0);
	CHECK_EQ(nvme_get(&next, CONFIG) & 1, 0);
	nvme_close(&next);
}

/* Holds the device lock for a while. */
static void *hold_device_lock(void *argument)
{
	with_device_lock(argument, IMPORTER_HOLD, 1000);
	return NULL;
}

/*
 * Starts the function and closes its file while somebody has the device lock, so that it cannot be
 * reset. Returns whether it still runs then, which @behind sees: on a machine that is very busy the
 * lock may be let go before it is needed.
 */
static bool starts_and_goes(struct nvme *nvme, struct nvme *behind)
{
	pthread_t holder;
	bool late;

	nvme_map(nvme);
	nvme_start(nvme);
	SYS(munmap((void *)nvme->bar, NVME_REGISTERS));
	CHECK_OK(-pthread_create(&holder, NULL, hold_device_lock, nvme->device.bdf));
	sleep_ms(100);
	close(nvme->fd);
	late = nvme_get(behind, STATUS) & 1;
	CHECK_OK(-pthread_join(holder, NULL));
	return late;
}

static const struct making_up {
	const char *name;
	bool first;
} making_up[] = { { "by_a_first_call", true }, { "by_a_claim", false } };

/*
 * A function cannot be reset while somebody has its device lock. Then the first call of the next
 * context resets it, or a call that claims it; mmap(), during which nothing can be mapped or
 * unmapped, fails until then.
 */
TEST_EACH(reset_made_up_for, making_up, .seconds = 60)
{
	struct nvme nvme = nvme_open(), next = nvme_open();
	uint64_t offset = get_info(next.fd).out_bars[0].offset;
	struct registration registration;
	struct nvme behind = nvme;
	bool late = false;
	void *bar;
	int file;

	close(importer_open());
	file = SYS(open(pci_path(nvme.device.bdf, "resource0"), O_RDWR | O_CLOEXEC));
	behind.bar = SYS(mmap(NULL, NVME_REGISTERS, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
	for (unsigned int i = 0; !late && i < 10; i++) {
		nvme.fd = i ? SYS(open(nvme.device.node, O_RDWR | O_CLOEXEC)) : nvme.fd;
		late = starts_and_goes(&nvme, &behind);
		if (late) {
			bar = mmap(NULL, NVME_REGISTERS, PROT_READ, MAP_SHARED, next.fd, offset);
			CHECK(bar == MAP_FAILED && errno == EBUSY);
			CHECK(nvme_get(&behind, STATUS) & 1);
		}
		if (row->first) {
			close(next.fd);
			next.fd = SYS(open(nvme.device.node, O_RDWR | O_CLOEXEC));
			get_info(next.fd);
		} else {
			registration = register_memory(next.fd, anon(1), PAGE, WRITE);
			release(next.fd, registration.handle);
		}
		bar = SYS(mmap(NULL, NVME_REGISTERS, PROT_READ | PROT_WRITE, MAP_SHARED, next.fd,
			       offset));
		next.bar = bar;
		CHECK_EQ(nvme_get(&next, STATUS) & 1, 0);
		CHECK_EQ(nvme_get(&next, CONFIG) & 1, 0);
		SYS(munmap(bar, NVME_REGISTERS));
		close(next.fd);
		next.fd = SYS(open(nvme.device.node, O_RDWR | O_CLOEXEC));
		get_info(next.fd);
	}
	CHECK(late);
	SYS(munmap((void *)behind.bar, NVME_REGISTERS));
	close(file);
	next.bar = NULL;
	nvme_close(&next);
}

static void *register_page(void *argument)
{
	struct registration registration;
	int result = try_register_memory(*(int *)argument, anon(1), PAGE, WRITE, &registration);

	CHECK(result == 0 || result == -ENODEV);
	return NULL;
}

/* A function is not reset after it was unbound: a context that is about to reset it gives up. */
TEST(no_reset_after_unbinding, .seconds = 60)
{
	struct nvme nvme = nvme_open();
	int next = SYS(open(nvme.device.node, O_RDWR | O_CLOEXEC));
	struct nvme behind = nvme;
	pthread_t owner;
	bool late = false;
	int file;

	close(importer_open());
	file = SYS(open(pci_path(nvme.device.bdf, "resource0"), O_RDWR | O_CLOEXEC));
	behind.bar = SYS(mmap(NULL, NVME_REGISTERS, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
	for (unsigned int i = 0; !late && i < 10; i++) {
		nvme.fd = i ? SYS(open(nvme.device.node, O_RDWR | O_CLOEXEC)) : nvme.fd;
		late = starts_and_goes(&nvme, &behind);
	}
	CHECK(late);
	CHECK_OK(-pthread_create(&owner, NULL, register_page, &next));
	sleep_ms(100);
	pci_unbind(nvme.device.bdf);
	/* another driver uses the function */
	nvme_set(&behind, CONFIG, 4 << 20 | 6 << 16);
	CHECK_EQ(nvme_get(&behind, CONFIG), 4 << 20 | 6 << 16);
	CHECK_OK(-pthread_join(owner, NULL));
	CHECK_EQ(nvme_get(&behind, CONFIG), 4 << 20 | 6 << 16);
	SYS(munmap((void *)behind.bar, NVME_REGISTERS));
	close(file);
	close(next);
	file_write(pci_path(nvme.device.bdf, "driver_override"), "\n");
}

/* Results of a process that copies from a BAR. */
struct copier {
	volatile unsigned int copies, signals;
};

static struct copier *copier;

static void count_signal(int signal)
{
	(void)signal;
	copier->signals++;
}

/* Makes the kernel read from the BAR. */
static void copy_from_bar(void)
{
	struct nvme nvme = nvme_open();
	int file = new_memfd(PAGE, 0);
	char *direct;

	signal(SIGALRM, count_signal);
	nvme_map(&nvme);
	direct = (char *)nvme.bar + VERSION;
	for (;;) {
		CHECK_EQ(pwrite(file, direct, 4, 0), 4);
		copier->copies++;
	}
}

/* CPU time that a process has used, in hundredths of a second. */
static unsigned long cpu_time(pid_t pid)
{
	unsigned long user, system;
	char path[64], text[1024];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file_read(path, text, sizeof(text));
	CHECK_EQ(sscanf(strrchr(text, ')') + 2,
			"%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system),
		 2);
	return user + system;
}

/*
 * A system call that touches a BAR while the function is being reset sleeps, whatever signals wait,
 * and can be killed.
 */
TEST(touch_by_the_kernel_while_reset, .seconds = 60)
{
	struct nvme nvme = nvme_open();
	unsigned int copies;
	unsigned long used;
	pid_t pid, reset;

	if (PAGE > NVME_REGISTERS)
		SKIP("the registers share a page with the table of the interrupts");
	close(nvme.fd);
	close(importer_open());
	copier = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	pid = fork();
	if (pid == 0)
		copy_from_bar();
	CHECK(WAIT_FOR(10000, copier->copies > 10));
	reset = fork();
	if (reset == 0) {
		with_device_lock(nvme.device.bdf, IMPORTER_RESET, 100000);
		_exit(0);
	}
	/* the process has stopped */
	do {
		copies = copier->copies;
		sleep_ms(200);
	} while (copies != copier->copies);
	SYS(kill(pid, SIGALRM));
	used = cpu_time(pid);
	sleep_ms(1500);
	CHECK_EQ(copier->copies, copies);
	/* the process sleeps, and does not ask again and again */
	CHECK(cpu_time(pid) - used < 8);
	kill_now(pid);
	CHECK_EQ(copier->signals, 0);
	/* the reset is still under way */
	CHECK_EQ(waitpid(reset, NULL, WNOHANG), 0);
	kill_now(reset);

	/* a process that waits and is not killed goes on */
	copier->copies = 0;
	pid = fork();
	if (pid == 0)
		copy_from_bar();
	CHECK(WAIT_FOR(10000, copier->copies > 10));
	with_device_lock(nvme.device.bdf, IMPORTER_RESET, 100);
	SYS(kill(pid, SIGALRM));
	copies = copier->copies;
	CHECK(WAIT_FOR(10000, copier->copies > copies && copier->signals == 1));
	kill_now(pid);
	pci_unbind(nvme.device.bdf);
	file_write(pci_path(nvme.device.bdf, "driver_override"), "\n");
}
