/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * QEMU's edu, driven through its BAR.
 *
 * It has a buffer of 4 KiB and moves up to that much between it and memory, about 100 ms after it
 * was told to, at once. Of a larger page it moves the beginning, and pattern_is() looks at no more
 * of it. Until then the transfer is "in flight": that is when most tests pull the memory away.
 */
#ifndef TESTS_EDU_H
#define TESTS_EDU_H

#include "device.h"

#include <pthread.h>

enum edu_direction {
	EDU_READS = 0, /* memory to device */
	EDU_WRITES = 1, /* device to memory */
};

enum {
	EDU_IDENTITY = 0x00,
	EDU_LIVENESS = 0x04,
	EDU_FACTORIAL = 0x08,
	EDU_STATUS = 0x20,
	EDU_IRQ_STATUS = 0x24,
	EDU_IRQ_RAISE = 0x60,
	EDU_IRQ_ACK = 0x64,
};

/* The longest time, in milliseconds, between the order and the transfer. */
enum { EDU_MS = 150 };

/**
 * struct edu - the device of one context
 * @fd: the context
 * @bar: its registers
 * @thread: repeats transfers
 * @stop: tells it to end
 * @target: where it writes
 * @transfers: how many it has done
 */
struct edu {
	int fd;
	volatile char *bar;
	pthread_t thread;
	volatile bool stop;
	uint64_t target;
	volatile unsigned int transfers;
};

/* Maps the registers, which makes the context the device's owner. */
struct edu edu_open(int fd);
void edu_close(struct edu *edu);

uint32_t edu_register(const struct edu *edu, unsigned int offset);
void edu_set_register(const struct edu *edu, unsigned int offset, uint32_t value);

/* Gives the order for a transfer; @irq: with an interrupt at its end. */
void edu_start(const struct edu *edu, enum edu_direction direction, uint64_t device_addr,
	       size_t length, bool irq);
void edu_wait(const struct edu *edu);

/*
 * Waits for the end of a transfer of any owner: the function cannot be reset, and the next owner
 * would make it a bus master again.
 */
void edu_settle(const char *bdf);
bool edu_busy(const struct edu *edu);

/* Waits for the end of a transfer; returns whether it was in flight still when this was called. */
bool edu_finish(const struct edu *edu);

/* Make a transfer between memory and the device's buffer, and wait for its end. */
void edu_reads(const struct edu *edu, uint64_t device_addr, size_t length);
void edu_writes(const struct edu *edu, uint64_t device_addr, size_t length);

/* Fills the device's buffer with a pattern, through a page registered for the moment. */
void edu_load(const struct edu *edu, unsigned char seed);
/* Reads the device's buffer, through a page registered for the moment. */
void edu_store(const struct edu *edu, char buffer[PAGE]);

/* Lets the device write one page again and again until edu_repeat_end(). */
void edu_repeat(struct edu *edu, uint64_t device_addr);
void edu_repeat_end(struct edu *edu);

/*
 * Fills memory with a pattern in which no two bytes near each other are the same and no page looks
 * like zeros.
 */
void pattern_fill(void *memory, size_t length, unsigned char seed);
bool pattern_is(const void *memory, size_t length, unsigned char seed);
bool bytes_are(const void *memory, size_t length, unsigned char byte);

/*
 * Asserts that the device can write and read this page: its bytes arrive, and the CPU's bytes reach
 * it.
 */
#define CHECK_REACHES(...) check_reaches(__FILE__, __LINE__, __VA_ARGS__)
void check_reaches(const char *file, int line, const struct edu *edu, uint64_t device_addr,
		   void *memory, size_t length);

#endif
