// SPDX-License-Identifier: MIT OR Apache-2.0
#include "pins.h"

#include "file.h"

long long pins_held(void)
{
	/* the counters are per CPU; this folds them together */
	try_file_write("/proc/sys/vm/stat_refresh", "1");
	return file_field("/proc/vmstat", "nr_foll_pin_acquired") - file_field("/proc/vmstat", "nr_foll_pin_released");
}
