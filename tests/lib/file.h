/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Small files, as in /proc and /sys. */
#ifndef TESTS_FILE_H
#define TESTS_FILE_H

#include "harness.h"

/* Reads the content, without the last newline; 0 or -errno. */
int try_file_read(const char *path, char *text, size_t size);
int try_file_write(const char *path, const char *text);
/* Writes a file, and creates it if it is missing. */
int try_file_create(const char *path, const char *text);

#define file_read(...) CHECK_OK(try_file_read(__VA_ARGS__))
#define file_write(...) CHECK_OK(try_file_write(__VA_ARGS__))

/* The number in a file, or @otherwise. */
long long file_number(const char *path, long long otherwise);

/* The number behind a word at the start of a line ("VmPin:"), or -1. */
long long file_field(const char *path, const char *word);

#endif
