/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Functions of floats in OpenCL C; included by pinmap_opencl.h */

/* One of the C library, or an instruction, for float and double. */
#define PINMAP_MATH1(name, builtin)                                                                \
	PINMAP_1(float, name, float, __builtin_##builtin##f(a))                                    \
	PINMAP_1(double, name, double, __builtin_##builtin(a))
#define PINMAP_MATH2(name, builtin)                                                                \
	PINMAP_2(float, name, float, float, __builtin_##builtin##f(a, b))                          \
	PINMAP_2(double, name, double, double, __builtin_##builtin(a, b))

#define PINMAP_SAME1(name) PINMAP_MATH1(name, name)
#define PINMAP_SAME2(name) PINMAP_MATH2(name, name)

PINMAP_SAME1(sqrt)
PINMAP_SAME1(fabs)
PINMAP_SAME1(floor)
PINMAP_SAME1(ceil)
PINMAP_SAME1(trunc)
PINMAP_SAME1(rint)
PINMAP_SAME1(round)
PINMAP_SAME1(exp)
PINMAP_SAME1(exp2)
PINMAP_SAME1(exp10)
PINMAP_SAME1(expm1)
PINMAP_SAME1(log)
PINMAP_SAME1(log2)
PINMAP_SAME1(log10)
PINMAP_SAME1(log1p)
PINMAP_SAME1(logb)
PINMAP_SAME1(cbrt)
PINMAP_SAME1(sin)
PINMAP_SAME1(cos)
PINMAP_SAME1(tan)
PINMAP_SAME1(asin)
PINMAP_SAME1(acos)
PINMAP_SAME1(atan)
PINMAP_SAME1(sinh)
PINMAP_SAME1(cosh)
PINMAP_SAME1(tanh)
PINMAP_SAME1(asinh)
PINMAP_SAME1(acosh)
PINMAP_SAME1(atanh)
PINMAP_SAME1(erf)
PINMAP_SAME1(erfc)
PINMAP_SAME1(tgamma)
PINMAP_SAME1(lgamma)
PINMAP_SAME2(pow)
PINMAP_SAME2(atan2)
PINMAP_SAME2(fmod)
PINMAP_SAME2(remainder)
PINMAP_SAME2(hypot)
PINMAP_SAME2(fdim)
PINMAP_SAME2(copysign)
PINMAP_SAME2(nextafter)
PINMAP_SAME2(fmin)
PINMAP_SAME2(fmax)
PINMAP_MATH2(powr, pow)

/* Makes those that may be less exact as exact as others. */
#define PINMAP_ALIAS1(name, of) PINMAP_1(float, name, float, of(a))
#define PINMAP_NATIVE1(name)                                                                       \
	PINMAP_ALIAS1(native_##name, name)                                                         \
	PINMAP_ALIAS1(half_##name, name)

#define PINMAP_CONSTANTS(T, U, S, ...)                                                             \
	PINMAP_1(T, rsqrt, T, 1 / sqrt(a))                                                         \
	PINMAP_1(T, degrees, T, a *(T)57.295779513082320877)                                       \
	PINMAP_1(T, radians, T, a *(T)0.017453292519943295769)                                     \
	PINMAP_1(T, sinpi, T, sin(a *(T)3.1415926535897932385))                                    \
	PINMAP_1(T, cospi, T, cos(a *(T)3.1415926535897932385))                                    \
	PINMAP_1(T, sign, T, a > 0 ? 1 : a < 0 ? -1 : a != a ? 0 : a)                              \
	PINMAP_3(T, mad, T, T, T, a *b + c)                                                        \
	PINMAP_3(T, mix, T, T, T, a + (b - a) * c)                                                 \
	PINMAP_2(T, step, T, T, b < a ? 0 : 1)                                                     \
	PINMAP_2(T, min, T, T, b < a ? b : a)                                                      \
	PINMAP_2(T, max, T, T, a < b ? b : a)                                                      \
	PINMAP_2(T, maxmag, T, T, fabs(a) > fabs(b) ? a : fabs(b) > fabs(a) ? b : fmax(a, b))      \
	PINMAP_2(T, minmag, T, T, fabs(a) < fabs(b) ? a : fabs(b) < fabs(a) ? b : fmin(a, b))      \
	PINMAP_VECTORS(PINMAP_EACH1S, T, min, T, T)                                                \
	PINMAP_VECTORS(PINMAP_EACH1S, T, max, T, T)                                                \
	PINMAP_VECTORS(PINMAP_EACH1S, T, fmin, T, T)                                               \
	PINMAP_VECTORS(PINMAP_EACH1S, T, fmax, T, T)                                               \
	PINMAP_3(T, clamp, T, T, T, fmin(fmax(a, b), c))                                           \
	PINMAP_VECTORS(PINMAP_EACH1SS, T, clamp, T)                                                \
	PINMAP_VECTORS(PINMAP_MIX, T)                                                              \
	PINMAP_3(T, smoothstep, T, T, T, pinmap_smooth(clamp((c - a) / (b - a), (T)0, (T)1)))      \
	PINMAP_2(T, pown, T, int, pow(a, (T)b))                                                    \
	PINMAP_2(T, rootn, T, int, b & 1 ? copysign(pow(fabs(a), 1 / (T)b), a) : pow(a, 1 / (T)b)) \
	PINMAP_3(T, bitselect, T, T, T,                                                            \
		 __builtin_astype((__builtin_astype(a, U) & ~__builtin_astype(c, U)) |             \
					  (__builtin_astype(b, U) & __builtin_astype(c, U)),       \
				  T))                                                              \
	PINMAP_RELATIONS(T, S)

#define PINMAP_MIX(n, T)                                                                           \
	PINMAP_FN T##n mix(T##n a, T##n b, T c)                                                    \
	{                                                                                          \
		return mix(a, b, (T##n)c);                                                         \
	}

/* Says true by 1 for scalars, and by -1 for vectors. */
#define PINMAP_TRUE1(n, name, T, S)                                                                \
	PINMAP_FN S##n name(T##n a)                                                                \
	{                                                                                          \
		S##n r;                                                                            \
		for (int i = 0; i < n; i++)                                                        \
			r[i] = -name(a[i]);                                                        \
		return r;                                                                          \
	}
#define PINMAP_TRUE2(n, name, T, S)                                                                \
	PINMAP_FN S##n name(T##n a, T##n b)                                                        \
	{                                                                                          \
		S##n r;                                                                            \
		for (int i = 0; i < n; i++)                                                        \
			r[i] = -name(a[i], b[i]);                                                  \
		return r;                                                                          \
	}
#define PINMAP_RELATION1(name, T, S, result)                                                       \
	PINMAP_FN int name(T a)                                                                    \
	{                                                                                          \
		return result;                                                                     \
	}                                                                                          \
	PINMAP_VECTORS(PINMAP_TRUE1, name, T, S)
#define PINMAP_RELATION2(name, T, S, result)                                                       \
	PINMAP_FN int name(T a, T b)                                                               \
	{                                                                                          \
		return result;                                                                     \
	}                                                                                          \
	PINMAP_VECTORS(PINMAP_TRUE2, name, T, S)
#define PINMAP_RELATIONS(T, S)                                                                     \
	PINMAP_RELATION1(isnan, T, S, a != a)                                                      \
	PINMAP_RELATION1(isinf, T, S, fabs(a) == (T)__builtin_inff())                              \
	PINMAP_RELATION1(isfinite, T, S, fabs(a) < (T)__builtin_inff())                            \
	PINMAP_RELATION1(isnormal, T, S, !!__builtin_isnormal(a))                                  \
	PINMAP_RELATION1(signbit, T, S, __builtin_astype(a, S) < 0)                                \
	PINMAP_RELATION2(isequal, T, S, a == b)                                                    \
	PINMAP_RELATION2(isnotequal, T, S, a != b)                                                 \
	PINMAP_RELATION2(isless, T, S, a < b)                                                      \
	PINMAP_RELATION2(islessequal, T, S, a <= b)                                                \
	PINMAP_RELATION2(isgreater, T, S, a > b)                                                   \
	PINMAP_RELATION2(isgreaterequal, T, S, a >= b)                                             \
	PINMAP_RELATION2(islessgreater, T, S, a < b || a > b)                                      \
	PINMAP_RELATION2(isordered, T, S, a == a && b == b)                                        \
	PINMAP_RELATION2(isunordered, T, S, a != a || b != b)

#define pinmap_smooth(t) ((t) * (t) * (3 - 2 * (t)))

PINMAP_FLOATS(PINMAP_CONSTANTS)

PINMAP_3(float, fma, float, float, float, __builtin_fmaf(a, b, c))
PINMAP_3(double, fma, double, double, double, __builtin_fma(a, b, c))
PINMAP_2(float, ldexp, float, int, __builtin_ldexpf(a, b))
PINMAP_2(double, ldexp, double, int, __builtin_ldexp(a, b))
PINMAP_1(int, ilogb, float, __builtin_ilogbf(a))
PINMAP_1(int, ilogb, double, __builtin_ilogb(a))

PINMAP_NATIVE1(sqrt)
PINMAP_NATIVE1(rsqrt)
PINMAP_NATIVE1(exp)
PINMAP_NATIVE1(exp2)
PINMAP_NATIVE1(exp10)
PINMAP_NATIVE1(log)
PINMAP_NATIVE1(log2)
PINMAP_NATIVE1(log10)
PINMAP_NATIVE1(sin)
PINMAP_NATIVE1(cos)
PINMAP_NATIVE1(tan)
PINMAP_1(float, native_recip, float, 1 / a)
PINMAP_1(float, half_recip, float, 1 / a)
PINMAP_2(float, native_divide, float, float, a / b)
PINMAP_2(float, half_divide, float, float, a / b)
PINMAP_2(float, native_powr, float, float, pow(a, b))
PINMAP_2(float, half_powr, float, float, pow(a, b))

/* A second result goes where a pointer says. */
#define PINMAP_POINTER_EACH(n, T, name, P)                                                         \
	PINMAP_FN T##n name(T##n a, P##n *p)                                                       \
	{                                                                                          \
		T##n r;                                                                            \
		P##n all;                                                                          \
		for (int i = 0; i < n; i++) {                                                      \
			P one;                                                                     \
			r[i] = name(a[i], &one);                                                   \
			all[i] = one;                                                              \
		}                                                                                  \
		*p = all;                                                                          \
		return r;                                                                          \
	}
#define PINMAP_POINTER(T, name, P, second, result)                                                 \
	PINMAP_FN T name(T a, P *p)                                                                \
	{                                                                                          \
		*p = second;                                                                       \
		return result;                                                                     \
	}                                                                                          \
	PINMAP_VECTORS(PINMAP_POINTER_EACH, T, name, P)
#define PINMAP_POINTERS(T, U, S, L, ...)                                                           \
	PINMAP_POINTER(T, sincos, T, cos(a), sin(a))                                               \
	PINMAP_POINTER(T, modf, T, trunc(a), copysign(isinf(a) ? 0 : a - trunc(a), a))             \
	PINMAP_POINTER(T, fract, T, floor(a),                                                      \
		       isinf(a) ? 0 : fmin(a - floor(a), (T)1 - L##_EPSILON / 2))                  \
	PINMAP_POINTER(T, frexp, int, pinmap_exponent(a),                                          \
		       isfinite(a) ? ldexp(a, -pinmap_exponent(a)) : a)

#define pinmap_exponent(a) ((a) == 0 || !isfinite(a) ? 0 : ilogb(a) + 1)

PINMAP_FLOATS(PINMAP_POINTERS)

/* Geometry. */
#define PINMAP_DOT_EACH(n, T)                                                                      \
	PINMAP_FN T dot(T##n a, T##n b)                                                            \
	{                                                                                          \
		T r = 0;                                                                           \
		for (int i = 0; i < n; i++)                                                        \
			r += a[i] * b[i];                                                          \
		return r;                                                                          \
	}                                                                                          \
	PINMAP_LENGTHS(T##n, T)
#define PINMAP_LENGTHS(V, T)                                                                       \
	PINMAP_FN T length(V a)                                                                    \
	{                                                                                          \
		return sqrt(dot(a, a));                                                            \
	}                                                                                          \
	PINMAP_FN T fast_length(V a)                                                               \
	{                                                                                          \
		return length(a);                                                                  \
	}                                                                                          \
	PINMAP_FN T distance(V a, V b)                                                             \
	{                                                                                          \
		return length(a - b);                                                              \
	}                                                                                          \
	PINMAP_FN T fast_distance(V a, V b)                                                        \
	{                                                                                          \
		return length(a - b);                                                              \
	}                                                                                          \
	PINMAP_FN V normalize(V a)                                                                 \
	{                                                                                          \
		T all = length(a);                                                                 \
		return all > 0 ? a / all : a;                                                      \
	}                                                                                          \
	PINMAP_FN V fast_normalize(V a)                                                            \
	{                                                                                          \
		return normalize(a);                                                               \
	}
#define PINMAP_GEOMETRY(T, ...)                                                                    \
	PINMAP_FN T dot(T a, T b)                                                                  \
	{                                                                                          \
		return a * b;                                                                      \
	}                                                                                          \
	PINMAP_LENGTHS(T, T)                                                                       \
	PINMAP_DOT_EACH(2, T)                                                                      \
	PINMAP_DOT_EACH(3, T)                                                                      \
	PINMAP_DOT_EACH(4, T)                                                                      \
	PINMAP_FN T##3 cross(T##3 a, T##3 b)                                                       \
	{                                                                                          \
		return a.yzx * b.zxy - a.zxy * b.yzx;                                              \
	}                                                                                          \
	PINMAP_FN T##4 cross(T##4 a, T##4 b)                                                       \
	{                                                                                          \
		return (T##4)(cross(a.xyz, b.xyz), 0);                                             \
	}

PINMAP_FLOATS(PINMAP_GEOMETRY)
