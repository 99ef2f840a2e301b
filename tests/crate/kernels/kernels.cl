// SPDX-License-Identifier: MIT OR Apache-2.0
/* Kernels in OpenCL C that tests of the crate compile and launch. */

/* Local memory as a parameter, and a function of the library. */
__kernel void sums(__global const float *x, __global float *sums, __local float *tile)
{
	size_t i = get_local_id(0);

	tile[i] = exp(x[get_global_id(0)]);
	for (size_t left = get_local_size(0) / 2; left; left /= 2) {
		barrier(CLK_LOCAL_MEM_FENCE);
		if (i < left)
			tile[i] += tile[i + left];
	}
	if (!i)
		sums[get_group_id(0)] = tile[0];
}

#define TILE 8

/* Local memory as variables, and two dimensions. */
kernel void matmul(global const double *a, global const double *b, global double *c, int size)
{
	local double left[TILE][TILE], right[TILE][TILE];
	int x = get_local_id(0), y = get_local_id(1);
	int column = get_global_id(0), row = get_global_id(1);
	double sum = 0;

	for (int tile = 0; tile < size; tile += TILE) {
		left[y][x] = a[row * size + tile + x];
		right[y][x] = b[(tile + y) * size + column];
		barrier(CLK_LOCAL_MEM_FENCE);
		for (int i = 0; i < TILE; i++)
			sum = mad(left[y][i], right[i][x], sum);
		barrier(CLK_LOCAL_MEM_FENCE);
	}
	c[row * size + column] = sum;
}

/*
 * Has the last thread of a block say something in local memory. To clang nobody else can change the
 * variable between a store and a load of this thread. The barriers in the loop have other launches
 * run meanwhile.
 */
__kernel void flags(__global const int *words, __global int *found, int turns)
{
	__local int flag;

	for (int turn = 0; turn < turns; turn++) {
		flag = -1;
		barrier(CLK_LOCAL_MEM_FENCE);
		if (get_local_id(0) == get_local_size(0) - 1)
			flag = words[get_group_id(0)] + turn;
		barrier(CLK_LOCAL_MEM_FENCE);
		if (flag != words[get_group_id(0)] + turn)
			atomic_inc(&found[get_group_id(0)]);
		barrier(CLK_LOCAL_MEM_FENCE);
	}
}

/* All atomics of 4 bytes, on numbers of the grid. */
__kernel void atomics(volatile __global int *n, volatile __global uint *u,
		      volatile __global long *big, __global atomic_int *modern)
{
	int id = get_global_id(0), old, seen;

	atomic_add(&n[0], id);
	atomic_sub(&n[1], id);
	atomic_inc(&n[2]);
	atomic_dec(&n[3]);
	atomic_min(&n[4], -id);
	atomic_max(&n[5], id);
	atomic_and(&u[0], ~(1u << id));
	atomic_or(&u[1], 1u << id);
	atomic_xor(&u[2], 1u << id);
	atomic_min(&u[3], id);
	atomic_max(&u[4], id + 0x80000000u);
	if (atomic_xchg(&u[5], 7) == 0)
		atomic_inc(&n[6]);
	/* Adds three, by comparing. */
	do {
		old = n[7];
		seen = atomic_cmpxchg(&n[7], old, old + 3);
	} while (seen != old);
	atom_add(big, 1L << 33);
	atomic_fetch_add(modern, 2);
	atomic_fetch_max_explicit(modern + 1, id, memory_order_relaxed, memory_scope_device);
}

__constant float weights[4] = { 0.5f, 1, 2, 4 };

typedef struct {
	int4 whole;
	float scale;
} Parameters;

/* Vectors: from and to memory, by value, converted, compared, selected. */
__kernel void vectors(__global const float *x, __global float *y, __global int *n, float4 by,
		      uchar2 bytes, __constant Parameters *parameters)
{
	float4 v = vload4(1, x), w = vload4(0, weights);
	float3 first = v.xyz;
	float whole;

	vstore4(v * w + by, 0, y);
	vstore3(cross(first, (float3)(0, 0, 1)), 0, y + 4);
	y[7] = dot(v, w);
	y[8] = length(first);
	y[9] = fract(v.y, &whole);
	y[10] = whole;
	vstore2(mix(v.xy, v.zw, 0.25f), 0, y + 12);
	vstore2(clamp(v.xy, 0.0f, 1.0f), 0, y + 14);
	y[16] = parameters->scale;
	y[17] = smoothstep(0.0f, 4.0f, 1.0f) + step(1.0f, 0.5f) + sign(-3.0f);
	vstore4(convert_int4(v), 0, n);
	vstore4(convert_int4_rte(v), 1, n);
	vstore4(convert_int4(convert_uchar4_sat(v * 100)), 2, n);
	vstore4(isless(v, w), 3, n);
	vstore4(select(parameters->whole, (int4)(9), isless(v, w)), 4, n);
	n[20] = bytes.x + 256 * bytes.y;
	n[21] = any(isless(v, w)) + 2 * all(isless(v, w));
	n[22] = as_int(v.x);
	n[23] = convert_uint_sat(-5.0f) + convert_char_sat(1000);
}

/* Whole numbers, of which the results are known. */
__kernel void integers(__global int *n, __global long *big)
{
	n[0] = abs_diff(-2000000000, 2000000000) == 4000000000u;
	n[1] = add_sat(2000000000, 2000000000);
	n[2] = hadd(2000000001, 2000000000);
	n[3] = rhadd(2000000001, 2000000000);
	n[4] = rotate((int)0x80000001, 4);
	n[5] = popcount((uchar)0xf3);
	n[6] = clz((ushort)1);
	n[7] = mul_hi(-2, 0x40000000);
	n[8] = mad24(1000, 1000, 5);
	n[9] = upsample((short)-1, (ushort)2);
	n[10] = max((int4)(1, 2, 3, 4), 3).y;
	n[11] = abs((char)-128);
	n[12] = bitselect(0x0f0f, 0x1234, 0xff);
	big[0] = mul_hi(-1L, 5L);
	big[1] = mul_hi(1L << 62, 8L);
	big[2] = sub_sat(LONG_MIN, 1L);
}

/* Functions of floats: each one's result beside its number. */
__kernel void functions(__global const double *x, __global double *y, __global float *z)
{
	size_t i = get_global_id(0), count = get_global_size(0);
	double a = x[i], second;
	float b = a;
	int exponent;

#define BOTH(number, f)                                                                            \
	y[number * count + i] = f(a);                                                              \
	z[number * count + i] = f(b);
	BOTH(0, sqrt)
	BOTH(1, exp)
	BOTH(2, log)
	BOTH(3, sin)
	BOTH(4, cos)
	BOTH(5, tan)
	BOTH(6, atan)
	BOTH(7, cbrt)
	BOTH(8, floor)
	BOTH(9, rint)
	BOTH(10, tanh)
	BOTH(11, log2)
	BOTH(12, rsqrt)
	y[13 * count + i] = pow(a, 1.5);
	z[13 * count + i] = pow(b, 1.5f);
	y[14 * count + i] = hypot(a, 3);
	z[14 * count + i] = native_exp(b);
	y[15 * count + i] = sincos(a, &second);
	z[15 * count + i] = second;
	y[16 * count + i] = frexp(a, &exponent);
	z[16 * count + i] = exponent;
}

/* Copies by the threads of a block together, and what a thread can ask. */
__kernel void ids(__global const int *from, __global int *to, __local int *tile)
{
	size_t block = get_group_id(0) + get_num_groups(0) * get_group_id(1);
	event_t event = async_work_group_copy(tile, from + 6 * block, 6, 0);
	int all[] = { get_global_id(0),	  get_global_id(1),  get_global_size(0),
		      get_global_size(1), get_global_size(2), get_local_size(3),
		      get_work_dim(),	  get_global_linear_id() };

	wait_group_events(1, &event);
	for (int i = 0; i < 8; i++)
		to[8 * get_global_linear_id() + i] = all[i] + tile[get_local_linear_id()];
}

__kernel void say(__constant int *numbers)
{
	printf("%d.%d: %s %.2f ", (int)get_group_id(0), (int)get_local_id(0), "word", 0.25f);
	printf("%ld %c\n", (long)numbers[get_global_id(0)] << 32, 'x');
}

int store(__global int *to)
{
	return *to = 1;
}

__kernel void wild(__global int *to)
{
	if (get_global_id(0) == 5)
		store(to);
}
