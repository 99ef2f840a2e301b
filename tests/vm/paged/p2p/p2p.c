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
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOUNTED "/run/p2p"

/* Finds the name of the block device of a namespace. */
static bool find_disk(unsigned int namespace, char name[32])
{
	DIR *blocks = SYS(opendir("/sys/block"));
	struct dirent *entry;
	bool found = false;

	while (!found && (entry = readdir(blocks))) {
		char path[320], serial[64];

		snprintf(path, sizeof(path), "/sys/block/%s/nsid", entry->d_name);
		if (file_number(path, 0) != namespace)
			continue;
		snprintf(path, sizeof(path), "/sys/block/%s/device/serial", entry->d_name);
		if (try_file_read(path, serial, sizeof(serial)) || strncmp(serial, "disk", 4))
			continue;
		snprintf(name, 32, "%.31s", entry->d_name);
		snprintf(path, sizeof(path), "/dev/%s", name);
		found = !access(path, F_OK);
	}
	closedir(blocks);
	return found;
}

static const char *disk_name(unsigned int namespace)
{
	static char names[3][32];
	char *name = names[namespace];

	if (*name || find_disk(namespace, name))
		return name;
	if (!getenv("PINMAP_DISK") || !*getenv("PINMAP_DISK"))
		SKIP("there is no such disk (scripts/vm --disk)");
	if (system("modprobe nvme"))
		SKIP("the kernel's driver for NVMe is missing");
	CHECK(WAIT_FOR(30000, find_disk(namespace, name)));
	return name;
}

const char *need_disk(unsigned int namespace)
{
	static char path[64];

	snprintf(path, sizeof(path), "/dev/%s", disk_name(namespace));
	return path;
}

void need_peers(void)
{
	const char *peers = getenv("PINMAP_PEERS");

	if (!peers || !*peers)
		SKIP("the bus does not let the disk reach the device (scripts/vm --peers)");
}

int open_file(void)
{
	const char *disk = need_disk(FILES);
	struct stat root, mounted;
	char path[64];
	int file;

	mkdir("/run", 0755);
	mkdir(MOUNTED, 0755);
	SYS(stat("/run", &root));
	SYS(stat(MOUNTED, &mounted));
	/* the file system stays mounted for the tests after this one */
	if (root.st_dev == mounted.st_dev)
		SYS(mount(disk, MOUNTED, "ext4", 0, NULL));
	snprintf(path, sizeof(path), MOUNTED "/file-%d-%u", getpid(), (unsigned int)now_ns());
	file = SYS(open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600));
	SYS(unlink(path));
	return file;
}

int open_late(void)
{
	return SYS(open(need_disk(LATE), O_RDONLY | O_DIRECT | O_CLOEXEC));
}

unsigned int late_requests(void)
{
	unsigned int reads = 0, writes = 0;
	char path[64], text[64];

	snprintf(path, sizeof(path), "/sys/block/%s/inflight", disk_name(LATE));
	file_read(path, text, sizeof(text));
	CHECK_EQ(sscanf(text, "%u %u", &reads, &writes), 2);
	return reads + writes;
}

void gpu_fill(struct gpu_queue *queue, void *memory, size_t length, uint8_t byte)
{
	queue_push(queue, GPU_FILL, (uintptr_t)memory, length, byte);
	queue_finish(queue);
}

void gpu_copy(struct gpu_queue *queue, void *to, const void *from, size_t length)
{
	enum { MOST = 64 << 20 };

	for (size_t at = 0; at < length; at += MOST)
		queue_push(queue, GPU_COPY, (uintptr_t)from + at, (uintptr_t)to + at,
			   length - at < MOST ? length - at : MOST);
	queue_finish(queue);
}

bool all_are(const void *memory, size_t length, uint8_t byte)
{
	const uint8_t *bytes = memory;

	return !length || (bytes[0] == byte && !memcmp(bytes, bytes + 1, length - 1));
}

uint64_t vram_free(int fd)
{
	struct pinmap_gpu_info info = { .size = sizeof(info) };

	CHECK_OK(try_ioctl(fd, PINMAP_GPU_INFO, &info));
	return info.out_vram_free;
}

static void *read_late(void *argument)
{
	struct late *late = argument;

	late->result = pread(late->file, late->memory, LATE_BYTES, 0);
	if (late->result < 0)
		late->result = -errno;
	return NULL;
}

struct late *late_begin(void *memory)
{
	struct late *late = calloc(1, sizeof(*late));

	late->file = open_late();
	late->memory = memory;
	CHECK_EQ(late_requests(), 0);
	CHECK_OK(-pthread_create(&late->thread, NULL, read_late, late));
	CHECK(WAIT_FOR(10000, late_requests() != 0));
	return late;
}

ssize_t late_end(struct late *late)
{
	ssize_t result;

	CHECK_OK(-pthread_join(late->thread, NULL));
	result = late->result;
	close(late->file);
	free(late);
	return result;
}
