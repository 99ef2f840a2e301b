// SPDX-License-Identifier: MIT OR Apache-2.0
/* Programs with much portable memory that are killed while it is mapped. */
#define _GNU_SOURCE
#include "pair.h"

#include "file.h"
#include "gpu.h"
#include "memory.h"
#include "pci.h"
#include "process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRACING "/sys/kernel/tracing"

/* Counts the mappings that were made while that was traced. */
static unsigned int mappings_traced(void)
{
	FILE *trace = fopen(TRACING "/trace", "re");
	unsigned int found = 0;
	char line[512];

	CHECK(trace);
	while (fgets(line, sizeof(line), trace))
		found += strstr(line, " pinmap_map: ") != NULL;
	fclose(trace);
	return found;
}

/*
 * A process with a great deal of portable memory opens another device, gets all of it there by its
 * first call, and is killed meanwhile: it does not go on to the end.
 */
TEST(portable_killed_while_admitted, .seconds = 120)
{
	const unsigned int many = rounds(3000);
	struct gate ready = gate_new(), go = gate_new();
	unsigned int mapped;

	need_two();
	if (access(TRACING "/events/pinmap", F_OK))
		SKIP("the kernel has no tracepoints");
	for (unsigned int attempt = 0; attempt < 5; attempt++) {
		struct pinmap_get_totals totals = { .size = sizeof(totals) };
		int watcher = SYS(open(need_device(1).node, O_RDWR | O_CLOEXEC));
		pid_t pid = fork();

		if (pid == 0) {
			char *memory = anon(many);
			int fd = open_device(0), other;

			for (unsigned int i = 0; i < many; i++)
				register_memory(fd, memory + i * PAGE, PAGE, WRITE | PORTABLE);
			other = SYS(open(need_device(1).node, O_RDWR | O_CLOEXEC));
			gate_open(&ready);
			gate_pass(&go);
			get_info(other);
			pause();
		}
		gate_pass(&ready);
		file_write(TRACING "/trace", "");
		file_write(TRACING "/events/pinmap/pinmap_map/enable", "1");
		gate_open(&go);
		do
			CHECK_OK(try_ioctl(watcher, PINMAP_GET_TOTALS, &totals));
		while (!totals.out_mapped.number);
		kill_now(pid);
		file_write(TRACING "/events/pinmap/pinmap_map/enable", "0");
		mapped = mappings_traced();
		diag("killed with %u of %u mapped", mapped, many);
		CHECK(mapped > 0 && mapped <= many);
		close(watcher);
		if (mapped < many)
			return;
	}
	FAIL("it has always had all of it mapped");
}

/*
 * A process with many contexts registers portable memory, which all of them get, and is killed
 * meanwhile: it does not go on to the end.
 */
TEST(portable_killed_while_shared, .seconds = 120)
{
	/* a buffer has 64 mappings at most */
	enum { MANY = 64 };
	unsigned long long most = 0;
	struct gate ready = gate_new();

	need_gpu();
	for (unsigned int attempt = 0; attempt < 5; attempt++) {
		struct pinmap_get_totals totals = { .size = sizeof(totals) };
		int watcher = open_gpu();
		bool killed = false;
		pid_t pid = fork();

		if (pid == 0) {
			char *memory = anon(2);
			int fds[MANY];

			for (unsigned int i = 0; i < MANY; i++) {
				fds[i] = open_gpu();
				get_info(fds[i]);
			}
			/* The page tables are there: making them would stop for a signal, too. */
			register_memory(fds[0], memory, PAGE, WRITE | PORTABLE);
			gate_open(&ready);
			register_memory(fds[0], memory + PAGE, PAGE, WRITE | PORTABLE);
			pause();
		}
		gate_pass(&ready);
		most = 0;
		do {
			CHECK_OK(try_ioctl(watcher, PINMAP_GET_TOTALS, &totals));
			if (totals.out_mapped.number > most)
				most = totals.out_mapped.number;
			if (most > MANY && !killed) {
				SYS(kill(pid, SIGKILL));
				killed = true;
			}
		} while (waitpid(pid, NULL, WNOHANG) == 0);
		CHECK(killed);
		diag("killed with %llu of %d mapped", most - MANY, MANY);
		close(watcher);
		if (most < 2 * MANY)
			return;
	}
	FAIL("it has always had all of it mapped");
}

/*
 * When the context that has a device is closed, another context of the process gets the device,
 * with all portable memory. Not if the process has ended: nothing is mapped again for nobody.
 */
TEST(portable_not_handed_over_at_the_end, .seconds = 60)
{
	enum { MANY = 500, SIBLINGS = 4 };
	struct gate ready = gate_new();

	need_two();
	/* the owner is the first file or the last, since files may be closed in either order */
	for (unsigned int owner = 0; owner < SIBLINGS; owner += SIBLINGS - 1) {
		struct pinmap_get_totals totals = { .size = sizeof(totals) };
		int watcher = SYS(open(need_device(1).node, O_RDWR | O_CLOEXEC));
		unsigned long long last = MANY;
		pid_t pid = fork();

		if (pid == 0) {
			int siblings[SIBLINGS], file = new_memfd(MANY * PAGE, 0),
						fd = owner ? open_device(0) : -1;

			for (unsigned int i = 0; i < SIBLINGS; i++)
				siblings[i] = SYS(open(need_device(1).node, O_RDWR | O_CLOEXEC));
			if (fd < 0)
				fd = open_device(0);
			for (unsigned int i = 0; i < SIBLINGS; i++)
				get_info(siblings[owner ? SIBLINGS - 1 - i : i]);
			for (unsigned int i = 0; i < MANY; i++)
				register_fd(fd, file, i * PAGE, PAGE, WRITE | PORTABLE);
			gate_open(&ready);
			pause();
		}
		gate_pass(&ready);
		CHECK_OK(try_ioctl(watcher, PINMAP_GET_TOTALS, &totals));
		CHECK_EQ(totals.out_mapped.number, MANY);
		SYS(kill(pid, SIGKILL));
		do {
			CHECK_OK(try_ioctl(watcher, PINMAP_GET_TOTALS, &totals));
			if (totals.out_mapped.number > last)
				FAIL("%llu are mapped again",
				     (unsigned long long)totals.out_mapped.number - last);
			last = totals.out_mapped.number;
		} while (waitpid(pid, NULL, WNOHANG) == 0);
		close(watcher);
	}
}
