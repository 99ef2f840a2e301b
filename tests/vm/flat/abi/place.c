// SPDX-License-Identifier: MIT OR Apache-2.0
/* Placement: at which device address memory goes. */
#define _GNU_SOURCE
#include "device.h"
#include "edu.h"
#include "memory.h"
#include "pci.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int try_fixed(int fd, const void *addr, size_t length, uint64_t device_addr, uint32_t bits,
		     struct pinmap_register *args)
{
	*args = register_args(addr, length, FIXED);
	args->device_addr = device_addr;
	args->address_bits = bits;
	return try_register_args(fd, args);
}

static struct pinmap_reserved msi_window(int fd)
{
	struct pinmap_reserved reserved;

	for (uint32_t i = 0; !try_get_reserved(fd, i, &reserved); i++)
		if (reserved.out_kind == PINMAP_RESERVED_MSI)
			return reserved;
	FAIL("no window for MSI");
}

TEST(identity, .smoke = true)
{
	char *memory = anon(8);
	int fd = open_device(0);

	/* with and without PINMAP_REGISTER_IDENTITY */
	CHECK_EQ(register_memory(fd, memory, 4 * PAGE, IDENTITY).device_addr, (uintptr_t)memory);
	CHECK_EQ(register_memory(fd, memory + 4 * PAGE, 4 * PAGE, 0).device_addr,
		 (uintptr_t)memory + 4 * PAGE);
	CHECK_EQ(query_addr(fd, memory + 5 * PAGE + 17).out_device_addr,
		 (uintptr_t)memory + 5 * PAGE + 17);
}

TEST(fixed)
{
	char *memory = anon(4);
	int fd = open_device(0);
	struct pinmap_info info = get_info(fd);
	struct pinmap_register args;
	uint64_t last = (info.out_aperture_last & -(uint64_t)PAGE);

	CHECK_OK(try_fixed(fd, memory, PAGE, 0x12340000, 0, &args));
	CHECK_EQ(args.device_addr, 0x12340000);
	/* the ends of what can be addressed */
	CHECK_OK(try_fixed(fd, memory + PAGE, PAGE, last, 0, &args));
	CHECK_EQ(args.device_addr, last);
	CHECK_OK(try_fixed(fd, memory + 2 * PAGE, PAGE, info.out_aperture_start + PAGE, 0, &args));
	CHECK_EQ(query_handle(fd, args.out_handle).out_device_addr, info.out_aperture_start + PAGE);
}

TEST(fixed_taken)
{
	char *memory = anon(16);
	int fd = open_device(0);
	struct pinmap_register args;

	CHECK_OK(try_fixed(fd, memory, 4 * PAGE, 0x10000000, 0, &args));
	for (int page = -3; page < 4; page++) {
		int result = try_fixed(fd, memory + 4 * PAGE, 4 * PAGE,
				       0x10000000 + page * (int)PAGE, 0, &args);

		check_fail(__FILE__, __LINE__, result, EEXIST, &args.fail, PINMAP_FAIL_OVERLAP,
			   0x10000000);
	}
	CHECK_OK(try_fixed(fd, memory + 4 * PAGE, 4 * PAGE, 0x10000000 + 4 * PAGE, 0, &args));
	CHECK_OK(try_fixed(fd, memory + 8 * PAGE, 4 * PAGE, 0x10000000 - 4 * PAGE, 0, &args));
}

/*
 * If the user address is taken on the device, an exact wish fails and any other gets a congruent
 * address.
 */
TEST(identity_taken)
{
	char *memory = memory_new(ANON, 8 * PAGE).addr;
	int fd = open_device(0);
	struct pinmap_register args;
	struct registration registration;

	CHECK_OK(try_fixed(fd, memory, PAGE, (uintptr_t)memory + 5 * PAGE, 0, &args));
	CHECK_REGISTER_FAILS(fd, memory + 4 * PAGE, 4 * PAGE, IDENTITY, EEXIST, PINMAP_FAIL_OVERLAP,
			     memory + 5 * PAGE);
	registration = register_memory(fd, memory + 4 * PAGE, 4 * PAGE, 0);
	CHECK(registration.device_addr != (uintptr_t)memory + 4 * PAGE);
	CHECK_EQ(registration.device_addr % HUGE, (uintptr_t)registration.addr % HUGE);
}

TEST(fixed_reserved)
{
	char *memory = anon(4);
	int fd = open_device(0), result;
	struct pinmap_reserved msi = msi_window(fd);
	struct pinmap_register args;

	result = try_fixed(fd, memory, PAGE, msi.out_start, 0, &args);
	check_fail(__FILE__, __LINE__, result, ENOSPC, &args.fail, PINMAP_FAIL_RESERVED,
		   msi.out_start);
	result = try_fixed(fd, memory, PAGE, msi.out_last & -(uint64_t)PAGE, 0, &args);
	check_fail(__FILE__, __LINE__, result, ENOSPC, &args.fail, PINMAP_FAIL_RESERVED,
		   msi.out_start);
	result = try_fixed(fd, memory, 2 * PAGE, msi.out_start - PAGE, 0, &args);
	check_fail(__FILE__, __LINE__, result, ENOSPC, &args.fail, PINMAP_FAIL_RESERVED,
		   msi.out_start);
	result = try_fixed(fd, memory, 2 * PAGE, msi.out_last - (PAGE - 1), 0, &args);
	check_fail(__FILE__, __LINE__, result, ENOSPC, &args.fail, PINMAP_FAIL_RESERVED,
		   msi.out_start);
	/* memory up to the taken range, and right behind it */
	CHECK_OK(try_fixed(fd, memory, 2 * PAGE, msi.out_start - 2 * PAGE, 0, &args));
	CHECK_OK(try_fixed(fd, memory + 2 * PAGE, 2 * PAGE, msi.out_last + 1, 0, &args));
}

/* User memory lies at the very addresses that the device cannot have. */
TEST(identity_reserved)
{
	int fd = open_device(0);
	struct pinmap_reserved msi = msi_window(fd);
	char *wanted = (char *)(uintptr_t)msi.out_start;
	char *memory = SYS(mmap(wanted, PAGE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
	struct registration registration;

	CHECK_REGISTER_FAILS(fd, memory, PAGE, IDENTITY, ENOSPC, PINMAP_FAIL_RESERVED,
			     msi.out_start);
	registration = register_memory(fd, memory, PAGE, 0);
	CHECK(registration.device_addr > msi.out_last ||
	      registration.device_addr + PAGE <= msi.out_start);
	CHECK_EQ(registration.device_addr % HUGE, (uintptr_t)memory % HUGE);
}

TEST(fixed_outside)
{
	char *memory = anon(4);
	int fd = open_device(0), result;
	uint64_t last = get_info(fd).out_aperture_last;
	struct pinmap_register args;

	/* memory takes no more address bits than the caller allows */
	result = try_fixed(fd, memory, PAGE, 1ULL << 32, 32, &args);
	check_fail(__FILE__, __LINE__, result, ENOSPC, &args.fail, PINMAP_FAIL_APERTURE, 0);
	CHECK_EQ(args.fail.allowed, UINT32_MAX);
	result = try_fixed(fd, memory, 2 * PAGE, (1ULL << 32) - PAGE, 32, &args);
	check_fail(__FILE__, __LINE__, result, ENOSPC, &args.fail, PINMAP_FAIL_APERTURE, 0);
	CHECK_OK(try_fixed(fd, memory, PAGE, (1ULL << 32) - PAGE, 32, &args));
	if (last == UINT64_MAX)
		return;
	result = try_fixed(fd, memory + PAGE, PAGE, last + 1, 0, &args);
	check_fail(__FILE__, __LINE__, result, ENOSPC, &args.fail, PINMAP_FAIL_APERTURE, 0);
	CHECK_EQ(args.fail.allowed, last);
	result = try_fixed(fd, memory + PAGE, 2 * PAGE, last - (PAGE - 1), 0, &args);
	check_fail(__FILE__, __LINE__, result, ENOSPC, &args.fail, PINMAP_FAIL_APERTURE, 0);
	result = try_fixed(fd, memory + PAGE, PAGE, 0xffff888000000000, 0, &args);
	check_fail(__FILE__, __LINE__, result, ENOSPC, &args.fail, PINMAP_FAIL_APERTURE, 0);
	CHECK_EQ(args.fail.allowed, last);
}

TEST(low_address)
{
	char *memory = memory_new(ANON, 2 * HUGE).addr + 5 * PAGE;
	int fd = open_device(0);
	struct pinmap_reserved msi = msi_window(fd);
	struct pinmap_register args = register_args(memory, HUGE, IDENTITY);

	/* a 32-bit program has no other addresses */
	if ((uint64_t)(uintptr_t)memory >> 32) {
		args.address_bits = 32;
		check_fail(__FILE__, __LINE__, try_register_args(fd, &args), ENOSPC, &args.fail,
			   PINMAP_FAIL_APERTURE, 0);
	}
	for (uint32_t bits = HUGE < 16 * MIB ? 24 : 28; bits <= 40; bits += 4) {
		args = register_args(memory, HUGE, 0);
		args.address_bits = bits;
		CHECK_OK(try_register_args(fd, &args));
		CHECK_EQ((args.device_addr + HUGE - 1) >> bits, 0);
		CHECK_EQ(args.device_addr % HUGE, (uintptr_t)memory % HUGE);
		CHECK(args.device_addr > msi.out_last || args.device_addr + HUGE <= msi.out_start);
		CHECK(args.device_addr != 0);
		release(fd, args.out_handle);
	}
}

/* Address 0 is given to a caller that demands it only, also when it was free and taken just now. */
TEST(address_zero)
{
	int fd = open_device(0);
	struct pinmap_alloc args = { .size = sizeof(args), .length = 4 * PAGE };
	uint64_t at;

	CHECK_OK(try_ioctl(fd, PINMAP_ALLOC, &args));
	CHECK(map(fd, args.out_handle, 0, 0) != 0);
	at = map(fd, args.out_handle, PINMAP_MAP_FIXED, 0);
	CHECK_EQ(at, 0);
	unmap(fd, args.out_handle, 0);
	at = map(fd, args.out_handle, 0, 0);
	CHECK(at != 0);
	CHECK_EQ(at % HUGE, 0);
}

/* An address that was free and taken just now is not given to a device with fewer bits. */
TEST(bits_of_a_freed_address)
{
	char *memory = anon(1);
	int fd = open_device(0), result;
	struct pinmap_register args;

	/* by a caller that demands it */
	CHECK_OK(try_fixed(fd, memory, PAGE, 1ULL << 33, 0, &args));
	release(fd, args.out_handle);
	result = try_fixed(fd, memory, PAGE, 1ULL << 33, 32, &args);
	check_fail(__FILE__, __LINE__, result, ENOSPC, &args.fail, PINMAP_FAIL_APERTURE, 0);
	/* by a caller that would get it, since it is the memory's own */
	args = register_args(memory, PAGE, 0);
	CHECK_OK(try_register_args(fd, &args));
	CHECK_EQ(args.device_addr, (uintptr_t)memory);
	release(fd, args.out_handle);
	args = register_args(memory, PAGE, 0);
	args.address_bits = 24;
	CHECK_OK(try_register_args(fd, &args));
	CHECK_EQ((args.device_addr + PAGE - 1) >> 24, 0);
	release(fd, args.out_handle);
}

/* Large memory has addresses congruent modulo 1 GiB. */
TEST(low_address_gib)
{
	size_t length = (size_t)1 << 30;
	struct pinmap_register args;
	int fd = open_device(0);
	char *memory;

	if (sizeof(void *) == 4)
		SKIP("not for 32-bit programs, whose address space is full then");
	if (HUGE != 2 * MIB)
		SKIP("larger pages have no entries of 1 GiB");
	if (debug_kernel())
		SKIP("takes too long on a debug kernel");
	memory = tiled(length + HUGE, length) + HUGE;
	args = register_args(memory, length, 0);
	args.address_bits = 40;
	CHECK_OK(try_register_args(fd, &args));
	CHECK_EQ((args.device_addr + length - 1) >> 40, 0);
	CHECK_EQ(args.device_addr % length, HUGE);
	release(fd, args.out_handle);
}

TEST(address_space_full)
{
	char *memory = anon(16);
	int fd = open_device(0);
	struct pinmap_register args;
	unsigned int placed = 0, bits = __builtin_ctzll(4 * PAGE);

	/* 4 pages can be addressed, of which one is address 0 */
	for (unsigned int i = 0; i < 4; i++) {
		int result;

		args = register_args(memory + i * PAGE, PAGE, 0);
		args.address_bits = bits;
		result = try_register_args(fd, &args);
		if (result) {
			check_fail(__FILE__, __LINE__, result, ENOSPC, &args.fail, PINMAP_FAIL_FULL,
				   0);
			break;
		}
		placed++;
		CHECK_EQ(args.device_addr >> bits, 0);
		CHECK(args.device_addr != 0);
	}
	CHECK_EQ(placed, 3);
	/* too large for so few bits, whatever is free */
	args = register_args(memory + 4 * PAGE, 8 * PAGE, 0);
	args.address_bits = bits;
	check_fail(__FILE__, __LINE__, try_register_args(fd, &args), ENOSPC, &args.fail,
		   PINMAP_FAIL_FULL, 0);
	/* an exact demand fails for another reason */
	CHECK(try_fixed(fd, memory + 4 * PAGE, PAGE, PAGE, bits, &args) == -EEXIST);
}
