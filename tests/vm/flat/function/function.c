// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Functions other than edu. QEMU's nvme stands for them: it has MSI-X with several vectors and a
 * table in its BAR that must not be mapped, a 64-bit BAR, and a reset. The tests drive it as far as
 * to let it identify itself.
 */
#define _GNU_SOURCE
#include "alloc.h"
#include "device.h"
#include "edu.h"
#include "file.h"
#include "importer/importer.h"
#include "kmsg.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NVME_CLASS = 0x010802 };
enum {
	VERSION = 0x08,
	CONFIG = 0x14,
	STATUS = 0x1c,
	ADMIN_SIZES = 0x24,
	SUBMISSION = 0x28,
	COMPLETION = 0x30
};
enum { DOORBELLS = 0x1000, ENTRIES = 16, IDENTIFY = 0x06, IDENTIFY_CONTROLLER = 1 };

/* Finds the first function for which @fits; false: there is none. */
static bool find_function(bool (*fits)(const char *bdf), char bdf[16])
{
	DIR *directory = opendir("/sys/bus/pci/devices");
	struct dirent *entry;
	bool found = false;

	while (!found && directory && (entry = readdir(directory))) {
		found = entry->d_name[0] != '.' && fits(entry->d_name);
		if (found)
			snprintf(bdf, 16, "%.15s", entry->d_name);
	}
	if (directory)
		closedir(directory);
	return found;
}

static unsigned int group_size(const char *bdf)
{
	DIR *directory = opendir(pci_path(bdf, "iommu_group/devices"));
	struct dirent *entry;
	unsigned int count = 0;

	while (directory && (entry = readdir(directory)))
		count += entry->d_name[0] != '.';
	if (directory)
		closedir(directory);
	return count;
}

static bool is_nvme(const char *bdf)
{
	return file_number(pci_path(bdf, "class"), 0) == NVME_CLASS;
}

static bool is_testdev(const char *bdf)
{
	return file_number(pci_path(bdf, "vendor"), 0) == 0x1b36 &&
	       file_number(pci_path(bdf, "device"), 0) == 0x0005;
}

static bool is_shared(const char *bdf)
{
	return group_size(bdf) > 1 && access(pci_path(bdf, "driver"), F_OK);
}

struct nvme {
	struct pci_device device;
	int fd;
	volatile char *bar;
	char *queues; /* submission in the first page, completion in the second */
	unsigned int tail;
};

static struct nvme nvme_open(void)
{
	struct nvme nvme = { 0 };

	if (!find_function(is_nvme, nvme.device.bdf))
		SKIP("the machine has no nvme");
	if (access(pci_path(nvme.device.bdf, "driver"), F_OK))
		pci_bind(nvme.device.bdf);
	pci_look(&nvme.device);
	nvme.fd = SYS(open(nvme.device.node, O_RDWR | O_CLOEXEC));
	return nvme;
}

static void nvme_map(struct nvme *nvme)
{
	nvme->bar = SYS(mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, nvme->fd,
			     get_info(nvme->fd).out_bars[0].offset));
}

static void nvme_close(struct nvme *nvme)
{
	if (nvme->bar)
		SYS(munmap((void *)nvme->bar, 2 * PAGE));
	close(nvme->fd);
	pci_unbind(nvme->device.bdf);
	file_write(pci_path(nvme->device.bdf, "driver_override"), "\n");
}

static uint32_t get(const struct nvme *nvme, unsigned int offset)
{
	return *(volatile uint32_t *)(nvme->bar + offset);
}

static void set(const struct nvme *nvme, unsigned int offset, uint32_t value)
{
	*(volatile uint32_t *)(nvme->bar + offset) = value;
}

static void set_long(const struct nvme *nvme, unsigned int offset, uint64_t value)
{
	set(nvme, offset, value);
	set(nvme, offset + 4, value >> 32);
}

/* Starts the controller with its queues in registered memory. */
static void nvme_start(struct nvme *nvme)
{
	nvme->queues = anon(2);
	memset(nvme->queues, 0, 2 * PAGE);
	register_memory(nvme->fd, nvme->queues, 2 * PAGE, WRITE | IDENTITY);
	set(nvme, CONFIG, 0);
	set(nvme, ADMIN_SIZES, (ENTRIES - 1) << 16 | (ENTRIES - 1));
	set_long(nvme, SUBMISSION, (uintptr_t)nvme->queues);
	set_long(nvme, COMPLETION, (uintptr_t)nvme->queues + PAGE);
	set(nvme, CONFIG, 4 << 20 | 6 << 16 | 1);
	CHECK(WAIT_FOR(2000, get(nvme, STATUS) & 1));
	nvme->tail = 0;
}

/* Lets the controller write its identity to a device address; returns its status, 0 for success. */
static unsigned int nvme_identify(struct nvme *nvme, uint64_t device_addr)
{
	volatile uint32_t *done = (uint32_t *)(nvme->queues + PAGE + nvme->tail * 16);
	uint32_t *command = (uint32_t *)(nvme->queues + nvme->tail * 64);

	memset(command, 0, 64);
	command[0] = IDENTIFY | (nvme->tail + 1) << 16;
	command[6] = device_addr;
	command[7] = device_addr >> 32;
	command[10] = IDENTIFY_CONTROLLER;
	nvme->tail++;
	CHECK(nvme->tail < ENTRIES);
	set(nvme, DOORBELLS, nvme->tail);
	/* bit 16: the phase, 1 in the first round */
	CHECK(WAIT_FOR(2000, done[3] & 1 << 16));
	CHECK_EQ(done[3] & 0xffff, nvme->tail);
	set(nvme, DOORBELLS + 4, nvme->tail);
	return done[3] >> 17;
}

TEST(bars)
{
	struct nvme nvme = nvme_open();
	struct pinmap_info info = get_info(nvme.fd);
	const struct pinmap_bar *bar = &info.out_bars[0];
	const int prot = PROT_READ | PROT_WRITE;
	uint64_t behind = bar->hole_offset + bar->hole_length;

	CHECK_EQ(info.out_class, NVME_CLASS);
	CHECK_EQ(bar->length, 0x4000);
	CHECK_EQ(bar->flags & (PINMAP_BAR_MMAP | PINMAP_BAR_64BIT),
		 PINMAP_BAR_MMAP | PINMAP_BAR_64BIT);
	/* a 64-bit BAR takes up the next register as well */
	CHECK_EQ(info.out_bars[1].length, 0);
	CHECK(info.out_nr_vectors > 1);

	/* the table with the interrupts' addresses cannot be mapped */
	CHECK(bar->hole_length >= PAGE && bar->hole_offset >= 2 * PAGE);
	CHECK_EQ((bar->hole_offset | bar->hole_length) % PAGE, 0);
	for (uint64_t at = 0; at < bar->length; at += PAGE) {
		bool hole = at >= bar->hole_offset && at < behind;
		void *page = mmap(NULL, PAGE, prot, MAP_SHARED, nvme.fd, bar->offset + at);

		CHECK_EQ(page == MAP_FAILED ? errno : 0, hole ? EINVAL : 0);
		if (!hole)
			CHECK_EQ(touch_read(page), 0);
	}
	CHECK(mmap(NULL, bar->length, prot, MAP_SHARED, nvme.fd, bar->offset) == MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
	CHECK(mmap(NULL, 2 * PAGE, prot, MAP_SHARED, nvme.fd,
		   bar->offset + bar->hole_offset - PAGE) == MAP_FAILED);
	nvme_map(&nvme);
	CHECK(get(&nvme, VERSION) >= 0x10000);
	nvme_close(&nvme);
}

/* A device quicker than edu works: data, and interrupts by MSI-X. */
TEST(identify)
{
	struct nvme nvme = nvme_open();
	int eventfd_ = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	struct registration registration;
	uint64_t count = 0;
	char *page = anon(1);

	nvme_map(&nvme);
	set_eventfd(nvme.fd, PINMAP_SOURCE_VECTOR, 0, eventfd_);
	set_eventfd(nvme.fd, PINMAP_SOURCE_VECTOR, get_info(nvme.fd).out_nr_vectors - 1, eventfd_);
	nvme_start(&nvme);
	registration = register_memory(nvme.fd, page, PAGE, WRITE);
	CHECK_EQ(nvme_identify(&nvme, registration.device_addr), 0);
	/* its serial number, as given on QEMU's command line */
	CHECK(!memcmp(page + 4, "pinmap", 6));
	CHECK(WAIT_FOR(2000, read(eventfd_, &count, sizeof(count)) == sizeof(count)));
	CHECK_EQ(count, 1);
	nvme_close(&nvme);
}

TEST(release_flush, .faults = true)
{
	struct nvme nvme = nvme_open();
	struct memory memory = memory_new(MEMFD, PAGE);
	struct registration registration;

	nvme_map(&nvme);
	nvme_start(&nvme);
	registration = register_memory(nvme.fd, memory.addr, PAGE, WRITE);
	CHECK_EQ(nvme_identify(&nvme, registration.device_addr), 0);
	CHECK(!bytes_are(memory.addr, PAGE, 0x11));
	memset(memory.addr, 0x11, PAGE);
	release(nvme.fd, registration.handle);
	nvme_identify(&nvme, registration.device_addr);
	CHECK(bytes_are(memory.addr, PAGE, 0x11));
	registration = register_memory(nvme.fd, memory.addr, PAGE, WRITE);
	CHECK_EQ(nvme_identify(&nvme, registration.device_addr), 0);
	SYS(munmap(memory.addr, PAGE));
	memset(memory.alias, 0x11, PAGE);
	nvme_identify(&nvme, registration.device_addr);
	CHECK(bytes_are(memory.alias, PAGE, 0x11));
	nvme_close(&nvme);
}

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
		CHECK_EQ(get(&nvme, CONFIG) & 1, 1);
		CHECK_EQ(nvme_identify(&nvme, registration.device_addr), 0);
		CHECK(!memcmp(page + 4, "pinmap", 6));
		CHECK(WAIT_FOR(2000, read(eventfd_, &count, sizeof(count)) == sizeof(count)));
		memset(page, 0, PAGE);
		reset_device(nvme.fd);
		CHECK_EQ(get(&nvme, STATUS) & 1, 0);
		CHECK_EQ(get(&nvme, CONFIG) & 1, 0);
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
		reader->lost += get(reader->nvme, VERSION) != reader->version;
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
	reader.version = get(&nvme, VERSION);
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

/* A prefetchable BAR is mapped write-combined, any other uncached. */
TEST(write_combined)
{
	volatile char *views[2] = { 0 };
	struct pci_device device;
	struct pinmap_info info;
	char flags[256];
	int fd;

	if (!find_function(is_testdev, device.bdf))
		SKIP("the machine has no pci-testdev");
	/* This is skipped where nothing shows page tables: before anything is bound. */
	memset(flags, 0, sizeof(flags));
	CHECK(user_entry(flags, flags));
	pci_bind(device.bdf);
	pci_look(&device);
	fd = SYS(open(device.node, O_RDWR | O_CLOEXEC));
	info = get_info(fd);
	for (unsigned int bar = 0; bar < PINMAP_NR_BARS; bar++) {
		bool combined = info.out_bars[bar].flags & PINMAP_BAR_PREFETCHABLE;

		if (!(info.out_bars[bar].flags & PINMAP_BAR_MMAP))
			continue;
		views[combined] = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
					   info.out_bars[bar].offset));
		(void)*views[combined];
		CHECK(user_entry(views[combined], flags));
		diag("BAR %u: %s", bar, flags);
		CHECK_EQ(is_write_combined(flags), combined);
		/* entries 2 and 3 of the PAT are uncached */
		CHECK_EQ(strstr(flags, " PCD ") != NULL, !combined);
	}
	CHECK(views[0] && views[1]);
	for (unsigned int i = 0; i < 2; i++)
		SYS(munmap((void *)views[i], PAGE));
	close(fd);
	pci_unbind(device.bdf);
	file_write(pci_path(device.bdf, "driver_override"), "\n");
}

/* The next owner finds nothing of the last one's in the device. */
TEST(reset_between_owners)
{
	struct nvme nvme = nvme_open(), next = nvme_open();

	nvme_map(&nvme);
	nvme_start(&nvme);
	CHECK(get(&nvme, STATUS) & 1);
	SYS(munmap((void *)nvme.bar, 2 * PAGE));
	close(nvme.fd);
	CHECK(!pci_is_master(next.device.bdf));
	nvme_map(&next);
	CHECK_EQ(get(&next, STATUS) & 1, 0);
	CHECK_EQ(get(&next, CONFIG) & 1, 0);
	nvme_close(&next);
}

/* Makes the importer do something with the device lock; returns the answer. */
static uint64_t with_device_lock(const char *bdf, unsigned long command, uint64_t value)
{
	unsigned int domain, bus, device, function;
	struct importer_args args = { .value = value };
	int importer = importer_open();

	CHECK_EQ(sscanf(bdf, "%x:%x:%x.%x", &domain, &bus, &device, &function), 4);
	args.offset = domain << 16 | bus << 8 | device << 3 | function;
	CHECK_OK(try_ioctl(importer, command, &args));
	close(importer);
	return args.value;
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
	SYS(munmap((void *)nvme->bar, 2 * PAGE));
	CHECK_OK(-pthread_create(&holder, NULL, hold_device_lock, nvme->device.bdf));
	sleep_ms(100);
	close(nvme->fd);
	late = get(behind, STATUS) & 1;
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
	behind.bar = SYS(mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
	for (unsigned int i = 0; !late && i < 10; i++) {
		nvme.fd = i ? SYS(open(nvme.device.node, O_RDWR | O_CLOEXEC)) : nvme.fd;
		late = starts_and_goes(&nvme, &behind);
		if (late) {
			bar = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, next.fd, offset);
			CHECK(bar == MAP_FAILED && errno == EBUSY);
			CHECK(get(&behind, STATUS) & 1);
		}
		if (row->first) {
			close(next.fd);
			next.fd = SYS(open(nvme.device.node, O_RDWR | O_CLOEXEC));
			get_info(next.fd);
		} else {
			registration = register_memory(next.fd, anon(1), PAGE, WRITE);
			release(next.fd, registration.handle);
		}
		bar = SYS(
			mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, next.fd, offset));
		next.bar = bar;
		CHECK_EQ(get(&next, STATUS) & 1, 0);
		CHECK_EQ(get(&next, CONFIG) & 1, 0);
		SYS(munmap(bar, 2 * PAGE));
		close(next.fd);
		next.fd = SYS(open(nvme.device.node, O_RDWR | O_CLOEXEC));
		get_info(next.fd);
	}
	CHECK(late);
	SYS(munmap((void *)behind.bar, 2 * PAGE));
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
	behind.bar = SYS(mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
	for (unsigned int i = 0; !late && i < 10; i++) {
		nvme.fd = i ? SYS(open(nvme.device.node, O_RDWR | O_CLOEXEC)) : nvme.fd;
		late = starts_and_goes(&nvme, &behind);
	}
	CHECK(late);
	CHECK_OK(-pthread_create(&owner, NULL, register_page, &next));
	sleep_ms(100);
	pci_unbind(nvme.device.bdf);
	/* another driver uses the function */
	set(&behind, CONFIG, 4 << 20 | 6 << 16);
	CHECK_EQ(get(&behind, CONFIG), 4 << 20 | 6 << 16);
	CHECK_OK(-pthread_join(owner, NULL));
	CHECK_EQ(get(&behind, CONFIG), 4 << 20 | 6 << 16);
	SYS(munmap((void *)behind.bar, 2 * PAGE));
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

/*
 * After an error on the bus that cut the function off it is gone for its users until it is bound
 * again.
 */
TEST(bus_error)
{
	enum { NORMAL = 1, FROZEN = 2, GONE = 3 };
	enum { CAN_RECOVER = 2, DISCONNECT = 4 };
	static const int states[] = { FROZEN, GONE };

	close(importer_open());
	for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
		struct nvme nvme = nvme_open();
		long long pins = pins_held();
		struct registration registration;
		char *page = anon(1);

		nvme_map(&nvme);
		nvme_start(&nvme);
		registration = register_memory(nvme.fd, page, PAGE, WRITE);
		/* one transfer was lost */
		CHECK_EQ(with_device_lock(nvme.device.bdf, IMPORTER_ERROR, NORMAL), CAN_RECOVER);
		CHECK_NO_EVENT(nvme.fd);
		CHECK_EQ(nvme_identify(&nvme, registration.device_addr), 0);

		CHECK_EQ(with_device_lock(nvme.device.bdf, IMPORTER_ERROR, states[i]), DISCONNECT);
		CHECK_EQ(next_event(nvme.fd).type, PINMAP_EVENT_GONE);
		CHECK(get_info(nvme.fd).out_flags & PINMAP_INFO_GONE);
		CHECK_EQ(touch_read(nvme.bar), SIGBUS);
		CHECK_ERR(ENODEV, try_register_memory(nvme.fd, page, PAGE, WRITE, &registration));
		CHECK_PINS(pins);
		CHECK(!pci_is_master(nvme.device.bdf));
		nvme_close(&nvme);
	}
	/* the function is back once it is bound again */
	{
		struct nvme nvme = nvme_open();

		nvme_map(&nvme);
		nvme_start(&nvme);
		nvme_close(&nvme);
	}
}

/* A program that has a device keeps the system awake, and the log names it. */
TEST(sleep_refused)
{
	struct nvme nvme = nvme_open();
	int kmsg = kmsg_open();
	char wanted[64];

	CHECK_EQ(with_device_lock(nvme.device.bdf, IMPORTER_SLEEP, 0), 0);
	CHECK_EQ(kmsg_count(kmsg, "does not sleep"), 0);
	nvme_map(&nvme);
	CHECK_EQ(with_device_lock(nvme.device.bdf, IMPORTER_SLEEP, 0), EBUSY);
	snprintf(wanted, sizeof(wanted), "does not sleep: in use by function (%d)", getpid());
	SYS(prctl(PR_SET_NAME, "function"));
	CHECK_EQ(with_device_lock(nvme.device.bdf, IMPORTER_SLEEP, 0), EBUSY);
	CHECK(kmsg_wait(kmsg, wanted, 5000));
	nvme_close(&nvme);
}

/*
 * A function in an IOMMU group with others is refused, since they could reach each other's memory;
 * all are named.
 */
TEST(shared_group_refused)
{
	int kmsg = kmsg_open();
	unsigned int named = 0;
	char bdf[16], line[512];

	if (!find_function(is_shared, bdf))
		SKIP("no IOMMU group has more than one member without a driver");
	CHECK_ERR(EPERM, try_pci_bind(bdf));
	while (kmsg_next(kmsg, line, sizeof(line)))
		named += strstr(line, "member of its IOMMU group: 0000:") != NULL;
	CHECK_EQ(named, group_size(bdf));
	CHECK_EQ(access(pci_path(bdf, "driver"), F_OK), -1);
	CHECK_EQ(access(pci_path(bdf, "misc"), F_OK), -1);
	file_write(pci_path(bdf, "driver_override"), "\n");
}
