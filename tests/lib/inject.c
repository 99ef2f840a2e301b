// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "inject.h"

#include "file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Failures are counted per task, so they begin and end right around the call. */
static int fail_nth = -1;

static void fail_begin(unsigned int n)
{
	char text[16];
	int length = snprintf(text, sizeof(text), "%u", n);

	CHECK_EQ(pwrite(fail_nth, text, length, 0), length);
}

/*
 * Returns whether the failure happened. Both accesses to the file can fail as well: then it did not
 * happen in the call.
 */
static bool fail_end(void)
{
	char text[16] = { 0 };
	bool struck = pread(fail_nth, text, sizeof(text) - 1, 0) > 0 && atoi(text) == 0;

	while (pwrite(fail_nth, "0", 1, 0) != 1)
		CHECK(!struck);
	return struck;
}

void fail_in(int task)
{
	char path[64];

	close(fail_nth);
	snprintf(path, sizeof(path), "/proc/%d/fail-nth", task ? task : getpid());
	fail_nth = SYS(open(path, O_RDWR | O_CLOEXEC));
}

void fail_each(const struct attempt *attempt, void *data, unsigned int most)
{
	unsigned int n, failed = 0;
	bool struck = true;

	for (n = 1; n < most && struck; n++) {
		int result;

		attempt->begin(data);
		fail_begin(n);
		result = attempt->call(data);
		struck = fail_end();
		if (!struck && result)
			FAIL("without a failure: %s", error_name(-result));
		failed += result != 0;
		if (result && attempt->failed)
			attempt->failed(data);
		attempt->end(data, result);
	}
	CHECK(!struck);
	diag("%u injection points, %u of them made it fail", n - 2, failed);
}

/* Finds the addresses of one of the kernel's functions. */
static void find_function(const char *function, char start[32], char end[32])
{
	unsigned long long first = 0, next = 0, addr;
	FILE *file = fopen("/proc/kallsyms", "re");
	char line[512], name[256];

	CHECK(file);
	while (fgets(line, sizeof(line), file) &&
	       sscanf(line, "%llx %*c %255s", &addr, name) == 2) {
		if (!strcmp(name, function))
			first = addr;
	}
	rewind(file);
	/* the functions of a module are not sorted */
	while (first && fgets(line, sizeof(line), file) &&
	       sscanf(line, "%llx %*c %255s", &addr, name) == 2) {
		if (addr > first && (!next || addr < next))
			next = addr;
	}
	fclose(file);
	if (!next)
		SKIP("the kernel has no function %s", function);
	snprintf(start, 32, "%#llx", first);
	snprintf(end, 32, "%#llx", next);
}

static void set(const char *kind, const char *name, const char *value)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/kernel/debug/%s/%s", kind, name);
	file_write(path, value);
}

void fail_spare(const char *function)
{
	static const char *const kinds[] = { "failslab", "fail_page_alloc" };
	char start[32], end[32];

	find_function(function, start, end);
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		set(kinds[i], "reject-start", start);
		set(kinds[i], "reject-end", end);
	}
}

/* The kind of allocation that fail_below() lets fail. */
static const char *below;

static void fail_below(const char *kind, const char *function)
{
	char start[32], end[32];

	need_injection();
	find_function(function, start, end);
	below = kind;
	set(kind, "require-start", start);
	set(kind, "require-end", end);
	set(kind, "task-filter", "N");
	set(kind, "times", "1");
	set(kind, "probability", "100");
}

void fail_page_below(const char *function)
{
	fail_below("fail_page_alloc", function);
}

void fail_slab_below(const char *function)
{
	fail_below("failslab", function);
}

void fail_pages_below(const char *function)
{
	fail_page_below(function);
	set("fail_page_alloc", "times", "-1");
}

bool fail_below_end(void)
{
	char path[128], left[16] = { 0 };
	bool struck;
	int fd;

	snprintf(path, sizeof(path), "/sys/kernel/debug/%s/times", below);
	fd = SYS(open(path, O_RDONLY | O_CLOEXEC));
	struck = SYS(read(fd, left, sizeof(left) - 1)) > 0 && atoi(left) == 0;
	close(fd);
	set(below, "probability", "0");
	set(below, "require-start", "0");
	set(below, "require-end", "0xffffffffffffffff");
	return struck;
}

void fail_huge_pages(bool fail)
{
	set("fail_page_alloc", "task-filter", "N");
	set("fail_page_alloc", "min-order", fail ? "9" : "0");
	set("fail_page_alloc", "times", fail ? "-1" : "1");
	set("fail_page_alloc", "probability", fail ? "100" : "0");
}

void need_injection(void)
{
	static const char *const settings[][2] = {
		{ "/sys/kernel/debug/failslab/ignore-gfp-wait", "N" },
		{ "/sys/kernel/debug/failslab/verbose", "0" },
		{ "/sys/kernel/debug/failslab/reject-end", "0" },
		{ "/sys/kernel/debug/fail_page_alloc/ignore-gfp-wait", "N" },
		{ "/sys/kernel/debug/fail_page_alloc/ignore-gfp-highmem", "N" },
		{ "/sys/kernel/debug/fail_page_alloc/min-order", "0" },
		{ "/sys/kernel/debug/fail_page_alloc/verbose", "0" },
		{ "/sys/kernel/debug/fail_page_alloc/reject-end", "0" },
		{ "/sys/kernel/debug/fail_usercopy/verbose", "0" },
	};

	fail_nth = open("/proc/self/fail-nth", O_RDWR | O_CLOEXEC);
	if (fail_nth < 0)
		SKIP("the kernel has no fault injection (fail-nth)");
	for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
		if (try_file_write(settings[i][0], settings[i][1]))
			SKIP("the kernel has no %s", settings[i][0]);
}
