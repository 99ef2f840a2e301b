// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "alloc.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_TABLES "/sys/kernel/debug/page_tables/current_kernel"

int try_alloc(int fd, uint32_t flags, size_t length, struct pinmap_alloc *args)
{
	*args = (struct pinmap_alloc){ .size = sizeof(*args), .flags = flags, .length = length };
	return try_ioctl(fd, PINMAP_ALLOC, args);
}

char *alloc_view(int fd, const struct pinmap_alloc *args)
{
	return SYS(
		mmap(NULL, args->length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, args->out_offset));
}

void need_kind(uint32_t flags)
{
	if ((flags & PINMAP_ALLOC_WRITE_COMBINED) && !COMBINED)
		SKIP("only x86 has write-combined memory");
}

struct registration alloc_memory(int fd, uint32_t flags, size_t length)
{
	struct registration memory = { .length = length };
	struct pinmap_alloc args;
	struct pinmap_fail fail;

	need_kind(flags);
	CHECK_OK(try_alloc(fd, flags, length, &args));
	memory.handle = args.out_handle;
	memory.addr = alloc_view(fd, &args);
	memory.device_addr = (uintptr_t)memory.addr;
	if (try_map(fd, memory.handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, &memory.device_addr,
		    &fail))
		memory.device_addr = map(fd, memory.handle, PINMAP_MAP_WRITE, 0);
	return memory;
}

int try_export(int fd, uint64_t handle, uint32_t flags)
{
	struct pinmap_export args = {
		.size = sizeof(args), .flags = flags, .handle = handle, .out_fd = -1
	};
	int result = try_ioctl(fd, PINMAP_EXPORT, &args);

	return result ? result : args.out_fd;
}

int try_import(int fd, int dma_buf, struct pinmap_import *args)
{
	*args = (struct pinmap_import){ .size = sizeof(*args), .fd = dma_buf };
	return try_ioctl(fd, PINMAP_IMPORT, args);
}

int try_sync(int fd, uint64_t handle, uint32_t flags, uint64_t offset, uint64_t length)
{
	struct pinmap_sync args = { .size = sizeof(args),
				    .flags = flags,
				    .handle = handle,
				    .offset = offset,
				    .length = length };

	return try_ioctl(fd, PINMAP_SYNC, &args);
}

/* @direct: the address counts from where the kernel's own mapping of all memory begins. */
static bool find_entry(uint64_t addr, bool direct, char flags[256])
{
	FILE *file = fopen(PAGE_TABLES, "re");
	unsigned long long start, end;
	bool found = false, inside = !direct;
	char line[256];

	if (!file)
		SKIP("the kernel does not show page tables");
	while (!found && fgets(line, sizeof(line), file)) {
		if (direct && !inside) {
			inside = strstr(line, "Low Kernel Mapping");
			continue;
		}
		if (sscanf(line, "0x%llx-0x%llx", &start, &end) != 2)
			continue;
		if (direct) {
			/* the first range behind the heading begins where the mapping does */
			addr += start;
			direct = false;
		}
		found = addr >= start && addr < end;
		if (found)
			strcpy(flags, line);
	}
	fclose(file);
	/* an entry that is not present has no protection */
	return found && (strstr(flags, " RW ") || strstr(flags, " ro "));
}

bool user_entry(const volatile void *addr, char flags[256])
{
	return find_entry((uintptr_t)addr, false, flags);
}

bool kernel_entry(uint64_t frame, char flags[256])
{
	return find_entry(frame * PAGE, true, flags);
}

bool is_write_combined(const char *flags)
{
	return strstr(flags, " PWT ") && !strstr(flags, " PCD ");
}
