// SPDX-License-Identifier: MIT OR Apache-2.0
/* Observability of a device with queues and memory of its own. */
#define _GNU_SOURCE
#include "file.h"
#include "gpu.h"
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Counts the lines of the device's file that contain a text. */
static unsigned int lines_with(const char *part)
{
	char path[128], text[16384], *at = text;
	unsigned int found = 0;

	snprintf(path, sizeof(path), "/sys/kernel/debug/pinmap/%s/buffers", need_gpu());
	if (access(path, F_OK))
		SKIP("there is no debugfs");
	file_read(path, text, sizeof(text));
	while ((at = strstr(at, part))) {
		at++;
		found++;
	}
	return found;
}

static struct pinmap_get_totals totals(int fd, uint32_t flags)
{
	struct pinmap_get_totals args = { .size = sizeof(args), .flags = flags };

	CHECK_OK(try_ioctl(fd, PINMAP_GET_TOTALS, &args));
	return args;
}

/*
 * Memory of the device, of the driver and of the program are counted apart; queues are not counted.
 */
TEST(gpu_memory_is_seen, .smoke = true)
{
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory vram = gpu_alloc(fd, PINMAP_ALLOC_VRAM, HUGE);
	struct gpu_memory host = gpu_alloc(fd, 0, 4 * PAGE);
	struct memory memory = memory_new(ANON, 2 * PAGE);
	struct registration registration = register_memory(fd, memory.addr, memory.length, WRITE);
	struct pinmap_get_totals all = totals(other, 0), own = totals(fd, PINMAP_TOTALS_CONTEXT);
	char part[128];

	CHECK_EQ(all.out_contexts, 2);
	CHECK_EQ(own.out_vram.number, 1);
	CHECK_EQ(own.out_vram.bytes, HUGE);
	CHECK_EQ(own.out_allocated.number, 1);
	CHECK_EQ(own.out_allocated.bytes, 4 * PAGE);
	CHECK_EQ(own.out_pinned.number, 1);
	CHECK_EQ(own.out_pinned.bytes, 2 * PAGE);
	CHECK_EQ(own.out_mapped.number, 3);
	CHECK_EQ(own.out_mapped.bytes, HUGE + 6 * PAGE);
	CHECK_EQ(all.out_mapped.bytes, own.out_mapped.bytes);
	CHECK_EQ(totals(other, PINMAP_TOTALS_CONTEXT).out_mapped.number, 0);

	snprintf(part, sizeof(part), " vram rw live - %zu 1 100%% %#llx\n", HUGE,
		 (unsigned long long)(uintptr_t)vram.addr);
	CHECK_EQ(lines_with(part), 1);
	CHECK_EQ(lines_with(" allocated rw live - 16384 "), 1);
	snprintf(part, sizeof(part), " registered rw live %#llx 8192 ",
		 (unsigned long long)(uintptr_t)memory.addr);
	CHECK_EQ(lines_with(part), 1);
	CHECK_EQ(lines_with("live"), 3);

	release(fd, registration.handle);
	release(fd, vram.args.out_handle);
	release(fd, host.args.out_handle);
	own = totals(fd, PINMAP_TOTALS_CONTEXT);
	CHECK_EQ(own.out_vram.number + own.out_allocated.number + own.out_pinned.number +
			 own.out_mapped.number,
		 0);
	CHECK_EQ(lines_with("live"), 0);
	queue_push(&queue, GPU_NOP, 0, 0, 0);
	queue_finish(&queue);
}
