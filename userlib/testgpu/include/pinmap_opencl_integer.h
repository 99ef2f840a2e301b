/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Integers, conversions and selections in OpenCL C; included by pinmap_opencl.h */

#define UCHAR_MIN 0
#define USHRT_MIN 0
#define UINT_MIN 0
#define ULONG_MIN 0

/* The type, the unsigned and the signed one of its size, and the begin of its limits' names. */
#define PINMAP_INTEGER(T, U, S, L, ...)                                                            \
	PINMAP_2(T, min, T, T, b < a ? b : a)                                                      \
	PINMAP_2(T, max, T, T, a < b ? b : a)                                                      \
	PINMAP_VECTORS(PINMAP_EACH1S, T, min, T, T)                                                \
	PINMAP_VECTORS(PINMAP_EACH1S, T, max, T, T)                                                \
	PINMAP_3(T, clamp, T, T, T, min(max(a, b), c))                                             \
	PINMAP_VECTORS(PINMAP_EACH1SS, T, clamp, T)                                                \
	PINMAP_2(U, abs_diff, T, T, a < b ? (U)b - (U)a : (U)a - (U)b)                             \
	PINMAP_2(T, add_sat, T, T, __builtin_elementwise_add_sat(a, b))                            \
	PINMAP_2(T, sub_sat, T, T, __builtin_elementwise_sub_sat(a, b))                            \
	PINMAP_2(T, hadd, T, T, (a >> 1) + (b >> 1) + (a & b & 1))                                 \
	PINMAP_2(T, rhadd, T, T, (a >> 1) + (b >> 1) + ((a | b) & 1))                              \
	PINMAP_2(T, rotate, T, T,                                                                  \
		 (T)((U)a << (b & (8 * sizeof(T) - 1)) |                                           \
		     (U)a >> (-b & (8 * sizeof(T) - 1))))                                          \
	PINMAP_1(T, popcount, T, (T)__builtin_popcountl((U)a))                                     \
	PINMAP_1(T, clz, T, a ? __builtin_clzl((U)a) - 64 + 8 * sizeof(T) : 8 * sizeof(T))         \
	PINMAP_1(T, ctz, T, a ? __builtin_ctzl((U)a) : 8 * sizeof(T))                              \
	PINMAP_3(T, bitselect, T, T, T, (a & ~c) | (b & c))

PINMAP_INTEGERS(PINMAP_INTEGER)

#define PINMAP_ABS_SIGNED(T, U, ...) PINMAP_1(U, abs, T, a < 0 ? -(U)a : (U)a)
#define PINMAP_ABS_UNSIGNED(T, ...) PINMAP_1(T, abs, T, a)

PINMAP_SIGNED(PINMAP_ABS_SIGNED)
PINMAP_UNSIGNED(PINMAP_ABS_UNSIGNED)

#define PINMAP_MUL_HI(T, wide) PINMAP_2(T, mul_hi, T, T, (T)((wide)a * b >> (8 * sizeof(T))))

PINMAP_MUL_HI(char, int)
PINMAP_MUL_HI(uchar, uint)
PINMAP_MUL_HI(short, int)
PINMAP_MUL_HI(ushort, uint)
PINMAP_MUL_HI(int, long)
PINMAP_MUL_HI(uint, ulong)

PINMAP_FN ulong pinmap_high(ulong a, ulong b)
{
	ulong high;

	__asm__("mulhu %0, %1, %2" : "=r"(high) : "r"(a), "r"(b));
	return high;
}

PINMAP_2(ulong, mul_hi, ulong, ulong, pinmap_high(a, b))
PINMAP_2(long, mul_hi, long, long,
	 (long)(pinmap_high(a, b) - (a < 0 ? (ulong)b : 0) - (b < 0 ? (ulong)a : 0)))

#define PINMAP_MAD_HI(T, ...) PINMAP_3(T, mad_hi, T, T, T, mul_hi(a, b) + c)

PINMAP_INTEGERS(PINMAP_MAD_HI)

#define PINMAP_24(T)                                                                               \
	PINMAP_2(T, mul24, T, T, a *b)                                                             \
	PINMAP_3(T, mad24, T, T, T, a *b + c)

PINMAP_24(int)
PINMAP_24(uint)

#define PINMAP_UPSAMPLE(R, T, U) PINMAP_2(R, upsample, T, U, (R)((R)a << (8 * sizeof(T)) | b))

PINMAP_UPSAMPLE(short, char, uchar)
PINMAP_UPSAMPLE(ushort, uchar, uchar)
PINMAP_UPSAMPLE(int, short, ushort)
PINMAP_UPSAMPLE(uint, ushort, ushort)
PINMAP_UPSAMPLE(long, int, uint)
PINMAP_UPSAMPLE(ulong, uint, uint)

/* Selects by the highest bit of each element, in vectors. */
#define PINMAP_SELECT_EACH(n, T, C)                                                                \
	PINMAP_FN T##n select(T##n a, T##n b, C##n c)                                              \
	{                                                                                          \
		for (int i = 0; i < n; i++)                                                        \
			a[i] = c[i] >> (8 * sizeof(C) - 1) ? b[i] : a[i];                          \
		return a;                                                                          \
	}
#define PINMAP_SELECT(T, C)                                                                        \
	PINMAP_FN T select(T a, T b, C c)                                                          \
	{                                                                                          \
		return c ? b : a;                                                                  \
	}                                                                                          \
	PINMAP_VECTORS(PINMAP_SELECT_EACH, T, C)
#define PINMAP_SELECTS(T, U, S, ...) PINMAP_SELECT(T, U) PINMAP_SELECT(T, S)

PINMAP_TYPES(PINMAP_SELECTS)

#define PINMAP_ANY_EACH(n, T, name, begin, sign)                                                   \
	PINMAP_FN int name(T##n a)                                                                 \
	{                                                                                          \
		int r = begin;                                                                     \
		for (int i = 0; i < n; i++)                                                        \
			r = r sign(a[i] < 0);                                                      \
		return r;                                                                          \
	}
#define PINMAP_ANY(T, ...)                                                                         \
	PINMAP_FN int any(T a)                                                                     \
	{                                                                                          \
		return a < 0;                                                                      \
	}                                                                                          \
	PINMAP_FN int all(T a)                                                                     \
	{                                                                                          \
		return a < 0;                                                                      \
	}                                                                                          \
	PINMAP_VECTORS(PINMAP_ANY_EACH, T, any, 0, |)                                              \
	PINMAP_VECTORS(PINMAP_ANY_EACH, T, all, 1, &)

PINMAP_SIGNED(PINMAP_ANY)

/* Conversions, of scalars and of vectors. The result's name and the kind are one word. */
#define PINMAP_CONVERT_EACH(n, name, kind, D, S)                                                   \
	PINMAP_FN D##n name##n##kind(S##n a)                                                       \
	{                                                                                          \
		D##n r;                                                                            \
		for (int i = 0; i < n; i++)                                                        \
			r[i] = name##kind(a[i]);                                                   \
		return r;                                                                          \
	}
#define PINMAP_CONVERT(name, kind, D, S, result)                                                   \
	PINMAP_FN D name##kind(S a)                                                                \
	{                                                                                          \
		return result;                                                                     \
	}                                                                                          \
	PINMAP_VECTORS(PINMAP_CONVERT_EACH, name, kind, D, S)

/* To an integer D with the limits L. From a float: as if of endless length, and none is zero. */
#define PINMAP_FROM_SIGNED(S, U, T, N, D, L)                                                       \
	PINMAP_CONVERT(convert_##D, , D, S, (D)a)                                                  \
	PINMAP_CONVERT(convert_##D, _sat, D, S,                                                    \
		       (long)a < (long)L##_MIN && (long)L##_MIN <= 0 ? (D)L##_MIN :                \
		       a > 0 && (ulong)a > (ulong)L##_MAX	     ? (D)L##_MAX :                \
								       (D)a)
#define PINMAP_FROM_UNSIGNED(S, U, T, N, D, L)                                                     \
	PINMAP_CONVERT(convert_##D, , D, S, (D)a)                                                  \
	PINMAP_CONVERT(convert_##D, _sat, D, S, (ulong)a > (ulong)L##_MAX ? (D)L##_MAX : (D)a)
#define PINMAP_SAT(S, D, L, a)                                                                     \
	((a) != (a)	      ? 0 :                                                                \
	 (a) <= (S)(L##_MIN) ? (D)L##_MIN :                                                        \
	 (a) >= (S)(L##_MAX) ? (D)L##_MAX :                                                        \
			       (D)(a))
#define PINMAP_FROM_FLOAT(S, U, T, N, D, L)                                                        \
	PINMAP_CONVERT(convert_##D, , D, S, (D)a)                                                  \
	PINMAP_CONVERT(convert_##D, _rtz, D, S, (D)a)                                              \
	PINMAP_CONVERT(convert_##D, _rte, D, S, (D)__builtin_rint(a))                              \
	PINMAP_CONVERT(convert_##D, _rtp, D, S, (D)__builtin_ceil(a))                              \
	PINMAP_CONVERT(convert_##D, _rtn, D, S, (D)__builtin_floor(a))                             \
	PINMAP_CONVERT(convert_##D, _sat, D, S, PINMAP_SAT(S, D, L, a))                            \
	PINMAP_CONVERT(convert_##D, _sat_rtz, D, S, PINMAP_SAT(S, D, L, a))                        \
	PINMAP_CONVERT(convert_##D, _sat_rte, D, S, PINMAP_SAT(S, D, L, __builtin_rint(a)))
#define PINMAP_TO_FLOAT(S, U, T, N, D, ...)                                                        \
	PINMAP_CONVERT(convert_##D, , D, S, (D)a)                                                  \
	PINMAP_CONVERT(convert_##D, _rte, D, S, (D)a)

#define PINMAP_CONVERT_TO(D, L)                                                                    \
	PINMAP_SIGNED(PINMAP_FROM_SIGNED, D, L)                                                    \
	PINMAP_UNSIGNED(PINMAP_FROM_UNSIGNED, D, L)                                                \
	PINMAP_FLOATS(PINMAP_FROM_FLOAT, D, L)

PINMAP_CONVERT_TO(char, CHAR)
PINMAP_CONVERT_TO(uchar, UCHAR)
PINMAP_CONVERT_TO(short, SHRT)
PINMAP_CONVERT_TO(ushort, USHRT)
PINMAP_CONVERT_TO(int, INT)
PINMAP_CONVERT_TO(uint, UINT)
PINMAP_CONVERT_TO(long, LONG)
PINMAP_CONVERT_TO(ulong, ULONG)
PINMAP_TYPES(PINMAP_TO_FLOAT, float)
PINMAP_TYPES(PINMAP_TO_FLOAT, double)
