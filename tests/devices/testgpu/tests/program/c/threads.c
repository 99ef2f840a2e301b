// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs about threads, blocks and what they share.
#include "device.h"

// Where a thread is, as its registers say.
void places(unsigned long (*out)[16])
{
	unsigned long *mine = out[NUMBER];

	mine[0] = CSR(0xcc0);
	mine[1] = CSR(0xcc1);
	mine[2] = CSR(0xcc2);
	mine[3] = CSR(0xcc3);
	mine[4] = CSR(0xcc4);
	mine[5] = CSR(0xcc5);
	mine[6] = CSR(0xcc6) | CSR(0xcc7) << 8 | CSR(0xcc8) << 16;
	mine[7] = CSR(0xcc9) | CSR(0xcca) << 8 | CSR(0xccb) << 16;
	mine[8] = THREAD;
	mine[9] = BLOCK;
	mine[10] = CSR(0xccf);
	mine[11] = CSR(0xcd0);
	mine[12] = CSR(0xcd1);
}

// Reverses each block's part. Thread 0 of a block of more than one does not come to the second
// barrier.
void reverse(const unsigned int *in, unsigned int *out, unsigned long threads)
{
	volatile unsigned int *shared = (void *)CSR(0xccf);

	shared[THREAD] = in[NUMBER];
	barrier();
	out[NUMBER] = shared[threads - 1 - THREAD];
	if (THREAD == 0 && threads > 1)
		return;
	barrier();
	out[NUMBER] += shared[0] == in[BLOCK * threads];
}

// Counts under a lock. Who waits for it does not give up its turn by itself.
void locked(volatile int *lock, volatile unsigned long *count, unsigned long times)
{
	while (times--) {
		while (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE))
			;
		unsigned long before = *count;
		for (volatile int i = 0; i < 20; i++)
			;
		*count = before + 1;
		__atomic_store_n(lock, 0, __ATOMIC_RELEASE);
	}
}

// Waits for the other thread of the block, with the instruction that says so.
void ping(volatile unsigned long *turn, unsigned long times)
{
	for (unsigned long i = 0; i < times; i++) {
		while (*turn % 2 != THREAD)
			__asm__ volatile(".word 0x0100000f" ::: "memory");
		*turn = *turn + 1;
	}
}

void many(double *out, long a, float b, long c, double d, int e, unsigned char f, long g, long h,
	  long i, long j, long k, double l)
{
	double *mine = out + 16 * NUMBER;
	double all[] = {a, b, c, d, e, f, g, h, i, j, k, l};

	for (int at = 0; at < 12; at++)
		mine[at] = all[at];
	// The stack is the thread's own.
	k += NUMBER;
	mine[12] = k;
}

void hello(unsigned long times)
{
	char text[] = "block .., thread ..\n";

	for (unsigned long i = 0; i < times; i++) {
		text[6] = '0' + BLOCK / 10;
		text[7] = '0' + BLOCK % 10;
		text[17] = '0' + THREAD / 10;
		text[18] = '0' + THREAD % 10;
		print(text);
	}
}

// Prints, and notes which messages were dropped.
void fill(unsigned long bytes, long *dropped, const char *text)
{
	dropped[NUMBER] = call(2, (long)text, bytes);
}

void times(unsigned long (*out)[4], unsigned long rounds)
{
	for (volatile unsigned long i = 0; i < rounds; i++)
		;
	out[NUMBER][0] = CSR(0xc01);
	out[NUMBER][1] = CSR(0xc00);
	out[NUMBER][2] = CSR(0xc02);
}

void sum(unsigned long each, unsigned long *total, unsigned int *small)
{
	for (unsigned long i = 0; i < each; i++) {
		__atomic_fetch_add(total, NUMBER + 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(small, 1, __ATOMIC_RELAXED);
	}
}

void leave(unsigned long *out)
{
	out[NUMBER] = 1;
	call(0, 0, 0);
	out[NUMBER] = 2;
}
