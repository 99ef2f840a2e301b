// SPDX-License-Identifier: GPL-2.0
#include "../helpers.h"

#include <linux/uaccess.h>

int pinmap_get_user_u32(unsigned long address, u32 *value)
{
	return get_user(*value, (const u32 __user *)address);
}
