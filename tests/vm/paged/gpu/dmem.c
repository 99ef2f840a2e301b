// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Control groups that limit VRAM, on kernels with CONFIG_CGROUP_DMEM: PINMAP_KERNEL_CONFIG is
 * scripts/kernel/dmem.config, and the kernel `base`.
 */
#define _GNU_SOURCE
#include "alloc.h"
#include "file.h"
#include "gpu.h"
#include "pci.h"
#include "process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GROUPS "/sys/fs/cgroup/"
#define OWN GROUPS "pinmap-dmem/"

/* The bytes that a file of a control group has for the VRAM of a function, or -1. */
static long long bytes_of(const char *path, const char *bdf)
{
	char text[1024] = "", *line;
	char name[48];

	snprintf(name, sizeof(name), "pinmap/%s/vram ", bdf);
	file_read(path, text, sizeof(text));
	line = strstr(text, name);
	return line ? strtoll(line + strlen(name), NULL, 0) : -1;
}

/* Puts this process into a group that may have so many bytes of VRAM of a function. */
static void limit(const char *bdf, size_t bytes)
{
	char text[96];

	(void)try_file_write(GROUPS "cgroup.subtree_control", "+dmem");
	mkdir(OWN, 0755);
	snprintf(text, sizeof(text), "pinmap/%s/vram %zu", bdf, bytes);
	file_write(OWN "dmem.max", text);
	snprintf(text, sizeof(text), "%d", getpid());
	file_write(OWN "cgroup.procs", text);
}

/* Leaves the group, which then has no process. */
static void unlimit(void)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", getpid());
	file_write(GROUPS "cgroup.procs", text);
	SYS(rmdir(OWN));
}

static const char *need_dmem(void)
{
	char controllers[256];

	file_read(GROUPS "cgroup.controllers", controllers, sizeof(controllers));
	if (!strstr(controllers, "dmem"))
		SKIP("the kernel has no CONFIG_CGROUP_DMEM (scripts/kernel/dmem.config)");
	return need_gpu();
}

/* Memory that a program allocates is charged to its group, and to those above. */
TEST(dmem_is_charged)
{
	const char *bdf = need_dmem();
	struct pinmap_alloc first, second;
	int fd = open_gpu();
	long long all = bytes_of(GROUPS "dmem.capacity", bdf);

	CHECK(all >= (long long)(16 * MIB));
	limit(bdf, 8 * MIB);
	CHECK_OK(try_alloc(fd, PINMAP_ALLOC_VRAM, 2 * MIB, &first));
	CHECK_OK(try_alloc(fd, PINMAP_ALLOC_VRAM, 3 * PAGE, &second));
	CHECK_EQ(bytes_of(OWN "dmem.current", bdf), 2 * MIB + 3 * PAGE);
	release(fd, first.out_handle);
	CHECK_EQ(bytes_of(OWN "dmem.current", bdf), 3 * PAGE);
	close(fd);
	CHECK_EQ(bytes_of(OWN "dmem.current", bdf), 0);
	unlimit();
}

/* More than the group may have is an error of its own, and what is released can be had again. */
TEST(dmem_limits)
{
	const char *bdf = need_dmem();
	struct pinmap_alloc kept, args;
	int fd = open_gpu();

	limit(bdf, 4 * MIB);
	CHECK_OK(try_alloc(fd, PINMAP_ALLOC_VRAM, 3 * MIB, &kept));
	CHECK_ERR(EDQUOT, try_alloc(fd, PINMAP_ALLOC_VRAM, 2 * MIB, &args));
	CHECK_EQ(args.fail.reason, PINMAP_FAIL_NONE);
	CHECK_EQ(bytes_of(OWN "dmem.current", bdf), 3 * MIB);
	CHECK_OK(try_alloc(fd, PINMAP_ALLOC_VRAM, 1 * MIB, &args));
	release(fd, kept.out_handle);
	CHECK_OK(try_alloc(fd, PINMAP_ALLOC_VRAM, 2 * MIB, &args));
	close(fd);
	unlimit();
}

/* VRAM that cannot be had is charged to nobody. */
TEST(dmem_failure_is_free)
{
	const char *bdf = need_dmem();
	size_t all = bytes_of(GROUPS "dmem.capacity", bdf);
	struct pinmap_alloc args;
	int fd = open_gpu();

	limit(bdf, 2 * all);
	CHECK_ERR(ENOSPC, try_alloc(fd, PINMAP_ALLOC_VRAM, all, &args));
	CHECK_EQ(bytes_of(OWN "dmem.current", bdf), 0);
	close(fd);
	unlimit();
}

/* A device that is gone has no line; a charge of its memory ends with the file. */
TEST(dmem_ends_with_the_device)
{
	struct pinmap_alloc args;
	char bdf[16];
	int fd;

	snprintf(bdf, sizeof(bdf), "%s", need_dmem());
	fd = open_gpu();
	limit(bdf, 4 * MIB);
	CHECK_OK(try_alloc(fd, PINMAP_ALLOC_VRAM, 1 * MIB, &args));
	pci_unbind(bdf);
	CHECK_EQ(bytes_of(GROUPS "dmem.capacity", bdf), -1);
	CHECK_OK(try_pci_bind(bdf));
	CHECK(bytes_of(GROUPS "dmem.capacity", bdf) > 0);
	/* The memory of before is no part of the device as it is now. */
	CHECK_EQ(bytes_of(OWN "dmem.current", bdf), 0);
	close(fd);
	unlimit();
}
