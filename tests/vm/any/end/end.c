// SPDX-License-Identifier: MIT OR Apache-2.0
/* The state of the system when all other tests are over: nothing was kept. */
#define _GNU_SOURCE
#include "device.h"
#include "file.h"
#include "gpu.h"
#include "lockdep.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int open_node(const struct pci_device *device)
{
	return SYS(open(device->node, O_RDWR | O_CLOEXEC));
}

/* Nothing else in the VM pins pages for long. */
TEST(no_page_is_pinned)
{
	CHECK_PINS_SOON(0);
}

/* The whole limit of locked memory can be used, so no charge was forgotten. */
TEST(full_limit)
{
	/* a paged device's tables are charged: five at most for 64 pages */
	const unsigned int tables = 5;
	struct pci_device device = need_device(0);
	char *memory = anon(64);
	bool paged;
	int fd;

	fd = open_node(&device);
	paged = get_info(fd).out_kind == PINMAP_KIND_PAGED;
	close(fd);
	set_memlock((64 + (paged ? tables : 0)) * PAGE);
	become_user(true);
	fd = open_node(&device);
	CHECK_EQ(get_info(fd).out_memlock_used, 0);
	register_memory(fd, memory, 64 * PAGE, WRITE);
}

TEST(devices_are_idle)
{
	struct pci_device device = need_device(0);
	unsigned int i = 0;

	do {
		int fd = open_node(&device);
		struct pinmap_info info = get_info(fd);

		CHECK_EQ(info.out_flags & PINMAP_INFO_OWNED, 0);
		/* a paged device serves many, and is a bus master as long as it is bound */
		if (info.out_kind == PINMAP_KIND_FLAT)
			CHECK(!pci_is_master(device.bdf));
		close(fd);
	} while (pci_bound(++i, &device));
}

TEST(module_unloads, .smoke = true)
{
	need_module();
	CHECK_EQ(module_users(), 0);
	module_unload();
	CHECK_EQ(module_users(), -1);
	module_load();
	need_device(0);
}

/* Lockdep was on during all tests: its first report switches it off for good. */
TEST(lockdep_is_on)
{
	if (access("/proc/lockdep_stats", R_OK))
		SKIP("the kernel has no lockdep");
	CHECK(lockdep_works());
}

/* kmemleak finds no memory to which nothing points. */
TEST(no_memory_is_lost, .seconds = 60)
{
	static const char path[] = "/sys/kernel/debug/kmemleak";
	unsigned int lost = 0;
	char line[256];
	FILE *file;

	if (try_file_write(path, "scan"))
		SKIP("the kernel has no kmemleak");
	/* memory that looks lost once may only be on its way */
	sleep_ms(1000);
	file_write(path, "scan");
	file = fopen(path, "re");
	CHECK(file);
	while (fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = 0;
		lost += !strncmp(line, "unreferenced object", 19);
		if (lost < 5)
			diag("%s", line);
	}
	fclose(file);
	CHECK_EQ(lost, 0);
}
