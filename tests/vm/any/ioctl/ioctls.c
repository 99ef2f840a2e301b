// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "ioctls.h"

#include "memory.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

static void fill_nothing(const struct context *context, union argument *argument)
{
	(void)context;
	(void)argument;
}

static void fill_register(const struct context *context, union argument *argument)
{
	argument->register_.addr = (uintptr_t)context->page;
	argument->register_.length = PAGE;
	argument->register_.flags = WRITE;
}

static void fill_register_fd(const struct context *context, union argument *argument)
{
	argument->register_fd.fd = context->memfd;
	argument->register_fd.length = PAGE;
	argument->register_fd.flags = WRITE;
}

static void fill_preflight(const struct context *context, union argument *argument)
{
	argument->preflight.addr = (uintptr_t)context->page;
	argument->preflight.length = PAGE;
	argument->preflight.flags = WRITE;
}

static void fill_release(const struct context *context, union argument *argument)
{
	argument->release.handle = context->pinned.handle;
}

static void fill_register_buffers(const struct context *context, union argument *argument)
{
	static struct pinmap_registration entry;

	entry = (struct pinmap_registration){ .addr = (uintptr_t)context->page, .length = PAGE };
	argument->register_buffers.buffers = (uintptr_t)&entry;
	argument->register_buffers.count = 1;
	argument->register_buffers.flags = WRITE;
}

static void fill_release_buffers(const struct context *context, union argument *argument)
{
	static uint64_t handle;

	handle = context->pinned.handle;
	argument->release_buffers.handles = (uintptr_t)&handle;
	argument->release_buffers.count = 1;
}

static void fill_query(const struct context *context, union argument *argument)
{
	argument->query.handle = context->pinned.handle;
}

static void fill_map(const struct context *context, union argument *argument)
{
	argument->map.handle = context->pinned.handle;
}

static void fill_unmap(const struct context *context, union argument *argument)
{
	argument->unmap.handle = context->mapped.handle;
	argument->unmap.device_addr = context->mapped.device_addr;
}

static void fill_eventfd(const struct context *context, union argument *argument)
{
	(void)context;
	argument->eventfd.source = PINMAP_SOURCE_EVENTS;
	argument->eventfd.fd = -1;
}

static void fill_alloc(const struct context *context, union argument *argument)
{
	(void)context;
	argument->alloc.length = PAGE;
}

static void fill_export(const struct context *context, union argument *argument)
{
	argument->export.handle = context->pinned.handle;
}

static void fill_import(const struct context *context, union argument *argument)
{
	argument->import.fd = context->dma_buf;
}

static void fill_sync(const struct context *context, union argument *argument)
{
	argument->sync.handle = context->pinned.handle;
	argument->sync.length = PAGE;
	argument->sync.flags = PINMAP_SYNC_FOR_CPU;
}

static void fill_walk(const struct context *context, union argument *argument)
{
	argument->gpu_walk.addr = context->mapped.device_addr;
}

static void fill_queue_create(const struct context *context, union argument *argument)
{
	(void)context;
	argument->queue_create.flags = GPU_BOTH;
	argument->queue_create.packets = GPU_PACKETS;
}

static void fill_queue_destroy(const struct context *context, union argument *argument)
{
	argument->queue_destroy.queue = context->queue;
}

static void fill_queue_wait(const struct context *context, union argument *argument)
{
	argument->queue_wait.queue = context->queue;
}

static void fill_manage(const struct context *context, union argument *argument)
{
	argument->manage.addr = (uintptr_t)context->page;
	argument->manage.length = 5 * PAGE;
}

static void fill_prefetch(const struct context *context, union argument *argument)
{
	argument->prefetch.addr = (uintptr_t)context->managed;
	argument->prefetch.length = 5 * PAGE;
}

static void fill_advise(const struct context *context, union argument *argument)
{
	argument->advise.addr = (uintptr_t)context->managed;
	argument->advise.length = 5 * PAGE;
	argument->advise.advice = PINMAP_ADVICE_PREFER_HOST;
}

static void fill_residency(const struct context *context, union argument *argument)
{
	argument->residency.addr = (uintptr_t)context->managed;
	argument->residency.length = 5 * PAGE;
}

static void fill_statistics(const struct context *context, union argument *argument)
{
	argument->statistics.handle = context->range;
}

static void fill_queue_query(const struct context *context, union argument *argument)
{
	argument->queue_query.queue = context->queue;
}

static void fill_queue_submit(const struct context *context, union argument *argument)
{
	static const uint64_t packet[8] = { GPU_NOP };

	argument->queue_submit.queue = context->queue;
	argument->queue_submit.packets = (uintptr_t)packet;
	argument->queue_submit.count = 1;
}

static void fill_queue_notify(const struct context *context, union argument *argument)
{
	argument->queue_notify.queue = context->queue;
	argument->queue_notify.fd = context->eventfd;
}

/* The columns of every row; RESERVED: the struct has a reserved field. */
#define COMMAND(name_, number_, struct_, ...) \
	{ .name = name_, .number = number_, .size = sizeof(struct struct_), __VA_ARGS__ }
#define RESERVED(struct_) .reserved = offsetof(struct struct_, __reserved)

enum { REGISTER_FLAGS = 15 | PINMAP_REGISTER_PORTABLE | PINMAP_REGISTER_INTERRUPTIBLE };

const struct command commands[NR_COMMANDS] = {
	COMMAND("get_info", PINMAP_GET_INFO, pinmap_info, .writes_back = true,
		.fill = fill_nothing),
	COMMAND("get_reserved", PINMAP_GET_RESERVED, pinmap_reserved, .writes_back = true,
		.fill = fill_nothing),
	COMMAND("get_totals", PINMAP_GET_TOTALS, pinmap_get_totals,
		.flags = PINMAP_TOTALS_CONTEXT, RESERVED(pinmap_get_totals),
		.writes_back = true, .fill = fill_nothing),
	COMMAND("register", PINMAP_REGISTER, pinmap_register, .flags = REGISTER_FLAGS,
		RESERVED(pinmap_register), .writes_back = true, .fill = fill_register),
	COMMAND("register_fd", PINMAP_REGISTER_FD, pinmap_register_fd,
		.flags = REGISTER_FLAGS & ~8U, .writes_back = true, .fill = fill_register_fd),
	COMMAND("preflight", PINMAP_PREFLIGHT, pinmap_preflight, .flags = REGISTER_FLAGS,
		RESERVED(pinmap_preflight), .writes_back = true, .fill = fill_preflight),
	COMMAND("generations", PINMAP_GENERATIONS, pinmap_generations, .writes_back = true,
		.fill = fill_nothing),
	COMMAND("register_buffers", PINMAP_REGISTER_BUFFERS, pinmap_register_buffers,
		.flags = REGISTER_FLAGS, RESERVED(pinmap_register_buffers), .writes_back = true,
		.fill = fill_register_buffers),
	COMMAND("release_buffers", PINMAP_RELEASE_BUFFERS, pinmap_release_buffers,
		.fill = fill_release_buffers),
	COMMAND("release", PINMAP_RELEASE, pinmap_release, .fill = fill_release),
	COMMAND("query", PINMAP_QUERY, pinmap_query, .writes_back = true, .fill = fill_query),
	COMMAND("map", PINMAP_MAP, pinmap_map, .flags = 7, RESERVED(pinmap_map),
		.writes_back = true, .fill = fill_map),
	COMMAND("unmap", PINMAP_UNMAP, pinmap_unmap, .fill = fill_unmap),
	COMMAND("set_eventfd", PINMAP_SET_EVENTFD, pinmap_set_eventfd,
		RESERVED(pinmap_set_eventfd), .fill = fill_eventfd),
	COMMAND("reset", PINMAP_RESET, pinmap_reset, .fill = fill_nothing),
	COMMAND("stay_awake", PINMAP_STAY_AWAKE, pinmap_stay_awake,
		.flags = PINMAP_STAY_AWAKE_ON, .fill = fill_nothing),
	COMMAND("alloc", PINMAP_ALLOC, pinmap_alloc, .flags = 31, RESERVED(pinmap_alloc),
		.writes_back = true, .fill = fill_alloc),
	COMMAND("export", PINMAP_EXPORT, pinmap_export, .flags = 3,
		RESERVED(pinmap_export), .writes_back = true, .fill = fill_export),
	COMMAND("import", PINMAP_IMPORT, pinmap_import, .writes_back = true,
		.fill = fill_import),
	COMMAND("sync", PINMAP_SYNC, pinmap_sync, .flags = 7, .fill = fill_sync),
	COMMAND("manage", PINMAP_MANAGE, pinmap_manage,
		.flags = PINMAP_MANAGE_ALL | PINMAP_MANAGE_HOST | PINMAP_MANAGE_WINDOW,
		.writes_back = true, .paged = true, .mirror = true, .fill = fill_manage),
	COMMAND("prefetch", PINMAP_PREFETCH, pinmap_prefetch,
		.flags = PINMAP_PREFETCH_HOST | PINMAP_PREFETCH_PREFLIGHT,
		.writes_back = true, .paged = true, .mirror = true, .fill = fill_prefetch),
	COMMAND("advise", PINMAP_ADVISE, pinmap_advise, RESERVED(pinmap_advise),
		.writes_back = true, .paged = true, .mirror = true, .fill = fill_advise),
	COMMAND("residency", PINMAP_RESIDENCY, pinmap_residency, .writes_back = true,
		.paged = true, .mirror = true, .fill = fill_residency),
	COMMAND("statistics", PINMAP_STATISTICS, pinmap_statistics, .writes_back = true,
		.paged = true, .mirror = true, .fill = fill_statistics),
	COMMAND("budget", PINMAP_BUDGET, pinmap_budget, .flags = PINMAP_BUDGET_SET,
		.writes_back = true, .paged = true, .mirror = true, .fill = fill_nothing),
	COMMAND("gpu_info", PINMAP_GPU_INFO, pinmap_gpu_info, .writes_back = true,
		.paged = true, .fill = fill_nothing),
	COMMAND("gpu_counters", PINMAP_GPU_COUNTERS, pinmap_gpu_counters,
		RESERVED(pinmap_gpu_counters), .writes_back = true, .paged = true,
		.fill = fill_nothing),
	COMMAND("gpu_walk", PINMAP_GPU_WALK, pinmap_gpu_walk, .writes_back = true,
		.paged = true, .fill = fill_walk),
	COMMAND("queue_create", PINMAP_QUEUE_CREATE, pinmap_queue_create, .flags = GPU_BOTH,
		.writes_back = true, .paged = true, .fill = fill_queue_create),
	COMMAND("queue_destroy", PINMAP_QUEUE_DESTROY, pinmap_queue_destroy, .paged = true,
		.fill = fill_queue_destroy),
	COMMAND("queue_wait", PINMAP_QUEUE_WAIT, pinmap_queue_wait, RESERVED(pinmap_queue_wait),
		.writes_back = true, .paged = true, .fill = fill_queue_wait),
	COMMAND("queue_query", PINMAP_QUEUE_QUERY, pinmap_queue_query,
		RESERVED(pinmap_queue_query), .writes_back = true,
		.paged = true, .fill = fill_queue_query),
	COMMAND("queue_submit", PINMAP_QUEUE_SUBMIT, pinmap_queue_submit,
		RESERVED(pinmap_queue_submit), .writes_back = true, .paged = true,
		.fill = fill_queue_submit),
	COMMAND("queue_notify", PINMAP_QUEUE_NOTIFY, pinmap_queue_notify, .paged = true,
		.fill = fill_queue_notify),
};

struct context context_new(void)
{
	struct context context = {
		.fd = open_device(0),
		.memfd = SYS(memfd_create("ioctl", MFD_CLOEXEC)),
		.page = anon(5),
		.eventfd = SYS(eventfd(0, EFD_CLOEXEC)),
	};

	SYS(ftruncate(context.memfd, PAGE));
	context.pinned = register_memory(context.fd, context.page + PAGE, PAGE, WRITE | NO_MAP);
	context.mapped = register_memory(context.fd, context.page + 3 * PAGE, PAGE, WRITE);
	context.dma_buf = export_buffer(context.fd, context.pinned.handle, PINMAP_EXPORT_WRITE);
	context.paged = get_info(context.fd).out_kind == PINMAP_KIND_PAGED;
	if (context.paged) {
		struct pinmap_queue_create queue;

		CHECK_OK(try_queue_create(context.fd, GPU_BOTH, GPU_PACKETS, &queue));
		context.queue = queue.out_queue;
	}
	context.managed = anon(5);
	if (get_info(context.fd).out_flags & PINMAP_INFO_MANAGED) {
		struct pinmap_manage range;

		CHECK_OK(try_manage(context.fd, 0, context.managed, 5 * PAGE, &range));
		context.range = range.out_handle;
	}
	return context;
}

void context_end(struct context *context)
{
	close(context->fd);
	close(context->memfd);
	close(context->dma_buf);
	close(context->eventfd);
	munmap(context->page, 5 * PAGE);
	munmap(context->managed, 5 * PAGE);
}
