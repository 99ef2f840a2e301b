// SPDX-License-Identifier: MIT OR Apache-2.0
/* libpinmap: kernels that are compiled, of tests/crate/kernels/kernels.c. */
#define _GNU_SOURCE
#include "capi.h"
#include "pins.h"

#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

__asm__(".section .rodata\n"
	".balign 16\n"
	"kernels: .incbin \"" KERNELS "\"\n"
	"kernels_end:\n"
	".previous\n");
extern const char kernels[], kernels_end[];

enum { COUNT = 3000 };

#define OPTIONS(...)										\
	(&(struct pinmap_launch_options){							\
		.size = sizeof(struct pinmap_launch_options), __VA_ARGS__ })
#define INTEGER(value) { .kind = PINMAP_ARGUMENT_KIND_INTEGER, .integer = (uint64_t)(value) }
#define U32(value) { .kind = PINMAP_ARGUMENT_KIND_U32, .integer = (value) }
#define F32(value) { .kind = PINMAP_ARGUMENT_KIND_F32, .real = (value) }
#define F64(value) { .kind = PINMAP_ARGUMENT_KIND_F64, .real = (value) }
#define LOCAL(bytes) { .kind = PINMAP_ARGUMENT_KIND_LOCAL, .length = (bytes) }
#define READ(from, at, bytes)									\
	{ .kind = PINMAP_ARGUMENT_KIND_READ, .memory = (from), .offset = (at), .length = (bytes) }
#define WRITE_TO(to, at, bytes)									\
	{ .kind = PINMAP_ARGUMENT_KIND_WRITE, .memory = (to), .offset = (at), .length = (bytes) }

/* A stream with the program, or none: then the test is skipped, or the device refuses it. */
struct setting {
	struct pinmap_device *gpu;
	struct pinmap_stream *stream;
	struct pinmap_program *program;
};

static struct setting set(void)
{
	struct setting here = { .gpu = capi_gpu() };

	here.program = pinmap_program_load(here.gpu, kernels, kernels_end - kernels);
	if (!here.program && strstr(pinmap_last_error(), "executes no programs"))
		SKIP("the device executes no programs");
	MADE(here.program);
	here.stream = MADE(pinmap_stream_create(here.gpu, NULL));
	return here;
}

static void strike(struct setting *here)
{
	pinmap_stream_destroy(here->stream);
	pinmap_program_destroy(here->program);
	pinmap_close(here->gpu);
}

#define LAUNCH(here, name, options, ...)							\
	({											\
		const struct pinmap_argument list_[] = { __VA_ARGS__ };				\
		pinmap_stream_launch((here)->stream, (here)->program, name, options, list_,	\
				     ARRAY_SIZE(list_));					\
	})

/* More launches than the library keeps, all in flight; memory comes back with the program. */
TEST(kernel_is_launched)
{
	long long pins = pins_held();
	struct setting here = set();
	struct pinmap_memory *x = MADE(pinmap_alloc(here.gpu, COUNT * 4, NULL));
	struct pinmap_memory *y = MADE(pinmap_alloc_vram(here.gpu, COUNT * 4 + 16));
	struct pinmap_memory *back = MADE(pinmap_alloc(here.gpu, COUNT * 4 + 16, NULL));
	float *of_x = pinmap_address(x), *of_back = pinmap_address(back);

	for (int i = 0; i < COUNT; i++)
		of_x[i] = (float)i;
	DONE(pinmap_stream_fill(here.stream, y, 0, COUNT * 4 + 16, 0, 1));
	for (int i = 0; i < 100; i++)
		DONE(LAUNCH(&here, "saxpy", OPTIONS(.blocks = { 12 }, .threads = { 256 }),
			    INTEGER(COUNT), F32(0.5), READ(x, 0, COUNT * 4),
			    WRITE_TO(y, 16, COUNT * 4)));
	DONE(pinmap_stream_copy(here.stream, back, 0, y, 0, COUNT * 4 + 16));
	DONE(pinmap_stream_synchronize(here.stream, -1));
	for (int i = 0; i < 4; i++)
		CHECK(of_back[i] == 0);
	for (int i = 0; i < COUNT; i++)
		CHECK(of_back[4 + i] == 50.0f * (float)i);
	DONE(pinmap_release(back));
	DONE(pinmap_release(x));
	DONE(pinmap_release(y));
	strike(&here);
	CHECK_PINS_SOON(pins);
}

/* Each kind of argument arrives as C passes it, in registers and on the stack. */
TEST(kernel_takes_all_types)
{
	struct setting here = set();
	struct pinmap_memory *to = MADE(pinmap_alloc(here.gpu, 48, NULL));
	const double *sums = pinmap_address(to);

	DONE(LAUNCH(&here, "sum", OPTIONS(.blocks = { 1 }, .threads = { 1 }), WRITE_TO(to, 0, 48),
		    INTEGER(-1), U32(4000000000u), INTEGER(-3), INTEGER(1ULL << 40), INTEGER(-5),
		    INTEGER(6), INTEGER(7), INTEGER(8), INTEGER(200), F32(0.5), F32(1), F32(2),
		    F32(3), F32(4), F32(5), F32(6), F32(7), F32(8), F64(0.25)));
	DONE(pinmap_stream_synchronize(here.stream, -1));
	CHECK(sums[0] == -1 + 4e9 - 3 + (double)(1ULL << 40) - 5 + 6 + 7 + 8 + 200);
	CHECK(sums[1] == 36.5 + 0.25);
	CHECK(sums[2] == 8 && sums[3] == 200 && sums[4] == 8 && sums[5] == 0.25);
	DONE(pinmap_release(to));
	strike(&here);
}

/* A kernel's words come between those that the program prints before and after. */
TEST(kernel_prints)
{
	struct setting here = set();
	struct pinmap_memory *word = MADE(pinmap_alloc(here.gpu, 8, NULL));
	int output = SYS(dup(1)), file = SYS(memfd_create("output", MFD_CLOEXEC));
	char text[4096] = "", *first, *second, *last;

	strcpy(pinmap_address(word), "work");
	fflush(stdout);
	SYS(dup2(file, 1));
	printf("before\n");
	DONE(LAUNCH(&here, "say", OPTIONS(.blocks = { 1 }, .threads = { 2 }), READ(word, 0, 8),
		    F64(-2.0625)));
	DONE(pinmap_stream_synchronize(here.stream, -1));
	printf("after\n");
	fflush(stdout);
	SYS(dup2(output, 1));
	SYS(pread(file, text, sizeof(text) - 1, 0));
	first = strstr(text, "before\nzero 0.0: work of ");
	second = strstr(text, "\nzero 0.1: work of ");
	last = strstr(text, "\nafter\n");
	if (!first || !second || !last || second < first || last < second)
		FAIL("it printed \"%s\"", text);
	DONE(pinmap_release(word));
	strike(&here);
}

struct waiter {
	struct pinmap_stream *stream;
	sem_t begin;
};

static void wait_inside(void *argument)
{
	struct waiter *waiter = argument;

	sem_wait(&waiter->begin);
	REFUSED(pinmap_stream_synchronize(waiter->stream, -1), EDEADLK, DEADLOCK, "");
}

/* A wait that is refused, or ends too early, loses nothing that a kernel prints later. */
TEST(kernel_prints_after_a_wait_in_vain)
{
	struct setting here = set();
	struct pinmap_memory *word = MADE(pinmap_alloc(here.gpu, 8, NULL));
	int output = SYS(dup(1)), file = SYS(memfd_create("output", MFD_CLOEXEC));
	struct waiter waiter = { .stream = here.stream };
	char text[4096] = "";

	strcpy(pinmap_address(word), "work");
	SYS(sem_init(&waiter.begin, 0, 0));
	DONE(pinmap_stream_call(here.stream, wait_inside, &waiter));
	DONE(LAUNCH(&here, "say", OPTIONS(.blocks = { 1 }, .threads = { 1 }), READ(word, 0, 8),
		    F64(1)));
	REFUSED(pinmap_stream_synchronize(here.stream, 1), ETIMEDOUT, TIMED_OUT, "wait");
	sem_post(&waiter.begin);
	fflush(stdout);
	SYS(dup2(file, 1));
	DONE(pinmap_stream_synchronize(here.stream, -1));
	fflush(stdout);
	SYS(dup2(output, 1));
	SYS(pread(file, text, sizeof(text) - 1, 0));
	if (!strstr(text, "zero 0.0: work of "))
		FAIL("it printed \"%s\"", text);
	DONE(pinmap_release(word));
	strike(&here);
}

/* The error says where a kernel stopped; the stream works again after a reset. */
TEST(kernel_that_stops_says_where, .faults = true)
{
	struct setting here = set();
	struct pinmap_memory *to = MADE(pinmap_alloc(here.gpu, 8, NULL));
	struct pinmap_launch_options *options = OPTIONS(.blocks = { 3 }, .threads = { 4 });

	DONE(LAUNCH(&here, "refuse", options, U32(100)));
	DONE(LAUNCH(&here, "refuse", options, U32(11)));
	REFUSED(pinmap_stream_synchronize(here.stream, -1), EIO, FAULT,
		"kernel refuse, block 2, thread 3, at ");
	DONE(pinmap_stream_reset(here.stream));
	DONE(LAUNCH(&here, "refuse", options, U32(100)));
	DONE(pinmap_stream_synchronize(here.stream, -1));
	DONE(LAUNCH(&here, "wild", options, WRITE_TO(to, 0, 4), U32(1), U32(0)));
	DONE(pinmap_stream_synchronize(here.stream, -1));
	CHECK_EQ(*(int *)pinmap_address(to), 1);
	DONE(pinmap_release(to));
	strike(&here);
}

/* A launch waits for the kernel if that is wanted. */
TEST(blocking_launch_says_where, .faults = true)
{
	struct setting here;

	SYS(setenv("PINMAP_LAUNCH_BLOCKING", "1", 1));
	here = set();
	REFUSED(LAUNCH(&here, "wild", OPTIONS(.blocks = { 3 }, .threads = { 4 }), INTEGER(16),
		       U32(1), U32(0)),
		EIO, FAULT, "kernel wild, block 1, thread 0, at ");
	strike(&here);
}

TEST(launches_that_cannot_be)
{
	struct setting here = set();
	struct pinmap_memory *memory = MADE(pinmap_alloc(here.gpu, 64, NULL));
	struct pinmap_launch_options *good = OPTIONS(.blocks = { 1 }, .threads = { 1 });
	struct pinmap_argument reserved = F32(1), unknown = F32(1);

	REFUSED(pinmap_program_load(here.gpu, "no ELF", 6), EINVAL, INVALID_INPUT, "ELF");
	REFUSED(pinmap_program_load(here.gpu, NULL, 6), EINVAL, INVALID_INPUT, "elf is NULL");
	REFUSED(pinmap_program_load(NULL, kernels, 6), EINVAL, INVALID_INPUT, "device is NULL");
	REFUSED(LAUNCH(&here, "none", good, U32(1)), EINVAL, INVALID_INPUT, "none");
	REFUSED(LAUNCH(&here, NULL, good, U32(1)), EINVAL, INVALID_INPUT, "NULL");
	REFUSED(LAUNCH(&here, "refuse", NULL, U32(1)), EINVAL, INVALID_INPUT, "blocks");
	REFUSED(LAUNCH(&here, "refuse", OPTIONS(.blocks = { 1 }, .threads = { 32, 33 }), U32(1)),
		EINVAL, INVALID_INPUT, "1024");
	REFUSED(LAUNCH(&here, "refuse", OPTIONS(.reserved = 1, .blocks = { 1 }, .threads = { 1 }),
		       U32(1)),
		EINVAL, INVALID_INPUT, "reserved");
	REFUSED(LAUNCH(&here, "refuse", good, U32(1ULL << 32)), EINVAL, INVALID_INPUT, "32 bits");
	reserved.reserved = 1;
	REFUSED(LAUNCH(&here, "refuse", good, reserved), EINVAL, INVALID_INPUT, "reserved");
	unknown.kind = 7;
	REFUSED(LAUNCH(&here, "refuse", good, unknown), EINVAL, INVALID_INPUT, "kind 7");
	REFUSED(LAUNCH(&here, "saxpy", good, READ(NULL, 0, 1)), EINVAL, INVALID_INPUT, "NULL");
	REFUSED(LAUNCH(&here, "saxpy", good, READ(memory, 60, 8)), EINVAL, INVALID_INPUT, "");
	REFUSED(LAUNCH(&here, "saxpy", good, INTEGER(2), F32(1), READ(memory, 0, 8),
		       WRITE_TO(memory, 4, 8)),
		EINVAL, INVALID_INPUT, "overlap");
	/* Shared memory of the arguments adds up, and so much there is not. */
	REFUSED(LAUNCH(&here, "refuse", good, LOCAL(SIZE_MAX), LOCAL(1)), EINVAL, INVALID_INPUT,
		"memory");
	DONE(LAUNCH(&here, "refuse", good, U32(1)));
	DONE(pinmap_stream_synchronize(here.stream, -1));
	DONE(pinmap_release(memory));
	strike(&here);
}
