/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The tests of all programs, and the patterns that select some of them.
 *
 * A test program, in whatever language, is called in two ways. With --list it prints its tests, one
 * a line: "SECONDS FLAGS NAME". SECONDS is a time limit on a quick kernel (0: the usual one). FLAGS
 * is "-" or some of "smoke", "faults" and "leaks=PAGES" with commas between them (see struct test
 * in harness.h). With --run NAME it runs one test and exits with one of the statuses in harness.h.
 */
#ifndef TESTS_LIST_H
#define TESTS_LIST_H

#include <stdbool.h>

/**
 * struct listed - one test of a program
 * @path: the program
 * @name: the test's name in its program; NULL: the program cannot list its tests
 * @full: "PROGRAM: NAME", the name that is printed and that patterns see
 * @seconds: what it takes at most on a quick kernel
 * @smoke: belongs to the few that show whether anything works at all
 * @faults: the IOMMU is expected to report faults
 * @leaks: pages that stay pinned
 * @selected: to be run
 */
struct listed {
	char *path;
	char *name;
	char *full;
	unsigned int seconds;
	bool smoke;
	bool faults;
	unsigned int leaks;
	bool selected;
	struct listed *next;
};

/*
 * Lists the tests of the programs in @directory that fit the machine's devices. The file "programs"
 * there has a line for each program, in the order in which they run: the devices that it is for
 * (such as "flat", "paged" or "any"), and its name.
 */
struct listed *list_tests(const char *directory);

/*
 * Marks the tests that the patterns select, and returns how many these are. Without a pattern all
 * are selected. A pattern is a test's full name, a part of it, a glob, or "smoke"; a "!" before it
 * leaves out what matches. Tests named noiommu_* are for a machine without an IOMMU, and only
 * patterns with that word select them. Of these tests only every @of-th stays, from number @share
 * on, and those for "smoke".
 */
unsigned int select_tests(struct listed *tests, int count, char **patterns, unsigned int share,
			  unsigned int of);

#endif
