// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Two programs in which the test GPU works on host memory in place, as CUDA's programs with mapped,
 * page-locked memory do. The first one adds 1 to 1024 floats: in memory that the driver allocates
 * (cudaHostAlloc), in memory of the program that is registered (cudaHostRegister), and in memory
 * that is managed, of which nothing is pinned. The second one copies 128 ints between two
 * write-combined buffers, and prints them by the device's pointer.
 *
 * cc zero_copy.c $(pkg-config --cflags --libs pinmap)
 */
#include <pinmap.h>

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FLOATS = 1024, INTS = 128 };

static void *need(void *handle, const char *what)
{
	if (!handle) {
		fprintf(stderr, "%s: %s\n", what, pinmap_last_error());
		exit(1);
	}
	return handle;
}

static void check(int result, const char *what)
{
	need(result < 0 ? NULL : stderr, what);
}

/* The pages that this program has pinned or allocated for the device, as the driver counts them. */
static long pinned(const struct pinmap_device *gpu)
{
	char line[128], path[64];
	long kib, all = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pinmap_fd(gpu));
	file = fopen(path, "r");
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "pinmap-pinned: %ld", &kib) == 1 ||
		    sscanf(line, "pinmap-allocated: %ld", &kib) == 1)
			all += kib;
	}
	if (file)
		fclose(file);
	return all / 4;
}

/* The first program. The device has the floats at the address at which the program has them. */
static void increment(const struct pinmap_device *gpu, const struct pinmap_stream *stream,
		      struct pinmap_memory *memory, long before, const char *how)
{
	float *floats = pinmap_address(memory);
	uint64_t there;
	int i;

	for (i = 0; i < FLOATS; i++)
		floats[i] = (float)i;
	check(pinmap_testgpu_increment_f32(stream, memory, 0, FLOATS), "submitting");
	check(pinmap_stream_synchronize(stream, -1), "waiting");
	check(pinmap_device_address(memory, 0, &there), "the device's address");
	printf("%s: pointer %p, device address %#" PRIx64 ", pages pinned: %ld\n ", how,
	       (void *)floats, there, pinned(gpu) - before);
	for (i = 0; i < 10; i++)
		printf(" %g", floats[i]);
	printf("\n");
	for (i = 0; i < FLOATS; i++) {
		if (floats[i] != (float)(i + 1)) {
			fprintf(stderr, "float %d is %g\n", i, floats[i]);
			exit(1);
		}
	}
	check(pinmap_release(memory), "releasing");
}

/* The second program. The CPU only writes `from`, in order: write-combined memory is for that. */
static void copy(const struct pinmap_device *gpu, const struct pinmap_stream *stream)
{
	struct pinmap_memory_options options = { .size = sizeof(options),
						 .flags = PINMAP_WRITE_COMBINED };
	size_t length = INTS * sizeof(int);
	struct pinmap_memory *from = need(pinmap_alloc(gpu, length, &options), "allocating");
	struct pinmap_memory *to = need(pinmap_alloc(gpu, length, &options), "allocating");
	int *ints = pinmap_address(from), i;
	uint64_t there;

	for (i = 0; i < INTS; i++)
		ints[i] = i;
	check(pinmap_stream_copy(stream, to, 0, from, 0, length), "submitting");
	check(pinmap_stream_synchronize(stream, -1), "waiting");
	check(pinmap_device_address(to, 0, &there), "the device's address");
	ints = (int *)(uintptr_t)there;
	printf("write-combined, at the device's pointer %p:\n ", (void *)ints);
	for (i = 0; i < INTS; i++)
		printf(" %d", ints[i]);
	printf("\n");
	check(pinmap_release(from), "releasing");
	check(pinmap_release(to), "releasing");
}

int main(void)
{
	struct pinmap_device *gpu = need(pinmap_find_accelerator(), "looking for an accelerator");
	struct pinmap_stream *stream = need(pinmap_stream_create(gpu, NULL), "making a stream");
	size_t length = FLOATS * sizeof(float);
	float *floats = need(aligned_alloc((size_t)sysconf(_SC_PAGESIZE), length), "allocating");
	struct pinmap_memory *memory;
	long before = pinned(gpu);

	memory = need(pinmap_alloc(gpu, length, NULL), "allocating");
	increment(gpu, stream, memory, before, "allocated");
	memory = need(pinmap_register(gpu, floats, length, NULL), "registering");
	increment(gpu, stream, memory, before, "registered");
	/* Not every kernel lets a driver follow the memory of programs. */
	memory = pinmap_manage(gpu, floats, length);
	if (memory)
		increment(gpu, stream, memory, before, "managed");
	else
		fprintf(stderr, "not managed: %s\n", pinmap_last_error());
	copy(gpu, stream);
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
	free(floats);
	return 0;
}
