// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "iommu.h"

#include "device.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static FILE *table(const char *bdf)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/kernel/debug/iommu/intel/%s/domain_translation_struct", bdf);
	return fopen(path, "re");
}

bool iommu_visible(const char *bdf)
{
	FILE *file = table(bdf);

	if (file)
		fclose(file);
	return file;
}

/* "0xFRAME | LEVEL5 LEVEL4 LEVEL3 [LEVEL2 [LEVEL1]]", of which the last is the leaf */
static bool parse(char *line, uint64_t *address, struct iommu_entry *entry)
{
	unsigned long long frame, level[5];
	int count = sscanf(line, "0x%llx | 0x%llx 0x%llx 0x%llx 0x%llx 0x%llx", &frame, &level[0], &level[1], &level[2],
			   &level[3], &level[4]);

	if (count < 4)
		return false;
	*address = frame * PAGE;
	entry->size = count == 6 ? PAGE : count == 5 ? HUGE : (size_t)1 << 30;
	/* bit 1: writable, for both kinds of tables that Intel's IOMMU has */
	entry->writable = level[count - 2] & 2;
	return true;
}

struct iommu_entry iommu_look(const char *bdf, uint64_t device_addr)
{
	struct iommu_entry entry, found = { 0 };
	FILE *file = table(bdf);
	uint64_t address;
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (parse(line, &address, &entry) && device_addr >= address && device_addr - address < entry.size)
			found = entry;
	if (file)
		fclose(file);
	return found;
}

unsigned int iommu_entries(const char *bdf)
{
	struct iommu_entry entry;
	FILE *file = table(bdf);
	unsigned int count = 0;
	uint64_t address;
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		count += parse(line, &address, &entry);
	if (file)
		fclose(file);
	return count;
}
