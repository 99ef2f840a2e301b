// SPDX-License-Identifier: MIT OR Apache-2.0
/* The IOMMU's own tables, behind a device that has page tables of its own. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "gpu.h"
#include "iommu.h"
#include "memory.h"
#include "pci.h"

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
