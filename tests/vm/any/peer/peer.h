/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory of one device in the hands of another: what its tests share. */
#ifndef TESTS_PEER_PEER_H
#define TESTS_PEER_PEER_H

#include "alloc.h"
#include "edu.h"
#include "gpu.h"
#include "importer/importer.h"

/*
 * Functions for pci_spare(), by their ids: QEMU's NVMe controller, which has a way to an edu, and
 * its pci-testdev, one of whose BARs is memory.
 */
enum { SPARE_VENDOR = 0x1b36, SPARE_DEVICE = 0x0010, MEMORY_DEVICE = 0x0005 };

/* How a device loses what it gave. */
enum loss { RELEASED, CLOSED, RESET, UNBOUND, REMOVED };

struct loss_row {
	const char *name;
	enum loss loss;
};

/**
 * struct giver - a test GPU whose VRAM another device is to reach
 * @bdf: its address
 * @fd: its context
 * @vram: memory of it, mapped for the CPU and for itself
 */
struct giver {
	char bdf[16];
	int fd;
	struct gpu_memory vram;
};

/* The second test GPU, with so much VRAM, filled with a pattern of this seed. */
struct giver giver_new(size_t length, unsigned char seed);
struct giver giver_of(uint32_t flags, size_t length, unsigned char seed);

/* Takes the VRAM away. Undone by giver_end(). */
void giver_lose(struct giver *giver, enum loss loss);
void giver_end(struct giver *giver, enum loss loss);

/* Pulls a function out of the bus, and puts it back. */
void function_remove(const char *bdf);
void function_restore(const char *bdf);

/* The address of an edu that the driver has, by its number; skips the test if there is none. */
const char *need_edu(unsigned int number);

/* A dma-buf of pages of a memfd; skips the test if the kernel makes none. */
int udmabuf_new(size_t length);

/* State of the importer (tests/importer). */
struct importer_args importer_state(int importer);

/* Has the importer map a dma-buf for the NVMe controller: 0 or -errno. */
int try_map_for_spare(int importer, int dma_buf, uint32_t flags);

/* Exports a part of a BAR: a dma-buf, or -errno. */
int try_export_bar(int fd, uint64_t offset, uint64_t length, uint32_t flags);

/* Has a queue copy, and waits until the device has refused it. */
void gpu_copy_fails(struct gpu_queue *queue, uint64_t to, uint64_t from, size_t length);

#endif
