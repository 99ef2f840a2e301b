/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The IOMMU's page table as the IOMMU's driver shows it. Only Intel's driver does; elsewhere tests
 * make a transfer to find out.
 */
#ifndef TESTS_IOMMU_H
#define TESTS_IOMMU_H

#include "harness.h"

/**
 * struct iommu_entry - what device addresses are translated to
 * @address: the first of them
 * @size: bytes that the entry covers; 0: nothing is there
 * @writable: whether the device may write
 */
struct iommu_entry {
	uint64_t address;
	size_t size;
	bool writable;
};

/* All entries for one device, sorted by address. */
struct iommu_table {
	size_t count;
	struct iommu_entry entries[8192];
};

/* Reads the table, into static memory; NULL: it is not shown. */
const struct iommu_table *iommu_read(const char *bdf);

/* Whether the IOMMU of a function has its tables in this machine's memory, as Intel's has. */
bool iommu_tables_are_ours(const char *bdf);

struct iommu_entry iommu_find(const struct iommu_table *table, uint64_t device_addr);

#endif
