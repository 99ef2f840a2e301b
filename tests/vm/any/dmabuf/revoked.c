// SPDX-License-Identifier: MIT OR Apache-2.0
/* Registered memory that goes away, and imports of it. */
#define _GNU_SOURCE
#include "dmabuf.h"

#include "alloc.h"
#include "edu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum how { MUNMAP, MADVISE, RELEASE, CLOSE, UNBIND };

static const struct end {
	const char *name;
	enum how how;
} ends[] = {
	{ "munmap", MUNMAP }, { "madvise", MADVISE }, { "release", RELEASE },
	{ "close", CLOSE },   { "unbind", UNBIND },
};

/*
 * Registered memory, imported on another device, and that import exported and imported once more.
 */
struct revoked {
	int fd, other, dma_bufs[2];
	char *page;
	struct registration memory;
	struct pinmap_import imports[2];
	struct pci_device device;
};

static struct revoked revoked_new(void)
{
	struct revoked it = { .page = anon(4), .device = need_device(0) };

	need_device(1);
	it.fd = open_device(0);
	it.other = open_device(1);
	it.memory = register_memory(it.fd, it.page, 4 * PAGE, WRITE | NO_MAP);
	it.dma_bufs[0] = export_buffer(it.fd, it.memory.handle, EXPORT_WRITE);
	it.imports[0] = import_buffer(it.other, it.dma_bufs[0]);
	it.dma_bufs[1] = export_buffer(it.other, it.imports[0].out_handle, EXPORT_WRITE);
	it.imports[1] = import_buffer(it.other, it.dma_bufs[1]);
	return it;
}

static void take_away(const struct revoked *it, enum how how)
{
	switch (how) {
	case MUNMAP: SYS(munmap(it->page + PAGE, PAGE)); break;
	case MADVISE: SYS(madvise(it->page + PAGE, PAGE, MADV_DONTNEED)); break;
	case RELEASE: release(it->fd, it->memory.handle); break;
	case CLOSE: close(it->fd); break;
	case UNBIND: pci_unbind(it->device.bdf); break;
	}
}

static void revoked_end(const struct revoked *it, enum how how)
{
	CHECK_PINS_SOON(0);
	for (int i = 0; i < 2; i++)
		release(it->other, it->imports[i].out_handle);
	if (how == UNBIND)
		pci_bind(it->device.bdf);
}

/* Registered memory that goes away is taken from an import, and from an import of that. */
TEST_EACH(revoked, ends)
{
	struct revoked it = revoked_new();
	struct pinmap_import late;
	struct pinmap_fail fail;
	uint64_t wish = 0;

	take_away(&it, row->how);
	for (int i = 0; i < 2; i++) {
		struct pinmap_event event = next_event(it.other);

		CHECK_EQ(event.type, PINMAP_EVENT_STALE);
		CHECK(event.handle == it.imports[0].out_handle ||
		      event.handle == it.imports[1].out_handle);
		CHECK_EQ(event.length, 4 * PAGE);
	}
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(query_handle(it.other, it.imports[i].out_handle).out_state,
			 PINMAP_STATE_STALE);
		CHECK_ERR(ESTALE, try_map(it.other, it.imports[i].out_handle, 0, &wish, &fail));
		CHECK_ERR(ESTALE, try_export(it.other, it.imports[i].out_handle, 0));
		CHECK_ERR(ESTALE, try_import(it.other, it.dma_bufs[i], &late));
	}
	revoked_end(&it, row->how);
}

/* The device of an importer does not reach memory that went away. */
TEST_EACH(revoked_reach, ends, .faults = true)
{
	struct revoked it = revoked_new();
	struct edu edu = edu_open(it.other);
	char content[PAGE];
	uint64_t addr;
	int alias;

	map(it.other, it.imports[0].out_handle, PINMAP_MAP_WRITE, 0);
	addr = map(it.other, it.imports[1].out_handle, PINMAP_MAP_WRITE, 0);
	CHECK_REACHES(&edu, addr, it.page, PAGE);
	edu_load(&edu, 40);
	memset(it.page, 0x33, PAGE);
	alias = keep_page(it.page);
	take_away(&it, row->how);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(next_event(it.other).type, PINMAP_EVENT_STALE);
	edu_writes(&edu, addr, PAGE);
	read_kept_page(alias, content);
	CHECK(bytes_are(content, PAGE, 0x33));
	close(alias);
	revoked_end(&it, row->how);
	edu_close(&edu);
}

/* Pages that may go away are not for everybody to map. */
TEST(registered_memory_has_no_view)
{
	int fd = open_device(0);
	struct registration memory = register_memory(fd, anon(4), 4 * PAGE, WRITE | NO_MAP);
	int dma_buf = export_buffer(fd, memory.handle, EXPORT_WRITE);

	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, dma_buf, 0) == MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
}
