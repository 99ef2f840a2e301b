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
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/**
 * struct call - a call in a thread of its own
 * @what: makes the call, with @fd, @handle and @bdf
 * @task: the number of the thread; 0: it has not begun
 * @result: of the call
 */
struct call {
	int (*what)(struct call *call);
	int fd;
	uint64_t handle;
	const char *bdf;
	pthread_t thread;
	_Atomic pid_t task;
	int result;
};

static void *call_run(void *argument)
{
	struct call *call = argument;

	call->task = gettid();
	call->result = call->what(call);
	return NULL;
}

static void call_begin(struct call *call)
{
	CHECK_EQ(pthread_create(&call->thread, NULL, call_run, call), 0);
	CHECK(WAIT_FOR(5000, call->task != 0));
}

static void call_end(struct call *call)
{
	CHECK_EQ(pthread_join(call->thread, NULL), 0);
	CHECK_OK(call->result);
}

static int call_release(struct call *call)
{
	return try_release(call->fd, call->handle);
}

static int call_close(struct call *call)
{
	return close(call->fd);
}

static int call_unbind(struct call *call)
{
	return try_pci_unbind(call->bdf);
}

static int call_reset(struct call *call)
{
	with_device_lock(call->bdf, IMPORTER_RESET, 1);
	return 0;
}

/* Has another driver import a dma-buf for the function that no driver has; it lets go late. */
static int late_importer(int dma_buf)
{
	struct importer_args args = {
		.fd = dma_buf,
		.flags = IMPORTER_WRITE | IMPORTER_DYNAMIC | IMPORTER_LAZY | IMPORTER_PEER,
	};
	int importer = importer_open();
	char bdf[16];

	if (!pci_spare(SPARE_VENDOR, SPARE_DEVICE, bdf))
		SKIP("there is no function without a driver");
	args.offset = function_number(bdf);
	CHECK_OK(try_ioctl(importer, IMPORTER_MAP, &args));
	return importer;
}

static bool is_told(int importer)
{
	struct importer_args args = { 0 };

	CHECK_OK(try_ioctl(importer, IMPORTER_STATE, &args));
	return args.out_told != 0;
}

static void let_go(int importer)
{
	struct importer_args args = { 0 };

	CHECK_OK(try_ioctl(importer, IMPORTER_UNMAP, &args));
	close(importer);
}

/*
 * VRAM that is being released is still reached by an importer: unbinding waits for it, although the
 * program has no handle any more. Another device of this driver has lost it by then.
 */
TEST(unbind_waits_for_release)
{
	struct giver giver = giver_new(4 * PAGE, 3);
	struct call released = { .what = call_release, .fd = giver.fd },
		    unbound = { .what = call_unbind, .bdf = giver.bdf };
	int fd = open_gpu(), importer;
	struct registration peer = register_memory(fd, giver.vram.addr, 4 * PAGE, WRITE);
	bool waits;

	released.handle = giver.vram.args.out_handle;
	importer = late_importer(export_buffer(giver.fd, released.handle, PINMAP_EXPORT_WRITE));
	call_begin(&released);
	CHECK(WAIT_FOR(5000, is_told(importer)));
	CHECK_STALE_EVENT(fd, peer);
	call_begin(&unbound);
	waits = WAIT_FOR(5000, sleeps_in(unbound.task, "srcu"));
	/* nothing hangs if it does not */
	let_go(importer);
	call_end(&released);
	call_end(&unbound);
	CHECK(waits);
	pci_bind(giver.bdf);
}

/* A BAR whose owner is closing is still reached by an importer: a reset waits for it. */
TEST(reset_waits_for_close)
{
	struct call closed = { .what = call_close }, reset = { .what = call_reset };
	struct edu edu;
	int importer;
	bool waits;

	need_peers();
	reset.bdf = need_edu(0);
	closed.fd = open_function(reset.bdf);
	edu = edu_open(closed.fd);
	importer = late_importer(try_export_bar(closed.fd, get_info(closed.fd).out_bars[0].offset,
						PAGE, PINMAP_EXPORT_WRITE));
	edu_close(&edu);
	call_begin(&closed);
	CHECK(WAIT_FOR(5000, is_told(importer)));
	call_begin(&reset);
	waits = WAIT_FOR(5000, sleeps_in(reset.task, "before_reset"));
	let_go(importer);
	call_end(&closed);
	call_end(&reset);
	CHECK(waits);
}

static struct pinmap_import *unanswered;

static int call_import(struct call *call)
{
	int result = try_ioctl(call->fd, PINMAP_IMPORT, unanswered);

	return result == -ENODEV ? 0 : result;
}

/* Unbinding does not wait for the answer to an IMPORT, and leaves nothing of another driver. */
TEST(import_without_an_answer)
{
	struct pci_device device = need_device(0);
	struct call import = { .what = call_import, .fd = open_device(0) };
	int dma_buf = udmabuf_new(4 * PAGE), uffd;

	unanswered = (struct pinmap_import *)anon(1);
	*unanswered = (struct pinmap_import){ .size = sizeof(*unanswered), .fd = dma_buf };
	uffd = uffd_new_protect(unanswered, PAGE);
	uffd_protect(uffd, unanswered, PAGE, true);
	call_begin(&import);
	uffd_await(uffd, unanswered);
	close(dma_buf);
	pci_unbind(device.bdf);
	CHECK_PINS(0);
	uffd_protect(uffd, unanswered, PAGE, false);
	call_end(&import);
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
