// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Every allocation fails once, and every copy from and to user space, on a paged device (see
 * inject.h).
 */
#define _GNU_SOURCE
#include "gpu.h"
#include "inject.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 2000, PAGES = 600 };

struct scenario;

/* State of a scenario; made before failures begin. */
struct scene {
	const struct scenario *scenario;
	const char *node;
	int other; /* a context that stays */
	uint64_t vram; /* free, before the first time */
	long long pins;
	struct pinmap_info info; /* before the call */
	uint64_t vram_left;
	int fd;
	char *memory;
	char *blocks; /* whole blocks of 2 MiB */
	struct registration pinned;
	uint64_t mapped;
	struct pinmap_alloc host;
	struct pinmap_queue_create queue;
	uint64_t managed;
	int tells;
	void *view;
};

static int do_open(struct scene *scene)
{
	int fd = open(scene->node, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	close(scene->fd);
	scene->fd = fd;
	return 0;
}

static int do_alloc(struct scene *scene, uint32_t flags, size_t length)
{
	struct pinmap_alloc args;

	return try_alloc(scene->fd, flags, length, &args);
}

static int do_alloc_host(struct scene *scene)
{
	return do_alloc(scene, 0, 20 * PAGE);
}

static int do_alloc_huge(struct scene *scene)
{
	return do_alloc(scene, 0, 2 * HUGE + PAGE);
}

static int do_alloc_vram(struct scene *scene)
{
	return do_alloc(scene, PINMAP_ALLOC_VRAM, MIB);
}

static int do_queue_create(struct scene *scene)
{
	struct pinmap_queue_create args;

	return try_queue_create(scene->fd, GPU_BOTH, GPU_PACKETS, &args);
}

static int do_queue_destroy(struct scene *scene)
{
	return try_queue_destroy(scene->fd, scene->queue.out_queue);
}

static int do_queue_notify(struct scene *scene)
{
	return try_queue_notify(scene->fd, scene->queue.out_queue, 0, ~0ULL, scene->tells);
}

static int do_register(struct scene *scene)
{
	struct registration registration;

	return try_register_memory(scene->fd, scene->memory, PAGES * PAGE, WRITE, &registration);
}

static int do_map(struct scene *scene)
{
	struct pinmap_fail fail;
	uint64_t device_addr = 0;

	return try_map(scene->fd, scene->pinned.handle, PINMAP_MAP_WRITE, &device_addr, &fail);
}

static int do_unmap(struct scene *scene)
{
	return try_unmap(scene->fd, scene->pinned.handle, scene->mapped);
}

static int do_release(struct scene *scene)
{
	return try_release(scene->fd, scene->pinned.handle);
}

static int do_view(struct scene *scene)
{
	scene->view = mmap(NULL, 20 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, scene->fd,
			   scene->host.out_offset);
	return scene->view == MAP_FAILED ? -errno : 0;
}

static int do_munmap(struct scene *scene)
{
	return munmap(scene->memory, PAGES * PAGE) ? -errno : 0;
}

static int do_close(struct scene *scene)
{
	close(scene->fd);
	scene->fd = -1;
	return 0;
}

static int manage_some(struct scene *scene, uint32_t flags, const void *addr, size_t length)
{
	struct pinmap_manage args;
	int error = try_manage(scene->fd, flags, addr, length, &args);

	scene->managed = args.out_handle;
	return error;
}

static int do_manage(struct scene *scene)
{
	return manage_some(scene, 0, scene->memory, PAGES * PAGE);
}

static int do_manage_all(struct scene *scene)
{
	return manage_some(scene, PINMAP_MANAGE_ALL, NULL, 0);
}

static int do_manage_window(struct scene *scene)
{
	return manage_some(scene, PINMAP_MANAGE_WINDOW, scene->blocks, 2 * HUGE);
}

static int do_release_managed(struct scene *scene)
{
	return try_release(scene->fd, scene->managed);
}

/* State that a scenario needs beforehand. */
enum { NOTHING = 0, PINNED = 1, MAPPED = 2, HOST = 4, QUEUE = 8, MANAGED = 16 };

static const struct scenario {
	const char *name;
	int before;
	int (*call)(struct scene *scene);
} scenarios[] = {
	{ "open", NOTHING, do_open },
	{ "alloc_host", NOTHING, do_alloc_host },
	{ "alloc_huge", NOTHING, do_alloc_huge },
	{ "alloc_vram", NOTHING, do_alloc_vram },
	{ "queue_create", NOTHING, do_queue_create },
	{ "queue_create_second", QUEUE, do_queue_create },
	{ "queue_destroy", QUEUE, do_queue_destroy },
	{ "queue_notify", QUEUE, do_queue_notify },
	{ "register", NOTHING, do_register },
	{ "register_in_use", QUEUE, do_register },
	{ "map", PINNED, do_map },
	{ "map_in_use", PINNED | QUEUE, do_map },
	{ "unmap", PINNED | MAPPED | QUEUE, do_unmap },
	{ "release", PINNED | MAPPED | QUEUE, do_release },
	{ "munmap", PINNED | MAPPED | QUEUE, do_munmap },
	{ "manage", NOTHING, do_manage },
	{ "manage_all", QUEUE, do_manage_all },
	{ "manage_window", QUEUE, do_manage_window },
	{ "release_managed", MANAGED | QUEUE, do_release_managed },
	{ "munmap_managed", MANAGED | QUEUE, do_munmap },
	{ "register_managed", MANAGED | QUEUE, do_register },
	{ "close_managed", MANAGED | QUEUE, do_close },
	{ "mmap", HOST, do_view },
	{ "close", PINNED | MAPPED | HOST | QUEUE, do_close },
};

static void set(void *data)
{
	struct scene *scene = data;
	const struct scenario *scenario = scene->scenario;

	scene->fd = SYS(open(scene->node, O_RDWR | O_CLOEXEC));
	scene->memory = anon(PAGES);
	scene->blocks = address_space(2 * HUGE, HUGE);
	scene->tells = -1;
	scene->view = NULL;
	if (scenario->before & PINNED)
		scene->pinned =
			register_memory(scene->fd, scene->memory, PAGES * PAGE, WRITE | NO_MAP);
	if (scenario->before & MAPPED)
		scene->mapped = map(scene->fd, scene->pinned.handle, PINMAP_MAP_WRITE, 0);
	if (scenario->before & HOST)
		CHECK_OK(try_alloc(scene->fd, 0, 20 * PAGE, &scene->host));
	if (scenario->before & QUEUE) {
		/* with a VMID, so that the device has to be asked to forget */
		struct gpu_queue queue = queue_new(scene->fd);

		scene->queue = queue.args;
		scene->tells = SYS(eventfd(0, EFD_CLOEXEC));
		if (scenario->before & MANAGED) {
			CHECK_OK(manage_some(scene, PINMAP_MANAGE_HOST, scene->memory,
					     PAGES * PAGE));
			queue_push(&queue, GPU_FILL, (uintptr_t)scene->memory, PAGES * PAGE, 1);
		}
		queue_finish(&queue);
		queue_unmap(&queue);
	}
	scene->info = get_info(scene->fd);
	scene->vram_left = vram_free(scene->fd);
}

static int make_call(void *data)
{
	struct scene *scene = data;

	return scene->scenario->call(scene);
}

/* A call that fails has changed nothing, and works the next time. */
static void check_unchanged(void *data)
{
	struct scene *scene = data;
	const struct scenario *scenario = scene->scenario;
	struct pinmap_info info = get_info(scene->fd);

	CHECK_EQ(info.out_registrations, scene->info.out_registrations);
	CHECK_EQ(info.out_memlock_used, scene->info.out_memlock_used);
	CHECK_EQ(vram_free(scene->fd), scene->vram_left);
	if (scenario->before & PINNED)
		CHECK_EQ(query_handle(scene->fd, scene->pinned.handle).out_nr_mappings,
			 !!(scenario->before & MAPPED));
	CHECK_OK(scenario->call(scene));
}

static void strike_set(void *data, int result)
{
	struct scene *scene = data;

	(void)result;
	if (scene->view && scene->view != MAP_FAILED)
		munmap(scene->view, 20 * PAGE);
	if (scene->fd >= 0)
		close(scene->fd);
	if (scene->tells >= 0)
		close(scene->tells);
	munmap(scene->memory, PAGES * PAGE);
	munmap(scene->blocks, 2 * HUGE);
	CHECK_PINS_SOON(scene->pins);
	CHECK(WAIT_FOR(2000, vram_free(scene->other) == scene->vram));
}

TEST_EACH(fail, scenarios, .seconds = 120)
{
	static const struct attempt attempt = { set, make_call, check_unchanged, strike_set };
	struct scene scene = { .scenario = row };
	struct pci_device device;

	need_injection();
	scene.other = open_gpu();
	if (strstr(row->name, "manage") && !(get_info(scene.other).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel lets no driver follow the memory of programs");
	snprintf(device.bdf, sizeof(device.bdf), "%s", need_gpu());
	pci_look(&device);
	scene.node = device.node;
	scene.vram = vram_free(scene.other);
	scene.pins = pins_held();
	fail_each(&attempt, &scene, MOST);
	/* a page that is lost can be one that was set aside for the tables of a context */
	close(scene.other);
	scene.other = open_gpu();
	CHECK(WAIT_FOR(2000, vram_free(scene.other) == scene.vram));
}
