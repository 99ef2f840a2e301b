// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Processes whose memory changes all the time, or whose locks are never free: they delay nobody
 * else, and memory of theirs that is there is not taken for gone.
 */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pins.h"
#include "process.h"
#include "uffd.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#ifndef MADV_SOFT_OFFLINE
#define MADV_SOFT_OFFLINE 101
#endif

/* More buffers than one work queue of the system looks at together. */
enum { MANY = 2300, FREED_PAGES = 2048 };

static void *free_for_ever(void *argument)
{
	for (;;)
		SYS(madvise(argument, FREED_PAGES * PAGE, MADV_FREE));
	return NULL;
}

/* Keeps some change of this address space under way from now on. */
static void change_for_ever(void)
{
	pthread_t threads[3];

	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		CHECK_OK(-pthread_create(&threads[i], NULL, free_for_ever, anon(FREED_PAGES)));
}

/*
 * Milliseconds that a line typed at a terminal takes to come out of it, by way of a work queue of
 * the system.
 */
static uint64_t type_a_line(int master, int terminal)
{
	struct pollfd poller = { .fd = terminal, .events = POLLIN };
	uint64_t begin = now_ms();
	char line[8];

	CHECK_EQ(write(master, "pin\n", 4), 4);
	if (poll(&poller, 1, slow(5000)) != 1)
		return UINT64_MAX;
	CHECK_EQ(read(terminal, line, sizeof(line)), 4);
	return now_ms() - begin;
}

static void open_terminal(int *master, int *terminal)
{
	*master = SYS(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
	CHECK_EQ(grantpt(*master), 0);
	CHECK_EQ(unlockpt(*master), 0);
	*terminal = SYS(open(ptsname(*master), O_RDWR | O_NOCTTY | O_CLOEXEC));
}

/*
 * One process changes its memory without end, and all that it has registered may have changed,
 * again and again. Other work in the kernel is done meanwhile, and another process's memory is
 * looked at.
 */
TEST(busy_process_delays_nobody, .seconds = 60)
{
	struct gate ready = gate_new();
	int master, terminal, fd;
	char *memory;
	pid_t pid;

	open_terminal(&master, &terminal);
	CHECK(type_a_line(master, terminal) != UINT64_MAX);
	pid = fork();
	if (pid == 0) {
		fd = open_device(0);
		memory = anon(MANY);
		for (size_t i = 0; i < MANY; i++)
			register_memory(fd, memory + i * PAGE, PAGE, NO_MAP);
		change_for_ever();
		SYS(madvise(memory, MANY * PAGE, MADV_FREE));
		gate_open(&ready);
		for (;;)
			SYS(madvise(memory, MANY * PAGE, MADV_FREE));
	}
	gate_pass(&ready);
	fd = open_device(0);
	memory = anon(16);
	for (unsigned int i = 0; i < 8; i++) {
		uint64_t took = type_a_line(master, terminal), begin = now_ms();
		struct registration registration =
			register_memory(fd, memory + i * PAGE, PAGE, NO_MAP);

		CHECK(took < slow(2000));
		SYS(madvise(memory + i * PAGE, PAGE, MADV_FREE));
		CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
		SYS(madvise(memory + i * PAGE, PAGE, MADV_DONTNEED));
		CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
		CHECK_STALE_EVENT(fd, registration);
		CHECK(now_ms() - begin < slow(2000));
	}
	kill_now(pid);
	close(master);
	close(terminal);
}

/* Changes elsewhere in the same process that never end delay no answer. */
TEST(answers_while_other_memory_changes)
{
	pid_t pid = fork();
	int fd;

	if (pid) {
		join(pid);
		return;
	}
	fd = open_device(0);
	change_for_ever();
	for (unsigned int i = 0; i < 10; i++) {
		char *memory = anon(4);
		uint64_t begin = now_ms();
		struct registration registration = register_memory(fd, memory, 4 * PAGE, NO_MAP);

		SYS(madvise(memory, PAGE, MADV_FREE));
		CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
		SYS(madvise(memory + PAGE, PAGE, MADV_DONTNEED));
		CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
		release(fd, registration.handle);
		CHECK(now_ms() - begin < slow(2000));
	}
	_exit(0);
}

static uint64_t changes(int fd, const struct registration *registration)
{
	struct pinmap_generations args = { .size = sizeof(args) };
	const volatile uint64_t *numbers;
	uint64_t number;

	CHECK_OK(try_ioctl(fd, PINMAP_GENERATIONS, &args));
	numbers =
		SYS(mmap(NULL, args.out_length, PROT_READ, MAP_SHARED, fd, (off_t)args.out_offset));
	number = numbers[registration->handle % (args.out_length / sizeof(uint64_t))];
	SYS(munmap((void *)numbers, args.out_length));
	return number;
}

/*
 * Tries to move the pages of the file elsewhere, which removes them from all page tables for a
 * moment.
 */
static pid_t disturb(struct memory *memory, const struct gate *ready)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	gate_pass(ready);
	for (;;) {
		for (size_t at = 0; at < memory->length; at += PAGE) {
			if (!madvise(memory->alias + at, PAGE, MADV_SOFT_OFFLINE))
				FAIL("a pinned page was moved");
			if (errno == EINVAL)
				SKIP("the kernel moves no pages on demand");
		}
	}
}

/*
 * fork() holds the mmap lock as long as it copies pinned pages; nothing that happens meanwhile is
 * taken for a loss.
 */
TEST(fork_of_much_memory, .seconds = 60)
{
	enum { AREAS = 20, AREA = 2 * MIB };
	struct memory shared = memory_new(MEMFD, 8 * PAGE);
	struct gate ready = gate_new();
	pid_t other = disturb(&shared, &ready);
	int fd = open_device(0);
	struct registration registration = register_memory(fd, shared.addr, shared.length, WRITE);
	uint64_t before = changes(fd, &registration), seen = 0, begin = now_ms();
	unsigned int forks = 0;

	for (unsigned int i = 0; i < AREAS; i++) {
		char *area = memory_new(ANON, AREA).addr;

		register_memory(fd, area, AREA, NO_MAP);
	}
	gate_open(&ready);
	/* until the driver had something to look at in many of them */
	while (forks < rounds(10) || seen < before + 40) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(0);
		join(pid);
		/*
		 * it gives up where the kernel moves no pages, and fails if a pinned page was moved
		 */
		if (!runs_still(other))
			join(other);
		seen = changes(fd, &registration);
		forks++;
		CHECK(now_ms() - begin < slow(40000));
	}
	diag("%u forks of %llu ms, %llu changes", forks,
	     (unsigned long long)(now_ms() - begin) / forks, (unsigned long long)(seen - before));
	kill_now(other);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
	CHECK_NO_EVENT(fd);
	CHECK(bytes_are(shared.addr, shared.length, 0x11));
}

/*
 * Two changes that come before the first was looked at are both looked at. Which of them is seen
 * first does not matter, so they come in many ways.
 */
TEST(second_change_joins_the_first)
{
	enum { PAGES = 64 };
	int fd = open_device(0);
	char *memory = anon(PAGES);

	for (unsigned int i = 0; i < rounds(300); i++) {
		struct registration registration =
			register_memory(fd, memory, PAGES * PAGE, NO_MAP);
		size_t lost = i % 2 ? PAGES - 1 : 0, kept = i % 2 ? 0 : PAGES - 1;

		SYS(madvise(memory + lost * PAGE, PAGE, MADV_DONTNEED));
		SYS(madvise(memory + kept * PAGE, PAGE, MADV_FREE));
		CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
		CHECK_STALE_EVENT(fd, registration);
		release(fd, registration.handle);
		memory[lost * PAGE] = 1;
	}
}

/*
 * A change of many pages is looked at in pieces: memory that goes at its very end is seen, and the
 * rest is not taken for gone.
 */
TEST(change_of_many_pages)
{
	enum { PAGES = 5000 };
	int fd = open_device(0);
	char *memory = anon(PAGES);
	long long pins = pins_held();
	struct registration registration = register_memory(fd, memory, PAGES * PAGE, NO_MAP);

	SYS(madvise(memory, PAGES * PAGE, MADV_FREE));
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
	SYS(madvise(memory, PAGES * PAGE, MADV_FREE));
	SYS(madvise(memory + (PAGES - 1) * PAGE, PAGE, MADV_DONTNEED));
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
	CHECK_PINS(pins);
	CHECK_STALE_EVENT(fd, registration);
	release(fd, registration.handle);
	/* released while the driver looks at it: nobody has the pages afterwards */
	for (unsigned int i = 0; i < rounds(20); i++) {
		registration = register_memory(fd, memory, PAGES * PAGE, NO_MAP);
		SYS(madvise(memory, PAGES * PAGE, MADV_FREE));
		release(fd, registration.handle);
		CHECK_PINS(pins);
	}
}

/*
 * A registration after one that was looked at and released is looked at, too, and QUERY waits until
 * its pages are unpinned.
 */
TEST(looked_at_like_the_first)
{
	enum { PAGES = 5000 };
	int fd = open_device(0);
	char *memory = anon(PAGES);
	long long pins = pins_held();

	for (unsigned int i = 0; i < rounds(20); i++) {
		struct registration registration =
			register_memory(fd, memory, PAGES * PAGE, NO_MAP);

		SYS(madvise(memory, PAGES * PAGE, MADV_FREE));
		CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
		release(fd, registration.handle);
		if (i % 2) {
			/* or after one that had two mappings */
			registration = register_memory(fd, memory, PAGE, WRITE);
			map(fd, registration.handle, PINMAP_MAP_WRITE, 0);
			release(fd, registration.handle);
		}
		registration = register_memory(fd, memory, PAGES * PAGE, NO_MAP);
		SYS(madvise(memory + (PAGES - 1) * PAGE, PAGE, MADV_DONTNEED));
		CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
		CHECK_PINS(pins);
		CHECK_STALE_EVENT(fd, registration);
		release(fd, registration.handle);
		memory[(PAGES - 1) * PAGE] = 1;
	}
}

struct writer {
	int fd;
	char *from;
	int uffd;
	pthread_t thread;
};

static void *write_page(void *argument)
{
	struct writer *writer = argument;

	CHECK_EQ(pwrite(writer->fd, writer->from, PAGE, (off_t)(8 * PAGE)), PAGE);
	return NULL;
}

/*
 * Has a thread hold the lock of a file, by a write() whose data do not come before file_unlock().
 */
static void file_lock(struct writer *writer, int fd)
{
	writer->fd = fd;
	writer->from = anon(1);
	SYS(madvise(writer->from, PAGE, MADV_DONTNEED));
	writer->uffd = uffd_new(writer->from, PAGE);
	CHECK_OK(-pthread_create(&writer->thread, NULL, write_page, writer));
	uffd_await(writer->uffd, writer->from);
}

static void file_unlock(struct writer *writer)
{
	uffd_supply(writer->uffd, writer->from, 0x22);
	CHECK_OK(-pthread_join(writer->thread, NULL));
	close(writer->uffd);
}

/*
 * A change of many pages is looked at in pieces, to its end: here only the last page has gone. The
 * changes are joined into one because the look at the first page, which is in a locked file, has to
 * wait until all of them have happened.
 */
TEST(end_of_a_long_change)
{
	enum { PAGES = 5000 };
	struct memory memory = memory_new(MEMFD, 16 * PAGE);
	char *area = address_space((1 + PAGES) * PAGE, PAGE);
	struct registration registration;
	struct writer writer;
	int fd = open_device(0);

	SYS(mmap(area, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory.fd, 0));
	SYS(mmap(area + PAGE, PAGES * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	memset(area, 0x11, (1 + PAGES) * PAGE);
	registration = register_memory(fd, area, (1 + PAGES) * PAGE, NO_MAP);
	file_lock(&writer, memory.fd);
	SYS(madvise(area, PAGE, MADV_DONTNEED));
	SYS(madvise(area + PAGE, PAGES * PAGE, MADV_FREE));
	SYS(madvise(area + PAGES * PAGE, PAGE, MADV_DONTNEED));
	CHECK_NO_EVENT(fd);
	file_unlock(&writer);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
	CHECK_STALE_EVENT(fd, registration);
}

/*
 * A write() whose data never come holds the lock of the file. Whether its pages, which are in no
 * page table any more, are still in the file cannot be known then. They are not taken for gone; a
 * call that asks can be killed; a release does not wait.
 */
TEST(file_lock_held)
{
	struct memory memory = memory_new(MEMFD, 16 * PAGE);
	struct writer writer;
	int fd = open_device(0);
	struct registration first = register_memory(fd, memory.addr, 2 * PAGE, WRITE);
	struct registration second = register_memory(fd, memory.addr + 4 * PAGE, 2 * PAGE, WRITE);
	long long pins = pins_held();
	pid_t pid;

	file_lock(&writer, memory.fd);
	SYS(madvise(memory.addr, 8 * PAGE, MADV_DONTNEED));
	pid = fork();
	if (pid == 0) {
		query_handle(fd, first.handle);
		_exit(0);
	}
	sleep_ms(1200);
	CHECK_EQ(waitpid(pid, NULL, WNOHANG), 0);
	CHECK_NO_EVENT(fd);
	kill_now(pid);
	release(fd, second.handle);
	CHECK_PINS(pins - 2);
	file_unlock(&writer);
	CHECK_EQ(query_handle(fd, first.handle).out_state, PINMAP_STATE_LIVE);
	CHECK_NO_EVENT(fd);
	CHECK(bytes_are(memory.addr, 8 * PAGE, 0x11));
}
