// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A driver for the test FPGA, 10ee:beef: registers in BAR 0, one interrupt vector, and a ring of
 * 256 descriptors in memory, of which the device writes the status. A template for your own. The
 * manual of the device is tests/devices/testfpga/FPGA.md.
 *
 * cc fpga_ring.c $(pkg-config --cflags --libs pinmap)
 */
#include <pinmap.h>

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAGIC = 0x00, STATUS = 0x04, RING_BASE = 0x10, RING_LENGTH = 0x18, TAIL = 0x1c,
       ACKNOWLEDGE = 0x20, CONTROL = 0x24 };

/* STATUS */
enum { RUNS = 1 };

enum { DESCRIPTORS = 256 };

struct descriptor {
	uint64_t source, target;
	uint32_t length, flags;
	/* 0 until the device is done. The last that is stored, and the first that is loaded. */
	_Atomic uint32_t status;
	uint32_t reserved;
};

/* The device drives 40 bits of addresses. */
static const struct pinmap_memory_options options = { .size = sizeof(options),
						      .address_bits = 40 };

struct fpga {
	struct pinmap_mapped_bar *bar;
	struct pinmap_interrupt *interrupt;
	struct pinmap_memory *memory;
	struct descriptor *ring;
	uint32_t tail;
};

static int fpga_open(struct fpga *fpga, struct pinmap_device *device)
{
	size_t length = DESCRIPTORS * sizeof(struct descriptor);
	uint32_t magic;
	uint64_t base;

	memset(fpga, 0, sizeof(*fpga));
	fpga->bar = pinmap_bar_map(device, 0);
	fpga->interrupt = pinmap_interrupt_enable(device, 0);
	fpga->ring = aligned_alloc((size_t)sysconf(_SC_PAGESIZE), length);
	if (!fpga->bar || !fpga->interrupt || !fpga->ring)
		return -1;
	if (pinmap_bar_read32(fpga->bar, MAGIC, &magic) || magic != 0x514b4b41)
		return -1;
	memset(fpga->ring, 0, length);
	fpga->memory = pinmap_register(device, fpga->ring, length, &options);
	if (!fpga->memory || pinmap_device_address(fpga->memory, 0, &base))
		return -1;
	return pinmap_bar_write64(fpga->bar, RING_BASE, base) ||
	       pinmap_bar_write32(fpga->bar, RING_LENGTH, DESCRIPTORS) ||
	       pinmap_bar_write32(fpga->bar, CONTROL, 1) ? -1 : 0;
}

/* Memory goes after the engine has stopped, which may use it until then. The write only asks. */
static void fpga_close(struct fpga *fpga)
{
	uint32_t state;

	if (fpga->bar && !pinmap_bar_write32(fpga->bar, CONTROL, 0))
		while (!pinmap_bar_read32(fpga->bar, STATUS, &state) && state == RUNS)
			;
	pinmap_release(fpga->memory);
	pinmap_interrupt_disable(fpga->interrupt);
	pinmap_bar_unmap(fpga->bar);
	free(fpga->ring);
}

static int fpga_copy(struct fpga *fpga, uint64_t source, uint64_t target, uint32_t length)
{
	struct descriptor *descriptor = &fpga->ring[fpga->tail % DESCRIPTORS];
	uint32_t status, state;

	descriptor->source = source;
	descriptor->target = target;
	descriptor->length = length;
	descriptor->flags = 1;
	atomic_store_explicit(&descriptor->status, 0, memory_order_release);
	fpga->tail++;
	/* The write to the BAR comes after the stores above, for the device as well. */
	if (pinmap_bar_write32(fpga->bar, TAIL, fpga->tail % DESCRIPTORS))
		return -1;
	while (!(status = atomic_load_explicit(&descriptor->status, memory_order_acquire))) {
		/*
		 * The device sends no other interrupt until it has the acknowledgement. The read
		 * makes that arrive; then a descriptor that is not done yet will interrupt.
		 */
		if (pinmap_interrupt_wait(fpga->interrupt, 1000, NULL) ||
		    pinmap_bar_write32(fpga->bar, ACKNOWLEDGE, 1) ||
		    pinmap_bar_read32(fpga->bar, STATUS, &state))
			return -1;
	}
	return status == 1 ? 0 : -1;
}

int main(void)
{
	enum { PIECE = 1024, COPIES = 4096, SIZE = COPIES * PIECE };
	struct pinmap_device *device = pinmap_find(0x10ee, 0xbeef);
	unsigned char *memory = aligned_alloc((size_t)sysconf(_SC_PAGESIZE), 2 * SIZE);
	struct pinmap_memory *registered = NULL;
	struct fpga fpga;
	uint64_t address;
	int i, copies = 0, result = 1;

	if (!device || !memory) {
		fprintf(stderr, "%s\n", pinmap_last_error());
		free(memory);
		return 1;
	}
	for (i = 0; i < SIZE; i++)
		memory[i] = (unsigned char)(i / PIECE + i);
	memset(memory + SIZE, 0, SIZE);
	if (!fpga_open(&fpga, device)) {
		registered = pinmap_register(device, memory, 2 * SIZE, &options);
		if (registered && !pinmap_device_address(registered, 0, &address)) {
			while (copies < COPIES &&
			       !fpga_copy(&fpga, address, address + SIZE, PIECE)) {
				address += PIECE;
				copies++;
			}
		}
		result = copies < COPIES || memcmp(memory, memory + SIZE, SIZE) != 0;
	}
	if (result)
		fprintf(stderr, "%d of %d copies: %s\n", copies, COPIES, pinmap_last_error());
	fpga_close(&fpga);
	pinmap_release(registered);
	pinmap_close(device);
	free(memory);
	return result;
}
