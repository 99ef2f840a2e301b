// SPDX-License-Identifier: MIT OR Apache-2.0
/* Calls that are refused, and by whom. */
#define _GNU_SOURCE
#include "p2p.h"

#include "alloc.h"
#include "file.h"
#include "inject.h"
#include "memory.h"
#include "pci.h"
#include "ring.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static const struct flags {
	const char *name;
	uint32_t flags;
	int error;
} flags[] = {
	{ "host", PINMAP_ALLOC_P2PDMA, EINVAL },
	{ "write_combined", PINMAP_ALLOC_P2PDMA | PINMAP_ALLOC_WRITE_COMBINED, EINVAL },
	{ "portable", P2PDMA | PINMAP_ALLOC_PORTABLE, EINVAL },
	{ "unknown", PINMAP_ALLOC_P2PDMA << 1, EOPNOTSUPP },
};

TEST_EACH(flags, flags)
{
	struct pinmap_alloc args;

	CHECK_ERR(row->error, try_alloc(open_gpu(), row->flags, PAGE, &args));
}

/* VRAM that is not made of whole 2 MiB has no pages. */
TEST(small_bar)
{
	struct pinmap_alloc args;
	int fd = open_gpu();

	if (gpu_register(GPU_VRAM_SIZE) >= HUGE)
		SKIP("needs a device with less VRAM than 2 MiB (--gpu '--vram 1M')");
	CHECK_ERR(EOPNOTSUPP, try_alloc(fd, P2PDMA, PAGE, &args));
	CHECK_OK(try_alloc(fd, PINMAP_ALLOC_VRAM, PAGE, &args));
}

/* Pages are made when a program asks for them, and not before, for as much as it needs. */
TEST(only_if_asked_for)
{
	int fd;

	need_gpu();
	gpu_rebind();
	fd = open_gpu();
	gpu_alloc(fd, PINMAP_ALLOC_VRAM, MIB);
	CHECK_EQ(file_number(pci_path(need_gpu(), "p2pmem/size"), 0), 0);
	gpu_alloc(fd, P2PDMA, PAGE);
	CHECK_EQ(file_number(pci_path(need_gpu(), "p2pmem/size"), 0), 128 * MIB);
}

/* Without a disk it is VRAM as any other: the CPU and the device see the same. */
TEST(is_vram, .smoke = true)
{
	int fd = open_gpu(), file = new_memfd(HUGE, 0);
	struct gpu_memory vram = gpu_alloc(fd, P2PDMA, HUGE);
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_query query = query_addr(fd, vram.addr);
	char *seen = anon(HUGE / PAGE);

	CHECK_EQ(query.out_kind, PINMAP_BUFFER_VRAM);
	/* Nobody but the driver gives it out. */
	CHECK(file_number(pci_path(need_gpu(), "p2pmem/size"), 0) > 0);
	CHECK_EQ(file_number(pci_path(need_gpu(), "p2pmem/available"), -1), 0);
	CHECK(bytes_are(vram.addr, HUGE, 0));
	gpu_fill(&queue, (uintptr_t)vram.addr, HUGE, 0x41);
	CHECK(bytes_are(vram.addr, HUGE, 0x41));
	memset(vram.addr + PAGE, 0x42, PAGE);
	/* Copies of the kernel's */
	CHECK_EQ(SYS(pwrite(file, vram.addr, HUGE, 0)), HUGE);
	CHECK_EQ(SYS(pread(file, seen, HUGE, 0)), HUGE);
	CHECK(bytes_are(seen, PAGE, 0x41));
	CHECK(bytes_are(seen + PAGE, PAGE, 0x42));
	CHECK(bytes_are(seen + 2 * PAGE, HUGE - 2 * PAGE, 0x41));
	/* Protection that comes and goes */
	SYS(mprotect(vram.addr, PAGE, PROT_READ));
	CHECK_EQ(touch_write(vram.addr), SIGSEGV);
	SYS(mprotect(vram.addr, PAGE, PROT_READ | PROT_WRITE));
	CHECK_EQ(touch_write(vram.addr), 0);
	CHECK_EQ(mremap(vram.addr, HUGE, 2 * HUGE, MREMAP_MAYMOVE), MAP_FAILED);
}

/* The kernel's own mapping has the same memory type. */
TEST(write_combined)
{
	struct gpu_memory vram = gpu_alloc(open_gpu(), P2PDMA, HUGE);
	char entry[256];

	CHECK_EQ(touch_write(vram.addr), 0);
	CHECK(user_entry(vram.addr, entry));
	CHECK(is_write_combined(entry));
	CHECK(kernel_entry(page_frame(vram.addr), entry));
	CHECK(is_write_combined(entry));
}

/* Whoever takes a reference of pages and does not ask for such ones gets none. */
TEST(pins)
{
	int fd = open_gpu(), ends[2], disk;
	struct gpu_memory vram = gpu_alloc(fd, P2PDMA, HUGE);
	struct iovec part = { vram.addr, HUGE }, own = { anon(1), PAGE };
	struct pinmap_manage managed;
	struct gpu_queue queue = queue_new(fd);
	char path[64];
	int ring;

	memset(vram.addr, 0x43, HUGE);
	CHECK_REGISTER_FAILS(fd, vram.addr, HUGE, WRITE, EFAULT, PINMAP_FAIL_DEVICE, vram.addr);
	CHECK_REGISTER_FAILS(fd, vram.addr, HUGE, 0, EFAULT, PINMAP_FAIL_DEVICE, vram.addr);

	SYS(pipe(ends));
	CHECK_EQ(vmsplice(ends[1], &(struct iovec){ vram.addr, PAGE }, 1, 0), -1);
	CHECK(errno == EFAULT || errno == EREMOTEIO);

	CHECK_EQ(process_vm_readv(getpid(), &own, 1, &part, 1, 0), -1);
	CHECK(errno == EFAULT || errno == EREMOTEIO);

	struct io_uring_params params = { 0 };
	ring = syscall(SYS_io_uring_setup, 1, &params);
	if (ring >= 0) {
		CHECK_EQ(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &part, 1),
			 -1);
		CHECK(errno == EFAULT || errno == EREMOTEIO || errno == EOPNOTSUPP);
		close(ring);
	}

	/* a disk that does not take such pages */
	snprintf(path, sizeof(path), "%s/p2p-%d", need_ext4(), getpid());
	disk = SYS(open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600));
	SYS(unlink(path));
	CHECK_EQ(pwrite(disk, vram.addr, HUGE, 0), -1);
	CHECK(errno == EFAULT || errno == EREMOTEIO);
	CHECK(bytes_are(vram.addr, HUGE, 0x43));

	/* a mirror of the program's memory */
	SYS(munmap(anon(1), PAGE));
	CHECK_OK(try_manage(fd, PINMAP_MANAGE_ALL, NULL, 0, &managed));
	CHECK_OK(try_release(fd, vram.args.out_handle));
	queue_push(&queue, GPU_FILL, (uintptr_t)vram.addr, PAGE, 0);
	queue_submit(&queue);
	CHECK_EQ(queue_stopped(&queue), GPU_NOT_PRESENT);
	CHECK(bytes_are(vram.addr, HUGE, 0x43));
}

/* Where the bus does not let the disk reach the device, the kernel refuses, and nothing changes. */
TEST(topology)
{
	struct gpu_memory vram;
	int file, fd;

	file = open_file();
	if (pci_peers())
		SKIP("the disk reaches the device");
	fd = open_gpu();
	vram = gpu_alloc(fd, P2PDMA, HUGE);
	memset(vram.addr, 0x44, HUGE);
	CHECK_EQ(SYS(pwrite(file, anon(16), 16 * PAGE, 0)), 16 * PAGE);
	CHECK_EQ(pread(file, vram.addr, 16 * PAGE, 0), -1);
	CHECK(errno == EINVAL || errno == EREMOTEIO);
	CHECK(bytes_are(vram.addr, HUGE, 0x44));
	CHECK_EQ(pwrite(file, vram.addr, PAGE, 0), -1);
	CHECK(errno == EINVAL || errno == EREMOTEIO);
}

struct some {
	int fd;
	uint64_t before;
	struct pinmap_alloc args;
};

static void begin_some(void *data)
{
	struct some *some = data;

	some->before = vram_free(some->fd);
}

static int alloc_some(void *data)
{
	struct some *some = data;

	return try_alloc(some->fd, P2PDMA, MIB, &some->args);
}

static void end_some(void *data, int result)
{
	struct some *some = data;

	if (!result)
		release(some->fd, some->args.out_handle);
	CHECK_EQ(vram_free(some->fd), some->before);
}

/*
 * Each allocation of the driver's that fails undoes the call. There are pages already: adding them
 * is the kernel's affair, and it warns where it fails.
 */
TEST(failnth, .seconds = 300)
{
	struct attempt attempt = { .begin = begin_some, .call = alloc_some, .end = end_some };
	struct some some = { .fd = open_gpu() };

	need_injection();
	CHECK_OK(alloc_some(&some));
	release(some.fd, some.args.out_handle);
	fail_each(&attempt, &some, 200);
}
