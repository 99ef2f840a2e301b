// SPDX-License-Identifier: MIT OR Apache-2.0
/* What must hold when all other tests are over: nothing was kept. */
#define _GNU_SOURCE
#include "device.h"
#include "file.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Nobody else in the VM pins anything for long. */
TEST(no_page_is_pinned)
{
	CHECK_PINS_SOON(0);
}

/* The whole limit can be used, so no charge was forgotten. */
TEST(full_limit)
{
	char *memory = anon(64);
	int fd;

	set_memlock(64 * PAGE);
	become_user(true);
	fd = open_device(0);
	CHECK_EQ(get_info(fd).out_memlock_used, 0);
	register_memory(fd, memory, 64 * PAGE, WRITE);
}

TEST(devices_are_idle)
{
	struct pci_device device;

	need_device(0);
	for (unsigned int i = 0; pci_bound(i, &device); i++) {
		int fd = open_device(i);

		CHECK_EQ(get_info(fd).out_flags & PINMAP_INFO_OWNED, 0);
		CHECK(!pci_is_master(device.bdf));
		close(fd);
	}
}

TEST(module_unloads, .smoke = true)
{
	need_module();
	CHECK_EQ(module_users(), 0);
	module_unload();
	CHECK_EQ(module_users(), -1);
	module_load();
	close(open_device(0));
}

/* Lists what was allocated and that nothing points to. */
TEST(no_memory_is_lost, .seconds = 60)
{
	static const char path[] = "/sys/kernel/debug/kmemleak";
	unsigned int lost = 0;
	char line[256];
	FILE *file;

	if (try_file_write(path, "scan"))
		SKIP("the kernel has no kmemleak");
	/* what looks lost once may only be on its way */
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
