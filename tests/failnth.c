// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Group H: every allocation fails once, and every copy from and to user space.
 *
 * The kernel lets the n-th thing that can fail in a task fail (/proc/self/fail-nth). A scenario that works is run again
 * and again with n = 1, 2, 3, ... until nothing fails any more. What counts is not the result but that nothing leaks,
 * hangs or crashes, and that a call that failed has changed nothing.
 */
#define _GNU_SOURCE
#include "alloc.h"
#include "device.h"
#include "edu.h"
#include "file.h"
#include "inject.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"

#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 1000 };

/* What a scenario works with; made before failures begin. */
struct scene {
	struct pci_device device;
	struct memory memory;
	int fd;
	int eventfd;
	int dma_buf;
	struct registration pinned;
	uint64_t mapped;
	uint64_t bar;
	void *view;
};

static int do_open(struct scene *scene)
{
	int fd = open(scene->device.node, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	close(scene->fd);
	scene->fd = fd;
	return 0;
}

static int do_register(struct scene *scene, uint32_t flags)
{
	struct registration registration;

	return try_register_memory(scene->fd, scene->memory.addr, scene->memory.length, flags, &registration);
}

static int do_register_fd(struct scene *scene)
{
	struct pinmap_register_fd args = {
		.size = sizeof(args),
		.flags = WRITE,
		.fd = scene->memory.fd,
		.length = scene->memory.length,
	};

	return try_ioctl(scene->fd, PINMAP_REGISTER_FD, &args);
}

static int do_preflight(struct scene *scene)
{
	struct pinmap_preflight args = {
		.size = sizeof(args),
		.flags = WRITE,
		.addr = (uintptr_t)scene->memory.addr,
		.length = scene->memory.length,
	};

	return try_ioctl(scene->fd, PINMAP_PREFLIGHT, &args);
}

static int do_generations(struct scene *scene)
{
	struct pinmap_generations args = { .size = sizeof(args) };

	return try_ioctl(scene->fd, PINMAP_GENERATIONS, &args);
}

static int do_register_portable(struct scene *scene)
{
	int other = try_open_device(1), result;

	if (other < 0)
		return other;
	result = do_register(scene, WRITE | PINMAP_REGISTER_PORTABLE);
	close(other);
	return result;
}

static int do_register_write(struct scene *scene)
{
	return do_register(scene, WRITE);
}

static int do_register_pin(struct scene *scene)
{
	return do_register(scene, NO_MAP);
}

static int do_map(struct scene *scene)
{
	struct pinmap_fail fail;
	uint64_t device_addr = 0;

	return try_map(scene->fd, scene->pinned.handle, PINMAP_MAP_WRITE, &device_addr, &fail);
}

static int do_info(struct scene *scene)
{
	struct pinmap_info info;

	return try_get_info(scene->fd, &info);
}

static int do_query(struct scene *scene)
{
	struct pinmap_query query;

	return try_query_handle(scene->fd, scene->pinned.handle, &query);
}

static int do_vector(struct scene *scene)
{
	return try_set_eventfd(scene->fd, PINMAP_SOURCE_VECTOR, 0, scene->eventfd);
}

static int do_bar(struct scene *scene)
{
	scene->view = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, scene->fd, scene->bar);
	return scene->view == MAP_FAILED ? -errno : 0;
}

static int do_event(struct scene *scene)
{
	struct pinmap_event event;

	return read(scene->fd, &event, sizeof(event)) == sizeof(event) ? 0 : -errno;
}

static int do_unmap(struct scene *scene)
{
	return try_unmap(scene->fd, scene->pinned.handle, scene->mapped);
}

static int do_release(struct scene *scene)
{
	return try_release(scene->fd, scene->pinned.handle);
}

static int do_munmap(struct scene *scene)
{
	return munmap(scene->memory.addr, scene->memory.length) ? -errno : 0;
}

/* What the call left is not kept. It may be this that fails, once, for which "release" is the scenario. */
static int let_go(struct scene *scene, uint64_t handle)
{
	return try_release(scene->fd, handle) ? try_release(scene->fd, handle) : 0;
}

static int do_alloc_kind(struct scene *scene, uint32_t flags)
{
	struct pinmap_alloc args;
	int result = try_alloc(scene->fd, flags, HUGE + 17 * PAGE, &args);

	return result ? result : let_go(scene, args.out_handle);
}

static int do_alloc(struct scene *scene)
{
	return do_alloc_kind(scene, 0);
}

static int do_alloc_combined(struct scene *scene)
{
	return do_alloc_kind(scene, PINMAP_ALLOC_WRITE_COMBINED);
}

static int do_export(struct scene *scene)
{
	int dma_buf = try_export(scene->fd, scene->pinned.handle, PINMAP_EXPORT_WRITE);

	if (dma_buf < 0)
		return dma_buf;
	close(dma_buf);
	return 0;
}

static int do_import(struct scene *scene)
{
	struct pinmap_import args;
	int result = try_import(scene->fd, scene->dma_buf, &args);

	return result ? result : let_go(scene, args.out_handle);
}

static int do_sync(struct scene *scene)
{
	return try_sync(scene->fd, scene->pinned.handle, PINMAP_SYNC_FOR_CPU | PINMAP_SYNC_NO_SNOOP, 0, 600 * PAGE);
}

static int do_close(struct scene *scene)
{
	close(scene->fd);
	scene->fd = -1;
	return 0;
}

/* What each scenario needs beforehand. */
enum { NOTHING = 0, PINNED = 1, MAPPED = 2, STALE = 4, EXPORTED = 8 };

static const struct scenario {
	const char *name;
	enum memory_kind kind;
	size_t length;
	int before;
	int (*call)(struct scene *scene);
	const char *spared; /* a function of the kernel in which nothing shall fail */
} scenarios[] = {
	{ "open", ANON, PAGE, NOTHING, do_open },
	{ "register_4k", ANON, 600 * PAGE, NOTHING, do_register_write },
	{ "register_thp", THP, 2 * HUGE, NOTHING, do_register_write },
	{ "register_hugetlb", HUGETLB, HUGE, NOTHING, do_register_write },
	{ "register_private_file", MEMFD_PRIVATE, 16 * PAGE, NOTHING, do_register_write },
	{ "register_no_map", ANON, 600 * PAGE, NOTHING, do_register_pin },
	{ "register_fd", MEMFD, 600 * PAGE, NOTHING, do_register_fd },
	{ "register_fd_hugetlb", HUGETLB, HUGE, NOTHING, do_register_fd },
	{ "register_portable", ANON, 16 * PAGE, NOTHING, do_register_portable },
	{ "preflight", ANON, 16 * PAGE, NOTHING, do_preflight },
	{ "generations", ANON, PAGE, NOTHING, do_generations },
	{ "map", ANON, 600 * PAGE, PINNED, do_map },
	{ "get_info", ANON, PAGE, NOTHING, do_info },
	{ "query", ANON, PAGE, PINNED, do_query },
	/* /proc/irq: the kernel warns when it removes what it could not make */
	{ "interrupt", ANON, PAGE, NOTHING, do_vector, "register_irq_proc" },
	{ "bar", ANON, PAGE, NOTHING, do_bar },
	{ "read_event", ANON, PAGE, PINNED | STALE, do_event },
	{ "unmap", ANON, 600 * PAGE, PINNED | MAPPED, do_unmap },
	{ "release", ANON, 600 * PAGE, PINNED | MAPPED, do_release },
	{ "munmap", ANON, 600 * PAGE, PINNED | MAPPED, do_munmap },
	{ "close", ANON, 600 * PAGE, PINNED | MAPPED, do_close },
	{ "alloc", ANON, PAGE, NOTHING, do_alloc },
	{ "alloc_write_combined", ANON, PAGE, NOTHING, do_alloc_combined },
	{ "export", ANON, 600 * PAGE, PINNED, do_export },
	{ "import", ANON, 600 * PAGE, PINNED | EXPORTED, do_import },
	{ "sync", ANON, 600 * PAGE, PINNED, do_sync },
};

static struct scene set(const struct scenario *scenario)
{
	struct scene scene = { .device = need_device(0), .fd = open_device(0) };

	scene.memory = memory_new(scenario->kind, scenario->length);
	scene.eventfd = SYS(eventfd(0, EFD_CLOEXEC));
	scene.bar = get_info(scene.fd).out_bars[0].offset;
	if (scenario->before & PINNED)
		scene.pinned = register_memory(scene.fd, scene.memory.addr, scene.memory.length, WRITE | NO_MAP);
	if (scenario->before & MAPPED)
		scene.mapped = map(scene.fd, scene.pinned.handle, PINMAP_MAP_WRITE, 0);
	scene.dma_buf = -1;
	if (scenario->before & EXPORTED)
		scene.dma_buf = export_buffer(scene.fd, scene.pinned.handle, PINMAP_EXPORT_WRITE);
	if (scenario->before & STALE) {
		SYS(munmap(scene.memory.addr, PAGE));
		CHECK(WAIT_FOR(2000, query_handle(scene.fd, scene.pinned.handle).out_state == PINMAP_STATE_STALE));
	}
	return scene;
}

static void strike_set(struct scene *scene)
{
	if (scene->view && scene->view != MAP_FAILED)
		munmap(scene->view, PAGE);
	if (scene->fd >= 0)
		close(scene->fd);
	close(scene->eventfd);
	if (scene->dma_buf >= 0)
		close(scene->dma_buf);
	memory_free(&scene->memory);
}

/* Runs it once with the n-th thing failing. Whether anything failed; counts when the call did. */
static bool try_nth(const struct scenario *scenario, struct scene *scene, unsigned int n, unsigned int *failed)
{
	struct pinmap_info info;
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
	info = get_info(scene->fd);
	CHECK_EQ(info.out_registrations, !!(scenario->before & PINNED));
	/* when the kernel fails after the driver's part of mmap() is done, that is not undone */
	if (!(scenario->before & MAPPED) && scenario->call != do_bar)
		CHECK_EQ(info.out_flags & PINMAP_INFO_OWNED, 0);
	if (scenario->call != do_event && scenario->before & PINNED)
		CHECK_EQ(query_handle(scene->fd, scene->pinned.handle).out_nr_mappings, !!(scenario->before & MAPPED));
	/* and works the next time */
	CHECK_OK(scenario->call(scene));
	return struck;
}

TEST_EACH(fail, scenarios, .seconds = 60)
{
	unsigned int n, failed = 0;
	bool struck = true;
	long long pins;

	need_injection();
	if (row->spared)
		fail_spare(row->spared);
	pins = pins_held();
	for (n = 1; n < MOST && struck; n++) {
		struct scene scene = set(row);

		struck = try_nth(row, &scene, n, &failed);
		strike_set(&scene);
		CHECK_PINS_SOON(pins);
	}
	CHECK(!struck);
	diag("%u injection points, %u of them made it fail", n - 2, failed);
}

/* The same for the driver's probe. Binding takes long, so the device stays unbound while it fails. */
TEST(fail_probe, .seconds = 60)
{
	struct pci_device device = need_device(0);
	unsigned int n, failed = 0;
	bool struck = true;

	need_injection();
	/* ACPI interprets code of the firmware there: hundreds of allocations */
	fail_spare("acpi_pci_irq_enable");
	for (n = 1; n < MOST && struck; n++) {
		int result;

		try_pci_unbind(device.bdf);
		fail_begin(n);
		result = try_file_write("/sys/bus/pci/drivers/" PCI_DRIVER "/bind", device.bdf);
		struck = fail_end();
		if (!struck && result)
			FAIL("without a failure: %s", error_name(-result));
		failed += result != 0;
		/* all or nothing */
		pci_look(&device);
		CHECK_EQ(!!device.node[0], result == 0);
		CHECK_EQ(access(pci_path(device.bdf, "driver"), F_OK) == 0, result == 0);
	}
	CHECK(!struck);
	diag("%u injection points, %u of them made it fail", n - 2, failed);
	close(open_device(0));
}
