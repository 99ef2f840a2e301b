// SPDX-License-Identifier: MIT OR Apache-2.0
/* The other machine has none of what the tests pinned there: the last test. */
#define _GNU_SOURCE
#include "cluster.h"

#include <stdlib.h>
#include <string.h>

static const char *const splats[] = {
#include "runner/complaints.h"
};

static const char *const harmless[] = {
#include "runner/harmless.h"
};

static bool any_in(const char *line, const char *const texts[], size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (strstr(line, texts[i]))
			return true;
	return false;
}

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
		if (any_in(line, splats, ARRAY_SIZE(splats)) &&
		    !any_in(line, harmless, ARRAY_SIZE(harmless)))
			FAIL("the log of node2: %s", line);
	free(output);
	CHECK(WAIT_FOR(5000, nothing_is_pinned()));
}
