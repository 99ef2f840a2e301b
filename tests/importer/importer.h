/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The interface of /dev/importer, the other driver: one dma-buf for each open file. */
#ifndef IMPORTER_H
#define IMPORTER_H

#include <linux/ioctl.h>
#include <linux/types.h>

enum importer_flags {
	IMPORTER_DYNAMIC = 1, /* the importer can be told to let go */
	IMPORTER_WRITE = 2, /* the device writes */
	IMPORTER_LAZY = 4, /* when it is told to let go it waits for IMPORTER_UNMAP */
	IMPORTER_PEER = 8, /* it is the PCI function @offset, and takes memory of devices */
};

/**
 * struct importer_args - arguments of all calls
 * @fd: MAP, LOCK: the dma-buf; EXPORT: returns one whose memory may move at any time
 * @flags: MAP: enum importer_flags
 * @offset: LOAD, STORE: a byte of the memory, by the addresses that the device has;
 *          MAP with PEER, HOLD, RESET, ERROR, SLEEP: the PCI function,
 *          domain << 16 | bus << 8 | device << 3 | function;
 *          LOCK: an eventfd that is signalled once the lock of the dma-buf @fd is held, which it is
 *          until a signal comes
 * @value: LOAD, STORE: the byte;
 *         HOLD: how many milliseconds to have the function's device lock;
 *         RESET: how many milliseconds the reset takes of which its driver is told, unless a signal
 *         comes;
 *         ERROR: the state in which an error on the bus left the function (pci_channel_state_t),
 *         then the driver's answer (pci_ers_result_t; 0: it cannot be told);
 *         SLEEP: for how many milliseconds the system sleeps, as its driver is told, unless a
 *         signal comes; then the errno with which the driver refuses
 * @out_length: STATE: bytes that are mapped
 * @out_entries: STATE: in how many pieces they are mapped
 * @out_told: STATE: how often the importer was told to let go
 */
struct importer_args {
	__s32 fd;
	__u32 flags;
	__u64 offset;
	__u64 value;
	__u64 out_length;
	__u32 out_entries;
	__u32 out_told;
};

#define IMPORTER_MAP _IOWR('I', 1, struct importer_args)
#define IMPORTER_UNMAP _IOWR('I', 2, struct importer_args)
#define IMPORTER_STATE _IOWR('I', 3, struct importer_args)
#define IMPORTER_LOAD _IOWR('I', 4, struct importer_args)
#define IMPORTER_STORE _IOWR('I', 5, struct importer_args)
#define IMPORTER_BEGIN _IOWR('I', 6, struct importer_args)
#define IMPORTER_END _IOWR('I', 7, struct importer_args)
#define IMPORTER_HOLD _IOWR('I', 8, struct importer_args)
#define IMPORTER_RESET _IOWR('I', 9, struct importer_args)
#define IMPORTER_ERROR _IOWR('I', 10, struct importer_args)
#define IMPORTER_LOCK _IOWR('I', 11, struct importer_args)
#define IMPORTER_SLEEP _IOWR('I', 12, struct importer_args)
#define IMPORTER_EXPORT _IOWR('I', 13, struct importer_args)

#endif
