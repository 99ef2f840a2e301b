// SPDX-License-Identifier: MIT OR Apache-2.0
/* Parts of files that are portable. */
#define _GNU_SOURCE
#include "pair.h"

#include "edu.h"
#include "memory.h"
#include "pins.h"

#include <sys/mman.h>
#include <unistd.h>

/* Two devices that are open, and a part of a file that is portable between them. */
struct file_pair {
	int fd, other, file;
	char *view;
	struct pinmap_register_fd part;
};

static struct file_pair file_pair_open(void)
{
	struct file_pair pair;

	need_two();
	pair.fd = open_device(0);
	pair.other = open_device(1);
	pair.file = new_memfd(8 * PAGE, 0);
	pair.view = SYS(mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, pair.file, 0));
	return pair;
}

static struct file_pair file_pair_new(void)
{
	struct file_pair pair = file_pair_open();

	pair.part = register_fd(pair.fd, pair.file, 2 * PAGE, 4 * PAGE, WRITE | PORTABLE);
	return pair;
}

TEST(portable_file_is_pinned_once)
{
	struct file_pair pair = file_pair_open();
	long long pins = pins_held(), kib = pinned_kib();

	pair.part = register_fd(pair.fd, pair.file, 2 * PAGE, 4 * PAGE, WRITE | PORTABLE);
	CHECK_PINS(pins + 4);
	CHECK_EQ(pinned_kib(), kib + 4 * PAGE / 1024);
	CHECK_EQ(query_handle(pair.fd, pair.part.out_handle).out_flags, WRITE | PORTABLE);
	CHECK_EQ(get_info(pair.other).out_registrations, 1);
	release(pair.fd, pair.part.out_handle);
	CHECK_PINS(pins);
	CHECK_EQ(get_info(pair.other).out_registrations, 0);
	CHECK_NO_EVENT(pair.other);
}

TEST(portable_file_is_reached_by_both)
{
	struct file_pair pair = file_pair_new();
	struct edu first = edu_open(pair.fd), second = edu_open(pair.other);
	char buffer[PAGE];

	edu_load(&first, 31);
	edu_writes(&first, pair.part.device_addr + PAGE, PAGE);
	CHECK(pattern_is(pair.view + 3 * PAGE, PAGE, 31));
	edu_reads(&second, pair.part.device_addr + PAGE, PAGE);
	edu_store(&second, buffer);
	CHECK(pattern_is(buffer, PAGE, 31));
}

TEST(portable_file_on_a_device_opened_later)
{
	struct file_pair pair = file_pair_new();
	struct edu second;

	close(pair.other);
	pair.other = open_device(1);
	second = edu_open(pair.other);
	CHECK_REACHES(&second, pair.part.device_addr, pair.view + 2 * PAGE, PAGE);
}

TEST(portable_file_address_taken_on_another)
{
	struct file_pair pair = file_pair_open();
	struct registration taken = register_memory(pair.other, anon(1), PAGE, WRITE);
	struct pinmap_register_fd refused = fd_args(pair.file, 0, PAGE, WRITE | PORTABLE | FIXED);

	refused.device_addr = taken.device_addr;
	check_fail(__FILE__, __LINE__, try_register_fd(pair.fd, &refused), EEXIST, &refused.fail,
		   PINMAP_FAIL_OVERLAP, taken.device_addr);
	CHECK_EQ(get_info(pair.fd).out_registrations, 0);
}

TEST(portable_file_without_a_mapping)
{
	struct pinmap_register_fd refused = fd_args(new_memfd(PAGE, 0), 0, PAGE, PORTABLE | NO_MAP);

	CHECK_ERR(EINVAL, try_register_fd(open_device(0), &refused));
}

TEST(portable_file_goes_with_its_context)
{
	struct file_pair pair = file_pair_open();
	long long pins = pins_held();
	struct pinmap_event event;

	register_fd(pair.fd, pair.file, 0, PAGE, WRITE | PORTABLE);
	close(pair.fd);
	event = next_event(pair.other);
	CHECK_EQ(event.type, PINMAP_EVENT_STALE);
	CHECK_EQ(event.length, PAGE);
	release(pair.other, event.handle);
	CHECK_PINS(pins);
}
