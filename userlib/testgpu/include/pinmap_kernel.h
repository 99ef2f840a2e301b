/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Kernels in C for the test GPU: section 17 of its manual, in CUDA's words
 *
 * A kernel is a function with __global__. Each thread of the grid runs it, and ends with it.
 * docs/kernels.md shows how one is compiled and launched.
 */
#ifndef PINMAP_KERNEL_H
#define PINMAP_KERNEL_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Marks a kernel. The loader finds it by its name. */
#define __global__ __attribute__((used, visibility("default")))

/* Marks a function that kernels call. */
#define __device__ static inline __attribute__((unused))

struct dim3 {
	unsigned int x, y, z;
};

#define PINMAP_CSR(number)                                                                         \
	({                                                                                         \
		uint64_t pinmap_value;                                                             \
		__asm__("csrr %0, " #number : "=r"(pinmap_value));                                 \
		pinmap_value;                                                                      \
	})

__device__ struct dim3 pinmap_dim3(uint64_t x, uint64_t y, uint64_t z)
{
	struct dim3 all = { (unsigned int)x, (unsigned int)y, (unsigned int)z };

	return all;
}

/* The thread in its block, the block in the grid, and the sizes of a block and of the grid. */
#define threadIdx pinmap_dim3(PINMAP_CSR(0xcc0), PINMAP_CSR(0xcc1), PINMAP_CSR(0xcc2))
#define blockIdx pinmap_dim3(PINMAP_CSR(0xcc3), PINMAP_CSR(0xcc4), PINMAP_CSR(0xcc5))
#define blockDim pinmap_dim3(PINMAP_CSR(0xcc6), PINMAP_CSR(0xcc7), PINMAP_CSR(0xcc8))
#define gridDim pinmap_dim3(PINMAP_CSR(0xcc9), PINMAP_CSR(0xcca), PINMAP_CSR(0xccb))

/* Returns the number of the thread in the grid: that of its block, times the threads of a block,
 * plus that of the thread in its block. */
__device__ uint64_t gridThread(void)
{
	return PINMAP_CSR(0xcce);
}

/* Returns the memory that the threads of a block share. It is not cleared. */
__device__ void *sharedMemory(void)
{
	return (void *)PINMAP_CSR(0xccf);
}

/* Returns the length of the memory that the threads of a block share. */
__device__ size_t sharedBytes(void)
{
	return PINMAP_CSR(0xcd0);
}

/* Returns how many instructions the thread has executed. */
__device__ uint64_t clock64(void)
{
	uint64_t count;

	__asm__ volatile("csrr %0, 0xc02" : "=r"(count) : : "memory");
	return count;
}

/* Returns the device's clock in nanoseconds. */
__device__ uint64_t globaltimer(void)
{
	uint64_t time;

	__asm__ volatile("csrr %0, 0xc01" : "=r"(time) : : "memory");
	return time;
}

__device__ uint64_t pinmap_call(uint64_t number, uint64_t first, uint64_t second)
{
	register uint64_t a7 __asm__("a7") = number;
	register uint64_t a0 __asm__("a0") = first;
	register uint64_t a1 __asm__("a1") = second;

	__asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1) : "memory");
	return a0;
}

/* Ends the thread. */
__device__ __attribute__((noreturn)) void threadExit(void)
{
	pinmap_call(0, 0, 0);
	__builtin_unreachable();
}

/* Waits until each thread of the block is here, or has ended. */
__device__ void __syncthreads(void)
{
	pinmap_call(1, 0, 0);
}

/* Stops the launch. The value is in its report. */
__device__ __attribute__((noreturn)) void abortWith(uint64_t value)
{
	pinmap_call(3, value, 0);
	__builtin_unreachable();
}

/* Lets the other threads of the block go on, for one that waits for them. */
__device__ void __nanosleep(unsigned int ns)
{
	(void)ns;
	/* PAUSE, by its encoding: it is a hint, which every assembler takes so. */
	__asm__ volatile(".4byte 0x0100000f" : : : "memory");
}

__device__ void __threadfence(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Atomic operations on numbers of 4 and 8 bytes, each of which returns the number as it was. */
#define atomicAdd(to, value) __atomic_fetch_add(to, value, __ATOMIC_RELAXED)
#define atomicSub(to, value) __atomic_fetch_sub(to, value, __ATOMIC_RELAXED)
#define atomicAnd(to, value) __atomic_fetch_and(to, value, __ATOMIC_RELAXED)
#define atomicOr(to, value) __atomic_fetch_or(to, value, __ATOMIC_RELAXED)
#define atomicXor(to, value) __atomic_fetch_xor(to, value, __ATOMIC_RELAXED)
#define atomicMin(to, value) __atomic_fetch_min(to, value, __ATOMIC_RELAXED)
#define atomicMax(to, value) __atomic_fetch_max(to, value, __ATOMIC_RELAXED)
#define atomicExch(to, value) __atomic_exchange_n(to, value, __ATOMIC_RELAXED)
#define atomicCAS(to, old, value)                                                                  \
	({                                                                                         \
		__typeof__(*(to)) pinmap_old = (old);                                              \
		__atomic_compare_exchange_n(to, &pinmap_old, value, 0, __ATOMIC_RELAXED,           \
					    __ATOMIC_RELAXED);                                     \
		pinmap_old;                                                                        \
	})

#include "pinmap_kernel_printf.h"

/* Stops the launch, having said why, unless the condition holds. */
#define assert(condition)                                                                          \
	((condition) ? (void)0 :                                                                   \
		       (printf("%s:%d: assertion `%s' failed\n", __FILE__, __LINE__, #condition),  \
			abortWith(__LINE__)))

/* Compilers call these where they copy or clear structs and arrays. */
#define PINMAP_LIBC __attribute__((weak, no_builtin, visibility("hidden")))

PINMAP_LIBC void *memcpy(void *to, const void *from, size_t count)
{
	for (size_t i = 0; i < count; i++)
		((char *)to)[i] = ((const char *)from)[i];
	return to;
}

PINMAP_LIBC void *memmove(void *to, const void *from, size_t count)
{
	if ((uintptr_t)to <= (uintptr_t)from)
		return memcpy(to, from, count);
	while (count--)
		((char *)to)[count] = ((const char *)from)[count];
	return to;
}

PINMAP_LIBC void *memset(void *to, int byte, size_t count)
{
	for (size_t i = 0; i < count; i++)
		((char *)to)[i] = (char)byte;
	return to;
}

PINMAP_LIBC int memcmp(const void *one, const void *other, size_t count)
{
	const unsigned char *a = (const unsigned char *)one, *b = (const unsigned char *)other;

	for (; count && *a == *b; count--)
		a++, b++;
	return count ? *a - *b : 0;
}

#ifdef __cplusplus
}
#endif

#endif
