// SPDX-License-Identifier: MIT OR Apache-2.0
/* The arguments of REGISTER. */
#define _GNU_SOURCE
#include "device.h"
#include "edu.h"
#include "memory.h"
#include "pins.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int try_range(int fd, uint64_t addr, uint64_t length, uint32_t flags, uint64_t device_addr)
{
	struct pinmap_register args = register_args(NULL, 0, flags);

	args.addr = addr;
	args.length = length;
	args.device_addr = device_addr;
	return try_register_args(fd, &args);
}

TEST(overflow)
{
	static const uint64_t last_page = -(uint64_t)PAGE;
	uint64_t addr = (uintptr_t)anon(2);
	int fd = open_device(0);

	CHECK_ERR(EOVERFLOW, try_range(fd, last_page, 2 * PAGE, 0, 0));
	CHECK_ERR(EOVERFLOW, try_range(fd, addr, last_page, 0, 0));
	CHECK_ERR(EOVERFLOW, try_range(fd, addr, UINT64_MAX, 0, 0));
	CHECK_ERR(EOVERFLOW, try_range(fd, UINT64_MAX, 2, 0, 0));
	CHECK_ERR(EOVERFLOW, try_range(fd, 1ULL << 63, (1ULL << 63) + PAGE, 0, 0));
	/* the device address */
	CHECK_ERR(EOVERFLOW, try_range(fd, addr, 2 * PAGE, FIXED, last_page));
	/* addresses that make no sense without an overflow */
	CHECK_ERR(EINVAL, try_range(fd, addr, 1ULL << 62, 0, 0));
	CHECK_ERR(EINVAL, try_range(fd, PAGE, INT64_MAX - (PAGE - 1), 0, 0));
	CHECK_ERR(EINVAL, try_range(fd, PAGE, 1ULL << 63, 0, 0));
	CHECK_EQ(get_info(fd).out_registrations, 0);
}

TEST(length_zero)
{
	uint64_t addr = (uintptr_t)anon(1);
	int fd = open_device(0);

	CHECK_ERR(EINVAL, try_range(fd, addr, 0, 0, 0));
	CHECK_ERR(EINVAL, try_range(fd, 0, 0, 0, 0));
	CHECK_ERR(EINVAL, try_range(fd, addr, 0, WRITE | NO_MAP, 0));
	/* behind the last byte of the memory */
	CHECK_ERR(EINVAL, try_range(fd, addr + PAGE, 0, 0, 0));
}

TEST(unaligned)
{
	uint64_t addr = (uintptr_t)anon(4);
	int fd = open_device(0);

	for (uint64_t off = 1; off < PAGE; off = off * 2 + 1) {
		CHECK_ERR(EINVAL, try_range(fd, addr + off, PAGE, 0, 0));
		CHECK_ERR(EINVAL, try_range(fd, addr, off, 0, 0));
		CHECK_ERR(EINVAL, try_range(fd, addr, PAGE + off, 0, 0));
		CHECK_ERR(EINVAL, try_range(fd, addr + off, 2 * PAGE - off, 0, 0));
		CHECK_ERR(EINVAL, try_range(fd, addr, PAGE, FIXED, 16 * MIB + off));
	}
}

/* The first address that no program can have. */
static uint64_t user_end(void)
{
#ifdef __aarch64__
	/* memory above 48 bits is for those who ask for it, where there is such */
	void *high = (void *)(1ULL << 51);
	void *page = SYS(mmap(high, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));

	SYS(munmap(page, PAGE));
	return (uintptr_t)page >= 1ULL << 48 ? 1ULL << 52 : 1ULL << 48;
#else
	/* with page tables of five levels there is more */
	FILE *file = fopen("/proc/cpuinfo", "re");
	bool found = false;
	char line[4096];

	while (file && fgets(line, sizeof(line), file))
		found |= strstr(line, " la57") != NULL;
	if (file)
		fclose(file);
	return (found ? 1ULL << 56 : 1ULL << 47) - PAGE;
#endif
}

TEST(kernel_addresses)
{
	uint64_t end = user_end();
	const uint64_t addrs[] = {
		end,
		end + PAGE, /* not canonical */
		0x0100000000000000,
		0x7ffffffffffff000,
		0x8000000000000000,
		0xff00000000000000, /* the kernel */
		0xffff800000000000,
		0xffff888000000000,
		0xffffffff81000000,
		0xffffffffff600000, /* vsyscall */
		0xffffffffffffe000,
	};
	int fd = open_device(0);

	for (size_t i = 0; i < ARRAY_SIZE(addrs); i++) {
		uint64_t address = addrs[i] & -(uint64_t)PAGE;

		CHECK_ERR(EINVAL, try_range(fd, address, PAGE, 0, 0));
		CHECK_ERR(EINVAL, try_range(fd, address, PAGE, WRITE | NO_MAP, 0));
	}
	/* a range from user space into the kernel's half */
	CHECK_ERR(EINVAL, try_range(fd, end - PAGE, 2 * PAGE, 0, 0));
	CHECK_ERR(EINVAL, try_range(fd, PAGE, 0xffff888000000000, 0, 0));
	CHECK_EQ(get_info(fd).out_registrations, 0);
}

TEST(conflicting_flags)
{
	uint64_t addr = (uintptr_t)anon(1);
	int fd = open_device(0);

	CHECK_ERR(EINVAL, try_range(fd, addr, PAGE, FIXED | IDENTITY, addr));
	CHECK_ERR(EINVAL, try_range(fd, addr, PAGE, FIXED | NO_MAP, 16 * MIB));
	CHECK_ERR(EINVAL, try_range(fd, addr, PAGE, IDENTITY | NO_MAP, 0));
	/* a device address without PINMAP_REGISTER_FIXED */
	CHECK_ERR(EINVAL, try_range(fd, addr, PAGE, 0, 16 * MIB));
	CHECK_ERR(EINVAL, try_range(fd, addr, PAGE, NO_MAP, 16 * MIB));
	CHECK_ERR(EINVAL, try_range(fd, addr, PAGE, IDENTITY, addr));
}

TEST(address_bits_range)
{
	struct pinmap_register args;
	char *page = anon(1);
	int fd = open_device(0);

	for (uint32_t bits = 1; bits < 128; bits++) {
		if (bits >= 12 && bits <= 64)
			continue;
		args = register_args(page, PAGE, 0);
		args.address_bits = bits;
		CHECK_ERR(EINVAL, try_register_args(fd, &args));
	}
	args = register_args(page, PAGE, 0);
	args.address_bits = UINT32_MAX;
	CHECK_ERR(EINVAL, try_register_args(fd, &args));
	for (uint32_t bits = 16; bits <= 64; bits += 8) {
		args = register_args(page, PAGE, 0);
		args.address_bits = bits;
		CHECK_OK(try_register_args(fd, &args));
		CHECK(bits == 64 || args.device_addr >> bits == 0);
		release(fd, args.out_handle);
	}
}

/* A range that touches a live registration is refused, and the answer names that one. */
TEST(overlap)
{
	static const struct {
		unsigned int first, count;
	} ranges[] = { { 4, 4 },  { 5, 2 }, { 4, 1 }, { 7, 1 },
		       { 0, 16 }, { 3, 2 }, { 7, 2 }, { 0, 5 } };
	char *memory = anon(16);
	int fd = open_device(0), other = open_device(0);
	struct registration registration = register_memory(fd, memory + 4 * PAGE, 4 * PAGE, NO_MAP);
	long long pins = pins_held();

	for (size_t i = 0; i < ARRAY_SIZE(ranges); i++) {
		CHECK_REGISTER_FAILS(fd, memory + ranges[i].first * PAGE, ranges[i].count * PAGE,
				     WRITE, EEXIST, PINMAP_FAIL_OVERLAP, registration.addr);
		CHECK_REGISTER_FAILS(fd, memory + ranges[i].first * PAGE, ranges[i].count * PAGE,
				     NO_MAP, EEXIST, PINMAP_FAIL_OVERLAP, registration.addr);
	}
	CHECK_PINS(pins);
	/* neighbours are no overlap, and neither is another context */
	register_memory(fd, memory + 3 * PAGE, PAGE, NO_MAP);
	register_memory(fd, memory + 8 * PAGE, PAGE, NO_MAP);
	register_memory(other, memory, 16 * PAGE, NO_MAP);
	/* of two registrations in the way the first is named */
	CHECK_REGISTER_FAILS(fd, memory, 16 * PAGE, NO_MAP, EEXIST, PINMAP_FAIL_OVERLAP,
			     memory + 3 * PAGE);
	release(fd, registration.handle);
	register_memory(fd, memory + 4 * PAGE, 4 * PAGE, NO_MAP);
}

/*
 * The manual says that the content of `fail` does not matter on input, and that a success clears
 * it.
 */
TEST(fail_cleared)
{
	char *memory = anon(2);
	int fd = open_device(0);
	struct pinmap_register args = register_args(memory, PAGE, 0);
	struct registration pinned = register_memory(fd, memory + PAGE, PAGE, NO_MAP);
	struct pinmap_fail fail;
	uint64_t device_addr = 0;

	memset(&args.fail, 0xff, sizeof(args.fail));
	CHECK_OK(try_register_args(fd, &args));
	CHECK(bytes_are(&args.fail, sizeof(args.fail), 0));
	CHECK_OK(try_map(fd, pinned.handle, 0, &device_addr, &fail));
	CHECK(bytes_are(&fail, sizeof(fail), 0));
}

/* A failed call keeps nothing: the same call with better luck works right after it. */
TEST(failure_keeps_nothing)
{
	char *memory = anon(8);
	int fd = open_device(0);
	struct pinmap_info before = get_info(fd), after;
	long long pins = pins_held();

	SYS(munmap(memory + 7 * PAGE, PAGE));
	CHECK_REGISTER_FAILS(fd, memory, 8 * PAGE, WRITE, EFAULT, PINMAP_FAIL_HOLE,
			     memory + 7 * PAGE);
	after = get_info(fd);
	CHECK_PINS(pins);
	CHECK_EQ(after.out_registrations, before.out_registrations);
	CHECK_EQ(after.out_memlock_used, before.out_memlock_used);
	CHECK_EQ(after.out_flags, before.out_flags);
	register_memory(fd, memory, 7 * PAGE, WRITE | IDENTITY);
	CHECK_PINS(pins + 7);
}
