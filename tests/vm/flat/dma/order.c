// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The order of unmapping, flushing and unpinning, as the kernel's tracepoints and probes tell it.
 * Where the IOMMU is flushed too late, the device may reach memory for some microseconds only. No
 * access of a device would find that.
 */
#define _GNU_SOURCE
#include "device.h"
#include "file.h"
#include "memory.h"
#include "uffd.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define TRACING "/sys/kernel/tracing"
#define FLUSHED "qi_submit: iotlb_inv"

static char trace[4 << 20];

/* Notes when these functions of the kernel are called, by whom. */
static void probe(const char *first, const char *second)
{
	char lines[256];

	if (access(TRACING "/kprobe_events", W_OK))
		SKIP("the kernel has no probes");
	/* left by a test that failed */
	try_file_write(TRACING "/events/pinmap_test/enable", "0");
	snprintf(lines, sizeof(lines), "p:pinmap_test/%s %s\np:pinmap_test/%s %s\n", first, first,
		 second, second);
	/* takes the place of all that were there */
	file_write(TRACING "/kprobe_events", lines);
	file_write(TRACING "/events/pinmap_test/enable", "1");
}

static void unprobe(void)
{
	file_write(TRACING "/kprobe_events", "\n");
}

static void trace_begin(bool unmaps)
{
	const char *iommu = getenv("PINMAP_IOMMU");

	/* The kernel has this tracepoint on a machine with another IOMMU, too. */
	if ((iommu && strcmp(iommu, "intel")) ||
	    access(TRACING "/events/intel_iommu/qi_submit", F_OK))
		SKIP("the kernel does not trace the flushes of this IOMMU");
	file_write(TRACING "/trace", "");
	file_write(TRACING "/events/intel_iommu/qi_submit/enable", "1");
	file_write(TRACING "/events/iommu/unmap/enable", unmaps ? "1" : "0");
}

static void trace_end(void)
{
	size_t length = 0;
	ssize_t got;
	int fd;

	file_write(TRACING "/events/enable", "0");
	fd = SYS(open(TRACING "/trace", O_RDONLY | O_CLOEXEC));
	while ((got = SYS(read(fd, trace + length, sizeof(trace) - 1 - length))) > 0)
		length += got;
	trace[length] = 0;
	close(fd);
}

static void mark(const char *text)
{
	file_write(TRACING "/trace_marker", text);
}

/* The first line from @from on with these words, of the thread or, if that is 0, of any. */
static const char *find(const char *from, const char *words, pid_t thread)
{
	while (from && (from = strstr(from, words))) {
		const char *line = from, *pid;

		while (line > trace && line[-1] != '\n')
			line--;
		/* "NAME-PID [CPU] ..." */
		pid = strstr(line, " [");
		while (pid > line && *pid != '-')
			pid--;
		if (!thread || atoi(pid + 1) == thread)
			return from;
		from += strlen(words);
	}
	return NULL;
}

/* RELEASE_BUFFERS unpins nothing before everything is flushed. */
TEST(order_release_buffers)
{
	enum { COUNT = 3 };
	char *memory = anon(COUNT);
	uint64_t handles[COUNT];
	struct pinmap_release_buffers args = { .size = sizeof(args),
					       .handles = (uintptr_t)handles,
					       .count = COUNT };
	const char *unmapped = trace, *unpinned, *flushed;
	int fd = open_device(0);

	for (int i = 0; i < COUNT; i++)
		handles[i] = register_memory(fd, memory + i * PAGE, PAGE, WRITE).handle;
	trace_begin(true);
	probe("pinmap_unpin_page", "pinmap_unpin_pages");
	CHECK_OK(try_ioctl(fd, PINMAP_RELEASE_BUFFERS, &args));
	trace_end();
	unprobe();
	for (int i = 0; i < COUNT; i++) {
		unmapped = find(unmapped, " unmap: ", gettid());
		CHECK(unmapped);
		unmapped++;
	}
	unpinned = find(trace, "pinmap_unpin_page: ", gettid());
	CHECK(unpinned);
	flushed = find(unmapped, FLUSHED, gettid());
	CHECK(flushed && unmapped < flushed && flushed < unpinned);
}

/* A line of pages, each registered; the device addresses of the first two are one buffer's. */
enum { LINE = 1000 };

struct release {
	int fd;
	char *memory;
	uint64_t handles[LINE];
	volatile bool begun;
	pid_t thread;
};

static void *release_line(void *argument)
{
	struct release *release = argument;
	struct pinmap_release_buffers args = { .size = sizeof(args),
					       .handles = (uintptr_t)release->handles,
					       .count = LINE };

	release->thread = gettid();
	release->begun = true;
	CHECK_OK(try_ioctl(release->fd, PINMAP_RELEASE_BUFFERS, &args));
	mark("line released");
	return NULL;
}

/* Registers the first page, leaves out the second one, and registers all others. */
static void register_line(struct release *release)
{
	struct pinmap_registration entries[LINE] = { 0 };
	struct pinmap_register_buffers args = { .size = sizeof(args),
						.flags = WRITE,
						.buffers = (uintptr_t)entries,
						.count = LINE };

	release->memory = address_space((LINE + 1) * PAGE, HUGE);
	SYS(mmap(release->memory, (LINE + 1) * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	SYS(madvise(release->memory, (LINE + 1) * PAGE, MADV_NOHUGEPAGE));
	memset(release->memory, 1, (LINE + 1) * PAGE);
	for (int i = 0; i < LINE; i++) {
		entries[i].addr = (uintptr_t)release->memory + (i ? i + 1 : 0) * PAGE;
		entries[i].length = PAGE;
	}
	CHECK_OK(try_ioctl(release->fd, PINMAP_REGISTER_BUFFERS, &args));
	for (int i = 0; i < LINE; i++)
		release->handles[i] = entries[i].out_handle;
}

/*
 * Whether @thread, which has marked its end, came while the page at @page was unmapped and the
 * others were not all. If so, checks that somebody had flushed by then.
 */
static bool came_between(const struct release *release, const char *page, pid_t thread)
{
	const char *unmapped, *ended, *flushed, *own;
	char words[64];

	snprintf(words, sizeof(words), " unmap: IOMMU: iova=0x%016lx ", (unsigned long)page);
	unmapped = find(trace, words, release->thread);
	ended = find(trace, "other ended", thread);
	CHECK(ended);
	if (!unmapped)
		return false;
	flushed = find(unmapped, FLUSHED, release->thread);
	own = find(unmapped, FLUSHED, thread);
	if (ended < unmapped || (flushed && flushed < ended))
		return false;
	CHECK(own && own < ended);
	return true;
}

/* munmap() of memory that RELEASE_BUFFERS has unmapped and not flushed yet flushes by itself. */
TEST(order_munmap_beside_release, .seconds = 120)
{
	bool came = false;

	for (unsigned int i = 0; i < 40 && !came; i++) {
		struct release release = { .fd = open_device(0) };
		pthread_t thread;

		register_line(&release);
		trace_begin(true);
		CHECK_OK(-pthread_create(&thread, NULL, release_line, &release));
		while (!release.begun)
			;
		spin_ns(200000 * (i % 20));
		SYS(munmap(release.memory, PAGE));
		mark("other ended");
		CHECK_OK(-pthread_join(thread, NULL));
		trace_end();
		came = came_between(&release, release.memory, gettid());
		SYS(munmap(release.memory + PAGE, LINE * PAGE));
		close(release.fd);
	}
	if (!came)
		SKIP("it never came between");
}

struct mapper {
	int fd;
	struct pinmap_map *args;
	int result;
	pid_t thread;
};

static void *map_again(void *argument)
{
	struct mapper *mapper = argument;

	mapper->thread = gettid();
	mapper->result = try_ioctl(mapper->fd, PINMAP_MAP, mapper->args);
	mark("other ended");
	return NULL;
}

/*
 * A mapping whose address cannot be told is removed, which flushes, also if RELEASE_BUFFERS has
 * unmapped it and not flushed yet.
 */
TEST(order_unmap_beside_release, .seconds = 120)
{
	bool came = false;

	for (unsigned int i = 0; i < 40 && !came; i++) {
		struct release release = { .fd = open_device(0) };
		struct mapper mapper = { .fd = release.fd, .args = (void *)anon(1) };
		pthread_t thread, other;
		int uffd;

		register_line(&release);
		*mapper.args = (struct pinmap_map){ .size = sizeof(*mapper.args),
						    .flags = PINMAP_MAP_WRITE | PINMAP_MAP_FIXED,
						    .handle = release.handles[0],
						    .device_addr =
							    (uintptr_t)release.memory + PAGE };
		uffd = uffd_new_protect(mapper.args, PAGE);
		uffd_protect(uffd, mapper.args, PAGE, true);
		CHECK_OK(-pthread_create(&other, NULL, map_again, &mapper));
		uffd_await(uffd, mapper.args);
		trace_begin(true);
		CHECK_OK(-pthread_create(&thread, NULL, release_line, &release));
		while (!release.begun)
			;
		spin_ns(200000 * (i % 20));
		/* the kernel's write fails */
		SYS(mprotect(mapper.args, PAGE, PROT_READ));
		uffd_protect(uffd, mapper.args, PAGE, false);
		CHECK_OK(-pthread_join(other, NULL));
		CHECK_EQ(mapper.result, -EFAULT);
		CHECK_OK(-pthread_join(thread, NULL));
		trace_end();
		came = came_between(&release, release.memory + PAGE, mapper.thread);
		SYS(munmap(release.memory, (LINE + 1) * PAGE));
		close(uffd);
		close(release.fd);
	}
	if (!came)
		SKIP("it never came between");
}

/* Taking an eventfd from an interrupt waits for its handlers before the eventfd is freed. */
TEST(order_eventfd)
{
	int eventfds[] = { SYS(eventfd(0, EFD_CLOEXEC)), SYS(eventfd(0, EFD_CLOEXEC)) };
	const char *waited, *put;
	int fd = open_device(0);

	if (!get_info(fd).out_nr_vectors)
		SKIP("the device has no vectors");
	set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, eventfds[0]);
	probe("synchronize_irq", "eventfd_ctx_put");
	file_write(TRACING "/trace", "");
	set_eventfd(fd, PINMAP_SOURCE_VECTOR, 0, eventfds[1]);
	trace_end();
	unprobe();
	put = find(trace, "eventfd_ctx_put: ", gettid());
	waited = find(trace, "synchronize_irq: ", gettid());
	CHECK(put);
	CHECK(waited && waited < put);
}
