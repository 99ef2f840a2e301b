// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Questions about a pointer, about memory that would be registered, and about memory that is being
 * registered.
 */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pins.h"
#include "process.h"
#include "uffd.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct pinmap_alloc alloc(int fd, size_t length, uint32_t flags)
{
	struct pinmap_alloc args = { .size = sizeof(args), .flags = flags, .length = length };

	CHECK_OK(try_ioctl(fd, PINMAP_ALLOC, &args));
	return args;
}

/* Every address at which allocated memory is mapped leads to it. */
TEST(query_allocation)
{
	int fd = open_device(0), other = open_device(0);
	bool paged = get_info(fd).out_kind == PINMAP_KIND_PAGED;
	struct pinmap_query query;
	char *memory, *part;

	for (uint32_t flags = 0; flags <= (paged ? PINMAP_ALLOC_VRAM : 0);
	     flags += PINMAP_ALLOC_VRAM) {
		struct pinmap_alloc args = alloc(fd, 8 * PAGE, flags);
		uint64_t device_addr;

		memory = SYS(mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
				  (off_t)args.out_offset));
		part = SYS(mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd,
				(off_t)(args.out_offset + 3 * PAGE)));
		device_addr = map(fd, args.out_handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED,
				  (uintptr_t)memory);
		for (size_t at = 0; at < 8 * PAGE; at += PAGE - 1) {
			query = query_addr(fd, memory + at);
			CHECK_EQ(query.handle, args.out_handle);
			CHECK_EQ(query.out_base, (uintptr_t)memory);
			CHECK_EQ(query.out_length, 8 * PAGE);
			CHECK_EQ(query.out_device_addr, device_addr + at);
			CHECK_EQ(query.out_kind, flags ? PINMAP_BUFFER_VRAM : PINMAP_BUFFER_HOST);
			CHECK_EQ(query.out_state, PINMAP_STATE_LIVE);
			CHECK_EQ(query.out_offset, args.out_offset);
			CHECK_EQ(query.out_flags, WRITE);
			CHECK_EQ(query.out_nr_mappings, 1);
		}
		query = query_addr(fd, part + PAGE + 5);
		CHECK_EQ(query.handle, args.out_handle);
		CHECK_EQ(query.out_base, (uintptr_t)part - 3 * PAGE);
		CHECK_EQ(query.out_device_addr, device_addr + 4 * PAGE + 5);
		query = query_handle(fd, args.out_handle);
		CHECK_EQ(query.out_base, 0);
		CHECK_EQ(query.out_offset, args.out_offset);
		CHECK_EQ(query.out_device_addr, device_addr);
		/* neither another context's memory nor what is next to it */
		CHECK_ERR(ENOENT, try_query_addr(other, memory, &query));
		SYS(munmap(part, 2 * PAGE));
		CHECK_ERR(ENOENT, try_query_addr(fd, part, &query));
		/* released memory is nobody's, though still mapped */
		release(fd, args.out_handle);
		CHECK_ERR(ENOENT, try_query_addr(fd, memory, &query));
	}
	CHECK_ERR(ENOENT, try_query_addr(fd, &fd, &query));
	CHECK_ERR(ENOENT, try_query_addr(fd, NULL, &query));
	CHECK_ERR(ENOENT, try_query_addr(fd, (void *)~0UL, &query));
}

/* QUERY gives the new answer right after MADV_DONTNEED. */
TEST(query_is_decided)
{
	int fd = open_device(0);

	for (unsigned int i = 0; i < rounds(50); i++) {
		char *memory = anon(4);
		struct registration registration = register_memory(fd, memory, 4 * PAGE, WRITE);

		SYS(madvise(memory + PAGE, PAGE, i % 2 ? MADV_DONTNEED : MADV_FREE));
		CHECK_EQ(query_addr(fd, memory).out_state,
			 i % 2 ? PINMAP_STATE_STALE : PINMAP_STATE_LIVE);
		CHECK_EQ(query_handle(fd, registration.handle).out_pinned, i % 2 ? 0 : 4 * PAGE);
		release(fd, registration.handle);
		SYS(munmap(memory, 4 * PAGE));
	}
}

static struct pinmap_preflight preflight_args(const void *addr, size_t length, uint32_t flags)
{
	struct pinmap_preflight args;

	memset(&args, 0xaa, sizeof(args));
	args.size = sizeof(args);
	args.flags = flags;
	args.addr = (uintptr_t)addr;
	args.length = length;
	args.device_addr = 0;
	args.address_bits = 0;
	args.__reserved = 0;
	return args;
}

static int try_preflight(int fd, struct pinmap_preflight *args)
{
	return try_ioctl(fd, PINMAP_PREFLIGHT, args);
}

/* The preflight and the call fail alike, whatever is wrong, and the preflight changes nothing. */
TEST(preflight_agrees)
{
	int fd = open_device(0);
	struct pinmap_info before, after;
	char *memory = anon(32), *secret = NULL;
	struct registration stale, live;
	unsigned int failures = 0;
	long long pins = pins_held();

	stale = register_memory(fd, memory + 8 * PAGE, PAGE, WRITE);
	SYS(munmap(memory + 8 * PAGE, PAGE));
	CHECK_STALE_EVENT(fd, stale);
	/* A worker unpins it, after the event. */
	CHECK(WAIT_FOR(3000, pins_held() == pins));
	live = register_memory(fd, memory + 12 * PAGE, PAGE, WRITE);
	SYS(mprotect(memory + 16 * PAGE, PAGE, PROT_READ));
	SYS(mprotect(memory + 18 * PAGE, PAGE, PROT_NONE));
	secret = memory + 20 * PAGE;
	SYS(mmap(secret, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		 memory_new(MEMFD, PAGE).fd, 0));
	const struct {
		uint64_t addr, length, device_addr;
		uint32_t flags, bits;
	} calls[] = {
		{ (uintptr_t)memory, 8 * PAGE, 0, WRITE, 0 },
		{ (uintptr_t)memory, 9 * PAGE, 0, WRITE, 0 }, /* a hole */
		{ (uintptr_t)memory + 8 * PAGE, PAGE, 0, NO_MAP, 0 },
		{ (uintptr_t)memory + 9 * PAGE, 3 * PAGE, 0, IDENTITY, 0 },
		{ (uintptr_t)memory + 9 * PAGE, 4 * PAGE, 0, 0, 0 }, /* an overlap */
		{ (uintptr_t)memory + 16 * PAGE, PAGE, 0, WRITE, 0 }, /* not writable */
		{ (uintptr_t)memory + 16 * PAGE, PAGE, 0, 0, 0 },
		{ (uintptr_t)memory + 15 * PAGE, 4 * PAGE, 0, 0, 0 }, /* not readable */
		{ (uintptr_t)memory + 20 * PAGE, PAGE, 0, WRITE, 0 },
		{ (uintptr_t)memory, PAGE, live.device_addr, FIXED,
		  0 }, /* taken, on a device without an MMU */
		{ (uintptr_t)memory, PAGE, 1ULL << 40, FIXED, 32 }, /* too high */
		{ (uintptr_t)memory, PAGE, 0xfee00000, FIXED, 0 }, /* perhaps reserved */
		{ (uintptr_t)memory, PAGE, 0, 0, 12 }, /* no room */
		{ (uintptr_t)memory, 0, 0, 0, 0 },
		{ (uintptr_t)memory + 1, PAGE, 0, 0, 0 },
		{ -(uint64_t)PAGE, 2 * PAGE, 0, 0, 0 },
		{ 0xffff888000000000, PAGE, 0, 0, 0 },
		{ (uintptr_t)memory, PAGE, 0, FIXED | IDENTITY, 0 },
		{ (uintptr_t)memory, PAGE, 0, 1U << 30, 0 },
	};
	before = get_info(fd);
	pins = pins_held();
	for (size_t i = 0; i < ARRAY_SIZE(calls); i++) {
		struct pinmap_preflight first = preflight_args((void *)(uintptr_t)calls[i].addr,
							       calls[i].length, calls[i].flags);
		struct pinmap_register second = register_args((void *)(uintptr_t)calls[i].addr,
							      calls[i].length, calls[i].flags);
		int said, did;

		first.device_addr = second.device_addr = calls[i].device_addr;
		first.address_bits = second.address_bits = calls[i].bits;
		said = try_preflight(fd, &first);
		after = get_info(fd);
		CHECK_PINS(pins);
		CHECK_EQ(after.out_registrations, before.out_registrations);
		CHECK_EQ(after.out_flags, before.out_flags);
		did = try_register_args(fd, &second);
		if (said != did || memcmp(&first.fail, &second.fail, sizeof(first.fail)))
			FAIL("call %zu: the preflight says %s (reason %u at %#llx), "
			     "the call %s (reason %u at %#llx)",
			     i, error_name(-said), first.fail.reason,
			     (unsigned long long)first.fail.addr, error_name(-did),
			     second.fail.reason, (unsigned long long)second.fail.addr);
		failures += did != 0;
		if (!did)
			release(fd, second.out_handle);
	}
	CHECK(failures >= 12);
}

TEST(preflight_limits)
{
	char *memory = anon(20);
	struct pinmap_preflight args;
	int fd;

	set_memlock(16 * PAGE);
	become_user(true);
	fd = open_device(0);
	register_memory(fd, memory, 4 * PAGE, NO_MAP);
	args = preflight_args(memory + 4 * PAGE, 12 * PAGE, NO_MAP);
	CHECK_OK(try_preflight(fd, &args));
	CHECK_EQ(args.out_memlock_needed, 16 * PAGE);
	CHECK_EQ(args.out_memlock_allowed, 16 * PAGE);
	CHECK_EQ(args.out_objects_needed, 2);
	CHECK_EQ(args.out_objects_allowed, get_info(fd).out_max_registrations);
	args = preflight_args(memory + 4 * PAGE, 13 * PAGE, NO_MAP);
	check_fail(__FILE__, __LINE__, try_preflight(fd, &args), ENOMEM, &args.fail,
		   PINMAP_FAIL_MEMLOCK, 0);
	CHECK_EQ(args.fail.needed, 17 * PAGE);
	CHECK_EQ(args.fail.allowed, 16 * PAGE);
	CHECK_EQ(args.out_memlock_needed, 17 * PAGE);
	CHECK_EQ(get_info(fd).out_memlock_used, 4 * PAGE);
}

TEST(preflight_no_limit)
{
	char *memory = anon(1);
	int fd = open_device(0);
	struct pinmap_preflight args = preflight_args(memory, PAGE, WRITE);
	pid_t pid;

	CHECK_OK(try_preflight(fd, &args));
	CHECK_EQ(args.out_memlock_allowed, UINT64_MAX);
	pid = fork();
	if (pid == 0) {
		args = preflight_args(memory, PAGE, WRITE);
		CHECK_ERR(EPERM, try_preflight(fd, &args));
		_exit(0);
	}
	join(pid);
}

/* Memory without one page in the middle, for which registering waits. */
struct slow {
	int fd;
	char *memory;
	size_t length, missing;
	uint32_t flags;
	int uffd, result;
	struct registration registration;
	pthread_t thread;
};

static void *register_slow(void *argument)
{
	struct slow *late = argument;

	late->result = try_register_memory(late->fd, late->memory, late->length, late->flags,
					   &late->registration);
	return NULL;
}

static void begin_slow(struct slow *late, int fd, uint32_t flags)
{
	late->fd = fd;
	late->flags = flags;
	late->length = 4096 * PAGE;
	late->missing = 2304 * PAGE;
	late->memory = anon(late->length / PAGE);
	SYS(madvise(late->memory + late->missing, PAGE, MADV_DONTNEED));
	late->uffd = uffd_new(late->memory + late->missing, PAGE);
	CHECK_OK(-pthread_create(&late->thread, NULL, register_slow, late));
	uffd_await(late->uffd, late->memory + late->missing);
}

TEST(progress)
{
	int fd = open_device(0);
	struct pinmap_query query;
	struct slow late;

	begin_slow(&late, fd, WRITE);
	query = query_addr(fd, late.memory + 5 * PAGE);
	CHECK_EQ(query.out_state, PINMAP_STATE_BUILDING);
	CHECK_EQ(query.handle, 0);
	CHECK_EQ(query.out_base, (uintptr_t)late.memory);
	CHECK_EQ(query.out_length, late.length);
	CHECK(query.out_pinned >= 1024 * PAGE && query.out_pinned <= late.missing);
	CHECK_EQ(query.out_nr_mappings, 0);
	uffd_supply(late.uffd, late.memory + late.missing, 1);
	CHECK_OK(-pthread_join(late.thread, NULL));
	CHECK_OK(late.result);
	query = query_addr(fd, late.memory + 5 * PAGE);
	CHECK_EQ(query.out_state, PINMAP_STATE_LIVE);
	CHECK_EQ(query.handle, late.registration.handle);
	CHECK_EQ(query.out_pinned, late.length);
}

static void ignore(int signal)
{
	(void)signal;
}

/* A signal cancels a registration with PINMAP_REGISTER_INTERRUPTIBLE, and nothing of it is left. */
TEST(cancel)
{
	struct sigaction action = { .sa_handler = ignore };
	int fd = open_device(0);
	struct pinmap_query query;
	long long pins = pins_held();
	struct slow late;

	SYS(sigaction(SIGUSR1, &action, NULL));
	begin_slow(&late, fd, WRITE | PINMAP_REGISTER_INTERRUPTIBLE);
	CHECK_OK(-pthread_kill(late.thread, SIGUSR1));
	/* the call looks for signals between parts, not while it waits for a page */
	uffd_supply(late.uffd, late.memory + late.missing, 1);
	CHECK_OK(-pthread_join(late.thread, NULL));
	CHECK_ERR(EINTR, late.result);
	CHECK_PINS(pins);
	CHECK_ERR(ENOENT, try_query_addr(fd, late.memory, &query));
	CHECK_EQ(get_info(fd).out_registrations, 0);
	/* without a signal the flag changes nothing */
	register_memory(fd, late.memory, late.length, WRITE | PINMAP_REGISTER_INTERRUPTIBLE);
	CHECK_PINS(pins + (long long)(late.length / PAGE));
}

/* Registers a page and releases it. The next registration gets the memory of that one. */
static uint64_t leave_kept(int fd, uint32_t flags)
{
	uint64_t handle = register_memory(fd, anon(1), PAGE, flags).handle;

	release(fd, handle);
	return handle;
}

/* Nor can the handle be used before the call ends where the memory was another registration's. */
TEST(kept_progress)
{
	int fd = open_device(0);
	uint64_t handle = leave_kept(fd, WRITE) + 1, address = 0;
	struct pinmap_query query;
	struct pinmap_fail fail;
	struct slow late;

	begin_slow(&late, fd, WRITE);
	CHECK_EQ(query_addr(fd, late.memory).handle, 0);
	CHECK_ERR(ENOENT, try_query_handle(fd, handle, &query));
	CHECK_ERR(ENOENT, try_map(fd, handle, 0, &address, &fail));
	CHECK_ERR(ENOENT, try_release(fd, handle));
	uffd_supply(late.uffd, late.memory + late.missing, 1);
	CHECK_OK(-pthread_join(late.thread, NULL));
	CHECK_OK(late.result);
	CHECK_EQ(late.registration.handle, handle);
}

static const struct kept {
	const char *name;
	uint32_t before, flags;
	int result;
} kept[] = {
	{ "ends", 0, PINMAP_REGISTER_INTERRUPTIBLE, -EINTR },
	{ "ends_not", PINMAP_REGISTER_INTERRUPTIBLE, 0, 0 },
};

/* Whether a signal ends a call is for that call to say, not for the one before. */
TEST_EACH(kept_cancel, kept)
{
	struct sigaction action = { .sa_handler = ignore };
	int fd = open_device(0);
	struct slow late;

	SYS(sigaction(SIGUSR1, &action, NULL));
	leave_kept(fd, WRITE | row->before);
	begin_slow(&late, fd, WRITE | row->flags);
	CHECK_OK(-pthread_kill(late.thread, SIGUSR1));
	uffd_supply(late.uffd, late.memory + late.missing, 1);
	CHECK_OK(-pthread_join(late.thread, NULL));
	CHECK_EQ(late.result, row->result);
}

/* While one registration waits for its page, others of the same device go on. */
TEST(nobody_waits)
{
	int fd = open_device(0), other = open_device(0);
	char *memory = anon(64);
	struct slow late;

	begin_slow(&late, fd, WRITE | NO_MAP);
	for (int round = 0; round < 20; round++) {
		struct registration one = register_memory(fd, memory, 32 * PAGE, WRITE);
		struct registration two =
			register_memory(other, memory + 32 * PAGE, 32 * PAGE, NO_MAP);

		release(other, two.handle);
		release(fd, one.handle);
	}
	/* they have not waited for the page, which is still missing */
	CHECK_EQ(query_addr(fd, late.memory).out_state, PINMAP_STATE_BUILDING);
	uffd_supply(late.uffd, late.memory + late.missing, 1);
	CHECK_OK(-pthread_join(late.thread, NULL));
	CHECK_OK(late.result);
}
