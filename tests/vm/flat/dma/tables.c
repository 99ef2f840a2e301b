// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The IOMMU's own tables: they come back, and a user that makes the IOMMU have many pays for them.
 */
#define _GNU_SOURCE
#include "edu.h"
#include "file.h"
#include "inject.h"
#include "iommu.h"
#include "memory.h"
#include "pci.h"
#include "process.h"

#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * Tables that an owner has for nothing; tables by which a count may be wrong, since others begin
 * somewhere.
 */
enum { FREE_TABLES = 4 * MIB / PAGE, SLACK = 64 };

static const uint64_t base = 1ULL << 40;

/* Counts the pages of all IOMMUs' tables. */
static long long tables(void)
{
	long long pages = file_field("/proc/vmstat", "nr_iommu_pages");

	CHECK(pages >= 0);
	return pages;
}

/*
 * Counts the pages while nobody has the device. Skips the test with virtio's IOMMU, which has its
 * tables elsewhere.
 */
static long long tables_at_rest(void)
{
	struct pci_device device = need_device(0);

	if (!iommu_tables_are_ours(device.bdf))
		SKIP("this IOMMU's tables are not in our memory");
	close(open_device(0));
	return tables();
}

/* Whether the pages came back, but for a few that other devices' DMA may need. */
static bool are_back(long long before)
{
	return tables() <= before + 8;
}

#define CHECK_TABLES_BACK(before)								\
	do {											\
		long long before_ = (before);							\
		if (!WAIT_FOR(2000, are_back(before_)))						\
			FAIL("the IOMMU has %lld pages for tables instead of %lld", tables(), \
			     before_); \
	} while (0)

static int map_and_unmap(int fd, uint64_t handle, uint64_t address, struct pinmap_fail *fail)
{
	int result = try_map(fd, handle, PINMAP_MAP_FIXED, &address, fail);

	if (!result)
		unmap(fd, handle, address);
	return result;
}

/*
 * Tables of pages that are not mapped any more come back: addresses 2 MiB apart have a table each.
 */
TEST(tables_come_back, .seconds = 120)
{
	long long before = tables_at_rest(), most;
	unsigned int count = rounds(10000);
	char *page = anon(1);
	struct pinmap_fail fail;
	struct edu edu;

	for (unsigned int round = 0; round < 2; round++) {
		int fd = open_device(0);
		struct registration registration = register_memory(fd, page, PAGE, NO_MAP | WRITE);

		for (unsigned int i = 0; i < count; i++)
			CHECK_OK(map_and_unmap(fd, registration.handle, base + i * HUGE, &fail));
		most = tables();
		diag("%lld pages for tables before, %lld then", before, most);
		/* the control: without tables the test would show nothing */
		CHECK(most > before + count / 2);
		close(fd);
		CHECK_TABLES_BACK(before);
	}
	/* the device works as before */
	edu = edu_open(open_device(0));
	CHECK_REACHES(&edu, register_memory(edu.fd, page, PAGE, WRITE).device_addr, page, 64);
	edu_close(&edu);
	close(edu.fd);
	CHECK_TABLES_BACK(before);
}

/* Tables of an owner that has an interrupt come back: some IOMMUs translate interrupts by them. */
TEST(tables_of_interrupts, .seconds = 120)
{
	long long before = tables_at_rest();
	unsigned int count = rounds(2000);
	int fd = open_device(0), event = SYS(eventfd(0, EFD_CLOEXEC));
	struct edu edu = edu_open(fd);
	struct registration registration = register_memory(fd, anon(1), PAGE, NO_MAP);
	struct pinmap_fail fail;
	uint64_t value;

	for (unsigned int round = 0; round < 2; round++) {
		set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, event);
		for (unsigned int i = 0; i < count; i++)
			CHECK_OK(map_and_unmap(fd, registration.handle, base + i * HUGE, &fail));
		edu_set_register(&edu, EDU_IRQ_RAISE, 1);
		CHECK_EQ(SYS(read(event, &value, sizeof(value))), sizeof(value));
		edu_set_register(&edu, EDU_IRQ_ACK, 1);
	}
	edu_close(&edu);
	close(fd);
	CHECK_TABLES_BACK(before);
}

/* Tables of programs that ended come back: each program's memory is elsewhere. */
TEST(tables_of_programs, .seconds = 120)
{
	enum { PROGRAMS = 20 };
	long long before = tables_at_rest();
	unsigned int count = rounds(5000) / PROGRAMS;
	int other = open_device(0);

	for (unsigned int program = 0; program < PROGRAMS; program++) {
		pid_t pid = fork();

		if (pid == 0) {
			uint64_t random = 0x9e3779b97f4a7c15ULL * (program + 1);
			int fd = open_device(0);

			for (unsigned int i = 0; i < count; i++) {
				void *wish;

				random = random * 6364136223846793005ULL + 1442695040888963407ULL;
				wish = (void *)(uintptr_t)((1ULL << 44) +
							   (random >> 24 << 12) % (1ULL << 45));
				wish = SYS(mmap(wish, PAGE, PROT_READ | PROT_WRITE,
						MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
				release(fd, register_memory(fd, wish, PAGE, WRITE).handle);
				SYS(munmap(wish, PAGE));
			}
			CHECK(tables() > before + count / 2);
			_exit(0);
		}
		join(pid);
		/* also while another process has the node open */
		CHECK_TABLES_BACK(before);
	}
	close(other);
}

static const struct stride {
	const char *name;
	uint64_t bytes;
	/* how many tables each page needs */
	unsigned int each;
} strides[] = {
	{ "2_MiB_apart", HUGE, 1 },
	{ "1_GiB_apart", PAGE / 8 * HUGE, 2 },
};

/*
 * Calls that fail after mapping leave no tables to the next owner, also while their file is open.
 */
TEST(tables_of_failed_calls)
{
	struct pinmap_register *args =
		SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	long long before = tables_at_rest();
	char *page = anon(1);
	int fd = open_device(0);

	for (unsigned int i = 0; i < 200; i++) {
		*args = register_args(page, PAGE, FIXED | WRITE);
		args->device_addr = base + i * HUGE;
		SYS(mprotect(args, PAGE, PROT_READ));
		CHECK_ERR(EFAULT, try_ioctl(fd, PINMAP_REGISTER, args));
		SYS(mprotect(args, PAGE, PROT_READ | PROT_WRITE));
		CHECK(!(get_info(fd).out_flags & PINMAP_INFO_OWNED));
	}
	CHECK(tables() <= before + SLACK);
	close(fd);
	CHECK_TABLES_BACK(before);
}

enum { LIMIT = 512 };

/* An ordinary user with one page registered, who has used the limit up by mappings far apart. */
struct charged {
	int fd;
	char *page;
	struct registration registration;
	unsigned int count; /* mappings that worked */
	struct pinmap_fail fail;
};

static struct charged charged_new(const struct stride *stride)
{
	unsigned int most = (FREE_TABLES + LIMIT) / stride->each;
	struct charged charged = { .page = anon(2) };
	int result;

	set_memlock(LIMIT * PAGE);
	become_user(true);
	charged.fd = open_device(0);
	charged.registration = register_memory(charged.fd, charged.page, PAGE, NO_MAP | WRITE);
	while (!(result = map_and_unmap(charged.fd, charged.registration.handle,
					base + charged.count * stride->bytes, &charged.fail))) {
		charged.count++;
		CHECK(charged.count < 2 * most);
	}
	check_fail(__FILE__, __LINE__, result, ENOMEM, &charged.fail, PINMAP_FAIL_MEMLOCK, 0);
	return charged;
}

/* An ordinary user has some tables for nothing; then they count as locked memory, to the limit. */
TEST_EACH(tables_charged, strides, .seconds = 120)
{
	long long before = tables_at_rest();
	unsigned int most = (FREE_TABLES + LIMIT) / row->each;
	pid_t pid = fork();

	if (pid == 0) {
		struct charged charged = charged_new(row);
		struct pinmap_fail fail = charged.fail;

		CHECK_EQ(fail.allowed, LIMIT * PAGE);
		CHECK(fail.needed > fail.allowed && fail.needed <= fail.allowed + 4 * PAGE);
		diag("%u mappings, %lld pages for tables", charged.count, tables() - before);
		CHECK(charged.count <= most && charged.count + SLACK >= most);
		CHECK(tables() <= before + FREE_TABLES + LIMIT + SLACK);
		CHECK(get_info(charged.fd).out_memlock_used + row->each * PAGE > LIMIT * PAGE);
		/* a mapping costs nothing where there are tables */
		CHECK_OK(map_and_unmap(charged.fd, charged.registration.handle, base, &fail));
		_exit(0);
	}
	join(pid);
	CHECK_TABLES_BACK(before);
}

/* The preflight says whether there is a charge left for tables. */
TEST_EACH(tables_in_the_preflight, strides, .seconds = 120)
{
	long long before = tables_at_rest();
	pid_t pid = fork();

	if (pid == 0) {
		struct charged charged = charged_new(row);
		struct pinmap_preflight preflight = { .size = sizeof(preflight) };

		release(charged.fd, charged.registration.handle);
		preflight.addr = (uintptr_t)(charged.page + PAGE);
		preflight.length = PAGE;
		preflight.flags = FIXED | WRITE;
		preflight.device_addr = base + (charged.count + 600) * row->bytes;
		CHECK_ERR(ENOMEM, try_ioctl(charged.fd, PINMAP_PREFLIGHT, &preflight));
		CHECK_EQ(preflight.fail.reason, PINMAP_FAIL_MEMLOCK);
		preflight.device_addr = base + PAGE;
		CHECK_OK(try_ioctl(charged.fd, PINMAP_PREFLIGHT, &preflight));
		_exit(0);
	}
	join(pid);
	CHECK_TABLES_BACK(before);
}

/* The charge for tables ends with the context: the next one has its own tables for nothing. */
TEST_EACH(tables_charged_anew, strides, .seconds = 120)
{
	long long before = tables_at_rest();
	pid_t pid = fork();

	if (pid == 0) {
		struct charged charged = charged_new(row);
		uint64_t elsewhere = base + 2ULL * charged.count * row->bytes;
		struct pinmap_fail fail;
		uint64_t handle;
		int fd;

		close(charged.fd);
		fd = open_device(0);
		CHECK_EQ(get_info(fd).out_memlock_used, 0);
		handle = register_memory(fd, charged.page, PAGE, NO_MAP | WRITE).handle;
		CHECK_OK(map_and_unmap(fd, handle, elsewhere, &fail));
		CHECK_EQ(get_info(fd).out_memlock_used, PAGE);
		_exit(0);
	}
	join(pid);
	CHECK_TABLES_BACK(before);
}

/* Ordinary memory, however much, fills its tables: nothing is charged for them. */
TEST(tables_of_ordinary_memory)
{
	enum { MANY = 1500 };
	int fd;
	char *memory = anon(4);

	set_memlock(4 * PAGE);
	become_user(true);
	fd = open_device(0);
	for (unsigned int i = 0; i < MANY; i++) {
		struct registration registration = register_memory(fd, memory, 4 * PAGE, WRITE);

		CHECK_EQ(get_info(fd).out_memlock_used, 4 * PAGE);
		release(fd, registration.handle);
	}
}

/*
 * Without memory for a new page table nothing is mapped, and the next owner does not pay for tables
 * that the last one left.
 */
TEST(tables_refused, .seconds = 60)
{
	/* allocates nothing but tables: below the making of a domain, slab may take the failure */
	static const char function[] = "iommu_alloc_pages_node_sz";
	char *page = anon(1);
	struct registration registration;
	struct edu edu;
	int fd;

	need_injection();
	fd = open_device(0);
	register_memory(fd, page, PAGE, WRITE);
	fail_page_below(function);
	close(fd);
	if (!fail_below_end())
		SKIP("this IOMMU's page tables take no page");
	fd = open_device(0);
	fail_page_below(function);
	CHECK_ERR(ENOMEM, try_register_memory(fd, page, PAGE, WRITE, &registration));
	CHECK(fail_below_end());
	/* a mapping without the device does not matter */
	release(fd, register_memory(fd, page, PAGE, NO_MAP).handle);
	edu = edu_open(fd);
	registration = register_memory(fd, page, PAGE, WRITE);
	CHECK_REACHES(&edu, registration.device_addr, page, 64);
	edu_close(&edu);
}
