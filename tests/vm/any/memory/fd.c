// SPDX-License-Identifier: MIT OR Apache-2.0
/* Parts of files, registered without mapping them. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void skip_without_dma(int fd)
{
	if (get_info(fd).out_kind != PINMAP_KIND_FLAT)
		SKIP("needs a device whose registers the test can drive");
}

static const struct file_kind {
	const char *name;
	enum memory_kind kind;
} kinds[] = { { "memfd", MEMFD }, { "hugetlb", HUGETLB }, { "tmpfs", TMPFS } };

/* The device and the file share the pages, though no process has mapped those. */
TEST_EACH(fd_both_ways, kinds)
{
	struct memory memory = memory_new(row->kind, 8 * PAGE);
	int fd = open_device(0), file = memory.fd;
	size_t first = 2 * PAGE, length = memory.length - 4 * PAGE, last = length - PAGE;
	struct pinmap_register_fd registration;
	struct pinmap_query query;
	char content[PAGE];
	struct edu edu;
	long long pins;

	skip_without_dma(fd);
	edu = edu_open(fd);
	file = SYS(dup(file));
	memory_free(&memory);
	pins = pins_held();
	registration = register_fd(fd, file, first, length, WRITE);
	CHECK(pins_held() > pins);
	CHECK_EQ(registration.device_addr % HUGE, first % HUGE);
	CHECK_EQ(registration.out_generation, 1);
	query = query_handle(fd, registration.out_handle);
	CHECK_EQ(query.out_kind, PINMAP_BUFFER_FILE);
	CHECK_EQ(query.out_base, 0);
	CHECK_EQ(query.out_offset, first);
	CHECK_EQ(query.out_length, length);
	CHECK_EQ(query.out_pinned, length);
	CHECK_EQ(query.out_device_addr, registration.device_addr);
	CHECK_EQ(query.out_state, PINMAP_STATE_LIVE);
	/* to the device, and back to another page of it */
	pattern_fill(content, PAGE, 7);
	if (row->kind != HUGETLB)
		CHECK_EQ(pwrite(file, content, PAGE, (off_t)(first + last)), PAGE);
	else
		edu_load(&edu, 7);
	if (row->kind != HUGETLB)
		edu_reads(&edu, registration.device_addr + last, PAGE);
	edu_writes(&edu, registration.device_addr, PAGE);
	CHECK_EQ(pread(file, content, PAGE, (off_t)first), PAGE);
	CHECK(pattern_is(content, PAGE, 7));
	/* the pages around it are as they were */
	CHECK_EQ(pread(file, content, PAGE, (off_t)(first - PAGE)), PAGE);
	CHECK(bytes_are(content, PAGE, 0x11));
	release(fd, registration.out_handle);
	CHECK_PINS(pins);
}

/* Pages that the file does not have yet are made, zeroed. */
TEST(fd_hole)
{
	int fd = open_device(0), file = new_memfd(16 * MIB, 0);
	long long pins = pins_held();
	struct pinmap_register_fd registration;
	char content[PAGE];

	registration = register_fd(fd, file, 4 * MIB, 3 * PAGE, WRITE);
	CHECK_PINS(pins + 3);
	CHECK_EQ(pread(file, content, PAGE, 4 * MIB), PAGE);
	CHECK(bytes_are(content, PAGE, 0));
	release(fd, registration.out_handle);
	CHECK_PINS(pins);
	/* a hole as large as a file can be costs nothing */
	SYS(ftruncate(file, (off_t)1 << 40));
	registration = register_fd(fd, file, (1ULL << 40) - 2 * PAGE, 2 * PAGE, WRITE | NO_MAP);
	CHECK_PINS(pins + 2);
	close(file);
	CHECK_PINS(pins + 2);
}

TEST(fd_arguments)
{
	int fd = open_device(0), file = new_memfd(4 * PAGE, 0), pipes[2];
	int null = SYS(open("/dev/null", O_RDWR | O_CLOEXEC)), reader;
	struct pinmap_register_fd args;
	long long pins = pins_held();
	char path[64];

	SYS(pipe(pipes));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	reader = SYS(open(path, O_RDONLY | O_CLOEXEC));
	static const struct {
		uint64_t offset, length;
		int error;
	} ranges[] = {
		{ 0, 0, EINVAL },
		{ 1, PAGE, EINVAL },
		{ 0, PAGE + 1, EINVAL },
		{ 1ULL << 63, PAGE, EINVAL },
		{ -(uint64_t)PAGE, 2 * PAGE, EOVERFLOW },
	};
	for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
		args = fd_args(file, ranges[i].offset, ranges[i].length, 0);
		CHECK_ERR(ranges[i].error, try_register_fd(fd, &args));
	}
	args = fd_args(file, 0, PAGE, IDENTITY);
	CHECK_ERR(EOPNOTSUPP, try_register_fd(fd, &args));
	for (int bad = -2; bad < 0; bad++) {
		args = fd_args(bad, 0, PAGE, 0);
		CHECK_ERR(EBADF, try_register_fd(fd, &args));
	}
	args = fd_args(9999, 0, PAGE, 0);
	CHECK_ERR(EBADF, try_register_fd(fd, &args));
	args = fd_args(null, 0, PAGE, 0);
	CHECK_ERR(EINVAL, try_register_fd(fd, &args));
	args = fd_args(pipes[0], 0, PAGE, 0);
	CHECK_ERR(EINVAL, try_register_fd(fd, &args));
	args = fd_args(fd, 0, PAGE, 0);
	CHECK_ERR(EINVAL, try_register_fd(fd, &args));
	args = fd_args(reader, 0, PAGE, WRITE);
	CHECK_ERR(EACCES, try_register_fd(fd, &args));
	register_fd(fd, reader, 0, PAGE, 0);
	/* a page behind the end of the file */
	args = fd_args(file, 2 * PAGE, 4 * PAGE, 0);
	check_fail(__FILE__, __LINE__, try_register_fd(fd, &args), EFAULT, &args.fail,
		   PINMAP_FAIL_FAULT, 4 * PAGE);
	args = fd_args(file, 4 * PAGE, PAGE, 0);
	check_fail(__FILE__, __LINE__, try_register_fd(fd, &args), EFAULT, &args.fail,
		   PINMAP_FAIL_FAULT, 4 * PAGE);
	CHECK_PINS(pins + 1);
}

/* Neither a seal against writing nor a device that writes gets past the other. */
TEST(fd_seals)
{
	static const int seals[] = { F_SEAL_WRITE, F_SEAL_FUTURE_WRITE };
	int fd = open_device(0), file;
	struct pinmap_register_fd args;

	for (size_t i = 0; i < ARRAY_SIZE(seals); i++) {
		file = new_memfd(4 * PAGE, MFD_ALLOW_SEALING);
		SYS(fcntl(file, F_ADD_SEALS, seals[i]));
		args = fd_args(file, 0, PAGE, WRITE);
		CHECK_ERR(EPERM, try_register_fd(fd, &args));
		args = register_fd(fd, file, 0, PAGE, 0);
		release(fd, args.out_handle);
		close(file);
	}
	file = new_memfd(4 * PAGE, MFD_ALLOW_SEALING);
	args = register_fd(fd, file, 0, PAGE, WRITE);
	CHECK_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE), -1);
	CHECK_EQ(errno, EBUSY);
	release(fd, args.out_handle);
	SYS(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE));
	/* many failures leave the file as open to sealing as it was */
	file = new_memfd(PAGE, MFD_ALLOW_SEALING);
	for (int i = 0; i < 10; i++) {
		args = fd_args(file, 0, 2 * PAGE, WRITE);
		CHECK_ERR(EFAULT, try_register_fd(fd, &args));
	}
	SYS(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE));
}

/* A file that can only be appended to is not written by a device either. */
TEST(fd_append_only)
{
	int fd = open_device(0), file = new_memfd(PAGE, 0), flags = FS_APPEND_FL;
	struct pinmap_register_fd args = fd_args(file, 0, PAGE, WRITE);

	if (ioctl(file, FS_IOC_SETFLAGS, &flags))
		SKIP("the kernel's files in memory cannot be append-only");
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED);
	CHECK_ERR(EPERM, try_register_fd(fd, &args));
	args = register_fd(fd, file, 0, PAGE, 0);
	release(fd, args.out_handle);
	flags = 0;
	SYS(ioctl(file, FS_IOC_SETFLAGS, &flags));
	args = register_fd(fd, file, 0, PAGE, WRITE);
	release(fd, args.out_handle);
}

/*
 * Pages that leave the file stay with the device: nothing tells the driver, and nothing else gets
 * them.
 */
TEST(fd_truncated)
{
	int fd = open_device(0), file = new_memfd(4 * PAGE, 0);
	struct pinmap_register_fd registration;
	long long pins = pins_held();
	char content[PAGE];
	struct edu edu;

	skip_without_dma(fd);
	edu = edu_open(fd);
	edu_load(&edu, 21);
	registration = register_fd(fd, file, 0, 4 * PAGE, WRITE);
	SYS(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE));
	SYS(ftruncate(file, 2 * PAGE));
	edu_writes(&edu, registration.device_addr, PAGE);
	edu_writes(&edu, registration.device_addr + PAGE, PAGE);
	CHECK_EQ(pread(file, content, PAGE, 0), PAGE);
	CHECK(bytes_are(content, PAGE, 0));
	CHECK_EQ(pread(file, content, PAGE, PAGE), PAGE);
	CHECK(pattern_is(content, PAGE, 21));
	CHECK_EQ(query_handle(fd, registration.out_handle).out_state, PINMAP_STATE_LIVE);
	CHECK_NO_EVENT(fd);
	CHECK_PINS(pins + 4);
	release(fd, registration.out_handle);
	CHECK_PINS(pins);
}

/* Pages can be registered any number of times, mapped or not, and are charged each time. */
TEST(fd_limit)
{
	struct pinmap_register_fd args;
	int fd, file = new_memfd(64 * PAGE, 0);
	uint64_t first;

	set_memlock(16 * PAGE);
	become_user(true);
	fd = open_device(0);
	args = fd_args(file, 0, 17 * PAGE, NO_MAP);
	check_fail(__FILE__, __LINE__, try_register_fd(fd, &args), ENOMEM, &args.fail,
		   PINMAP_FAIL_MEMLOCK, 0);
	CHECK_EQ(args.fail.needed, 17 * PAGE);
	CHECK_EQ(args.fail.allowed, 16 * PAGE);
	first = register_fd(fd, file, 0, 10 * PAGE, NO_MAP).out_handle;
	register_fd(fd, file, 4 * PAGE, 6 * PAGE, WRITE | NO_MAP);
	args = fd_args(file, 0, PAGE, NO_MAP);
	check_fail(__FILE__, __LINE__, try_register_fd(fd, &args), ENOMEM, &args.fail,
		   PINMAP_FAIL_MEMLOCK, 0);
	release(fd, first);
	CHECK_EQ(get_info(fd).out_memlock_used, 6 * PAGE);
}

/*
 * A registered part of a file outlives the memory of the process that registered it, and goes with
 * the context.
 */
TEST(fd_outlives_the_process)
{
	struct gate gone = gate_new();
	int file = new_memfd(8 * PAGE, 0), sockets[2], fd;
	long long pins = pins_held();
	struct pinmap_query query;
	uint64_t handle;
	pid_t pid;

	SYS(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets));
	pid = fork();
	if (pid == 0) {
		fd = open_device(0);
		handle = register_fd(fd, file, 0, 8 * PAGE, NO_MAP).out_handle;
		send_fd(sockets[1], fd);
		SYS(write(sockets[1], &handle, sizeof(handle)));
		gate_pass(&gone);
		_exit(0);
	}
	fd = receive_fd(sockets[0]);
	CHECK_EQ(read(sockets[0], &handle, sizeof(handle)), sizeof(handle));
	gate_open(&gone);
	join(pid);
	query = query_handle(fd, handle);
	CHECK_EQ(query.out_state, PINMAP_STATE_LIVE);
	CHECK_PINS(pins + 8);
	close(fd);
	CHECK_PINS(pins);
}

/* Only the process that opened the device, which is charged, registers files by it. */
TEST(fd_of_another_process)
{
	static const uint32_t flags[] = { 0, WRITE, NO_MAP, WRITE | NO_MAP };
	int fd = open_device(0), file = new_memfd(4 * PAGE, 0);
	long long pins = pins_held();
	pid_t pid = fork();

	if (pid == 0) {
		for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
			struct pinmap_register_fd args = fd_args(file, 0, PAGE, flags[i]);

			CHECK_ERR(EPERM, try_register_fd(fd, &args));
		}
		CHECK_PINS(pins);
		_exit(0);
	}
	join(pid);
	CHECK_PINS(pins);
	CHECK_EQ(get_info(fd).out_registrations, 0);
}

static const struct end {
	const char *name;
	int signal;
	uint32_t flags;
} ends[] = { { "killed", SIGKILL, 0 }, { "interrupted", SIGUSR1, PINMAP_REGISTER_INTERRUPTIBLE } };

static void told(int signal)
{
	(void)signal;
}

static blkcnt_t blocks_of(int file)
{
	struct stat status;

	SYS(fstat(file, &status));
	return status.st_blocks;
}

/* A signal ends the making of pages, and nothing stays pinned. */
TEST_EACH(fd, ends)
{
	size_t length = 256 * MIB;
	int file = new_memfd(length, 0);
	struct sigaction action = { .sa_handler = told };
	long long pins = pins_held();
	pid_t pid = fork();

	if (pid == 0) {
		struct pinmap_register_fd args = fd_args(file, 0, length, NO_MAP | row->flags);
		int fd = open_device(0);

		sigaction(SIGUSR1, &action, NULL);
		CHECK_ERR(EINTR, try_register_fd(fd, &args));
		CHECK_PINS(pins);
		_exit(0);
	}
	CHECK(WAIT_FOR(10000, blocks_of(file) > 0));
	SYS(kill(pid, row->signal));
	if (row->signal == SIGKILL)
		join_killed(pid, SIGKILL);
	else
		join(pid);
	CHECK_PINS_SOON(pins);
	diag("%lld MiB of %zu were made", (long long)blocks_of(file) * 512 / MIB, length / MIB);
	CHECK((size_t)blocks_of(file) * 512 < length);
}
