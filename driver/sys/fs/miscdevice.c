// SPDX-License-Identifier: GPL-2.0
#include <linux/huge_mm.h>
#include <linux/idr.h>
#include <linux/mm.h>
#include "../helpers.h"

/* Finds addresses that are congruent to the offset modulo the size of a huge page. */
unsigned long pinmap_get_unmapped_area(struct file *file, unsigned long addr, unsigned long length,
				       unsigned long pgoff, unsigned long flags)
{
#ifdef CONFIG_TRANSPARENT_HUGEPAGE
	return thp_get_unmapped_area(file, addr, length, pgoff, flags);
#else
	return mm_get_unmapped_area(file, addr, length, pgoff, flags);
#endif
}

static DEFINE_IDA(pinmap_numbers);

int pinmap_take_number(void)
{
	return ida_alloc(&pinmap_numbers, GFP_KERNEL);
}

void pinmap_return_number(int number)
{
	ida_free(&pinmap_numbers, number);
}
