// SPDX-License-Identifier: MIT OR Apache-2.0
/* The attributes of a device in sysfs. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "gpu.h"
#include "memory.h"
#include "pci.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* An address that no program has. */
#define NOWHERE 0x123456000

static const char *path_of(const struct pci_device *device, const char *attribute)
{
	static char path[256];

	snprintf(path, sizeof(path), "/sys/class/misc/%s/%s", strrchr(device->node, '/') + 1,
		 attribute);
	return path;
}

static long long number(const struct pci_device *device, const char *attribute)
{
	return file_number(path_of(device, attribute), -1);
}

static struct pci_device gpu(void)
{
	struct pci_device device;

	snprintf(device.bdf, sizeof(device.bdf), "%s", need_gpu());
	pci_look(&device);
	return device;
}

TEST(attributes_of_a_gpu, .smoke = true)
{
	struct pci_device device = gpu();
	long long contexts = number(&device, "contexts"), queues = number(&device, "queues");
	long long pinned = number(&device, "pinned"), mapped = number(&device, "mapped");
	int fd = open_gpu();
	struct registration registration = register_memory(fd, anon(4), 4 * PAGE, WRITE);
	struct gpu_queue queue = queue_new(fd);
	char kind[32];

	(void)queue;
	file_read(path_of(&device, "kind"), kind, sizeof(kind));
	CHECK(!strcmp(kind, "paged"));
	CHECK_EQ(number(&device, "contexts"), contexts + 1);
	CHECK_EQ(number(&device, "queues"), queues + 1);
	CHECK_EQ(number(&device, "pinned"), pinned + 4 * PAGE);
	CHECK(number(&device, "mapped") >= mapped + 4 * (long long)PAGE);
	CHECK(number(&device, "vram") > number(&device, "vram_free"));
	release(fd, registration.handle);
	CHECK_EQ(number(&device, "pinned"), pinned);
	CHECK(try_file_write(path_of(&device, "fault_limit"), "many") == -EINVAL);
}

/* A flat device has no queues, so nothing that can fault. */
TEST(attributes_of_a_flat_device)
{
	static const char *const others[] = {
		"managed",	 "queues",	    "vram",	   "vram_free",		"faults_served",
		"faults_failed", "fault_failed_at", "fault_limit", "fault_hold_off_ms", "held_off",
	};
	struct pci_device device = need_device(0);
	char kind[32];

	file_read(path_of(&device, "kind"), kind, sizeof(kind));
	if (strcmp(kind, "flat"))
		SKIP("the first device is not flat");
	CHECK(number(&device, "contexts") >= 0);
	CHECK(number(&device, "pinned") >= 0);
	CHECK(number(&device, "mapped") >= 0);
	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		CHECK_EQ(access(path_of(&device, others[i]), F_OK), -1);
}

static void lose_a_queue(int fd)
{
	struct gpu_queue queue = queue_new(fd);

	queue_push(&queue, GPU_FILL, NOWHERE, 64, 0);
	queue_ring(&queue);
	CHECK_EQ(queue_stopped(&queue), GPU_NOT_PRESENT);
	CHECK_OK(try_queue_destroy(fd, queue.args.out_queue));
}

TEST(attributes_count_faults)
{
	struct pci_device device = gpu();
	long long failed = number(&device, "faults_failed"), now = time(NULL);

	lose_a_queue(open_gpu());
	CHECK_EQ(number(&device, "faults_failed"), failed + 1);
	CHECK(number(&device, "fault_failed_at") >= now);
	CHECK(number(&device, "fault_failed_at") <= time(NULL));
}

/* A context with too many faults gets no slot for a while; others do, and it does afterwards. */
TEST(trouble_is_held_off, .seconds = 60)
{
	enum { LIMIT = 5 };
	struct pci_device device = gpu();
	long long held_off = number(&device, "held_off");
	long long limit = number(&device, "fault_limit");
	long long hold_off = number(&device, "fault_hold_off_ms");
	int fd = open_gpu();
	struct gpu_queue queue, other;
	char text[32];

	file_write(path_of(&device, "fault_limit"), "5");
	file_write(path_of(&device, "fault_hold_off_ms"), "3000");
	for (unsigned int i = 0; i < LIMIT; i++)
		lose_a_queue(fd);
	queue = queue_new(fd);
	queue_finish(&queue);
	CHECK_EQ(number(&device, "held_off"), held_off);
	CHECK_OK(try_queue_destroy(fd, queue.args.out_queue));
	lose_a_queue(fd);
	CHECK_EQ(number(&device, "held_off"), held_off + 1);

	queue = queue_new(fd);
	other = queue_new(open_gpu());
	CHECK_ERR(ETIMEDOUT, try_queue_finish(&queue, 500));
	queue_finish(&other);
	queue_finish(&queue);
	snprintf(text, sizeof(text), "%lld", limit);
	file_write(path_of(&device, "fault_limit"), text);
	snprintf(text, sizeof(text), "%lld", hold_off);
	file_write(path_of(&device, "fault_hold_off_ms"), text);
}
