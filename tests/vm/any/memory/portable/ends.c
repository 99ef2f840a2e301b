// SPDX-License-Identifier: MIT OR Apache-2.0
/* The end of portable memory, for all contexts or for one of them. */
#define _GNU_SOURCE
#include "pair.h"

#include "edu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* When the memory goes, it goes from all devices, before munmap() returns. */
TEST(portable_stale, .faults = true)
{
	struct registration registration;
	struct edu second;
	long long pins;
	char *memory, copy[PAGE];
	int fd, other, kept;

	need_two();
	fd = open_device(0);
	other = open_device(1);
	second = edu_open(other);
	edu_load(&second, 5);
	memory = anon(4);
	pins = pins_held();
	registration = register_memory(fd, memory, 4 * PAGE, WRITE | PORTABLE);
	CHECK_REACHES(&second, (uintptr_t)memory, memory, PAGE);
	memset(memory, 0x77, PAGE);
	kept = keep_page(memory);
	SYS(munmap(memory, 4 * PAGE));
	edu_writes(&second, (uintptr_t)memory, PAGE);
	read_kept_page(kept, copy);
	CHECK(bytes_are(copy, PAGE, 0x77));
	CHECK_STALE_EVENT(fd, registration);
	CHECK_EQ(next_event(other).type, PINMAP_EVENT_STALE);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_STALE);
	CHECK_PINS_SOON(pins);
	/* a device that is opened now needs nothing of it */
	close(open_device(1));
	release(fd, registration.handle);
	CHECK_EQ(get_info(other).out_registrations, 0);
}

/* Each context can let go of the memory without harm to the other. */
TEST(portable_released_by_one)
{
	struct pair pair = pair_new();
	struct edu first = edu_open(pair.fd);
	struct pinmap_query query;

	release(pair.other, query_addr(pair.other, pair.memory).handle);
	CHECK_ERR(ENOENT, try_query_addr(pair.other, pair.memory, &query));
	CHECK_PINS(pair.pins + PAGES);
	CHECK_REACHES(&first, pair.registration.device_addr, pair.memory, PAGE);
}

TEST(portable_unmapped_by_one)
{
	struct pair pair = pair_new();
	struct edu first = edu_open(pair.fd);
	struct pinmap_query query = query_addr(pair.other, pair.memory);

	unmap(pair.other, query.handle, query.out_device_addr);
	CHECK_EQ(query_addr(pair.other, pair.memory).out_nr_mappings, 0);
	CHECK_REACHES(&first, pair.registration.device_addr, pair.memory, PAGE);
	CHECK_EQ(map(pair.other, query.handle, PINMAP_MAP_WRITE, 0), (uintptr_t)pair.memory);
}

TEST(portable_when_one_device_goes)
{
	struct pair pair = pair_new();
	struct pci_device device = need_device(1);
	struct edu first = edu_open(pair.fd);

	pci_unbind(device.bdf);
	CHECK_REACHES(&first, pair.registration.device_addr, pair.memory, PAGE);
	register_memory(pair.fd, anon(1), PAGE, WRITE | PORTABLE);
	CHECK_PINS(pair.pins + PAGES + 1);
	pci_bind(device.bdf);
}

/* Memory goes with the context that registered it, and the other one is told of each. */
TEST(portable_goes_with_its_context)
{
	struct pair pair = pair_new();

	register_memory(pair.fd, anon(1), PAGE, WRITE | PORTABLE);
	CHECK_EQ(get_info(pair.other).out_registrations, 2);
	close(pair.fd);
	CHECK_PINS(pair.pins);
	for (int i = 0; i < 2; i++) {
		struct pinmap_event event = next_event(pair.other);

		CHECK_EQ(event.type, PINMAP_EVENT_STALE);
		CHECK_EQ(event.length, event.addr == (uintptr_t)pair.memory ? PAGES * PAGE : PAGE);
		CHECK_EQ(query_handle(pair.other, event.handle).out_state, PINMAP_STATE_STALE);
		CHECK_EQ(query_handle(pair.other, event.handle).out_nr_mappings, 0);
		CHECK_ERR(ESTALE, try_unmap(pair.other, event.handle, event.addr));
	}
	CHECK_NO_EVENT(pair.other);
}

TEST(portable_stale_is_not_in_the_way)
{
	struct pair pair = pair_new();
	struct pinmap_query query;

	close(pair.fd);
	query = query_addr(pair.other, pair.memory);
	CHECK_EQ(query.out_state, PINMAP_STATE_STALE);
	register_memory(pair.other, pair.memory, PAGES * PAGE, WRITE | IDENTITY);
	release(pair.other, query.handle);
	CHECK_EQ(get_info(pair.other).out_registrations, 1);
}

enum portable_end { UNMAPPED, DISCARDED, CLOSED, UNBOUND, RELEASED };

static const struct {
	const char *name;
	enum portable_end how;
} portable_ends_of[] = {
	{ "munmap", UNMAPPED }, { "madvise", DISCARDED }, { "close", CLOSED },
	{ "unbind", UNBOUND }, { "release", RELEASED },
};

/*
 * A context that did not register portable memory learns from an event and its generations that the
 * memory is gone; and from its generations that it was released.
 */
TEST_EACH(portable_told, portable_ends_of)
{
	struct pinmap_generations generations = { .size = sizeof(generations) };
	struct registration registration, late;
	const volatile uint64_t *numbers;
	struct pci_device device;
	struct pinmap_query query;
	uint64_t before;
	long long pins;
	int fd, other;
	char *memory;

	need_two();
	device = need_device(0);
	fd = open_device(0);
	other = open_device(1);
	CHECK_OK(try_ioctl(other, PINMAP_GENERATIONS, &generations));
	numbers = SYS(mmap(NULL, generations.out_length, PROT_READ, MAP_SHARED, other,
			   (off_t)generations.out_offset));
	memory = anon(4);
	pins = pins_held();
	registration = register_memory(fd, memory, 4 * PAGE, WRITE | PORTABLE);
	query = query_addr(other, memory);
	/* the handles of the two contexts differ */
	late = registration;
	late.handle = query.handle;
	before = numbers[query.handle % (generations.out_length / 8)];
	switch (row->how) {
	case UNMAPPED: SYS(munmap(memory + PAGE, PAGE)); break;
	case DISCARDED: SYS(madvise(memory + PAGE, PAGE, MADV_DONTNEED)); break;
	case CLOSED: close(fd); break;
	case UNBOUND: pci_unbind(device.bdf); break;
	case RELEASED: release(fd, registration.handle); break;
	}
	CHECK(numbers[query.handle % (generations.out_length / 8)] != before);
	if (row->how == RELEASED) {
		CHECK_NO_EVENT(other);
		CHECK_ERR(ESTALE, try_query_handle(other, query.handle, &query));
	} else {
		CHECK_STALE_EVENT(other, late);
		CHECK_NO_EVENT(other);
		query = query_handle(other, late.handle);
		CHECK_EQ(query.out_state, PINMAP_STATE_STALE);
		CHECK_EQ(query.out_nr_mappings, 0);
		release(other, late.handle);
	}
	CHECK_PINS_SOON(pins);
	CHECK_EQ(get_info(other).out_registrations, 0);
	if (row->how == UNBOUND) {
		struct pinmap_event event = next_event(fd);

		CHECK_EQ(event.type, PINMAP_EVENT_GONE);
		pci_bind(device.bdf);
	}
}

/* The release of portable memory, by either context, takes back an event that was not read. */
TEST(portable_withdrawn)
{
	struct registration registration;
	struct pinmap_query query;
	int fd, other;
	char *memory;

	need_two();
	fd = open_device(0);
	other = open_device(1);
	for (int round = 0; round < 2; round++) {
		memory = anon(1);
		registration = register_memory(fd, memory, PAGE, PORTABLE);
		query = query_addr(other, memory);
		SYS(munmap(memory, PAGE));
		CHECK_EQ(query_handle(other, query.handle).out_state, PINMAP_STATE_STALE);
		if (round)
			release(other, query.handle);
		release(fd, registration.handle);
		CHECK_NO_EVENT(other);
		CHECK_NO_EVENT(fd);
		CHECK_EQ(get_info(other).out_registrations, 0);
	}
}

/*
 * A device without an MMU has portable memory by one context of the process; when that goes, by the
 * next.
 */
TEST(portable_handed_over)
{
	struct registration registration;
	struct pinmap_query query;
	int fd, siblings[3];
	struct edu edu;
	char *memory;

	need_two();
	fd = open_device(0);
	for (int i = 0; i < 3; i++)
		siblings[i] = open_device(1);
	memory = anon(4);
	registration = register_memory(fd, memory, 4 * PAGE, WRITE | PORTABLE);
	for (int i = 0; i < 3; i++) {
		int owner = -1;

		for (int j = i; j < 3; j++) {
			if (get_info(siblings[j]).out_flags & PINMAP_INFO_OWNER) {
				CHECK(owner < 0);
				owner = j;
			} else {
				CHECK_ERR(ENOENT, try_query_addr(siblings[j], memory, &query));
			}
		}
		CHECK(owner >= 0);
		CHECK_EQ(query_addr(siblings[owner], memory + 5).out_device_addr,
			 (uintptr_t)memory + 5);
		edu = edu_open(siblings[owner]);
		CHECK_REACHES(&edu, (uintptr_t)memory + PAGE, memory + PAGE, PAGE);
		edu_close(&edu);
		close(siblings[owner]);
		siblings[owner] = siblings[i];
	}
	/* a device whose owner has let go of the memory does not need it: others can open it */
	siblings[0] = open_device(1);
	release(siblings[0], query_addr(siblings[0], memory).handle);
	siblings[1] = open_device(1);
	CHECK_ERR(ENOENT, try_query_addr(siblings[1], memory, &query));
	close(siblings[0]);
	CHECK_EQ(query_addr(siblings[1], memory).out_nr_mappings, 1);
	close(siblings[1]);
	CHECK_EQ(query_handle(fd, registration.handle).out_nr_mappings, 1);
}
