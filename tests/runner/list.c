// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "list.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct listed *test_new(const char *directory, const char *program, const char *name)
{
	struct listed *test = calloc(1, sizeof(*test));

	if (!test || asprintf(&test->path, "%s/%s", directory, program) < 0 ||
	    asprintf(&test->full, "%s: %s", program, name ? name : "lists its tests") < 0)
		abort();
	test->name = name ? strdup(name) : NULL;
	return test;
}

/* Appends the tests of one program at @end; returns the new end. */
static struct listed **list_program(struct listed **end, const char *directory, const char *program)
{
	char command[320], line[512], flags[64], name[256];
	unsigned int seconds;
	bool good = true;
	FILE *list;

	snprintf(command, sizeof(command), "exec '%s/%s' --list", directory, program);
	list = popen(command, "re");
	while (list && fgets(line, sizeof(line), list)) {
		const char *leaks;

		if (sscanf(line, "%u %63s %255[^\n]", &seconds, flags, name) != 3) {
			good = false;
			continue;
		}
		*end = test_new(directory, program, name);
		(*end)->seconds = seconds;
		(*end)->smoke = strstr(flags, "smoke");
		(*end)->faults = strstr(flags, "faults");
		leaks = strstr(flags, "leaks=");
		(*end)->leaks = leaks ? atoi(leaks + strlen("leaks=")) : 0;
		end = &(*end)->next;
	}
	if (!list || pclose(list) || !good) {
		*end = test_new(directory, program, NULL);
		end = &(*end)->next;
	}
	return end;
}

struct listed *list_tests(const char *directory)
{
	const char *devices = getenv("PINMAP_DEVICE"), *peers = getenv("PINMAP_PEERS");
	const char *ours = "flat", *theirs = "any";
	struct listed *tests = NULL, **end = &tests;
	char path[320], kind[16], program[64];
	FILE *programs;

	if (devices && (!strcmp(devices, "testgpu") || !strcmp(devices, "all")))
		ours = "paged";
	else if (devices && (!strcmp(devices, "nvme") || !strcmp(devices, "xdma") ||
			     !strcmp(devices, "cluster")))
		ours = devices;
	/* beside all others there is an NVMe controller */
	if (devices && !strcmp(devices, "all") && peers && *peers)
		theirs = "nvme";
	snprintf(path, sizeof(path), "%s/programs", directory);
	programs = fopen(path, "re");
	while (programs && fscanf(programs, "%15s %63s", kind, program) == 2)
		if (!strcmp(kind, "any") || !strcmp(kind, ours) || !strcmp(kind, theirs))
			end = list_program(end, directory, program);
	if (programs)
		fclose(programs);
	return tests;
}

static bool matches(const struct listed *test, const char *pattern)
{
	/* a program that cannot list its tests could have any */
	if (!test->name)
		return true;
	if (!strcmp(pattern, "smoke"))
		return test->smoke;
	if (strpbrk(pattern, "*?["))
		return !fnmatch(pattern, test->full, 0) || !fnmatch(pattern, test->name, 0);
	return strstr(test->full, pattern);
}

/* Whether the pattern is the full name of a test: then it selects no other. */
static bool is_name(const struct listed *tests, const char *pattern)
{
	for (; tests; tests = tests->next)
		if (!strcmp(tests->full, pattern))
			return true;
	return false;
}

static void mark(struct listed *tests, const char *pattern, bool selected)
{
	bool whole = is_name(tests, pattern), without_iommu = strstr(pattern, "noiommu");

	for (struct listed *test = tests; test; test = test->next) {
		bool special = test->name && !strncmp(test->name, "noiommu_", 8);

		if (special && selected && !without_iommu)
			continue;
		if (whole ? !strcmp(test->full, pattern) : matches(test, pattern))
			test->selected = selected;
	}
}

/* Leaves every @of-th of the selected tests, from number @share on, and those for `smoke`. */
static void leave_share(struct listed *tests, unsigned int share, unsigned int of)
{
	unsigned int number = 0;

	for (struct listed *test = tests; test; test = test->next)
		if (test->selected && !test->smoke)
			test->selected = number++ % of == share;
}

unsigned int select_tests(struct listed *tests, int count, char **patterns, unsigned int share,
			  unsigned int of)
{
	unsigned int selected = 0;
	bool some = false;

	for (int i = 0; i < count; i++) {
		if (patterns[i][0] == '!')
			continue;
		mark(tests, patterns[i], true);
		some = true;
	}
	if (!some)
		mark(tests, "*", true);
	for (int i = 0; i < count; i++)
		if (patterns[i][0] == '!')
			mark(tests, patterns[i] + 1, false);
	leave_share(tests, share, of);
	for (struct listed *test = tests; test; test = test->next)
		selected += test->selected;
	return selected;
}
