// SPDX-License-Identifier: MIT OR Apache-2.0
// What compilers make of ordinary C: the same on the device and on the host.
#ifdef HOST
#include <stdio.h>
#endif

typedef unsigned long u64;
typedef unsigned int u32;

struct node {
	struct node *left, *right;
	u64 key;
	double weight;
};

static u64 state;

static u64 random64(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static void sort(u64 *first, u64 *last)
{
	if (last - first < 2)
		return;
	u64 pivot = first[(last - first) / 2], *low = first, *high = last - 1;
	while (low <= high) {
		while (*low < pivot)
			low++;
		while (*high > pivot)
			high--;
		if (low <= high) {
			u64 other = *low;
			*low++ = *high;
			*high-- = other;
		}
	}
	sort(first, high + 1);
	sort(low, last);
}

static u32 crc(const unsigned char *data, u64 bytes)
{
	u32 value = ~0u;
	while (bytes--) {
		value ^= *data++;
		for (int i = 0; i < 8; i++)
			value = value >> 1 ^ (0x82f63b78 & -(value & 1));
	}
	return ~value;
}

static double weigh(const struct node *node, int depth)
{
	if (!node)
		return 0;
	return node->weight / (depth + 1) + weigh(node->left, depth + 1) -
	       weigh(node->right, depth + 1) * 0.75;
}

static u64 decide(int kind, u64 a, u64 b)
{
	switch (kind) {
	case 0: return a / (b | 1);
	case 1: return (long)a % (long)(b | 1);
	case 2: return (u64)((__int128)(long)a * (long)b >> 64);
	case 3: return (u64)((unsigned __int128)a * b >> 64);
	case 4: return (int)a / ((int)b | 1);
	case 5: return (u32)a % ((u32)b | 1);
	case 6: return (u64)(float)(a >> 1);
	case 7: return __builtin_popcountl(a) + __builtin_clzl(b | 1);
	case 8: return (short)a * (signed char)b;
	default: return a >> (b & 63) | a << (-b & 63);
	}
}

void work(u64 seed, u64 *out, unsigned char *memory)
{
	u64 *numbers = (u64 *)memory;
	struct node *nodes = (struct node *)(memory + 8192), *root = 0;
	float matrix[8][8], squared[8][8];

	state = seed;
	for (int i = 0; i < 1000; i++)
		numbers[i] = random64();
	sort(numbers, numbers + 1000);
	*out++ = crc(memory, 8000);
	for (int i = 0; i < 200; i++) {
		struct node *node = &nodes[i], **place = &root;
		*node = (struct node){.key = random64(), .weight = (long)random64() * 0x1p-40};
		while (*place)
			place = node->key < (*place)->key ? &(*place)->left : &(*place)->right;
		*place = node;
	}
	*(double *)out++ = weigh(root, 0);
	for (int i = 0; i < 64; i++)
		matrix[i / 8][i % 8] = (int)random64() * 0x1p-30f;
	for (int times = 0; times < 5; times++) {
		for (int i = 0; i < 64; i++) {
			float sum = 0;
			for (int k = 0; k < 8; k++)
				sum += matrix[i / 8][k] * matrix[k][i % 8];
			squared[i / 8][i % 8] = sum;
		}
		for (int i = 0; i < 64; i++)
			matrix[i / 8][i % 8] = squared[i / 8][i % 8] / (1 + times);
	}
	for (int i = 0; i < 64; i++)
		*(double *)out++ = __builtin_sqrtf(matrix[i / 8][i % 8] * matrix[i / 8][i % 8]);
	for (int i = 0; i < 400; i++) {
		u64 a = random64(), b = random64();

		b >>= random64() & 63;
		*out++ = decide(i % 10, a, b);
	}
}

#ifdef HOST
int main(void)
{
	static u64 out[466], memory[4096];

	work(0x123456789abcdef, out, (unsigned char *)memory);
	fwrite(out, 8, 466, stdout);
}
#endif
