// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "p2p.h"

#include "file.h"
#include "memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

const char *need_disk(unsigned int namespace)
{
	static char path[32];

	/* scripts/guest/disk has made them */
	if (!getenv("PINMAP_DISK") || !*getenv("PINMAP_DISK"))
		SKIP("there is no such disk (scripts/vm --disk)");
	snprintf(path, sizeof(path), "/dev/disk-%u", namespace);
	return path;
}

int open_file(void)
{
	char path[64];
	int file;

	need_disk(FILES);
	snprintf(path, sizeof(path), "/run/disk/%d-%u", getpid(), (unsigned int)now_ns());
	file = SYS(open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600));
	SYS(unlink(path));
	return file;
}

/* Opens the port that is QEMU's monitor. */
static int open_monitor(void)
{
	DIR *ports = SYS(opendir("/sys/class/virtio-ports"));
	char path[320], name[32];
	struct dirent *entry;
	int port = -1;

	while (port < 0 && (entry = readdir(ports))) {
		snprintf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", entry->d_name);
		if (try_file_read(path, name, sizeof(name)) || strcmp(name, "monitor"))
			continue;
		snprintf(path, sizeof(path), "/dev/%s", entry->d_name);
		port = SYS(open(path, O_RDWR | O_CLOEXEC));
	}
	closedir(ports);
	CHECK(port >= 0);
	return port;
}

/* Gives QEMU a command; returns whether it did it. */
static bool ask(int monitor, FILE *answers, const char *command)
{
	static char line[1024];

	CHECK_EQ(SYS(write(monitor, command, strlen(command))), strlen(command));
	do
		CHECK(fgets(line, sizeof(line), answers));
	while (!strstr(line, "\"return\"") && !strstr(line, "\"error\""));
	return strstr(line, "\"return\"");
}

/* Limits the bytes that QEMU does for the second namespace in a second; 0: it does not. */
static void limit(unsigned int bytes)
{
	int monitor = open_monitor();
	FILE *answers = fdopen(monitor, "r");
	char command[256];

	/* refused if it was done before */
	ask(monitor, answers, "{\"execute\": \"qmp_capabilities\"}\n");
	snprintf(command, sizeof(command),
		 "{\"execute\": \"block_set_io_throttle\", \"arguments\": {\"id\": \"held\", "
		 "\"bps\": %u, \"bps_rd\": 0, \"bps_wr\": 0, \"iops\": 0, \"iops_rd\": 0, "
		 "\"iops_wr\": 0}}\n", bytes);
	CHECK(ask(monitor, answers, command));
	fclose(answers);
}

unsigned int held_requests(void)
{
	unsigned int reads = 0, writes = 0;
	char path[64], text[64];
	struct stat disk;

	SYS(stat(need_disk(HELD), &disk));
	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/inflight", major(disk.st_rdev),
		 minor(disk.st_rdev));
	file_read(path, text, sizeof(text));
	CHECK_EQ(sscanf(text, "%u %u", &reads, &writes), 2);
	return reads + writes;
}

static void *read_held(void *argument)
{
	struct held *held = argument;

	held->result = pread(held->file, held->memory, HELD_BYTES, 0);
	if (held->result < 0)
		held->result = -errno;
	return NULL;
}

struct held *held_begin(void *memory)
{
	struct held *held = calloc(1, sizeof(*held));

	held->file = SYS(open(need_disk(HELD), O_RDONLY | O_DIRECT | O_CLOEXEC));
	held->memory = memory;
	/* a test that failed may have left one */
	held_release();
	CHECK(WAIT_FOR(10000, held_requests() == 0));
	/*
	 * QEMU does one request at once, and counts it. The next ones have to wait for 8 seconds
	 * and 16: so a test that fails does not hang, and the kernel's driver, which gives up a
	 * request after 30, is patient.
	 */
	limit(16384);
	CHECK_EQ(SYS(pread(held->file, anon(32), 32 * PAGE, 0)), 32 * PAGE);
	CHECK_OK(-pthread_create(&held->thread, NULL, read_held, held));
	CHECK(WAIT_FOR(10000, held_requests() != 0));
	return held;
}

void held_release(void)
{
	limit(0);
}

ssize_t held_end(struct held *held)
{
	ssize_t result;

	held_release();
	CHECK_OK(-pthread_join(held->thread, NULL));
	result = held->result;
	close(held->file);
	free(held);
	return result;
}
