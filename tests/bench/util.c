// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "bench.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void die(const char *file, int line, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "bench: %s:%d: ", file, line);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

const char *error_name(int error)
{
	const char *name = strerrorname_np(error);

	return name ? name : "unknown error";
}

bool try_write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

	if (fd >= 0)
		close(fd);
	return good;
}

void write_file(const char *path, const char *text)
{
	if (!try_write_file(path, text))
		DIE("writing '%s' to %s: %s", text, path, error_name(errno));
}

#define CGROUP "/sys/fs/cgroup"

bool try_enter_cgroup(bool own)
{
	char text[32];

	snprintf(text, sizeof(text), "%d", getpid());
	if (!own)
		return try_write_file(CGROUP "/cgroup.procs", text);
	if (!try_write_file(CGROUP "/cgroup.subtree_control", "+memory") ||
	    (mkdir(CGROUP "/bench", 0755) && errno != EEXIST))
		return false;
	return try_write_file(CGROUP "/bench/cgroup.procs", text);
}

uint64_t slab_bytes(void)
{
	unsigned long long bytes = 0;
	FILE *file = fopen(CGROUP "/bench/memory.stat", "re");
	char line[256];

	if (!file)
		DIE("there is no memory.stat");
	while (fgets(line, sizeof(line), file) &&
	       sscanf(line, "slab_unreclaimable %llu", &bytes) != 1)
		;
	fclose(file);
	return bytes;
}

uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* --- results --- */

const char *label = "";

void sample(struct samples *samples, uint64_t ns)
{
	if (samples->count == MAX_ROUNDS)
		DIE("more than %d rounds", MAX_ROUNDS);
	samples->ns[samples->count++] = ns;
}

static int compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

/* A quantile, interpolated between the two samples next to it. */
static uint64_t quantile(const struct samples *samples, unsigned int quarters)
{
	size_t position = (samples->count - 1) * quarters;
	uint64_t low = samples->ns[position / 4];
	uint64_t high = samples->ns[position / 4 + (position % 4 != 0)];

	return low + (high - low) * (position % 4) / 4;
}

static void put_in_order(struct samples *samples)
{
	qsort(samples->ns, samples->count, sizeof(*samples->ns), compare);
}

uint64_t median(struct samples *samples)
{
	uint64_t result;

	put_in_order(samples);
	result = quantile(samples, 2);
	samples->count = 0;
	return result;
}

static void size_name(char name[32], size_t length)
{
	if (length % GIB == 0)
		snprintf(name, 32, "%zuGiB", length / GIB);
	else if (length % MIB == 0)
		snprintf(name, 32, "%zuMiB", length / MIB);
	else
		snprintf(name, 32, "%zuKiB", length / KIB);
}

void report(const char *operation, size_t length, enum kind kind, const char *system,
	    struct samples *samples)
{
	char size[32];

	if (!samples->count)
		return;
	size_name(size, length);
	put_in_order(samples);
	/* The least alone: the time of interrupts is not the operation's. */
	if (least)
		samples->count = 1;
	printf("{\"case\": \"%s/%s/%s/%s\", \"system\": \"%s\", \"median_ns\": %llu, "
	       "\"q1_ns\": %llu, \"q3_ns\": %llu, \"rounds\": %zu}\n",
	       operation, size, kind_names[kind], label, system,
	       (unsigned long long)quantile(samples, 2), (unsigned long long)quantile(samples, 1),
	       (unsigned long long)quantile(samples, 3), samples->count);
	fflush(stdout);
	samples->count = 0;
}
