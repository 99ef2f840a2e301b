// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "bench.h"
#include "floor/floor.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <libgen.h>
#include <linux/iommufd.h>
#include <linux/pinmap.h>
#include <linux/udmabuf.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

/* --- functions --- */

static bool file_is(const char *path, const char *text)
{
	char content[32] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	if (read(fd, content, sizeof(content) - 1) < 0)
		content[0] = '\0';
	close(fd);
	return !strncmp(content, text, strlen(text));
}

size_t functions_find(struct function functions[MAX_FUNCTIONS])
{
	char path[PATH_MAX];
	size_t count = 0;
	glob_t found;

	if (glob("/sys/bus/pci/devices/*", 0, NULL, &found))
		DIE("there is no PCI");
	for (size_t i = 0; i < found.gl_pathc && count < MAX_FUNCTIONS; i++) {
		snprintf(path, sizeof(path), "%s/vendor", found.gl_pathv[i]);
		if (!file_is(path, "0x1234"))
			continue;
		snprintf(path, sizeof(path), "%s/device", found.gl_pathv[i]);
		if (!file_is(path, "0x11e8"))
			continue;
		snprintf(functions[count++].bdf, sizeof(functions->bdf), "%s",
			 basename(found.gl_pathv[i]));
	}
	globfree(&found);
	return count;
}

void function_bind(const char *bdf, const char *driver)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/driver/unbind", bdf);
	try_write_file(path, bdf);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/driver_override", bdf);
	write_file(path, driver);
	write_file("/sys/bus/pci/drivers_probe", bdf);
	snprintf(path, sizeof(path), "/sys/bus/pci/drivers/%s/%s", driver, bdf);
	if (access(path, F_OK))
		DIE("%s does not take %s", driver, bdf);
}

/* The only name in a directory below the function's. */
static void name_below(const char *bdf, const char *pattern, char name[64])
{
	char path[PATH_MAX];
	glob_t found;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/%s", bdf, pattern);
	if (glob(path, 0, NULL, &found) || found.gl_pathc != 1)
		DIE("there is no %s", path);
	snprintf(name, 64, "%s", basename(found.gl_pathv[0]));
	globfree(&found);
}

/* --- pinmap --- */

static int pinmap_fd;

static void pinmap_open(const char *bdf)
{
	char name[64], path[128];

	name_below(bdf, "misc/pinmap*", name);
	snprintf(path, sizeof(path), "/dev/%s", name);
	pinmap_fd = SYS(open(path, O_RDWR | O_CLOEXEC));
}

static void pinmap_add(const struct memory *memory, char *addr, size_t length, uint64_t *token)
{
	struct pinmap_register args = { .size = sizeof(args),
					.flags = PINMAP_REGISTER_WRITE,
					.addr = (uintptr_t)addr,
					.length = length };

	(void)memory;
	SYS(ioctl(pinmap_fd, PINMAP_REGISTER, &args));
	*token = args.out_handle;
}

static void pinmap_remove(char *addr, size_t length, uint64_t token)
{
	struct pinmap_release args = { .size = sizeof(args), .handle = token };

	(void)addr;
	(void)length;
	SYS(ioctl(pinmap_fd, PINMAP_RELEASE, &args));
}

void pinmap_add_all(char *const addrs[BATCH], uint64_t handles[BATCH])
{
	struct pinmap_registration entries[BATCH] = {};
	struct pinmap_register_buffers args = { .size = sizeof(args),
						.flags = PINMAP_REGISTER_WRITE,
						.buffers = (uintptr_t)entries,
						.count = BATCH };

	for (unsigned int i = 0; i < BATCH; i++) {
		entries[i].addr = (uintptr_t)addrs[i];
		entries[i].length = PAGE;
	}
	SYS(ioctl(pinmap_fd, PINMAP_REGISTER_BUFFERS, &args));
	for (unsigned int i = 0; i < BATCH; i++)
		handles[i] = entries[i].out_handle;
}

void pinmap_remove_all(const uint64_t handles[BATCH])
{
	struct pinmap_release_buffers args = { .size = sizeof(args),
					       .handles = (uintptr_t)handles,
					       .count = BATCH };

	SYS(ioctl(pinmap_fd, PINMAP_RELEASE_BUFFERS, &args));
}

const struct system pinmap_system = { .name = "pinmap",
				      .driver = "pinmap",
				      .open = pinmap_open,
				      .add = pinmap_add,
				      .remove = pinmap_remove };

struct pinmap_memory pinmap_alloc_memory(size_t length)
{
	struct pinmap_alloc alloc = { .size = sizeof(alloc), .length = length };
	struct pinmap_map map = { .size = sizeof(map),
				  .flags = PINMAP_MAP_WRITE | PINMAP_MAP_FIXED };
	struct pinmap_memory memory;

	SYS(ioctl(pinmap_fd, PINMAP_ALLOC, &alloc));
	memory.handle = alloc.out_handle;
	memory.addr = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, pinmap_fd,
			       (off_t)alloc.out_offset));
	map.handle = alloc.out_handle;
	map.device_addr = (uintptr_t)memory.addr;
	SYS(ioctl(pinmap_fd, PINMAP_MAP, &map));
	return memory;
}

void pinmap_free_memory(struct pinmap_memory memory, size_t length)
{
	pinmap_remove(memory.addr, length, memory.handle);
	SYS(munmap(memory.addr, length));
}

/* --- iommufd --- */

static int iommufd;
static uint32_t ioas;

static void iommufd_open(const char *bdf)
{
	struct vfio_device_bind_iommufd bind = { .argsz = sizeof(bind) };
	struct vfio_device_attach_iommufd_pt attach = { .argsz = sizeof(attach) };
	struct iommu_ioas_alloc alloc = { .size = sizeof(alloc) };
	char name[64], path[128];
	int device;

	name_below(bdf, "vfio-dev/vfio*", name);
	snprintf(path, sizeof(path), "/dev/vfio/devices/%s", name);
	device = SYS(open(path, O_RDWR | O_CLOEXEC));
	iommufd = SYS(open("/dev/iommu", O_RDWR | O_CLOEXEC));
	bind.iommufd = iommufd;
	SYS(ioctl(device, VFIO_DEVICE_BIND_IOMMUFD, &bind));
	SYS(ioctl(iommufd, IOMMU_IOAS_ALLOC, &alloc));
	ioas = alloc.out_ioas_id;
	attach.pt_id = ioas;
	SYS(ioctl(device, VFIO_DEVICE_ATTACH_IOMMUFD_PT, &attach));
}

static void iommufd_add(const struct memory *memory, char *addr, size_t length, uint64_t *token)
{
	struct iommu_ioas_map map = {
		.size = sizeof(map),
		.flags = IOMMU_IOAS_MAP_FIXED_IOVA | IOMMU_IOAS_MAP_READABLE |
			 IOMMU_IOAS_MAP_WRITEABLE,
		.ioas_id = ioas,
		.user_va = (uintptr_t)addr,
		.length = length,
		.iova = (uintptr_t)addr,
	};

	(void)memory;
	(void)token;
	SYS(ioctl(iommufd, IOMMU_IOAS_MAP, &map));
}

static void iommufd_remove(char *addr, size_t length, uint64_t token)
{
	struct iommu_ioas_unmap unmap = {
		.size = sizeof(unmap), .ioas_id = ioas, .iova = (uintptr_t)addr, .length = length
	};

	(void)token;
	SYS(ioctl(iommufd, IOMMU_IOAS_UNMAP, &unmap));
}

const struct system iommufd_system = { .name = "iommufd",
				       .driver = "vfio-pci",
				       .open = iommufd_open,
				       .add = iommufd_add,
				       .remove = iommufd_remove };

/* --- VFIO type1 --- */

static int container;

static void vfio_open(const char *bdf)
{
	char path[PATH_MAX], target[PATH_MAX], node[64];
	ssize_t length;
	int group;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/iommu_group", bdf);
	length = SYS(readlink(path, target, sizeof(target) - 1));
	target[length] = '\0';
	snprintf(node, sizeof(node), "/dev/vfio/%.16s", basename(target));
	container = SYS(open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC));
	group = SYS(open(node, O_RDWR | O_CLOEXEC));
	SYS(ioctl(group, VFIO_GROUP_SET_CONTAINER, &container));
	SYS(ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU));
}

static void vfio_add(const struct memory *memory, char *addr, size_t length, uint64_t *token)
{
	struct vfio_iommu_type1_dma_map map = {
		.argsz = sizeof(map),
		.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
		.vaddr = (uintptr_t)addr,
		.iova = (uintptr_t)addr,
		.size = length,
	};

	(void)memory;
	(void)token;
	SYS(ioctl(container, VFIO_IOMMU_MAP_DMA, &map));
}

static void vfio_remove(char *addr, size_t length, uint64_t token)
{
	struct vfio_iommu_type1_dma_unmap unmap = { .argsz = sizeof(unmap),
						    .iova = (uintptr_t)addr,
						    .size = length };

	(void)token;
	SYS(ioctl(container, VFIO_IOMMU_UNMAP_DMA, &unmap));
	if (unmap.size != length)
		DIE("VFIO unmapped %llu of %zu bytes", (unsigned long long)unmap.size, length);
}

const struct system vfio_system = { .name = "vfio",
				    .driver = "vfio-pci",
				    .open = vfio_open,
				    .add = vfio_add,
				    .remove = vfio_remove };

/* --- udmabuf: pins, but maps for no device --- */

static int udmabuf_fd;

static void udmabuf_open(const char *bdf)
{
	(void)bdf;
	udmabuf_fd = SYS(open("/dev/udmabuf", O_RDWR | O_CLOEXEC));
	write_file("/sys/module/udmabuf/parameters/size_limit_mb", "4096");
}

static bool udmabuf_fits(const struct memory *memory)
{
	return memory->fd >= 0;
}

static void udmabuf_add(const struct memory *memory, char *addr, size_t length, uint64_t *token)
{
	struct udmabuf_create create = {
		.memfd = (uint32_t)memory->fd,
		.flags = UDMABUF_FLAGS_CLOEXEC,
		.offset = (uint64_t)(addr - memory->addr),
		.size = length,
	};

	*token = (uint64_t)SYS(ioctl(udmabuf_fd, UDMABUF_CREATE, &create));
}

static void udmabuf_remove(char *addr, size_t length, uint64_t token)
{
	(void)addr;
	(void)length;
	SYS(close((int)token));
}

const struct system udmabuf_system = { .name = "udmabuf",
				       .open = udmabuf_open,
				       .fits = udmabuf_fits,
				       .add = udmabuf_add,
				       .remove = udmabuf_remove };

/* --- the floor --- */

static int floor_fd;

static void floor_open(const char *bdf)
{
	(void)bdf;
	floor_fd = SYS(open("/dev/" BENCH_FLOOR_NODE, O_RDWR | O_CLOEXEC));
}

static void floor_measure(char *addr, size_t length, uint64_t *add_ns, uint64_t *remove_ns)
{
	struct bench_floor floor = { .addr = (uintptr_t)addr, .length = length };

	SYS(ioctl(floor_fd, BENCH_FLOOR_RUN, &floor));
	*add_ns = floor.out_pin_ns + floor.out_map_ns;
	*remove_ns = floor.out_unmap_ns + floor.out_unpin_ns;
}

const struct system floor_system = {
	.name = "floor", .driver = "bench-floor", .open = floor_open, .measure = floor_measure
};
