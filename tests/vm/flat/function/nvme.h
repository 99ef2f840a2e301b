/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * QEMU's nvme stands for functions other than edu: it has MSI-X with several vectors and a table in
 * its BAR that must not be mapped, a 64-bit BAR, and a reset. The tests drive it as far as to let
 * it identify itself.
 */
#ifndef TESTS_FUNCTION_NVME_H
#define TESTS_FUNCTION_NVME_H

#include "pci.h"

enum { NVME_CLASS = 0x010802 };
/* The length of the registers, behind which the BAR has the table of the interrupts. */
enum { NVME_REGISTERS = 0x2000 };
enum {
	VERSION = 0x08,
	CONFIG = 0x14,
	STATUS = 0x1c,
	ADMIN_SIZES = 0x24,
	SUBMISSION = 0x28,
	COMPLETION = 0x30
};

struct nvme {
	struct pci_device device;
	int fd;
	volatile char *bar;
	char *queues; /* submission in the first page, completion in the second */
	unsigned int tail;
};

/* Finds the first function for which @fits; false: there is none. */
bool find_function(bool (*fits)(const char *bdf), char bdf[16]);

struct nvme nvme_open(void);
void nvme_map(struct nvme *nvme);
void nvme_close(struct nvme *nvme);

uint32_t nvme_get(const struct nvme *nvme, unsigned int offset);
void nvme_set(const struct nvme *nvme, unsigned int offset, uint32_t value);

/* Starts the controller with its queues in registered memory. */
void nvme_start(struct nvme *nvme);
/* Lets the controller write its identity to a device address; returns its status, 0 for success. */
unsigned int nvme_identify(struct nvme *nvme, uint64_t device_addr);

#endif
