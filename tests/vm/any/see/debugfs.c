// SPDX-License-Identifier: MIT OR Apache-2.0
/* Each buffer in debugfs. */
#define _GNU_SOURCE
#include "see.h"

#include "file.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "process.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(debugfs_buffer, .smoke = true)
{
	struct pci_device device = need_device(0);
	struct memory memory = memory_new(THP, HUGE);
	int fd = open_device(0);
	struct registration registration;
	struct line line;
	char path[128], expected[64], text[4096];
	bool huge;

	debugfs_path(&device, path);
	CHECK(!find_line(path, memory.addr, &line));
	huge = is_thp(memory.addr);
	registration = register_memory(fd, memory.addr, HUGE, WRITE);
	CHECK(find_line(path, memory.addr, &line));
	CHECK(!strcmp(line.words[0], device.bdf));
	CHECK_EQ(atoll(line.words[1]), fdinfo(fd, "client-id"));
	CHECK_EQ(strtoull(line.words[3], NULL, 0), registration.handle);
	CHECK(!strcmp(line.words[4], "registered"));
	CHECK(!strcmp(line.words[5], "rw"));
	CHECK(!strcmp(line.words[6], "live"));
	CHECK_EQ(atoll(line.words[8]), HUGE);
	if (huge) {
		CHECK_EQ(atoll(line.words[9]), 1);
		CHECK(!strcmp(line.words[10], "100%"));
	}
	CHECK_EQ(strtoull(line.words[11], NULL, 0), registration.device_addr);

	map(fd, registration.handle, PINMAP_MAP_FIXED, 0x40000000);
	CHECK(find_line(path, memory.addr, &line));
	snprintf(expected, sizeof(expected), "%#llx,0x40000000",
		 (unsigned long long)registration.device_addr);
	CHECK(!strcmp(line.words[11], expected));

	SYS(munmap(memory.addr, PAGE));
	CHECK(find_line(path, memory.addr, &line));
	CHECK(!strcmp(line.words[6], "stale"));
	CHECK(!strcmp(line.words[11], "-"));
	release(fd, registration.handle);
	CHECK(!find_line(path, memory.addr, &line));
	file_read(path, text, sizeof(text));
	CHECK(!strchr(text, '\n') || !strchr(text, '\n')[1]);
}

/* Lines of scattered, read-only and unmapped memory say nothing of where it lies in the machine. */
TEST(debugfs_tells_no_secrets)
{
	struct pci_device device = need_device(0);
	enum { PAGES = 8 };
	char *memory = anon(PAGES), path[128], text[65536], number[32];
	uint64_t frames[PAGES];
	int fd = open_device(0);
	struct line line;
	struct stat status;
	unsigned int runs = 1;

	debugfs_path(&device, path);
	register_memory(fd, memory, PAGES * PAGE, NO_MAP);
	page_frames(memory, PAGES, frames);
	for (int i = 1; i < PAGES; i++)
		runs += frames[i] != frames[i - 1] + 1;
	CHECK(find_line(path, memory, &line));
	CHECK(!strcmp(line.words[5], "r"));
	CHECK_EQ(atoi(line.words[9]), runs);
	CHECK(!strcmp(line.words[10], "0%"));
	CHECK(!strcmp(line.words[11], "-"));
	file_read(path, text, sizeof(text));
	/* no pointer into the kernel's half of the addresses */
	for (const char *at = text; (at = strstr(at, "0xffff")); at += 6)
		CHECK(strspn(at + 2, "0123456789abcdef") < 16);
	SYS(stat(path, &status));
	CHECK_EQ(status.st_mode & 0777, 0400);
	for (int i = 0; i < PAGES; i++) {
		snprintf(number, sizeof(number), "0x%llx", (unsigned long long)frames[i] * PAGE);
		CHECK(!strstr(text, number));
	}
	become_user(true);
	CHECK_EQ(open(path, O_RDONLY), -1);
	CHECK_EQ(errno, EACCES);
}

/* The file of a device with more lines than fit a page has them all. */
TEST(debugfs_many)
{
	struct pci_device device = need_device(0);
	enum { COUNT = 300 };
	static char text[256 * 1024];
	char *memory = anon(2 * COUNT), path[128], *at = text;
	int fd = open_device(0);
	unsigned int lines = 0;

	debugfs_path(&device, path);
	for (int i = 0; i < COUNT; i++)
		register_memory(fd, memory + 2 * i * PAGE, PAGE, WRITE);
	file_read(path, text, sizeof(text));
	while ((at = strstr(at, " registered "))) {
		at++;
		lines++;
	}
	CHECK_EQ(lines, COUNT);
}

struct reader {
	char path[128];
	volatile bool stop;
	volatile unsigned int reads;
};

static void *read_on(void *argument)
{
	struct reader *reader = argument;
	char text[4096];

	while (!reader->stop) {
		int fd = open(reader->path, O_RDONLY);

		while (fd >= 0 && read(fd, text, sizeof(text)) > 0)
			;
		if (fd >= 0)
			close(fd);
		reader->reads++;
	}
	return NULL;
}

/* The files can be read while buffers, contexts and the device come and go. */
TEST(debugfs_while_things_go, .seconds = 60)
{
	struct pci_device device = need_device(0);
	struct reader reader = {};
	pthread_t threads[2];
	char *memory = anon(64);
	unsigned int reads;

	debugfs_path(&device, reader.path);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, read_on, &reader), 0);
	for (unsigned int round = 0; round < rounds(10); round++) {
		int fd = open_device(0);
		struct registration registrations[16];

		for (int i = 0; i < 16; i++)
			registrations[i] =
				register_memory(fd, memory + 4 * i * PAGE, 3 * PAGE, WRITE);
		for (int i = 0; i < 8; i++)
			release(fd, registrations[i].handle);
		madvise(memory + 4 * 12 * PAGE, PAGE, MADV_DONTNEED);
		reads = reader.reads;
		CHECK(WAIT_FOR(5000, reader.reads > reads));
		if (round % 3) {
			close(fd);
		} else {
			pci_unbind(device.bdf);
			close(fd);
			pci_bind(device.bdf);
			pci_adopt(device.bdf);
		}
	}
	reader.stop = true;
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		pthread_join(threads[i], NULL);
}

/*
 * An open file holds the module, not the device; reading it after the device has gone is an error.
 */
TEST(debugfs_open_file)
{
	struct pci_device device = need_device(0);
	char path[128], text[256];
	int fd;

	need_module();
	debugfs_path(&device, path);
	fd = SYS(open(path, O_RDONLY));
	CHECK(read(fd, text, sizeof(text)) > 0);
	CHECK(try_module_unload() < 0);
	pci_unbind(device.bdf);
	CHECK_EQ(access(path, F_OK), -1);
	CHECK_EQ(pread(fd, text, sizeof(text), 0), -1);
	CHECK_EQ(errno, EIO);
	CHECK(try_module_unload() < 0);
	close(fd);
	module_unload();
	CHECK_EQ(access("/sys/kernel/debug/pinmap", F_OK), -1);
	module_load();
	CHECK_EQ(access(path, F_OK), 0);
}
