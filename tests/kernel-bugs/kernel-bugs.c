// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Faults of the kernel, without pinmap: the kernel's own module test_hmm has pages of a device, and
 * each command of this program but the last does with them what one fault needs. See
 * docs/kernel-bugs.md.
 *
 * Without the fault a command ends by itself, with exit status 0 and no message of the kernel's.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HUGE = 2 << 20, PAGES = HUGE / PAGE };

/* The struct of lib/test_hmm_uapi.h. */
struct hmm_dmirror_cmd {
	uint64_t addr, ptr, npages, cpages, faults;
};
#define HMM_DMIRROR_READ _IOWR('H', 0x00, struct hmm_dmirror_cmd)
#define HMM_DMIRROR_MIGRATE_TO_DEV _IOWR('H', 0x02, struct hmm_dmirror_cmd)
#define HMM_DMIRROR_MIGRATE_TO_SYS _IOWR('H', 0x03, struct hmm_dmirror_cmd)
#define HMM_DMIRROR_SNAPSHOT _IOWR('H', 0x04, struct hmm_dmirror_cmd)

static int device;
static char copy[HUGE];

static int open_device(unsigned int minor)
{
	FILE *file = fopen("/proc/devices", "r");
	char line[128], name[64], path[64];
	unsigned int major;
	int fd;

	snprintf(path, sizeof(path), "/tmp/hmm_dmirror%u", minor);
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "%u %63s", &major, name) == 2 && !strcmp(name, "HMM_DMIRROR"))
			mknod(path, S_IFCHR | 0600, makedev(major, minor));
	if (file)
		fclose(file);
	fd = open(path, O_RDWR);
	if (fd < 0)
		err(1, "modprobe test_hmm");
	return fd;
}

/* The number of pages that the device has moved, read or looked at. */
static unsigned int call(int fd, unsigned long request, void *memory, unsigned int pages)
{
	struct hmm_dmirror_cmd cmd = { (uintptr_t)memory, (uintptr_t)copy, pages, 0, 0 };

	return ioctl(fd, request, &cmd) ? 0 : cmd.cpages;
}

static void to_device(char *huge)
{
	if (call(device, HMM_DMIRROR_MIGRATE_TO_DEV, huge, PAGES) != PAGES)
		errx(1, "the device did not take the pages");
}

static char *map(void *at, size_t length, int prot, int flags)
{
	char *memory = mmap(at, length, prot, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);

	if (memory == MAP_FAILED)
		err(1, "mmap");
	return memory;
}

/* Maps so many bytes, and nothing else in one mapping with them, from a multiple of them on. */
static char *map_aligned(size_t length)
{
	char *area = map(NULL, 3 * length, PROT_NONE, MAP_NORESERVE);

	area = (char *)(((uintptr_t)area + length - 1) & -length);
	return map(area, length, PROT_READ | PROT_WRITE, MAP_FIXED);
}

/* Prints the lines of a file that begin so. */
static void tell_lines(const char *what, const char *path, const char *beginning)
{
	FILE *file = fopen(path, "r");
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, beginning, strlen(beginning)))
			printf("%s: %s", what, line);
	fflush(stdout);
	if (file)
		fclose(file);
}

/* --- freed-early: a huge page moves home while a child, or a thread, frees it --- */

static char *moving;

static void *move_home(void *unused)
{
	call(device, HMM_DMIRROR_MIGRATE_TO_SYS, moving, PAGES);
	return unused;
}

static void free_soon(void)
{
	usleep(rand() % 600);
	madvise(moving, HUGE, MADV_DONTNEED);
}

static int freed_early(int by_thread)
{
	const unsigned int rounds = 1000;
	unsigned int moved = 0;

	moving = map_aligned(HUGE);
	madvise(moving, HUGE, MADV_HUGEPAGE);
	tell_lines("before", "/proc/meminfo", "AnonPages:");
	for (unsigned int i = 0; i < rounds; i++) {
		pthread_t thread;
		pid_t child = 1;

		srand(i);
		memset(moving, i, HUGE);
		moved += call(device, HMM_DMIRROR_MIGRATE_TO_DEV, moving, PAGES) == PAGES;
		if (!by_thread)
			child = fork();
		if (!child) {
			free_soon();
			_exit(0);
		}
		pthread_create(&thread, NULL, move_home, NULL);
		if (by_thread)
			free_soon();
		pthread_join(thread, NULL);
		if (!by_thread)
			waitpid(child, NULL, 0);
		madvise(moving, HUGE, MADV_DONTNEED);
	}
	printf("%u of %u rounds moved it\n", moved, rounds);
	tell_lines("after", "/proc/meminfo", "AnonPages:");
	return 0;
}

/* --- anon-vma: the device is emptied by frame number while the mappings of its pages end --- */

static void *empty_device(void *unused)
{
	close(open_device(0));
	return unused;
}

/* The entry of an address in the page table, as the kernel shows it. */
static uint64_t page_entry(const char *page)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);
	uint64_t entry = 0;

	if (pread(fd, &entry, sizeof(entry), (uintptr_t)page / PAGE * sizeof(entry)) < 0)
		err(1, "/proc/self/pagemap");
	close(fd);
	return entry;
}

static int anon_vma(void)
{
	/*
	 * Each page is a mapping of its own, with an anon_vma of its own, for nothing is beside it.
	 * The device gives out its last pages first and is emptied from the first one on: these
	 * pages are the first to be unmapped and put back, and there are many others in between.
	 */
	const unsigned int mappings = 1024, others = 16;
	const size_t length = 2 * mappings * PAGE;
	char *area = map(NULL, length, PROT_NONE, MAP_NORESERVE);
	char *rest = map(NULL, others * HUGE, PROT_READ | PROT_WRITE, 0);
	char *page = area;
	unsigned int moved = 0;
	pthread_t thread;
	uint64_t entry;

	madvise(rest, others * HUGE, MADV_NOHUGEPAGE);
	memset(rest, 1, others * HUGE);
	for (unsigned int i = 0; i < others; i++)
		moved += call(device, HMM_DMIRROR_MIGRATE_TO_DEV, rest + i * HUGE, PAGES);
	for (unsigned int i = 0; i < mappings; i++) {
		page = map(area + 2 * i * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_FIXED);
		*page = 1;
		moved += call(device, HMM_DMIRROR_MIGRATE_TO_DEV, page, 1);
	}
	printf("%u of %u pages are on the device\n", moved, others * PAGES + mappings);
	fflush(stdout);
	entry = page_entry(page);
	pthread_create(&thread, NULL, empty_device, NULL);
	while (page_entry(page) == entry)
		;
	munmap(area, length);
	printf("their mappings have ended\n");
	fflush(stdout);
	pthread_join(thread, NULL);
	printf("the device is empty\n");
	return 0;
}

/* Small entries map the page, as a part of it is freed on the device. It stays one page. */
static void to_device_in_small_entries(char *huge)
{
	to_device(huge);
	madvise(huge + HUGE - PAGE, PAGE, MADV_DONTNEED);
}

/* --- deadlock: two threads touch a huge page each, which are split in the page table --- */

struct touch {
	pthread_barrier_t *barrier;
	volatile char *page;
};

static void *touch(void *argument)
{
	struct touch *touch = argument;

	pthread_barrier_wait(touch->barrier);
	(void)*touch->page;
	return NULL;
}

static void touch_both(_Atomic unsigned int *rounds)
{
	char *area = map_aligned(2 * HUGE);
	pthread_barrier_t barrier;

	pthread_barrier_init(&barrier, NULL, 2);
	madvise(area, 2 * HUGE, MADV_HUGEPAGE);
	for (unsigned int i = 0; i < 200; i++) {
		struct touch first = { &barrier, area }, second = { &barrier, area + HUGE };
		pthread_t thread;

		memset(area, i, 2 * HUGE);
		to_device_in_small_entries(area);
		to_device_in_small_entries(area + HUGE);
		pthread_create(&thread, NULL, touch, &second);
		touch(&first);
		pthread_join(thread, NULL);
		madvise(area, 2 * HUGE, MADV_DONTNEED);
		++*rounds;
	}
}

static void tell_threads(pid_t process)
{
	struct dirent *thread;
	char path[64];
	DIR *threads;

	snprintf(path, sizeof(path), "/proc/%d/task", process);
	threads = opendir(path);
	while (threads && (thread = readdir(threads))) {
		if (*thread->d_name == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%.16s/status", thread->d_name);
		tell_lines(thread->d_name, path, "State:");
		snprintf(path, sizeof(path), "/proc/%.16s/stack", thread->d_name);
		tell_lines(thread->d_name, path, "");
	}
	if (threads)
		closedir(threads);
}

static int deadlock(void)
{
	_Atomic unsigned int *rounds = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
					    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned int seen = 0, quiet = 0;
	int status;
	pid_t child = fork();

	if (!child) {
		/* The device moves pages of the process that has opened it. */
		device = open_device(0);
		touch_both(rounds);
		_exit(0);
	}
	while (!waitpid(child, &status, WNOHANG)) {
		sleep(1);
		quiet = *rounds == seen ? quiet + 1 : 0;
		seen = *rounds;
		if (quiet == 30)
			kill(child, SIGKILL);
		if (quiet == 60) {
			printf("round %u: it does not end, also when it is killed\n", seen);
			tell_threads(child);
			return 1;
		}
	}
	printf("%u rounds\n", *rounds);
	return status != 0;
}

/* --- unlocked: the CPU touches a page in the middle of one that is split in the page table --- */

static int unlocked(void)
{
	char *memory = map_aligned(HUGE);

	madvise(memory, HUGE, MADV_HUGEPAGE);
	memset(memory, 1, HUGE);
	to_device_in_small_entries(memory);
	printf("the middle: %d\n", *(volatile char *)(memory + HUGE / 2));
	return 0;
}

/* --- shared: a huge page that a child has, too, moves to the device --- */

static int shared(void)
{
	char *memory = map_aligned(HUGE);
	pid_t child;

	madvise(memory, HUGE, MADV_HUGEPAGE);
	memset(memory, 1, HUGE);
	child = fork();
	if (!child) {
		pause();
		_exit(0);
	}
	to_device(memory);
	printf("the page is on the device\n");
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}

/* --- hmm-range: the device reads from the middle of a huge page, and of another device's --- */

static int hmm_range(void)
{
	const unsigned int middle = 300;
	const char *sizes[] = { "small pages", "a huge page" };
	int other = open_device(1), wrong = 0;
	char *memory = map_aligned(HUGE);
	unsigned int number = 0;

	for (int huge = 0; huge < 2; huge++) {
		madvise(memory, HUGE, MADV_DONTNEED);
		madvise(memory, HUGE, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
		for (unsigned int i = 0; i < PAGES; i++)
			memcpy(memory + i * PAGE, &i, sizeof(i));
		to_device(memory);
		call(other, HMM_DMIRROR_SNAPSHOT, memory, PAGES);
		printf("%s, of another device: reported as %#x\n", sizes[huge],
		       (unsigned char)copy[0]);
		wrong |= copy[0] != 0;
		/* Takes the addresses out of the device's page table, so that it asks again. */
		mprotect(memory, HUGE, PROT_READ);
		if (call(device, HMM_DMIRROR_READ, memory + middle * PAGE, 1) != 1)
			errx(1, "the device did not read the page");
		memcpy(&number, copy, sizeof(number));
		printf("%s, own: page %u has the contents of page %u\n", sizes[huge], middle,
		       number);
		wrong |= number != middle;
		fflush(stdout);
		mprotect(memory, HUGE, PROT_READ | PROT_WRITE);
	}
	return wrong;
}

/* Has VFIO switch on the MSI of the function, which vfio-pci is bound to. */
static int msi(const char *function)
{
	struct {
		struct vfio_irq_set set;
		int32_t eventfd;
	} vector = {
		.set = { .argsz = sizeof(vector),
			 .flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
			 .index = VFIO_PCI_MSI_IRQ_INDEX,
			 .count = 1 },
		.eventfd = eventfd(0, 0),
	};
	char path[128], target[128] = "";
	int container = open("/dev/vfio/vfio", O_RDWR), group;

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/iommu_group", function);
	if (readlink(path, target, sizeof(target) - 1) < 0)
		err(1, "%s", path);
	snprintf(path, sizeof(path), "/dev/vfio%s", strrchr(target, '/'));
	group = open(path, O_RDWR);
	if (group < 0 || ioctl(group, VFIO_GROUP_SET_CONTAINER, &container) ||
	    ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU))
		err(1, "%s", path);
	device = ioctl(group, VFIO_GROUP_GET_DEVICE_FD, function);
	if (device < 0)
		err(1, "%s", function);
	if (ioctl(device, VFIO_DEVICE_SET_IRQS, &vector))
		err(1, "VFIO_DEVICE_SET_IRQS");
	return 0;
}

int main(int argc, char **argv)
{
	const char *command = argc > 1 ? argv[1] : "";

	if (!strcmp(command, "deadlock"))
		return deadlock();
	if (!strcmp(command, "msi") && argc > 2)
		return msi(argv[2]);
	device = open_device(0);
	if (!strcmp(command, "freed-early"))
		return freed_early(argc > 2);
	if (!strcmp(command, "anon-vma"))
		return anon_vma();
	if (!strcmp(command, "unlocked"))
		return unlocked();
	if (!strcmp(command, "shared"))
		return shared();
	if (!strcmp(command, "hmm-range"))
		return hmm_range();
	errx(2, "usage: kernel-bugs COMMAND, one of those that docs/kernel-bugs.md has");
}
