/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Atomics, vectors in memory and copies in OpenCL C; included by pinmap_opencl.h */

/* Defines the atomics of OpenCL 1, each of which returns the number as it was. */
#define PINMAP_ATOMIC(T, prefix)                                                                   \
	PINMAP_ATOMIC2(T, prefix##add, __atomic_fetch_add)                                         \
	PINMAP_ATOMIC2(T, prefix##sub, __atomic_fetch_sub)                                         \
	PINMAP_ATOMIC2(T, prefix##and, __atomic_fetch_and)                                         \
	PINMAP_ATOMIC2(T, prefix##or, __atomic_fetch_or)                                           \
	PINMAP_ATOMIC2(T, prefix##xor, __atomic_fetch_xor)                                         \
	PINMAP_ATOMIC2(T, prefix##min, __atomic_fetch_min)                                         \
	PINMAP_ATOMIC2(T, prefix##max, __atomic_fetch_max)                                         \
	PINMAP_ATOMIC2(T, prefix##xchg, __atomic_exchange_n)                                       \
	PINMAP_FN T prefix##inc(volatile T *p)                                                     \
	{                                                                                          \
		return __atomic_fetch_add(p, 1, __ATOMIC_RELAXED);                                 \
	}                                                                                          \
	PINMAP_FN T prefix##dec(volatile T *p)                                                     \
	{                                                                                          \
		return __atomic_fetch_sub(p, 1, __ATOMIC_RELAXED);                                 \
	}                                                                                          \
	PINMAP_FN T prefix##cmpxchg(volatile T *p, T old, T value)                                 \
	{                                                                                          \
		__atomic_compare_exchange_n(p, &old, value, 0, __ATOMIC_RELAXED,                   \
					    __ATOMIC_RELAXED);                                     \
		return old;                                                                        \
	}
#define PINMAP_ATOMIC2(T, name, builtin)                                                           \
	PINMAP_FN T name(volatile T *p, T value)                                                   \
	{                                                                                          \
		return builtin(p, value, __ATOMIC_RELAXED);                                        \
	}

PINMAP_ATOMIC(int, atomic_)
PINMAP_ATOMIC(uint, atomic_)
PINMAP_ATOMIC(int, atom_)
PINMAP_ATOMIC(uint, atom_)
PINMAP_ATOMIC(long, atom_)
PINMAP_ATOMIC(ulong, atom_)

PINMAP_FN float atomic_xchg(volatile float *p, float value)
{
	return as_float(atomic_xchg((volatile uint *)p, as_uint(value)));
}

/* Defines those of OpenCL 2, on atomic types. */
#define PINMAP_ATOMIC_FETCH(A, T, name)                                                            \
	PINMAP_FN T atomic_##name##_explicit(volatile A *p, T value, memory_order order,           \
					     memory_scope scope)                                   \
	{                                                                                          \
		return __opencl_atomic_##name(p, value, memory_order_seq_cst,                      \
					      memory_scope_device);                                \
	}                                                                                          \
	PINMAP_FN T atomic_##name##_explicit(volatile A *p, T value, memory_order order)           \
	{                                                                                          \
		return __opencl_atomic_##name(p, value, memory_order_seq_cst,                      \
					      memory_scope_device);                                \
	}                                                                                          \
	PINMAP_FN T atomic_##name(volatile A *p, T value)                                          \
	{                                                                                          \
		return __opencl_atomic_##name(p, value, memory_order_seq_cst,                      \
					      memory_scope_device);                                \
	}
#define PINMAP_ATOMIC_TYPE(A, T)                                                                   \
	PINMAP_ATOMIC_FETCH(A, T, fetch_add)                                                       \
	PINMAP_ATOMIC_FETCH(A, T, fetch_sub)                                                       \
	PINMAP_ATOMIC_FETCH(A, T, fetch_and)                                                       \
	PINMAP_ATOMIC_FETCH(A, T, fetch_or)                                                        \
	PINMAP_ATOMIC_FETCH(A, T, fetch_xor)                                                       \
	PINMAP_ATOMIC_FETCH(A, T, fetch_min)                                                       \
	PINMAP_ATOMIC_FETCH(A, T, fetch_max)                                                       \
	PINMAP_ATOMIC_FETCH(A, T, exchange)                                                        \
	PINMAP_FN void atomic_init(volatile A *p, T value)                                         \
	{                                                                                          \
		__opencl_atomic_init(p, value);                                                    \
	}                                                                                          \
	PINMAP_FN void atomic_store(volatile A *p, T value)                                        \
	{                                                                                          \
		__opencl_atomic_store(p, value, memory_order_seq_cst, memory_scope_device);        \
	}                                                                                          \
	PINMAP_FN T atomic_load(volatile A *p)                                                     \
	{                                                                                          \
		return __opencl_atomic_load(p, memory_order_seq_cst, memory_scope_device);         \
	}                                                                                          \
	PINMAP_FN bool atomic_compare_exchange_strong(volatile A *p, T *old, T value)              \
	{                                                                                          \
		return __opencl_atomic_compare_exchange_strong(                                    \
			p, old, value, memory_order_seq_cst, memory_order_seq_cst,                 \
			memory_scope_device);                                                      \
	}                                                                                          \
	PINMAP_FN bool atomic_compare_exchange_weak(volatile A *p, T *old, T value)                \
	{                                                                                          \
		return atomic_compare_exchange_strong(p, old, value);                              \
	}

PINMAP_ATOMIC_TYPE(atomic_int, int)
PINMAP_ATOMIC_TYPE(atomic_uint, uint)
PINMAP_ATOMIC_TYPE(atomic_long, long)
PINMAP_ATOMIC_TYPE(atomic_ulong, ulong)

/* Vectors in memory that is aligned as their elements are. */
#define PINMAP_VLOAD(n, T, qualifier)                                                              \
	PINMAP_FN T##n vload##n(size_t offset, const qualifier T *p)                               \
	{                                                                                          \
		T##n r;                                                                            \
		for (int i = 0; i < n; i++)                                                        \
			r[i] = p[n * offset + i];                                                  \
		return r;                                                                          \
	}
#define PINMAP_VECTOR(n, T)                                                                        \
	PINMAP_VLOAD(n, T, volatile)                                                               \
	PINMAP_VLOAD(n, T, __constant)                                                             \
	PINMAP_FN void vstore##n(T##n value, size_t offset, volatile T *p)                         \
	{                                                                                          \
		for (int i = 0; i < n; i++)                                                        \
			p[n * offset + i] = value[i];                                              \
	}

/* Copies by all threads of the block, which are done when the group's events are waited for. */
#define PINMAP_ASYNC(T)                                                                            \
	PINMAP_FN event_t async_work_group_copy(volatile T *to, const volatile T *from,            \
						size_t count, event_t event)                       \
	{                                                                                          \
		for (size_t i = get_local_linear_id(); i < count; i += pinmap_threads())           \
			to[i] = from[i];                                                           \
		return event;                                                                      \
	}
#define PINMAP_ASYNC_EACH(n, T) PINMAP_ASYNC(T##n)
#define PINMAP_MEMORY(T, ...)                                                                      \
	PINMAP_VECTORS(PINMAP_VECTOR, T)                                                           \
	PINMAP_ASYNC(T) PINMAP_VECTORS(PINMAP_ASYNC_EACH, T)

PINMAP_FN size_t pinmap_threads(void)
{
	return get_local_size(0) * get_local_size(1) * get_local_size(2);
}

PINMAP_TYPES(PINMAP_MEMORY)

PINMAP_FN void wait_group_events(int count, event_t *events)
{
	barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
}

PINMAP_FN void prefetch(const volatile void *p, size_t count)
{
}
