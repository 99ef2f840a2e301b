// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Faults on a file whose file system is a program that does not answer: nobody waits for it but the
 * thread that serves the fault, which may be where not even a fatal signal ends the wait.
 */
#define _GNU_SOURCE
#include "../managed.h"

#include "edu.h"
#include "file.h"
#include "fuse.h"
#include "importer/importer.h"
#include "kmsg.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 8 };

/* How the kernel waits for the daemon. */
static const struct wait {
	const char *name;
	bool in_turn;
} waits[] = { { "killable", false }, { "for_good", true } };

static char *map_file(const struct fuse *fuse)
{
	int file = SYS(open(fuse->path, O_RDONLY | O_CLOEXEC));
	char *memory = SYS(mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));

	close(file);
	return memory;
}

/* Has a queue fault on the file, and waits until the daemon is asked. */
static void stick(struct gpu_queue *queue, char *memory, struct fuse *fuse)
{
	queue_push(queue, GPU_FILL, (uintptr_t)memory, 8, 0xee);
	queue_submit(queue);
	CHECK(WAIT_FOR(5000, fuse->reads));
}

/* When the daemon answers, the device has what it says; others go on meanwhile. */
TEST_EACH(fuse_answers, waits)
{
	struct fuse *fuse = fuse_mount(PAGES * PAGE, row->in_turn);
	char *memory = map_file(fuse), *more = anon(8);
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue stuck = queue_new(fd), good = queue_new(fd), far = queue_new(other);
	struct gpu_memory result = gpu_alloc(fd, 0, PAGE);

	manage_all(fd);
	manage_all(other);
	stick(&stuck, memory, fuse);
	fill(&good, more, 4 * PAGE, 0x31);
	fill(&far, more + 4 * PAGE, 4 * PAGE, 0x31);
	CHECK(bytes_are(more, 8 * PAGE, 0x31));
	CHECK_ERR(ETIMEDOUT, try_queue_wait(&stuck, 20));
	CHECK_EQ(queue_query(&stuck).out_state, PINMAP_QUEUE_READY);
	fuse_answer(fuse, 0x32);
	CHECK_OK(try_queue_wait(&stuck, slow(20000)));
	CHECK(bytes_are(memory, 8, 0xee));
	CHECK(bytes_are(memory + 8, PAGES * PAGE - 8, 0x32));
	copy(&stuck, memory + (PAGES - 1) * PAGE, result.addr, PAGE);
	CHECK(bytes_are(result.addr, PAGE, 0x32));
	SYS(munmap(memory, PAGES * PAGE));
	fuse_unmount(fuse);
}

/*
 * The system does not sleep while a fault cannot be given up; the log says so, and the device goes
 * on.
 */
TEST(fuse_sleep_meanwhile, .seconds = 60)
{
	struct fuse *fuse = fuse_mount(PAGES * PAGE, true);
	char *memory = map_file(fuse), *more = anon(1);
	int fd = open_managed(), kmsg = kmsg_open();
	struct gpu_queue stuck = queue_new(fd), good = queue_new(fd);

	stick(&stuck, memory, fuse);
	CHECK_EQ(with_device_lock(need_gpu(), IMPORTER_SLEEP, 0), EBUSY);
	CHECK(kmsg_wait(kmsg, "does not sleep: a page fault waits for a program", 10000));
	fill(&good, more, PAGE, 0x36);
	CHECK(bytes_are(more, PAGE, 0x36));
	fuse_answer(fuse, 0x37);
	CHECK_OK(try_queue_wait(&stuck, slow(20000)));
	CHECK(bytes_are(memory, 8, 0xee));
	CHECK(bytes_are(memory + 8, PAGES * PAGE - 8, 0x37));
	SYS(munmap(memory, PAGES * PAGE));
	fuse_unmount(fuse);
}

/* The daemon goes: the page cannot be had, and the queue stops. */
TEST_EACH(fuse_is_unmounted, waits)
{
	struct fuse *fuse = fuse_mount(PAGES * PAGE, row->in_turn);
	char *memory = map_file(fuse);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	stick(&queue, memory, fuse);
	fuse_unmount(fuse);
	CHECK_ERR(EIO, try_queue_wait(&queue, slow(20000)));
	CHECK_STOPPED(&queue, memory, PINMAP_ACCESS_WRITE, PINMAP_FAULT_FILE);
}

TEST_EACH(fuse_destroy_meanwhile, waits)
{
	struct fuse *fuse = fuse_mount(PAGES * PAGE, row->in_turn);
	char *memory = map_file(fuse), *more = anon(1);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd), good = queue_new(fd);
	uint64_t all = manage_all(fd);

	stick(&queue, memory, fuse);
	CHECK_OK(try_queue_destroy(fd, queue.args.out_queue));
	fill(&good, more, PAGE, 0x41);
	CHECK(bytes_are(more, PAGE, 0x41));
	release(fd, all);
	fuse_answer(fuse, 0x42);
	CHECK(bytes_are(memory, PAGES * PAGE, 0x42));
	SYS(munmap(memory, PAGES * PAGE));
	fuse_unmount(fuse);
}

/* A process whose fault waits for the daemon, which is a thread of the test. */
static pid_t victim_new(struct fuse *fuse, void (*then)(struct gpu_queue *queue))
{
	pid_t pid = SYS(fork());

	if (pid == 0) {
		int fd = open_gpu();
		struct gpu_queue queue = queue_new(fd);
		char *memory = map_file(fuse);

		/* only the test's process has the daemon */
		close(fuse->device);
		manage_all(fd);
		stick(&queue, memory, fuse);
		then(&queue);
		_exit(0);
	}
	CHECK(WAIT_FOR(20000, fuse->reads));
	return pid;
}

/*
 * The program ends at once. If nothing can end the thread that serves its fault, this keeps the
 * program's memory, as it keeps the memory of a program with a thread that waits like this: then
 * the context goes with it, when the daemon answers.
 */
TEST_EACH(fuse_kill_meanwhile, waits)
{
	struct fuse *fuse = fuse_mount(PAGES * PAGE, row->in_turn);
	unsigned int before = contexts();
	long long pins = pins_held();
	pid_t pid = victim_new(fuse, wait_for_ever);

	kill_now(pid);
	if (!row->in_turn)
		CHECK(WAIT_FOR(5000, contexts() == before));
	check_works();
	fuse_answer(fuse, 0x51);
	CHECK(WAIT_FOR(5000, contexts() == before));
	CHECK_PINS_SOON(pins);
	fuse_unmount(fuse);
}

TEST_EACH(fuse_close_meanwhile, waits)
{
	struct fuse *fuse = fuse_mount(PAGES * PAGE, row->in_turn);
	unsigned int before = contexts();
	pid_t pid = victim_new(fuse, close_all);

	CHECK(WAIT_FOR(5000, contexts() == before));
	CHECK(runs_still(pid));
	check_works();
	fuse_answer(fuse, 0x51);
	kill_now(pid);
	fuse_unmount(fuse);
}

TEST_EACH(fuse_unbind_meanwhile, waits, .faults = true)
{
	struct fuse *fuse = fuse_mount(PAGES * PAGE, row->in_turn);
	pid_t pid = victim_new(fuse, wait_for_ever);
	char bdf[16];

	strcpy(bdf, need_gpu());
	pci_unbind(bdf);
	CHECK(runs_still(pid));
	pci_bind(bdf);
	check_works();
	kill_now(pid);
	fuse_answer(fuse, 0x51);
	fuse_unmount(fuse);
}

/* A reset behind the driver's back. */
TEST_EACH(fuse_reset_meanwhile, waits, .faults = true)
{
	struct fuse *fuse = fuse_mount(PAGES * PAGE, row->in_turn);
	pid_t pid = victim_new(fuse, wait_for_ever);

	file_write(pci_path(need_gpu(), "reset"), "1");
	kill_now(pid);
	gpu_rebind();
	check_works();
	fuse_answer(fuse, 0x51);
	fuse_unmount(fuse);
}
