// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "iommu.h"

#include "device.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Parses "0xFRAME | LEVEL5 LEVEL4 LEVEL3 [LEVEL2 [LEVEL1]]", of which the last is the leaf. */
static bool parse(const char *line, struct iommu_entry *entry)
{
	unsigned long long frame, level[5];
	int count = sscanf(line, "0x%llx | 0x%llx 0x%llx 0x%llx 0x%llx 0x%llx", &frame, &level[0],
			   &level[1], &level[2], &level[3], &level[4]);

	if (count < 4)
		return false;
	entry->address = frame * PAGE;
	entry->size = count == 6 ? PAGE : count == 5 ? HUGE : (size_t)1 << 30;
	/* bit 1: writable, for both kinds of tables that Intel's IOMMU has */
	entry->writable = level[count - 2] & 2;
	return true;
}

bool iommu_tables_are_ours(const char *bdf)
{
	char path[128], target[PATH_MAX];
	ssize_t length;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/iommu", bdf);
	length = SYS(readlink(path, target, sizeof(target) - 1));
	target[length] = '\0';
	return strstr(target, "/dmar") || strstr(target, "/ivhd") || strstr(target, "/smmu");
}

const struct iommu_table *iommu_read(const char *bdf)
{
	static struct iommu_table table;
	char path[128], line[256];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/kernel/debug/iommu/intel/%s/domain_translation_struct",
		 bdf);
	file = fopen(path, "re");
	if (!file)
		return NULL;
	table.count = 0;
	while (fgets(line, sizeof(line), file)) {
		struct iommu_entry entry;

		if (!parse(line, &entry))
			continue;
		CHECK(table.count < ARRAY_SIZE(table.entries));
		table.entries[table.count++] = entry;
	}
	fclose(file);
	return &table;
}

struct iommu_entry iommu_find(const struct iommu_table *table, uint64_t device_addr)
{
	size_t low = 0, high = table->count;

	/* the first entry that does not end before the address */
	while (low < high) {
		size_t middle = (low + high) / 2;
		const struct iommu_entry *entry = &table->entries[middle];

		if (entry->address + entry->size <= device_addr)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < table->count && table->entries[low].address <= device_addr)
		return table->entries[low];
	return (struct iommu_entry){ 0 };
}
