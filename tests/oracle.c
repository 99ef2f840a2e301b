// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Runs the tests of another program, so that they are looked at by the same oracle as those in C: oracle PROGRAM [PATTERN...]
 *
 * That program lists its tests when it is called with --list, each in a line "SECONDS FLAGS NAME", where FLAGS is "-" or some of
 * "smoke" and "faults" with commas between; and with --run NAME it runs one, and ends with one of the harness's statuses.
 * What the test prints is shown; if it is skipped it is the reason; what it says on stderr is shown if it fails.
 */
#define _GNU_SOURCE
#include "harness.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char *program;
/* What a test's process writes, kept back until it has ended. */
static int out, err;

static void run_listed(const void *name)
{
	dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
	dup2(out, STDOUT_FILENO);
	dup2(err, STDERR_FILENO);
	execl(program, program, "--run", (const char *)name, NULL);
	_exit(127);
}

static char *taken_from(int file)
{
	off_t size = lseek(file, 0, SEEK_END);
	char *text = calloc(1, size + 1);

	if (!text || pread(file, text, size, 0) != size || ftruncate(file, 0) || lseek(file, 0, SEEK_SET))
		abort();
	return text;
}

static void show(char *text)
{
	char *rest = NULL;

	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		diag("%s", line);
}

static void ended(int status)
{
	bool skipped = status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIP;
	char *said = taken_from(out), *complained = taken_from(err);

	if (skipped)
		test_reason(said[0] ? said : "no reason is given");
	else
		show(said);
	if (!skipped && status != 0)
		show(complained);
	free(said);
	free(complained);
}

const char *add_listed(char *path)
{
	char command[256], line[512], flags[64], name[256];
	unsigned int seconds;
	FILE *list;

	program = path;
	out = SYS(memfd_create("out", MFD_CLOEXEC));
	err = SYS(memfd_create("err", MFD_CLOEXEC));
	snprintf(command, sizeof(command), "exec '%s' --list", path);
	list = popen(command, "re");
	if (!list)
		return NULL;
	while (fgets(line, sizeof(line), list)) {
		if (sscanf(line, "%u %63s %255[^\n]", &seconds, flags, name) != 3) {
			diag("%s lists no test: %s", path, line);
			return NULL;
		}
		test_add(&(struct test){
			.run = run_listed,
			.variant = strdup(name),
			.seconds = seconds,
			.smoke = strstr(flags, "smoke"),
			.faults = strstr(flags, "faults"),
			.ended = ended,
		}, NULL, name);
	}
	if (pclose(list))
		return NULL;
	return strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
}
