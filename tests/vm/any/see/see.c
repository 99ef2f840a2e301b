// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "see.h"

#include "file.h"
#include "pci.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct pinmap_get_totals totals(int fd, uint32_t flags)
{
	struct pinmap_get_totals args = { .size = sizeof(args), .flags = flags };

	CHECK_OK(try_ioctl(fd, PINMAP_GET_TOTALS, &args));
	return args;
}

long long fdinfo(int fd, const char *key)
{
	char path[64], word[64];

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	snprintf(word, sizeof(word), "pinmap-%s:", key);
	return file_field(path, word);
}

void debugfs_path(const struct pci_device *device, char path[128])
{
	snprintf(path, 128, "/sys/kernel/debug/pinmap/%s/buffers", device->bdf);
	if (access("/sys/kernel/debug/pinmap", F_OK))
		SKIP("there is no debugfs");
}

/* Finds the first line of this process with a text in a certain word; false: there is none. */
static bool find_word(const char *path, unsigned int word, const char *wanted, struct line *line)
{
	char text[65536], *rest = text, *next;

	file_read(path, text, sizeof(text));
	while ((next = strsep(&rest, "\n"))) {
		int words;

		if (next[0] == '#')
			continue;
		words = sscanf(
			next,
			"%159s %159s %159s %159s %159s %159s %159s %159s %159s %159s %159s %159s",
			line->words[0], line->words[1], line->words[2], line->words[3],
			line->words[4], line->words[5], line->words[6], line->words[7],
			line->words[8], line->words[9], line->words[10], line->words[11]);
		if (words != 12)
			FAIL("%d words: %s", words, next);
		if (!strcmp(line->words[word], wanted) && atoi(line->words[2]) == getpid())
			return true;
	}
	return false;
}

bool find_line(const char *path, const void *addr, struct line *line)
{
	char wanted[32];

	snprintf(wanted, sizeof(wanted), "%#llx", (unsigned long long)(uintptr_t)addr);
	return find_word(path, 7, wanted, line);
}

void check_line(const char *path, int fd, const char *kind, uint64_t handle, const char *access,
		const char *state, const char *mapped_at)
{
	struct line line;

	if (!find_word(path, 4, kind, &line))
		FAIL("nothing is %s", kind);
	CHECK_EQ(atoll(line.words[1]), fdinfo(fd, "client-id"));
	CHECK_EQ(strtoull(line.words[3], NULL, 0), handle);
	CHECK(!strcmp(line.words[5], access));
	CHECK(!strcmp(line.words[6], state));
	if (strcmp(line.words[11], mapped_at))
		FAIL("%s is mapped at %s, not %s", kind, line.words[11], mapped_at);
}
