// SPDX-License-Identifier: MIT OR Apache-2.0
#include "pins.h"

#include "file.h"

#include <stdio.h>

long long pins_held(void)
{
	long long acquired = 0, released = 0;
	char line[128];
	FILE *file;

	/* the counters are per CPU; this folds them together */
	try_file_write("/proc/sys/vm/stat_refresh", "1");
	file = fopen("/proc/vmstat", "re");
	while (file && fgets(line, sizeof(line), file)) {
		sscanf(line, "nr_foll_pin_acquired %lld", &acquired);
		sscanf(line, "nr_foll_pin_released %lld", &released);
	}
	if (file)
		fclose(file);
	return acquired - released;
}
