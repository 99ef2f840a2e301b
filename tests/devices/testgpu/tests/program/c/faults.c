// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs that stop.
#include "device.h"

void copy(unsigned long each, const unsigned long *from, unsigned long *to)
{
	unsigned long first = NUMBER * each;

	for (unsigned long i = first; i < first + each; i++)
		to[i] = from[i] + 1;
}

// Adds across a barrier, so that other threads wait while one faults.
void meet(unsigned long *data, unsigned long stride)
{
	double half = 0.5 * THREAD;

	data[THREAD * stride] += 1;
	barrier();
	data[THREAD * stride] += (unsigned long)(half + half);
}

void forever(volatile unsigned long *counter)
{
	for (;;)
		*counter = *counter + 1;
}

void spin(void)
{
	for (;;)
		;
}

void misaligned_store(char *at)
{
	*(volatile unsigned long *)at = 0x1122334455667788;
}

void add(unsigned long *word, unsigned long times)
{
	while (times--)
		__atomic_fetch_add(word, 1, __ATOMIC_RELAXED);
}

void trap_illegal(void)
{
	if (THREAD == 2)
		__asm__ volatile(".word 0xffffffff");
}

void trap_csr(void)
{
	if (THREAD == 2)
		CSR(0x300);
}

void trap_break(void)
{
	if (THREAD == 2)
		__builtin_debugtrap();
}

void trap_misaligned(char *word)
{
	if (THREAD == 2)
		__atomic_fetch_add((unsigned int *)(word + 2), 1, __ATOMIC_RELAXED);
}

void trap_call(void)
{
	if (THREAD == 2)
		call(77, 0, 0);
}

void trap_print(void)
{
	if (THREAD == 2)
		call(2, 0, 4097);
}

void trap_abort(void)
{
	if (THREAD == 2)
		call(3, 1234, 0);
}

__attribute__((noinline)) static long deep(long depth)
{
	volatile long here[16];

	here[depth & 15] = depth;
	return depth == 0 ? 0 : deep(depth - 1) + here[depth & 15];
}

void stack_deep(long depth, long *sum)
{
	if (THREAD == 2)
		*sum = deep(depth);
}

__attribute__((noinline)) static char large(long place)
{
	volatile char here[100000];

	here[place] = 1;
	return here[place];
}

void stack_large(long place)
{
	if (THREAD == 2)
		large(place);
}

__attribute__((noinline)) static char aligned(long place)
{
	volatile char here[16] __attribute__((aligned(2048)));

	here[place] = 1;
	return here[place];
}

void stack_aligned(long place)
{
	if (THREAD == 2)
		aligned(place);
}
