// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "sleep.h"

#include "file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DISK "/dev/vdb"
/* Whether a byte that comes in wakes the system. */
#define LINE "/sys/class/tty/ttyS1/power/wakeup"

const struct way ways[] = {
	{ "idle_devices", "devices", "freeze" }, { "memory_devices", "devices", "mem" },
	{ "idle", "none", "freeze" },		 { "memory", "none", "mem" },
	{ "disk_resumes", "none", "disk" },	 { "disk", "none", "disk" },
};
const struct way *const quick_way = &ways[0];

static bool hibernates(const struct way *way)
{
	return !strcmp(way->state, "disk");
}

void need_sleep(const struct way *way)
{
	char states[64] = "", *machine = getenv("PINMAP_SLEEP");

	if (!machine || !*machine)
		SKIP("the machine has 9p, which does not survive a sleep: scripts/vm --sleep");
	file_read("/sys/power/state", states, sizeof(states));
	if (!strstr(states, way->state))
		SKIP("the kernel cannot be suspended so (%s)", way->state);
}

void swap_on_disk(void)
{
	CHECK(!system("grep -q " DISK " /proc/swaps || "
		      "{ mkswap " DISK " >/dev/null && swapon " DISK "; }"));
}

void no_swap_on_disk(void)
{
	CHECK(!system("! grep -q " DISK " /proc/swaps || swapoff " DISK));
}

int try_sleep(const struct way *way)
{
	unsigned int tries = 0;
	bool is_idle;
	int result;

	file_write("/sys/module/suspend/parameters/pm_test_delay", "0");
	file_write("/sys/power/pm_test", way->level);
	if (hibernates(way)) {
		swap_on_disk();
		file_write("/sys/power/disk",
			   strcmp(way->name, "disk") ? "test_resume" : "reboot");
	}
	is_idle = !strcmp(way->level, "none") && !strcmp(way->state, "freeze");
	if (is_idle)
		file_write(LINE, "enabled");
	/* What is to wake it may come too early, and then it does not sleep. */
	do
		result = try_file_write("/sys/power/state", way->state);
	while (is_idle && result == -EBUSY && tries++ < 20);
	if (is_idle)
		file_write(LINE, "disabled");
	file_write("/sys/power/pm_test", "none");
	return result;
}

int try_stay_awake(int fd, uint32_t flags)
{
	struct pinmap_stay_awake args = { .size = sizeof(args), .flags = flags };

	return try_ioctl(fd, PINMAP_STAY_AWAKE, &args);
}
