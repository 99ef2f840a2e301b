// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A driver for a made-up FPGA, 10ee:beef: registers in BAR 0, one interrupt vector, and a ring of
 * 256 descriptors in memory, of which the device writes the status. A template for your own.
 *
 * cc fpga_ring.c $(pkg-config --cflags --libs pinmap)
 */
#include <pinmap.h>

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x00, RING_BASE = 0x10, RING_LENGTH = 0x18, TAIL = 0x1c, ACKNOWLEDGE = 0x20,
       CONTROL = 0x24 };

enum { DESCRIPTORS = 256 };

struct descriptor {
	uint64_t source, target;
	uint32_t length, flags;
	/* 0 until the device is done. The last that is stored, and the first that is loaded. */
	_Atomic uint32_t status;
	uint32_t reserved;
};

struct quokka {
	struct pinmap_bar *bar;
	struct pinmap_interrupt *interrupt;
	struct pinmap_memory *memory;
	struct descriptor *ring;
	uint32_t tail;
};

static int quokka_open(struct quokka *quokka, struct pinmap_device *device)
{
	/* The device drives 40 bits of addresses. */
	struct pinmap_memory_options options = { .size = sizeof(options), .address_bits = 40 };
	size_t length = DESCRIPTORS * sizeof(struct descriptor);
	uint32_t magic;
	uint64_t base;

	memset(quokka, 0, sizeof(*quokka));
	quokka->bar = pinmap_bar_map(device, 0);
	quokka->interrupt = pinmap_interrupt_enable(device, 0);
	quokka->ring = aligned_alloc(4096, length);
	if (!quokka->bar || !quokka->interrupt || !quokka->ring)
		return -1;
	if (pinmap_bar_read32(quokka->bar, MAGIC, &magic) || magic != 0x514b4b41)
		return -1;
	memset(quokka->ring, 0, length);
	quokka->memory = pinmap_register(device, quokka->ring, length, &options);
	if (!quokka->memory || pinmap_device_address(quokka->memory, 0, &base))
		return -1;
	return pinmap_bar_write64(quokka->bar, RING_BASE, base) ||
	       pinmap_bar_write32(quokka->bar, RING_LENGTH, DESCRIPTORS) ||
	       pinmap_bar_write32(quokka->bar, CONTROL, 1) ? -1 : 0;
}

/* Memory goes after the device, which may use it until then. */
static void quokka_close(struct quokka *quokka)
{
	if (quokka->bar)
		pinmap_bar_write32(quokka->bar, CONTROL, 0);
	pinmap_release(quokka->memory);
	pinmap_interrupt_disable(quokka->interrupt);
	pinmap_bar_unmap(quokka->bar);
	free(quokka->ring);
}

static int quokka_copy(struct quokka *quokka, uint64_t source, uint64_t target, uint32_t length)
{
	struct descriptor *descriptor = &quokka->ring[quokka->tail % DESCRIPTORS];

	descriptor->source = source;
	descriptor->target = target;
	descriptor->length = length;
	descriptor->flags = 1;
	atomic_store_explicit(&descriptor->status, 0, memory_order_release);
	quokka->tail++;
	/* The write to the BAR comes after the stores above, for the device as well. */
	if (pinmap_bar_write32(quokka->bar, TAIL, quokka->tail % DESCRIPTORS))
		return -1;
	while (!atomic_load_explicit(&descriptor->status, memory_order_acquire)) {
		if (pinmap_interrupt_wait(quokka->interrupt, 1000, NULL) ||
		    pinmap_bar_write32(quokka->bar, ACKNOWLEDGE, 1))
			return -1;
	}
	return 0;
}

int main(void)
{
	enum { SIZE = 16384 };
	struct pinmap_device *device = pinmap_find(0x10ee, 0xbeef);
	unsigned char *memory = aligned_alloc(4096, 2 * SIZE);
	struct pinmap_memory *registered = NULL;
	struct quokka quokka;
	uint64_t address;
	int result = 1;

	if (!device || !memory) {
		fprintf(stderr, "%s\n", pinmap_last_error());
		free(memory);
		return 1;
	}
	memset(memory, 7, SIZE);
	if (!quokka_open(&quokka, device)) {
		registered = pinmap_register(device, memory, 2 * SIZE, NULL);
		if (registered && !pinmap_device_address(registered, 0, &address) &&
		    !quokka_copy(&quokka, address, address + SIZE, SIZE))
			result = memcmp(memory, memory + SIZE, SIZE) != 0;
	}
	if (result)
		fprintf(stderr, "%s\n", pinmap_last_error());
	quokka_close(&quokka);
	pinmap_release(registered);
	pinmap_close(device);
	free(memory);
	return result;
}
