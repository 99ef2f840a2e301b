// SPDX-License-Identifier: MIT OR Apache-2.0
/* dma-bufs of other drivers, which a device reaches by IMPORT. */
#define _GNU_SOURCE
#include "peer.h"

#include "file.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Newer than the headers of the build root. */
#ifndef VFIO_DEVICE_FEATURE_DMA_BUF
#define VFIO_DEVICE_FEATURE_DMA_BUF 11
struct vfio_region_dma_range {
	__u64 offset;
	__u64 length;
};
struct vfio_device_feature_dma_buf {
	__u32 region_index;
	__u32 open_flags;
	__u32 flags;
	__u32 nr_ranges;
	struct vfio_region_dma_range dma_ranges[];
};
#endif

int udmabuf_new(size_t length)
{
	struct udmabuf_create create = { .size = length };
	int udmabuf = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), dma_buf;

	if (udmabuf < 0)
		SKIP("the kernel has no udmabuf");
	create.memfd = new_memfd(length, MFD_ALLOW_SEALING);
	SYS(fcntl(create.memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	dma_buf = SYS(ioctl(udmabuf, UDMABUF_CREATE, &create));
	close(create.memfd);
	close(udmabuf);
	return dma_buf;
}

static int heap_new(size_t length)
{
	struct dma_heap_allocation_data data = { .len = length, .fd_flags = O_RDWR | O_CLOEXEC };
	int heap = open("/dev/dma_heap/system", O_RDONLY | O_CLOEXEC);

	if (heap < 0)
		SKIP("the kernel has no heap of the system");
	SYS(ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &data));
	close(heap);
	return data.fd;
}

static const struct exporter {
	const char *name;
	int (*make)(size_t length);
} exporters[] = {
	{ "udmabuf", udmabuf_new },
	{ "system_heap", heap_new },
};

/* Host memory of another driver is reached where the program sees it, and let go of. */
TEST_EACH(host_memory, exporters)
{
	const size_t length = HUGE + 5 * PAGE;
	int dma_buf = row->make(length), fd = open_function(need_edu(0));
	char *memory = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, dma_buf, 0));
	struct pinmap_import import;
	struct edu edu = edu_open(fd);
	uint64_t at;

	memset(memory, 0x11, length);
	import = import_buffer(fd, dma_buf);
	CHECK_EQ(import.out_length, length);
	CHECK_EQ(import.out_flags, PINMAP_EXPORT_WRITE);
	at = map(fd, import.out_handle, PINMAP_MAP_WRITE, 0);
	for (size_t page = 0; page < length; page += HUGE / 4)
		CHECK_REACHES(&edu, at + page, memory + page, PAGE);
	/* who has it from another driver does not export it */
	CHECK_ERR(EOPNOTSUPP, try_export(fd, import.out_handle, 0));
	CHECK_OK(try_sync(fd, import.out_handle, PINMAP_SYNC_FOR_CPU, 0, length));
	release(fd, import.out_handle);
	at = 0;
	CHECK_ERR(ESTALE, try_map(fd, import.out_handle, 0, &at, &(struct pinmap_fail){ 0 }));
	edu_close(&edu);
	close(dma_buf);
}

/* The memory stays as long as the import, whoever else has let go of it; then it is freed. */
TEST(host_memory_outlives_its_descriptor)
{
	int dma_buf = udmabuf_new(4 * PAGE), fd = open_function(need_edu(0));
	struct pinmap_import import = import_buffer(fd, dma_buf);
	struct edu edu = edu_open(fd);
	char *memory = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, dma_buf, 0));
	uint64_t at = map(fd, import.out_handle, PINMAP_MAP_WRITE, 0);

	close(dma_buf);
	CHECK_REACHES(&edu, at, memory, PAGE);
	SYS(munmap(memory, PAGE));
	edu_close(&edu);
	close(fd);
	CHECK_PINS_SOON(0);
}

/* An import is charged to who imports: the kernel keeps tables for it. */
TEST(host_memory_is_charged)
{
	int dma_buf = udmabuf_new(HUGE), fd;
	struct pinmap_import import;
	struct pinmap_info before;

	need_edu(0);
	set_memlock(HUGE / 64 + PAGE);
	become_user(true);
	fd = open_function(need_edu(0));
	before = get_info(fd);
	import = import_buffer(fd, dma_buf);
	CHECK_EQ(get_info(fd).out_memlock_used, before.out_memlock_used + HUGE / 64);
	CHECK_ERR(ENOMEM, try_import(fd, dma_buf, &import));
	close(fd);
	fd = open_function(need_edu(0));
	CHECK(WAIT_FOR(2000, get_info(fd).out_memlock_used == before.out_memlock_used));
}

/* A device that is unbound keeps nothing of another driver. */
TEST(host_memory_ends_with_the_device)
{
	struct pci_device device = need_device(0);
	int dma_buf = udmabuf_new(4 * PAGE), fd = open_device(0);
	struct pinmap_import import = import_buffer(fd, dma_buf);

	map(fd, import.out_handle, PINMAP_MAP_WRITE, 0);
	close(dma_buf);
	pci_unbind(device.bdf);
	CHECK_PINS_SOON(0);
	close(fd);
	pci_bind(device.bdf);
}

/**
 * struct vfio - a function that VFIO has
 * @bdf: its address
 * @container: of its group
 * @group: its group
 * @device: the function
 */
struct vfio {
	char bdf[16];
	int container, group, device;
};

static struct vfio vfio_open(void)
{
	char path[PATH_MAX], target[PATH_MAX], *number;
	struct vfio vfio;
	ssize_t length;

	if (!pci_spare(SPARE_VENDOR, SPARE_DEVICE, vfio.bdf))
		SKIP("there is no function without a driver");
	file_write(pci_path(vfio.bdf, "driver_override"), "vfio-pci");
	if (try_file_write("/sys/bus/pci/drivers_probe", vfio.bdf) ||
	    access(pci_path(vfio.bdf, "driver"), F_OK))
		SKIP("the kernel has no vfio-pci");
	length = SYS(readlink(pci_path(vfio.bdf, "iommu_group"), target, sizeof(target) - 1));
	target[length] = '\0';
	number = strrchr(target, '/') + 1;
	vfio.container = SYS(open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC));
	snprintf(path, sizeof(path), "/dev/vfio/%.16s", number);
	vfio.group = SYS(open(path, O_RDWR | O_CLOEXEC));
	SYS(ioctl(vfio.group, VFIO_GROUP_SET_CONTAINER, &vfio.container));
	SYS(ioctl(vfio.container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU));
	vfio.device = SYS(ioctl(vfio.group, VFIO_GROUP_GET_DEVICE_FD, vfio.bdf));
	return vfio;
}

static void vfio_close(const struct vfio *vfio)
{
	close(vfio->device);
	close(vfio->group);
	close(vfio->container);
	file_write(pci_path(vfio->bdf, "driver/unbind"), vfio->bdf);
	file_write(pci_path(vfio->bdf, "driver_override"), "\n");
}

/* Exports the first page of BAR 0. */
static int vfio_export(const struct vfio *vfio)
{
	struct {
		struct vfio_device_feature feature;
		struct vfio_device_feature_dma_buf dma_buf;
		struct vfio_region_dma_range range;
	} args = {
		.feature.argsz = sizeof(args),
		.feature.flags = VFIO_DEVICE_FEATURE_GET | VFIO_DEVICE_FEATURE_DMA_BUF,
		.dma_buf.open_flags = O_RDWR | O_CLOEXEC,
		.dma_buf.nr_ranges = 1,
		.range.length = PAGE,
	};
	int dma_buf = ioctl(vfio->device, VFIO_DEVICE_FEATURE, &args);

	if (dma_buf < 0 && (errno == ENOTTY || errno == EOPNOTSUPP))
		SKIP("the kernel's VFIO exports no BARs");
	return SYS(dma_buf);
}

/* The capabilities of the controller, by DMA of an edu from its registers. */
static uint64_t dma_load(const struct edu *edu, uint64_t at)
{
	uint64_t *word = (uint64_t *)anon(1), value;
	struct registration target = register_memory(edu->fd, word, PAGE, WRITE);

	edu_reads(edu, at, sizeof(*word));
	edu_writes(edu, target.device_addr, sizeof(*word));
	value = *(volatile uint64_t *)word;
	release(edu->fd, target.handle);
	return value;
}

/* Registers that VFIO exports are reached until VFIO takes them back. */
TEST(vfio_bar, .faults = true)
{
	struct pinmap_import import, late;
	struct pinmap_event event;
	struct vfio vfio;
	struct edu edu;
	uint64_t at, capabilities = 0;
	int fd, dma_buf;

	need_peers();
	fd = open_function(need_edu(0));
	vfio = vfio_open();
	dma_buf = vfio_export(&vfio);
	edu = edu_open(fd);
	CHECK_EQ(pread(vfio.device, &capabilities, 8, 0), 8);
	CHECK(capabilities != 0 && capabilities != ~0ull);
	import = import_buffer(fd, dma_buf);
	CHECK_EQ(import.out_length, PAGE);
	at = map(fd, import.out_handle, PINMAP_MAP_WRITE, 0);
	CHECK_EQ(dma_load(&edu, at), capabilities);
	CHECK_ERR(EOPNOTSUPP, try_export(fd, import.out_handle, 0));
	/* VFIO waits until it has its registers back */
	close(vfio.device);
	event = next_event(fd);
	CHECK_EQ(event.type, PINMAP_EVENT_STALE);
	CHECK_EQ(event.handle, import.out_handle);
	CHECK(dma_load(&edu, at) != capabilities);
	CHECK_ERR(ESTALE, try_import(fd, dma_buf, &late));
	release(fd, import.out_handle);
	close(dma_buf);
	vfio.device = SYS(ioctl(vfio.group, VFIO_GROUP_GET_DEVICE_FD, vfio.bdf));
	vfio_close(&vfio);
	edu_close(&edu);
}

/* Without a way on the bus, VFIO's registers are refused. */
TEST(vfio_bar_without_a_way)
{
	struct pinmap_import import;
	struct vfio vfio;
	int fd, dma_buf;

	if (pci_peers())
		SKIP("the bus of this machine lets devices reach each other");
	fd = open_function(need_edu(0));
	vfio = vfio_open();
	dma_buf = vfio_export(&vfio);
	CHECK_ERR(EREMOTEIO, try_import(fd, dma_buf, &import));
	CHECK_EQ(get_info(fd).out_registrations, 0);
	close(dma_buf);
	vfio_close(&vfio);
}
