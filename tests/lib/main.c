// SPDX-License-Identifier: MIT OR Apache-2.0
/* A test program: collects its tests, and lists them or runs one (see tests/runner/list.h). */
#define _GNU_SOURCE
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct test *tests, **tests_end = &tests;
static const char *program;

void test_add(const struct test *test, const char *group, const char *name)
{
	struct test *copy = malloc(sizeof(*copy));
	char *full = NULL;

	if (!copy || asprintf(&full, "%s%s%s", group ? group : "", group ? "_" : "", name) < 0)
		abort();
	*copy = *test;
	copy->name = full;
	*tests_end = copy;
	tests_end = &copy->next;
}

const char *program_name(void)
{
	return program;
}

static void list(void)
{
	for (struct test *test = tests; test; test = test->next) {
		printf("%u %s%s", test->seconds, test->smoke ? "smoke," : "",
		       test->faults ? "faults," : "");
		printf("leaks=%u %s\n", test->leaks, test->name);
	}
}

int main(int argc, char **argv)
{
	program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
	if (helper_main && helper_main(argc, argv))
		return EXIT_PASS;
	if (argc == 2 && !strcmp(argv[1], "--list")) {
		list();
		return 0;
	}
	for (struct test *test = tests; test && argc == 3 && !strcmp(argv[1], "--run");
	     test = test->next)
		if (!strcmp(test->name, argv[2]))
			test_run(test);
	fprintf(stderr, "usage: %s --list | --run NAME (all tests: run)\n", program);
	return 2;
}
