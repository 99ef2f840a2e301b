// SPDX-License-Identifier: MIT OR Apache-2.0
/* Every allocation fails once, and every copy from and to user space (see inject.h). */
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

struct scenario;

/* State of a scenario; made before failures begin. */
struct scene {
	const struct scenario *scenario;
	long long pins; /* before the first time */
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

	return try_register_memory(scene->fd, scene->memory.addr, scene->memory.length, flags,
				   &registration);
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

/*
 * Releases what the call left. The release may be what fails, once, which is tested by the scenario
 * "release".
 */
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
	return try_sync(scene->fd, scene->pinned.handle, PINMAP_SYNC_FOR_CPU | PINMAP_SYNC_NO_SNOOP,
			0, 600 * PAGE);
}

static int do_close(struct scene *scene)
{
	close(scene->fd);
	scene->fd = -1;
	return 0;
}

/* State that a scenario needs beforehand. */
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
	{ "register_several_chunks", ANON, 2200 * PAGE, NOTHING, do_register_write },
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

static void set(void *data)
{
	struct scene *scene = data;
	const struct scenario *scenario = scene->scenario;

	*scene = (struct scene){ .scenario = scenario, .pins = scene->pins, .dma_buf = -1 };
	scene->device = need_device(0);
	scene->fd = open_device(0);
	scene->memory = memory_new(scenario->kind, scenario->length);
	scene->eventfd = SYS(eventfd(0, EFD_CLOEXEC));
	scene->bar = get_info(scene->fd).out_bars[0].offset;
	if (scenario->before & PINNED)
		scene->pinned = register_memory(scene->fd, scene->memory.addr, scene->memory.length,
						WRITE | NO_MAP);
	if (scenario->before & MAPPED)
		scene->mapped = map(scene->fd, scene->pinned.handle, PINMAP_MAP_WRITE, 0);
	if (scenario->before & EXPORTED)
		scene->dma_buf =
			export_buffer(scene->fd, scene->pinned.handle, PINMAP_EXPORT_WRITE);
	if (scenario->before & STALE) {
		SYS(munmap(scene->memory.addr, PAGE));
		CHECK(WAIT_FOR(2000, query_handle(scene->fd, scene->pinned.handle).out_state ==
					     PINMAP_STATE_STALE));
	}
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

	CHECK_EQ(info.out_registrations, !!(scenario->before & PINNED));
	/* when the kernel fails after the driver's part of mmap() is done, that is not undone */
	if (!(scenario->before & MAPPED) && scenario->call != do_bar)
		CHECK_EQ(info.out_flags & PINMAP_INFO_OWNED, 0);
	if (scenario->call != do_event && scenario->before & PINNED)
		CHECK_EQ(query_handle(scene->fd, scene->pinned.handle).out_nr_mappings,
			 !!(scenario->before & MAPPED));
	CHECK_OK(scenario->call(scene));
}

static void strike_set(void *data, int result)
{
	struct scene *scene = data;

	(void)result;
	if (scene->view && scene->view != MAP_FAILED)
		munmap(scene->view, PAGE);
	if (scene->fd >= 0)
		close(scene->fd);
	close(scene->eventfd);
	if (scene->dma_buf >= 0)
		close(scene->dma_buf);
	memory_free(&scene->memory);
	CHECK_PINS_SOON(scene->pins);
}

TEST_EACH(fail, scenarios, .seconds = 60)
{
	static const struct attempt attempt = { set, make_call, check_unchanged, strike_set };
	struct scene scene = { .scenario = row };

	need_injection();
	if (row->spared)
		fail_spare(row->spared);
	scene.pins = pins_held();
	fail_each(&attempt, &scene, MOST);
}

static void probe_begin(void *data)
{
	struct pci_device *device = data;

	try_pci_unbind(device->bdf);
}

static int probe(void *data)
{
	struct pci_device *device = data;

	return try_file_write("/sys/bus/pci/drivers/" PCI_DRIVER "/bind", device->bdf);
}

/* All or nothing: a driver and a node, or neither. */
static void probe_end(void *data, int result)
{
	struct pci_device *device = data;

	pci_look(device);
	CHECK_EQ(!!device->node[0], result == 0);
	CHECK_EQ(access(pci_path(device->bdf, "driver"), F_OK) == 0, result == 0);
}

/* Binding takes long, so the device stays unbound while it fails. */
TEST(fail_probe, .seconds = 60)
{
	static const struct attempt attempt = { probe_begin, probe, NULL, probe_end };
	struct pci_device device = need_device(0);

	need_injection();
	/* ACPI interprets code of the firmware there: hundreds of allocations */
	fail_spare("acpi_pci_irq_enable");
	fail_each(&attempt, &device, MOST);
	close(open_device(0));
}
