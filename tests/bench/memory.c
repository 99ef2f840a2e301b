// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <linux/mman.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

const char *const kind_names[KINDS] = {
	[SCATTERED] = "4k-scattered", [NATURAL] = "4k-natural",    [THP] = "thp",
	[HUGETLB] = "hugetlb",        [MEMFD_HUGE] = "memfd-huge",
};

void memory_touch(char *addr, size_t length)
{
	for (size_t at = 0; at < length; at += PAGE)
		*(volatile char *)(addr + at) = 1;
}

/* Touches the pages in an order in which neighbours do not get neighbouring frames. */
static void touch_scattered(char *addr, size_t length)
{
	size_t pages = length / PAGE;
	uint32_t *order = malloc(pages * sizeof(*order));

	if (!order)
		DIE("no memory");
	for (size_t i = 0; i < pages; i++)
		order[i] = (uint32_t)i;
	srandom(1);
	for (size_t i = pages - 1; i > 0; i--) {
		size_t other = (size_t)random() % (i + 1);
		uint32_t swap = order[i];

		order[i] = order[other];
		order[other] = swap;
	}
	for (size_t i = 0; i < pages; i++)
		*(volatile char *)(addr + order[i] * PAGE) = 1;
	free(order);
}

/*
 * Touches huge pages, first every second one and then the others, so that no two neighbours get
 * neighbouring frames.
 */
static void touch_apart(char *addr, size_t length)
{
	for (size_t first = 0; first <= HUGE; first += HUGE) {
		for (size_t at = first; at < length; at += 2 * HUGE)
			*(volatile char *)(addr + at) = 1;
	}
}

static char *aligned_space(size_t length)
{
	char *space = SYS(mmap(NULL, length + HUGE, PROT_NONE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
	char *addr = (char *)(((uintptr_t)space + HUGE - 1) / HUGE * HUGE);

	if (addr > space)
		SYS(munmap(space, (size_t)(addr - space)));
	SYS(munmap(addr + length, (size_t)(space + HUGE - addr)));
	return addr;
}

static void reserve_hugetlb(size_t pages)
{
	char text[16];

	snprintf(text, sizeof(text), "%zu", pages);
	write_file("/proc/sys/vm/nr_hugepages", text);
}

struct memory memory_new(enum kind kind, size_t length)
{
	const int access = PROT_READ | PROT_WRITE;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
	struct memory memory = { .length = length, .fd = -1, .kind = kind };

	if (kind != SCATTERED && kind != NATURAL) {
		memory.length = (length + HUGE - 1) / HUGE * HUGE;
		try_write_file("/proc/sys/vm/compact_memory", "1");
	}
	memory.addr = aligned_space(memory.length);
	if (kind == HUGETLB) {
		reserve_hugetlb(memory.length / HUGE);
		flags |= MAP_HUGETLB | MAP_HUGE_2MB;
	} else if (kind == MEMFD_HUGE) {
		write_file("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "advise");
		memory.fd = SYS(memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING));
		SYS(ftruncate(memory.fd, (off_t)memory.length));
		SYS(fcntl(memory.fd, F_ADD_SEALS, F_SEAL_SHRINK));
		flags = MAP_SHARED | MAP_FIXED;
	}
	SYS(mmap(memory.addr, memory.length, access, flags, memory.fd, 0));
	if (kind != HUGETLB)
		SYS(madvise(memory.addr, memory.length,
			    kind == SCATTERED || kind == NATURAL ? MADV_NOHUGEPAGE
								 : MADV_HUGEPAGE));
	if (kind == SCATTERED)
		touch_scattered(memory.addr, memory.length);
	if (kind == THP && apart)
		touch_apart(memory.addr, memory.length);
	memory_touch(memory.addr, memory.length);
	return memory;
}

struct memory memory_of_runs(enum kind kind, size_t length)
{
	enum { ATTEMPTS = 4 };
	struct memory all[ATTEMPTS], found;
	int attempts = 0;

	/* Memory that will not do is kept meanwhile, so that other memory comes next. */
	do {
		if (attempts == ATTEMPTS)
			DIE("huge pages always become neighbours");
		found = memory_new(kind, length);
		all[attempts++] = found;
	} while (kind == THP && apart &&
		 memory_runs(&found, found.length) != found.length / HUGE);
	for (int i = 0; i < attempts - 1; i++)
		memory_free(&all[i]);
	return found;
}

void memory_free(struct memory *memory)
{
	SYS(munmap(memory->addr, memory->length));
	if (memory->fd >= 0)
		close(memory->fd);
	if (memory->kind == HUGETLB)
		reserve_hugetlb(0);
}

size_t memory_runs(const struct memory *memory, size_t length)
{
	int fd = SYS(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
	size_t runs = 0;
	uint64_t last = 0;

	for (size_t at = 0; at < length; at += PAGE) {
		uint64_t entry;

		if (pread(fd, &entry, sizeof(entry),
			  (off_t)((uintptr_t)(memory->addr + at) / PAGE * sizeof(entry))) !=
		    sizeof(entry))
			DIE("reading the pagemap: %s", error_name(errno));
		entry &= (UINT64_C(1) << 55) - 1;
		runs += entry != last + 1;
		last = entry;
	}
	close(fd);
	return runs;
}
