// SPDX-License-Identifier: MIT OR Apache-2.0
// What the instructions in a second are measured with.
#include "device.h"

void saxpy(unsigned long n, const float *x, float *y, float a)
{
	unsigned long i = NUMBER;

	if (i < n)
		y[i] = a * x[i] + y[i];
}

// Of each thread many elements.
void saxpy_rows(unsigned long each, const float *x, float *y, float a)
{
	unsigned long first = NUMBER * each;

	for (unsigned long i = first; i < first + each; i++)
		y[i] = a * x[i] + y[i];
}

void matmul(unsigned long n, const float *a, const float *b, float *c)
{
	unsigned long row = NUMBER / n, column = NUMBER % n;
	float sum = 0;

	for (unsigned long i = 0; i < n; i++)
		sum += a[row * n + i] * b[i * n + column];
	c[row * n + column] = sum;
}

void histogram(unsigned long each, const unsigned char *data, unsigned int *counts)
{
	unsigned long first = NUMBER * each;

	for (unsigned long i = first; i < first + each; i++)
		__atomic_fetch_add(&counts[data[i]], 1, __ATOMIC_RELAXED);
}

void chase(unsigned long steps, void **from, void **to)
{
	while (steps--)
		from = *from;
	*to = from;
}
