// SPDX-License-Identifier: MIT OR Apache-2.0
/* The other machine has none of what the tests pinned there: the last test. */
#define _GNU_SOURCE
#include "cluster.h"
#include "kmsg.h"

#include <stdlib.h>
#include <string.h>

static bool nothing_is_pinned(void)
{
	char *output = said("ssh node2 cat /proc/vmstat");
	bool equal = number_behind(output, "nr_foll_pin_acquired ") ==
		     number_behind(output, "nr_foll_pin_released ");

	free(output);
	return equal;
}

TEST(second_node_is_clean, .smoke = true)
{
	char *output, *rest, *line;

	need_second_node();
	output = said("ssh node2 dmesg");
	for (line = strtok_r(output, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		if (kmsg_is_complaint(line))
			FAIL("the log of node2: %s", line);
	free(output);
	CHECK(WAIT_FOR(5000, nothing_is_pinned()));
}
