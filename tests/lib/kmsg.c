// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "kmsg.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int kmsg_open(void)
{
	int kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);

	if (kmsg >= 0)
		lseek(kmsg, 0, SEEK_END);
	return kmsg;
}

int kmsg_read(int kmsg, unsigned long long *sequence, char *line, size_t size)
{
	char record[4096], *text;
	ssize_t got = read(kmsg, record, sizeof(record) - 1);

	if (got < 0 && errno == EPIPE)
		return -EPIPE;
	if (got <= 0)
		return 0;
	record[got] = 0;
	/* "priority,sequence,time,flags;text\n KEY=value..." */
	text = strchr(record, ',');
	*sequence = text ? strtoull(text + 1, NULL, 10) : 0;
	text = strchr(record, ';');
	text = text ? text + 1 : record;
	text[strcspn(text, "\n")] = 0;
	snprintf(line, size, "%.*s", (int)size - 1, text);
	return 1;
}

bool kmsg_next(int kmsg, char *line, size_t size)
{
	unsigned long long sequence;
	int got;

	do
		got = kmsg_read(kmsg, &sequence, line, size);
	while (got == -EPIPE);
	return got;
}

static bool await(int kmsg, bool (*wanted)(const char *line, const char *text), const char *text,
		  unsigned int milliseconds)
{
	uint64_t until = now_ms() + slow(milliseconds);
	char line[512];

	for (;;) {
		while (kmsg_next(kmsg, line, sizeof(line)))
			if (wanted(line, text))
				return true;
		if (now_ms() >= until)
			return false;
		sleep_ms(5);
	}
}

static bool contains(const char *line, const char *text)
{
	return strstr(line, text);
}

bool kmsg_wait(int kmsg, const char *text, unsigned int milliseconds)
{
	return await(kmsg, contains, text, milliseconds);
}

unsigned int kmsg_count(int kmsg, const char *text)
{
	unsigned int count = 0;
	char line[512];

	while (kmsg_next(kmsg, line, sizeof(line)))
		count += strstr(line, text) != NULL;
	return count;
}

static bool any_in(const char *line, const char *const texts[], size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (strstr(line, texts[i]))
			return true;
	return false;
}

bool kmsg_is_complaint(const char *line)
{
	static const char *const complaints[] = {
#include "runner/complaints.h"
	};
	/* On every boot, and harmless. */
	static const char *const harmless[] = {
		"DMA-API: preallocated",
		"DMA-API: debugging enabled",
	};

	return any_in(line, complaints, ARRAY_SIZE(complaints)) &&
	       !any_in(line, harmless, ARRAY_SIZE(harmless));
}

bool kmsg_is_fault(const char *line)
{
	/* Intel; AMD; virtio; Arm */
	return (strstr(line, "DMAR:") && strstr(line, "fault")) || strstr(line, "IO_PAGE_FAULT") ||
	       (strstr(line, "virtio_iommu") && strstr(line, "fault")) ||
	       (strstr(line, "arm-smmu-v3") && strstr(line, "event: F_"));
}

static bool is_fault(const char *line, const char *text)
{
	(void)text;
	return kmsg_is_fault(line);
}

bool kmsg_wait_fault(int kmsg, unsigned int milliseconds)
{
	return await(kmsg, is_fault, NULL, milliseconds);
}
