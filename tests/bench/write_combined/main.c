// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Measures what write-combined memory saves to write and costs to read, on this computer and
 * without the driver: by accesses to ordinary memory that take the same ways. Non-temporal stores
 * go through the write-combining buffers, past the caches; each load of write-combined memory goes
 * to memory by itself, as a load does whose address depends on the one before and is in no cache.
 * (An emulator gives memory types no effect, so a virtual machine without KVM cannot show this.)
 *
 * cc -O2 -o write_combined tests/bench/write_combined/main.c && ./write_combined
 */
#include <emmintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

/* More than the caches hold. */
#define BYTES ((size_t)256 << 20)
#define WORDS (BYTES / 8)
#define LINES (BYTES / 64)
#define LOADS 2000000

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void least(double *least, double begin)
{
	double time = now() - begin;

	if (!*least || time < *least)
		*least = time;
}

int main(void)
{
	double stores = 0, streamed = 0, loads = 0, missed = 0, begin;
	volatile uint64_t *words = mmap(NULL, BYTES, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t sum = 0, line = 0;
	size_t i;
	int run;

	if (words == MAP_FAILED)
		return 1;
	madvise((void *)words, BYTES, MADV_HUGEPAGE);
	/* The least of several times: other work only adds. */
	for (run = 0; run < 8; run++) {
		begin = now();
		for (i = 0; i < WORDS; i++)
			words[i] = i;
		/* The first run also faults the pages in. */
		if (run)
			least(&stores, begin);
		begin = now();
		for (i = 0; i < WORDS; i++)
			_mm_stream_si64((long long *)words + i, (long long)i);
		_mm_sfence();
		least(&streamed, begin);
		begin = now();
		for (i = 0; i < WORDS; i++)
			sum += words[i];
		least(&loads, begin);
		/* An order of all lines that no prefetcher foresees. */
		for (i = 0; i < LINES; i++)
			words[i * 8] = (i * 1664525 + 1013904223) % LINES;
		begin = now();
		for (i = 0; i < LOADS; i++)
			line = words[line * 8];
		least(&missed, begin);
	}
	printf("stores past the caches take %.2f of the time of ordinary ones\n",
	       streamed / stores);
	printf("a load that goes to memory by itself takes %.0f times one of many in order\n",
	       missed / LOADS / (loads / WORDS));
	return sum + line == 1;
}
