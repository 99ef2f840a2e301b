// SPDX-License-Identifier: MIT OR Apache-2.0
/* Dma-bufs of other drivers of the kernel, and other drivers that import the driver's. */
#define _GNU_SOURCE
#include "dmabuf.h"

#include "alloc.h"
#include "edu.h"
#include "memory.h"
#include "pins.h"

#include <drm/drm.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int vgem_open(void)
{
	char path[32], name[16] = "";
	struct drm_version version;

	for (int i = 128; i < 136; i++) {
		int fd;

		snprintf(path, sizeof(path), "/dev/dri/renderD%d", i);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		version = (struct drm_version){ .name = name, .name_len = sizeof(name) - 1 };
		if (!ioctl(fd, DRM_IOCTL_VERSION, &version) && !strcmp(name, "vgem"))
			return fd;
		close(fd);
	}
	SKIP("the kernel has no vgem");
}

static int try_vgem_import(int vgem, int dma_buf, uint32_t *handle)
{
	struct drm_prime_handle args = { .fd = dma_buf };
	int result = try_ioctl(vgem, DRM_IOCTL_PRIME_FD_TO_HANDLE, &args);

	*handle = args.handle;
	return result;
}

static void vgem_close(int vgem, uint32_t handle)
{
	struct drm_gem_close args = { .handle = handle };

	SYS(ioctl(vgem, DRM_IOCTL_GEM_CLOSE, &args));
}

static const struct allocated {
	const char *name;
	uint32_t flags;
} allocated[] = {
	{ "plain", 0 },
	{ "write_combined", PINMAP_ALLOC_WRITE_COMBINED },
};

/* Another driver of the kernel imports a dma-buf, and keeps the memory as long as it has it. */
TEST_EACH(vgem, allocated, .smoke = true)
{
	int vgem = vgem_open(), fd = open_device(0), dma_buf, again;
	struct registration memory = alloc_memory(fd, row->flags, HUGE + 17 * PAGE);
	struct drm_prime_handle back = { 0 };
	uint32_t handle;
	char *second;

	dma_buf = export_buffer(fd, memory.handle, EXPORT_WRITE);
	CHECK_OK(try_vgem_import(vgem, dma_buf, &handle));
	pattern_fill(memory.addr, memory.length, 50);
	close(dma_buf);
	release(fd, memory.handle);
	SYS(munmap(memory.addr, memory.length));
	close(fd);
	CHECK_EQ(pinned_kib(), memory.length / 1024);
	/* vgem gives back the same dma-buf */
	back.handle = handle;
	back.flags = DRM_CLOEXEC | DRM_RDWR;
	SYS(ioctl(vgem, DRM_IOCTL_PRIME_HANDLE_TO_FD, &back));
	again = back.fd;
	second = view(again, memory.length);
	CHECK(pattern_is(second, memory.length, 50));
	fd = open_device(0);
	{
		struct pinmap_import import = import_buffer(fd, again);
		struct edu edu = edu_open(fd);

		CHECK_REACHES(&edu, map(fd, import.out_handle, PINMAP_MAP_WRITE, 0), second, PAGE);
		release(fd, import.out_handle);
		edu_close(&edu);
	}
	SYS(munmap(second, memory.length));
	close(again);
	CHECK_EQ(pinned_kib(), memory.length / 1024);
	vgem_close(vgem, handle);
	CHECK(WAIT_FOR(2000, pinned_kib() == 0));
}

/* Registered memory is not for vgem, which cannot be made to let go. */
TEST(vgem_refused)
{
	int vgem = vgem_open(), fd = open_device(0), dma_buf;
	struct registration memory = register_memory(fd, anon(1), PAGE, WRITE);
	uint32_t handle;

	dma_buf = export_buffer(fd, memory.handle, EXPORT_WRITE);
	CHECK_ERR(EOPNOTSUPP, try_vgem_import(vgem, dma_buf, &handle));
	release(fd, memory.handle);
	CHECK_ERR(EOPNOTSUPP, try_vgem_import(vgem, dma_buf, &handle));
	CHECK_PINS_SOON(0);
}
