// SPDX-License-Identifier: MIT OR Apache-2.0
/* Kernels that tests of the crate compile and launch. */
#include "pinmap_kernel.h"

__global__ void saxpy(uint64_t count, float a, const float *x, float *y)
{
	uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;

	if (i < count)
		y[i] = a * x[i] + y[i];
}

/* Counts in memory that the block shares, and adds that to the counts of all. */
__global__ void histogram(uint64_t count, const uint8_t *data, uint32_t *counts)
{
	uint32_t *own = sharedMemory();

	for (unsigned int i = threadIdx.x; i < 256; i += blockDim.x)
		own[i] = 0;
	__syncthreads();
	for (uint64_t i = gridThread(); i < count; i += (uint64_t)gridDim.x * blockDim.x)
		atomicAdd(&own[data[i]], 1);
	__syncthreads();
	for (unsigned int i = threadIdx.x; i < 256; i += blockDim.x)
		atomicAdd(&counts[i], own[i]);
}

/* Data of the program: relocated, written, cleared. */
static const char *const names[] = { "zero", "one", "two" };
static uint32_t launches = 40;
static uint64_t cleared[600];

__global__ void say(const char *word, double number)
{
	if (!gridThread())
		launches++;
	printf("%s %u.%u: %s of %d, %.3f %05d %x %c%%\n", names[blockIdx.x], blockIdx.x,
	       threadIdx.x, word, -3, number, -42, 0xbeefu, 'c');
	if (gridThread() == 5)
		printf("%u %lu %p %f %f\n", launches, cleared[599], (void *)0x1000, 1e20,
		       0.9999999);
}

/* Takes more arguments than there are registers. */
__global__ void sum(double *to, int8_t a, uint32_t b, int c, uint64_t d, int16_t e, int f, int g,
		    int h, uint8_t i, float x0, float x1, float x2, float x3, float x4, float x5,
		    float x6, float x7, float x8, double x9)
{
	to[0] = (double)a + b + c + (double)d + e + f + g + h + i;
	to[1] = (double)x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7 + x8 + x9;
	to[2] = h;
	to[3] = i;
	to[4] = x8;
	to[5] = x9;
}

/* Has one thread write where nothing is. */
__global__ void wild(int *to, unsigned int block, unsigned int thread)
{
	if (blockIdx.x == block && threadIdx.x == thread)
		*to = 1;
}

__global__ void refuse(unsigned int number)
{
	assert(gridThread() != number);
}

__global__ void undefined(void)
{
	__asm__ volatile(".4byte 0xffffffff");
}
