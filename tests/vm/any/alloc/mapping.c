// SPDX-License-Identifier: MIT OR Apache-2.0
/* Mappings of memory that the driver allocates: what can be done with them. */
#define _GNU_SOURCE
#include "alloc.h"
#include "edu.h"
#include "memory.h"
#include "process.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The flags of the kernel for a mapping: a line of smaps. */
static void vm_flags(const void *addr, char line[512])
{
	unsigned long start, end;
	bool inside = false;
	FILE *file = fopen("/proc/self/smaps", "re");

	CHECK(file);
	while (fgets(line, 512, file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start == (uintptr_t)addr;
		if (inside && !strncmp(line, "VmFlags:", 8)) {
			fclose(file);
			return;
		}
	}
	FAIL("no mapping at %p", addr);
}

/*
 * Ordinary pages: neither of a device nor a file's without pages; not for core dumps, not for
 * children.
 */
TEST(mapping_flags)
{
	static const char *const wanted[] = { " dc", " de", " dd", " sh" };
	static const char *const unwanted[] = { " io", " pf", " mm", " ex" };
	struct registration memory = alloc_memory(open_device(0), 0, 4 * PAGE);
	char line[512];

	vm_flags(memory.addr, line);
	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
		CHECK(strstr(line, wanted[i]));
	for (size_t i = 0; i < ARRAY_SIZE(unwanted); i++)
		CHECK(!strstr(line, unwanted[i]));
}

TEST(mapping_cannot_be_moved_or_grown)
{
	struct registration memory = alloc_memory(open_device(0), 0, 4 * PAGE);
	char *elsewhere = address_space(8 * PAGE, PAGE);
	const size_t all = 4 * PAGE;

	CHECK(mremap(memory.addr, all, all, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) ==
	      MAP_FAILED);
	CHECK(mremap(memory.addr, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) ==
	      MAP_FAILED);
	CHECK(mremap(memory.addr, all, all, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL) == MAP_FAILED);
	CHECK(mremap(memory.addr, all, 2 * all, MREMAP_MAYMOVE) == MAP_FAILED);
	CHECK(mremap(memory.addr, 0, PAGE, MREMAP_MAYMOVE) == MAP_FAILED);
	memory.addr[0] = 1;
}

TEST(mapping_cannot_be_executed)
{
	int fd = open_device(0);
	struct registration memory = alloc_memory(fd, 0, PAGE);
	struct pinmap_alloc args;

	CHECK_EQ(mprotect(memory.addr, PAGE, PROT_READ | PROT_EXEC), -1);
	CHECK_OK(try_alloc(fd, 0, PAGE, &args));
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, fd, args.out_offset) ==
	      MAP_FAILED);
	CHECK_EQ(errno, EACCES);
}

TEST(mapping_is_shared)
{
	int fd = open_device(0);
	struct pinmap_alloc args;

	CHECK_OK(try_alloc(fd, 0, PAGE, &args));
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, args.out_offset) == MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
}

/* A child has neither the mapping nor the right to make one. */
TEST(mapping_is_not_inherited)
{
	int fd = open_device(0);
	struct registration memory = alloc_memory(fd, 0, PAGE);
	struct pinmap_alloc args, childs;
	pid_t pid;

	CHECK_OK(try_alloc(fd, 0, PAGE, &args));
	memory.addr[0] = 1;
	CHECK_EQ(madvise(memory.addr, PAGE, MADV_DOFORK), -1);
	pid = fork();
	if (pid == 0) {
		CHECK_EQ(touch_read(memory.addr), SIGSEGV);
		CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, args.out_offset) == MAP_FAILED);
		CHECK_EQ(errno, EPERM);
		CHECK_ERR(EPERM, try_alloc(fd, 0, PAGE, &childs));
		_exit(0);
	}
	join(pid);
	CHECK_EQ(memory.addr[0], 1);
}

/* MADV_DONTNEED empties the page table and takes nothing from the memory. */
TEST(dontneed)
{
	int fd = open_device(0);
	struct registration memory = alloc_memory(fd, 0, 2 * HUGE);
	struct edu edu = edu_open(fd);

	pattern_fill(memory.addr, memory.length, 9);
	SYS(madvise(memory.addr + PAGE, HUGE, MADV_DONTNEED));
	CHECK(pattern_is(memory.addr, memory.length, 9));
	CHECK_REACHES(&edu, memory.device_addr + PAGE, memory.addr + PAGE, PAGE);
	CHECK_NO_EVENT(fd);
	edu_close(&edu);
}
