// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Host memory, call by call, beside what CUDA answers.
 *
 * CUDA's answers are those of version 13.0 on an H200, measured. Each row says what pinmap answers
 * to the same, which its function then checks, and why, where it is not the same. Nothing is laxer.
 */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "gpu.h"
#include "memory.h"
#include "pins.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct answer {
	const char *name;
	const char *call;
	const char *cuda;
	const char *pinmap;
	const char *why; /* NULL: the same as CUDA's */
	void (*check)(int fd);
};

static void show(const struct answer *row)
{
	diag("call:   %s", row->call);
	diag("CUDA:   %s", row->cuda);
	diag("pinmap: %s", row->pinmap);
	diag("        %s", row->why ?: "the same");
}

static char *view(int fd, const struct pinmap_alloc *args, size_t length)
{
	return SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			(off_t)args->out_offset));
}

static void alloc_flags(int fd)
{
	static const uint32_t flags[] = { 0, PINMAP_ALLOC_PORTABLE };
	struct pinmap_query query;
	struct pinmap_alloc args;
	char *memory;

	for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
		CHECK_OK(try_alloc(fd, flags[i], 3 * PAGE, &args));
		memory = view(fd, &args, 3 * PAGE);
		CHECK_EQ((uintptr_t)memory % PAGE, 0);
		CHECK(bytes_are(memory, 3 * PAGE, 0));
		query = query_addr(fd, memory);
		CHECK_EQ(query.out_kind, PINMAP_BUFFER_HOST);
		CHECK_EQ(query.out_flags & WRITE, WRITE);
		CHECK_EQ(!(query.out_flags & PINMAP_REGISTER_PORTABLE),
			 !(flags[i] & PINMAP_ALLOC_PORTABLE));
		CHECK_EQ(query.out_length, 3 * PAGE);
	}
}

static void alloc_unknown_flag(int fd)
{
	struct pinmap_alloc args;

	CHECK_ERR(EOPNOTSUPP, try_alloc(fd, 1U << 31, PAGE, &args));
	CHECK_ERR(EOPNOTSUPP, try_alloc(fd, 1U << 20, PAGE, &args));
	CHECK_EQ(get_info(fd).out_registrations, 0);
}

static void alloc_nothing(int fd)
{
	struct pinmap_alloc args;

	CHECK_ERR(EINVAL, try_alloc(fd, 0, 0, &args));
	CHECK_EQ(get_info(fd).out_registrations, 0);
}

static void alloc_too_much(int fd)
{
	struct pinmap_alloc args;
	long long pins = pins_held();

	CHECK_ERR(ENOMEM, try_alloc(fd, 0, (size_t)1 << 50, &args));
	CHECK_EQ(args.fail.reason, PINMAP_FAIL_MEMORY);
	CHECK_EQ(get_info(fd).out_registrations, 0);
	CHECK_PINS(pins);
}

static void free_something_else(int fd)
{
	struct pinmap_alloc args;

	CHECK_OK(try_alloc(fd, 0, 2 * PAGE, &args));
	CHECK_ERR(ENOENT, try_release(fd, 0));
	CHECK_ERR(ENOENT, try_release(fd, args.out_handle + 1));
	CHECK_ERR(ENOENT, try_release(fd, (uintptr_t)view(fd, &args, 2 * PAGE) + PAGE));
	CHECK_ERR(ENOENT, try_release(fd, (uintptr_t)anon(1)));
	release(fd, args.out_handle);
	CHECK_ERR(ESTALE, try_release(fd, args.out_handle));
}

static void same_pointer(int fd)
{
	char *memory = anon(3);
	struct pinmap_alloc args;
	char *allocated;

	CHECK_EQ(register_memory(fd, memory, 3 * PAGE, WRITE).device_addr, (uintptr_t)memory);
	CHECK_OK(try_alloc(fd, 0, 3 * PAGE, &args));
	allocated = view(fd, &args, 3 * PAGE);
	CHECK_EQ(
		map(fd, args.out_handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, (uintptr_t)allocated),
		(uintptr_t)allocated);
	/* a program that needs this address asks for it */
	memory = anon(1);
	CHECK_EQ(register_memory(fd, memory, PAGE, IDENTITY).device_addr, (uintptr_t)memory);
}

static void interior_pointer(int fd)
{
	char *memory = anon(3);

	register_memory(fd, memory, 3 * PAGE, WRITE);
	for (size_t at = 0; at < 3 * PAGE; at += 1023)
		CHECK_EQ(query_addr(fd, memory + at).out_device_addr, (uintptr_t)memory + at);
}

static void query_flags(int fd)
{
	char *memory = anon(1);
	struct pinmap_query query = { .size = sizeof(query),
				      .flags = 1,
				      .addr = (uintptr_t)memory };

	register_memory(fd, memory, PAGE, WRITE);
	CHECK_ERR(EOPNOTSUPP, try_ioctl(fd, PINMAP_QUERY, &query));
}

static void register_plain(int fd)
{
	char *memory = anon(4);

	register_memory(fd, memory, 2 * PAGE, 0);
	CHECK_EQ(query_addr(fd, memory).out_flags, 0);
	register_memory(fd, memory + 2 * PAGE, 2 * PAGE, WRITE);
	CHECK_EQ(query_addr(fd, memory + 2 * PAGE).out_flags, WRITE);
	CHECK_EQ(query_addr(fd, memory).out_nr_mappings, 1);
}

static void register_again(int fd)
{
	char *memory = anon(6);
	struct registration registration = register_memory(fd, memory + 2 * PAGE, 2 * PAGE, WRITE);
	long long pins = pins_held();

	for (int first = 1; first < 4; first++)
		CHECK_REGISTER_FAILS(fd, memory + first * PAGE, 2 * PAGE, WRITE, EEXIST,
				     PINMAP_FAIL_OVERLAP, registration.addr);
	CHECK_PINS(pins);
}

static void unregister_twice(int fd)
{
	struct registration registration = register_memory(fd, anon(2), 2 * PAGE, WRITE);

	CHECK_ERR(ENOENT, try_release(fd, (uintptr_t)registration.addr + PAGE));
	release(fd, registration.handle);
	CHECK_ERR(ESTALE, try_release(fd, registration.handle));
}

static void unaligned(int fd)
{
	char *memory = anon(3);
	struct registration none;

	CHECK_ERR(EINVAL, try_register_memory(fd, memory + 100, PAGE, WRITE, &none));
	CHECK_ERR(EINVAL, try_register_memory(fd, memory, 1001, WRITE, &none));
	CHECK_EQ(get_info(fd).out_registrations, 0);
}

static void nonsense(int fd)
{
	char *memory = anon(1);
	struct registration none;

	CHECK_ERR(EINVAL, try_register_memory(fd, memory, 0, WRITE, &none));
	CHECK_REGISTER_FAILS(fd, NULL, PAGE, WRITE, EFAULT, PINMAP_FAIL_HOLE, 0);
	CHECK_ERR(EOPNOTSUPP, try_register_memory(fd, memory, PAGE, 1U << 31, &none));
	CHECK_EQ(get_info(fd).out_registrations, 0);
}

static void hole(int fd)
{
	char *memory = anon(8);
	long long pins = pins_held();

	SYS(munmap(memory + 4 * PAGE, PAGE));
	CHECK_REGISTER_FAILS(fd, memory, 8 * PAGE, WRITE, EFAULT, PINMAP_FAIL_HOLE,
			     memory + 4 * PAGE);
	CHECK_PINS(pins);
	CHECK_EQ(get_info(fd).out_registrations, 0);
	register_memory(fd, memory, 4 * PAGE, WRITE);
}

static void read_only(int fd)
{
	char *memory = anon(2);

	SYS(mprotect(memory, 2 * PAGE, PROT_READ));
	CHECK_REGISTER_FAILS(fd, memory, 2 * PAGE, WRITE, EFAULT, PINMAP_FAIL_PERMISSION, memory);
	register_memory(fd, memory, 2 * PAGE, 0);
}

static void shared_file(int fd)
{
	struct memory shared = memory_new(EXT4_SHARED, 2 * PAGE),
		      private = memory_new(EXT4_PRIVATE, 2 * PAGE);
	struct memory memfd = memory_new(MEMFD, 2 * PAGE);

	CHECK_REGISTER_FAILS(fd, shared.addr, 2 * PAGE, WRITE, EFAULT, PINMAP_FAIL_FILE,
			     shared.addr);
	register_memory(fd, shared.addr, 2 * PAGE, 0);
	register_memory(fd, private.addr, 2 * PAGE, WRITE);
	register_memory(fd, memfd.addr, 2 * PAGE, WRITE);
}

static void own_memory(int fd)
{
	struct pinmap_info info = get_info(fd);
	struct pinmap_alloc args;
	char *memory;

	CHECK_OK(try_alloc(fd, 0, 2 * PAGE, &args));
	memory = view(fd, &args, 2 * PAGE);
	CHECK_REGISTER_FAILS(fd, memory + PAGE, PAGE, WRITE, EEXIST, PINMAP_FAIL_OVERLAP,
			     memory + PAGE);
	if (info.out_kind == PINMAP_KIND_PAGED) {
		CHECK_OK(try_alloc(fd, PINMAP_ALLOC_VRAM, 2 * PAGE, &args));
		memory = view(fd, &args, 2 * PAGE);
	} else {
		memory = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
				  (off_t)info.out_bars[0].offset));
	}
	CHECK_REGISTER_FAILS(fd, memory, PAGE, WRITE, EFAULT, PINMAP_FAIL_DEVICE, memory);
}

static void never_registered(int fd)
{
	char *memory = anon(2);

	if (get_info(fd).out_kind == PINMAP_KIND_PAGED) {
		struct gpu_queue queue = queue_new(fd), other = queue_new(fd);

		queue_push(&queue, GPU_FILL, (uintptr_t)memory, PAGE, 0xee);
		CHECK(try_queue_finish(&queue, slow(5000)));
		CHECK(bytes_are(memory, 2 * PAGE, 0x11));
		CHECK_EQ(queue_query(&queue).out_state, PINMAP_QUEUE_FAULTED);
		CHECK_EQ(queue_query(&queue).out_addr & ~(PAGE - 1), (uintptr_t)memory);
		/* the context goes on */
		queue_finish(&other);
	} else {
		struct edu edu = edu_open(fd);
		struct registration registration;

		edu_load(&edu, 3);
		edu_writes(&edu, (uintptr_t)memory, PAGE);
		CHECK(bytes_are(memory, 2 * PAGE, 0x11));
		/* the device goes on */
		registration = register_memory(fd, memory, PAGE, WRITE);
		edu_writes(&edu, registration.device_addr, PAGE);
		CHECK(!bytes_are(memory, PAGE, 0x11));
	}
}

static const struct answer answers[] = {
	{ "alloc_flags", "cudaHostAlloc, flags 0 to 7",
	  "success; page aligned; the flags can be read back",
	  "ALLOC: success; page aligned, zeroed; QUERY tells kind, flags, length", NULL,
	  alloc_flags },
	{ "alloc_unknown_flag", "cudaHostAlloc, flag 8", "invalid value",
	  "EOPNOTSUPP, for every unknown bit",
	  "an errno of its own, so that a program can tell what the driver does not know",
	  alloc_unknown_flag },
	{ "alloc_nothing", "cudaHostAlloc of 0 bytes", "success, a null pointer", "EINVAL",
	  "stricter: an address that is none is found out where it is asked for", alloc_nothing },
	{ "alloc_too_much", "cudaHostAlloc of 2^50 bytes", "out of memory", "ENOMEM, nothing kept",
	  NULL, alloc_too_much },
	{ "free_something_else", "cudaFreeHost of null, an interior pointer, malloc()ed memory",
	  "success; invalid value; invalid value",
	  "RELEASE: ENOENT for all; ESTALE the second time",
	  "stricter: things are released by handle, which no address can be taken for",
	  free_something_else },
	{ "same_pointer", "device pointer and host pointer", "equal, always",
	  "equal wherever the IOMMU has the address; who demands it gets that or an error",
	  "an IOMMU has reserved ranges and may have fewer address bits", same_pointer },
	{ "interior_pointer", "device pointer of an interior pointer", "success", "QUERY: success",
	  NULL, interior_pointer },
	{ "query_flags", "device pointer with flags that are not 0", "invalid value", "EOPNOTSUPP",
	  "the errno of every unknown flag", query_flags },
	{ "register_plain", "cudaHostRegister, flags 0",
	  "success; the flags can be read back (mapped)",
	  "REGISTER: success; QUERY tells the flags and the mapping",
	  "stricter: without PINMAP_REGISTER_WRITE the device can only read", register_plain },
	{ "register_again", "cudaHostRegister of the same, or of what overlaps",
	  "already registered", "EEXIST, with where the other one begins", NULL, register_again },
	{ "unregister_twice", "cudaHostUnregister of an interior pointer; twice",
	  "invalid value; not registered", "RELEASE: ENOENT; ESTALE", NULL, unregister_twice },
	{ "unaligned", "cudaHostRegister of an unaligned address with an odd length",
	  "success, of the whole pages around it", "EINVAL",
	  "stricter: the device reaches whole pages; the crate rounds outwards where it is told to",
	  unaligned },
	{ "nonsense", "cudaHostRegister: length 0, null, unknown flag, the flag for MMIO on RAM",
	  "invalid value", "EINVAL; EFAULT, nothing is mapped there; EOPNOTSUPP",
	  "an errno for each", nonsense },
	{ "hole", "cudaHostRegister across a hole", "invalid value, nothing kept",
	  "EFAULT with the address of the hole, nothing kept", NULL, hole },
	{ "read_only", "cudaHostRegister of read-only memory without the flag; with it",
	  "invalid value; success", "EFAULT with the address; success", NULL, read_only },
	{ "shared_file",
	  "cudaHostRegister of a shared file, for writing; of a private one, of a memfd",
	  "invalid value; success", "EFAULT with the address; success", NULL, shared_file },
	{ "own_memory", "cudaHostRegister of memory that CUDA manages, of the device's",
	  "invalid value", "EEXIST; EFAULT, it is device memory", NULL, own_memory },
};

static const struct answer reaches[] = {
	{ "never_registered", "a kernel touches memory that was never registered",
	  "illegal address, and the context is dead",
	  "the access is stopped; the queue stops and tells the address",
	  "stricter in what it stops, and no more than the one queue ends", never_registered },
};

TEST_EACH(cuda, answers)
{
	show(row);
	row->check(open_device(0));
}

TEST_EACH(cuda_reach, reaches, .faults = true)
{
	show(row);
	row->check(open_device(0));
}
