// SPDX-License-Identifier: MIT OR Apache-2.0
/* REGISTER of another device's memory, and functions that all tests of peers share. */
#define _GNU_SOURCE
#include "peer.h"

#include "file.h"
#include "iommu.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *need_edu(unsigned int number)
{
	static struct pci_device device;

	device = need_device(number);
	if (!pci_is(device.bdf, 0x1234, 0x11e8))
		SKIP("there is no edu");
	return device.bdf;
}

struct giver giver_new(size_t length, unsigned char seed)
{
	return giver_of(PINMAP_ALLOC_VRAM, length, seed);
}

struct giver giver_of(uint32_t flags, size_t length, unsigned char seed)
{
	struct giver giver;

	need_peers();
	snprintf(giver.bdf, sizeof(giver.bdf), "%.15s", need_second_gpu());
	giver.fd = open_second_gpu();
	giver.vram = gpu_alloc(giver.fd, flags, length);
	pattern_fill(giver.vram.addr, length, seed);
	return giver;
}

void giver_lose(struct giver *giver, enum loss loss)
{
	switch (loss) {
	case RELEASED: release(giver->fd, giver->vram.args.out_handle); break;
	case CLOSED:
		/* a mapping keeps the file open */
		SYS(munmap(giver->vram.addr, giver->vram.args.length));
		close(giver->fd);
		break;
	case RESET: file_write(pci_path(giver->bdf, "reset"), "1"); break;
	case UNBOUND: pci_unbind(giver->bdf); break;
	case REMOVED: function_remove(giver->bdf); break;
	}
}

void giver_end(struct giver *giver, enum loss loss)
{
	if (loss == RESET)
		pci_unbind(giver->bdf);
	if (loss == RESET || loss == UNBOUND)
		pci_bind(giver->bdf);
	if (loss == REMOVED)
		function_restore(giver->bdf);
}

void function_remove(const char *bdf)
{
	file_write(pci_path(bdf, "remove"), "1");
}

void function_restore(const char *bdf)
{
	file_write("/sys/bus/pci/rescan", "1");
	pci_bind(bdf);
}

int try_export_bar(int fd, uint64_t offset, uint64_t length, uint32_t flags)
{
	struct pinmap_export args = {
		.size = sizeof(args),
		.flags = flags | PINMAP_EXPORT_BAR,
		.handle = offset,
		.length = length,
		.out_fd = -1,
	};
	int result = try_ioctl(fd, PINMAP_EXPORT, &args);

	return result ? result : args.out_fd;
}

void gpu_copy_fails(struct gpu_queue *queue, uint64_t to, uint64_t from, size_t length)
{
	queue_push(queue, GPU_COPY, from, to, length);
	queue_ring(queue);
	queue_stopped(queue);
}

static const struct kind {
	const char *name;
	uint32_t flags;
} kinds[] = {
	{ "plain", PINMAP_ALLOC_VRAM },
	{ "with_pages", PINMAP_ALLOC_VRAM | PINMAP_ALLOC_P2PDMA },
};

/* A device reads and writes VRAM of another one at the program's addresses; nothing is pinned. */
TEST_EACH(registered_vram, kinds, .smoke = true)
{
	const size_t length = 2 * HUGE + 3 * PAGE;
	struct giver giver = giver_of(row->flags, length, 7);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory mine = gpu_alloc(fd, PINMAP_ALLOC_VRAM, length);
	struct pinmap_get_totals before = { .size = sizeof(before) }, after = before;
	struct registration peer;

	CHECK_OK(try_ioctl(fd, PINMAP_GET_TOTALS, &before));
	peer = register_memory(fd, giver.vram.addr, length, WRITE);
	CHECK_EQ(peer.device_addr, (uintptr_t)giver.vram.addr);
	CHECK_EQ(query_handle(fd, peer.handle).out_kind, PINMAP_BUFFER_IMPORT);
	CHECK_EQ(query_handle(fd, peer.handle).out_base, (uintptr_t)giver.vram.addr);
	CHECK_OK(try_ioctl(fd, PINMAP_GET_TOTALS, &after));
	CHECK_EQ(after.out_shared.bytes, length);
	CHECK_EQ(after.out_pinned.bytes, before.out_pinned.bytes);
	gpu_copy(&queue, (uintptr_t)mine.addr, peer.device_addr, length);
	CHECK(pattern_is(mine.addr, length, 7));
	pattern_fill(mine.addr, length, 9);
	gpu_copy(&queue, peer.device_addr, (uintptr_t)mine.addr, length);
	CHECK(pattern_is(giver.vram.addr, length, 9));
	release(fd, peer.handle);
	gpu_copy_fails(&queue, (uintptr_t)mine.addr, peer.device_addr, PAGE);
}

/* Registered for reading, VRAM of another device is not written. */
TEST(registered_vram_read_only)
{
	struct giver giver = giver_new(4 * PAGE, 3);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory mine = gpu_alloc(fd, PINMAP_ALLOC_VRAM, 4 * PAGE);
	struct registration peer = register_memory(fd, giver.vram.addr, 4 * PAGE, 0);
	uint64_t wish = 0;
	struct pinmap_fail fail;

	gpu_copy(&queue, (uintptr_t)mine.addr, peer.device_addr, 4 * PAGE);
	CHECK(pattern_is(mine.addr, 4 * PAGE, 3));
	CHECK_ERR(EACCES, try_map(fd, peer.handle, PINMAP_MAP_WRITE, &wish, &fail));
	memset(mine.addr, 0, 4 * PAGE);
	gpu_copy_fails(&queue, peer.device_addr, (uintptr_t)mine.addr, PAGE);
	CHECK_EQ(queue_query(&queue).out_state, PINMAP_QUEUE_FAULTED);
	CHECK(pattern_is(giver.vram.addr, 4 * PAGE, 3));
}

/* Some pages in the midst of an allocation; and without a mapping, which comes later. */
TEST(registered_part_of_vram)
{
	struct giver giver = giver_new(8 * PAGE, 5);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory mine = gpu_alloc(fd, PINMAP_ALLOC_VRAM, 2 * PAGE);
	char *part = giver.vram.addr + 3 * PAGE;
	struct registration peer = register_memory(fd, part, 2 * PAGE, WRITE | NO_MAP);
	uint64_t at;

	CHECK_EQ(peer.device_addr, 0);
	at = map(fd, peer.handle, PINMAP_MAP_WRITE, 0);
	gpu_copy(&queue, (uintptr_t)mine.addr, at, 2 * PAGE);
	CHECK(!memcmp(mine.addr, part, 2 * PAGE));
	gpu_copy_fails(&queue, (uintptr_t)mine.addr, at + 2 * PAGE, PAGE);
}

static const struct loss_row losses[] = {
	{ "release", RELEASED },
	{ "close", CLOSED },
	{ "reset", RESET },
	{ "unbind", UNBOUND },
	{ "remove", REMOVED },
};

/* How many pieces of 2 MiB the first test GPU may write, in the IOMMU's table; -1: not shown. */
static int writable_pieces(void)
{
	const struct iommu_table *table = iommu_read(need_gpu());
	int count = 0;

	for (size_t i = 0; table && i < table->count; i++)
		count += table->entries[i].size == HUGE && table->entries[i].writable;
	return table ? count : -1;
}

/* VRAM is taken back from another device at once, and its next owner sees none of it. */
TEST_EACH(vram_lost, losses, .faults = true)
{
	struct giver giver = giver_new(HUGE, 21);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory mine = gpu_alloc(fd, PINMAP_ALLOC_VRAM, HUGE), next;
	struct registration peer = register_memory(fd, giver.vram.addr, HUGE, WRITE);
	int pieces = writable_pieces();

	CHECK(pieces == 1 || pieces == -1);
	gpu_copy(&queue, (uintptr_t)mine.addr, peer.device_addr, HUGE);
	CHECK(pattern_is(mine.addr, HUGE, 21));
	giver_lose(&giver, row->loss);
	CHECK_STALE_EVENT(fd, peer);
	CHECK_EQ(query_handle(fd, peer.handle).out_state, PINMAP_STATE_STALE);
	gpu_copy_fails(&queue, peer.device_addr, (uintptr_t)mine.addr, HUGE);
	CHECK_EQ(writable_pieces(), pieces == -1 ? -1 : 0);
	release(fd, peer.handle);
	giver_end(&giver, row->loss);
	if (row->loss != RELEASED)
		giver.fd = open_second_gpu();
	if (row->loss != CLOSED)
		SYS(munmap(giver.vram.addr, HUGE));
	next = gpu_alloc(giver.fd, PINMAP_ALLOC_VRAM, HUGE);
	CHECK(bytes_are(next.addr, HUGE, 0));
}

/* Has a queue begin copies by a slow link: each takes a tenth of a second, and all three. */
static void begin_copies(struct gpu_queue *queue, uint64_t to, uint64_t from, size_t length)
{
	gpu_set_register(GPU_LINK_BANDWIDTH, 20000000);
	for (int i = 0; i < GPU_PACKETS / 2; i++)
		queue_push(queue, GPU_COPY, from, to, length);
	queue_ring(queue);
}

/* A device at work on another one's memory loses it: the work stops, and nobody waits for it. */
TEST_EACH(vram_lost_at_work, losses, .faults = true)
{
	struct giver giver = giver_new(HUGE, 21);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory mine = gpu_alloc(fd, PINMAP_ALLOC_VRAM, HUGE);
	struct registration peer = register_memory(fd, giver.vram.addr, HUGE, WRITE);
	struct pinmap_event event;

	begin_copies(&queue, peer.device_addr, (uintptr_t)mine.addr, HUGE);
	CHECK(WAIT_FOR(5000, queue_query(&queue).out_index >= 1));
	giver_lose(&giver, row->loss);
	queue_stopped(&queue);
	gpu_set_register(GPU_LINK_BANDWIDTH, 1000000000);
	/* it was in the midst of them */
	CHECK(queue_query(&queue).out_index < GPU_PACKETS / 2);
	/* the device may have met the end of the memory before the memory was stale */
	while ((event = next_event(fd)).type == PINMAP_EVENT_FAULT)
		;
	CHECK_EQ(event.type, PINMAP_EVENT_STALE);
	CHECK_EQ(event.handle, peer.handle);
	release(fd, peer.handle);
	giver_end(&giver, row->loss);
}

/* A device at work on another one's memory goes away: the other one gives its memory to others. */
TEST(taker_removed_at_work)
{
	struct giver giver = giver_new(HUGE, 21);
	int fd = open_gpu();
	const char *bdf = need_gpu();
	char taker[16];
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory mine = gpu_alloc(fd, PINMAP_ALLOC_VRAM, HUGE), next;
	struct registration peer = register_memory(fd, giver.vram.addr, HUGE, WRITE);

	snprintf(taker, sizeof(taker), "%s", bdf);
	begin_copies(&queue, peer.device_addr, (uintptr_t)mine.addr, HUGE);
	CHECK(WAIT_FOR(5000, queue_query(&queue).out_index >= 1));
	/* that resets it, and its link */
	function_remove(taker);
	release(giver.fd, giver.vram.args.out_handle);
	SYS(munmap(giver.vram.addr, HUGE));
	next = gpu_alloc(giver.fd, PINMAP_ALLOC_VRAM, HUGE);
	CHECK(bytes_are(next.addr, HUGE, 0));
	close(fd);
	function_restore(taker);
	CHECK(bytes_are(next.addr, HUGE, 0));
}

/* Both devices reach each other's memory at the same time, and go away in either order. */
TEST(both_ways)
{
	struct giver giver = giver_new(4 * PAGE, 1);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd), other = queue_new(giver.fd);
	struct gpu_memory mine = gpu_alloc(fd, PINMAP_ALLOC_VRAM, 4 * PAGE);
	struct registration theirs = register_memory(fd, giver.vram.addr, 4 * PAGE, WRITE);
	struct registration ours = register_memory(giver.fd, mine.addr, 4 * PAGE, WRITE);

	gpu_copy(&queue, (uintptr_t)mine.addr, theirs.device_addr, 4 * PAGE);
	CHECK(pattern_is(mine.addr, 4 * PAGE, 1));
	pattern_fill(giver.vram.addr, 4 * PAGE, 2);
	gpu_copy(&other, ours.device_addr, (uintptr_t)giver.vram.addr, 4 * PAGE);
	CHECK(pattern_is(mine.addr, 4 * PAGE, 2));
	queue_unmap(&queue);
	SYS(munmap(mine.addr, 4 * PAGE));
	close(fd);
	CHECK_STALE_EVENT(giver.fd, ours);
}

/* REGISTER refuses what is no memory of another device, and leaves nothing. */
TEST(registered_wrongly)
{
	struct giver giver = giver_new(4 * PAGE, 1);
	int fd = open_gpu();
	char *vram = giver.vram.addr, *page;
	struct pinmap_register args = register_args(vram, 4 * PAGE,
						    WRITE | PINMAP_REGISTER_PORTABLE);

	CHECK_ERR(EOPNOTSUPP, try_register_args(fd, &args));
	/* the device itself */
	CHECK_REGISTER_FAILS(giver.fd, vram, PAGE, WRITE, EFAULT, PINMAP_FAIL_DEVICE, vram);
	/* more than is mapped, in one piece */
	SYS(munmap(vram + 3 * PAGE, PAGE));
	page = SYS(mmap(vram + 3 * PAGE, PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	CHECK_REGISTER_FAILS(fd, vram, 4 * PAGE, WRITE, EFAULT, PINMAP_FAIL_DEVICE, vram);
	CHECK_REGISTER_FAILS(fd, vram + 2 * PAGE, 2 * PAGE, WRITE, EFAULT, PINMAP_FAIL_DEVICE,
			     vram + 2 * PAGE);
	SYS(munmap(page, PAGE));
	/* other memory in the midst */
	page = SYS(mmap(vram + PAGE, PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	CHECK_REGISTER_FAILS(fd, vram, 3 * PAGE, WRITE, EFAULT, PINMAP_FAIL_DEVICE, vram);
	SYS(munmap(page, PAGE));
	/* what the program itself may not do */
	SYS(mprotect(vram, PAGE, PROT_READ));
	CHECK_REGISTER_FAILS(fd, vram, PAGE, WRITE, EFAULT, PINMAP_FAIL_PERMISSION, vram);
	SYS(mprotect(vram, PAGE, PROT_NONE));
	CHECK_REGISTER_FAILS(fd, vram, PAGE, 0, EFAULT, PINMAP_FAIL_PERMISSION, vram);
	SYS(mprotect(vram, PAGE, PROT_READ | PROT_WRITE));
	/* memory that was released, and is only mapped still */
	release(giver.fd, giver.vram.args.out_handle);
	CHECK_REGISTER_FAILS(fd, vram, PAGE, WRITE, EFAULT, PINMAP_FAIL_DEVICE, vram);
	CHECK_EQ(get_info(fd).out_registrations, 0);
	CHECK_PINS(0);
}

/* The limit of locked memory is for what is pinned: nothing is, here. */
TEST(registered_vram_is_not_charged)
{
	struct giver giver = giver_new(HUGE, 1);
	int fd = open_gpu();
	struct pinmap_preflight args = {
		.size = sizeof(args),
		.flags = WRITE,
		.addr = (uintptr_t)giver.vram.addr,
		.length = HUGE,
	};
	struct registration host;
	uint64_t used;
	int result;

	set_memlock(16 * PAGE);
	become_user(true);
	used = get_info(fd).out_memlock_used;
	CHECK_OK(try_ioctl(fd, PINMAP_PREFLIGHT, &args));
	CHECK(args.out_memlock_needed - used <= 4 * PAGE);
	register_memory(fd, giver.vram.addr, HUGE, WRITE);
	result = try_register_memory(fd, anon(HUGE / PAGE), HUGE, WRITE, &host);
	CHECK_ERR(ENOMEM, result);
}

/* Without a way on the bus, the memory of another device is refused. */
TEST(two_gpus_without_a_way)
{
	struct gpu_memory vram;
	int fd, other, dma_buf;
	struct pinmap_import import;

	if (pci_peers())
		SKIP("the bus of this machine lets devices reach each other");
	need_second_gpu();
	fd = open_gpu();
	other = open_second_gpu();
	vram = gpu_alloc(other, PINMAP_ALLOC_VRAM, 4 * PAGE);
	CHECK_REGISTER_FAILS(fd, vram.addr, 4 * PAGE, WRITE, EREMOTEIO, 0, 0);
	dma_buf = export_buffer(other, vram.args.out_handle, PINMAP_EXPORT_WRITE);
	CHECK_ERR(EREMOTEIO, try_import(fd, dma_buf, &import));
	CHECK_EQ(get_info(fd).out_registrations, 0);
}
