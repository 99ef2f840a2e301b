// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "cluster.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void need_second_node(void)
{
	const char *node = getenv("PINMAP_NODE");

	if (!node || strcmp(node, "1/2"))
		SKIP("there is no second machine (scripts/cluster boots two)");
}

char *said(const char *format, ...)
{
	size_t length = 0, got;
	char *command, *output = NULL;
	va_list arguments;
	FILE *pipe;
	int status;

	va_start(arguments, format);
	SYS(vasprintf(&command, format, arguments));
	va_end(arguments);
	pipe = popen(command, "re");
	CHECK(pipe);
	do {
		output = realloc(output, length + 4097);
		CHECK(output);
		got = fread(output + length, 1, 4096, pipe);
		length += got;
	} while (got);
	output[length] = 0;
	status = pclose(pipe);
	if (status) {
		for (char *line = strtok(output, "\n"); line; line = strtok(NULL, "\n"))
			diag("%s", line);
		FAIL("status %#x: %s", status, command);
	}
	free(command);
	return output;
}

double number_behind(const char *output, const char *text)
{
	const char *at = strstr(output, text);

	if (!at)
		FAIL("no \"%s\" in: %s", text, output);
	return strtod(at + strlen(text), NULL);
}
