// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory that is taken back while somebody is late: an importer, a caller, another device. */
#define _GNU_SOURCE
#include "peer.h"

#include "file.h"
#include "importer/importer.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "pins.h"
#include "process.h"
#include "uffd.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static int task_close(struct task *task)
{
	return close(task->fd);
}

static int task_unbind(struct task *task)
{
	return try_pci_unbind(task->argument);
}

static int task_reset(struct task *task)
{
	with_device_lock(task->argument, IMPORTER_RESET, 1);
	return 0;
}

/* Has another driver import a dma-buf for the function that no driver has; it lets go late. */
static int late_importer(int dma_buf)
{
	int importer = importer_open();

	CHECK_OK(try_map_for_spare(importer, dma_buf,
				   IMPORTER_WRITE | IMPORTER_DYNAMIC | IMPORTER_LAZY));
	return importer;
}

static bool is_told(int importer)
{
	return importer_state(importer).out_told != 0;
}

static void let_go(int importer)
{
	struct importer_args args = { 0 };

	CHECK_OK(try_ioctl(importer, IMPORTER_UNMAP, &args));
	close(importer);
}

/* A driver that lets go late is waited for: until then nobody else gets the memory. */
TEST(late_importer_is_waited_for)
{
	struct giver giver = giver_new(4 * PAGE, 17);
	struct task released = { .what = task_release, .fd = giver.fd };
	int importer;
	uint64_t free;

	released.handle = giver.vram.args.out_handle;
	importer = late_importer(export_buffer(giver.fd, released.handle, PINMAP_EXPORT_WRITE));
	/* a mapping would keep it */
	SYS(munmap(giver.vram.addr, 4 * PAGE));
	free = vram_free(giver.fd);
	task_begin(&released);
	CHECK(WAIT_FOR(5000, importer_state(importer).out_told == 1));
	CHECK_EQ(importer_state(importer).out_length, 4 * PAGE);
	CHECK_EQ(vram_free(giver.fd), free);
	CHECK(!released.is_over);
	let_go(importer);
	CHECK_OK(task_end(&released));
	CHECK_EQ(vram_free(giver.fd), free + 4 * PAGE);
}

/*
 * VRAM that is being released is still reached by an importer: unbinding waits for it, although the
 * program has no handle any more. Another device of this driver has lost it by then.
 */
TEST(unbind_waits_for_release)
{
	struct giver giver = giver_new(4 * PAGE, 3);
	struct task released = { .what = task_release, .fd = giver.fd },
		    unbound = { .what = task_unbind, .argument = giver.bdf };
	int fd = open_gpu(), importer;
	struct registration peer = register_memory(fd, giver.vram.addr, 4 * PAGE, WRITE);
	bool waits;

	released.handle = giver.vram.args.out_handle;
	importer = late_importer(export_buffer(giver.fd, released.handle, PINMAP_EXPORT_WRITE));
	task_begin(&released);
	CHECK(WAIT_FOR(5000, is_told(importer)));
	CHECK_STALE_EVENT(fd, peer);
	task_begin(&unbound);
	waits = WAIT_FOR(5000, sleeps_in(unbound.id, "srcu"));
	/* nothing hangs if it does not */
	let_go(importer);
	CHECK_OK(task_end(&released));
	CHECK_OK(task_end(&unbound));
	CHECK(waits);
	pci_bind(giver.bdf);
}

/* A BAR whose owner is closing is still reached by an importer: a reset waits for it. */
TEST(reset_waits_for_close)
{
	struct task closed = { .what = task_close }, reset = { .what = task_reset };
	const char *bdf;
	struct edu edu;
	int importer;
	bool waits;

	need_peers();
	reset.argument = bdf = need_edu(0);
	closed.fd = open_function(bdf);
	edu = edu_open(closed.fd);
	importer = late_importer(try_export_bar(closed.fd, get_info(closed.fd).out_bars[0].offset,
						PAGE, PINMAP_EXPORT_WRITE));
	edu_close(&edu);
	task_begin(&closed);
	CHECK(WAIT_FOR(5000, is_told(importer)));
	task_begin(&reset);
	waits = WAIT_FOR(5000, sleeps_in(reset.id, "before_reset"));
	let_go(importer);
	CHECK_OK(task_end(&closed));
	CHECK_OK(task_end(&reset));
	CHECK(waits);
}

static int task_import(struct task *task)
{
	return try_ioctl(task->fd, PINMAP_IMPORT, (void *)task->argument);
}

/* Unbinding does not wait for the answer to an IMPORT, and leaves nothing of another driver. */
TEST(import_without_an_answer)
{
	struct pci_device device = need_device(0);
	struct task import = { .what = task_import, .fd = open_device(0) };
	struct pinmap_import *unanswered = (struct pinmap_import *)anon(1);
	int dma_buf = udmabuf_new(4 * PAGE), uffd;

	import.argument = unanswered;
	*unanswered = (struct pinmap_import){ .size = sizeof(*unanswered), .fd = dma_buf };
	uffd = uffd_new_protect(unanswered, PAGE);
	uffd_protect(uffd, unanswered, PAGE, true);
	task_begin(&import);
	uffd_await(uffd, unanswered);
	close(dma_buf);
	pci_unbind(device.bdf);
	CHECK_PINS(0);
	uffd_protect(uffd, unanswered, PAGE, false);
	CHECK_ERR(ENODEV, task_end(&import));
	close(import.fd);
	pci_bind(device.bdf);
}

/* The address of a stale import is nobody else's until the program releases it. */
TEST(stale_address_is_kept)
{
	int giver, fd;
	struct registration peer, mine;
	struct pinmap_fail fail;
	struct edu edu;
	uint64_t at;

	need_peers();
	giver = open_function(need_edu(0));
	edu = edu_open(giver);
	fd = open_function(need_edu(1));
	peer = register_memory(fd, (void *)edu.bar, PAGE, WRITE);
	mine = alloc_memory(fd, 0, PAGE);
	edu_close(&edu);
	close(giver);
	CHECK_STALE_EVENT(fd, peer);
	CHECK(WAIT_FOR(5000, query_handle(fd, peer.handle).out_state == PINMAP_STATE_STALE));
	at = peer.device_addr;
	CHECK_ERR(EEXIST, try_map(fd, mine.handle, PINMAP_MAP_FIXED, &at, &fail));
	release(fd, peer.handle);
	at = peer.device_addr;
	CHECK_OK(try_map(fd, mine.handle, PINMAP_MAP_FIXED, &at, &fail));
}

static long minor_faults(void)
{
	struct rusage usage;

	SYS(getrusage(RUSAGE_SELF, &usage));
	return usage.ru_minflt;
}

/* Importing VRAM and letting go of it takes no page out of the page table of anybody else. */
TEST(imports_disturb_nobody)
{
	int fd = open_gpu(), other = open_gpu(), dma_buf;
	struct gpu_memory mine = gpu_alloc(fd, PINMAP_ALLOC_VRAM, 16 * PAGE);
	struct gpu_memory theirs = gpu_alloc(other, PINMAP_ALLOC_VRAM, 16 * PAGE);
	long before;

	dma_buf = export_buffer(other, theirs.args.out_handle, PINMAP_EXPORT_WRITE);
	memset(mine.addr, 1, 16 * PAGE);
	for (int i = 0; i < 20; i++) {
		struct pinmap_import import = import_buffer(other, dma_buf);
		char *seen = SYS(mmap(NULL, 16 * PAGE, PROT_READ, MAP_SHARED, other,
				      (off_t)import.out_offset));

		CHECK_EQ(touch_read(seen), 0);
		release(other, import.out_handle);
		SYS(munmap(seen, 16 * PAGE));
		before = minor_faults();
		for (size_t page = 0; page < 16; page++)
			*(volatile char *)(mine.addr + page * PAGE) = 2;
		CHECK_EQ(minor_faults(), before);
	}
}
