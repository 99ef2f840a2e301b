// SPDX-License-Identifier: MIT OR Apache-2.0
/* The totals of contexts and devices, and fdinfo. */
#define _GNU_SOURCE
#include "see.h"

#include "alloc.h"
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "process.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * Two contexts of one device, one with registered and with allocated memory, one with pinned
 * memory.
 */
struct counted {
	char *memory;
	int fd, other;
	struct registration one;
	struct pinmap_alloc alloc;
};

static struct counted counted_new(void)
{
	struct counted counted = { .memory = anon(8) };

	need_device(0);
	counted.fd = open_device(0);
	counted.other = open_device(0);
	counted.one = register_memory(counted.fd, counted.memory, 2 * PAGE, WRITE);
	register_memory(counted.other, counted.memory + 4 * PAGE, 3 * PAGE, NO_MAP);
	CHECK_OK(try_alloc(counted.fd, 0, 16 * PAGE, &counted.alloc));
	return counted;
}

TEST(totals_of_a_context, .smoke = true)
{
	struct counted counted = counted_new();
	struct pinmap_get_totals own = totals(counted.fd, PINMAP_TOTALS_CONTEXT);

	CHECK_EQ(own.out_contexts, 1);
	CHECK_TOTAL(own.out_pinned, 1, 2 * PAGE);
	CHECK_TOTAL(own.out_allocated, 1, 16 * PAGE);
	CHECK_TOTAL(own.out_vram, 0, 0);
	CHECK_TOTAL(own.out_shared, 0, 0);
	CHECK_TOTAL(own.out_mapped, 1, 2 * PAGE);
	CHECK_TOTAL(own.out_stale, 0, 0);
	own = totals(counted.other, PINMAP_TOTALS_CONTEXT);
	CHECK_TOTAL(own.out_pinned, 1, 3 * PAGE);
	CHECK_TOTAL(own.out_mapped, 0, 0);
}

TEST(totals_of_a_device)
{
	struct counted counted = counted_new();
	struct pinmap_get_totals all = totals(counted.other, 0);

	CHECK_EQ(all.out_contexts, 2);
	CHECK_TOTAL(all.out_pinned, 2, 5 * PAGE);
	CHECK_TOTAL(all.out_allocated, 1, 16 * PAGE);
	CHECK_TOTAL(all.out_mapped, 1, 2 * PAGE);
}

TEST(totals_count_mappings)
{
	struct counted counted = counted_new();

	map(counted.fd, counted.one.handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, 0x40000000);
	CHECK_TOTAL(totals(counted.fd, 0).out_mapped, 2, 4 * PAGE);
	unmap(counted.fd, counted.one.handle, 0x40000000);
	CHECK_TOTAL(totals(counted.fd, 0).out_mapped, 1, 2 * PAGE);
}

/* Memory that goes is not mapped, soon not pinned, and stale until it is released. */
TEST(totals_count_what_is_stale)
{
	struct counted counted = counted_new();

	SYS(munmap(counted.memory, PAGE));
	CHECK_TOTAL(totals(counted.fd, 0).out_mapped, 0, 0);
	CHECK_TOTAL(totals(counted.fd, 0).out_stale, 1, 2 * PAGE);
	CHECK(WAIT_FOR(2000, totals(counted.fd, PINMAP_TOTALS_CONTEXT).out_pinned.number == 0));
	release(counted.fd, counted.one.handle);
	CHECK_TOTAL(totals(counted.fd, 0).out_stale, 0, 0);
}

TEST(totals_count_what_is_given_back)
{
	struct counted counted = counted_new();
	struct pinmap_get_totals all;

	release(counted.fd, counted.one.handle);
	release(counted.fd, counted.alloc.out_handle);
	CHECK_TOTAL(totals(counted.fd, 0).out_allocated, 0, 0);
	CHECK_TOTAL(totals(counted.fd, 0).out_pinned, 1, 3 * PAGE);
	close(counted.other);
	all = totals(counted.fd, 0);
	CHECK_EQ(all.out_contexts, 1);
	CHECK_TOTAL(all.out_pinned, 0, 0);
}

/* A call that fails changes no number. */
TEST(totals_after_failure)
{
	struct registration registration;
	char *memory = anon(4);
	int fd;

	need_device(0);
	fd = open_device(0);
	SYS(munmap(memory + 2 * PAGE, PAGE));
	CHECK_ERR(EFAULT, try_register_memory(fd, memory, 4 * PAGE, WRITE, &registration));
	CHECK_TOTAL(totals(fd, 0).out_pinned, 0, 0);
	register_memory(fd, memory, PAGE, WRITE);
	CHECK_ERR(EEXIST, try_register_memory(fd, memory, 2 * PAGE, WRITE, &registration));
	CHECK_TOTAL(totals(fd, 0).out_pinned, 1, PAGE);
	CHECK_TOTAL(totals(fd, 0).out_mapped, 1, PAGE);
}

/* Each line is `key:<blank>value[ unit]`, and the keys are the driver's own. */
TEST(fdinfo_grammar, .smoke = true)
{
	struct pci_device device = need_device(0);
	char *memory = anon(2), text[4096], path[64], *line, *rest = text, pdev[32] = "";
	int fd = open_device(0);
	unsigned int ours = 0;

	register_memory(fd, memory, 2 * PAGE, WRITE);
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	file_read(path, text, sizeof(text));
	while ((line = strsep(&rest, "\n"))) {
		char *colon = strchr(line, ':'), *value;
		char unit[8];
		unsigned long long number;
		int fields;

		CHECK(colon);
		*colon = 0;
		CHECK(!strpbrk(line, " \t"));
		if (strncmp(line, "pinmap-", 7)) {
			CHECK(strstr("pos flags mnt_id ino", line));
			continue;
		}
		ours++;
		CHECK(strspn(line, "abcdefghijklmnopqrstuvwxyz-") == strlen(line));
		value = colon + 1 + strspn(colon + 1, " \t");
		if (!strcmp(line, "pinmap-pdev")) {
			snprintf(pdev, sizeof(pdev), "%s", value);
			continue;
		}
		fields = sscanf(value, "%llu %7s", &number, unit);
		CHECK(fields == 1 || (fields == 2 && !strcmp(unit, "KiB")));
	}
	CHECK(ours >= 12);
	CHECK(!strcmp(pdev, device.bdf));
}

TEST(fdinfo_follows)
{
	struct registration registration;
	struct pinmap_info info;
	char *memory = anon(8);
	int fd;

	need_device(0);
	fd = open_device(0);
	info = get_info(fd);
	CHECK_EQ(fdinfo(fd, "objects"), 0);
	CHECK_EQ(fdinfo(fd, "objects-limit"), info.out_max_registrations);
	CHECK_EQ(fdinfo(fd, "pinned"), 0);
	registration = register_memory(fd, memory, 8 * PAGE, WRITE);
	CHECK_EQ(fdinfo(fd, "objects"), 1);
	CHECK_EQ(fdinfo(fd, "pinned"), 8 * PAGE / 1024);
	CHECK_EQ(fdinfo(fd, "mapped"), 8 * PAGE / 1024);
	CHECK_EQ(fdinfo(fd, "mappings"), 1);
	CHECK_EQ(fdinfo(fd, "stale"), 0);
	unmap(fd, registration.handle, registration.device_addr);
	CHECK_EQ(fdinfo(fd, "pinned"), 8 * PAGE / 1024);
	CHECK_EQ(fdinfo(fd, "mapped"), 0);
	SYS(munmap(memory, 8 * PAGE));
	CHECK_EQ(fdinfo(fd, "stale"), 1);
	CHECK(WAIT_FOR(2000, fdinfo(fd, "pinned") == 0));
	CHECK_EQ(fdinfo(fd, "objects"), 1);
	release(fd, registration.handle);
	CHECK_EQ(fdinfo(fd, "objects"), 0);
	CHECK_EQ(fdinfo(fd, "stale"), 0);
}

/*
 * The limit is that of the process that opened the file, whoever reads; without a limit there is no
 * line.
 */
TEST(fdinfo_limit)
{
	struct gate ready = gate_new(), done = gate_new();
	/* a paged device's tables count as well */
	uint64_t *locked =
		SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	char path[64];
	pid_t child;
	int fd;

	need_device(0);
	child = SYS(fork());
	if (!child) {
		char *memory = anon(4);

		set_memlock(64 * 1024);
		become_user(true);
		fd = SYS(dup2(open_device(0), 100));
		register_memory(fd, memory, 4 * PAGE, WRITE);
		CHECK_EQ(fdinfo(fd, "limit"), 64);
		*locked = get_info(fd).out_memlock_used / 1024;
		CHECK_EQ(fdinfo(fd, "locked"), *locked);
		gate_open(&ready);
		gate_pass(&done);
		_exit(0);
	}
	gate_pass(&ready);
	snprintf(path, sizeof(path), "/proc/%d/fdinfo/100", child);
	CHECK_EQ(file_field(path, "pinmap-limit:"), 64);
	CHECK(*locked >= 16);
	CHECK_EQ(file_field(path, "pinmap-locked:"), *locked);
	gate_open(&done);
	join(child);
	/* this process is root's */
	CHECK_EQ(fdinfo(open_device(0), "limit"), -1);
}
