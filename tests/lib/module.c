// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "module.h"

#include "device.h"
#include "file.h"
#include "importer/importer.h"
#include "pci.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#define SYSFS "/sys/module/pinmap"
#define IMPORTER "/dev/importer"

static char parameters[128];

int module_users(void)
{
	return file_number(SYSFS "/refcnt", -1);
}

static const char *module_path(void)
{
	static char path[256];
	struct utsname name;

	uname(&name);
	snprintf(path, sizeof(path), "/lib/modules/%s/extra/pinmap.ko", name.release);
	return path;
}

void need_module(void)
{
	const char *given = getenv("PINMAP_PARAMETERS");

	if (module_users() < 0)
		SKIP("the module is not loaded");
	if (access(module_path(), R_OK))
		SKIP("needs the module's file at %s", module_path());
	/* sysfs does not tell the module's parameters */
	if (given)
		snprintf(parameters, sizeof(parameters), "%s", given);
}

int try_module_unload(void)
{
	return syscall(SYS_delete_module, "pinmap", O_NONBLOCK) ? -errno : 0;
}

int try_module_load(void)
{
	int fd = open(module_path(), O_RDONLY | O_CLOEXEC), result;

	if (fd < 0)
		return -errno;
	result = syscall(SYS_finit_module, fd, parameters, 0) ? -errno : 0;
	close(fd);
	if (!result)
		pci_restore();
	return result;
}

int importer_open(void)
{
	int file;

	if (access(IMPORTER, F_OK)) {
		file = open("/usr/lib/pinmap/tests/importer.ko", O_RDONLY | O_CLOEXEC);
		if (file < 0 || syscall(SYS_finit_module, file, "", 0))
			SKIP("needs the importer for the tests");
		close(file);
		CHECK(WAIT_FOR(2000, !access(IMPORTER, F_OK)));
	}
	return SYS(open(IMPORTER, O_RDWR | O_CLOEXEC));
}

uint64_t function_number(const char *bdf)
{
	unsigned int domain, bus, device, function;

	CHECK_EQ(sscanf(bdf, "%x:%x:%x.%x", &domain, &bus, &device, &function), 4);
	return domain << 16 | bus << 8 | device << 3 | function;
}

uint64_t with_device_lock(const char *bdf, unsigned long command, uint64_t value)
{
	struct importer_args args = { .offset = function_number(bdf), .value = value };
	int importer = importer_open();

	CHECK_OK(try_ioctl(importer, command, &args));
	close(importer);
	return args.value;
}
