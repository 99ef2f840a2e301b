// SPDX-License-Identifier: MIT OR Apache-2.0
/* Parts of files that are shared as dma-bufs. */
#define _GNU_SOURCE
#include "alloc.h"
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <linux/dma-buf.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EXPORT_WRITE = PINMAP_EXPORT_WRITE, READ_WRITE = PROT_READ | PROT_WRITE };

static long long pinned_kib(void)
{
	return file_field("/proc/self/status", "VmPin:");
}

static int try_view(int dma_buf, size_t length, int protection, char **view)
{
	*view = mmap(NULL, length, protection, MAP_SHARED, dma_buf, 0);
	return *view == MAP_FAILED ? -errno : 0;
}

static char *view_of(int dma_buf, size_t length)
{
	char *view;

	CHECK_OK(try_view(dma_buf, length, READ_WRITE, &view));
	return view;
}

static const struct file_kind {
	const char *name;
	enum memory_kind kind;
} kinds[] = { { "memfd", MEMFD }, { "hugetlb", HUGETLB }, { "tmpfs", TMPFS } };

/*
 * A dma-buf shows every page of the file at its place, and keeps them without handle, file and
 * context.
 */
TEST_EACH(file_view, kinds)
{
	struct memory memory = memory_new(row->kind, HUGE + 8 * PAGE);
	size_t first = 2 * PAGE, length = memory.length - 4 * PAGE;
	int fd = open_device(0), dma_buf;
	struct pinmap_register_fd part;
	struct dma_buf_sync sync;
	struct edu edu;
	char *view;

	part = register_fd(fd, memory.fd, first, length, WRITE);
	dma_buf = export_buffer(fd, part.out_handle, EXPORT_WRITE);
	CHECK_EQ(SYS(lseek(dma_buf, 0, SEEK_END)), (long long)length);
	view = view_of(dma_buf, length);
	for (size_t at = 0; at < length; at += PAGE) {
		view[at + 7] = at / PAGE % 251;
		CHECK_EQ((unsigned char)memory.addr[first + at + 7], at / PAGE % 251);
		memory.addr[first + at + 9] = ~(at / PAGE % 251);
		CHECK_EQ((unsigned char)view[at + 9], (unsigned char)~(at / PAGE % 251));
	}
	CHECK_EQ(memory.addr[first - 1], 0x11);
	CHECK_EQ(memory.addr[first + length], 0x11);
	sync.flags = DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW;
	SYS(ioctl(dma_buf, DMA_BUF_IOCTL_SYNC, &sync));
	sync.flags = DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW;
	SYS(ioctl(dma_buf, DMA_BUF_IOCTL_SYNC, &sync));
	if (get_info(fd).out_kind == PINMAP_KIND_FLAT) {
		edu = edu_open(fd);
		CHECK_REACHES(&edu, part.device_addr + length - PAGE, view + length - PAGE, PAGE);
		edu_close(&edu);
	}
	view[0] = 5;
	release(fd, part.out_handle);
	close(fd);
	CHECK_EQ(pinned_kib(), (long long)length / 1024);
	close(dma_buf);
	/* the view alone keeps the pages */
	CHECK_EQ(pinned_kib(), (long long)length / 1024);
	CHECK_EQ(view[0], 5);
	CHECK_EQ(memory.addr[first], 5);
	SYS(munmap(view, length));
	CHECK_PINS_SOON(0);
	CHECK_EQ(pinned_kib(), 0);
}

/* The ways in which a dma-buf of a file can be mapped, and those in which it cannot. */
TEST(file_view_values)
{
	int fd = open_device(0), file = new_memfd(4 * PAGE, 0), dma_buf;
	struct pinmap_register_fd part = register_fd(fd, file, 0, 4 * PAGE, WRITE | NO_MAP);
	char *view;
	pid_t pid;

	dma_buf = export_buffer(fd, part.out_handle, EXPORT_WRITE);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, dma_buf, 4 * PAGE) == MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
	CHECK(mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, dma_buf, 3 * PAGE) == MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, dma_buf, 0) == MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, dma_buf, 0) == MAP_FAILED);
	CHECK_EQ(errno, EPERM);
	/* a part of the dma-buf, from the middle on */
	view = SYS(mmap(NULL, 2 * PAGE, READ_WRITE, MAP_SHARED, dma_buf, PAGE));
	view[PAGE] = 9;
	CHECK_EQ(pread(file, &view[0], 1, 2 * PAGE), 1);
	CHECK_EQ(view[0], 9);
	/* a mapping is neither moved, grown nor inherited; it may be split */
	CHECK(mremap(view, 2 * PAGE, 3 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	CHECK(mremap(view, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, view + 64 * PAGE) ==
	      MAP_FAILED);
	pid = fork();
	if (pid == 0) {
		CHECK_EQ(touch_read(view), SIGSEGV);
		_exit(0);
	}
	join(pid);
	SYS(munmap(view, PAGE));
	CHECK_EQ(view[PAGE], 9);
	/* the file does not know of the mapping, so nobody can pin the pages by way of it */
	CHECK_REGISTER_FAILS(fd, view + PAGE, PAGE, WRITE, EFAULT, PINMAP_FAIL_DEVICE, view + PAGE);
}

/*
 * Memory that was registered or exported for reading is mapped for reading only: there is no way
 * round.
 */
TEST(file_view_read_only)
{
	int fd = open_device(0), file = new_memfd(PAGE, 0), dma_buf;
	static const uint32_t flags[] = { 0, WRITE };
	char *view;

	for (int i = 0; i < 2; i++) {
		struct pinmap_register_fd part = register_fd(fd, file, 0, PAGE, flags[i] | NO_MAP);

		if (!flags[i])
			CHECK_ERR(EACCES, try_export(fd, part.out_handle, EXPORT_WRITE));
		dma_buf = export_buffer(fd, part.out_handle, 0);
		CHECK_ERR(EACCES, try_view(dma_buf, PAGE, READ_WRITE, &view));
		CHECK_OK(try_view(dma_buf, PAGE, PROT_READ, &view));
		CHECK_EQ(pwrite(file, "x", 1, 0), 1);
		CHECK_EQ(view[0], 'x');
		CHECK_EQ(mprotect(view, PAGE, READ_WRITE), -1);
		CHECK_EQ(errno, EACCES);
		CHECK_EQ(touch_write(view), SIGSEGV);
		SYS(munmap(view, PAGE));
		close(dma_buf);
		release(fd, part.out_handle);
	}
}

/* The file's seals hold for the dma-buf, and the dma-buf holds off a seal that it would break. */
TEST(file_view_seals)
{
	int fd = open_device(0), file = new_memfd(PAGE, MFD_ALLOW_SEALING), dma_buf;
	struct pinmap_register_fd part = register_fd(fd, file, 0, PAGE, WRITE | NO_MAP);
	char *before, *view;

	dma_buf = export_buffer(fd, part.out_handle, EXPORT_WRITE);
	before = view_of(dma_buf, PAGE);
	release(fd, part.out_handle);
	CHECK_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE), -1);
	CHECK_EQ(errno, EBUSY);
	SYS(fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
	CHECK_ERR(EPERM, try_view(dma_buf, PAGE, READ_WRITE, &view));
	CHECK_OK(try_view(dma_buf, PAGE, PROT_READ, &view));
	CHECK_EQ(mprotect(view, PAGE, READ_WRITE), -1);
	CHECK_EQ(errno, EACCES);
	/* a mapping from before the seal stays, as with a mapping of the file */
	before[3] = 4;
	CHECK_EQ(view[3], 4);
	SYS(munmap(view, PAGE));
	SYS(munmap(before, PAGE));
	close(dma_buf);
	CHECK(WAIT_FOR(2000, !fcntl(file, F_ADD_SEALS, F_SEAL_WRITE)));
}

/* Pages that leave the file stay in the dma-buf, as they stay with the device. */
TEST(file_view_truncated)
{
	int fd = open_device(0), file = new_memfd(4 * PAGE, 0), dma_buf;
	struct pinmap_register_fd part = register_fd(fd, file, 0, 4 * PAGE, WRITE | NO_MAP);
	char *view, content[PAGE];

	dma_buf = export_buffer(fd, part.out_handle, EXPORT_WRITE);
	view = view_of(dma_buf, 4 * PAGE);
	for (int i = 0; i < 4; i++)
		pattern_fill(view + i * PAGE, PAGE, 70 + i);
	SYS(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE));
	SYS(ftruncate(file, 2 * PAGE));
	CHECK_EQ(pread(file, content, PAGE, 0), PAGE);
	CHECK(bytes_are(content, PAGE, 0));
	CHECK_EQ(pread(file, content, PAGE, PAGE), PAGE);
	CHECK(pattern_is(content, PAGE, 71));
	for (int i = 0; i < 4; i++)
		CHECK(pattern_is(view + i * PAGE, PAGE, 70 + i));
	/* a new mapping shows the same */
	SYS(munmap(view, 4 * PAGE));
	view = view_of(dma_buf, 4 * PAGE);
	for (int i = 0; i < 4; i++)
		CHECK(pattern_is(view + i * PAGE, PAGE, 70 + i));
	CHECK_EQ(query_handle(fd, part.out_handle).out_state, PINMAP_STATE_LIVE);
}

/*
 * Another process imports a part of a file for another device, and keeps it when the exporter, its
 * file and all are gone.
 */
TEST(file_other_process)
{
	struct gate go = gate_new();
	struct pinmap_import import;
	int fd, ends[2], dma_buf;
	struct edu edu;
	uint64_t addr;
	char *view;
	pid_t pid;

	need_device(1);
	SYS(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	pid = fork();
	if (pid == 0) {
		int file = new_memfd(4 * PAGE, 0);
		struct pinmap_register_fd part;

		fd = open_device(0);
		part = register_fd(fd, file, PAGE, 3 * PAGE, WRITE);
		send_fd(ends[0], export_buffer(fd, part.out_handle, EXPORT_WRITE));
		gate_pass(&go);
		_exit(0);
	}
	dma_buf = receive_fd(ends[1]);
	fd = open_device(1);
	import = import_buffer(fd, dma_buf);
	CHECK_EQ(import.out_length, 3 * PAGE);
	CHECK_EQ(query_handle(fd, import.out_handle).out_kind, PINMAP_BUFFER_IMPORT);
	addr = map(fd, import.out_handle, PINMAP_MAP_WRITE, 0);
	gate_open(&go);
	join(pid);
	view = view_of(dma_buf, 3 * PAGE);
	edu = edu_open(fd);
	for (int i = 0; i < 3; i++)
		CHECK_REACHES(&edu, addr + i * PAGE, view + i * PAGE, PAGE);
	CHECK_NO_EVENT(fd);
	/* an import can be exported again, and that be mapped */
	close(dma_buf);
	dma_buf = export_buffer(fd, import.out_handle, EXPORT_WRITE);
	view[2] = 77;
	SYS(munmap(view, 3 * PAGE));
	release(fd, import.out_handle);
	view = view_of(dma_buf, 3 * PAGE);
	CHECK_EQ(view[2], 77);
	close(dma_buf);
	edu_close(&edu);
	CHECK_PINS(3);
	SYS(munmap(view, 3 * PAGE));
	CHECK_PINS_SOON(0);
}
