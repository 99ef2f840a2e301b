// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Gives a program that knows nothing of accelerators memory that one of them reaches: whatever it
 * allocates by posix_memalign(), from 64 KiB on. Benchmarks of networks get their buffers so.
 *
 * cc -shared -fPIC -o preload.so preload.c $(pkg-config --cflags --libs pinmap)
 * LD_PRELOAD=./preload.so UCX_ALLOC_PRIO=heap ucx_perftest ...
 *
 * At its end the program says how much of it it got, and in which pieces (the first ones).
 * realloc() is the C library's, and aborts at such memory.
 */
#include <pinmap.h>

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LEAST = 64 * 1024, MOST = 256 };

/* The C library's own, by names that nothing takes the place of. */
void *__libc_memalign(size_t alignment, size_t length);
void __libc_free(void *address);

static struct pinmap_device *device;
static struct pinmap_memory *pieces[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t asked, given, count;
/* The lengths of the first pieces, and how many there are. */
static size_t lengths[MOST], had;
/* In libpinmap, whose own memory is the C library's. */
static __thread int inside;

static void *give(size_t alignment, size_t length)
{
	struct pinmap_memory *memory;
	void *address = NULL;
	size_t i = 0;

	pthread_mutex_lock(&lock);
	asked += length;
	if (!device)
		device = pinmap_find_accelerator();
	while (i < MOST && pieces[i])
		i++;
	memory = device && i < MOST ? pinmap_alloc(device, length, NULL) : NULL;
	if (!memory && i < MOST)
		fprintf(stderr, "no memory of the accelerator's driver: %s\n", pinmap_last_error());
	if (memory && (uintptr_t)pinmap_address(memory) % alignment == 0) {
		address = pinmap_address(memory);
		pieces[i] = memory;
		__atomic_store_n(&count, count + 1, __ATOMIC_RELEASE);
		given += length;
		if (had < MOST)
			lengths[had++] = length;
	} else {
		pinmap_release(memory);
	}
	pthread_mutex_unlock(&lock);
	return address;
}

int posix_memalign(void **address, size_t alignment, size_t length)
{
	void *memory = NULL;

	if (!alignment || alignment & (alignment - 1) || alignment % sizeof(void *))
		return EINVAL;
	if (length >= LEAST && !inside) {
		inside = 1;
		memory = give(alignment, length);
		inside = 0;
	}
	if (!memory)
		memory = __libc_memalign(alignment, length);
	if (!memory)
		return ENOMEM;
	*address = memory;
	return 0;
}

static struct pinmap_memory *take(void *address)
{
	struct pinmap_memory *memory = NULL;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < MOST && !memory; i++) {
		if (pieces[i] && pinmap_address(pieces[i]) == address) {
			memory = pieces[i];
			pieces[i] = NULL;
			__atomic_store_n(&count, count - 1, __ATOMIC_RELEASE);
		}
	}
	pthread_mutex_unlock(&lock);
	return memory;
}

void free(void *address)
{
	struct pinmap_memory *memory = NULL;

	/* All that is given is whole pages. */
	if (!inside && address && (uintptr_t)address % (uintptr_t)sysconf(_SC_PAGESIZE) == 0 &&
	    __atomic_load_n(&count, __ATOMIC_ACQUIRE)) {
		inside = 1;
		memory = take(address);
		pinmap_release(memory);
		inside = 0;
	}
	if (!memory)
		__libc_free(address);
}

__attribute__((destructor)) static void tell(void)
{
	char pieces[MOST * 21 + 1] = "";
	size_t end = 0;

	for (size_t i = 0; i < had; i++)
		end += (size_t)snprintf(pieces + end, sizeof(pieces) - end, " %zu", lengths[i]);
	if (asked)
		fprintf(stderr, "memory of the accelerator's driver: %zu of %zu bytes:%s\n", given,
			asked, pieces);
}
