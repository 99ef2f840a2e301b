// SPDX-License-Identifier: MIT OR Apache-2.0
/* The IOMMU's own tables, behind a device that has page tables of its own. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "gpu.h"
#include "iommu.h"
#include "memory.h"
#include "pci.h"

#include <sys/mman.h>
#include <unistd.h>

/*
 * Contexts have their mappings anywhere, but on the bus they are side by side; when all files are
 * closed, no table is left of them.
 */
TEST(tables_stay_few, .seconds = 120)
{
	unsigned int count = rounds(4000);
	struct pinmap_fail fail;
	struct registration registration;
	char *pages = anon(64);
	uint64_t address;
	long long before;
	struct gpu_queue queue;
	int fd, other;

	if (!iommu_tables_are_ours(need_gpu()))
		SKIP("this IOMMU's tables are not in our memory");
	close(open_gpu());
	before = file_field("/proc/vmstat", "nr_iommu_pages");
	CHECK(before > 0);
	other = open_gpu();
	fd = open_gpu();
	registration = register_memory(fd, pages, PAGE, NO_MAP | WRITE);
	for (unsigned int i = 0; i < count; i++) {
		address = (1ULL << 40) + i * HUGE;
		CHECK_OK(try_map(fd, registration.handle, PINMAP_MAP_FIXED, &address, &fail));
		/* some contexts at the same time */
		if (i % 32 == 31)
			for (uint64_t last = address, at = last - 31 * HUGE; at <= last; at += HUGE)
				unmap(fd, registration.handle, at);
	}
	diag("%lld pages for tables before, %lld then", before,
	     file_field("/proc/vmstat", "nr_iommu_pages"));
	CHECK(file_field("/proc/vmstat", "nr_iommu_pages") <= before + 16);
	close(fd);
	close(other);
	CHECK(WAIT_FOR(2000, file_field("/proc/vmstat", "nr_iommu_pages") <= before));

	/* the device works with its new tables, and these are freed as well */
	queue = queue_new(open_gpu());
	register_memory(queue.fd, pages, 64 * PAGE, WRITE);
	queue_push(&queue, GPU_FILL, (uintptr_t)pages, 64 * PAGE, 0x55);
	queue_finish(&queue);
	CHECK(bytes_are(pages, 64 * PAGE, 0x55));
}

/* Memory whose neighbouring pages are no neighbours in the host's. */
static char *scattered(size_t pages)
{
	size_t step = pages / 2 + 1;
	char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	SYS(madvise(memory, pages * PAGE, MADV_NOHUGEPAGE));
	for (size_t i = 0, at = 0; i < pages; i++, at = (at + step) % pages)
		memory[at * PAGE] = 1;
	return memory;
}

/*
 * Unmapping half of what a table covers does not free it. What is left comes back with the last
 * context, also when memory was managed, for which the driver has addresses on the bus of its own.
 */
TEST(tables_come_back, .seconds = 60)
{
	enum { TABLES = 64 };
	size_t pages = TABLES * HUGE / PAGE;
	struct pinmap_manage args;
	long long before, then;
	char *memory;
	int fd;

	if (!iommu_tables_are_ours(need_gpu()))
		SKIP("this IOMMU's tables are not in our memory");
#ifdef __aarch64__
	SKIP("the device's interrupts keep the page table, as docs/driver.md says");
#endif
	memory = scattered(pages);
	close(open_gpu());
	before = file_field("/proc/vmstat", "nr_iommu_pages");
	fd = open_gpu();
	if (get_info(fd).out_flags & PINMAP_INFO_MANAGED) {
		struct gpu_queue queue;
		char *managed = anon(64);

		CHECK_OK(try_manage(fd, 0, managed, 64 * PAGE, &args));
		queue = queue_new(fd);
		queue_push(&queue, GPU_FILL, (uintptr_t)managed, 64 * PAGE, 0x55);
		queue_finish(&queue);
		queue_unmap(&queue);
		CHECK(bytes_are(managed, 64 * PAGE, 0x55));
	}
	for (size_t at = 0; at < pages * PAGE; at += HUGE / 2)
		register_memory(fd, memory + at, HUGE / 2, WRITE);
	then = file_field("/proc/vmstat", "nr_iommu_pages");
	diag("%lld pages for tables before, %lld then", before, then);
	CHECK(then >= before + TABLES / 2);
	close(fd);
	CHECK(WAIT_FOR(2000, file_field("/proc/vmstat", "nr_iommu_pages") <= before + 8));
	munmap(memory, pages * PAGE);
}
