// SPDX-License-Identifier: MIT OR Apache-2.0
/* The module goes and comes; machines without an IOMMU. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "kmsg.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "pins.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The module does not unload as long as a file is open. */
TEST(rmmod_open_file)
{
	char *page = anon(1);
	int fd = open_device(0);
	struct registration registration;

	need_module();
	CHECK(module_users() > 0);
	CHECK(try_module_unload() < 0);
	CHECK(module_users() > 0);
	registration = register_memory(fd, page, PAGE, WRITE);
	CHECK(try_module_unload() < 0);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
	close(fd);
	CHECK_EQ(module_users(), 0);
	module_unload();
	module_load();
	close(open_device(0));
}

/*
 * A mapping holds the module as a file does, also when the file is closed and when its device is
 * gone.
 */
TEST(rmmod_live_mapping)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0);
	struct edu edu = edu_open(fd);

	need_module();
	close(fd);
	CHECK(try_module_unload() < 0);
	CHECK_EQ(edu_register(&edu, EDU_IDENTITY), 0x010000ed);
	pci_unbind(device.bdf);
	CHECK(try_module_unload() < 0);
	CHECK(touch_read(edu.bar) != 0);
	edu_close(&edu);
	CHECK_EQ(module_users(), 0);
	module_unload();
	module_load();
	close(open_device(0));
}

TEST(rmmod_gone_device)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0);

	need_module();
	pci_unbind(device.bdf);
	CHECK(try_module_unload() < 0);
	CHECK(get_info(fd).out_flags & PINMAP_INFO_GONE);
	close(fd);
	module_unload();
	module_load();
	close(open_device(0));
}

static long long reload_and_measure(unsigned int times)
{
	long long before = file_field("/proc/meminfo", "MemAvailable:");

	for (unsigned int i = 0; i < times; i++) {
		int fd = open_device(i % 2);

		register_memory(fd, anon(1), PAGE, i % 3 ? WRITE : NO_MAP);
		close(fd);
		module_unload();
		CHECK_EQ(module_users(), -1);
		module_load();
	}
	return before - file_field("/proc/meminfo", "MemAvailable:");
}

/* Unloads and loads the module often; PINMAP_TEST_SCALE multiplies how often. */
TEST(reload, .seconds = 240)
{
	long long lost = 0, pins = pins_held();
	unsigned int times = rounds(50);

	need_module();
	module_unload();
	module_load();
	/* free memory goes up and down by megabytes: a leak of a page each time shows every time */
	for (int batch = 0; batch < (debug_kernel() ? 1 : 10); batch++) {
		lost = reload_and_measure(times);
		diag("%u times; %lld kB less are available", times, lost);
		if (lost < 4 * (long long)times)
			break;
	}
	CHECK(debug_kernel() || lost < 4 * (long long)times);
	CHECK_PINS(pins);
}

/* The module loads without a device to bind to, and does not ask for one. */
TEST(load_without_devices)
{
	struct pci_device device;

	need_module();
	for (unsigned int i = 0; pci_find(i, &device); i++)
		if (device.node[0])
			pci_unbind(device.bdf);
	CHECK_EQ(try_open_device(0), -ENODEV);
	module_unload();
	module_load();
	for (unsigned int i = 0; pci_find(i, &device); i++)
		CHECK(device.node[0]);
}

TEST(reset_unsupported)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0);

	if (get_info(fd).out_flags & PINMAP_INFO_RESET)
		SKIP("the device has a reset");
	CHECK_ERR(EOPNOTSUPP, try_reset_device(fd));
	/* and nobody became the device's owner by that */
	CHECK_EQ(get_info(fd).out_flags & PINMAP_INFO_OWNED, 0);
	CHECK(!pci_is_master(device.bdf));
}

/* Without an IOMMU there is no isolation, and so no device: one clear line says so. */
TEST(noiommu_refused)
{
	struct pci_device device;
	int kmsg = kmsg_open(), result;
	char line[512];
	unsigned int lines = 0;

	if (!pci_find(0, &device))
		SKIP("there is no edu");
	if (access(pci_path(device.bdf, "iommu_group"), F_OK) == 0)
		SKIP("there is an IOMMU");
	if (module_users() < 0)
		CHECK_OK(try_module_load());
	result = try_pci_bind(device.bdf);
	CHECK_ERR(ENODEV, result);
	while (kmsg_next(kmsg, line, sizeof(line))) {
		diag("log: %s", line);
		lines += strstr(line, "IOMMU") != NULL;
	}
	CHECK_EQ(lines, 1);
	pci_find(0, &device);
	CHECK_EQ(device.node[0], 0);
	CHECK_EQ(access(pci_path(device.bdf, "driver"), F_OK), -1);
	CHECK(!pci_is_master(device.bdf));
}

/* A device whose interrupts are not isolated is refused, unless the administrator allows it. */
TEST(unsafe_interrupts)
{
	static const char PARAMETERS[] = "PINMAP_PARAMETERS";
	const char *given = getenv(PARAMETERS);
	struct pci_device device = need_device(0);
	int kmsg = kmsg_open();
	char allowed[64];

	if (!given || !strstr(given, "allow_unsafe_interrupts=1"))
		SKIP("interrupts are isolated here");
	snprintf(allowed, sizeof(allowed), "%s", given);
	setenv(PARAMETERS, "", 1);
	need_module();
	module_unload();
	module_load();
	CHECK_ERR(EPERM, try_pci_bind(device.bdf));
	CHECK(kmsg_wait(kmsg, "refused: its interrupts are not isolated", 10000));
	CHECK_EQ(access(pci_path(device.bdf, "driver"), F_OK), -1);
	setenv(PARAMETERS, allowed, 1);
	need_module();
	module_unload();
	module_load();
	close(open_device(0));
}
