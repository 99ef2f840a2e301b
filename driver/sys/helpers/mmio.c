// SPDX-License-Identifier: GPL-2.0
#include <linux/io.h>
#include "helpers.h"

/* Orders stores, also those that are combined. */
void pinmap_wmb(void)
{
	wmb();
}
