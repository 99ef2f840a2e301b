// SPDX-License-Identifier: GPL-2.0
#include <linux/sort.h>
#include "../helpers.h"

static int pinmap_compare(const void *a, const void *b)
{
	const u64 *left = a, *right = b;

	return *left < *right ? -1 : *left > *right;
}

/* Sorts pairs of numbers by the first ones. */
void pinmap_sort_pairs(u64 (*pairs)[2], size_t count)
{
	sort(pairs, count, sizeof(*pairs), pinmap_compare, NULL);
}
