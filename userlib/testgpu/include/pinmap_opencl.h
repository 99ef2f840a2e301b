/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * OpenCL C for the test GPU: what clang leaves to a library
 *
 * It is included before the kernels, and pinmap_opencl.c is compiled beside them.
 * docs/opencl-kernels.md has the command.
 */
#ifndef PINMAP_OPENCL_H
#define PINMAP_OPENCL_H

/* The loader finds kernels by their names. */
#define __kernel __attribute__((visibility("default"))) __kernel
#define kernel __kernel

/*
 * To LLVM a variable in local memory is one that only the kernel uses, and thus might as well be in
 * a register: for a device with one thread. The other threads' stores are seen if it is volatile.
 */
#define __local volatile __local
#define local __local
#pragma clang diagnostic ignored "-Wduplicate-decl-specifier"
#pragma clang diagnostic ignored "-Wincompatible-pointer-types-discards-qualifiers"

#define PINMAP_FN __attribute__((overloadable, always_inline)) static inline

#define PINMAP_CSR(number)                                                                         \
	({                                                                                         \
		ulong pinmap_value;                                                                \
		__asm__("csrr %0, " #number : "=r"(pinmap_value));                                 \
		pinmap_value;                                                                      \
	})

#define PINMAP_DIMENSIONS(name, x, y, z, others)                                                   \
	PINMAP_FN size_t name(uint dimension)                                                      \
	{                                                                                          \
		switch (dimension) {                                                               \
		case 0:                                                                            \
			return PINMAP_CSR(x);                                                      \
		case 1:                                                                            \
			return PINMAP_CSR(y);                                                      \
		case 2:                                                                            \
			return PINMAP_CSR(z);                                                      \
		}                                                                                  \
		return others;                                                                     \
	}

PINMAP_DIMENSIONS(get_local_id, 0xcc0, 0xcc1, 0xcc2, 0)
PINMAP_DIMENSIONS(get_group_id, 0xcc3, 0xcc4, 0xcc5, 0)
PINMAP_DIMENSIONS(get_local_size, 0xcc6, 0xcc7, 0xcc8, 1)
PINMAP_DIMENSIONS(get_num_groups, 0xcc9, 0xcca, 0xccb, 1)

PINMAP_FN size_t get_enqueued_local_size(uint dimension)
{
	return get_local_size(dimension);
}

PINMAP_FN size_t get_global_id(uint dimension)
{
	return get_group_id(dimension) * get_local_size(dimension) + get_local_id(dimension);
}

PINMAP_FN size_t get_global_size(uint dimension)
{
	return get_num_groups(dimension) * get_local_size(dimension);
}

PINMAP_FN size_t get_global_offset(uint dimension)
{
	return 0;
}

PINMAP_FN uint get_work_dim(void)
{
	return get_global_size(2) > 1 ? 3 : get_global_size(1) > 1 ? 2 : 1;
}

PINMAP_FN size_t get_local_linear_id(void)
{
	return PINMAP_CSR(0xccc);
}

PINMAP_FN size_t get_global_linear_id(void)
{
	return get_global_id(0) +
	       get_global_size(0) * (get_global_id(1) + get_global_size(1) * get_global_id(2));
}

PINMAP_FN void barrier(cl_mem_fence_flags flags)
{
	__asm__ volatile("li a7, 1\n\tecall" : : : "a0", "a7", "memory");
}

PINMAP_FN void work_group_barrier(cl_mem_fence_flags flags)
{
	barrier(flags);
}

PINMAP_FN void work_group_barrier(cl_mem_fence_flags flags, memory_scope scope)
{
	barrier(flags);
}

#define PINMAP_FENCE(name)                                                                         \
	PINMAP_FN void name(cl_mem_fence_flags flags)                                              \
	{                                                                                          \
		__asm__ volatile("fence" : : : "memory");                                          \
	}

PINMAP_FENCE(mem_fence)
PINMAP_FENCE(read_mem_fence)
PINMAP_FENCE(write_mem_fence)

PINMAP_FN void atomic_work_item_fence(cl_mem_fence_flags flags, memory_order order,
				      memory_scope scope)
{
	mem_fence(flags);
}

/* Has each parameter list once for a vector of each length, and for the scalar. */
#define PINMAP_VECTORS(M, ...)                                                                     \
	M(2, __VA_ARGS__) M(3, __VA_ARGS__) M(4, __VA_ARGS__) M(8, __VA_ARGS__) M(16, __VA_ARGS__)
#define PINMAP_SIGNED(M, ...)                                                                      \
	M(char, uchar, char, CHAR, __VA_ARGS__)                                                    \
	M(short, ushort, short, SHRT, __VA_ARGS__)                                                 \
	M(int, uint, int, INT, __VA_ARGS__) M(long, ulong, long, LONG, __VA_ARGS__)
#define PINMAP_UNSIGNED(M, ...)                                                                    \
	M(uchar, uchar, char, UCHAR, __VA_ARGS__)                                                  \
	M(ushort, ushort, short, USHRT, __VA_ARGS__)                                               \
	M(uint, uint, int, UINT, __VA_ARGS__) M(ulong, ulong, long, ULONG, __VA_ARGS__)
#define PINMAP_INTEGERS(M, ...) PINMAP_SIGNED(M, __VA_ARGS__) PINMAP_UNSIGNED(M, __VA_ARGS__)
#define PINMAP_FLOATS(M, ...)                                                                      \
	M(float, uint, int, FLT, __VA_ARGS__) M(double, ulong, long, DBL, __VA_ARGS__)
#define PINMAP_TYPES(M, ...) PINMAP_INTEGERS(M, __VA_ARGS__) PINMAP_FLOATS(M, __VA_ARGS__)

/* A function of vectors from that of their elements, with one to three parameters. */
#define PINMAP_EACH1(n, R, name, A)                                                                \
	PINMAP_FN R##n name(A##n a)                                                                \
	{                                                                                          \
		R##n r;                                                                            \
		for (int i = 0; i < n; i++)                                                        \
			r[i] = name(a[i]);                                                         \
		return r;                                                                          \
	}
#define PINMAP_EACH2(n, R, name, A, B)                                                             \
	PINMAP_FN R##n name(A##n a, B##n b)                                                        \
	{                                                                                          \
		R##n r;                                                                            \
		for (int i = 0; i < n; i++)                                                        \
			r[i] = name(a[i], b[i]);                                                   \
		return r;                                                                          \
	}
#define PINMAP_EACH3(n, R, name, A, B, C)                                                          \
	PINMAP_FN R##n name(A##n a, B##n b, C##n c)                                                \
	{                                                                                          \
		R##n r;                                                                            \
		for (int i = 0; i < n; i++)                                                        \
			r[i] = name(a[i], b[i], c[i]);                                             \
		return r;                                                                          \
	}
/* Takes a scalar as the second parameter, or as the last two. */
#define PINMAP_EACH1S(n, R, name, A, B)                                                            \
	PINMAP_FN R##n name(A##n a, B b)                                                           \
	{                                                                                          \
		return name(a, (A##n)b);                                                           \
	}
#define PINMAP_EACH1SS(n, R, name, A)                                                              \
	PINMAP_FN R##n name(A##n a, A b, A c)                                                      \
	{                                                                                          \
		return name(a, (A##n)b, (A##n)c);                                                  \
	}

#define PINMAP_1(R, name, A, result)                                                               \
	PINMAP_FN R name(A a)                                                                      \
	{                                                                                          \
		return result;                                                                     \
	}                                                                                          \
	PINMAP_VECTORS(PINMAP_EACH1, R, name, A)
#define PINMAP_2(R, name, A, B, result)                                                            \
	PINMAP_FN R name(A a, B b)                                                                 \
	{                                                                                          \
		return result;                                                                     \
	}                                                                                          \
	PINMAP_VECTORS(PINMAP_EACH2, R, name, A, B)
#define PINMAP_3(R, name, A, B, C, result)                                                         \
	PINMAP_FN R name(A a, B b, C c)                                                            \
	{                                                                                          \
		return result;                                                                     \
	}                                                                                          \
	PINMAP_VECTORS(PINMAP_EACH3, R, name, A, B, C)

#include "pinmap_opencl_integer.h"
#include "pinmap_opencl_math.h"
#include "pinmap_opencl_memory.h"

#endif
