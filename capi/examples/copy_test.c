// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Has QEMU's device edu copy a buffer of this program to itself and back, and compares the bytes.
 * The device works on the program's memory; the program copies nothing.
 *
 * cc copy_test.c $(pkg-config --cflags --libs pinmap)
 */
#include <pinmap.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Registers in BAR 0, of which QEMU's docs/specs/edu.rst tells. */
enum {
	INTERRUPT_STATUS = 0x24,
	INTERRUPT_ACKNOWLEDGE = 0x64,
	DMA_SOURCE = 0x80,
	DMA_DESTINATION = 0x88,
	DMA_COUNT = 0x90,
	DMA_COMMAND = 0x98,
};

/* DMA_COMMAND */
enum { START = 1, TO_MEMORY = 2, INTERRUPT = 4 };

/* The device's own buffer, and how much of it moves at once. */
enum { BUFFER = 0x40000, SIZE = 4096 };

static void *need(void *handle, const char *what)
{
	if (!handle) {
		fprintf(stderr, "%s: %s\n", what, pinmap_last_error());
		exit(1);
	}
	return handle;
}

static void check(int result, const char *what)
{
	need(result < 0 ? NULL : stderr, what);
}

static void copy(struct pinmap_mapped_bar *bar, struct pinmap_interrupt *interrupt, uint64_t from,
		 uint64_t to, uint64_t direction)
{
	uint32_t reasons;

	check(pinmap_bar_write64(bar, DMA_SOURCE, from), "writing a register");
	check(pinmap_bar_write64(bar, DMA_DESTINATION, to), "writing a register");
	check(pinmap_bar_write64(bar, DMA_COUNT, SIZE), "writing a register");
	check(pinmap_bar_write64(bar, DMA_COMMAND, START | INTERRUPT | direction), "starting");
	check(pinmap_interrupt_wait(interrupt, 10000, NULL), "waiting for the device");
	check(pinmap_bar_read32(bar, INTERRUPT_STATUS, &reasons), "reading a register");
	check(pinmap_bar_write32(bar, INTERRUPT_ACKNOWLEDGE, reasons), "acknowledging");
}

int main(void)
{
	struct pinmap_device *device = need(pinmap_find(0x1234, 0x11e8), "looking for an edu");
	struct pinmap_mapped_bar *bar = need(pinmap_bar_map(device, 0), "mapping its registers");
	struct pinmap_interrupt *interrupt = need(pinmap_interrupt_enable(device, 0), "interrupt");
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t length = (2 * SIZE + page - 1) / page * page;
	unsigned char *buffer = aligned_alloc(page, length);
	struct pinmap_memory *memory;
	uint64_t from, to;
	int i;

	need(buffer, "allocating");
	for (i = 0; i < SIZE; i++)
		buffer[i] = (unsigned char)(i * 7);
	memset(buffer + SIZE, 0, SIZE);
	memory = need(pinmap_register(device, buffer, length, NULL), "registering");
	check(pinmap_device_address(memory, 0, &from), "the device's address");
	check(pinmap_device_address(memory, SIZE, &to), "the device's address");
	copy(bar, interrupt, from, BUFFER, 0);
	copy(bar, interrupt, BUFFER, to, TO_MEMORY);
	check(pinmap_release(memory), "releasing");
	pinmap_interrupt_disable(interrupt);
	pinmap_bar_unmap(bar);
	pinmap_close(device);
	if (memcmp(buffer, buffer + SIZE, SIZE) != 0) {
		fprintf(stderr, "the bytes differ\n");
		return 1;
	}
	printf("%d bytes at %p, for the device at %#llx: there and back, equal\n", SIZE,
	       (void *)buffer, (unsigned long long)from);
	free(buffer);
	return 0;
}
