// SPDX-License-Identifier: MIT OR Apache-2.0
/* VRAM that ends while a disk writes to it: first the I/O ends. */
#define _GNU_SOURCE
#include "p2p.h"

#include "file.h"
#include "importer/importer.h"
#include "kmsg.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A buffer that is filled, and into which the disk is reading. */
static struct held *begin(int fd, struct gpu_memory *vram)
{
	struct gpu_queue queue;

	need_peers();
	need_disk(HELD);
	queue = queue_new(fd);
	*vram = gpu_alloc(fd, P2PDMA, MIB);
	gpu_fill(&queue, (uintptr_t)vram->addr, MIB, 0x51);
	queue_delete(&queue);
	queue_unmap(&queue);
	return held_begin(vram->addr);
}

/* The view goes: the read goes on, into the buffer. */
TEST(munmap)
{
	struct gpu_memory vram;
	int fd = open_gpu();
	struct held *held = begin(fd, &vram);
	char *other = map_at(fd, vram.args.out_offset, MIB);

	SYS(munmap(vram.addr, MIB));
	CHECK_EQ(held_end(held), HELD_BYTES);
	CHECK(bytes_are(other, HELD_BYTES, 0));
	CHECK(bytes_are(other + HELD_BYTES, MIB - HELD_BYTES, 0x51));
}

static const struct freed {
	const char *name;
	bool close;
} freed[] = { { "release", false }, { "close", true } };

/*
 * Everything goes: the VRAM is given to nobody before the disk has done its work. The next owner
 * has zeros, and nobody writes to what it has.
 */
TEST_EACH(retired, freed)
{
	int home = open_gpu(), fd = open_gpu();
	uint64_t before = vram_free(home);
	struct gpu_memory vram, next;
	struct held *held = begin(fd, &vram);
	uint64_t frame;

	CHECK_EQ(touch_read(vram.addr), 0);
	frame = page_frame(vram.addr);
	next = gpu_alloc(home, PINMAP_ALLOC_VRAM, PAGE);
	if (row->close)
		close(fd);
	else
		release(fd, vram.args.out_handle);
	SYS(munmap(vram.addr, MIB));
	CHECK_EQ(vram_free(home), before - MIB - PAGE);
	/* This would get the same frames. */
	next = gpu_alloc(home, P2PDMA, MIB);
	CHECK(bytes_are(next.addr, MIB, 0));
	CHECK(page_frame(next.addr) && page_frame(next.addr) != frame);
	memset(next.addr, 0x52, MIB);
	CHECK_EQ(held_end(held), HELD_BYTES);
	CHECK(bytes_are(next.addr, MIB, 0x52));
	CHECK(WAIT_FOR(5000, vram_free(home) == before - MIB - PAGE));
	/* This gets them. */
	next = gpu_alloc(home, P2PDMA, MIB);
	CHECK(bytes_are(next.addr, MIB, 0));
	CHECK_EQ(page_frame(next.addr), frame);
}

/* The state of a process, as in /proc. */
static char state_of(pid_t pid)
{
	char path[32], text[256], state = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file_read(path, text, sizeof(text));
	CHECK_EQ(sscanf(text, "%*d (%*[^)]) %c", &state), 1);
	return state;
}

/* A killed program leaves nothing, and the VRAM is back when the disk has done its work. */
TEST(killed)
{
	int home = open_gpu();
	uint64_t before = vram_free(home);
	struct gate begun = gate_new();
	pid_t pid;

	need_peers();
	need_disk(HELD);
	pid = fork();
	if (pid == 0) {
		struct gpu_memory vram;

		begin(open_gpu(), &vram);
		gate_open(&begun);
		pause();
	}
	gate_pass(&begun);
	SYS(kill(pid, SIGKILL));
	/* nothing of it runs any more */
	CHECK(WAIT_FOR(20000, state_of(pid) == 'Z'));
	CHECK(vram_free(home) <= before - MIB);
	CHECK(held_requests() != 0);
	held_release();
	kill_now(pid);
	CHECK(WAIT_FOR(20000, vram_free(home) == before));
	CHECK_EQ(held_requests(), 0);
}

/* The state of a bus after an error that stopped all accesses (pci_channel_io_frozen). */
enum { FROZEN = 2 };

static const struct cut {
	const char *name;
	bool error;
} cuts[] = { { "reset", false }, { "error", true } };

/*
 * A reset does not wait, because it may be one of the whole bus, for which the disk has stopped.
 * The read goes on afterwards. So it is after an error on the bus.
 */
TEST_EACH(cut_off, cuts)
{
	char bdf[16];
	struct gpu_memory vram;
	int fd = open_gpu();
	struct held *held = begin(fd, &vram);

	strcpy(bdf, need_gpu());
	if (row->error)
		with_device_lock(bdf, IMPORTER_ERROR, FROZEN);
	else
		file_write(pci_path(bdf, "reset"), "1");
	CHECK(held_requests() != 0);
	CHECK_EQ(touch_read(vram.addr), SIGBUS);
	CHECK_EQ(held_end(held), HELD_BYTES);
	pci_unbind(bdf);
	pci_bind(bdf);
}

static const struct leaves {
	const char *name;
	const char *file;
} leaves[] = {
	{ "unbind", "driver/unbind" },
	{ "remove", "remove" },
};

/* Writes the text that is the argument to a file of the function in sysfs. */
static char leaving_path[128];

static int task_leave(struct task *task)
{
	return try_file_write(leaving_path, task->argument);
}

/*
 * Whether the driver waits there until no I/O has pages of VRAM: this is what it is at each time
 * that one looks, several times in a row.
 */
static bool waits_for_io(const struct task *leaving)
{
	static unsigned int times;

	times = sleeps_in(leaving->id, "P2pdmaPages") ? times + 1 : 0;
	return times == 5;
}

/* The device leaves: nobody sees its memory any more, and the read, which is waited for, ends. */
TEST_EACH(device, leaves, .seconds = 120)
{
	char bdf[16];
	struct gpu_memory vram;
	int fd = open_gpu();
	struct held *held = begin(fd, &vram);
	struct task leaving = { .what = task_leave };

	strcpy(bdf, need_gpu());
	leaving.argument = strcmp(row->name, "unbind") ? "1" : bdf;
	snprintf(leaving_path, sizeof(leaving_path), "%s", pci_path(bdf, row->file));
	task_begin(&leaving);
	CHECK(WAIT_FOR(10000, touch_read(vram.addr) == SIGBUS));
	CHECK_EQ(touch_write(vram.addr + MIB - 1), SIGBUS);
	CHECK(WAIT_FOR(10000, leaving.is_over || waits_for_io(&leaving)));
	CHECK(!leaving.is_over);
	CHECK(held_requests() != 0);
	CHECK_EQ(held_end(held), HELD_BYTES);
	CHECK_OK(task_end(&leaving));
	CHECK_EQ(touch_read(vram.addr), SIGBUS);
	if (!strcmp(row->name, "remove"))
		file_write("/sys/bus/pci/rescan", "1");
	pci_bind(bdf);
	/* Pages are made anew. */
	close(fd);
	fd = open_gpu();
	held = begin(fd, &vram);
	CHECK_EQ(held_end(held), HELD_BYTES);
	CHECK(bytes_are(vram.addr, HELD_BYTES, 0));
	CHECK(bytes_are(vram.addr + HELD_BYTES, MIB - HELD_BYTES, 0x51));
}

/* The system does not sleep while the disk reads; the log says so, and the read goes on. */
TEST(awake_in_a_sleep, .seconds = 60)
{
	struct gpu_memory vram;
	int fd = open_gpu(), kmsg = kmsg_open();
	struct held *held = begin(fd, &vram);

	CHECK_EQ(with_device_lock(need_gpu(), IMPORTER_SLEEP, 0), EBUSY);
	CHECK(kmsg_wait(kmsg, "does not sleep: other devices read or write its memory", 10000));
	CHECK_EQ(held_end(held), HELD_BYTES);
	CHECK(bytes_are(vram.addr, HELD_BYTES, 0));
	CHECK(bytes_are(vram.addr + HELD_BYTES, MIB - HELD_BYTES, 0x51));
}

static bool is_asleep(void)
{
	char status[16] = "";

	file_read(pci_path(need_gpu(), "power/runtime_status"), status, sizeof(status));
	return !strcmp(status, "suspended");
}

/* Nor does a device that is idle: only when the disk has finished. */
TEST(awake_when_idle, .seconds = 120)
{
	struct gpu_memory vram;
	int fd = open_gpu();
	struct held *held = begin(fd, &vram);

	if (try_file_write(pci_path(need_gpu(), "power/control"), "auto"))
		SKIP("the kernel has no runtime power management");
	file_write(pci_path(need_gpu(), "power/autosuspend_delay_ms"), "10");
	for (unsigned int i = 0; i < 50; i++, sleep_ms(10))
		CHECK(!is_asleep());
	CHECK(held_requests() != 0);
	CHECK_EQ(held_end(held), HELD_BYTES);
	CHECK(WAIT_FOR(slow(30000), is_asleep()));
	file_write(pci_path(need_gpu(), "power/control"), "on");
	CHECK(bytes_are(vram.addr, HELD_BYTES, 0));
	CHECK(bytes_are(vram.addr + HELD_BYTES, MIB - HELD_BYTES, 0x51));
}
