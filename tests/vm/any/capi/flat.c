// SPDX-License-Identifier: MIT OR Apache-2.0
/* libpinmap: a flat device, QEMU's edu. */
#define _GNU_SOURCE
#include "capi.h"
#include "kmsg.h"
#include "pins.h"
#include "sleep.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	LIVENESS = 0x04,
	FACTORIAL = 0x08,
	STATUS = 0x20,
	INTERRUPT_RAISE = 0x60,
	INTERRUPT_ACKNOWLEDGE = 0x64,
	DMA_SOURCE = 0x80,
	DMA_DESTINATION = 0x88,
	DMA_COUNT = 0x90,
	DMA_COMMAND = 0x98,
	BUFFER = 0x40000,
	/* how much of it moves at once */
	MOVED = 4096,
};

static uint64_t command(struct pinmap_mapped_bar *bar)
{
	uint64_t value;

	DONE(pinmap_bar_read64(bar, DMA_COMMAND, &value));
	return value;
}

static void transfer(struct pinmap_mapped_bar *bar, uint64_t from, uint64_t to, bool to_memory)
{
	DONE(pinmap_bar_write64(bar, DMA_SOURCE, from));
	DONE(pinmap_bar_write64(bar, DMA_DESTINATION, to));
	DONE(pinmap_bar_write64(bar, DMA_COUNT, MOVED));
	DONE(pinmap_bar_write64(bar, DMA_COMMAND, to_memory ? 3 : 1));
	CHECK(WAIT_FOR(5000, !(command(bar) & 1)));
}

TEST(edu_copies, .smoke = true)
{
	struct pinmap_device *device = capi_edu();
	struct pinmap_mapped_bar *bar = MADE(pinmap_bar_map(device, 0));
	char *memory = capi_pages(2);
	struct pinmap_memory *registered;

	for (size_t i = 0; i < PAGE; i++)
		memory[i] = (char)(i * 13);
	registered = MADE(pinmap_register(device, memory, 2 * PAGE, NULL));
	transfer(bar, capi_address(registered, 0), BUFFER, false);
	transfer(bar, BUFFER, capi_address(registered, PAGE), true);
	CHECK(!memcmp(memory, memory + PAGE, MOVED));
	DONE(pinmap_release(registered));
	pinmap_bar_unmap(bar);
	pinmap_close(device);
}

/* The IOMMU stops a device that writes where it may only read. */
TEST(read_only_is_enforced, .faults = true)
{
	struct pinmap_device *device = capi_edu();
	struct pinmap_mapped_bar *bar = MADE(pinmap_bar_map(device, 0));
	struct pinmap_memory_options options = {
		.size = sizeof(options), .flags = PINMAP_READ_ONLY,
	};
	char *memory = capi_pages(1);
	struct pinmap_memory *registered;
	int kmsg = kmsg_open();
	bool reported = false;

	memset(memory, 9, PAGE);
	registered = MADE(pinmap_register(device, memory, PAGE, &options));
	/* reports are rate-limited */
	for (int i = 0; i < 10 && !reported; i++) {
		transfer(bar, BUFFER, capi_address(registered, 0), true);
		reported = kmsg_wait_fault(kmsg, 600);
	}
	CHECK(reported);
	for (size_t i = 0; i < PAGE; i++)
		CHECK_EQ(memory[i], 9);
	DONE(pinmap_release(registered));
	pinmap_bar_unmap(bar);
	pinmap_close(device);
}

TEST(file_is_shared_with_the_device)
{
	struct pinmap_device *device = capi_edu();
	struct pinmap_mapped_bar *bar = MADE(pinmap_bar_map(device, 0));
	int fd = SYS(memfd_create("capi", 0));
	struct pinmap_memory *file;
	char content[PAGE];

	SYS(ftruncate(fd, 3 * PAGE));
	file = MADE(pinmap_register_file(device, fd, PAGE, 2 * PAGE, NULL));
	CHECK(!pinmap_address(file));
	memset(content, 0x42, sizeof(content));
	CHECK_EQ(SYS(pwrite(fd, content, PAGE, PAGE)), PAGE);
	transfer(bar, capi_address(file, 0), BUFFER, false);
	transfer(bar, BUFFER, capi_address(file, PAGE), true);
	memset(content, 0, sizeof(content));
	CHECK_EQ(SYS(pread(fd, content, PAGE, 2 * PAGE)), PAGE);
	for (size_t i = 0; i < MOVED; i++)
		CHECK_EQ(content[i], 0x42);
	DONE(pinmap_release(file));
	REFUSED(pinmap_register_file(device, fd, 1, PAGE, NULL), EINVAL, INVALID_INPUT, "register");
	REFUSED(pinmap_register_file(device, 1000, 0, PAGE, NULL), EBADF, INVALID_INPUT, "1000");
	close(fd);
	pinmap_bar_unmap(bar);
	pinmap_close(device);
}

TEST(memory_has_another_address)
{
	struct pinmap_device *device = capi_edu();
	struct pinmap_mapped_bar *bar = MADE(pinmap_bar_map(device, 0));
	struct pinmap_memory_options options = {
		.size = sizeof(options), .flags = PINMAP_AT_ADDRESS, .device_address = 0x10000000,
	};
	char *memory = capi_pages(2);
	long long pins = pins_held();
	struct pinmap_memory *registered = MADE(pinmap_register(device, memory, 2 * PAGE, NULL));
	struct pinmap_mapping *mapping = MADE(pinmap_map(registered, &options));
	uint64_t address;

	DONE(pinmap_mapping_address(mapping, &address));
	CHECK_EQ(address, 0x10000000);
	memset(memory, 3, PAGE);
	transfer(bar, address, BUFFER, false);
	transfer(bar, BUFFER, address + PAGE, true);
	CHECK(!memcmp(memory, memory + PAGE, MOVED));
	REFUSED(pinmap_map(registered, &options), EEXIST, ALREADY_EXISTS, "map");
	REFUSED(pinmap_release(registered), EBUSY, BUSY, "1 mappings");
	CHECK(strstr(pinmap_last_hint(), "pinmap_unmap"));
	CHECK_PINS(pins + 2);
	DONE(pinmap_unmap(mapping));
	DONE(pinmap_release(registered));
	CHECK_PINS(pins);
	/* With few address bits the device gets another address than the CPU. */
	options = (struct pinmap_memory_options){ .size = sizeof(options), .address_bits = 32 };
	registered = MADE(pinmap_register(device, memory, PAGE, &options));
	CHECK(capi_address(registered, PAGE - 1) < 1ull << 32);
	DONE(pinmap_release(registered));
	options.flags = PINMAP_SAME_ADDRESS;
	REFUSED(pinmap_register(device, memory, PAGE, &options), ENOSPC, NO_SPACE, "register");
	pinmap_bar_unmap(bar);
	pinmap_close(device);
}

TEST(registers)
{
	struct pinmap_device *device = capi_edu();
	struct pinmap_mapped_bar *bar = MADE(pinmap_bar_map(device, 0));
	uint32_t word, words[2];

	CHECK_EQ(pinmap_bar_length(bar), 1 << 20);
	DONE(pinmap_bar_write32(bar, LIVENESS, 0x12345678));
	DONE(pinmap_bar_read32(bar, LIVENESS, &word));
	CHECK_EQ(word, (uint32_t)~0x12345678);
	DONE(pinmap_bar_read_words(bar, 0, words, 2));
	CHECK_EQ(words[0], 0x010000ed);
	CHECK_EQ(words[1], (uint32_t)~0x12345678);
	words[0] = 1;
	DONE(pinmap_bar_write_words(bar, LIVENESS, words, 1));
	DONE(pinmap_bar_read32(bar, LIVENESS, &word));
	CHECK_EQ(word, (uint32_t)~1);
	DONE(pinmap_bar_flush(bar));
	REFUSED(pinmap_bar_read32(bar, 1 << 20, &word), EINVAL, INVALID_INPUT, "BAR 0");
	REFUSED(pinmap_bar_read32(bar, 2, &word), EINVAL, INVALID_INPUT, "BAR 0");
	REFUSED(pinmap_bar_read_words(bar, (1 << 20) - 4, words, 2), EINVAL, INVALID_INPUT,
		"BAR 0");
	REFUSED(pinmap_bar_read_words(bar, 0, NULL, 2), EINVAL, INVALID_INPUT, "NULL");
	DONE(pinmap_bar_read_words(bar, 0, NULL, 0));
	REFUSED(pinmap_bar_read32(bar, 0, NULL), EINVAL, INVALID_INPUT, "value is NULL");
	REFUSED(pinmap_bar_map(device, 5), ENOENT, NOT_FOUND, "BAR 5");
	REFUSED(pinmap_bar_map(device, 9), ENOENT, NOT_FOUND, "BAR 9");
	pinmap_bar_unmap(bar);
	pinmap_close(device);
}

TEST(interrupts)
{
	struct pinmap_device *device = capi_edu();
	struct pinmap_mapped_bar *bar = MADE(pinmap_bar_map(device, 0));
	struct pinmap_interrupt *interrupt = MADE(pinmap_interrupt_enable(device, 0));
	struct pollfd file = { .fd = DONE(pinmap_interrupt_fd(interrupt)), .events = POLLIN };
	uint64_t count = 0;

	REFUSED(pinmap_interrupt_wait(interrupt, 0, &count), ETIMEDOUT, TIMED_OUT, "interrupt");
	DONE(pinmap_bar_write32(bar, INTERRUPT_RAISE, 1));
	CHECK_EQ(SYS(poll(&file, 1, 30000)), 1);
	DONE(pinmap_interrupt_wait(interrupt, -1, &count));
	CHECK_EQ(count, 1);
	DONE(pinmap_bar_write32(bar, INTERRUPT_ACKNOWLEDGE, 1));
	REFUSED(pinmap_interrupt_enable(device, 0), EEXIST, ALREADY_EXISTS, "interrupt");
	REFUSED(pinmap_interrupt_enable(device, 1), ENOENT, NOT_FOUND, "interrupt");
	pinmap_interrupt_disable(interrupt);
	interrupt = MADE(pinmap_interrupt_enable(device, 0));
	pinmap_interrupt_disable(interrupt);
	pinmap_bar_unmap(bar);
	pinmap_close(device);
}

/* A flat device belongs to one program at a time. */
TEST(others_wait_for_the_owner)
{
	struct pinmap_device *device = capi_edu(), *other = capi_edu();
	struct pinmap_mapped_bar *bar = MADE(pinmap_bar_map(device, 0));
	struct pinmap_device_info info;

	DONE(pinmap_get_info(other, &info, sizeof(info)));
	CHECK((info.flags & PINMAP_DEVICE_INFO_OWNED) && !(info.flags & PINMAP_DEVICE_INFO_OWNER));
	CHECK_EQ(info.kind, PINMAP_DEVICE_FLAT);
	REFUSED(pinmap_bar_map(other, 0), EBUSY, BUSY, "BAR 0");
	REFUSED(pinmap_stream_create(device, NULL), EOPNOTSUPP, UNSUPPORTED, "queues");
	REFUSED(pinmap_alloc_vram(device, PAGE), EOPNOTSUPP, UNSUPPORTED, "");
	pinmap_bar_unmap(bar);
	pinmap_close(device);
	DONE(WAIT_FOR(5000, (bar = pinmap_bar_map(other, 0))) ? 0 : -1);
	pinmap_bar_unmap(bar);
	pinmap_close(other);
}

/* A program can have the system stay awake; otherwise it is told afterwards. */
TEST(sleep_is_told, .seconds = 60)
{
	struct pinmap_device *device;
	struct pinmap_memory *registered;
	struct pinmap_device_event event;

	need_sleep(quick_way);
	device = capi_edu();
	registered = MADE(pinmap_register(device, capi_pages(1), PAGE, NULL));
	DONE(pinmap_stay_awake(device, 1));
	CHECK_ERR(EBUSY, try_sleep(quick_way));
	DONE(pinmap_stay_awake(device, 0));
	CHECK_OK(try_sleep(quick_way));
	DONE(pinmap_next_event(device, 20000, &event, sizeof(event)));
	CHECK_EQ(event.event_type, PINMAP_EVENT_TYPE_RESUMED);
	DONE(pinmap_release(registered));
	pinmap_close(device);
}
