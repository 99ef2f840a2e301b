// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory that goes before the driver's worker has had time. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
	edu.bar = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));

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
