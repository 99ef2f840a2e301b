// SPDX-License-Identifier: MIT OR Apache-2.0
/* The preflight says what the call then does, for memory, arguments and limits that chance made. */
#define _GNU_SOURCE
#include "alloc.h"
#include "memory.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAGES = 64, KEPT = 4 };

static unsigned int state;

/* A random number from 0 to @limit - 1. */
static unsigned int chance(unsigned int limit)
{
	return (unsigned int)rand_r(&state) % limit;
}

static const int protections[] = {
	PROT_NONE,
	PROT_READ,
	PROT_WRITE,
	PROT_EXEC,
	PROT_READ | PROT_EXEC,
	PROT_WRITE | PROT_EXEC,
	/* the usual kind more often */
	PROT_READ | PROT_WRITE,
	PROT_READ | PROT_WRITE,
	PROT_READ | PROT_WRITE,
	PROT_READ | PROT_WRITE,
	PROT_READ | PROT_WRITE,
};

/* Kinds of pages in the arena. */
enum kind { HOLE, PLAIN, FILE_SHARED, FILE_PRIVATE, OF_THE_DRIVER, OF_THE_DEVICE, KINDS };

enum { FILES = 4 };

/**
 * struct arena - addresses with all kinds of memory
 * @fd: the context
 * @memory: where it is
 * @files: of memory, secret memory, a disk, and a file system that is nothing but page cache;
 *         -1: there is none
 * @allocated: memory of the driver's
 * @bar: offset of device memory; 0: there is none
 */
struct arena {
	int fd;
	char *memory;
	int files[FILES];
	struct pinmap_alloc allocated;
	uint64_t bar;
};

static int file_on_ramfs(void)
{
	static const char directory[] = "/run/pinmap-ramfs";
	int file = -1;

	mkdir("/run", 0755);
	mkdir(directory, 0755);
	if (!mount("none", directory, "ramfs", 0, NULL)) {
		file = SYS(open("/run/pinmap-ramfs/file", O_CREAT | O_RDWR | O_CLOEXEC, 0600));
		SYS(umount2(directory, MNT_DETACH));
		SYS(ftruncate(file, PAGES * PAGE));
	}
	return file;
}

static struct arena arena_new(void)
{
	struct arena arena = { .memory = address_space(PAGES * PAGE, HUGE) };
	struct pinmap_info info;

	arena.files[0] = new_memfd(PAGES * PAGE, 0);
	arena.files[1] = memory_new(SECRET, PAGES * PAGE).fd;
	arena.files[2] = memory_new(EXT4_SHARED, PAGES * PAGE).fd;
	arena.files[3] = file_on_ramfs();
	SYS(mmap(arena.memory, PAGES * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	become_user(true);
	arena.fd = open_device(0);
	CHECK_OK(try_alloc(arena.fd, 0, 8 * PAGE, &arena.allocated));
	info = get_info(arena.fd);
	/* those of a paged device are the driver's */
	if (info.out_kind == PINMAP_KIND_FLAT)
		arena.bar = info.out_bars[0].offset;
	return arena;
}

/* Puts some memory over some pages of the arena. */
static void change(const struct arena *arena)
{
	unsigned int first = chance(PAGES), pages = 1 + chance(6);
	int protection = protections[chance(ARRAY_SIZE(protections))],
	    file = arena->files[chance(FILES)];
	char *start = arena->memory + first * PAGE;
	size_t length;
	enum kind kind = chance(2) ? PLAIN : chance(KINDS);

	pages = pages < PAGES - first ? pages : PAGES - first;
	length = pages * PAGE;
	switch (kind) {
	case HOLE:
		SYS(munmap(start, length));
		return;
	case PLAIN:
		SYS(mmap(start, length, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
		break;
	case FILE_SHARED:
	case FILE_PRIVATE:
		if (file < 0)
			return;
		/* secret memory can only be mapped shared, and is locked */
		if (mmap(start, length, PROT_READ | PROT_WRITE,
			 MAP_FIXED | (kind == FILE_SHARED ? MAP_SHARED : MAP_PRIVATE), file,
			 (off_t)(first * PAGE)) == MAP_FAILED)
			return;
		break;
	case OF_THE_DRIVER:
		length = PAGE;
		SYS(mmap(start, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, arena->fd,
			 (off_t)arena->allocated.out_offset));
		break;
	case OF_THE_DEVICE:
		if (!arena->bar)
			return;
		SYS(mmap(start, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, arena->fd,
			 (off_t)arena->bar));
		return;
	default:
		return;
	}
	/* pages that are there already may be pinned in another way */
	if (chance(2))
		for (size_t at = 0; at < length; at += PAGE)
			touch_write(start + at);
	/* not everything may be executed */
	if (kind != OF_THE_DRIVER && mprotect(start, length, protection))
		CHECK_EQ(errno, EACCES);
}

static uint64_t any_length(void)
{
	static const uint64_t odd[] = { 0,          1,          PAGE - 1, PAGE + 1,
					1ULL << 40, 1ULL << 63, ~0ULL,    -(uint64_t)PAGE };

	return chance(24) ? (1 + chance(6)) * PAGE : odd[chance(ARRAY_SIZE(odd))];
}

static uint64_t any_address(const struct arena *arena)
{
	static const uint64_t odd[] = {
		0, 1, 1ULL << 47, (1ULL << 47) - 2 * PAGE, ~0ULL, -(uint64_t)PAGE, 1ULL << 63
	};

	return chance(24) ? (uintptr_t)arena->memory + chance(PAGES) * PAGE + (chance(32) ? 0 : 8) :
			    odd[chance(ARRAY_SIZE(odd))];
}

static uint64_t any_device_addr(const struct arena *arena)
{
	static const uint64_t some[] = {
		0,
		1,
		PAGE,
		0xfee00000,
		0xfee00000 - PAGE,
		0xfef00000,
		1ULL << 47,
		1ULL << 48,
		(1ULL << 48) - PAGE,
		~0ULL,
		-(uint64_t)PAGE,
	};

	return chance(2) ? (uintptr_t)arena->memory + chance(PAGES) * PAGE
			 : some[chance(ARRAY_SIZE(some))];
}

static struct pinmap_register any_call(const struct arena *arena)
{
	static const uint32_t ways[] = {
		0,     0,     0,     0,        0,        NO_MAP,           NO_MAP,   FIXED,
		FIXED, FIXED, FIXED, IDENTITY, IDENTITY, FIXED | IDENTITY, 1U << 30,
	};
	static const uint32_t bits[] = { 11, 12, 20, 32, 32, 40, 47, 47, 48, 63, 64, 65 };
	struct pinmap_register args = register_args(NULL, 0, ways[chance(ARRAY_SIZE(ways))]);

	args.flags |= (chance(2) ? WRITE : 0) | (chance(4) ? 0 : PINMAP_REGISTER_INTERRUPTIBLE);
	args.flags |= chance(8) ? 0 : PINMAP_REGISTER_PORTABLE;
	args.addr = any_address(arena);
	args.length = any_length();
	args.device_addr = args.flags & FIXED || !chance(32) ? any_device_addr(arena) : 0;
	args.address_bits = chance(3) ? 0 : bits[chance(ARRAY_SIZE(bits))];
	return args;
}

/* Sets how much the user may lock to about as much as is wanted. */
static void change_limit(int fd, uint64_t length)
{
	struct rlimit limit;

	SYS(getrlimit(RLIMIT_MEMLOCK, &limit));
	limit.rlim_cur = limit.rlim_max;
	/* around what it takes with, and without, page tables of a paged device */
	if (!chance(4) && length >= PAGE && length < MIB)
		limit.rlim_cur = get_info(fd).out_memlock_used + length + chance(5) * PAGE - PAGE;
	SYS(setrlimit(RLIMIT_MEMLOCK, &limit));
}

static int preflight(int fd, const struct pinmap_register *args, struct pinmap_preflight *said)
{
	*said = (struct pinmap_preflight){
		.size = sizeof(*said),
		.flags = args->flags,
		.addr = args->addr,
		.length = args->length,
		.device_addr = args->device_addr,
		.address_bits = args->address_bits,
	};
	return try_ioctl(fd, PINMAP_PREFLIGHT, said);
}

/*
 * Waits until the worker has let go of stale memory and given back its charge, so that this does
 * not happen between the two calls.
 */
static void settle(int fd, const uint64_t kept[KEPT])
{
	struct pinmap_query query;

	for (unsigned int i = 0; i < KEPT; i++)
		if (kept[i])
			CHECK_OK(try_query_handle(fd, kept[i], &query));
}

TEST(preflight_is_what_happens, .seconds = 60)
{
	static const int wanted[] = { 0,      EFAULT, EEXIST,    ENOSPC,
				      ENOMEM, EINVAL, EOVERFLOW, EOPNOTSUPP };
	const char *given = getenv("PINMAP_SEED");
	unsigned int seed = given ? (unsigned int)strtoul(given, NULL, 0)
				  : (unsigned int)time(NULL),
		     calls = rounds(4000);
	unsigned int answers[256] = { 0 };
	uint64_t kept[KEPT] = { 0 };
	struct arena arena;

	diag("PINMAP_SEED=%u", seed);
	state = seed;
	set_memlock(64 * MIB);
	arena = arena_new();
	for (unsigned int i = 0; i < calls; i++) {
		unsigned int place = chance(KEPT);
		struct pinmap_preflight said;
		struct pinmap_register args;
		int before, result;

		if (!chance(3))
			change(&arena);
		if (kept[place] && chance(2)) {
			release(arena.fd, kept[place]);
			kept[place] = 0;
		}
		settle(arena.fd, kept);
		args = any_call(&arena);
		change_limit(arena.fd, args.length);
		before = preflight(arena.fd, &args, &said);
		result = try_register_args(arena.fd, &args);
		answers[-result & 255]++;
		/* both say the same reason, with the same numbers */
		if (before != result ||
		    (result && memcmp(&said.fail, &args.fail, sizeof(said.fail))))
			FAIL("call %u: %#llx, %#llx bytes, flags %#x, at %#llx, "
			     "%u bits: the preflight says %s (reason %u at %#llx, %llu of %llu), "
			     "the call %s (reason %u at %#llx, %llu of %llu)",
			     i, (unsigned long long)said.addr, (unsigned long long)said.length,
			     said.flags, (unsigned long long)said.device_addr, said.address_bits,
			     error_name(-before), said.fail.reason,
			     (unsigned long long)said.fail.addr,
			     (unsigned long long)said.fail.needed,
			     (unsigned long long)said.fail.allowed, error_name(-result),
			     args.fail.reason, (unsigned long long)args.fail.addr,
			     (unsigned long long)args.fail.needed,
			     (unsigned long long)args.fail.allowed);
		if (result)
			continue;
		CHECK_EQ(get_info(arena.fd).out_memlock_used, said.out_memlock_needed);
		if (!(args.flags & NO_MAP) && args.address_bits && args.address_bits < 64)
			CHECK((args.device_addr + args.length - 1) >> args.address_bits == 0);
		if (kept[place])
			release(arena.fd, args.out_handle);
		else
			kept[place] = args.out_handle;
	}
	diag("%u succeed; EFAULT %u, EEXIST %u, ENOSPC %u, "
	     "ENOMEM %u, EINVAL %u, EOVERFLOW %u, EOPNOTSUPP %u",
	     answers[0], answers[EFAULT], answers[EEXIST], answers[ENOSPC], answers[ENOMEM],
	     answers[EINVAL], answers[EOVERFLOW], answers[EOPNOTSUPP]);
	for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
		if (!answers[wanted[i]])
			FAIL("no call was answered by %s", error_name(wanted[i]));
}

/*
 * Memory may be writable without being readable: registering it for writing does not read it,
 * whether its pages are there or not.
 */
TEST(write_only_mapping)
{
	int fd = open_device(0);
	char *memory = anon(2);
	struct registration registration;

	SYS(mprotect(memory, 2 * PAGE, PROT_WRITE));
	/* the second page is not there */
	SYS(madvise(memory + PAGE, PAGE, MADV_DONTNEED));
	for (unsigned int page = 0; page < 2; page++) {
		struct pinmap_register args = register_args(memory + page * PAGE, PAGE, WRITE);
		struct pinmap_preflight said;

		CHECK_OK(preflight(fd, &args, &said));
		args.flags = 0;
		check_fail(__FILE__, __LINE__, preflight(fd, &args, &said), EFAULT, &said.fail,
			   PINMAP_FAIL_PERMISSION, (uintptr_t)memory + page * PAGE);
		CHECK_REGISTER_FAILS(fd, memory + page * PAGE, PAGE, 0, EFAULT,
				     PINMAP_FAIL_PERMISSION, memory + page * PAGE);
	}
	registration = register_memory(fd, memory, 2 * PAGE, WRITE);
	release(fd, registration.handle);
}
