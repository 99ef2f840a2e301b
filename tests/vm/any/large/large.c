// SPDX-License-Identifier: MIT OR Apache-2.0
/* Pages of 1 GiB, and leaves of 1 GiB in both page tables. */
#define _GNU_SOURCE
#include "large.h"
#include "edu.h"
#include "file.h"
#include "gpu.h"
#include "iommu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

char *gigantic_pages(unsigned int count)
{
	const char *pool = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 30 << MAP_HUGE_SHIFT;
	long long had = file_number(pool, -1);
	char number[24];

	snprintf(number, sizeof(number), "%u", count);
	if (count == 0 || had < count)
		(void)try_file_write(pool, number);
	if (file_number(pool, -1) < count) {
		snprintf(number, sizeof(number), "%lld", had);
		(void)try_file_write(pool, number);
		SKIP("there are no %u pages of 1 GiB (--append 'hugepagesz=1G hugepages=%u')",
		     count, count);
	}
	return count ? SYS(mmap(NULL, count * GIB, PROT_READ | PROT_WRITE, flags, -1, 0)) : NULL;
}

/* Asserts that the IOMMU has the GiB by one entry, where it shows its table. */
static void check_one_entry(const char *bdf, uint64_t address)
{
	const struct iommu_table *table = iommu_read(bdf);
	struct iommu_entry entry;

	if (!table) {
		diag("the IOMMU does not show its table");
		return;
	}
	entry = iommu_find(table, address);
	CHECK_EQ(entry.size, GIB);
	CHECK_EQ(entry.address, address);
}

/* A page of 1 GiB is one entry of the IOMMU. */
TEST(gigantic_page_of_a_flat_device)
{
	struct pci_device device = need_device(0);
	struct registration registration;
	char *memory;
	struct edu edu;
	int fd;

	if (!pci_is(device.bdf, 0x1234, 0x11e8))
		SKIP("there is no edu");
	memory = gigantic_pages(1);
	fd = open_function(device.bdf);
	edu = edu_open(fd);
	registration = register_memory(fd, memory, GIB, WRITE);
	CHECK_EQ(registration.device_addr % GIB, 0);
	CHECK_REACHES(&edu, registration.device_addr, memory, 64);
	CHECK_REACHES(&edu, registration.device_addr + GIB - PAGE, memory + GIB - PAGE, PAGE);
	check_one_entry(device.bdf, registration.device_addr);
	release(fd, registration.handle);
	CHECK_PINS(0);
	SYS(munmap(memory, GIB));
}

static struct pinmap_gpu_walk walk(int fd, const char *addr)
{
	struct pinmap_gpu_walk args = { .size = sizeof(args), .addr = (uintptr_t)addr };

	CHECK_OK(try_ioctl(fd, PINMAP_GPU_WALK, &args));
	return args;
}

static bool is_mapped(int fd, const char *addr)
{
	struct pinmap_gpu_walk args = { .size = sizeof(args), .addr = (uintptr_t)addr };

	return !try_ioctl(fd, PINMAP_GPU_WALK, &args);
}

/* On a paged device it is one entry of either. */
TEST(gigantic_page_of_a_paged_device)
{
	const char *bdf = need_gpu();
	char *memory = gigantic_pages(1);
	struct registration registration;
	struct pinmap_gpu_walk args;
	struct gpu_queue queue;
	int fd = open_gpu();

	queue = queue_new(fd);
	registration = register_memory(fd, memory, GIB, WRITE);
	CHECK_EQ(registration.device_addr, (uintptr_t)memory);
	args = walk(fd, memory + 12345);
	CHECK_EQ(args.out_leaf_length, GIB);
	CHECK_EQ(args.out_levels, 2);
	CHECK_EQ(args.out_target % GIB, 12345);
	check_one_entry(bdf, args.out_target - 12345);
	gpu_fill_pages(&queue, (uintptr_t)memory + GIB - 2 * HUGE, 2 * HUGE / PAGE, 77);
	check_pages(memory + GIB - 2 * HUGE, 2 * HUGE / PAGE, 77);
	release(fd, registration.handle);
	CHECK(!is_mapped(fd, memory) && !is_mapped(fd, memory + GIB - 1));
	/* the device has forgotten it, too */
	queue_push(&queue, GPU_FILL, (uintptr_t)memory, PAGE, 1);
	queue_submit(&queue);
	queue_stopped(&queue);
	CHECK_PINS(0);
	SYS(munmap(memory, GIB));
}

/*
 * Leaves of 1 GiB need no page of that size: the IOMMU makes one range of any pages. Only what is
 * not aligned has smaller ones.
 */
TEST(leaves_of_any_pages)
{
	int fd = open_gpu();
	char *memory = tiled(3 * GIB, GIB);
	struct registration registration = register_memory(fd, memory + HUGE, 2 * GIB, 0);
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory to = gpu_alloc(fd, 0, 4 * PAGE);

	CHECK_EQ(walk(fd, memory + HUGE).out_leaf_length, HUGE);
	CHECK_EQ(walk(fd, memory + GIB - 1).out_leaf_length, HUGE);
	CHECK_EQ(walk(fd, memory + GIB).out_leaf_length, GIB);
	CHECK_EQ(walk(fd, memory + 2 * GIB - 1).out_leaf_length, GIB);
	CHECK_EQ(walk(fd, memory + 2 * GIB).out_leaf_length, HUGE);
	CHECK(!is_mapped(fd, memory) && !is_mapped(fd, memory + 2 * GIB + HUGE));
	/* across the end of the leaf */
	gpu_copy(&queue, (uintptr_t)to.addr, (uintptr_t)memory + 2 * GIB - 2 * PAGE, 4 * PAGE);
	CHECK(!memcmp(to.addr, memory + 2 * GIB - 2 * PAGE, 4 * PAGE));
	release(fd, registration.handle);
	CHECK(!is_mapped(fd, memory + GIB));
}

/* A managed range that has a table there, or wants one, and the leaf do not hinder each other. */
TEST(leaf_amid_managed_memory)
{
	int fd = open_gpu();
	char *memory = address_space(2 * GIB, GIB);
	struct gpu_queue queue = queue_new(fd), writer = queue_new(fd);
	struct registration registration;
	struct pinmap_prefetch prefetch;
	struct pinmap_manage manage;
	char *page;

	SYS(mmap(memory, GIB, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0));
	if (try_manage(fd, 0, memory, GIB, &manage) == -EOPNOTSUPP)
		SKIP("the device can have no managed memory");
	gpu_fill(&queue, (uintptr_t)memory + 5 * HUGE, PAGE, 0x55);
	CHECK_EQ(memory[5 * HUGE], 0x55);
	/* the memory below it goes, and other memory is registered at its place */
	page = tiled(GIB, GIB);
	SYS(mremap(page, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, memory));
	for (size_t at = 4 * MIB; at < GIB; at += 4 * MIB)
		SYS(mremap(page + at, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED,
			   memory + at));
	registration = register_memory(fd, memory, GIB, 0);
	/* the range keeps a table there */
	CHECK_EQ(walk(fd, memory + 5 * HUGE).out_leaf_length, HUGE);
	release(fd, registration.handle);
	release(fd, manage.out_handle);

	registration = register_memory(fd, memory, GIB, 0);
	CHECK_EQ(walk(fd, memory).out_leaf_length, GIB);
	CHECK_OK(try_manage(fd, 0, memory, GIB, &manage));
	/* what is mapped stays so, whatever is asked for */
	(void)try_prefetch(fd, PINMAP_PREFETCH_HOST, memory, 2 * HUGE, &prefetch);
	(void)try_prefetch(fd, 0, memory, 2 * HUGE, &prefetch);
	/* nor does a fault of the device there, which may read only */
	queue_push(&writer, GPU_FILL, (uintptr_t)memory + HUGE, PAGE, 1);
	queue_submit(&writer);
	queue_stopped(&writer);
	diag("a leaf of %llu bytes then", (unsigned long long)walk(fd, memory).out_leaf_length);
	for (size_t at = 0; at < GIB; at += GIB / 16)
		CHECK(walk(fd, memory + at).out_flags & PINMAP_WALK_HOST);
	page = gpu_alloc(fd, 0, PAGE).addr;
	gpu_copy(&queue, (uintptr_t)page, (uintptr_t)memory + HUGE, PAGE);
	CHECK(!memcmp(page, memory + HUGE, PAGE));
	release(fd, registration.handle);
	CHECK(!is_mapped(fd, memory + 3 * HUGE));
	release(fd, manage.out_handle);
	queue_delete(&writer);
	queue_delete(&queue);
}
