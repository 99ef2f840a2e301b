// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "nvme.h"

#include "device.h"
#include "file.h"
#include "memory.h"
#include "pci.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DOORBELLS = 0x1000, ENTRIES = 16, IDENTIFY = 0x06, IDENTIFY_CONTROLLER = 1 };

bool find_function(bool (*fits)(const char *bdf), char bdf[16])
{
	DIR *directory = opendir("/sys/bus/pci/devices");
	struct dirent *entry;
	bool found = false;

	while (!found && directory && (entry = readdir(directory))) {
		found = entry->d_name[0] != '.' && fits(entry->d_name);
		if (found)
			snprintf(bdf, 16, "%.15s", entry->d_name);
	}
	if (directory)
		closedir(directory);
	return found;
}

static bool is_nvme(const char *bdf)
{
	return file_number(pci_path(bdf, "class"), 0) == NVME_CLASS;
}

struct nvme nvme_open(void)
{
	struct nvme nvme = { 0 };

	if (!find_function(is_nvme, nvme.device.bdf))
		SKIP("the machine has no nvme");
	if (access(pci_path(nvme.device.bdf, "driver"), F_OK))
		pci_bind(nvme.device.bdf);
	pci_look(&nvme.device);
	nvme.fd = SYS(open(nvme.device.node, O_RDWR | O_CLOEXEC));
	return nvme;
}

void nvme_map(struct nvme *nvme)
{
	if (PAGE > NVME_REGISTERS)
		SKIP("the registers share a page with the table of the interrupts");
	nvme->bar = SYS(mmap(NULL, NVME_REGISTERS, PROT_READ | PROT_WRITE, MAP_SHARED, nvme->fd,
			     get_info(nvme->fd).out_bars[0].offset));
}

void nvme_close(struct nvme *nvme)
{
	if (nvme->bar)
		SYS(munmap((void *)nvme->bar, NVME_REGISTERS));
	close(nvme->fd);
	pci_unbind(nvme->device.bdf);
	file_write(pci_path(nvme->device.bdf, "driver_override"), "\n");
}

uint32_t nvme_get(const struct nvme *nvme, unsigned int offset)
{
	return *(volatile uint32_t *)(nvme->bar + offset);
}

void nvme_set(const struct nvme *nvme, unsigned int offset, uint32_t value)
{
	*(volatile uint32_t *)(nvme->bar + offset) = value;
}

static void set_long(const struct nvme *nvme, unsigned int offset, uint64_t value)
{
	nvme_set(nvme, offset, value);
	nvme_set(nvme, offset + 4, value >> 32);
}

void nvme_start(struct nvme *nvme)
{
	nvme->queues = anon(2);
	memset(nvme->queues, 0, 2 * PAGE);
	register_memory(nvme->fd, nvme->queues, 2 * PAGE, WRITE | IDENTITY);
	nvme_set(nvme, CONFIG, 0);
	nvme_set(nvme, ADMIN_SIZES, (ENTRIES - 1) << 16 | (ENTRIES - 1));
	set_long(nvme, SUBMISSION, (uintptr_t)nvme->queues);
	set_long(nvme, COMPLETION, (uintptr_t)nvme->queues + PAGE);
	nvme_set(nvme, CONFIG, 4 << 20 | 6 << 16 | 1);
	CHECK(WAIT_FOR(2000, nvme_get(nvme, STATUS) & 1));
	nvme->tail = 0;
}

unsigned int nvme_identify(struct nvme *nvme, uint64_t device_addr)
{
	volatile uint32_t *done = (uint32_t *)(nvme->queues + PAGE + nvme->tail * 16);
	uint32_t *command = (uint32_t *)(nvme->queues + nvme->tail * 64);

	memset(command, 0, 64);
	command[0] = IDENTIFY | (nvme->tail + 1) << 16;
	command[6] = device_addr;
	command[7] = device_addr >> 32;
	command[10] = IDENTIFY_CONTROLLER;
	nvme->tail++;
	CHECK(nvme->tail < ENTRIES);
	nvme_set(nvme, DOORBELLS, nvme->tail);
	/* bit 16: the phase, 1 in the first round */
	CHECK(WAIT_FOR(2000, done[3] & 1 << 16));
	CHECK_EQ(done[3] & 0xffff, nvme->tail);
	nvme_set(nvme, DOORBELLS + 4, nvme->tail);
	return done[3] >> 17;
}
