// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "edu.h"

#include "pci.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	DMA_SOURCE = 0x80,
	DMA_TARGET = 0x88,
	DMA_LENGTH = 0x90,
	DMA_COMMAND = 0x98,
};

enum { DMA_RUN = 1 << 0, DMA_TO_MEMORY = 1 << 1, DMA_IRQ = 1 << 2 };
enum { BUFFER = 0x40000, BUFFER_SIZE = 4096, IDENTITY_LOW = 0xed };

/* Returns how many of so many bytes the device moves: of a large page the first 4 KiB. */
static size_t moved(size_t length)
{
	return length > BUFFER_SIZE && length <= PAGE ? BUFFER_SIZE : length;
}

struct edu edu_open(int fd)
{
	struct pinmap_info info = get_info(fd);
	struct edu edu = { .fd = fd };

	if (info.out_kind == PINMAP_KIND_PAGED)
		SKIP("needs a device whose registers a program has");
	edu.bar = SYS(
		mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, info.out_bars[0].offset));
	CHECK_EQ(edu_register(&edu, EDU_IDENTITY) & 0xff, IDENTITY_LOW);
	/* a transfer of the previous owner may be in flight still */
	edu_wait(&edu);
	return edu;
}

void edu_close(struct edu *edu)
{
	SYS(munmap((void *)edu->bar, PAGE));
	edu->bar = NULL;
}

uint32_t edu_register(const struct edu *edu, unsigned int offset)
{
	return *(volatile uint32_t *)(edu->bar + offset);
}

void edu_set_register(const struct edu *edu, unsigned int offset, uint32_t value)
{
	*(volatile uint32_t *)(edu->bar + offset) = value;
}

/* Writes 64 bits; a 32-bit program cannot do that at once, and its addresses do not need it. */
static void set_long(const struct edu *edu, unsigned int offset, uint64_t value)
{
	*(volatile uintptr_t *)(edu->bar + offset) = value;
}

bool edu_busy(const struct edu *edu)
{
	return edu_register(edu, DMA_COMMAND) & DMA_RUN;
}

void edu_settle(const char *bdf)
{
	int file = SYS(open(pci_path(bdf, "resource0"), O_RDWR | O_CLOEXEC));
	struct edu edu = { .bar = SYS(
				   mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) };

	edu_wait(&edu);
	edu_close(&edu);
	close(file);
}

void edu_wait(const struct edu *edu)
{
	if (!WAIT_FOR(3000, !edu_busy(edu)))
		FAIL("the device does not end its transfer");
}

bool edu_finish(const struct edu *edu)
{
	bool busy = edu_busy(edu);

	edu_wait(edu);
	return busy;
}

void edu_start(const struct edu *edu, enum edu_direction direction, uint64_t device_addr,
	       size_t length, bool irq)
{
	uint32_t command =
		DMA_RUN | (direction == EDU_WRITES ? DMA_TO_MEMORY : 0) | (irq ? DMA_IRQ : 0);

	/* the device ignores orders while it is busy */
	CHECK(!edu_busy(edu));
	length = moved(length);
	CHECK(length <= BUFFER_SIZE && (uintptr_t)device_addr == device_addr);
	set_long(edu, DMA_SOURCE, direction == EDU_WRITES ? BUFFER : device_addr);
	set_long(edu, DMA_TARGET, direction == EDU_WRITES ? device_addr : BUFFER);
	set_long(edu, DMA_LENGTH, length);
	set_long(edu, DMA_COMMAND, command);
}

void edu_reads(const struct edu *edu, uint64_t device_addr, size_t length)
{
	edu_start(edu, EDU_READS, device_addr, length, false);
	edu_wait(edu);
}

void edu_writes(const struct edu *edu, uint64_t device_addr, size_t length)
{
	edu_start(edu, EDU_WRITES, device_addr, length, false);
	edu_wait(edu);
}

static char *bounce(void)
{
	return SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
}

void edu_load(const struct edu *edu, unsigned char seed)
{
	char *page = bounce();
	struct registration registration = register_memory(edu->fd, page, PAGE, 0);

	pattern_fill(page, PAGE, seed);
	edu_reads(edu, registration.device_addr, PAGE);
	release(edu->fd, registration.handle);
	munmap(page, PAGE);
}

void edu_store(const struct edu *edu, char buffer[PAGE])
{
	char *page = bounce();
	struct registration registration = register_memory(edu->fd, page, PAGE, WRITE);

	edu_writes(edu, registration.device_addr, PAGE);
	release(edu->fd, registration.handle);
	for (size_t at = 0; at < PAGE; at += BUFFER_SIZE)
		memcpy(buffer + at, page, BUFFER_SIZE);
	munmap(page, PAGE);
}

static void *repeat(void *argument)
{
	struct edu *edu = argument;

	while (!edu->stop) {
		edu_writes(edu, edu->target, PAGE);
		edu->transfers++;
	}
	return NULL;
}

void edu_repeat(struct edu *edu, uint64_t device_addr)
{
	edu->stop = false;
	edu->transfers = 0;
	edu->target = device_addr;
	CHECK_OK(-pthread_create(&edu->thread, NULL, repeat, edu));
}

void edu_repeat_end(struct edu *edu)
{
	edu->stop = true;
	CHECK_OK(-pthread_join(edu->thread, NULL));
}

static unsigned char pattern_byte(size_t at, unsigned char seed)
{
	return (at * 7 + at / 256 * 13 + seed) | 1;
}

void pattern_fill(void *memory, size_t length, unsigned char seed)
{
	unsigned char *bytes = memory;

	for (size_t i = 0; i < length; i++)
		bytes[i] = pattern_byte(i, seed);
}

bool pattern_is(const void *memory, size_t length, unsigned char seed)
{
	const unsigned char *bytes = memory;

	for (size_t i = 0; i < moved(length); i++)
		if (bytes[i] != pattern_byte(i, seed))
			return false;
	return true;
}

bool bytes_are(const void *memory, size_t length, unsigned char byte)
{
	const unsigned char *bytes = memory;

	for (size_t i = 0; i < length; i++)
		if (bytes[i] != byte)
			return false;
	return true;
}

void check_reaches(const char *file, int line, const struct edu *edu, uint64_t device_addr,
		   void *memory, size_t length)
{
	char buffer[PAGE];

	pattern_fill(memory, length, 0x31);
	edu_reads(edu, device_addr, length);
	edu_store(edu, buffer);
	if (!pattern_is(buffer, length, 0x31))
		test_fail(file, line, "the device does not read what the CPU wrote");
	memset(memory, 0, length);
	edu_writes(edu, device_addr, length);
	if (!pattern_is(memory, length, 0x31))
		test_fail(file, line, "the CPU does not read what the device wrote");
}
