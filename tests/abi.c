// SPDX-License-Identifier: MIT OR Apache-2.0
/* Group A: the rules that hold for every ioctl. */
#define _GNU_SOURCE
#include "device.h"
#include "edu.h"
#include "harness.h"
#include "memory.h"
#include "pins.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The layout is the same for 32 bits and for 64, and never changes. */
_Static_assert(sizeof(struct pinmap_bar) == 40, "bar");
_Static_assert(sizeof(struct pinmap_info) == 344, "info");
_Static_assert(offsetof(struct pinmap_info, out_bars) == 104, "info.out_bars");
_Static_assert(sizeof(struct pinmap_reserved) == 32, "reserved");
_Static_assert(sizeof(struct pinmap_fail) == 32, "fail");
_Static_assert(sizeof(struct pinmap_register) == 88, "register");
_Static_assert(offsetof(struct pinmap_register, fail) == 56, "register.fail");
_Static_assert(sizeof(struct pinmap_release) == 16, "release");
_Static_assert(sizeof(struct pinmap_query) == 88, "query");
_Static_assert(sizeof(struct pinmap_map) == 64, "map");
_Static_assert(sizeof(struct pinmap_unmap) == 24, "unmap");
_Static_assert(sizeof(struct pinmap_set_eventfd) == 24, "set_eventfd");
_Static_assert(sizeof(struct pinmap_reset) == 8, "reset");
_Static_assert(sizeof(struct pinmap_event) == 32, "event");
_Static_assert(sizeof(struct pinmap_get_totals) == 112, "get_totals");
_Static_assert(sizeof(struct pinmap_register_fd) == 88, "register_fd");
_Static_assert(sizeof(struct pinmap_preflight) == 104, "preflight");
_Static_assert(sizeof(struct pinmap_generations) == 24, "generations");

union argument {
	struct {
		uint32_t size;
		uint32_t flags;
	};
	struct pinmap_info info;
	struct pinmap_reserved reserved;
	struct pinmap_register register_;
	struct pinmap_release release;
	struct pinmap_query query;
	struct pinmap_map map;
	struct pinmap_unmap unmap;
	struct pinmap_set_eventfd eventfd;
	struct pinmap_reset reset;
	struct pinmap_get_totals totals;
	struct pinmap_register_fd register_fd;
	struct pinmap_preflight preflight;
	struct pinmap_generations generations;
};

/* What a call may refer to. */
struct context {
	int fd;
	int memfd;
	char *page;
	struct registration pinned;
	struct registration mapped;
};

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

static const struct command {
	const char *name;
	unsigned long number;
	size_t size;
	size_t first; /* size of the first version, if there is a later one */
	uint32_t flags; /* those that are known */
	size_t reserved; /* where it has a reserved field; 0: nowhere */
	bool writes_back;
	void (*fill)(const struct context *context, union argument *argument);
} commands[] = {
	{ "get_info", PINMAP_GET_INFO, sizeof(struct pinmap_info), 0, 0, 0, true, fill_nothing },
	{ "get_reserved", PINMAP_GET_RESERVED, sizeof(struct pinmap_reserved), 0, 0, 0, true, fill_nothing },
	{ "register", PINMAP_REGISTER, sizeof(struct pinmap_register), 0, 15 | PINMAP_REGISTER_PORTABLE | PINMAP_REGISTER_INTERRUPTIBLE,
	  offsetof(struct pinmap_register, __reserved), true, fill_register },
	{ "release", PINMAP_RELEASE, sizeof(struct pinmap_release), 0, 0, 0, false, fill_release },
	{ "query", PINMAP_QUERY, sizeof(struct pinmap_query), 72, 0, 0, true, fill_query },
	{ "map", PINMAP_MAP, sizeof(struct pinmap_map), 0, 3, offsetof(struct pinmap_map, __reserved), true, fill_map },
	{ "unmap", PINMAP_UNMAP, sizeof(struct pinmap_unmap), 0, 0, 0, false, fill_unmap },
	{ "set_eventfd", PINMAP_SET_EVENTFD, sizeof(struct pinmap_set_eventfd), 0, 0,
	  offsetof(struct pinmap_set_eventfd, __reserved), false, fill_eventfd },
	{ "reset", PINMAP_RESET, sizeof(struct pinmap_reset), 0, 0, 0, false, fill_nothing },
	{ "register_fd", PINMAP_REGISTER_FD, sizeof(struct pinmap_register_fd), 0,
	  7 | PINMAP_REGISTER_INTERRUPTIBLE | PINMAP_REGISTER_PORTABLE, 0, true, fill_register_fd },
	{ "preflight", PINMAP_PREFLIGHT, sizeof(struct pinmap_preflight), 0, 15 | PINMAP_REGISTER_PORTABLE | PINMAP_REGISTER_INTERRUPTIBLE,
	  offsetof(struct pinmap_preflight, __reserved), true, fill_preflight },
	{ "generations", PINMAP_GENERATIONS, sizeof(struct pinmap_generations), 0, 0, 0, true, fill_nothing },
	{ "get_totals", PINMAP_GET_TOTALS, sizeof(struct pinmap_get_totals), 0, PINMAP_TOTALS_CONTEXT,
	  offsetof(struct pinmap_get_totals, __reserved), true, fill_nothing },
};

static struct context context_new(void)
{
	struct context context = {
		.fd = open_device(0),
		.memfd = SYS(memfd_create("abi", MFD_CLOEXEC)),
		.page = anon(5),
	};

	SYS(ftruncate(context.memfd, PAGE));
	context.pinned = register_memory(context.fd, context.page + PAGE, PAGE, WRITE | NO_MAP);
	context.mapped = register_memory(context.fd, context.page + 3 * PAGE, PAGE, WRITE);
	return context;
}

static void context_end(struct context *context)
{
	close(context->fd);
	close(context->memfd);
	munmap(context->page, 5 * PAGE);
}

/* Makes the call with a good argument of @size bytes, in 3 pages of which all behind the known part is @tail. */
static int call(const struct context *context, const struct command *command, char *memory, uint32_t size,
		unsigned char tail)
{
	union argument *argument = (union argument *)memory;

	memset(memory, tail, 3 * PAGE);
	memset(memory, 0, command->size);
	command->fill(context, argument);
	argument->size = size;
	return try_ioctl(context->fd, command->number, argument);
}

/* The same in a context of its own, since it succeeds. */
static int call_once(const struct command *command, char *memory, uint32_t size)
{
	struct context context = context_new();
	int result = call(&context, command, memory, size, 0);

	context_end(&context);
	return result;
}

static char *pages(size_t count)
{
	return SYS(mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

TEST_EACH(size, commands)
{
	char *memory = pages(3);
	int exact = call_once(row, memory, row->size);
	struct context context = context_new();

	/* the first device of the tests has no reset */
	if (row->number != PINMAP_RESET || exact != -EOPNOTSUPP)
		CHECK_OK(exact);

	CHECK_ERR(EINVAL, call(&context, row, memory, 0, 0));
	CHECK_ERR(EINVAL, call(&context, row, memory, 4, 0));
	CHECK_ERR(EINVAL, call(&context, row, memory, (row->first ?: row->size) - 1, 0));

	CHECK_ERR(E2BIG, call(&context, row, memory, row->size + 1, 0xff));
	CHECK_ERR(E2BIG, call(&context, row, memory, row->size + 8, 0x01));
	CHECK_ERR(E2BIG, call(&context, row, memory, PAGE, 0x80));
	CHECK_ERR(E2BIG, call(&context, row, memory, PAGE + 1, 0));
	CHECK_ERR(E2BIG, call(&context, row, memory, UINT32_MAX, 0));
	context_end(&context);

	CHECK_EQ(call_once(row, memory, row->first ?: row->size), exact);
	CHECK_EQ(call_once(row, memory, row->size - (row->first ? 1 : 0)), exact);
	CHECK_EQ(call_once(row, memory, row->size + 1), exact);
	CHECK_EQ(call_once(row, memory, row->size + 8), exact);
	CHECK_EQ(call_once(row, memory, PAGE), exact);
}

/* What lies behind the size that the caller gave belongs to the caller. */
TEST_EACH(tail_untouched, commands)
{
	struct context context = context_new();
	char *memory = pages(2);
	union argument *argument = (union argument *)memory;

	memset(memory, 0xaa, 2 * PAGE);
	memset(memory, 0, row->size);
	row->fill(&context, argument);
	argument->size = row->size;
	try_ioctl(context.fd, row->number, argument);
	CHECK(bytes_are(memory + row->size, 2 * PAGE - row->size, 0xaa));
	CHECK_EQ(argument->size, row->size);
}

TEST(unknown_flags)
{
	struct context context = context_new();

	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		for (unsigned int bit = 0; bit < 32; bit++) {
			union argument argument = { 0 };

			if (commands[i].flags & 1U << bit)
				continue;
			commands[i].fill(&context, &argument);
			argument.size = commands[i].size;
			argument.flags |= 1U << bit;
			if (try_ioctl(context.fd, commands[i].number, &argument) != -EOPNOTSUPP)
				FAIL("%s takes flag %#x", commands[i].name, 1U << bit);
		}
	}
}

TEST(reserved_fields)
{
	struct context context = context_new();

	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		for (unsigned int byte = 0; byte < 4 && commands[i].reserved; byte++) {
			union argument argument = { 0 };

			commands[i].fill(&context, &argument);
			argument.size = commands[i].size;
			((char *)&argument)[commands[i].reserved + byte] = 1;
			if (try_ioctl(context.fd, commands[i].number, &argument) != -EOPNOTSUPP)
				FAIL("%s takes a reserved field that is not zero", commands[i].name);
		}
	}
}

TEST(unknown_numbers, .smoke = true)
{
	char *argument = pages(1);
	int fd = open_device(0);

	for (unsigned int number = 0; number < 256; number++) {
		*(uint32_t *)argument = 64;
		if (number > PINMAP_CMD_GENERATIONS && number != PINMAP_CMD_GET_TOTALS &&
		    number != PINMAP_CMD_QUEUE_NOTIFY &&
		    number != PINMAP_CMD_GPU_WALK)
			CHECK_ERR(ENOTTY, try_ioctl(fd, _IO(PINMAP_IOCTL_TYPE, number), argument));
		/* the same numbers with a size, or of another driver */
		CHECK_ERR(ENOTTY, try_ioctl(fd, _IOC(_IOC_WRITE, PINMAP_IOCTL_TYPE, number, 64), argument));
		CHECK_ERR(ENOTTY, try_ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, PINMAP_IOCTL_TYPE, number, 8), argument));
		CHECK_ERR(ENOTTY, try_ioctl(fd, _IO(PINMAP_IOCTL_TYPE + 1, number), argument));
		CHECK_ERR(ENOTTY, try_ioctl(fd, _IO(';', number), argument));
	}
	/* a number comes before its argument */
	CHECK_ERR(ENOTTY, try_ioctl(fd, _IO(PINMAP_IOCTL_TYPE, 0xff), NULL));
}

TEST(bad_pointers)
{
	char *memory = pages(2), *hole = memory + PAGE;
	int fd = open_device(0);

	SYS(munmap(hole, PAGE));
	for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
		unsigned long number = commands[i].number;

		CHECK_ERR(EFAULT, try_ioctl(fd, number, NULL));
		CHECK_ERR(EFAULT, try_ioctl(fd, number, (void *)8));
		CHECK_ERR(EFAULT, try_ioctl(fd, number, hole));
		CHECK_ERR(EFAULT, try_ioctl(fd, number, (void *)(uintptr_t)0xffff888000000000));
		CHECK_ERR(EFAULT, try_ioctl(fd, number, (void *)(uintptr_t)0x800000000000));
		CHECK_ERR(EFAULT, try_ioctl(fd, number, (void *)UINTPTR_MAX));
		/* the size can be read, the rest cannot */
		*(uint32_t *)(hole - 4) = commands[i].size;
		CHECK_ERR(EFAULT, try_ioctl(fd, number, hole - 4));
		/* half of the size */
		CHECK_ERR(EFAULT, try_ioctl(fd, number, hole - 2));
	}
}

/* The call does its work, cannot report it, and must leave nothing behind. */
TEST_EACH(read_only, commands)
{
	char *memory = pages(1);
	union argument *argument = (union argument *)memory;
	struct context context = context_new();
	struct pinmap_info before = get_info(context.fd), after;
	long long pins = pins_held();
	int result;

	row->fill(&context, argument);
	argument->size = row->size;
	SYS(mprotect(memory, PAGE, PROT_READ));
	result = try_ioctl(context.fd, row->number, argument);
	if (!row->writes_back) {
		/* nothing to write: either it works or nothing has changed */
		if (result)
			CHECK_EQ(query_handle(context.fd, context.mapped.handle).out_nr_mappings, 1);
		return;
	}
	CHECK_ERR(EFAULT, result);
	after = get_info(context.fd);
	CHECK_EQ(after.out_registrations, before.out_registrations);
	CHECK_EQ(after.out_memlock_used, before.out_memlock_used);
	CHECK_EQ(query_handle(context.fd, context.pinned.handle).out_nr_mappings, 0);
	CHECK_PINS(pins);
	if (row->number == PINMAP_REGISTER) {
		struct pinmap_query query;

		/* neither the memory nor the device addresses are taken */
		CHECK_ERR(ENOENT, try_query_addr(context.fd, context.page, &query));
		register_memory(context.fd, context.page, PAGE, WRITE | IDENTITY);
	}
}

/* Each error has one meaning, so those that are said first are checked first. */
TEST(error_order)
{
	struct context context = context_new();
	struct pinmap_register args = register_args(context.page, 0, 1 << 31);
	struct pinmap_map map;
	struct pinmap_set_eventfd eventfd;

	/* unsupported before nonsense, before overflow */
	CHECK_ERR(EOPNOTSUPP, try_register_args(context.fd, &args));
	args = register_args((void *)(uintptr_t)-1, PAGE, 0);
	args.addr = UINT64_MAX - 1;
	args.__reserved = 1;
	CHECK_ERR(EOPNOTSUPP, try_register_args(context.fd, &args));
	/* overflow before nonsense */
	args.__reserved = 0;
	CHECK_ERR(EOVERFLOW, try_register_args(context.fd, &args));
	/* nonsense before a missing handle */
	map = (struct pinmap_map){ .size = sizeof(map), .handle = 12345, .device_addr = PAGE };
	CHECK_ERR(EINVAL, try_ioctl(context.fd, PINMAP_MAP, &map));
	/* unsupported before a missing handle */
	map = (struct pinmap_map){ .size = sizeof(map), .handle = 12345, .flags = 1 << 30 };
	CHECK_ERR(EOPNOTSUPP, try_ioctl(context.fd, PINMAP_MAP, &map));
	/* E2BIG before unsupported: the rest of the struct cannot be judged */
	map.size = sizeof(map) - 1;
	CHECK_ERR(EINVAL, try_ioctl(context.fd, PINMAP_MAP, &map));
	eventfd = (struct pinmap_set_eventfd){
		.size = sizeof(eventfd),
		.flags = 1,
		.source = PINMAP_SOURCE_VECTOR,
		.index = 999,
		.fd = -7,
	};
	CHECK_ERR(EOPNOTSUPP, try_ioctl(context.fd, PINMAP_SET_EVENTFD, &eventfd));
}
