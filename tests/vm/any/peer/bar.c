// SPDX-License-Identifier: MIT OR Apache-2.0
/* BARs of a flat device (QEMU's edu) in the hands of others. */
#define _GNU_SOURCE
#include "peer.h"

#include "file.h"
#include "importer/importer.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "pins.h"

#include <fcntl.h>
#include <linux/pci_regs.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The first of four registers that edu answers with the complement of what was written. */
enum { ANSWER = EDU_LIVENESS };

/* An edu with its registers mapped, and another one whose DMA is to reach them. */
struct two_edu {
	struct edu giver, taker;
	const char *bdf;
};

static struct two_edu two_edu_new(void)
{
	struct two_edu two;
	char first[16];

	need_peers();
	snprintf(first, sizeof(first), "%s", need_edu(0));
	two.giver = edu_open(open_function(first));
	two.taker = edu_open(open_function(need_edu(1)));
	two.bdf = strdup(first);
	return two;
}

static uint64_t bar_offset(const struct edu *edu)
{
	return get_info(edu->fd).out_bars[0].offset;
}

/* Has an edu store 4 bytes to an address, by DMA. */
static void dma_store(const struct edu *edu, uint64_t at, uint32_t value)
{
	uint32_t *word = (uint32_t *)anon(1);
	struct registration source = register_memory(edu->fd, word, PAGE, 0);

	*word = value;
	edu_reads(edu, source.device_addr, 4);
	edu_writes(edu, at, 4);
	release(edu->fd, source.handle);
	SYS(munmap(word, PAGE));
}

/* The registers of a device are stored to by the DMA of another one, at the program's addresses. */
TEST(registered_bar, .smoke = true)
{
	struct two_edu two = two_edu_new();
	struct registration bar =
		register_memory(two.taker.fd, (void *)two.giver.bar, PAGE, WRITE);

	CHECK_EQ(bar.device_addr, (uintptr_t)two.giver.bar);
	dma_store(&two.taker, bar.device_addr + ANSWER, 0x12345678);
	CHECK_EQ(edu_register(&two.giver, ANSWER), (uint32_t)~0x12345678);
	CHECK_EQ(query_handle(two.taker.fd, bar.handle).out_kind, PINMAP_BUFFER_IMPORT);
	CHECK_PINS(0);
	edu_close(&two.taker);
	edu_close(&two.giver);
}

/* A prefetchable BAR, which the CPU has write-combined, is memory for the DMA of another device. */
TEST(prefetchable_bar, .smoke = true)
{
	const struct pinmap_bar *bar;
	struct registration peer;
	struct pinmap_info info;
	char bdf[16] = "", *seen;
	struct edu taker;
	int fd;

	need_peers();
	if (!pci_spare(SPARE_VENDOR, MEMORY_DEVICE, bdf))
		SKIP("the machine has no pci-testdev");
	taker = edu_open(open_function(need_edu(0)));
	pci_bind(bdf);
	fd = open_function(bdf);
	info = get_info(fd);
	bar = info.out_bars;
	while (!(bar->flags & PINMAP_BAR_PREFETCHABLE))
		CHECK(++bar < info.out_bars + PINMAP_NR_BARS);
	seen = SYS(mmap(NULL, bar->length, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			(off_t)bar->offset));
	pattern_fill(seen, bar->length, 3);
	peer = register_memory(taker.fd, seen, bar->length, WRITE);
	dma_store(&taker, peer.device_addr + 2 * PAGE, 0x12345678);
	CHECK_EQ(*(volatile uint32_t *)(seen + 2 * PAGE), 0x12345678);
	edu_reads(&taker, peer.device_addr + PAGE, 256);
	edu_writes(&taker, peer.device_addr + bar->length - 256, 256);
	CHECK(!memcmp(seen + PAGE, seen + bar->length - 256, 256));
	SYS(munmap(seen, bar->length));
	close(fd);
	CHECK_EQ(next_event(taker.fd).type, PINMAP_EVENT_STALE);
	pci_unbind(bdf);
	edu_close(&taker);
}

/* Switches a function's answers to accesses of its memory on or off. */
static void set_answering(const char *bdf, bool answers)
{
	int config = SYS(open(pci_path(bdf, "config"), O_RDWR | O_CLOEXEC));
	uint16_t command;

	CHECK_EQ(SYS(pread(config, &command, 2, PCI_COMMAND)), 2);
	command = (uint16_t)(answers ? command | PCI_COMMAND_MEMORY
				     : command & ~PCI_COMMAND_MEMORY);
	CHECK_EQ(SYS(pwrite(config, &command, 2, PCI_COMMAND)), 2);
	close(config);
}

/* While a BAR is off, DMA to it is lost and does no harm; nobody else gets it. */
TEST(bar_that_is_off)
{
	struct two_edu two = two_edu_new();
	struct registration bar =
		register_memory(two.taker.fd, (void *)two.giver.bar, PAGE, WRITE);

	edu_set_register(&two.giver, ANSWER, 0x2222);
	set_answering(two.bdf, false);
	dma_store(&two.taker, bar.device_addr + ANSWER, 0x3333);
	set_answering(two.bdf, true);
	CHECK_EQ(edu_register(&two.giver, ANSWER), (uint32_t)~0x2222);
	dma_store(&two.taker, bar.device_addr + ANSWER, 0x3333);
	CHECK_EQ(edu_register(&two.giver, ANSWER), (uint32_t)~0x3333);
	edu_close(&two.taker);
	edu_close(&two.giver);
}

/* A part of a BAR is reached by a dma-buf, too; by one for reading, no store arrives. */
TEST(exported_bar, .faults = true)
{
	struct two_edu two = two_edu_new();
	int write = try_export_bar(two.giver.fd, bar_offset(&two.giver), PAGE, PINMAP_EXPORT_WRITE);
	int read = try_export_bar(two.giver.fd, bar_offset(&two.giver), PAGE, 0);
	struct pinmap_import writable, readable;
	struct pinmap_fail fail;
	uint64_t at = 0;

	CHECK(write >= 0 && read >= 0);
	CHECK_EQ(SYS(lseek(write, 0, SEEK_END)), PAGE);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, read, 0) == MAP_FAILED);
	writable = import_buffer(two.taker.fd, write);
	readable = import_buffer(two.taker.fd, read);
	CHECK_EQ(writable.out_length, PAGE);
	CHECK_ERR(EACCES,
		  try_map(two.taker.fd, readable.out_handle, PINMAP_MAP_WRITE, &at, &fail));
	at = map(two.taker.fd, writable.out_handle, PINMAP_MAP_WRITE, 0);
	dma_store(&two.taker, at + ANSWER, 0x600d);
	CHECK_EQ(edu_register(&two.giver, ANSWER), (uint32_t)~0x600d);
	at = map(two.taker.fd, readable.out_handle, 0, 0);
	dma_store(&two.taker, at + ANSWER, 0xbad);
	CHECK_EQ(edu_register(&two.giver, ANSWER), (uint32_t)~0x600d);
	/* those at second hand could not be waited for */
	CHECK_ERR(EOPNOTSUPP, try_export(two.taker.fd, writable.out_handle, 0));
	/* a function does not reach its own registers */
	CHECK_ERR(EINVAL, try_import(two.giver.fd, write, &writable));
	edu_close(&two.taker);
	edu_close(&two.giver);
}

static const struct loss_row losses[] = {
	{ "close", CLOSED },
	{ "reset", RESET },
	{ "unbind", UNBOUND },
};

/* When the owner has lost the device, no other device reaches it, in either way. */
TEST_EACH(bar_lost, losses, .faults = true)
{
	struct two_edu two = two_edu_new();
	int dma_buf = try_export_bar(two.giver.fd, bar_offset(&two.giver), PAGE,
				     PINMAP_EXPORT_WRITE), again;
	struct registration bar =
		register_memory(two.taker.fd, (void *)two.giver.bar, PAGE, WRITE);
	struct pinmap_import import = import_buffer(two.taker.fd, dma_buf), late;
	uint64_t at = map(two.taker.fd, import.out_handle, PINMAP_MAP_WRITE, 0);

	dma_store(&two.taker, at + ANSWER, 0x1111);
	CHECK_EQ(edu_register(&two.giver, ANSWER), (uint32_t)~0x1111);
	switch (row->loss) {
	case CLOSED:
		edu_close(&two.giver);
		close(two.giver.fd);
		break;
	case RESET: with_device_lock(two.bdf, IMPORTER_RESET, 1); break;
	default: pci_unbind(two.bdf);
	}
	for (int i = 0; i < 2; i++)
		CHECK_EQ(next_event(two.taker.fd).type, PINMAP_EVENT_STALE);
	CHECK_EQ(query_handle(two.taker.fd, bar.handle).out_state, PINMAP_STATE_STALE);
	CHECK_EQ(query_handle(two.taker.fd, import.out_handle).out_state, PINMAP_STATE_STALE);
	CHECK_ERR(ESTALE, try_import(two.taker.fd, dma_buf, &late));
	if (row->loss == UNBOUND)
		pci_bind(two.bdf);
	if (row->loss == UNBOUND)
		edu_close(&two.giver);
	if (row->loss != RESET)
		two.giver = edu_open(open_function(two.bdf));
	edu_set_register(&two.giver, ANSWER, 0x2222);
	dma_store(&two.taker, at + ANSWER, 0x3333);
	dma_store(&two.taker, bar.device_addr + ANSWER, 0x3333);
	CHECK_EQ(edu_register(&two.giver, ANSWER), (uint32_t)~0x2222);
	/* and it can be given again */
	again = try_export_bar(two.giver.fd, bar_offset(&two.giver), PAGE, PINMAP_EXPORT_WRITE);
	CHECK(again >= 0);
	edu_close(&two.taker);
	edu_close(&two.giver);
}

/* While a function is reset, nobody is given its registers. */
TEST(given_during_a_reset)
{
	struct two_edu two = two_edu_new();
	uint64_t start = bar_offset(&two.giver);
	int importer = importer_open(), given = -1;
	struct pinmap_register args = register_args((void *)two.giver.bar, PAGE, WRITE);
	pid_t pid = SYS(fork());

	if (!pid) {
		struct importer_args reset = { .offset = function_number(two.bdf),
					       .value = 100000 };

		ioctl(importer, IMPORTER_RESET, &reset);
		_exit(0);
	}
	CHECK(WAIT_FOR(5000, (close(given),
			      given = try_export_bar(two.giver.fd, start, PAGE, 0)) == -EAGAIN));
	CHECK_ERR(EAGAIN, try_register_args(two.taker.fd, &args));
	kill(pid, SIGTERM);
	waitpid(pid, NULL, 0);
	given = try_export_bar(two.giver.fd, start, PAGE, 0);
	CHECK(given >= 0);
	edu_close(&two.taker);
	edu_close(&two.giver);
}

/* EXPORT refuses what is no part of a BAR, or not the caller's. */
TEST(exported_wrongly)
{
	struct two_edu two = two_edu_new();
	uint64_t start = bar_offset(&two.giver);
	struct pinmap_export args = { .size = sizeof(args), .handle = start, .length = PAGE };
	int fd = two.giver.fd, gpu, other;

	CHECK_ERR(EINVAL, try_export_bar(fd, start, 0, 0));
	CHECK_ERR(EINVAL, try_export_bar(fd, start + 8, PAGE, 0));
	CHECK_ERR(EINVAL, try_export_bar(fd, start, PAGE + 8, 0));
	CHECK_ERR(EINVAL, try_export_bar(fd, start + MIB, PAGE, 0));
	CHECK_ERR(EINVAL, try_export_bar(fd, start, MIB + PAGE, 0));
	CHECK_ERR(EOVERFLOW, try_export_bar(fd, ~0ull & ~(PAGE - 1), 2 * PAGE, 0));
	/* there is no BAR 1 */
	CHECK_ERR(EINVAL, try_export_bar(fd, 1ull << 40, PAGE, 0));
	CHECK_ERR(EINVAL, try_export_bar(fd, 7ull << 40, PAGE, 0));
	CHECK_ERR(EINVAL, try_ioctl(fd, PINMAP_EXPORT, &args));
	CHECK_ERR(EOPNOTSUPP, try_export_bar(fd, start, PAGE, 1 << 5));
	other = open_function(two.bdf);
	CHECK_ERR(EBUSY, try_export_bar(other, start, PAGE, 0));
	gpu = open_gpu();
	CHECK_ERR(EOPNOTSUPP, try_export_bar(gpu, 0, PAGE, 0));
	edu_close(&two.taker);
	edu_close(&two.giver);
}

/* The pages of an MSI-X table are not given to anybody: who writes there makes interrupts. */
TEST(exported_msix_pages)
{
	struct pinmap_bar bar;
	char bdf[16] = "";
	int fd;

	need_peers();
	if (!pci_spare(SPARE_VENDOR, SPARE_DEVICE, bdf))
		SKIP("there is no function with MSI-X");
	pci_bind(bdf);
	fd = open_function(bdf);
	bar = get_info(fd).out_bars[0];
	CHECK(bar.hole_length != 0);
	CHECK_ERR(EINVAL, try_export_bar(fd, bar.offset + bar.hole_offset, PAGE, 0));
	CHECK_ERR(EINVAL, try_export_bar(fd, bar.offset, bar.length, 0));
	close(fd);
	pci_unbind(bdf);
}

struct importer_args importer_state(int importer)
{
	struct importer_args args = { 0 };

	CHECK_OK(try_ioctl(importer, IMPORTER_STATE, &args));
	return args;
}

int try_map_for_spare(int importer, int dma_buf, uint32_t flags)
{
	struct importer_args args = { .fd = dma_buf, .flags = flags | IMPORTER_PEER };
	char bdf[16] = "";

	if (!pci_spare(SPARE_VENDOR, SPARE_DEVICE, bdf))
		SKIP("there is no function without a driver");
	args.offset = function_number(bdf);
	return try_ioctl(importer, IMPORTER_MAP, &args);
}

/* Another driver of the kernel reaches VRAM by the addresses that it gets, until it is freed. */
TEST(vram_for_another_driver)
{
	const uint32_t flags = IMPORTER_WRITE | IMPORTER_DYNAMIC;
	struct giver giver = giver_new(4 * PAGE, 17);
	int importer = importer_open(), dma_buf;
	struct importer_args args = { .fd = -1, .flags = flags }, byte = { .offset = 2 * PAGE + 5 };

	dma_buf = export_buffer(giver.fd, giver.vram.args.out_handle, PINMAP_EXPORT_WRITE);
	/* it must take memory of devices, and be one */
	args.fd = dma_buf;
	CHECK_ERR(EOPNOTSUPP, try_ioctl(importer, IMPORTER_MAP, &args));
	CHECK_OK(try_map_for_spare(importer, dma_buf, flags));
	CHECK_EQ(importer_state(importer).out_length, 4 * PAGE);
	CHECK_OK(try_ioctl(importer, IMPORTER_LOAD, &byte));
	CHECK_EQ((unsigned char)byte.value, (unsigned char)giver.vram.addr[2 * PAGE + 5]);
	byte.value ^= 0xff;
	CHECK_OK(try_ioctl(importer, IMPORTER_STORE, &byte));
	CHECK_EQ((unsigned char)giver.vram.addr[2 * PAGE + 5], (unsigned char)byte.value);
	release(giver.fd, giver.vram.args.out_handle);
	CHECK_EQ(importer_state(importer).out_told, 1);
	CHECK_EQ(importer_state(importer).out_length, 0);
	CHECK_ERR(EFAULT, try_ioctl(importer, IMPORTER_LOAD, &byte));
	close(importer);
	importer = importer_open();
	CHECK_ERR(ENODEV, try_map_for_spare(importer, dma_buf, flags));
	close(importer);
}

/* For reading only, another driver gets no mapping to write to. */
TEST(vram_for_another_driver_read_only)
{
	struct giver giver = giver_new(PAGE, 17);
	int importer = importer_open();
	int dma_buf = export_buffer(giver.fd, giver.vram.args.out_handle, 0);

	CHECK_ERR(EACCES, try_map_for_spare(importer, dma_buf, IMPORTER_WRITE | IMPORTER_DYNAMIC));
	CHECK_OK(try_map_for_spare(importer, dma_buf, IMPORTER_DYNAMIC));
	close(importer);
}
