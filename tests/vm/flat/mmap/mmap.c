// SPDX-License-Identifier: MIT OR Apache-2.0
/* Mapping device memory. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

static uint64_t bar_offset(int fd)
{
	return get_info(fd).out_bars[0].offset;
}

static int try_mmap(int fd, uint64_t offset, size_t length, int prot, int flags)
{
	void *memory = mmap(NULL, length, prot, flags, fd, offset);

	if (memory == MAP_FAILED)
		return -errno;
	munmap(memory, length);
	return 0;
}

static volatile uint32_t *map_bar(int fd, size_t length)
{
	return SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, bar_offset(fd)));
}

TEST(registers, .smoke = true)
{
	struct edu edu = edu_open(open_device(0));

	CHECK_EQ(edu_register(&edu, EDU_IDENTITY), 0x010000ed);
	edu_set_register(&edu, EDU_LIVENESS, 0x12345678);
	CHECK_EQ(edu_register(&edu, EDU_LIVENESS), (uint32_t)~0x12345678);
	edu_set_register(&edu, EDU_FACTORIAL, 10);
	CHECK(WAIT_FOR(2000, !(edu_register(&edu, EDU_STATUS) & 1)));
	CHECK_EQ(edu_register(&edu, EDU_FACTORIAL), 3628800);
}

/* Two mappings, also by two processes with the same file, show the same registers. */
TEST(shared_view)
{
	int fd = open_device(0);
	volatile uint32_t *first = map_bar(fd, PAGE), *second = map_bar(fd, MIB);
	pid_t pid;

	first[1] = 1;
	CHECK_EQ(second[1], ~1U);
	pid = fork();
	if (pid == 0) {
		volatile uint32_t *third = map_bar(fd, PAGE);

		third[1] = 2;
		_exit(0);
	}
	join(pid);
	CHECK_EQ(first[1], ~2U);
}

/* Parts of the BAR can be mapped: the last page, some in the middle. */
TEST(parts)
{
	int fd = open_device(0);
	uint64_t offset = bar_offset(fd);
	volatile uint32_t *whole = map_bar(fd, MIB), *part;

	part = SYS(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, offset + MIB - PAGE));
	CHECK_EQ(touch_read(part), 0);
	CHECK_EQ(*part, whole[(MIB - PAGE) / 4]);
	/* only the first page has an identity */
	CHECK(*part != 0x010000ed);
	part = SYS(
		mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset + 32 * PAGE));
	CHECK_EQ(touch_read(part + 15 * PAGE / 4), 0);
	CHECK(*part != 0x010000ed);
}

TEST(private_mapping)
{
	int fd = open_device(0);

	CHECK_ERR(EINVAL, try_mmap(fd, bar_offset(fd), PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE));
	CHECK_ERR(EINVAL, try_mmap(fd, bar_offset(fd), PAGE, PROT_READ, MAP_PRIVATE));
	/* a failed call does not make an owner */
	CHECK_EQ(get_info(fd).out_flags & PINMAP_INFO_OWNED, 0);
}

TEST(executable)
{
	int fd = open_device(0);
	volatile uint32_t *bar;

	CHECK_ERR(EACCES, try_mmap(fd, bar_offset(fd), PAGE, PROT_READ | PROT_EXEC, MAP_SHARED));
	CHECK_ERR(EACCES, try_mmap(fd, bar_offset(fd), PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
				   MAP_SHARED));
	bar = map_bar(fd, PAGE);
	CHECK_EQ(mprotect((void *)bar, PAGE, PROT_READ | PROT_EXEC), -1);
	CHECK_EQ(errno, EACCES);
	CHECK_EQ(bar[0], 0x010000ed);
}

TEST(protection)
{
	int fd = open_device(0);
	volatile uint32_t *bar = SYS(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, bar_offset(fd)));

	CHECK_EQ(touch_read(bar), 0);
	CHECK_EQ(touch_write(bar + 1), SIGSEGV);
	SYS(mprotect((void *)bar, PAGE, PROT_NONE));
	CHECK_EQ(touch_read(bar), SIGSEGV);
	SYS(mprotect((void *)bar, PAGE, PROT_READ | PROT_WRITE));
	bar[1] = 7;
	CHECK_EQ(bar[1], ~7U);
}

/* Offsets that were not handed out and lengths that leave the BAR are refused. */
TEST(outside)
{
	int fd = open_device(0);
	struct pinmap_info info = get_info(fd);
	uint64_t offset = info.out_bars[0].offset;
	const int flags = MAP_SHARED, prot = PROT_READ | PROT_WRITE;

	CHECK_ERR(EINVAL, try_mmap(fd, offset + MIB, PAGE, prot, flags));
	CHECK_ERR(EINVAL, try_mmap(fd, offset + MIB - PAGE, 2 * PAGE, prot, flags));
	CHECK_ERR(EINVAL, try_mmap(fd, offset, MIB + 1, prot, flags));
	CHECK_ERR(EINVAL, try_mmap(fd, offset, 16 * MIB, prot, flags));
	CHECK_ERR(EINVAL, try_mmap(fd, offset + 2 * MIB, PAGE, prot, flags));
	if (offset)
		CHECK_ERR(EINVAL, try_mmap(fd, offset - PAGE, PAGE, prot, flags));
	for (int bit = 21; bit < 63; bit++) {
		bool handed_out = false;

		for (int i = 0; i < PINMAP_NR_BARS; i++)
			handed_out |= info.out_bars[i].length &&
				      info.out_bars[i].offset == offset + (1ULL << bit);
		if (!handed_out)
			CHECK_ERR(EINVAL, try_mmap(fd, offset + (1ULL << bit), PAGE, prot, flags));
	}
	CHECK(try_mmap(fd, 0x7ffffffffffff000, PAGE, prot, flags) < 0);
	/* BARs that the function does not have */
	for (int i = 1; i < PINMAP_NR_BARS; i++)
		if (info.out_bars[i].offset)
			CHECK_ERR(EINVAL, try_mmap(fd, info.out_bars[i].offset, PAGE, prot, flags));
	CHECK_OK(try_mmap(fd, offset, MIB, prot, flags));
}

TEST(mremap)
{
	volatile uint32_t *bar = map_bar(open_device(0), 2 * PAGE);
	char *elsewhere = address_space(4 * PAGE, PAGE);

	CHECK((intptr_t)mremap((void *)bar, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
			       elsewhere) == -1);
	CHECK((intptr_t)mremap((void *)bar, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) ==
	      -1);
	CHECK((intptr_t)mremap((void *)bar, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP,
			       NULL) == -1);
	/* growing, in place or not; a second mapping of the same pages (an old length of 0) */
	CHECK((intptr_t)mremap((void *)bar, 2 * PAGE, 4 * PAGE, MREMAP_MAYMOVE) == -1);
	CHECK((intptr_t)mremap((void *)bar, 2 * PAGE, 4 * PAGE, 0) == -1);
	CHECK((intptr_t)mremap((void *)bar, 0, PAGE, MREMAP_MAYMOVE) == -1);
	CHECK_EQ(bar[0], 0x010000ed);
	/* shrinking is allowed */
	CHECK(mremap((void *)bar, 2 * PAGE, PAGE, 0) == bar);
	CHECK_EQ(bar[0], 0x010000ed);
	CHECK_EQ(touch_read(bar + PAGE / 4), SIGSEGV);
}

TEST(fork)
{
	volatile uint32_t *bar = map_bar(open_device(0), PAGE);
	pid_t pid = fork();

	if (pid == 0) {
		CHECK_EQ(touch_read(bar), SIGSEGV);
		_exit(0);
	}
	join(pid);
	CHECK_EQ(bar[0], 0x010000ed);
}

/* The flags of a mapping of a BAR: not copied, not grown, not dumped, device memory. */
TEST(mapping_flags)
{
	volatile uint32_t *bar = map_bar(open_device(0), PAGE);
	static const char *const wanted[] = { " io", " dc", " de", " dd" };
	bool inside = false, found = false;
	unsigned long start, end;
	char line[512];
	FILE *file = fopen("/proc/self/smaps", "re");

	CHECK(file);
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start == (uintptr_t)bar;
		if (!inside || strncmp(line, "VmFlags:", 8))
			continue;
		found = true;
		for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
			if (!strstr(line, wanted[i]))
				FAIL("no%s in %s", wanted[i], line);
		CHECK(!strstr(line, " ex"));
	}
	CHECK(found);
}

TEST(registering_a_bar)
{
	int fd = open_device(0);
	char *memory = address_space(4 * PAGE, PAGE);

	/* memory at both ends, the BAR in the middle */
	SYS(mmap(memory, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		 -1, 0));
	SYS(mmap(memory + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
		 bar_offset(fd)));
	CHECK_REGISTER_FAILS(fd, memory + 2 * PAGE, PAGE, WRITE, EFAULT, PINMAP_FAIL_DEVICE,
			     memory + 2 * PAGE);
	CHECK_REGISTER_FAILS(fd, memory + 2 * PAGE, PAGE, 0, EFAULT, PINMAP_FAIL_DEVICE,
			     memory + 2 * PAGE);
	CHECK_REGISTER_FAILS(fd, memory, 4 * PAGE, WRITE, EFAULT, PINMAP_FAIL_DEVICE,
			     memory + 2 * PAGE);
	CHECK_EQ(get_info(fd).out_registrations, 0);
}

TEST(owned_by_another)
{
	int first = open_device(0), second = open_device(0);
	volatile uint32_t *bar = map_bar(first, PAGE);

	CHECK_ERR(EBUSY, try_mmap(second, bar_offset(second), PAGE, PROT_READ, MAP_SHARED));
	/* the mapping keeps the file, and so the ownership */
	close(first);
	CHECK_EQ(bar[0], 0x010000ed);
	CHECK_ERR(EBUSY, try_mmap(second, bar_offset(second), PAGE, PROT_READ, MAP_SHARED));
	SYS(munmap((void *)bar, PAGE));
	CHECK_OK(try_mmap(second, bar_offset(second), PAGE, PROT_READ, MAP_SHARED));
}

/* Other system calls cannot be made to touch the BAR by way of pinning it. */
TEST(not_for_other_pinners)
{
	volatile uint32_t *bar = map_bar(open_device(0), PAGE);
	struct iovec part = { .iov_base = (void *)bar, .iov_len = 64 };
	char buffer[64];
	struct iovec local = { .iov_base = buffer, .iov_len = sizeof(buffer) };
	int ends[2], disk = SYS(open("/dev/vda", O_RDONLY | O_DIRECT | O_CLOEXEC));

	SYS(pipe(ends));
	CHECK(vmsplice(ends[1], &part, 1, 0) == -1 && errno == EFAULT);
	CHECK(process_vm_readv(getpid(), &local, 1, &part, 1, 0) == -1 && errno == EFAULT);
	CHECK(pread(disk, (void *)bar, PAGE, 0) == -1 && errno == EFAULT);
	CHECK_EQ(bar[0], 0x010000ed);
	close(disk);
}

/* A touch of a BAR whose device is gone raises SIGBUS, in all mappings. */
TEST(sigbus_after_unbind)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0);
	volatile uint32_t *touched = map_bar(fd, MIB), *untouched = map_bar(fd, 2 * PAGE);
	volatile uint32_t *half = map_bar(fd, 2 * PAGE);
	uint64_t offset = bar_offset(fd);

	CHECK_EQ(touched[0], 0x010000ed);
	SYS(munmap((void *)(half + PAGE / 4), PAGE));
	pci_unbind(device.bdf);
	CHECK_EQ(touch_read(touched), SIGBUS);
	CHECK_EQ(touch_write(touched + 1), SIGBUS);
	CHECK_EQ(touch_read(touched + MIB / 4 - 1), SIGBUS);
	CHECK_EQ(touch_read(untouched), SIGBUS);
	CHECK_EQ(touch_read(half), SIGBUS);
	CHECK_ERR(ENODEV, try_mmap(fd, offset, PAGE, PROT_READ, MAP_SHARED));
	/* bound again, it is another device, and these mappings stay dead */
	pci_bind(device.bdf);
	CHECK_EQ(touch_read(touched), SIGBUS);
	CHECK_EQ(touch_read(untouched), SIGBUS);
	SYS(munmap((void *)touched, MIB));
	SYS(munmap((void *)untouched, 2 * PAGE));
	CHECK_EQ(map_bar(open_device(0), PAGE)[0], 0x010000ed);
}
