// SPDX-License-Identifier: MIT OR Apache-2.0
/* libpinmap: what does not depend on the kind of device. */
#define _GNU_SOURCE
#include "capi.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct pinmap_device *capi_edu(void)
{
	struct pinmap_device *device = pinmap_find(0x1234, 0x11e8);

	if (!device && pinmap_last_error_kind() == PINMAP_ERROR_KIND_NOT_FOUND)
		SKIP("there is no edu");
	return MADE(device);
}

struct pinmap_device *capi_gpu(void)
{
	struct pinmap_device *device = pinmap_find_accelerator();

	if (!device && pinmap_last_error_kind() == PINMAP_ERROR_KIND_NOT_FOUND)
		SKIP("there is no accelerator");
	return MADE(device);
}

struct pinmap_device *capi_any(void)
{
	return MADE(pinmap_open(NULL));
}

char *capi_pages(size_t count)
{
	return SYS(mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			0));
}

uint64_t capi_address(const struct pinmap_memory *memory, size_t offset)
{
	uint64_t address;

	DONE(pinmap_device_address(memory, offset, &address));
	return address;
}

TEST(devices, .smoke = true)
{
	struct pinmap_node nodes[8] = { 0 };
	int count = DONE(pinmap_list(nodes, ARRAY_SIZE(nodes)));

	CHECK(count >= 1);
	CHECK_EQ(DONE(pinmap_list(NULL, 0)), count);
	for (int i = 0; i < count; i++) {
		struct pinmap_device *by_path = MADE(pinmap_open(nodes[i].path));
		struct pinmap_device *by_pci = MADE(pinmap_open_pci(nodes[i].pci));
		struct pinmap_device_info info, same;

		DONE(pinmap_get_info(by_path, &info, sizeof(info)));
		DONE(pinmap_get_info(by_pci, &same, sizeof(same)));
		CHECK(!strcmp(info.pci, nodes[i].pci) && !strcmp(same.pci, nodes[i].pci));
		CHECK_EQ(info.vendor, nodes[i].vendor);
		CHECK_EQ(info.device, nodes[i].device);
		CHECK(info.aperture_last > info.aperture_first && info.page_sizes & PAGE);
		CHECK(info.flags & PINMAP_DEVICE_INFO_COHERENT);
		pinmap_close(by_pci);
		pinmap_close(by_path);
	}
	CHECK(pinmap_version()[0] == '0');
}

/* A program that was compiled before the structure grew, and one after it. */
TEST(answers_fit_the_program)
{
	struct pinmap_device *device = capi_any();
	struct {
		struct pinmap_device_info info;
		uint64_t more[2];
	} newer;
	struct pinmap_device_info older;

	memset(&newer, 0x55, sizeof(newer));
	memset(&older, 0x55, sizeof(older));
	DONE(pinmap_get_info(device, &newer.info, sizeof(newer)));
	DONE(pinmap_get_info(device, &older, offsetof(struct pinmap_device_info, memlock_limit)));
	CHECK(newer.more[0] == 0 && newer.more[1] == 0);
	CHECK_EQ(older.aperture_last, newer.info.aperture_last);
	CHECK_EQ(older.memlock_limit, 0x5555555555555555);
	REFUSED(pinmap_get_info(device, &older, 0), EINVAL, INVALID_INPUT, "no room");
	pinmap_close(device);
}

TEST(options_of_a_newer_program)
{
	struct pinmap_device *device = capi_any();
	struct {
		struct pinmap_memory_options options;
		uint64_t more;
	} newer = { .options.size = sizeof(newer) };
	char *memory = capi_pages(1);

	DONE(pinmap_release(MADE(pinmap_register(device, memory, PAGE, &newer.options))));
	newer.more = 1;
	REFUSED(pinmap_register(device, memory, PAGE, &newer.options), E2BIG, INVALID_INPUT,
		"this library knows 24 bytes");
	CHECK(strstr(pinmap_last_hint(), "newer"));
	newer.options.size = 0;
	REFUSED(pinmap_register(device, memory, PAGE, &newer.options), EINVAL, INVALID_INPUT,
		"size of 0");
	pinmap_close(device);
}

/* The device can be opened whatever the limit is; what it then refuses names the limit. */
TEST(limit_of_locked_memory)
{
	struct pinmap_device_info info;
	struct pinmap_device *gpu = capi_gpu();

	DONE(pinmap_get_info(gpu, &info, sizeof(info)));
	pinmap_close(gpu);
	set_memlock(0);
	become_user(true);
	gpu = MADE(pinmap_open_pci(info.pci));
	REFUSED(pinmap_stream_create(gpu, NULL), ENOMEM, OUT_OF_MEMORY,
		"4096 bytes locked by this user, and RLIMIT_MEMLOCK allows 0");
	CHECK(strstr(pinmap_last_hint(), "LimitMEMLOCK=4096"));
	pinmap_close(gpu);
}

TEST(errors_have_words)
{
	struct pinmap_device *device = capi_any();
	char *memory = capi_pages(2);
	struct pinmap_memory *registered;

	CHECK(!strcmp(pinmap_last_error(), "") && !pinmap_last_hint());
	CHECK(fcntl(pinmap_fd(device), F_GETFD) == FD_CLOEXEC);
	REFUSED(pinmap_open("/dev/pinmap77"), ENOENT, NOT_FOUND, "/dev/pinmap77");
	CHECK(strstr(pinmap_last_hint(), "pinmap "));
	REFUSED(pinmap_open_pci("here"), EINVAL, INVALID_INPUT, "PCI address");
	REFUSED(pinmap_find(0x10ee, 0xbeef), ENODEV, NOT_FOUND, "10ee:beef");
	REFUSED(pinmap_register(device, memory + 1, PAGE, NULL), EINVAL, INVALID_INPUT,
		"bytes (EINVAL); `PINMAP_ROUND_OUTWARDS` takes the pages around them");
	REFUSED(pinmap_register(device, memory, 100000, NULL), EINVAL, INVALID_INPUT,
		"they are not whole pages of ");
	registered = MADE(pinmap_register(device, memory, 2 * PAGE, NULL));
	REFUSED(pinmap_register(device, memory, PAGE, NULL), EEXIST, ALREADY_EXISTS, "register");
	/* A success leaves the words of the error before. */
	CHECK(strstr(pinmap_last_error(), "register"));
	DONE(pinmap_release(registered));
	munmap(memory, PAGE);
	REFUSED(pinmap_register(device, memory, 2 * PAGE, NULL), EFAULT, BAD_ADDRESS, "register");
	pinmap_close(device);
}

TEST(nothing_is_null)
{
	struct pinmap_device *device = capi_any();
	struct pinmap_device_info info;
	uint64_t number;

	REFUSED(pinmap_get_info(NULL, &info, sizeof(info)), EINVAL, INVALID_INPUT,
		"device is NULL");
	REFUSED(pinmap_get_info(device, NULL, sizeof(info)), EINVAL, INVALID_INPUT, "no room");
	REFUSED(pinmap_list(NULL, 3), EINVAL, INVALID_INPUT, "nodes is NULL");
	REFUSED(pinmap_register(NULL, &number, 8, NULL), EINVAL, INVALID_INPUT, "device is NULL");
	REFUSED(pinmap_address(NULL), EINVAL, INVALID_INPUT, "memory is NULL");
	REFUSED(pinmap_device_address(NULL, 0, &number), EINVAL, INVALID_INPUT, "memory is NULL");
	REFUSED(pinmap_bar_read32(NULL, 0, NULL), EINVAL, INVALID_INPUT, "bar is NULL");
	REFUSED(pinmap_interrupt_wait(NULL, 0, NULL), EINVAL, INVALID_INPUT, "interrupt is NULL");
	REFUSED(pinmap_stream_create(NULL, NULL), EINVAL, INVALID_INPUT, "device is NULL");
	REFUSED(pinmap_stream_copy(NULL, NULL, 0, NULL, 0, 0), EINVAL, INVALID_INPUT,
		"stream is NULL");
	REFUSED(pinmap_next_event(device, -2, NULL, 0), EINVAL, INVALID_INPUT, "-2 ms");
	REFUSED(pinmap_open_pci(NULL), EINVAL, INVALID_INPUT, "address is NULL");
	/* What ends something takes NULL. */
	pinmap_close(NULL);
	DONE(pinmap_release(NULL));
	DONE(pinmap_unmap(NULL));
	pinmap_bar_unmap(NULL);
	pinmap_interrupt_disable(NULL);
	pinmap_stream_destroy(NULL);
	pinmap_event_destroy(NULL);
	pinmap_completion_destroy(NULL);
	pinmap_close(device);
}

/* The first call that is given NULL says why there is nothing, whatever else has failed since. */
TEST(null_is_told_with_its_reason)
{
	struct pinmap_device *device, *none = pinmap_open("/dev/pinmap77");
	struct pinmap_memory *memory;
	char *pages = capi_pages(1);

	CHECK(!none);
	memory = pinmap_register(none, pages, PAGE, NULL);
	CHECK(!memory);
	REFUSED(pinmap_list(NULL, 3), EINVAL, INVALID_INPUT, "nodes is NULL");
	REFUSED(pinmap_stream_create(none, NULL), ENOENT, NOT_FOUND,
		"device is NULL: cannot open /dev/pinmap77");
	REFUSED(pinmap_device_address(memory, 0, &(uint64_t){ 0 }), ENOENT, NOT_FOUND,
		"memory is NULL: device is NULL: cannot open /dev/pinmap77");
	device = capi_any();
	REFUSED(pinmap_register(none, pages, PAGE, NULL), EINVAL, INVALID_INPUT, "device is NULL");
	CHECK_EQ(strcmp(pinmap_last_error(), "device is NULL"), 0);
	pinmap_close(device);
	munmap(pages, PAGE);
}

static void *fails(void *barrier)
{
	REFUSED(pinmap_open("/dev/null"), ENOTTY, UNSUPPORTED, "/dev/null");
	pthread_barrier_wait(barrier);
	pthread_barrier_wait(barrier);
	CHECK(strstr(pinmap_last_error(), "/dev/null"));
	return NULL;
}

TEST(errors_are_a_threads_own)
{
	pthread_barrier_t barrier;
	pthread_t thread;

	pthread_barrier_init(&barrier, NULL, 2);
	CHECK_EQ(pthread_create(&thread, NULL, fails, &barrier), 0);
	pthread_barrier_wait(&barrier);
	CHECK_EQ(pinmap_last_error_kind(), PINMAP_ERROR_KIND_NONE);
	REFUSED(pinmap_open("/dev/pinmap77"), ENOENT, NOT_FOUND, "pinmap77");
	pthread_barrier_wait(&barrier);
	pthread_join(thread, NULL);
}

TEST(registered_memory_is_pinned)
{
	struct pinmap_device *device = capi_any();
	long long pins = pins_held();
	char *memory = capi_pages(4);
	struct pinmap_memory_options outwards = {
		.size = sizeof(outwards), .flags = PINMAP_ROUND_OUTWARDS | PINMAP_READ_ONLY,
	};
	struct pinmap_memory *whole, *part;
	uint64_t translated;
	char words[32];

	memset(memory, 1, 4 * PAGE);
	whole = MADE(pinmap_register(device, memory, 2 * PAGE, NULL));
	part = MADE(pinmap_register(device, memory + 2 * PAGE + 5, PAGE, &outwards));
	CHECK_PINS(pins + 4);
	CHECK(pinmap_address(whole) == memory && pinmap_length(whole) == 2 * PAGE);
	CHECK(pinmap_address(part) == memory + 2 * PAGE + 5 && pinmap_length(part) == PAGE);
	CHECK(pinmap_memory_id(whole) && pinmap_memory_id(whole) != pinmap_memory_id(part));
	CHECK_EQ(capi_address(part, 3) % PAGE, 8);
	DONE(pinmap_translate(device, memory + PAGE + 1, &translated));
	CHECK_EQ(translated, capi_address(whole, PAGE + 1));
	snprintf(words, sizeof(words), "has %zu", 2 * PAGE);
	REFUSED(pinmap_device_address(whole, 2 * PAGE, &translated), EINVAL, INVALID_INPUT,
		words);
	/* The device stays open for the memory. */
	pinmap_close(device);
	CHECK_PINS(pins + 4);
	DONE(pinmap_sync_for_device(whole, 0, 2 * PAGE));
	DONE(pinmap_sync_for_cpu(part, 0, PAGE));
	snprintf(words, sizeof(words), "has %zu", PAGE);
	REFUSED(pinmap_sync_for_cpu(part, 1, PAGE), EINVAL, INVALID_INPUT, words);
	DONE(pinmap_release(part));
	CHECK_PINS(pins + 2);
	DONE(pinmap_release(whole));
	CHECK_PINS(pins);
	device = capi_any();
	REFUSED(pinmap_translate(device, memory, &translated), ENOENT, NOT_FOUND, "no memory of");
	pinmap_close(device);
}

TEST(flags_have_a_meaning)
{
	struct pinmap_device *device = capi_any();
	char *memory = capi_pages(1);
	struct pinmap_memory_options options = { .size = sizeof(options), .flags = 1u << 31 };

	REFUSED(pinmap_register(device, memory, PAGE, &options), EINVAL, INVALID_INPUT,
		"0x80000000");
	options.flags = PINMAP_WRITE_COMBINED;
	REFUSED(pinmap_register(device, memory, PAGE, &options), EINVAL, INVALID_INPUT, "flags");
	options.flags = PINMAP_READ_ONLY;
	REFUSED(pinmap_alloc(device, PAGE, &options), EINVAL, INVALID_INPUT, "flags");
	options.flags = 0;
	options.device_address = PAGE;
	REFUSED(pinmap_register(device, memory, PAGE, &options), EINVAL, INVALID_INPUT,
		"PINMAP_AT_ADDRESS");
	options.device_address = 0;
	options.node = 1;
	REFUSED(pinmap_alloc(device, PAGE, &options), EINVAL, INVALID_INPUT, "PINMAP_ON_NODE");
	options.node = 0;
	options.address_bits = 32;
	REFUSED(pinmap_alloc(device, PAGE, &options), EINVAL, INVALID_INPUT, "address_bits");
	options.address_bits = 0;
	options.flags = PINMAP_ON_NODE | PINMAP_PORTABLE;
#ifdef __x86_64__
	options.flags |= PINMAP_WRITE_COMBINED;
#endif
	DONE(pinmap_release(MADE(pinmap_alloc(device, PAGE, &options))));
	options.flags = PINMAP_PORTABLE;
	DONE(pinmap_release(MADE(pinmap_register(device, memory, PAGE, &options))));
	pinmap_close(device);
}

TEST(stale_memory_is_told)
{
	struct pinmap_device *device = capi_any();
	char *memory = capi_pages(3);
	struct pinmap_memory *registered = MADE(pinmap_register(device, memory, 3 * PAGE, NULL));
	struct pinmap_device_event event;

	REFUSED(pinmap_next_event(device, 0, &event, sizeof(event)), ETIMEDOUT, TIMED_OUT, "event");
	munmap(memory, 3 * PAGE);
	DONE(pinmap_next_event(device, 20000, &event, sizeof(event)));
	CHECK_EQ(event.event_type, PINMAP_EVENT_TYPE_STALE);
	CHECK_EQ(event.id, pinmap_memory_id(registered));
	CHECK_EQ(event.address, (uintptr_t)memory);
	CHECK_EQ(event.length, 3 * PAGE);
	DONE(pinmap_release(registered));
	pinmap_close(device);
}

TEST(memory_is_exported_and_imported)
{
	struct pinmap_device *device = capi_any();
	struct pinmap_memory *memory = MADE(pinmap_alloc(device, 3 * PAGE, NULL)), *other;
	char *pages = capi_pages(1);
	struct pinmap_memory *registered = MADE(pinmap_register(device, pages, PAGE, NULL));
	int fd = DONE(pinmap_export(memory, 0)), reading;

	CHECK_EQ(pinmap_length(memory), 3 * PAGE);
	CHECK_EQ(((char *)pinmap_address(memory))[3 * PAGE - 1], 0);
	strcpy(pinmap_address(memory), "shared");
	other = MADE(pinmap_import(device, fd));
	CHECK(pinmap_address(other) != pinmap_address(memory));
	CHECK(!strcmp(pinmap_address(other), "shared"));
	reading = DONE(pinmap_export(memory, PINMAP_READ_ONLY));
	REFUSED(pinmap_import(device, reading), EACCES, PERMISSION_DENIED, "import");
	REFUSED(pinmap_import(device, -1), EBADF, INVALID_INPUT, "-1");
	REFUSED(pinmap_import(device, 1), EINVAL, INVALID_INPUT, "import");
	REFUSED(pinmap_export(registered, 0), EOPNOTSUPP, UNSUPPORTED, "only memory of the driver");
	DONE(pinmap_release(memory));
	CHECK(!strcmp(pinmap_address(other), "shared"));
	DONE(pinmap_release(other));
	DONE(pinmap_release(registered));
	close(reading);
	close(fd);
	pinmap_close(device);
}
