// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int try_file_read(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got;

	if (fd < 0)
		return -errno;
	got = read(fd, text, size - 1);
	if (got < 0)
		got = -errno;
	close(fd);
	if (got < 0)
		return got;
	text[got] = 0;
	if (got && text[got - 1] == '\n')
		text[got - 1] = 0;
	return 0;
}

static int put(const char *path, int flags, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | O_TRUNC | flags, 0600), result = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, text, strlen(text)) < 0)
		result = -errno;
	close(fd);
	return result;
}

int try_file_write(const char *path, const char *text)
{
	return put(path, 0, text);
}

int try_file_create(const char *path, const char *text)
{
	return put(path, O_CREAT, text);
}

long long file_number(const char *path, long long otherwise)
{
	char text[64];

	return try_file_read(path, text, sizeof(text)) ? otherwise : strtoll(text, NULL, 0);
}

long long file_field(const char *path, const char *word)
{
	FILE *file = fopen(path, "re");
	size_t length = strlen(word);
	long long value = -1;
	char line[512];

	while (file && fgets(line, sizeof(line), file)) {
		if (strncmp(line, word, length))
			continue;
		value = strtoll(line + length, NULL, 0);
		break;
	}
	if (file)
		fclose(file);
	return value;
}
