// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory that the driver allocated is ordinary memory to others that pin it. */
#define _GNU_SOURCE
#include "alloc.h"
#include "edu.h"
#include "memory.h"
#include "ring.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/iommufd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LENGTH = 2 * 1024 * 1024 + 64 * 1024 };

static const struct kind {
	const char *name;
	uint32_t flags;
} kinds[] = {
	{ "plain", 0 },
	{ "write_combined", PINMAP_ALLOC_WRITE_COMBINED },
};

/*
 * Data goes from the device to memory, from there to the disk, and back, without a copy by the CPU.
 */
TEST_EACH(o_direct, kinds)
{
	int fd = open_device(0), file = direct_file();
	struct registration memory = alloc_memory(fd, row->flags, LENGTH);
	struct edu edu = edu_open(fd);

	pattern_fill(memory.addr, LENGTH, 5);
	edu_load(&edu, 6);
	edu_writes(&edu, memory.device_addr + PAGE, PAGE);
	CHECK_EQ(pwrite(file, memory.addr, LENGTH, 0), LENGTH);
	memset(memory.addr, 0, LENGTH);
	CHECK_EQ(pread(file, memory.addr, LENGTH, 0), LENGTH);
	CHECK(pattern_is(memory.addr, PAGE, 5));
	CHECK(pattern_is(memory.addr + PAGE, PAGE, 6));
	edu_close(&edu);
}

TEST_EACH(io_uring, kinds)
{
	int fd = open_device(0), file = direct_file();
	struct registration memory = alloc_memory(fd, row->flags, LENGTH);
	struct ring ring = ring_new(memory.addr, LENGTH);

	pattern_fill(memory.addr, LENGTH, 8);
	ring_write(&ring, file, memory.addr, LENGTH);
	memset(memory.addr, 0, LENGTH);
	ring_read(&ring, file, memory.addr, LENGTH);
	CHECK(pattern_is(memory.addr, LENGTH, 8));
	/* the ring keeps the pages longer than this process */
	SYS(munmap(memory.addr, LENGTH));
	release(fd, memory.handle);
	ring_read(&ring, file, memory.addr, LENGTH);
	ring_close(&ring);
}

TEST_EACH(iommufd, kinds)
{
	int fd = open_device(0), iommufd = open("/dev/iommu", O_RDWR | O_CLOEXEC);
	struct registration memory = alloc_memory(fd, row->flags, LENGTH);
	struct iommu_ioas_alloc ioas = { .size = sizeof(ioas) };
	struct iommu_ioas_map args = {
		.size = sizeof(args),
		.flags = IOMMU_IOAS_MAP_READABLE | IOMMU_IOAS_MAP_WRITEABLE,
		.user_va = (uintptr_t)memory.addr,
		.length = LENGTH,
	};

	if (iommufd < 0)
		SKIP("the kernel has no iommufd");
	SYS(ioctl(iommufd, IOMMU_IOAS_ALLOC, &ioas));
	args.ioas_id = ioas.out_ioas_id;
	SYS(ioctl(iommufd, IOMMU_IOAS_MAP, &args));
	close(iommufd);
}

/* Other system calls that pin or read the memory of a process work. */
TEST(other_pinners)
{
	int fd = open_device(0), ends[2];
	struct registration memory = alloc_memory(fd, 0, LENGTH);
	char buffer[64] = { 0 };
	struct iovec part = { .iov_base = memory.addr, .iov_len = 64 },
		     local = { .iov_base = buffer, .iov_len = 64 };

	pattern_fill(memory.addr, PAGE, 2);
	CHECK_EQ(process_vm_readv(getpid(), &local, 1, &part, 1, 0), 64);
	CHECK(!memcmp(buffer, memory.addr, 64));
	SYS(pipe(ends));
	CHECK_EQ(vmsplice(ends[1], &part, 1, 0), 64);
	CHECK_EQ(read(ends[0], buffer, 64), 64);
	CHECK(!memcmp(buffer, memory.addr, 64));
}

/*
 * A futex in allocated memory is private to the process: for a shared one the kernel wants a page
 * with an owner.
 */
TEST_EACH(futex, kinds)
{
	int fd = open_device(0);
	struct registration memory = alloc_memory(fd, row->flags, LENGTH);
	uint32_t *word = (uint32_t *)(memory.addr + PAGE);
	struct timespec soon = { .tv_nsec = 1000000 };

	*word = 5;
	CHECK_EQ(syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 4, NULL, NULL, 0), -1);
	CHECK_EQ(errno, EAGAIN);
	CHECK_EQ(syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 5, &soon, NULL, 0), -1);
	CHECK_EQ(errno, ETIMEDOUT);
	CHECK_EQ(syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0), 0);
	CHECK_EQ(syscall(SYS_futex, word, FUTEX_WAIT, 5, &soon, NULL, 0), -1);
	CHECK_EQ(errno, EFAULT);
	CHECK_EQ(syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0), -1);
	CHECK_EQ(errno, EFAULT);
}
