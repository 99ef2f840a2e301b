// SPDX-License-Identifier: MIT OR Apache-2.0
/* Buffers that are parts of files, imports, or portable, as they are seen. */
#define _GNU_SOURCE
#include "see.h"

#include "alloc.h"
#include "memory.h"
#include "pci.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *hexadecimal(uint64_t number)
{
	static char text[4][32];
	static unsigned int next;
	char *at = text[next++ % 4];

	snprintf(at, sizeof(text[0]), "%#llx", (unsigned long long)number);
	return at;
}

/*
 * A part of a file counts as pinned memory, whatever becomes of the file; it has no user address.
 */
TEST(file_is_seen)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0), file = new_memfd(8 * PAGE, 0);
	struct pinmap_register_fd part = register_fd(fd, file, 2 * PAGE, 4 * PAGE, 0);
	struct pinmap_get_totals own = totals(fd, PINMAP_TOTALS_CONTEXT);
	char path[128];

	CHECK_TOTAL(own.out_pinned, 1, 4 * PAGE);
	CHECK_TOTAL(own.out_mapped, 1, 4 * PAGE);
	CHECK_EQ(fdinfo(fd, "pinned"), 4 * PAGE / 1024);
	CHECK_EQ(fdinfo(fd, "mappings"), 1);
	debugfs_path(&device, path);
	check_line(path, fd, "file", part.out_handle, "r", "live", hexadecimal(part.device_addr));
	SYS(ftruncate(file, 0));
	check_line(path, fd, "file", part.out_handle, "r", "live", hexadecimal(part.device_addr));
	CHECK_TOTAL(totals(fd, 0).out_stale, 0, 0);
	release(fd, part.out_handle);
	CHECK_TOTAL(totals(fd, 0).out_pinned, 0, 0);
	CHECK_EQ(fdinfo(fd, "mapped"), 0);
}

/* An import counts as shared, and is stale when the exporter's memory is. */
TEST(import_is_seen)
{
	struct pci_device device = need_device(0);
	struct memory memory = memory_new(ANON, 4 * PAGE);
	int fd = open_device(0), dma_buf;
	struct registration registration = register_memory(fd, memory.addr, memory.length, WRITE);
	struct pinmap_import import;
	struct pinmap_get_totals own;
	uint64_t device_addr;
	char path[128];

	debugfs_path(&device, path);
	dma_buf = export_buffer(fd, registration.handle, PINMAP_EXPORT_WRITE);
	own = totals(fd, PINMAP_TOTALS_CONTEXT);
	CHECK_TOTAL(own.out_shared, 0, 0);
	import = import_buffer(fd, dma_buf);
	check_line(path, fd, "shared", import.out_handle, "rw", "live", "-");
	device_addr = map(fd, import.out_handle, PINMAP_MAP_WRITE, 0);
	check_line(path, fd, "shared", import.out_handle, "rw", "live", hexadecimal(device_addr));
	own = totals(fd, PINMAP_TOTALS_CONTEXT);
	CHECK_TOTAL(own.out_pinned, 1, 4 * PAGE);
	CHECK_TOTAL(own.out_shared, 1, 4 * PAGE);
	CHECK_TOTAL(own.out_mapped, 2, 8 * PAGE);
	CHECK_EQ(fdinfo(fd, "shared"), 4 * PAGE / 1024);
	CHECK_EQ(fdinfo(fd, "objects"), 2);
	close(dma_buf);
	CHECK_EQ(fdinfo(fd, "shared"), 4 * PAGE / 1024);
	SYS(munmap(memory.addr, PAGE));
	CHECK(WAIT_FOR(2000,
		       fdinfo(fd, "stale") == 2 && !fdinfo(fd, "shared") && !fdinfo(fd, "pinned")));
	check_line(path, fd, "shared", import.out_handle, "rw", "stale", "-");
	own = totals(fd, PINMAP_TOTALS_CONTEXT);
	CHECK_TOTAL(own.out_stale, 2, 8 * PAGE);
	CHECK_TOTAL(own.out_mapped, 0, 0);
	release(fd, import.out_handle);
	release(fd, registration.handle);
	CHECK_TOTAL(totals(fd, 0).out_stale, 0, 0);
	CHECK_EQ(fdinfo(fd, "objects"), 0);
}

/*
 * Portable memory counts as pinned where it was registered. In each context that has it, it has a
 * handle, a mapping and, in the end, the name of stale.
 */
struct guest {
	bool paged; /* two contexts of one device; otherwise of two */
	int fd, other;
	char *memory, path[128], elsewhere[128];
	struct registration registration;
	struct pinmap_query query;
};

static struct guest guest_new(void)
{
	struct guest guest = { .memory = anon(4) };
	struct pci_device device = need_device(0);

	guest.fd = open_device(0);
	debugfs_path(&device, guest.path);
	/* a device without an MMU is one context's */
	guest.paged = get_info(guest.fd).out_kind == PINMAP_KIND_PAGED;
	if (!guest.paged)
		device = need_device(1);
	debugfs_path(&device, guest.elsewhere);
	guest.other = open_device(guest.paged ? 0 : 1);
	guest.registration =
		register_memory(guest.fd, guest.memory, 4 * PAGE, WRITE | PINMAP_REGISTER_PORTABLE);
	guest.query = query_addr(guest.other, guest.memory);
	return guest;
}

TEST(guest_in_totals)
{
	struct guest guest = guest_new();
	struct pinmap_get_totals own = totals(guest.fd, PINMAP_TOTALS_CONTEXT);

	CHECK_TOTAL(own.out_mapped, 1, 4 * PAGE);
	CHECK_TOTAL(own.out_pinned, 1, 4 * PAGE);
	own = totals(guest.other, PINMAP_TOTALS_CONTEXT);
	CHECK_TOTAL(own.out_mapped, 1, 4 * PAGE);
	CHECK_TOTAL(own.out_pinned, 0, 0);
	CHECK_EQ(totals(guest.other, 0).out_mapped.number, guest.paged ? 2 : 1);
	CHECK_EQ(totals(guest.other, 0).out_pinned.number, guest.paged ? 1 : 0);
}

TEST(guest_in_fdinfo)
{
	struct guest guest = guest_new();

	CHECK_EQ(fdinfo(guest.other, "objects"), 1);
	CHECK_EQ(fdinfo(guest.other, "pinned"), 0);
	CHECK_EQ(fdinfo(guest.other, "mapped"), 4 * PAGE / 1024);
	CHECK_EQ(fdinfo(guest.other, "mappings"), 1);
}

/* Each context has its own addresses. */
TEST(guest_mappings_are_its_own)
{
	struct guest guest = guest_new();
	char both[64];

	map(guest.other, guest.query.handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, 0x40000000);
	CHECK_TOTAL(totals(guest.other, PINMAP_TOTALS_CONTEXT).out_mapped, 2, 8 * PAGE);
	CHECK_TOTAL(totals(guest.fd, PINMAP_TOTALS_CONTEXT).out_mapped, 1, 4 * PAGE);
	if (!guest.paged) {
		check_line(guest.path, guest.fd, "registered", guest.registration.handle, "rw",
			   "live", hexadecimal(guest.registration.device_addr));
		snprintf(both, sizeof(both), "%s,0x40000000",
			 hexadecimal(guest.query.out_device_addr));
		check_line(guest.elsewhere, guest.other, "registered", guest.query.handle, "rw",
			   "live", both);
	}
	unmap(guest.other, guest.query.handle, 0x40000000);
	CHECK_TOTAL(totals(guest.other, PINMAP_TOTALS_CONTEXT).out_mapped, 1, 4 * PAGE);
}

/* Stale in both contexts, in each until it is released there. */
TEST(guest_is_stale)
{
	struct guest guest = guest_new();
	struct line line;

	SYS(munmap(guest.memory, PAGE));
	CHECK_TOTAL(totals(guest.other, PINMAP_TOTALS_CONTEXT).out_mapped, 0, 0);
	CHECK_TOTAL(totals(guest.other, PINMAP_TOTALS_CONTEXT).out_stale, 1, 4 * PAGE);
	CHECK_EQ(fdinfo(guest.other, "stale"), 1);
	CHECK_EQ(fdinfo(guest.fd, "stale"), 1);
	CHECK(find_line(guest.elsewhere, guest.memory, &line));
	CHECK(!strcmp(line.words[6], "stale"));
	CHECK(!strcmp(line.words[11], "-"));
	release(guest.other, guest.query.handle);
	CHECK_EQ(fdinfo(guest.other, "stale"), 0);
	CHECK_EQ(fdinfo(guest.fd, "stale"), 1);
	release(guest.fd, guest.registration.handle);
	CHECK_EQ(fdinfo(guest.fd, "stale"), 0);
}

TEST(guest_is_stale_when_its_owner_closes)
{
	struct guest guest = guest_new();

	close(guest.fd);
	CHECK_TOTAL(totals(guest.other, 0).out_stale, 1, 4 * PAGE);
	CHECK_TOTAL(totals(guest.other, 0).out_pinned, 0, 0);
	CHECK_TOTAL(totals(guest.other, 0).out_mapped, 0, 0);
	release(guest.other, guest.query.handle);
	CHECK_TOTAL(totals(guest.other, 0).out_stale, 0, 0);
}
