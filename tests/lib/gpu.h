/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The test GPU through the driver: queues, packets, and the device's knobs (see
 * tests/devices/testgpu/MANUAL.md).
 */
#ifndef TESTS_GPU_H
#define TESTS_GPU_H

#include "alloc.h"
#include "device.h"

enum { GPU_VENDOR = 0x1234, GPU_DEVICE = 0x7e57 };

enum gpu_opcode {
	GPU_NOP = 1,
	GPU_COPY = 2,
	GPU_FILL = 3,
	GPU_LAUNCH = 4,
	GPU_FENCE_WRITE = 5,
	GPU_FENCE_WAIT = 6,
	GPU_TIMESTAMP = 7,
	GPU_INTERRUPT = 8,
};

enum gpu_kernel {
	GPU_COPY_BYTES = 1,
	GPU_INCREMENT_F32 = 3,
	GPU_SUM_F32 = 5,
	GPU_SPIN = 9,
	GPU_ATOMIC_ADD_U64 = 10,
	GPU_PROGRAM = 11,
};

enum gpu_code {
	GPU_NOT_PRESENT = 1,
	GPU_PERMISSION = 2,
	GPU_BUS = 6,
	GPU_BAD_OPCODE = 16,
	GPU_BAD_KERNEL = 20,
	GPU_TOO_LONG = 32,
	GPU_ENGINE_LOST = 34
};

/* Bits of GPU_NO_ACK. */
enum {
	NO_ACK_INVALIDATE = 1,
	NO_ACK_UNBIND = 2,
	NO_ACK_ENGINE_RESET = 4,
	NO_ACK_PAGING = 8,
};

/*
 * Where the addresses for programs end, and where those of the driver begin: on x86 in the middle;
 * on arm64, where programs have all of them, the driver has a TiB there.
 */
#define GPU_MIDDLE (1ULL << 47)
#ifdef __aarch64__
#define GPU_END (2 * GPU_MIDDLE)
#else
#define GPU_END GPU_MIDDLE
#endif

/* The engine that copies for the driver. */
enum { GPU_PAGING_ENGINE = 6 };

/* Registers that tests read and write behind the driver's back. */
enum gpu_register {
	GPU_FEATURES = 0x0010,
	GPU_RESET = 0x0100,
	GPU_VRAM_SIZE = 0x0018,
	GPU_TIME = 0x0078,
	GPU_ENGINE_RESET = 0x0120,
	GPU_ENGINE_BUSY = 0x0128,
	GPU_INT_ENABLE = 0x0208,
	GPU_INV_DONE = 0x0420,
	GPU_PAGING_DONE = 0x0620,
	/* Of the first engine; those of the next are so much further. */
	GPU_ENGINE_HOST_READ = 0x7000,
	GPU_ENGINE_VRAM_READ = 0x7010,
	GPU_ENGINE_STRIDE = 0x80,
	GPU_LOSE_INTERRUPTS = 0xa000,
	GPU_DELAY_NS = 0xa008,
	GPU_STUCK = 0xa028,
	GPU_NO_ACK = 0xa030,
	GPU_POST_NS = 0xa038,
	GPU_HOLD = 0xa040,
	GPU_UNBINDS = 0x8038,
	GPU_INVALIDATES = 0x8040,
	GPU_FAULTS = 0x8048,
	GPU_DOORBELL_WRITES = 0x8050,
	GPU_IGNORED_DOORBELLS = 0x8058,
	GPU_BAD_ACCESSES = 0x8060,
	GPU_LINK_BANDWIDTH = 0x9000,
};

enum { GPU_PACKETS = 64, GPU_BOTH = PINMAP_QUEUE_COPY | PINMAP_QUEUE_COMPUTE };

/**
 * struct gpu_queue - a queue that is mapped
 * @fd: its context
 * @args: what QUEUE_CREATE said
 * @ring: its packets
 * @fences: its fences
 * @doorbell: its doorbell
 * @written: packets written
 * @fence: value of the last fence asked for (fence 0)
 */
struct gpu_queue {
	int fd;
	struct pinmap_queue_create args;
	uint64_t (*ring)[8];
	volatile uint64_t *fences;
	volatile uint64_t *doorbell;
	uint64_t written;
	uint64_t fence;
};

/* The PCI address of the test GPU that the driver is bound to; skips the test if there is none. */
const char *need_gpu(void);

/* Opens the test GPU. */
int open_gpu(void);
/* The PCI address of the second one; skips the test if there is only one. */
const char *need_second_gpu(void);

/* Opens the second one; skips the test if there is only one. */
int open_second_gpu(void);

/* Maps memory at an offset that a call returned. */
void *map_at(int fd, uint64_t offset, size_t length);

int try_queue_create(int fd, uint32_t flags, uint32_t packets, struct pinmap_queue_create *args);
struct gpu_queue queue_new(int fd);
/* Unmaps a queue; destroys and unmaps it. */
void queue_unmap(const struct gpu_queue *queue);
void queue_delete(const struct gpu_queue *queue);
int try_queue_destroy(int fd, uint64_t queue);
int try_queue_notify(int fd, uint64_t queue, uint32_t fence, uint64_t value, int eventfd);

/* Write a packet; ring the doorbell for all that were written. */
void queue_push(struct gpu_queue *queue, uint64_t word0, uint64_t word1, uint64_t word2,
		uint64_t word3);
/* Writes a packet that adds @value to each of @count words, so many times, atomically. */
void queue_push_add(struct gpu_queue *queue, const volatile void *words, uint64_t count,
		    uint64_t value, uint64_t times);
void queue_ring(struct gpu_queue *queue);

/* Asks for a fence and an interrupt behind what was pushed, and rings. */
void queue_submit(struct gpu_queue *queue);
int try_queue_wait(const struct gpu_queue *queue, uint64_t milliseconds);
/* Submits a fence and waits for it. */
int try_queue_finish(struct gpu_queue *queue, uint64_t milliseconds);
/* Submits a fence and waits for it. If it is not reached in time, tells the state of the queue. */
#define queue_finish_within(queue, milliseconds) \
	queue_finish_at(__FILE__, __LINE__, queue, milliseconds)
#define queue_finish(queue) queue_finish_within(queue, slow(20000))
void queue_finish_at(const char *file, int line, struct gpu_queue *queue, uint64_t milliseconds);

/* Manages a range of addresses, or with PINMAP_MANAGE_ALL all of them. */
int try_manage(int fd, uint32_t flags, const void *addr, size_t length, struct pinmap_manage *args);

/* Moves managed memory to the device, or with PINMAP_PREFETCH_HOST home. */
int try_prefetch(int fd, uint32_t flags, const void *addr, size_t length,
		 struct pinmap_prefetch *args);

uint64_t gpu_launch(enum gpu_kernel kernel);
struct pinmap_queue_query queue_query(const struct gpu_queue *queue);

/* Waits until the queue has stopped; returns the code. */
uint32_t queue_stopped(const struct gpu_queue *queue);

/**
 * struct gpu_memory - memory of the driver's, mapped at the same address for CPU and device
 * @args: what ALLOC said
 * @addr: where it is
 */
struct gpu_memory {
	struct pinmap_alloc args;
	char *addr;
};

struct gpu_memory gpu_alloc(int fd, uint32_t flags, size_t length);

/* Have a queue fill memory with a byte, and copy it, and wait for it. */
void gpu_fill(struct gpu_queue *queue, uint64_t memory, size_t length, uint8_t byte);
void gpu_copy(struct gpu_queue *queue, uint64_t to, uint64_t from, size_t length);

/* Has a queue fill each page with a 64-bit word of its own: @first, @first + 1 and so on. */
void gpu_fill_pages(struct gpu_queue *queue, uint64_t memory, size_t pages, uint64_t first);
/* Asserts that pages are filled so. */
void check_pages(const void *memory, size_t pages, uint64_t first);

/* Bytes of VRAM that a program could allocate. */
uint64_t vram_free(int fd);

/* Reads or writes a register of the device, by its BAR in sysfs. */
uint64_t gpu_register(enum gpu_register offset);
void gpu_set_register(enum gpu_register offset, uint64_t value);

/* Reads or writes a register of the second test GPU. */
uint64_t second_gpu_register(enum gpu_register offset);
void second_gpu_set_register(enum gpu_register offset, uint64_t value);

/* Binds the device anew; called by tests that broke it. */
void gpu_rebind(void);

/*
 * Resets the function and switches it on again, but nobody is told: what is in VRAM is zeros then,
 * and otherwise the device works.
 */
void gpu_reset_behind(void);

#endif
