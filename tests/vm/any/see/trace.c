// SPDX-License-Identifier: MIT OR Apache-2.0
/* Tracepoints: each tells what was done, once, and says nothing when it is off. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "gpu.h"
#include "memory.h"
#include "pci.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TRACING "/sys/kernel/tracing"
#define EVENTS TRACING "/events/pinmap"

static char trace[256 * 1024];

static void tracing(bool on)
{
	if (access(EVENTS, F_OK))
		SKIP("the kernel has no tracepoints");
	file_write(EVENTS "/enable", on ? "1" : "0");
}

static void trace_begin(void)
{
	tracing(false);
	file_write(TRACING "/trace", "");
	tracing(true);
}

/* Counts the lines of this event; the last one is left in @line. */
static unsigned int trace_lines(const char *event, char line[512])
{
	char wanted[64], *at = trace;
	unsigned int found = 0;

	snprintf(wanted, sizeof(wanted), " pinmap_%s: ", event);
	while ((at = strstr(at, wanted))) {
		at += strlen(wanted);
		found++;
		snprintf(line, 512, "%.*s", (int)strcspn(at, "\n"), at);
	}
	return found;
}

static void trace_end(void)
{
	size_t length = 0;
	ssize_t got;
	int fd;

	tracing(false);
	fd = SYS(open(TRACING "/trace", O_RDONLY | O_CLOEXEC));
	while ((got = SYS(read(fd, trace + length, sizeof(trace) - 1 - length))) > 0)
		length += got;
	trace[length] = 0;
	close(fd);
}

/* Reads the number behind "KEY=" in a line. */
static unsigned long long value(const char *line, const char *key)
{
	char wanted[32];
	const char *at;

	snprintf(wanted, sizeof(wanted), " %s=", key);
	at = strstr(line, wanted);
	if (!at)
		FAIL("no %s in: %s", key, line);
	return strtoull(at + strlen(wanted), NULL, 0);
}

/* Checks that an event has one line, of this device and this buffer, and that it took time. */
static void check_line(const char *event, const char *bdf, const struct registration *registration,
		       char line[512])
{
	char device[32];

	CHECK_EQ(trace_lines(event, line), 1);
	diag("pinmap_%s: %s", event, line);
	snprintf(device, sizeof(device), "device=%s ", bdf);
	CHECK(!strncmp(line, device, strlen(device)));
	CHECK_EQ(value(line, "handle"), registration->handle);
	CHECK_EQ(value(line, "addr"), (uintptr_t)registration->addr);
	CHECK_EQ(value(line, "bytes"), registration->length);
	CHECK(value(line, "ns") > 0);
}

TEST(trace_huge, .smoke = true)
{
	struct pci_device device = need_device(0);
	struct memory memory = memory_new(THP, HUGE);
	int fd = open_device(0);
	struct registration registration;
	char line[512];
	bool huge = is_thp(memory.addr);
	unsigned int share = huge ? 100 : 0;

	trace_begin();
	registration = register_memory(fd, memory.addr, HUGE, WRITE);
	trace_end();
	check_line("register", device.bdf, &registration, line);
	CHECK_EQ(value(line, "device_addr"), registration.device_addr);
	CHECK_EQ(value(line, "flushes"), 1);
	if (huge)
		CHECK_EQ(value(line, "runs"), 1);
	CHECK_EQ(value(line, "huge"), share);
	check_line("map", device.bdf, &registration, line);
	CHECK_EQ(value(line, "device_addr"), registration.device_addr);
	CHECK_EQ(value(line, "flushes"), 1);
	CHECK_EQ(value(line, "huge"), share);
	CHECK_EQ(trace_lines("unmap", line) + trace_lines("release", line) +
			 trace_lines("stale", line),
		 0);

	trace_begin();
	release(fd, registration.handle);
	trace_end();
	check_line("unmap", device.bdf, &registration, line);
	CHECK_EQ(value(line, "flushes"), 1);
	check_line("release", device.bdf, &registration, line);
	CHECK_EQ(value(line, "flushes"), 1);
	CHECK_EQ(value(line, "huge"), share);
	CHECK_EQ(trace_lines("register", line) + trace_lines("map", line) +
			 trace_lines("stale", line),
		 0);
}

/* The tracepoint tells as many runs as the pages really have. */
TEST(trace_scattered)
{
	struct pci_device device = need_device(0);
	enum { PAGES = 300 };
	char *memory = anon(PAGES), line[512];
	static uint64_t frames[PAGES];
	struct registration registration;
	unsigned int runs = 1;
	int fd = open_device(0);

	page_frames(memory, PAGES, frames);
	for (int i = 1; i < PAGES; i++)
		runs += frames[i] != frames[i - 1] + 1;
	trace_begin();
	registration = register_memory(fd, memory, PAGES * PAGE, NO_MAP);
	registration.device_addr = map(fd, registration.handle, 0, 0);
	trace_end();
	check_line("register", device.bdf, &registration, line);
	CHECK_EQ(value(line, "runs"), runs);
	CHECK_EQ(value(line, "flushes"), 0);
	CHECK_EQ(value(line, "device_addr"), 0);
	check_line("map", device.bdf, &registration, line);
	CHECK_EQ(value(line, "runs"), runs);
	CHECK(value(line, "flushes") >= 1 && value(line, "flushes") <= runs);

	trace_begin();
	unmap(fd, registration.handle, registration.device_addr);
	trace_end();
	check_line("unmap", device.bdf, &registration, line);
	CHECK_EQ(value(line, "runs"), runs);
	CHECK_EQ(value(line, "flushes"), 1);
	CHECK_EQ(trace_lines("release", line), 0);
}

/*
 * Memory that goes makes one line for stale and one for unmapping; its release has nothing left to
 * flush.
 */
TEST(trace_stale)
{
	struct pci_device device = need_device(0);
	char *memory = anon(4), line[512];
	int fd = open_device(0);
	struct registration registration = register_memory(fd, memory, 4 * PAGE, WRITE);

	trace_begin();
	SYS(munmap(memory + PAGE, PAGE));
	trace_end();
	check_line("stale", device.bdf, &registration, line);
	CHECK(value(line, "runs") >= 1);
	CHECK_EQ(value(line, "flushes"), 1);
	check_line("unmap", device.bdf, &registration, line);
	CHECK_EQ(trace_lines("release", line), 0);

	trace_begin();
	release(fd, registration.handle);
	trace_end();
	CHECK_EQ(trace_lines("release", line), 1);
	CHECK_EQ(value(line, "handle"), registration.handle);
	CHECK_EQ(value(line, "flushes"), 0);
	CHECK_EQ(trace_lines("unmap", line) + trace_lines("stale", line), 0);
}

/* A call that fails is not traced; work that closing does is. */
TEST(trace_close)
{
	char *memory = anon(4), line[512];
	struct registration registration;
	int fd;

	need_device(0);
	fd = open_device(0);
	trace_begin();
	CHECK(try_register_memory(fd, memory, 5 * PAGE + MIB * 4096, WRITE, &registration) < 0);
	trace_end();
	CHECK_EQ(trace_lines("register", line) + trace_lines("release", line) +
			 trace_lines("map", line),
		 0);
	register_memory(fd, memory, PAGE, WRITE);
	register_memory(fd, memory + 2 * PAGE, PAGE, NO_MAP);
	trace_begin();
	close(fd);
	trace_end();
	CHECK_EQ(trace_lines("release", line), 2);
	CHECK_EQ(trace_lines("unmap", line), 1);
}

TEST(trace_off)
{
	char *memory = anon(1), line[512];
	struct registration registration;
	int fd;

	need_device(0);
	fd = open_device(0);
	trace_begin();
	tracing(false);
	registration = register_memory(fd, memory, PAGE, WRITE);
	release(fd, registration.handle);
	trace_end();
	for (size_t i = 0; i < 5; i++) {
		static const char *const events[] = { "register", "release", "map", "unmap",
						      "stale" };

		CHECK_EQ(trace_lines(events[i], line), 0);
	}
}

/* A fault of a queue is traced with its address. */
TEST(trace_fault, .smoke = true)
{
	const char *bdf = need_gpu();
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	char line[512], device[32];

	trace_begin();
	queue_push(&queue, GPU_FILL, 0x123456000, 64, 0);
	queue_ring(&queue);
	CHECK_EQ(queue_stopped(&queue), GPU_NOT_PRESENT);
	trace_end();
	CHECK_EQ(trace_lines("fault", line), 1);
	diag("pinmap_fault: %s", line);
	snprintf(device, sizeof(device), "device=%s ", bdf);
	CHECK(!strncmp(line, device, strlen(device)));
	CHECK_EQ(value(line, "handle"), queue.args.out_queue);
	CHECK_EQ(value(line, "code"), GPU_NOT_PRESENT);
	CHECK_EQ(value(line, "device_addr") & ~0xfffULL, queue_query(&queue).out_addr & ~0xfffULL);
	CHECK(strstr(line, "access=write"));
}

static void manage(int fd)
{
	struct pinmap_manage args = { .size = sizeof(args), .flags = PINMAP_MANAGE_ALL };

	if (!(get_info(fd).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel has no HMM_MIRROR");
	CHECK_OK(try_ioctl(fd, PINMAP_MANAGE, &args));
}

/* A fault that is served is traced when that begins and when it is done. */
TEST(trace_fault_served, .smoke = true)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	char line[512], *memory = anon(1);

	manage(fd);
	memory[0] = 1;
	trace_begin();
	queue_push(&queue, GPU_FILL, (uintptr_t)memory, 64, 0);
	queue_finish(&queue);
	trace_end();
	CHECK_EQ(trace_lines("fault", line), 0);
	CHECK_EQ(trace_lines("fault_begin", line), 1);
	CHECK_EQ(value(line, "device_addr"), (uintptr_t)memory);
	CHECK_EQ(value(line, "code"), GPU_NOT_PRESENT);
	CHECK_EQ(trace_lines("fault_served", line), 1);
	diag("pinmap_fault_served: %s", line);
	CHECK_EQ(value(line, "handle"), queue.args.out_queue);
	CHECK_EQ(value(line, "device_addr"), (uintptr_t)memory);
	CHECK(strstr(line, "access=write"));
	CHECK(value(line, "pages") >= 1);
	CHECK(value(line, "ns") > 0);
	CHECK_EQ(trace_lines("fault_failed", line), 0);
}

/* A fault that is not served is traced with the reason, and then as one that stopped the queue. */
TEST(trace_fault_failed)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	char line[512], *memory = anon(1);

	manage(fd);
	SYS(munmap(memory, PAGE));
	trace_begin();
	queue_push(&queue, GPU_FILL, (uintptr_t)memory, 64, 0);
	queue_ring(&queue);
	CHECK_EQ(queue_stopped(&queue), GPU_NOT_PRESENT);
	trace_end();
	CHECK_EQ(trace_lines("fault_begin", line), 1);
	CHECK_EQ(trace_lines("fault", line), 1);
	CHECK_EQ(trace_lines("fault_served", line), 0);
	CHECK_EQ(trace_lines("fault_failed", line), 1);
	diag("pinmap_fault_failed: %s", line);
	CHECK(strstr(line, "reason=hole"));
	CHECK_EQ(queue_query(&queue).out_reason, PINMAP_FAULT_HOLE);
}

/* Memory that moves is traced each time, with how much, where to, why and by which rule. */
TEST(trace_migrate)
{
	enum { AROUND = 16 };
	char *memory = address_space(HUGE, HUGE), line[512];
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_prefetch moved;

	SYS(mprotect(memory, HUGE, PROT_READ | PROT_WRITE));
	SYS(madvise(memory, HUGE, MADV_NOHUGEPAGE));
	memset(memory, 1, HUGE);
	manage(fd);
	trace_begin();
	queue_push(&queue, GPU_FILL, (uintptr_t)memory, 8, 2);
	queue_finish(&queue);
	trace_end();
	CHECK_EQ(trace_lines("migrate", line), 1);
	diag("pinmap_migrate: %s", line);
	CHECK_EQ(value(line, "addr"), (uintptr_t)memory);
	CHECK_EQ(value(line, "bytes"), AROUND * PAGE);
	CHECK(strstr(line, " to=device cause=touched rule=touched"));

	trace_begin();
	CHECK_EQ(memory[0], 2);
	trace_end();
	CHECK_EQ(trace_lines("migrate", line), 1);
	CHECK_EQ(value(line, "addr"), (uintptr_t)memory);
	CHECK_EQ(value(line, "bytes"), AROUND * PAGE);
	CHECK(strstr(line, " to=host cause=touched rule=home"));

	trace_begin();
	CHECK_OK(try_prefetch(fd, 0, memory, 4 * PAGE, &moved));
	trace_end();
	CHECK_EQ(trace_lines("migrate", line), 1);
	CHECK_EQ(value(line, "bytes"), 4 * PAGE);
	CHECK(strstr(line, " to=device cause=prefetched rule=prefetched"));

	trace_begin();
	CHECK_OK(try_prefetch(fd, PINMAP_PREFETCH_HOST, memory, 4 * PAGE, &moved));
	CHECK_OK(try_prefetch(fd, PINMAP_PREFETCH_HOST, memory, 4 * PAGE, &moved));
	trace_end();
	CHECK_EQ(trace_lines("migrate", line), 1);
	CHECK(strstr(line, " to=host cause=prefetched rule=prefetched"));
}
