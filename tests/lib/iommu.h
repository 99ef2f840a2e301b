/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The IOMMU's page table as the IOMMU's driver shows it. Only Intel's does; elsewhere a transfer has to tell. */
#ifndef TESTS_IOMMU_H
#define TESTS_IOMMU_H

#include "harness.h"

/**
 * struct iommu_entry - what a device address is translated to
 * @size: bytes that one entry of the table covers; 0: nothing is there
 * @writable: whether the device may write
 */
struct iommu_entry {
	size_t size;
	bool writable;
};

/* Whether the table can be read. */
bool iommu_visible(const char *bdf);

struct iommu_entry iommu_look(const char *bdf, uint64_t device_addr);

/* The number of entries in the whole table. */
unsigned int iommu_entries(const char *bdf);

#endif
