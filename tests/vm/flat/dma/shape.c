// SPDX-License-Identifier: MIT OR Apache-2.0
/* The promise for sizes, alignments and kinds of pages, interrupts, narrow devices. */
#define _GNU_SOURCE
#include "edu.h"
#include "iommu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"

#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * 4 MiB of plain pages, a huge page of hugetlb, plain pages up to 2 MiB again, a transparent huge
 * page.
 */
struct mixture {
	char *memory;
	size_t length;
};

static struct mixture mix(void)
{
	struct mixture mixture = { .length = 4 * HUGE };
	struct memory huge;
	int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;

	if (HUGE != 512 * PAGE)
		SKIP("is for huge pages of 512 pages");
	huge = memory_new(HUGETLB, HUGE);
	mixture.memory = address_space(mixture.length, HUGE);
	SYS(mmap(mixture.memory, mixture.length, prot, flags, -1, 0));
	SYS(madvise(mixture.memory, 3 * HUGE, MADV_NOHUGEPAGE));
	SYS(mmap(mixture.memory + HUGE, HUGE, prot, MAP_SHARED | MAP_FIXED, huge.fd, 0));
	SYS(madvise(mixture.memory + 3 * HUGE, HUGE, MADV_HUGEPAGE));
	/* every page begins with its number */
	for (size_t page = 0; page < mixture.length / PAGE; page++) {
		memset(mixture.memory + page * PAGE, page, PAGE);
		*(uint32_t *)(mixture.memory + page * PAGE) = page;
	}
	return mixture;
}

static const struct shape {
	const char *name;
	size_t first, count;
} shapes[] = {
	{ "one_page", 3, 1 },
	{ "plain", 0, 512 },
	{ "plain_to_huge", 500, 24 },
	{ "inside_of_huge", 600, 100 },
	{ "huge", 512, 512 },
	{ "huge_and_more", 511, 514 },
	{ "thp", 1536, 512 },
	{ "plain_to_part_of_thp", 1500, 100 },
	{ "end_of_thp", 2047, 1 },
	{ "all", 0, 2048 },
	{ "all_but_ends", 1, 2046 },
};

/*
 * Checks that a transfer over the border between two pages, which may be of two kinds, shows both.
 */
static void check_border(const struct edu *edu, const struct registration *registration,
			 size_t page)
{
	enum { LENGTH = 4096 };
	size_t offset = page * PAGE - LENGTH / 2;
	char *memory = registration->addr + offset, before[LENGTH];

	memcpy(before, memory, LENGTH);
	edu_reads(edu, registration->device_addr + offset, LENGTH);
	memset(memory, 0, LENGTH);
	edu_writes(edu, registration->device_addr + offset, LENGTH);
	if (memcmp(before, memory, LENGTH))
		FAIL("page %zu: bytes come back wrong", page);
}

TEST_EACH(shape, shapes)
{
	struct pci_device device = need_device(0);
	struct mixture mixture = mix();
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	long long pins = pins_held();
	struct registration registration =
		register_memory(fd, mixture.memory + row->first * PAGE, row->count * PAGE, WRITE);
	const struct iommu_table *table;
	size_t steps[] = { 1, 12, 36, 512 - row->first % 512, row->count - 1 };
	char buffer[PAGE];

	CHECK_PINS(pins + (long long)row->count);
	/* the first and the last byte */
	edu_reads(&edu, registration.device_addr, 64);
	edu_store(&edu, buffer);
	CHECK(!memcmp(buffer, registration.addr, 64));
	edu_reads(&edu, registration.device_addr + registration.length - 64, 64);
	edu_store(&edu, buffer);
	CHECK(!memcmp(buffer, registration.addr + registration.length - 64, 64));
	for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
		if (steps[i] > 0 && steps[i] < row->count && (i == 0 || steps[i] != steps[i - 1]))
			check_border(&edu, &registration, steps[i]);
	/* every single page has a translation, and the next one has none */
	table = iommu_read(device.bdf);
	if (table) {
		for (size_t page = 0; page < row->count; page++)
			CHECK(iommu_find(table, registration.device_addr + page * PAGE).writable);
		CHECK_EQ(iommu_find(table, registration.device_addr - PAGE).size, 0);
		CHECK_EQ(iommu_find(table, registration.device_addr + registration.length).size, 0);
	}
	release(fd, registration.handle);
	CHECK_PINS(pins);
	table = iommu_read(device.bdf);
	if (table)
		CHECK_EQ(table->count, 0);
}

/* Huge pages stay huge in the IOMMU, also at another address. */
TEST(huge_entries)
{
	struct pci_device device = need_device(0);
	char *memory = memory_new(THP, 2 * HUGE).addr;
	int fd = open_device(0);
	struct registration registration = register_memory(fd, memory, 2 * HUGE, WRITE);
	const struct iommu_table *table;
	uint64_t other;

	if (!(get_info(fd).out_page_sizes & HUGE))
		SKIP("the IOMMU has no pages of 2 MiB");
	table = iommu_read(device.bdf);
	if (!table)
		SKIP("this IOMMU's driver does not show its page table");
	CHECK_EQ(iommu_find(table, registration.device_addr + PAGE).size, HUGE);
	CHECK_EQ(iommu_find(table, registration.device_addr + HUGE).size, HUGE);
	other = map(fd, registration.handle, 0, 0);
	table = iommu_read(device.bdf);
	CHECK_EQ(iommu_find(table, other).size, HUGE);
	CHECK(!iommu_find(table, other).writable);
	release(fd, registration.handle);
	CHECK_EQ(iommu_read(device.bdf)->count, 0);
}

/*
 * A huge page with another page in its middle is not taken for whole: first and last page tell
 * nothing about it.
 */
TEST(huge_page_replaced_in_the_middle)
{
	char *memory = memory_new(THP, 2 * HUGE).addr, *other = anon(1);
	size_t middle = HUGE / PAGE / 2;
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	struct registration registration;
	uint64_t frames[3];
	long long pins = pins_held();

	SYS(mremap(other, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory + middle * PAGE));
	page_frames(memory + (middle - 1) * PAGE, 3, frames);
	CHECK_EQ(frames[2], frames[0] + 2);
	CHECK(frames[1] != frames[0] + 1);
	registration = register_memory(fd, memory, 2 * HUGE, WRITE);
	CHECK_PINS(pins + 2 * HUGE / PAGE);
	check_border(&edu, &registration, middle);
	check_border(&edu, &registration, middle + 1);
	release(fd, registration.handle);
	CHECK_PINS(pins);
}

/* Parts of huge pages are pinned at once as far as they are wanted. */
TEST(parts_of_huge_pages)
{
	static const struct {
		size_t first, pages;
	} rows[] = {
		{ 0, 2 },    { 0, 511 }, { 1, 511 },   { 1, 512 },
		{ 5, 1000 }, { 511, 2 }, { 511, 513 }, { 300, 100 },
	};
	enum memory_kind kinds[] = { THP, HUGETLB };
	struct pci_device device = need_device(0);
	int fd = open_device(0);
	struct edu edu = edu_open(fd);

	for (size_t kind = 0; kind < ARRAY_SIZE(kinds); kind++) {
		struct memory memory;

		if (kinds[kind] == HUGETLB)
			need_hugetlb(2);
		memory = memory_new(kinds[kind], 2 * HUGE);
		for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
			long long pins = pins_held();
			char *addr = memory.addr + rows[i].first * PAGE;
			struct registration registration =
				register_memory(fd, addr, rows[i].pages * PAGE, WRITE);
			const struct iommu_table *table = iommu_read(device.bdf);

			CHECK_PINS(pins + (long long)rows[i].pages);
			check_border(&edu, &registration, rows[i].pages / 2);
			if (table) {
				CHECK_EQ(iommu_find(table, registration.device_addr - PAGE).size,
					 0);
				CHECK_EQ(iommu_find(table,
						    registration.device_addr + registration.length)
						 .size,
					 0);
			}
			release(fd, registration.handle);
			CHECK_PINS(pins);
		}
		memory_free(&memory);
	}
}

/* The device sees each of many scattered pages at its place. */
TEST(scattered)
{
	enum { PAGES = 1024 };
	char *memory = anon(PAGES), *holes = anon(PAGES);
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	struct registration registration;
	uint64_t frames[PAGES];
	unsigned int runs = 0;

	/* frees every other page, and takes them in another order */
	for (int i = 0; i < PAGES; i += 2)
		SYS(madvise(holes + i * PAGE, PAGE, MADV_DONTNEED));
	SYS(madvise(memory, PAGES * PAGE, MADV_DONTNEED));
	for (int i = 0; i < PAGES; i++) {
		int page = (i * 613) % PAGES;

		memset(memory + page * PAGE, page, PAGE);
		*(int *)(memory + page * PAGE) = page;
	}
	page_frames(memory, PAGES, frames);
	for (int i = 1; i < PAGES; i++)
		runs += frames[i] != frames[i - 1] + 1;
	diag("%u runs of %d pages", runs + 1, PAGES);
	registration = register_memory(fd, memory, PAGES * PAGE, WRITE);
	for (int i = 1; i < PAGES; i += 127)
		check_border(&edu, &registration, i);
	release(fd, registration.handle);
}

TEST(large)
{
	size_t length = 64 * MIB;
	struct memory memory = memory_new(THP, length);
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	struct registration registration = register_memory(fd, memory.addr, length, WRITE);

	CHECK_REACHES(&edu, registration.device_addr, memory.addr, PAGE);
	CHECK_REACHES(&edu, registration.device_addr + length - PAGE, memory.addr + length - PAGE,
		      PAGE);
	CHECK_REACHES(&edu, registration.device_addr + length / 2 + 123,
		      memory.addr + length / 2 + 123, PAGE);
}

/* A device that can drive few address bits gets low addresses. */
TEST(narrow)
{
	static const uint32_t bits[] = { 20, 28, 32 };
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *memory = anon(4);

	for (size_t i = 0; i < ARRAY_SIZE(bits); i++) {
		struct pinmap_register args = register_args(memory, 4 * PAGE, WRITE);

		args.address_bits = bits[i];
		CHECK_OK(try_register_args(fd, &args));
		CHECK_EQ((args.device_addr + 4 * PAGE - 1) >> bits[i], 0);
		CHECK_REACHES(&edu, args.device_addr + 2 * PAGE, memory + 2 * PAGE, PAGE);
		release(fd, args.out_handle);
	}
}

static uint64_t count(int fd)
{
	uint64_t value = 0;

	return read(fd, &value, sizeof(value)) == sizeof(value) ? value : 0;
}

TEST(interrupt, .smoke = true)
{
	int fd = open_device(0), first = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	int second = SYS(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	struct edu edu = edu_open(fd);
	char *page = anon(1);
	struct registration registration = register_memory(fd, page, PAGE, WRITE);

	set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, first);
	CHECK_EQ(count(first), 0);
	/* at the end of a transfer */
	edu_load(&edu, 71);
	edu_start(&edu, EDU_WRITES, registration.device_addr, PAGE, true);
	CHECK(WAIT_FOR(3000, count(first) == 1));
	/* the data is there when the interrupt is */
	CHECK(pattern_is(page, PAGE, 71));
	CHECK_EQ(edu_register(&edu, EDU_IRQ_STATUS), 0x100);
	edu_set_register(&edu, EDU_IRQ_ACK, 0x100);
	CHECK_EQ(edu_register(&edu, EDU_IRQ_STATUS), 0);
	/* each interrupt adds one */
	for (int i = 0; i < 5; i++) {
		edu_set_register(&edu, EDU_IRQ_RAISE, 1);
		edu_set_register(&edu, EDU_IRQ_ACK, 1);
		CHECK(WAIT_FOR(2000, count(first) == 1));
	}
	sleep_ms(20);
	CHECK_EQ(count(first), 0);
	/* a new eventfd takes the place of the old one */
	set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, second);
	edu_set_register(&edu, EDU_IRQ_RAISE, 1);
	edu_set_register(&edu, EDU_IRQ_ACK, 1);
	CHECK(WAIT_FOR(2000, count(second) == 1));
	CHECK_EQ(count(first), 0);
	/* without an eventfd nothing happens */
	set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, -1);
	edu_set_register(&edu, EDU_IRQ_RAISE, 1);
	edu_set_register(&edu, EDU_IRQ_ACK, 1);
	sleep_ms(50);
	CHECK_EQ(count(first) + count(second), 0);
	set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, first);
	edu_set_register(&edu, EDU_IRQ_RAISE, 1);
	CHECK(WAIT_FOR(2000, count(first) == 1));
	edu_set_register(&edu, EDU_IRQ_ACK, 1);
	/* that nothing was mapped for a moment makes no difference */
	release(fd, registration.handle);
	edu_set_register(&edu, EDU_IRQ_RAISE, 1);
	CHECK(WAIT_FOR(2000, count(first) == 1));
	edu_set_register(&edu, EDU_IRQ_ACK, 1);
	register_memory(fd, page, PAGE, WRITE);
	edu_set_register(&edu, EDU_IRQ_RAISE, 1);
	CHECK(WAIT_FOR(2000, count(first) == 1));
	edu_set_register(&edu, EDU_IRQ_ACK, 1);
}
