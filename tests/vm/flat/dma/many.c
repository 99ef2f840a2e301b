// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory of so many runs that two processors map it. */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "inject.h"
#include "iommu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 6000 };

/*
 * Maps pages of which hardly two neighbours have neighbouring frames; each begins with its number.
 */
static char *scattered(void)
{
	char *memory = address_space(PAGES * PAGE, HUGE);
	static uint64_t frames[PAGES];
	unsigned int runs = 1;

	SYS(mmap(memory, PAGES * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	SYS(madvise(memory, PAGES * PAGE, MADV_NOHUGEPAGE));
	for (unsigned int i = 0; i < PAGES; i++) {
		unsigned int page = i * 2477 % PAGES;

		*(uint32_t *)(memory + page * PAGE) = page;
	}
	page_frames(memory, PAGES, frames);
	for (unsigned int i = 1; i < PAGES; i++)
		runs += frames[i] != frames[i - 1] + 1;
	diag("%u runs of %d pages", runs, PAGES);
	CHECK(runs > PAGES / 2);
	return memory;
}

/* The device finds each page where it is. */
TEST(many_runs)
{
	struct pci_device device = need_device(0);
	/* the same pages are at the borders of blocks in one order of the runs */
	static const unsigned int looks[] = {
		0, 511, 512, 1535, 1536, 3000, 4608, 5632, PAGES - 1,
	};
	long long pins = pins_held();
	int fd = open_device(0);
	struct edu edu = edu_open(fd);
	char *memory = scattered();

	for (unsigned int round = 0; round < 2; round++) {
		struct registration registration = register_memory(fd, memory, PAGES * PAGE, WRITE);
		const struct iommu_table *table = iommu_read(device.bdf);

		CHECK_PINS(pins + PAGES);
		for (size_t i = 0; i < ARRAY_SIZE(looks); i++)
			CHECK_REACHES(&edu, registration.device_addr + looks[i] * PAGE,
				      memory + looks[i] * PAGE, 64);
		for (unsigned int page = 0; table && page < PAGES; page++)
			CHECK(iommu_find(table, registration.device_addr + page * PAGE).size);
		release(fd, registration.handle);
		CHECK_PINS(pins);
		table = iommu_read(device.bdf);
		for (unsigned int page = 0; table && page < PAGES; page++)
			CHECK(!iommu_find(table, registration.device_addr + page * PAGE).size);
	}
}

static const struct side {
	const char *name, *function;
	/* what the call returns */
	int result;
} sides[] = {
	{ "caller", "pinmap_beside", -ENOMEM },
	{ "helper", "pinmap_run_beside", 0 },
};

/* If one processor fails, nothing of what both have mapped is left. */
TEST_EACH(many_runs_failing, sides)
{
	static const unsigned int looks[] = { 0, 1000, 3000, 5000, PAGES - 1 };
	struct pci_device device = need_device(0);
	long long pins = pins_held();
	int fd = open_device(0), failed = 0;
	struct edu edu = edu_open(fd);
	char *memory = scattered();

	for (unsigned int round = 0; round < 20 && failed < (debug_kernel() ? 1 : 3); round++) {
		struct pinmap_register args = register_args(memory, PAGES * PAGE, WRITE);
		const struct iommu_table *table;
		bool struck;
		int result;

		fail_page_below(row->function);
		result = try_register_args(fd, &args);
		struck = fail_below_end();
		/* otherwise the other processor was done before this one began */
		failed += struck;
		CHECK_EQ(result, struck ? row->result : 0);
		table = iommu_read(device.bdf);
		for (unsigned int page = 0; table && page < PAGES; page++)
			CHECK_EQ(iommu_find(table, (uintptr_t)memory + page * PAGE).size != 0,
				 result == 0);
		if (result == 0) {
			for (size_t i = 0; i < ARRAY_SIZE(looks); i++)
				CHECK_REACHES(&edu, args.device_addr + looks[i] * PAGE,
					      memory + looks[i] * PAGE, 64);
			release(fd, args.out_handle);
		}
		CHECK_PINS(pins);
	}
	if (!failed)
		SKIP("it never came to its turn");
	release(fd, register_memory(fd, memory, PAGES * PAGE, WRITE).handle);
	CHECK_PINS(pins);
}
