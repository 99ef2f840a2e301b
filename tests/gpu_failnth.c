// SPDX-License-Identifier: MIT OR Apache-2.0
/* Group H for paged devices: every allocation fails once, and every copy from and to user space (see failnth.c). */
#define _GNU_SOURCE
#include "gpu.h"
#include "inject.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 2000, PAGES = 600 };

/* What a scenario works with; made before failures begin. */
struct scene {
	const char *node;
	int fd;
	char *memory;
	struct registration pinned;
	uint64_t mapped;
	struct pinmap_alloc host;
	struct pinmap_queue_create queue;
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
	scene->view = mmap(NULL, 20 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, scene->fd, scene->host.out_offset);
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

/* What each scenario needs beforehand. */
enum { NOTHING = 0, PINNED = 1, MAPPED = 2, HOST = 4, QUEUE = 8 };

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
	{ "mmap", HOST, do_view },
	{ "close", PINNED | MAPPED | HOST | QUEUE, do_close },
};

static uint64_t vram_free(int fd)
{
	struct pinmap_gpu_info info = { .size = sizeof(info) };

	CHECK_OK(try_ioctl(fd, PINMAP_GPU_INFO, &info));
	return info.out_vram_free;
}

static struct scene set(const struct scenario *scenario, const char *node)
{
	struct scene scene = { .node = node, .fd = SYS(open(node, O_RDWR | O_CLOEXEC)), .memory = anon(PAGES), .tells = -1 };

	if (scenario->before & PINNED)
		scene.pinned = register_memory(scene.fd, scene.memory, PAGES * PAGE, WRITE | NO_MAP);
	if (scenario->before & MAPPED)
		scene.mapped = map(scene.fd, scene.pinned.handle, PINMAP_MAP_WRITE, 0);
	if (scenario->before & HOST)
		CHECK_OK(try_alloc(scene.fd, 0, 20 * PAGE, &scene.host));
	if (scenario->before & QUEUE) {
		/* with a VMID: the device has to be asked to forget */
		struct gpu_queue queue = queue_new(scene.fd);

		scene.queue = queue.args;
		scene.tells = SYS(eventfd(0, EFD_CLOEXEC));
		queue_finish(&queue);
		munmap((void *)queue.ring, queue.args.out_ring_length);
		munmap((void *)queue.fences, PAGE);
		munmap((void *)queue.doorbell, PAGE);
	}
	return scene;
}

static void strike_set(struct scene *scene)
{
	if (scene->view && scene->view != MAP_FAILED)
		munmap(scene->view, 20 * PAGE);
	if (scene->fd >= 0)
		close(scene->fd);
	if (scene->tells >= 0)
		close(scene->tells);
	munmap(scene->memory, PAGES * PAGE);
}

/* Runs it once with the n-th thing failing. Whether anything failed; counts when the call did. */
static bool try_nth(const struct scenario *scenario, struct scene *scene, unsigned int n, unsigned int *failed)
{
	uint64_t vram = vram_free(scene->fd);
	struct pinmap_info before = get_info(scene->fd), after;
	int result;
	bool struck;

	fail_begin(n);
	result = scenario->call(scene);
	struck = fail_end();
	if (!struck && result)
		FAIL("without a failure: %s", error_name(-result));
	if (!result)
		return struck;
	++*failed;
	/* a call that fails has changed nothing */
	after = get_info(scene->fd);
	CHECK_EQ(after.out_registrations, before.out_registrations);
	CHECK_EQ(after.out_memlock_used, before.out_memlock_used);
	CHECK_EQ(vram_free(scene->fd), vram);
	if (scenario->before & PINNED)
		CHECK_EQ(query_handle(scene->fd, scene->pinned.handle).out_nr_mappings, !!(scenario->before & MAPPED));
	/* and works the next time */
	CHECK_OK(scenario->call(scene));
	return struck;
}

TEST_EACH(fail, scenarios, .seconds = 120)
{
	unsigned int n, failed = 0;
	bool struck = true;
	uint64_t vram;
	long long pins;
	struct pci_device device;
	int fd;

	need_injection();
	fd = open_gpu();
	snprintf(device.bdf, sizeof(device.bdf), "%s", need_gpu());
	pci_look(&device);
	vram = vram_free(fd);
	pins = pins_held();
	for (n = 1; n < MOST && struck; n++) {
		struct scene scene = set(row, device.node);

		struck = try_nth(row, &scene, n, &failed);
		strike_set(&scene);
		CHECK_PINS_SOON(pins);
		CHECK(WAIT_FOR(2000, vram_free(fd) == vram));
	}
	CHECK(!struck);
	diag("%u injection points, %u of them made it fail", n - 2, failed);
}
