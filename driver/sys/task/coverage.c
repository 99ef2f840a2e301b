// SPDX-License-Identifier: GPL-2.0
#include <linux/kcov.h>
#include "../helpers.h"

#ifdef CONFIG_KCOV
void pinmap_kcov_start(void)
{
	kcov_remote_start(kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, 1));
}

void pinmap_kcov_stop(void)
{
	kcov_remote_stop();
}
#endif
