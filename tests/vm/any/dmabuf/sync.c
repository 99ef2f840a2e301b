// SPDX-License-Identifier: MIT OR Apache-2.0
/* SYNC: the flush of memory for devices that do not snoop. */
#define _GNU_SOURCE
#include "dmabuf.h"

#include "alloc.h"
#include "edu.h"
#include "file.h"
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRACING "/sys/kernel/tracing"

TEST(sync_values)
{
	enum {
		DEVICE = PINMAP_SYNC_FOR_DEVICE,
		CPU = PINMAP_SYNC_FOR_CPU,
		ALWAYS = PINMAP_SYNC_NO_SNOOP
	};
	int fd = open_device(0);
	struct registration memory = alloc_memory(fd, 0, 4 * PAGE);
	struct registration registered = register_memory(fd, anon(4), 4 * PAGE, 0);

	CHECK_ERR(EOPNOTSUPP, try_sync(fd, memory.handle, 8, 0, 1));
	CHECK_ERR(EOVERFLOW, try_sync(fd, memory.handle, CPU, ~0ULL, 2));
	CHECK_ERR(EINVAL, try_sync(fd, memory.handle, CPU, 0, 0));
	CHECK_ERR(EINVAL, try_sync(fd, memory.handle, 0, 0, 1));
	CHECK_ERR(EINVAL, try_sync(fd, memory.handle, ALWAYS, 0, 1));
	CHECK_ERR(EINVAL, try_sync(fd, memory.handle, CPU, 0, 4 * PAGE + 1));
	CHECK_ERR(EINVAL, try_sync(fd, memory.handle, CPU, 4 * PAGE, 1));
	CHECK_ERR(ENOENT, try_sync(fd, memory.handle + 9, CPU, 0, 1));
	CHECK_OK(try_sync(fd, memory.handle, CPU, 0, 4 * PAGE));
	CHECK_OK(try_sync(fd, memory.handle, DEVICE | CPU, 1, 1));
	CHECK_OK(try_sync(fd, memory.handle, DEVICE | CPU | ALWAYS, 4 * PAGE - 1, 1));
	CHECK_OK(try_sync(fd, registered.handle, CPU | ALWAYS, 5, 3 * PAGE));
	release(fd, registered.handle);
	CHECK_ERR(ESTALE, try_sync(fd, registered.handle, CPU, 0, 1));
}

static uint64_t sync_ns(int fd, uint64_t handle, uint32_t flags, size_t length)
{
	uint64_t before = now_ns();

	CHECK_OK(try_sync(fd, handle, flags, 0, length));
	return now_ns() - before;
}

/*
 * SYNC flushes when it has to, and costs nothing when it has not: here the devices snoop. The
 * content stays.
 */
TEST(sync_cost)
{
	const size_t length = 16 * MIB;
	int fd = open_device(0);
	struct registration memory = alloc_memory(fd, 0, length);
	uint64_t none = ~0ULL, small = ~0ULL, large = ~0ULL;

	if (!(get_info(fd).out_flags & PINMAP_INFO_COHERENT))
		SKIP("the device does not snoop");
	pattern_fill(memory.addr, length, 60);
	for (int i = 0; i < 9; i++) {
		uint64_t now = sync_ns(fd, memory.handle, PINMAP_SYNC_FOR_DEVICE, length);

		none = now < none ? now : none;
		now = sync_ns(fd, memory.handle, PINMAP_SYNC_FOR_DEVICE | PINMAP_SYNC_NO_SNOOP,
			      length / 64);
		small = now < small ? now : small;
		now = sync_ns(fd, memory.handle, PINMAP_SYNC_FOR_DEVICE | PINMAP_SYNC_NO_SNOOP,
			      length);
		large = now < large ? now : large;
	}
	diag("16 MiB: nothing to do %llu ns, flushed %llu ns; 256 KiB flushed %llu ns",
	     (unsigned long long)none, (unsigned long long)large, (unsigned long long)small);
	CHECK(large > 10 * none && large > 8 * small);
	CHECK(pattern_is(memory.addr, length, 60));
}

enum { PAGES = 4, ALWAYS = PINMAP_SYNC_FOR_DEVICE | PINMAP_SYNC_NO_SNOOP };

/* Bytes that the driver flushes at once, by their address in the kernel. */
struct flush {
	uint64_t at;
	size_t bytes;
};

/* Returns how many flushes a call makes. */
static size_t flushes(int fd, const struct registration *memory, uint32_t flags, size_t offset,
		      size_t length, struct flush found[PAGES])
{
	char line[512];
	size_t count = 0;
	FILE *trace;

	file_write(TRACING "/trace", "");
	CHECK_OK(try_sync(fd, memory->handle, flags, offset, length));
	trace = fopen(TRACING "/trace", "re");
	CHECK(trace);
	while (fgets(line, sizeof(line), trace)) {
		const char *at = strstr(line, " at="), *bytes = strstr(line, " bytes=");

		if (line[0] == '#' || !at || !bytes)
			continue;
		CHECK(count < PAGES);
		found[count++] = (struct flush){
			.at = strtoull(at + strlen(" at="), NULL, 0),
			.bytes = strtoull(bytes + strlen(" bytes="), NULL, 0),
		};
	}
	fclose(trace);
	return count;
}

/* Checks that each of the bytes is flushed once, in their order, and no other. */
static void check_flushed(int fd, const struct registration *memory, size_t offset, size_t length)
{
	struct flush found[PAGES];
	uint64_t frames[PAGES], zero;
	size_t count;

	memset(memory->addr, 1, PAGES * PAGE);
	page_frames(memory->addr, PAGES, frames);
	CHECK_EQ(flushes(fd, memory, ALWAYS, 0, 1, found), 1);
	/* where the kernel has frame 0 */
	zero = found[0].at - frames[0] * PAGE;
	count = flushes(fd, memory, ALWAYS, offset, length, found);
	for (size_t i = 0; i < count; i++) {
		size_t page = offset / PAGE, next = page;

		CHECK_EQ(found[i].at, zero + frames[page] * PAGE + offset % PAGE);
		CHECK(found[i].bytes && found[i].bytes <= length);
		offset += found[i].bytes;
		length -= found[i].bytes;
		while (++next <= (offset - 1) / PAGE)
			CHECK_EQ(frames[next] - frames[page], next - page);
	}
	CHECK_EQ(length, 0);
}

/* SYNC flushes the bytes that it is asked for, wherever their pages are, and nothing else. */
TEST(sync_flushes_what_is_asked)
{
	int fd = open_device(0);
	struct registration memory[] = {
		alloc_memory(fd, 0, PAGES * PAGE),
		register_memory(fd, anon(PAGES), PAGES * PAGE, 0),
	};
	struct flush found[PAGES];

	if (access(TRACING "/kprobe_events", W_OK))
		SKIP("the kernel has no probes");
	/* left by a test that failed */
	try_file_write(TRACING "/events/pinmap_test/enable", "0");
	file_write(TRACING "/kprobe_events",
		   "p:pinmap_test/flush pinmap:pinmap_flush at=$arg1:x64 bytes=$arg2:u32\n");
	file_write(TRACING "/events/pinmap_test/enable", "1");
	for (int i = 0; i < 2; i++) {
		check_flushed(fd, &memory[i], 0, PAGES * PAGE);
		check_flushed(fd, &memory[i], PAGE - 1, 2);
		check_flushed(fd, &memory[i], 5, 3 * PAGE);
		check_flushed(fd, &memory[i], PAGES * PAGE - 3, 3);
		if (get_info(fd).out_flags & PINMAP_INFO_COHERENT)
			CHECK_EQ(flushes(fd, &memory[i], PINMAP_SYNC_FOR_DEVICE, 0, PAGE, found),
				 0);
	}
	file_write(TRACING "/events/pinmap_test/enable", "0");
	file_write(TRACING "/kprobe_events", "\n");
}
