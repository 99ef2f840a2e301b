// SPDX-License-Identifier: MIT OR Apache-2.0
/* libpinmap: AMD's DMA core, on the model of it (tests/devices/xdma/XDMA.md). */
#define _GNU_SOURCE
#include "capi.h"
#include "pci.h"
#include "pins.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

enum {
	/* Registers of the design. */
	MAGIC = 0x00,
	REQUESTS = 0x08,
	FORBIDDEN = 0x0c,
	HOLD = 0x10,
	/* An address with an error of the card. */
	SLAVE_ERROR = 0x80000000u,
	TO_CARD = PINMAP_XDMA_TO_CARD,
	TO_HOST = PINMAP_XDMA_TO_HOST,
	/* No test waits that long. */
	PATIENCE = 60000,
};

static const struct pinmap_xdma_options polled = { .size = sizeof(polled), .polled = 1 };

static uint32_t design_read(const struct pinmap_device *device, uint64_t offset)
{
	struct pinmap_mapped_bar *bar = MADE(pinmap_bar_map(device, 0));
	uint32_t value;

	DONE(pinmap_bar_read32(bar, offset, &value));
	pinmap_bar_unmap(bar);
	return value;
}

static void design_write(const struct pinmap_device *device, uint64_t offset, uint32_t value)
{
	struct pinmap_mapped_bar *bar = MADE(pinmap_bar_map(device, 0));

	DONE(pinmap_bar_write32(bar, offset, value));
	DONE(pinmap_bar_flush(bar));
	pinmap_bar_unmap(bar);
}

/* Opens the card with streams, or the one with memory. Skips the test where there is none. */
static struct pinmap_device *card(bool streams)
{
	struct pinmap_node nodes[8];
	int count = DONE(pinmap_list(nodes, ARRAY_SIZE(nodes)));

	for (int i = 0; i < count && i < (int)ARRAY_SIZE(nodes); i++) {
		struct pinmap_xdma_info info;
		struct pinmap_device *device;

		if (nodes[i].vendor != 0x10ee || nodes[i].device != 0x9038)
			continue;
		device = MADE(pinmap_open(nodes[i].path));
		if (pinmap_xdma_get_info(device, &info, sizeof(info)))
			/* The test has it. */
			CHECK_EQ(errno, EBUSY);
		else if (info.channels[0].stream == streams)
			return device;
		pinmap_close(device);
	}
	SKIP("there is no card with the core");
}

static struct pinmap_xdma_channel *channel(struct pinmap_device *device, uint32_t direction)
{
	return MADE(pinmap_xdma_open(device, direction, 0, NULL));
}

/* Nothing that the manual forbids was done. */
static void close_card(struct pinmap_device *device)
{
	CHECK_EQ(design_read(device, FORBIDDEN), 0);
	pinmap_close(device);
}

static void run(struct pinmap_xdma_channel *channel, struct pinmap_memory *memory, size_t offset,
		size_t length, uint64_t address)
{
	size_t done = 0;

	DONE(pinmap_xdma_start(channel, memory, offset, length, address, 0));
	DONE(pinmap_xdma_wait(channel, -1, &done, NULL));
	CHECK_EQ(done, length);
}

static void *registered(struct pinmap_device *device, size_t pages, struct pinmap_memory **memory)
{
	char *bytes = capi_pages(pages);

	for (size_t i = 0; i < pages * PAGE; i++)
		bytes[i] = (char)(i * 13 + i / PAGE);
	*memory = MADE(pinmap_register(device, bytes, pages * PAGE, NULL));
	return bytes;
}

TEST(xdma_core_is_found)
{
	struct pinmap_device *device = card(false), *edu = capi_edu();
	struct pinmap_xdma_info info, older;
	struct pinmap_mapped_bar *bar;
	uint32_t identifier;

	DONE(pinmap_xdma_get_info(device, &info, sizeof(info)));
	CHECK_EQ(info.bar, 1);
	CHECK_EQ(info.channel_count, 4);
	for (uint32_t i = 0; i < info.channel_count; i++) {
		struct pinmap_xdma_channel_info *channel = &info.channels[i];

		CHECK_EQ(channel->direction, i < 2 ? TO_CARD : TO_HOST);
		CHECK_EQ(channel->number, i % 2);
		CHECK_EQ(channel->stream, 0);
		CHECK_EQ(channel->address_bits, 64);
		CHECK(channel->alignment && channel->granularity && !channel->reserved);
	}
	memset(&older, 0x55, sizeof(older));
	DONE(pinmap_xdma_get_info(device, &older, sizeof(older.bar)));
	CHECK(older.bar == 1 && older.channel_count == 0x55555555);
	/* Registers of the core and of the design. */
	bar = MADE(pinmap_bar_map(device, info.bar));
	DONE(pinmap_bar_read32(bar, 0x2000, &identifier));
	CHECK_EQ(identifier >> 16, 0x1fc2);
	pinmap_bar_unmap(bar);
	CHECK_EQ(design_read(device, MAGIC), 0x58444d41);
	REFUSED(pinmap_xdma_get_info(edu, &info, sizeof(info)), EINVAL, INVALID_INPUT, "core");
	REFUSED(pinmap_xdma_open(edu, TO_CARD, 0, NULL), EINVAL, INVALID_INPUT, "core");
	pinmap_close(edu);
	close_card(device);
}

TEST(xdma_bytes_go_there_and_back)
{
	struct pinmap_device *device = card(false);
	const struct pinmap_xdma_options *options[] = { NULL, &polled };
	long long pins = pins_held();
	struct pinmap_memory *source, *target = MADE(pinmap_alloc(device, 16 * PAGE, NULL));
	char *sent = registered(device, 16, &source), *received = pinmap_address(target);

	for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
		struct pinmap_xdma_channel *to, *from;

		to = MADE(pinmap_xdma_open(device, TO_CARD, 1, options[i]));
		from = MADE(pinmap_xdma_open(device, TO_HOST, 1, options[i]));
		memset(received, 0, 16 * PAGE);
		run(to, source, 0, 16 * PAGE, 0x1000);
		run(from, target, 3, 50000, 0x1000 + 3);
		CHECK(!memcmp(received + 3, sent + 3, 50000));
		CHECK(!received[2] && !received[50003]);
		/* Bytes of the middle to the beginning of the card's memory. */
		run(to, source, 7 * PAGE + 1, 100, 1);
		run(from, target, 1, 100, 1);
		CHECK(!memcmp(received + 1, sent + 7 * PAGE + 1, 100));
		pinmap_xdma_close(from);
		pinmap_xdma_close(to);
	}
	DONE(pinmap_release(target));
	DONE(pinmap_release(source));
	CHECK_PINS(pins);
	close_card(device);
}

TEST(xdma_memory_in_flight_stays)
{
	struct pinmap_device *device = card(false);
	struct pinmap_xdma_channel *to = channel(device, TO_CARD);
	struct pinmap_memory *memory;

	registered(device, 2, &memory);
	design_write(device, HOLD, 1);
	DONE(pinmap_xdma_start(to, memory, 0, PAGE, 0, 0));
	REFUSED(pinmap_release(memory), EBUSY, BUSY, "1 transfers have the memory");
	CHECK(strstr(pinmap_last_hint(), "wait for them"));
	REFUSED(pinmap_xdma_wait(to, 0, NULL, NULL), ETIMEDOUT, TIMED_OUT, "H2C 0");
	REFUSED(pinmap_xdma_wait(to, 20, NULL, NULL), ETIMEDOUT, TIMED_OUT, "in time");
	REFUSED(pinmap_xdma_start(to, memory, 0, PAGE, 0, 0), EBUSY, BUSY, "busy");
	REFUSED(pinmap_xdma_open(device, TO_CARD, 0, NULL), EBUSY, BUSY, "busy");
	design_write(device, HOLD, 0);
	DONE(pinmap_xdma_wait(to, PATIENCE, NULL, NULL));
	REFUSED(pinmap_xdma_wait(to, -1, NULL, NULL), EINVAL, INVALID_INPUT, "no transfer");
	/* Closing a channel gives back what it has. */
	DONE(pinmap_xdma_start(to, memory, 0, PAGE, 0, 0));
	pinmap_xdma_close(to);
	DONE(pinmap_release(memory));
	pinmap_xdma_close(NULL);
	close_card(device);
}

static void *wait_for_the_end(void *argument)
{
	REFUSED(pinmap_xdma_wait(argument, -1, NULL, NULL), ECANCELED, OTHER, "stopped");
	return NULL;
}

/* Another thread stops a transfer that one waits for. */
TEST(xdma_transfer_is_stopped)
{
	struct pinmap_device *device = card(false);
	struct pinmap_xdma_options short_ones = { .size = sizeof(short_ones), .piece = 64 };

	for (int i = 0; i < 2; i++) {
		struct pinmap_xdma_channel *to;
		struct pinmap_memory *memory;
		pthread_t thread;

		short_ones.polled = i;
		to = MADE(pinmap_xdma_open(device, TO_CARD, 0, &short_ones));
		registered(device, 1, &memory);
		design_write(device, HOLD, 1);
		DONE(pinmap_xdma_start(to, memory, 0, PAGE, 0, 0));
		CHECK_EQ(pthread_create(&thread, NULL, wait_for_the_end, to), 0);
		DONE(pinmap_xdma_stop(to));
		design_write(device, HOLD, 0);
		CHECK_EQ(pthread_join(thread, NULL), 0);
		run(to, memory, 0, PAGE, 0);
		DONE(pinmap_release(memory));
		pinmap_xdma_close(to);
	}
	close_card(device);
}

TEST(xdma_errors_are_named)
{
	struct pinmap_device *device = card(false);
	struct pinmap_xdma_channel *to = channel(device, TO_CARD);
	struct pinmap_memory *memory;

	registered(device, 1, &memory);
	DONE(pinmap_xdma_start(to, memory, 0, 64, SLAVE_ERROR, 0));
	REFUSED(pinmap_xdma_wait(to, -1, NULL, NULL), EIO, IO,
		"H2C 0 has the status 0x8000: write_error 1");
	run(to, memory, 0, 64, 0);
	DONE(pinmap_release(memory));
	pinmap_xdma_close(to);
	close_card(device);
}

TEST(xdma_bad_input_is_refused)
{
	struct pinmap_device *device = card(false), *other = card(true);
	struct pinmap_xdma_options options = { .size = sizeof(options), .piece = 100 };
	struct pinmap_memory_options read_only = {
		.size = sizeof(read_only), .flags = PINMAP_READ_ONLY,
	};
	struct pinmap_xdma_channel *to = channel(device, TO_CARD), *from, *stream;
	struct pinmap_memory *memory, *readable, *foreign;

	from = channel(device, TO_HOST);
	stream = channel(other, TO_CARD);
	registered(device, 1, &memory);
	readable = MADE(pinmap_register(device, capi_pages(1), PAGE, &read_only));
	foreign = MADE(pinmap_alloc(other, PAGE, NULL));
	REFUSED(pinmap_xdma_start(to, memory, 1, PAGE, 0, 0), EINVAL, INVALID_INPUT, "none of");
	REFUSED(pinmap_xdma_start(to, memory, 0, 0, 0, 0), EINVAL, INVALID_INPUT, "none of");
	REFUSED(pinmap_xdma_start(to, memory, 2, SIZE_MAX, 0, 0), EINVAL, INVALID_INPUT, "bytes");
	REFUSED(pinmap_xdma_start(to, memory, 0, 8, UINT64_MAX, 0), EINVAL, INVALID_INPUT, "64");
	REFUSED(pinmap_xdma_start(to, memory, 0, 8, 0, 4), EINVAL, INVALID_INPUT, "flags 0x4");
	REFUSED(pinmap_xdma_start(to, NULL, 0, 8, 0, 0), EINVAL, INVALID_INPUT, "memory is NULL");
	REFUSED(pinmap_xdma_start(to, foreign, 0, 8, 0, 0), EINVAL, INVALID_INPUT, "memory is of");
	REFUSED(pinmap_xdma_start(from, readable, 0, 8, 0, 0), EINVAL, INVALID_INPUT, "only read");
	REFUSED(pinmap_xdma_start(stream, foreign, 0, 8, 8, 0), EINVAL, INVALID_INPUT, "a stream");
	REFUSED(pinmap_xdma_open(device, 2, 0, NULL), EINVAL, INVALID_INPUT, "direction 2");
	REFUSED(pinmap_xdma_open(device, TO_HOST, 2, NULL), EINVAL, INVALID_INPUT, "C2H 2");
	REFUSED(pinmap_xdma_open(device, TO_HOST, 1, &options), EINVAL, INVALID_INPUT, "64");
	options = (struct pinmap_xdma_options){ .size = sizeof(options), .polled = 2 };
	REFUSED(pinmap_xdma_open(device, TO_HOST, 1, &options), EINVAL, INVALID_INPUT, "polled");
	REFUSED(pinmap_xdma_user_interrupt(device, 16), EINVAL, INVALID_INPUT, "0 to 15");
	/* Nothing was begun, and no memory is kept. */
	DONE(pinmap_release(readable));
	DONE(pinmap_release(foreign));
	run(to, memory, 0, PAGE, 0);
	DONE(pinmap_release(memory));
	pinmap_xdma_close(stream);
	pinmap_xdma_close(from);
	pinmap_xdma_close(to);
	close_card(other);
	close_card(device);
}

/* An event loop polls the file of the receiving channel. */
TEST(xdma_packets_have_ends)
{
	struct pinmap_device *device = card(true);
	struct pinmap_xdma_channel *to = channel(device, TO_CARD);
	struct pinmap_xdma_channel *from = channel(device, TO_HOST);
	struct pollfd file = { .fd = DONE(pinmap_xdma_fd(from)), .events = POLLIN };
	struct pinmap_memory *source, *target = MADE(pinmap_alloc(device, 4 * PAGE, NULL));
	char *sent = registered(device, 4, &source), *received = pinmap_address(target);
	size_t length;
	int ends;

	for (int round = 0; round < 20; round++) {
		DONE(pinmap_xdma_start(from, target, 0, 4 * PAGE, 0, 0));
		/* A packet of two transfers. */
		DONE(pinmap_xdma_start(to, source, 0, 640, 0, PINMAP_XDMA_MORE));
		DONE(pinmap_xdma_wait(to, -1, &length, &ends));
		CHECK(length == 640 && !ends);
		DONE(pinmap_xdma_start(to, source, 640, 1000, 0, 0));
		DONE(pinmap_xdma_wait(to, -1, &length, &ends));
		CHECK(length == 1000 && ends);
		do
			CHECK_EQ(SYS(poll(&file, 1, PATIENCE)), 1);
		while (pinmap_xdma_wait(from, 0, &length, &ends) && errno == ETIMEDOUT);
		CHECK(length == 1640 && ends && !memcmp(received, sent, 1640));
	}
	pinmap_xdma_close(to);
	to = MADE(pinmap_xdma_open(device, TO_CARD, 0, &polled));
	REFUSED(pinmap_xdma_fd(to), EOPNOTSUPP, UNSUPPORTED, "polled");
	pinmap_xdma_close(to);
	pinmap_xdma_close(from);
	DONE(pinmap_release(target));
	DONE(pinmap_release(source));
	close_card(device);
}

TEST(xdma_ring_receives_without_a_pause)
{
	struct pinmap_device *device = card(true);
	struct pinmap_xdma_channel *to = channel(device, TO_CARD);
	struct pinmap_xdma_channel *from = channel(device, TO_HOST);
	struct pollfd file = { .fd = DONE(pinmap_xdma_fd(from)), .events = POLLIN };
	struct pinmap_memory *source, *ring = MADE(pinmap_alloc(device, PAGE, NULL));
	char *sent = registered(device, 1, &source), *blocks = pinmap_address(ring);
	size_t offset, length;
	int ends;

	DONE(pinmap_xdma_receive(from, ring, PAGE / 4));
	for (size_t packet = 1; packet < PAGE; packet += 123) {
		size_t received = 0;

		DONE(pinmap_xdma_start(to, source, 0, packet, 0, 0));
		for (ends = 0; !ends;) {
			if (pinmap_xdma_next(from, 0, &offset, &length, &ends)) {
				CHECK_EQ(errno, ETIMEDOUT);
				CHECK_EQ(SYS(poll(&file, 1, PATIENCE)), 1);
				continue;
			}
			CHECK(received + length <= packet);
			CHECK(!memcmp(blocks + offset, sent + received, length));
			received += length;
			DONE(pinmap_xdma_give_back(from));
		}
		CHECK_EQ(received, packet);
		DONE(pinmap_xdma_wait(to, -1, NULL, NULL));
	}
	REFUSED(pinmap_xdma_give_back(from), EINVAL, INVALID_INPUT, "no block");
	REFUSED(pinmap_xdma_next(from, 20, NULL, NULL, NULL), ETIMEDOUT, TIMED_OUT, "C2H 0");
	REFUSED(pinmap_xdma_receive(from, ring, 64), EBUSY, BUSY, "busy");
	REFUSED(pinmap_xdma_receive(to, ring, 64), EINVAL, INVALID_INPUT, "no ring");
	REFUSED(pinmap_release(ring), EBUSY, BUSY, "1 transfers");
	DONE(pinmap_xdma_stop(from));
	run(to, source, 0, 64, 0);
	DONE(pinmap_xdma_wait(from, -1, NULL, NULL));
	DONE(pinmap_release(ring));
	DONE(pinmap_release(source));
	pinmap_xdma_close(from);
	pinmap_xdma_close(to);
	close_card(device);
}

static void *take_away(void *bdf)
{
	pci_unbind(bdf);
	return NULL;
}

TEST(xdma_gone_card_gives_memory_back)
{
	struct pinmap_device *device = card(false);
	struct pinmap_xdma_options options = { .size = sizeof(options), .polled = 1 };
	struct pinmap_xdma_channel *to = channel(device, TO_CARD);
	struct pinmap_xdma_channel *polled = MADE(pinmap_xdma_open(device, TO_HOST, 1, &options));
	struct pinmap_device_event event = { 0 };
	struct pinmap_device_info info;
	struct pinmap_memory *memory;
	pthread_t thread;

	registered(device, 1, &memory);
	design_write(device, HOLD, 1);
	DONE(pinmap_xdma_start(to, memory, 0, PAGE, 0, 0));
	DONE(pinmap_xdma_start(polled, memory, 0, PAGE, 0, 0));
	DONE(pinmap_get_info(device, &info, sizeof(info)));
	CHECK_EQ(pthread_create(&thread, NULL, take_away, info.pci), 0);
	/* Until then a register may be there, or may not. */
	while (event.event_type != PINMAP_EVENT_TYPE_GONE)
		DONE(pinmap_next_event(device, -1, &event, sizeof(event)));
	REFUSED(pinmap_xdma_stop(to), ENODEV, GONE, "gone");
	REFUSED(pinmap_xdma_wait(to, -1, NULL, NULL), ENODEV, GONE, "gone");
	REFUSED(pinmap_xdma_start(to, memory, 0, PAGE, 0, 0), ENODEV, GONE, "gone");
	REFUSED(pinmap_xdma_wait(polled, 0, NULL, NULL), ENODEV, GONE, "gone");
	DONE(pinmap_release(memory));
	pinmap_xdma_close(to);
	pinmap_xdma_close(polled);
	pinmap_close(device);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	pci_bind(info.pci);
	pci_adopt(info.pci);
	close_card(card(false));
}

TEST(xdma_user_interrupts_come)
{
	struct pinmap_device *device = card(false);
	struct pinmap_interrupt *third = MADE(pinmap_xdma_user_interrupt(device, 3));
	struct pollfd file = { .fd = DONE(pinmap_interrupt_fd(third)), .events = POLLIN };
	uint64_t count;

	REFUSED(pinmap_xdma_user_interrupt(device, 3), EEXIST, ALREADY_EXISTS, "interrupt");
	for (int round = 0; round < 3; round++) {
		design_write(device, REQUESTS, 1 << 3);
		CHECK_EQ(SYS(poll(&file, 1, PATIENCE)), 1);
		DONE(pinmap_interrupt_wait(third, -1, &count));
		CHECK_EQ(count, 1);
		design_write(device, REQUESTS, 0);
	}
	pinmap_interrupt_disable(third);
	pinmap_interrupt_disable(MADE(pinmap_xdma_user_interrupt(device, 3)));
	close_card(device);
}
