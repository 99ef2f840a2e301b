// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "pci.h"

#include "file.h"
#include "gpu.h"
#include "process.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICES "/sys/bus/pci/devices"
#define DRIVER "/sys/bus/pci/drivers/" PCI_DRIVER

enum { EDU_VENDOR = 0x1234, EDU_DEVICE = 0x11e8 };
enum { COMMAND = 0x04, COMMAND_MASTER = 1 << 2 };

static char addresses[PCI_MOST][16];
static unsigned int known;

const char *pci_path(const char *bdf, const char *file)
{
	static __thread char path[320];

	snprintf(path, sizeof(path), DEVICES "/%s/%s", bdf, file);
	return path;
}

bool pci_is(const char *bdf, unsigned int vendor, unsigned int device)
{
	return file_number(pci_path(bdf, "vendor"), 0) == vendor &&
	       file_number(pci_path(bdf, "device"), 0) == device;
}

static bool is(const struct dirent *entry, unsigned int vendor, unsigned int device)
{
	return entry->d_name[0] != '.' && pci_is(entry->d_name, vendor, device);
}

static int is_edu(const struct dirent *entry)
{
	return is(entry, EDU_VENDOR, EDU_DEVICE);
}

static int is_gpu(const struct dirent *entry)
{
	return is(entry, GPU_VENDOR, GPU_DEVICE);
}

/*
 * Finds the addresses of the functions for which @fits. They never change, and looking for them
 * takes long.
 */
static unsigned int scan(int (*fits)(const struct dirent *entry), char bdfs[PCI_MOST][16])
{
	struct dirent **entries;
	int count = scandir(DEVICES, &entries, fits, alphasort);
	unsigned int found = 0;

	for (int i = 0; i < count; i++) {
		if (found < PCI_MOST)
			snprintf(bdfs[found++], 16, "%.15s", entries[i]->d_name);
		free(entries[i]);
	}
	if (count >= 0)
		free(entries);
	return found;
}

/* The addresses, for programs that this one executes. */
#define REMEMBERED "PINMAP_TEST_ADDRESSES"

void pci_remember(void)
{
	char text[PCI_MOST * 17 + 1] = "";
	struct pci_device any;

	pci_find(0, &any);
	for (unsigned int i = 0; i < known; i++)
		sprintf(text + strlen(text), "%s ", addresses[i]);
	setenv(REMEMBERED, text, 1);
}

static unsigned int recall(void)
{
	const char *text = getenv(REMEMBERED);
	unsigned int found = 0;
	int length;

	while (text && found < PCI_MOST && sscanf(text, "%15s%n", addresses[found], &length) == 1) {
		text += length;
		found++;
	}
	return found;
}

void pci_look(struct pci_device *device)
{
	DIR *misc = opendir(pci_path(device->bdf, "misc"));
	struct dirent *entry;

	device->node[0] = 0;
	while (misc && (entry = readdir(misc)))
		if (!strncmp(entry->d_name, PCI_DRIVER, strlen(PCI_DRIVER)))
			snprintf(device->node, sizeof(device->node), "/dev/%.20s", entry->d_name);
	if (misc)
		closedir(misc);
}

static bool find(unsigned int index, bool bound, struct pci_device *device)
{
	if (!known)
		known = recall();
	if (!known)
		known = scan(is_edu, addresses);
	if (!known)
		known = scan(is_gpu, addresses);
	for (unsigned int i = 0; i < known; i++) {
		/* the function may be removed for the moment */
		if (access(pci_path(addresses[i], "vendor"), F_OK))
			continue;
		memcpy(device->bdf, addresses[i], sizeof(device->bdf));
		pci_look(device);
		if ((!bound || device->node[0]) && index-- == 0)
			return true;
	}
	return false;
}

bool pci_find(unsigned int index, struct pci_device *device)
{
	return find(index, false, device);
}

bool pci_bound(unsigned int index, struct pci_device *device)
{
	return find(index, true, device);
}

struct pci_device need_device(unsigned int index)
{
	struct pci_device device;

	if (!pci_bound(index, &device))
		SKIP("needs %u devices bound to " PCI_DRIVER, index + 1);
	return device;
}

int try_pci_unbind(const char *bdf)
{
	return try_file_write(DRIVER "/unbind", bdf);
}

int try_pci_bind(const char *bdf)
{
	int result = try_file_write(pci_path(bdf, "driver_override"), PCI_DRIVER);

	result = result ? result : try_file_write(DRIVER "/bind", bdf);
	if (!result)
		pci_adopt(bdf);
	return result;
}

void pci_adopt(const char *bdf)
{
	struct pci_device device;

	snprintf(device.bdf, sizeof(device.bdf), "%.15s", bdf);
	pci_look(&device);
	if (device.node[0] && chown(device.node, 0, PINMAP_GROUP_ID))
		FAIL("%s: %s", device.node, error_name(errno));
}

bool pci_is_master(const char *bdf)
{
	int fd = SYS(open(pci_path(bdf, "config"), O_RDONLY | O_CLOEXEC));
	uint16_t command = 0;

	CHECK_EQ(pread(fd, &command, sizeof(command), COMMAND), sizeof(command));
	close(fd);
	return command & COMMAND_MASTER;
}

void pci_set_master(const char *bdf)
{
	int fd = SYS(open(pci_path(bdf, "config"), O_RDWR | O_CLOEXEC));
	uint16_t command;

	CHECK_EQ(pread(fd, &command, sizeof(command), COMMAND), sizeof(command));
	command |= COMMAND_MASTER;
	CHECK_EQ(pwrite(fd, &command, sizeof(command), COMMAND), sizeof(command));
	close(fd);
}

unsigned int pci_driven(char bdfs[PCI_MOST][16])
{
	DIR *driver = opendir(DRIVER);
	struct dirent *entry;
	unsigned int count = 0;

	while (driver && count < PCI_MOST && (entry = readdir(driver)))
		if (strchr(entry->d_name, ':'))
			snprintf(bdfs[count++], sizeof(bdfs[0]), "%.15s", entry->d_name);
	if (driver)
		closedir(driver);
	return count;
}

bool pci_spare(unsigned int vendor, unsigned int device, char bdf[16])
{
	DIR *all = opendir(DEVICES);
	struct dirent *entry;
	bool found = false;

	while (all && !found && (entry = readdir(all))) {
		char override[32] = "(null)";
		bool driven, overridden;

		if (!is(entry, vendor, device))
			continue;
		driven = !access(pci_path(entry->d_name, "driver"), F_OK);
		try_file_read(pci_path(entry->d_name, "driver_override"), override,
			      sizeof(override));
		overridden = strcmp(override, "(null)");
		if (driven && !overridden)
			continue;
		snprintf(bdf, 16, "%.15s", entry->d_name);
		if (driven)
			file_write(pci_path(bdf, "driver/unbind"), bdf);
		if (overridden)
			file_write(pci_path(bdf, "driver_override"), "\n");
		found = true;
	}
	if (all)
		closedir(all);
	return found;
}

bool pci_peers(void)
{
	const char *peers = getenv("PINMAP_PEERS");

	return peers && *peers;
}

void need_peers(void)
{
	if (!pci_peers())
		SKIP("the bus of this machine does not let devices reach each other");
}

bool pci_renew(void)
{
	char bdfs[PCI_MOST][16];
	unsigned int count = pci_driven(bdfs);
	bool good = true;

	while (count--)
		good &= !try_pci_unbind(bdfs[count]) && !try_pci_bind(bdfs[count]);
	return good;
}

unsigned int pci_restore(void)
{
	struct pci_device device;
	unsigned int restored = 0, count = 0;

	if (access(DRIVER, F_OK))
		return 0;
	while (pci_find(count, &device))
		count++;
	if (count < known)
		try_file_write("/sys/bus/pci/rescan", "1");
	for (unsigned int i = 0; pci_find(i, &device); i++) {
		pci_adopt(device.bdf);
		if (device.node[0] || access(pci_path(device.bdf, "iommu_group"), F_OK))
			continue;
		/* another driver may have it still */
		try_file_write(pci_path(device.bdf, "driver/unbind"), device.bdf);
		restored += try_pci_bind(device.bdf) == 0;
	}
	return restored;
}
