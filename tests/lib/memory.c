// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "memory.h"

#include "file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXT4 "/run/pinmap-ext4"

static __thread sigjmp_buf touched;

char *address_space(size_t length, size_t align)
{
	char *all = SYS(mmap(NULL, length + align, PROT_NONE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
	char *start = (char *)(((uintptr_t)all + align - 1) & ~(align - 1));

	/* the rest stays reserved: another thread might get it before it is used */
	if (start > all)
		SYS(munmap(all, start - all));
	SYS(munmap(start + length, all + align - start));
	return start;
}

const char *need_ext4(void)
{
	struct stat root, mounted;

	if (access("/dev/vda", F_OK))
		SKIP("needs an ext4 file system on /dev/vda");
	mkdir("/run", 0755);
	mkdir(EXT4, 0755);
	SYS(stat("/run", &root));
	SYS(stat(EXT4, &mounted));
	/* the file system stays mounted for the tests after this one */
	if (root.st_dev == mounted.st_dev && mount("/dev/vda", EXT4, "ext4", 0, NULL))
		SKIP("cannot mount /dev/vda as ext4: %s", error_name(errno));
	return EXT4;
}

int direct_file(void)
{
	char path[96];
	int file;

	snprintf(path, sizeof(path), "%s/direct-%d", need_ext4(), getpid());
	file = SYS(open(path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600));
	SYS(unlink(path));
	return file;
}

void need_hugetlb(unsigned int pages)
{
	char count[16];

	if (access("/proc/sys/vm/nr_hugepages", F_OK))
		SKIP("the kernel has no hugetlb pages");
	snprintf(count, sizeof(count), "%u", pages + 2);
	if (file_field("/proc/meminfo", "HugePages_Free:") < pages)
		file_write("/proc/sys/vm/nr_hugepages", count);
	if (file_field("/proc/meminfo", "HugePages_Free:") < pages)
		SKIP("no %u free huge pages", pages);
}

static int new_file(const char *directory, size_t length)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "%s/testXXXXXX", directory);
	fd = SYS(mkostemp(path, O_CLOEXEC));
	unlink(path);
	SYS(ftruncate(fd, length));
	return fd;
}

static int file_of(enum memory_kind kind, size_t length)
{
	int fd;

	switch (kind) {
	case MEMFD:
	case MEMFD_PRIVATE:
		fd = SYS(memfd_create("test", MFD_CLOEXEC));
		SYS(ftruncate(fd, length));
		return fd;
	case HUGETLB:
		need_hugetlb(length / HUGE);
		fd = SYS(memfd_create("test", MFD_CLOEXEC | MFD_HUGETLB));
		SYS(ftruncate(fd, length));
		return fd;
	case TMPFS:
		return new_file("/dev/shm", length);
	case EXT4_SHARED:
	case EXT4_PRIVATE:
		return new_file(need_ext4(), length);
	case SECRET:
		fd = syscall(SYS_memfd_secret, 0);
		if (fd < 0)
			SKIP("the kernel has no memfd_secret: %s", error_name(errno));
		SYS(ftruncate(fd, length));
		return fd;
	default:
		return -1;
	}
}

struct memory memory_new(enum memory_kind kind, size_t length)
{
	bool private = kind == ANON || kind == THP || kind == MEMFD_PRIVATE || kind == EXT4_PRIVATE;
	struct memory memory = { .length = length, .fd = -1 };
	int flags = MAP_FIXED | (private ? MAP_PRIVATE : MAP_SHARED);

	if (kind == HUGETLB || kind == THP)
		memory.length = (length + HUGE - 1) & ~(HUGE - 1);
	memory.addr = address_space(memory.length, HUGE);
	memory.fd = file_of(kind, memory.length);
	if (memory.fd < 0)
		flags |= MAP_ANONYMOUS;
	SYS(mmap(memory.addr, memory.length, PROT_READ | PROT_WRITE, flags, memory.fd, 0));
	if (memory.fd < 0)
		SYS(madvise(memory.addr, memory.length,
			    kind == THP ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
	if (memory.fd >= 0 && kind != SECRET) {
		memory.alias = SYS(mmap(NULL, memory.length, PROT_READ | PROT_WRITE, MAP_SHARED,
					memory.fd, 0));
		memset(memory.alias, 0x11, memory.length);
	} else {
		memset(memory.addr, 0x11, memory.length);
	}
	if (kind == THP && !is_thp(memory.addr))
		SKIP("the kernel has no huge page for madvise(MADV_HUGEPAGE)");
	return memory;
}

void memory_free(struct memory *memory)
{
	munmap(memory->addr, memory->length);
	if (memory->alias)
		munmap(memory->alias, memory->length);
	if (memory->fd >= 0)
		close(memory->fd);
}

char *anon(size_t pages)
{
	return memory_new(ANON, pages * PAGE).addr;
}

char *tiled(size_t length, size_t align)
{
	struct memory tile = memory_new(MEMFD, 4 * MIB);
	char *memory = address_space(length, align);

	for (size_t at = 0; at < length; at += tile.length)
		SYS(mmap(memory + at, length - at < tile.length ? length - at : tile.length,
			 PROT_READ, MAP_SHARED | MAP_FIXED, tile.fd, 0));
	memory_free(&tile);
	return memory;
}

void page_frames(const void *addr, size_t pages, uint64_t *frames)
{
	int fd = SYS(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
	size_t size = pages * sizeof(*frames);

	CHECK_EQ(pread(fd, frames, size, (uintptr_t)addr / PAGE * sizeof(*frames)), size);
	close(fd);
	/* bit 63: present; 55 bits of frame number */
	for (size_t i = 0; i < pages; i++)
		frames[i] = frames[i] >> 63 ? frames[i] & ((1ULL << 55) - 1) : 0;
}

uint64_t page_frame(const void *addr)
{
	uint64_t frame;

	page_frames(addr, 1, &frame);
	return frame;
}

/* Asks smaps, since the frame's flags do not say how it is mapped. */
bool is_thp(const void *addr)
{
	FILE *file = fopen("/proc/self/smaps", "re");
	bool inside = false, huge = false;
	unsigned long start, end, size;
	char line[512];

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = (uintptr_t)addr >= start && (uintptr_t)addr < end;
		if (inside && sscanf(line, "AnonHugePages: %lu", &size) == 1)
			huge = size > 0;
	}
	if (file)
		fclose(file);
	return huge;
}

int keep_page(const void *page)
{
	struct iovec part = { .iov_base = (void *)page, .iov_len = PAGE };
	int ends[2];

	SYS(pipe2(ends, O_CLOEXEC));
	CHECK_EQ(vmsplice(ends[1], &part, 1, 0), PAGE);
	close(ends[1]);
	return ends[0];
}

void read_kept_page(int pipe, char content[PAGE])
{
	int ends[2];

	/* a copy of the reference, so that it can be read again */
	SYS(pipe2(ends, O_CLOEXEC));
	CHECK_EQ(tee(pipe, ends[1], PAGE, 0), PAGE);
	CHECK_EQ(read(ends[0], content, PAGE), PAGE);
	close(ends[0]);
	close(ends[1]);
}

static void caught(int signal)
{
	siglongjmp(touched, signal);
}

static int touch(volatile char *addr, bool write)
{
	struct sigaction action = { .sa_handler = caught, .sa_flags = SA_NODEFER }, segv, bus;
	int signal;

	sigaction(SIGSEGV, &action, &segv);
	sigaction(SIGBUS, &action, &bus);
	signal = sigsetjmp(touched, 1);
	if (!signal) {
		/* 32 bits: some devices want no fewer */
		uint32_t value = *(volatile uint32_t *)addr;

		if (write)
			*(volatile uint32_t *)addr = value;
	}
	sigaction(SIGSEGV, &segv, NULL);
	sigaction(SIGBUS, &bus, NULL);
	return signal;
}

int touch_read(const volatile void *addr)
{
	return touch((volatile char *)addr, false);
}

int touch_write(volatile void *addr)
{
	return touch(addr, true);
}

int new_memfd(size_t length, unsigned int flags)
{
	int file = SYS(memfd_create("test", MFD_CLOEXEC | flags));

	SYS(ftruncate(file, (off_t)length));
	return file;
}

struct pinmap_register_fd fd_args(int file, uint64_t offset, uint64_t length, uint32_t flags)
{
	struct pinmap_register_fd args;

	memset(&args, 0xaa, sizeof(args));
	args.size = sizeof(args);
	args.flags = flags;
	args.fd = file;
	args.address_bits = 0;
	args.offset = offset;
	args.length = length;
	args.device_addr = 0;
	return args;
}

int try_register_fd(int fd, struct pinmap_register_fd *args)
{
	return try_ioctl(fd, PINMAP_REGISTER_FD, args);
}
