// SPDX-License-Identifier: MIT OR Apache-2.0
/* libpinmap: streams of the test GPU, and managed memory. */
#define _GNU_SOURCE
#include "capi.h"
#include "file.h"
#include "pins.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { COUNT = 3000 };

static struct pinmap_memory *registered(struct pinmap_device *gpu, size_t pages)
{
	return MADE(pinmap_register(gpu, capi_pages(pages), pages * PAGE, NULL));
}

TEST(stream_copies_and_computes, .smoke = true)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	struct pinmap_memory *host = registered(gpu, 3);
	struct pinmap_memory *vram = MADE(pinmap_alloc_vram(gpu, 3 * PAGE));
	float *numbers = pinmap_address(host);

	for (int i = 0; i < COUNT; i++)
		numbers[i] = (float)i;
	DONE(pinmap_stream_copy(stream, vram, 0, host, 0, COUNT * 4));
	DONE(pinmap_testgpu_increment_f32(stream, vram, 4, COUNT - 1));
	DONE(pinmap_stream_copy(stream, host, 0, vram, 0, COUNT * 4));
	DONE(pinmap_stream_synchronize(stream, -1));
	CHECK_EQ(DONE(pinmap_stream_query(stream)), 1);
	CHECK(numbers[0] == 0);
	for (int i = 1; i < COUNT; i++)
		CHECK(numbers[i] == (float)i + 1);
	DONE(pinmap_release(vram));
	DONE(pinmap_release(host));
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
}

/* The CPU's system calls copy such memory, too; a disk does what the tests p2p: show. */
TEST(vram_with_pages)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	struct pinmap_memory *vram = MADE(pinmap_alloc_vram_p2pdma(gpu, 3 * PAGE));
	int file = SYS(memfd_create("vram", MFD_CLOEXEC));
	char *seen = capi_pages(3);

	DONE(pinmap_stream_fill(stream, vram, 0, 3 * PAGE, 0x61, 1));
	DONE(pinmap_stream_synchronize(stream, -1));
	CHECK_EQ(SYS(pwrite(file, pinmap_address(vram), 3 * PAGE, 0)), 3 * PAGE);
	CHECK_EQ(SYS(pread(file, seen, 3 * PAGE, 0)), 3 * PAGE);
	for (size_t i = 0; i < 3 * PAGE; i++)
		CHECK_EQ(seen[i], 0x61);
	close(file);
	DONE(pinmap_release(vram));
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
}

TEST(fill_has_a_width)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	struct pinmap_memory *memory = registered(gpu, 1);
	const unsigned char *bytes = pinmap_address(memory);

	for (uint32_t width = 1; width <= 8; width *= 2) {
		uint64_t value = 0x8877665544332211;

		DONE(pinmap_stream_fill(stream, memory, 0, PAGE, 0, 1));
		DONE(pinmap_stream_fill(stream, memory, 64, 3, value, width));
		DONE(pinmap_stream_synchronize(stream, -1));
		CHECK_EQ(bytes[63], 0);
		for (uint32_t i = 0; i < 3 * width; i++)
			CHECK_EQ(bytes[64 + i], 0x11 * (i % width + 1));
		CHECK_EQ(bytes[64 + 3 * width], 0);
	}
	REFUSED(pinmap_stream_fill(stream, memory, 0, 1, 0, 3), EINVAL, INVALID_INPUT, "3 bytes");
	REFUSED(pinmap_stream_fill(stream, memory, 2, 1, 0, 4), EINVAL, INVALID_INPUT,
		"a multiple of 4");
	REFUSED(pinmap_stream_fill(stream, memory, 0, UINT64_MAX / 2, 0, 8), EINVAL, INVALID_INPUT,
		"elements");
	REFUSED(pinmap_stream_fill(stream, memory, PAGE, 1, 0, 1), EINVAL, INVALID_INPUT,
		"has 4096");
	DONE(pinmap_release(memory));
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
}

TEST(kernels)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	struct pinmap_memory *memory = registered(gpu, 4);
	char *start = pinmap_address(memory);
	float *x = (float *)start, *y = (float *)(start + PAGE);
	uint32_t *counts = (uint32_t *)(start + 2 * PAGE);
	uint64_t *sums = (uint64_t *)(start + 3 * PAGE);

	for (int i = 0; i < 9; i++) {
		x[i] = (float)i;
		y[i] = 1;
	}
	DONE(pinmap_testgpu_saxpy(stream, 2, memory, 0, memory, PAGE, 9));
	DONE(pinmap_testgpu_sum_f32(stream, memory, PAGE, 9, memory, PAGE + 64));
	DONE(pinmap_stream_synchronize(stream, -1));
	CHECK(y[4] == 9 && y[16] == 81);
	memcpy(start, "123456789", 9);
	DONE(pinmap_testgpu_histogram_u8(stream, memory, 0, 9, memory, 2 * PAGE));
	DONE(pinmap_testgpu_crc32c(stream, memory, 0, 9, memory, 3 * PAGE + 256));
	DONE(pinmap_testgpu_atomic_add_u64(stream, memory, 3 * PAGE, 2, 5, 3));
	DONE(pinmap_testgpu_spin(stream, 1000));
	DONE(pinmap_stream_synchronize(stream, -1));
	CHECK(counts['1'] == 1 && counts['0'] == 0);
	CHECK_EQ(sums[0], 15);
	CHECK_EQ(sums[1], 15);
	/* The check value of CRC-32C. */
	CHECK_EQ(*(uint32_t *)(start + 3 * PAGE + 256), 0xe3069283);
	REFUSED(pinmap_testgpu_saxpy(stream, 1, memory, 0, memory, 4, 9), EINVAL, INVALID_INPUT,
		"overlap");
	DONE(pinmap_release(memory));
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
}

TEST(matrices)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	struct pinmap_memory *all[3];
	float *matrix[3];

	for (int i = 0; i < 3; i++) {
		all[i] = registered(gpu, 1);
		matrix[i] = pinmap_address(all[i]);
		for (int j = 0; j < 6; j++)
			matrix[i][j] = (float)(j + i);
	}
	/* 2 rows of 3, times 3 rows of 2 */
	DONE(pinmap_testgpu_matmul_f32(stream, all[0], all[1], all[2], 2, 2, 3));
	DONE(pinmap_stream_synchronize(stream, -1));
	for (int row = 0; row < 2; row++)
		for (int column = 0; column < 2; column++) {
			float sum = 0;

			for (int k = 0; k < 3; k++)
				sum += matrix[0][3 * row + k] * matrix[1][2 * k + column];
			CHECK(matrix[2][2 * row + column] == sum);
		}
	for (int i = 0; i < 3; i++)
		DONE(pinmap_release(all[i]));
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
}

/* A host function that waits until the test lets it return. */
struct gate {
	sem_t entered, open;
	atomic_int calls;
};

static void wait_at(void *argument)
{
	struct gate *gate = argument;

	atomic_fetch_add(&gate->calls, 1);
	sem_post(&gate->entered);
	sem_wait(&gate->open);
}

static void gate_close(struct gate *gate, struct pinmap_stream *stream)
{
	sem_init(&gate->entered, 0, 0);
	sem_init(&gate->open, 0, 0);
	gate->calls = 0;
	DONE(pinmap_stream_call(stream, wait_at, gate));
	sem_wait(&gate->entered);
}

struct releasing {
	struct pinmap_memory *memory;
	atomic_bool released;
};

static void *release(void *argument)
{
	struct releasing *releasing = argument;

	DONE(pinmap_release(releasing->memory));
	releasing->released = true;
	return NULL;
}

/* Begins to release memory in another thread, which has to wait for that. */
static pthread_t begin_release(struct releasing *releasing)
{
	pthread_t thread;
	uint64_t address;

	CHECK_EQ(pthread_create(&thread, NULL, release, releasing), 0);
	/* Nothing finds the memory any more. */
	while (!pinmap_device_address(releasing->memory, 0, &address))
		sched_yield();
	CHECK_EQ(errno, ESTALE);
	return thread;
}

/* Memory stays within the device's reach as long as work names it, whoever else waits for that. */
TEST(release_waits_for_work)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	long long pins = pins_held();
	struct pinmap_memory *from = registered(gpu, 1), *to = registered(gpu, 1);
	char *target = pinmap_address(to);
	struct releasing releasing[] = { { .memory = to }, { .memory = from } };
	pthread_t threads[2];
	struct gate gate;

	strcpy(pinmap_address(from), "late");
	gate_close(&gate, stream);
	DONE(pinmap_stream_copy(stream, to, 0, from, 0, PAGE));
	CHECK_EQ(DONE(pinmap_stream_query(stream)), 0);
	for (int i = 0; i < 2; i++)
		threads[i] = begin_release(&releasing[i]);
	sleep_ms(50);
	CHECK(!releasing[0].released && !releasing[1].released && target[0] == 0);
	CHECK_EQ(pins_held(), pins + 2);
	sem_post(&gate.open);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	CHECK(!strcmp(target, "late"));
	CHECK_PINS_SOON(pins);
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
}

/* A host function that releases memory, or destroys its stream, when the test lets it. */
struct within {
	struct gate gate;
	struct pinmap_stream *stream;
	struct pinmap_memory *done, *busy;
};

static void release_within(void *argument)
{
	struct within *within = argument;

	wait_at(&within->gate);
	REFUSED(pinmap_release(within->busy), EDEADLK, DEADLOCK, "a host function");
	REFUSED(pinmap_stream_fill(within->stream, within->busy, 0, 1, 1, 1), EDEADLK, DEADLOCK,
		"submit");
	DONE(pinmap_release(within->done));
}

static void begin_within(struct within *within, void (*function)(void *))
{
	sem_init(&within->gate.entered, 0, 0);
	sem_init(&within->gate.open, 0, 0);
	within->gate.calls = 0;
	DONE(pinmap_stream_call(within->stream, function, within));
	sem_wait(&within->gate.entered);
}

/* Opens a gate when a thread waits in an ioctl(). */
struct opener {
	struct gate *gate;
	pid_t waits;
};

static void *open_gate(void *argument)
{
	struct opener *opener = argument;
	char path[64], call[256] = "";

	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", opener->waits);
	/* "16" is ioctl(). */
	while (strncmp(call, "16 ", 3))
		file_read(path, call, sizeof(call));
	sem_post(&opener->gate->open);
	return NULL;
}

/*
 * A host function can release memory that is no longer used, even while another thread waits for
 * room in the ring, which only the end of that function can make. Other memory it cannot release.
 */
TEST(host_function_releases_what_is_done)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_stream_options options = { .size = sizeof(options), .packets = 64 };
	struct within within = {
		.stream = MADE(pinmap_stream_create(gpu, &options)),
		.done = registered(gpu, 1),
		.busy = registered(gpu, 1),
	};
	struct opener opener = { .gate = &within.gate, .waits = gettid() };
	const uint64_t *number = pinmap_address(within.busy);
	long long pins = pins_held();
	pthread_t thread;

	DONE(pinmap_stream_fill(within.stream, within.done, 0, PAGE, 1, 1));
	DONE(pinmap_stream_synchronize(within.stream, -1));
	begin_within(&within, release_within);
	DONE(pinmap_stream_fill(within.stream, within.busy, 0, 1, 1, 8));
	CHECK_EQ(pthread_create(&thread, NULL, open_gate, &opener), 0);
	/* The ring has room for 64 packets. */
	for (uint64_t i = 2; i <= 100; i++)
		DONE(pinmap_stream_fill(within.stream, within.busy, 0, 1, i, 8));
	pthread_join(thread, NULL);
	DONE(pinmap_stream_synchronize(within.stream, -1));
	CHECK_EQ(*number, 100);
	CHECK_PINS_SOON(pins - 1);
	DONE(pinmap_release(within.busy));
	pinmap_stream_destroy(within.stream);
	pinmap_close(gpu);
}

static void destroy_within(void *argument)
{
	struct within *within = argument;

	wait_at(&within->gate);
	pinmap_stream_destroy(within->stream);
	sem_post(&within->gate.entered);
}

/* Work of a stream that is gone is waited for, too. */
TEST(release_waits_for_work_of_a_stream_that_is_gone)
{
	struct pinmap_device *gpu = capi_gpu();
	struct within within = {
		.stream = MADE(pinmap_stream_create(gpu, NULL)),
		.done = registered(gpu, 1),
		.busy = registered(gpu, 1),
	};
	const char *target = pinmap_address(within.busy);

	strcpy(pinmap_address(within.done), "late");
	begin_within(&within, destroy_within);
	/* The work takes longer than the rest of the test, if that does not wait. */
	DONE(pinmap_testgpu_spin(within.stream, 500000000));
	DONE(pinmap_stream_copy(within.stream, within.busy, 0, within.done, 0, PAGE));
	sem_post(&within.gate.open);
	sem_wait(&within.gate.entered);
	DONE(pinmap_release(within.busy));
	CHECK(!strcmp(target, "late"));
	DONE(pinmap_release(within.done));
	pinmap_close(gpu);
}

static void release_inside(void *argument)
{
	struct releasing *releasing = argument;

	REFUSED(pinmap_release(releasing->memory), EDEADLK, DEADLOCK, "host function");
	releasing->released = true;
}

/* A host function cannot wait for the work that names memory, and is told before anything is done.
 */
TEST(host_functions_release_nothing_in_use)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	struct releasing releasing = { .memory = registered(gpu, 1) };
	const char *bytes = pinmap_address(releasing.memory);
	struct gate gate;

	gate_close(&gate, stream);
	DONE(pinmap_stream_call(stream, release_inside, &releasing));
	DONE(pinmap_stream_fill(stream, releasing.memory, 0, 4096, 7, 1));
	sem_post(&gate.open);
	DONE(pinmap_stream_synchronize(stream, 30000));
	CHECK(releasing.released);
	CHECK(bytes[0] == 7 && bytes[4095] == 7);
	DONE(pinmap_release(releasing.memory));
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
}

TEST(host_functions_run_in_order)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	struct pinmap_completion *completion;
	struct pollfd file = { .events = POLLIN };
	struct gate gate;

	gate_close(&gate, stream);
	REFUSED(pinmap_stream_synchronize(stream, 1), ETIMEDOUT, TIMED_OUT, "wait");
	completion = MADE(pinmap_stream_completion(stream));
	file.fd = DONE(pinmap_completion_fd(completion));
	CHECK_EQ(DONE(pinmap_completion_query(completion)), 0);
	CHECK_EQ(SYS(poll(&file, 1, 0)), 0);
	sem_post(&gate.open);
	CHECK_EQ(SYS(poll(&file, 1, 30000)), 1);
	CHECK_EQ(DONE(pinmap_completion_query(completion)), 1);
	CHECK_EQ(gate.calls, 1);
	pinmap_completion_destroy(completion);
	REFUSED(pinmap_stream_call(stream, NULL, NULL), EINVAL, INVALID_INPUT, "function is NULL");
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
}

TEST(events_order_streams)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_stream_options urgent = { .size = sizeof(urgent), .priority = 1 };
	struct pinmap_stream *first = MADE(pinmap_stream_create(gpu, NULL));
	struct pinmap_stream *second = MADE(pinmap_stream_create(gpu, &urgent));
	struct pinmap_stream_event *begun = MADE(pinmap_event_create(gpu));
	struct pinmap_stream_event *ended = MADE(pinmap_event_create(gpu));
	struct pinmap_memory *memory = registered(gpu, 1);
	const uint32_t *words = pinmap_address(memory);
	uint64_t elapsed;
	struct gate gate;

	CHECK_EQ(DONE(pinmap_event_query(begun)), 1);
	REFUSED(pinmap_event_elapsed(begun, ended, &elapsed), EINVAL, INVALID_INPUT, "event");
	CHECK(pinmap_stream_id(first) != pinmap_stream_id(second));
	DONE(pinmap_stream_record(first, begun));
	gate_close(&gate, first);
	DONE(pinmap_stream_fill(first, memory, 0, 1024, 7, 4));
	DONE(pinmap_testgpu_spin(first, 1000000));
	DONE(pinmap_stream_record(first, ended));
	DONE(pinmap_stream_wait_event(second, ended));
	DONE(pinmap_stream_copy(second, memory, 2048, memory, 0, 2048));
	REFUSED(pinmap_event_synchronize(ended, 1), ETIMEDOUT, TIMED_OUT, "wait");
	CHECK_EQ(DONE(pinmap_event_query(ended)), 0);
	sem_post(&gate.open);
	DONE(pinmap_stream_synchronize(second, -1));
	CHECK_EQ(words[1023], 7);
	DONE(pinmap_event_synchronize(ended, -1));
	DONE(pinmap_event_elapsed(begun, ended, &elapsed));
	CHECK(elapsed >= 1000000);
	pinmap_event_destroy(begun);
	pinmap_event_destroy(ended);
	DONE(pinmap_release(memory));
	pinmap_stream_destroy(first);
	pinmap_stream_destroy(second);
	pinmap_close(gpu);
}

TEST(work_names_memory_that_it_may_use)
{
	struct pinmap_device *gpu = capi_gpu(), *other = capi_gpu();
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	struct pinmap_stream_options unknown = { .size = sizeof(unknown), .reserved = 1 };
	struct pinmap_memory_options options = {
		.size = sizeof(options), .flags = PINMAP_READ_ONLY,
	};
	char *pages = capi_pages(1);
	struct pinmap_memory *memory = registered(gpu, 1);
	struct pinmap_memory *constant = MADE(pinmap_register(gpu, pages, PAGE, &options));
	struct pinmap_memory *foreign = registered(other, 1);
	int fd = SYS(memfd_create("capi", 0));
	struct pinmap_memory *file;

	SYS(ftruncate(fd, PAGE));
	file = MADE(pinmap_register_file(gpu, fd, 0, PAGE, NULL));
	REFUSED(pinmap_stream_create(gpu, &unknown), EINVAL, INVALID_INPUT, "reserved");
	REFUSED(pinmap_stream_copy(stream, constant, 0, memory, 0, 8), EACCES, PERMISSION_DENIED,
		"only read");
	REFUSED(pinmap_stream_copy(stream, memory, 0, foreign, 0, 8), EINVAL, INVALID_INPUT,
		"context");
	REFUSED(pinmap_stream_copy(stream, memory, 0, memory, 4, 8), EINVAL, INVALID_INPUT,
		"overlap");
	REFUSED(pinmap_stream_copy(stream, memory, PAGE - 4, constant, 0, 8), EINVAL, INVALID_INPUT,
		"has 4096");
	REFUSED(pinmap_stream_copy(stream, memory, SIZE_MAX, constant, 0, 8), EINVAL, INVALID_INPUT,
		"has 4096");
	REFUSED(pinmap_stream_copy(stream, memory, 0, file, 0, 8), EOPNOTSUPP, UNSUPPORTED,
		"a file");
	REFUSED(pinmap_stream_copy(stream, memory, 0, NULL, 0, 8), EINVAL, INVALID_INPUT,
		"from is NULL");
	DONE(pinmap_stream_copy(stream, memory, 0, constant, 0, PAGE));
	pinmap_stream_destroy(stream);
	DONE(pinmap_release(file));
	DONE(pinmap_release(foreign));
	DONE(pinmap_release(constant));
	DONE(pinmap_release(memory));
	close(fd);
	pinmap_close(other);
	pinmap_close(gpu);
}

/* Each submission waits, and the one that fails names the line that made it. */
TEST(launch_blocking_names_the_line, .faults = true)
{
	struct pinmap_memory *gone, *memory;
	struct pinmap_device *gpu;
	struct pinmap_stream *stream;
	char line[64];

	SYS(setenv("PINMAP_LAUNCH_BLOCKING", "1", 1));
	gpu = capi_gpu();
	stream = MADE(pinmap_stream_create(gpu, NULL));
	gone = registered(gpu, 1);
	memory = registered(gpu, 1);
	DONE(pinmap_stream_fill(stream, memory, 0, PAGE, 0x77, 1));
	CHECK_EQ(((volatile char *)pinmap_address(memory))[PAGE - 1], 0x77);
	munmap(pinmap_address(gone), PAGE);
	snprintf(line, sizeof(line), "streams.c:%d", __LINE__ + 1);
	CHECK(pinmap_stream_copy(stream, memory, 0, gone, 0, PAGE) == -1);
	CHECK_EQ(pinmap_last_error_kind(), PINMAP_ERROR_KIND_FAULT);
	if (!strstr(pinmap_last_error(), line) ||
	    !strstr(pinmap_last_error(), "launch_blocking_names_the_line"))
		FAIL("no %s in \"%s\"", line, pinmap_last_error());
	DONE(pinmap_stream_reset(stream));
	DONE(pinmap_stream_copy(stream, memory, 0, memory, PAGE / 2, PAGE / 2));
	DONE(pinmap_release(memory));
	DONE(pinmap_release(gone));
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
}

/* The device's MMU stops work on memory that went away, and the stream says so. */
TEST(failed_stream_says_why, .faults = true)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	struct pinmap_memory *gone = registered(gpu, 1), *memory = registered(gpu, 1);
	struct pinmap_device_event event;
	long long pins = pins_held();

	munmap(pinmap_address(gone), PAGE);
	DONE(pinmap_next_event(gpu, 20000, &event, sizeof(event)));
	DONE(pinmap_stream_fill(stream, gone, 0, PAGE, 1, 1));
	REFUSED(pinmap_stream_synchronize(stream, -1), EIO, FAULT, "stopped the queue");
	DONE(pinmap_next_event(gpu, 20000, &event, sizeof(event)));
	CHECK_EQ(event.event_type, PINMAP_EVENT_TYPE_FAULT);
	CHECK_EQ(event.id, pinmap_stream_id(stream));
	REFUSED(pinmap_stream_query(stream), EIO, FAULT, "stopped the queue");
	CHECK(strstr(pinmap_last_hint(), "(`pinmap_manage()`)"));
	/* Nothing more is taken, now that it is known. */
	REFUSED(pinmap_stream_fill(stream, memory, 0, PAGE, 0x61, 1), EIO, FAULT,
		"stopped the queue");
	/* Work that will never be done keeps no memory. */
	DONE(pinmap_release(gone));
	DONE(pinmap_stream_reset(stream));
	DONE(pinmap_stream_fill(stream, memory, 0, PAGE, 1, 1));
	DONE(pinmap_stream_synchronize(stream, -1));
	CHECK_EQ(((char *)pinmap_address(memory))[PAGE - 1], 1);
	DONE(pinmap_release(memory));
	pinmap_stream_destroy(stream);
	CHECK(pins_held() < pins);
	pinmap_close(gpu);
}

/* Destroyed streams finish their work; whoever releases the memory waits for that. */
TEST(destroy_returns_at_once)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_memory *memory = registered(gpu, 1);
	struct pinmap_stream *stream = MADE(pinmap_stream_create(gpu, NULL));
	const volatile uint64_t *numbers = pinmap_address(memory);
	struct gate gate;

	gate_close(&gate, stream);
	for (int i = 1; i <= 30; i++)
		DONE(pinmap_stream_fill(stream, memory, 0, 512, (uint64_t)i, 8));
	pinmap_stream_destroy(stream);
	CHECK_EQ(numbers[511], 0);
	sem_post(&gate.open);
	DONE(pinmap_release(memory));
	CHECK_EQ(numbers[511], 30);
	pinmap_close(gpu);
}

TEST(managed_memory_moves)
{
	enum { PAGES = 64 };
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_device_info info;
	struct pinmap_stream *stream;
	struct pinmap_memory *managed;
	struct pinmap_prefetched there;
	float *numbers;

	DONE(pinmap_get_info(gpu, &info, sizeof(info)));
	if (!(info.flags & PINMAP_DEVICE_INFO_MANAGED))
		SKIP("the device can have no managed memory");
	CHECK_EQ(info.kind, PINMAP_DEVICE_PAGED);
	stream = MADE(pinmap_stream_create(gpu, NULL));
	managed = MADE(pinmap_alloc_managed(gpu, PAGES * PAGE));
	numbers = pinmap_address(managed);
	CHECK_EQ(capi_address(managed, 0), (uintptr_t)numbers);
	for (int i = 0; i < 1024; i++)
		numbers[i] = 5;
	DONE(pinmap_prefetch(gpu, numbers, PAGES * PAGE, PINMAP_TO_VRAM, &there, sizeof(there)));
	CHECK_EQ(there.moved + there.there + there.busy, PAGES * PAGE);
	CHECK(there.moved);
	DONE(pinmap_testgpu_increment_f32(stream, managed, 0, PAGES * 1024));
	DONE(pinmap_stream_synchronize(stream, -1));
	/* The CPU's touch brings it home. */
	CHECK(numbers[0] == 6 && numbers[1024] == 1 && numbers[PAGES * 1024 - 1] == 1);
	DONE(pinmap_advise(gpu, numbers, PAGES * PAGE,
			   PINMAP_PREFER_HOST | PINMAP_ACCESSED_BY_DEVICE));
	REFUSED(pinmap_advise(gpu, numbers, PAGES * PAGE,
			      PINMAP_PREFER_HOST | PINMAP_PREFER_VRAM),
		EINVAL, INVALID_INPUT, "0x3");
	DONE(pinmap_prefetch(gpu, numbers, PAGES * PAGE, PINMAP_TO_HOST, NULL, 0));
	REFUSED(pinmap_prefetch(gpu, numbers, PAGE, 7, NULL, 0), EINVAL, INVALID_INPUT, "place 7");
	pinmap_stream_destroy(stream);
	DONE(pinmap_release(managed));
	pinmap_close(gpu);
}

/* Memory of the program becomes managed where it is. */
TEST(ranges_are_managed)
{
	struct pinmap_device *gpu = capi_gpu();
	struct pinmap_device_info info;
	struct pinmap_stream *stream;
	struct pinmap_memory *range;
	float *numbers = (float *)capi_pages(3);

	DONE(pinmap_get_info(gpu, &info, sizeof(info)));
	if (!(info.flags & PINMAP_DEVICE_INFO_MANAGED))
		SKIP("the device can have no managed memory");
	numbers[1500] = 1;
	REFUSED(pinmap_prefetch(gpu, numbers, PAGE, PINMAP_TO_VRAM, NULL, 0), ENOENT, NOT_FOUND,
		"move");
	stream = MADE(pinmap_stream_create(gpu, NULL));
	range = MADE(pinmap_manage(gpu, numbers, 2 * PAGE));
	CHECK(pinmap_address(range) == numbers && pinmap_length(range) == 2 * PAGE);
	DONE(pinmap_testgpu_increment_f32(stream, range, PAGE, 1024));
	DONE(pinmap_stream_synchronize(stream, -1));
	CHECK(numbers[1500] == 2 && numbers[1024] == 1 && numbers[0] == 0);
	/* It is a part of the range. */
	DONE(pinmap_release(MADE(pinmap_manage(gpu, numbers, PAGE))));
	REFUSED(pinmap_manage(gpu, numbers + 1024, 2 * PAGE), EEXIST, ALREADY_EXISTS, "manage");
	REFUSED(pinmap_manage(gpu, numbers, 0), EINVAL, INVALID_INPUT, "manage");
	DONE(pinmap_release(range));
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
}
