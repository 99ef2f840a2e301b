// SPDX-License-Identifier: MIT OR Apache-2.0
/* Programs that are killed, and a device that is taken away, with work under way. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "gpu.h"
#include "importer/importer.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Two batches fit into a ring. */
enum { CONTEXTS = 64, BATCH = 25 };

/* Maps a number that the processes of a test share: launches done. */
static volatile unsigned int *progress_new(void)
{
	return SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

/*
 * Adds 1 to its numbers so many times, with work in the queue all the time; @launches 0: until it
 * is killed.
 */
static void increment(unsigned int launches, volatile unsigned int *progress)
{
	struct gpu_queue queue = queue_new(open_gpu()), done = queue;
	unsigned int submitted = 0;
	float *memory = (float *)anon(1);

	memset(memory, 0, PAGE);
	register_memory(queue.fd, memory, PAGE, WRITE);
	while (!launches || *progress < launches) {
		/* the next packets are there before the last ones are done */
		while (submitted < *progress + 2 * BATCH && (!launches || submitted < launches)) {
			for (int packet = 0; packet < BATCH; packet++)
				queue_push(&queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)memory,
					   1024, 0);
			queue_submit(&queue);
			submitted += BATCH;
		}
		done.fence++;
		CHECK_OK(try_queue_wait(&done, slow(200000)));
		*progress += BATCH;
	}
	for (int i = 0; i < 1024; i++)
		CHECK_EQ(memory[i], launches);
}

/*
 * 64 contexts with unfinished work, 1,000 kernels each (fewer on a debug kernel); half of them are
 * killed midway.
 */
TEST(kill_half, .seconds = 600, .faults = true)
{
	struct pinmap_gpu_counters before = { .size = sizeof(before) }, after = before;
	volatile unsigned int *progress = progress_new();
	long long pins = pins_held();
	unsigned int launches = BATCH * rounds(40);
	pid_t pids[CONTEXTS];
	int fd = open_gpu();

	CHECK_OK(try_ioctl(fd, PINMAP_GPU_COUNTERS, &before));
	for (int i = 0; i < CONTEXTS; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			close(fd);
			increment(i % 2 ? 0 : launches, &progress[i]);
			_exit(0);
		}
	}
	for (int i = 1; i < CONTEXTS; i += 2) {
		if (!WAIT_FOR(100000, progress[i] >= launches / 2))
			FAIL("context %d has done no more than %u launches", i, progress[i]);
		SYS(kill(pids[i], SIGKILL));
	}
	for (int i = 1; i < CONTEXTS; i += 2)
		join_killed(pids[i], SIGKILL);
	for (int i = 0; i < CONTEXTS; i += 2)
		join(pids[i]);
	CHECK_OK(try_ioctl(fd, PINMAP_GPU_COUNTERS, &after));
	CHECK_PINS_SOON(pins);
	diag("half of %d killed; VMIDs given %llu times, for %u launches a context", CONTEXTS,
	     (unsigned long long)(after.out_vmid_binds - before.out_vmid_binds), launches);
}

/* Works until a call says that the device is gone: nothing by which it submits kills it. */
static void work_until_gone(unsigned int kind, const struct gate *ready)
{
	char *memory = anon(256);
	int fd = open_gpu(), result;
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, MIB);
	struct registration registration;

	registration = register_memory(fd, memory, MIB, WRITE);
	gate_open(ready);
	for (;;) {
		queue_push(&queue, GPU_COPY, (uintptr_t)memory, (uintptr_t)vram.addr, MIB);
		queue_push(&queue, GPU_COPY, (uintptr_t)vram.addr, (uintptr_t)memory, MIB);
		queue_push(&queue, gpu_launch(GPU_SPIN), 3000000, 0, 0);
		result = try_queue_finish(&queue, slow(20000));
		if (result)
			break;
		if (kind % 2)
			continue;
		result = try_release(fd, registration.handle);
		if (result)
			break;
		result = try_register_memory(fd, memory, MIB, WRITE, &registration);
		if (result)
			break;
	}
	CHECK_ERR(ENODEV, result);
	/* a process that was told so may rely on it */
	memset(memory, kind, MIB);
	sleep_ms(20);
	if (!bytes_are(memory, MIB, (unsigned char)kind))
		FAIL("memory was written to though the device is gone");
	CHECK_ERR(ENODEV, try_queue_wait(&queue, 0));
	CHECK_EQ(next_event(fd).type, PINMAP_EVENT_GONE);
	CHECK(get_info(fd).out_flags & PINMAP_INFO_GONE);
	/* a process that only rings finds out by waiting */
	CHECK_EQ(touch_write(queue.doorbell), 0);
	CHECK_EQ(touch_read(vram.addr), SIGBUS);
}

static void end_busy(void (*end)(const char *bdf), unsigned int round)
{
	enum { WORKERS = 20 };
	struct gate ready = gate_new();
	long long pins = pins_held();
	pid_t pids[WORKERS];
	char bdf[16];

	snprintf(bdf, sizeof(bdf), "%s", need_gpu());
	for (unsigned int i = 0; i < WORKERS; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			work_until_gone(i, &ready);
			_exit(0);
		}
	}
	for (unsigned int i = 0; i < WORKERS; i++)
		gate_pass(&ready);
	sleep_ms(round * 17 % 60);
	end(bdf);
	for (unsigned int i = 0; i < WORKERS; i++)
		join(pids[i]);
	CHECK_PINS_SOON(pins);
	close(ready.ends[0]);
	close(ready.ends[1]);
}

/*
 * Checks, in a process of its own, that the device works: the mappings of a queue keep its context.
 */
static void check_works(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		char *memory = anon(1);
		struct gpu_queue queue = queue_new(open_gpu());

		register_memory(queue.fd, memory, PAGE, WRITE);
		queue_push(&queue, GPU_FILL, (uintptr_t)memory, PAGE, 0x5a);
		queue_finish(&queue);
		CHECK_EQ(memory[PAGE - 1], 0x5a);
		_exit(0);
	}
	join(pid);
}

static void unbind(const char *bdf)
{
	pci_unbind(bdf);
}

/* Unbinding does not wait for work, and ends it. */
TEST(unbind_busy, .seconds = 120, .faults = true)
{
	char bdf[16];

	snprintf(bdf, sizeof(bdf), "%s", need_gpu());
	for (unsigned int round = 0; round < rounds(4); round++) {
		end_busy(unbind, round);
		pci_bind(bdf);
		check_works();
	}
}

/*
 * The doorbell of a device that is gone leads nowhere: neither to the device, bound anew, nor to
 * another queue.
 */
TEST(doorbell_outlives_device)
{
	struct gpu_queue queue = queue_new(open_gpu()), other = queue_new(queue.fd);
	uint64_t heard, ignored;

	queue_push(&queue, GPU_NOP, 0, 0, 0);
	queue_finish(&queue);
	gpu_rebind();
	heard = gpu_register(GPU_DOORBELL_WRITES);
	ignored = gpu_register(GPU_IGNORED_DOORBELLS);
	for (int i = 0; i < 10; i++) {
		queue_push(&queue, GPU_NOP, 0, 0, 0);
		queue_ring(&queue);
	}
	CHECK_EQ(gpu_register(GPU_DOORBELL_WRITES), heard);
	CHECK_EQ(gpu_register(GPU_IGNORED_DOORBELLS), ignored);
	CHECK_EQ(*other.doorbell, 0);
	CHECK_ERR(ENODEV, try_queue_wait(&queue, 0));
	CHECK_ERR(ENODEV, try_queue_destroy(queue.fd, queue.args.out_queue));
	/*
	 * also a doorbell that was mapped and never touched, and one of which only the mapping is
	 * left
	 */
	close(queue.fd);
	*other.doorbell = 1;
	*queue.doorbell = 1;
}

static void reset(const char *bdf)
{
	file_write(pci_path(bdf, "reset"), "1");
}

/* A reset behind the driver's back takes the device from all users; bound again, it works. */
TEST(reset_busy, .seconds = 120, .faults = true)
{
	for (unsigned int round = 0; round < rounds(3); round++) {
		end_busy(reset, round);
		gpu_rebind();
		check_works();
	}
}

/*
 * The driver is told of a sleep of the system, while a context has the device, and while nobody has
 * it and it was reset behind the driver's back. It works afterwards.
 */
TEST(sleep)
{
	const char *bdf = need_gpu();
	int fd = open_gpu();
	uint64_t interrupts = gpu_register(GPU_INT_ENABLE);

	CHECK_EQ(with_device_lock(bdf, IMPORTER_SLEEP, 0), 0);
	CHECK_EQ(gpu_register(GPU_INT_ENABLE), interrupts);
	check_works();
	close(fd);
	gpu_set_register(GPU_RESET, 1);
	CHECK(WAIT_FOR(5000, gpu_register(GPU_RESET) == 0));
	CHECK_EQ(gpu_register(GPU_INT_ENABLE), 0);
	CHECK_EQ(with_device_lock(bdf, IMPORTER_SLEEP, 0), 0);
	CHECK_EQ(gpu_register(GPU_INT_ENABLE), interrupts);
	check_works();
}

/*
 * Memory that is taken away while the device is off: it reaches none of it afterwards, and all that
 * is there still.
 */
TEST(taken_while_asleep)
{
	const char *bdf = need_gpu();
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd), other = queue_new(fd);
	struct registration kept = register_memory(fd, anon(4), 4 * PAGE, WRITE),
			    taken = register_memory(fd, anon(4), 4 * PAGE, WRITE);
	uint64_t address = taken.device_addr;
	pid_t pid;

	gpu_fill(&queue, kept.device_addr, 4 * PAGE, 0x11);
	gpu_fill(&queue, address, 4 * PAGE, 0x12);
	pid = SYS(fork());
	if (pid == 0) {
		with_device_lock(bdf, IMPORTER_SLEEP, 100000);
		_exit(0);
	}
	CHECK(WAIT_FOR(10000, !gpu_register(GPU_INT_ENABLE)));
	release(fd, taken.handle);
	SYS(kill(pid, SIGTERM));
	join_killed(pid, SIGTERM);
	memset(taken.addr, 0x13, 4 * PAGE);
	gpu_fill(&queue, kept.device_addr, 4 * PAGE, 0x14);
	CHECK(bytes_are(kept.addr, 4 * PAGE, 0x14));
	queue_push(&other, GPU_FILL, address, PAGE, 0x15);
	queue_submit(&other);
	CHECK_EQ(queue_stopped(&other), GPU_NOT_PRESENT);
	CHECK(bytes_are(taken.addr, 4 * PAGE, 0x13));
}
