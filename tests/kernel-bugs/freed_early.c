// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A fault of the kernel, without pinmap: the module test_hmm of the kernel moves a huge page home
 * while a child, or with an argument a thread, frees it. See docs/kernel-bugs.md.
 *
 * Without the fault every round ends without a message of the kernel's, and AnonPages is about the
 * same before and after.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HUGE = 2 << 20, PAGES = HUGE / 4096, ROUNDS = 1000 };

/* That of lib/test_hmm_uapi.h. */
struct hmm_dmirror_cmd {
	uint64_t addr, ptr, npages, cpages, faults;
};
#define HMM_DMIRROR_MIGRATE_TO_DEV _IOWR('H', 0x02, struct hmm_dmirror_cmd)
#define HMM_DMIRROR_MIGRATE_TO_SYS _IOWR('H', 0x03, struct hmm_dmirror_cmd)

static int device;
static char *memory, *copy;

static int open_device(void)
{
	FILE *file = fopen("/proc/devices", "r");
	const char *path = "/tmp/hmm_dmirror0";
	char line[128], name[64];
	unsigned int major;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "%u %63s", &major, name) == 2 && !strcmp(name, "HMM_DMIRROR"))
			mknod(path, S_IFCHR | 0600, makedev(major, 0));
	return open(path, O_RDWR);
}

static unsigned int moved(unsigned long request)
{
	struct hmm_dmirror_cmd cmd = { (uintptr_t)memory, (uintptr_t)copy, PAGES, 0, 0 };

	return ioctl(device, request, &cmd) ? 0 : cmd.cpages;
}

static void *move_home(void *unused)
{
	moved(HMM_DMIRROR_MIGRATE_TO_SYS);
	return unused;
}

static void free_soon(void)
{
	usleep(rand() % 600);
	madvise(memory, HUGE, MADV_DONTNEED);
}

static void tell(const char *when)
{
	FILE *file = fopen("/proc/meminfo", "r");
	char line[128];

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, "AnonPages:", 10))
			printf("%s: %s", when, line);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char *area = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);
	unsigned int rounds = 0;

	(void)argv;
	device = open_device();
	if (device < 0)
		err(1, "modprobe test_hmm");
	memory = (char *)(((uintptr_t)area + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
	copy = malloc(HUGE);
	madvise(memory, HUGE, MADV_HUGEPAGE);
	tell("before");
	for (unsigned int i = 0; i < ROUNDS; i++) {
		pthread_t thread;
		pid_t child = 1;

		srand(i);
		memset(memory, i, HUGE);
		rounds += moved(HMM_DMIRROR_MIGRATE_TO_DEV) == PAGES;
		if (argc == 1)
			child = fork();
		if (!child) {
			free_soon();
			_exit(0);
		}
		pthread_create(&thread, NULL, move_home, NULL);
		if (argc > 1)
			free_soon();
		pthread_join(thread, NULL);
		if (argc == 1)
			waitpid(child, NULL, 0);
		madvise(memory, HUGE, MADV_DONTNEED);
	}
	printf("%u of %u rounds moved it\n", rounds, ROUNDS);
	tell("after");
	return 0;
}
