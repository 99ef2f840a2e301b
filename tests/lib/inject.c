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

void fail_begin(unsigned int n)
{
	char text[16];
	int length = snprintf(text, sizeof(text), "%u", n);

	CHECK_EQ(pwrite(fail_nth, text, length, 0), length);
}

/* Both accesses to the file can fail as well: then it did not happen in the call. */
bool fail_end(void)
{
	char text[16] = { 0 };
	bool struck = pread(fail_nth, text, sizeof(text) - 1, 0) > 0 && atoi(text) == 0;

	while (pwrite(fail_nth, "0", 1, 0) != 1)
		CHECK(!struck);
	return struck;
}

void fail_spare(const char *function)
{
	static const char *const kinds[] = { "failslab", "fail_page_alloc" };
	unsigned long long start = 0, end = 0, addr;
	FILE *file = fopen("/proc/kallsyms", "re");
	char line[512], name[256], path[128], text[32];

	CHECK(file);
	while (fgets(line, sizeof(line), file) && sscanf(line, "%llx %*c %255s", &addr, name) == 2) {
		if (start && addr > start) {
			end = addr;
			break;
		}
		if (!strcmp(name, function))
			start = addr;
	}
	fclose(file);
	if (!end)
		SKIP("the kernel has no function %s", function);
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s/reject-start", kinds[i]);
		snprintf(text, sizeof(text), "%#llx", start);
		file_write(path, text);
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s/reject-end", kinds[i]);
		snprintf(text, sizeof(text), "%#llx", end);
		file_write(path, text);
	}
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
