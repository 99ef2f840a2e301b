// SPDX-License-Identifier: MIT OR Apache-2.0
/* SYNC: the flush of memory for devices that do not snoop. */
#define _GNU_SOURCE
#include "dmabuf.h"

#include "alloc.h"
#include "edu.h"
#include "memory.h"


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
