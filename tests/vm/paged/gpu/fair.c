// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Fairness: nobody can have all of a resource of which a paged device has few: queues, contexts,
 * page tables, a processor.
 */
#define _GNU_SOURCE
#include "alloc.h"
#include "file.h"
#include "gpu.h"
#include "memory.h"
#include "pci.h"
#include "pressure.h"
#include "process.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/*
 * One user cannot have all ids of queues, in however many contexts, nor for nothing: mapped
 * doorbells of destroyed queues keep their ids.
 */
TEST(ids_of_two_users, .seconds = 120)
{
	enum { CONTEXTS = 5, EACH = 256 };
	struct gate full = gate_new(), done = gate_new();
	struct pinmap_queue_create args;
	unsigned int taken = 0;
	struct gpu_queue queue;
	int result, fd;
	pid_t pid;

	pci_adopt(need_gpu());
	pid = fork();
	if (pid == 0) {
		set_memlock(64 * MIB);
		become_user(true);
		for (int i = 0; i < CONTEXTS; i++) {
			fd = open_gpu();
			for (int k = 0; k < EACH; k++) {
				result = try_queue_create(fd, GPU_BOTH, GPU_PACKETS, &args);
				if (result)
					break;
				map_at(fd, args.out_doorbell_offset, PAGE);
				CHECK_OK(try_queue_destroy(fd, args.out_queue));
				taken++;
			}
		}
		CHECK_ERR(ENOSPC, result);
		diag("a user has %u ids, charged %llu pages", taken,
		     (unsigned long long)get_info(fd).out_memlock_used / PAGE);
		CHECK(taken > 3 * EACH);
		CHECK(get_info(fd).out_memlock_used >= taken * PAGE);
		gate_open(&full);
		gate_pass(&done);
		_exit(0);
	}
	gate_pass(&full);
	queue = queue_new(open_gpu());
	queue_push(&queue, GPU_NOP, 0, 0, 0);
	queue_finish(&queue);
	gate_open(&done);
	join(pid);
	/* they come back */
	fd = open_gpu();
	for (int k = 0; k < 2 * EACH; k++)
		CHECK_OK(try_queue_create(fd, GPU_BOTH, GPU_PACKETS, &args));
}

/* A queue of which the program could not be told gives its id back: there are 1,024. */
TEST(ids_of_queues_nobody_has)
{
	enum { ALL = 1024 };
	struct pinmap_queue_create *args = (void *)anon(1);
	int fd = open_gpu();

	*args = (struct pinmap_queue_create){ .size = sizeof(*args), .flags = GPU_BOTH,
					      .packets = GPU_PACKETS };
	SYS(mprotect(args, PAGE, PROT_READ));
	for (int k = 0; k <= ALL; k++)
		CHECK_ERR(EFAULT, try_ioctl(fd, PINMAP_QUEUE_CREATE, args));
	queue_new(fd);
}

/* Takes all memory of the device that programs can have. */
static void take_vram(int fd)
{
	struct pinmap_alloc args;
	int result = 0;

	for (size_t length = 64 * MIB; length >= PAGE; length /= 2)
		do
			result = try_alloc(fd, PINMAP_ALLOC_VRAM, length, &args);
		while (!result);
	CHECK_ERR(ENOSPC, result);
}

/* Checks that a context that is opened now works: it has page tables for memory and for a queue. */
static void check_opens(void)
{
	struct gpu_queue queue = queue_new(open_gpu());
	char *memory = anon(1);

	register_memory(queue.fd, memory, PAGE, WRITE);
	queue_push(&queue, GPU_FILL, (uintptr_t)memory, PAGE, 0x77);
	queue_finish(&queue);
	CHECK_EQ(memory[PAGE - 1], 0x77);
}

/* Programs that take all of the device's memory leave room for the tables of others. */
TEST(vram_is_not_all)
{
	take_vram(open_gpu());
	check_opens();
}

/*
 * No user can have so many contexts that others get none, also when all other memory of the device
 * is in use.
 */
TEST(contexts_of_two_users, .seconds = 120)
{
	enum { TOO_MANY = 4096 };
	struct rlimit files = { 2 * TOO_MANY, 2 * TOO_MANY };
	struct gate full = gate_new(), done = gate_new();
	char node[64];
	pid_t pid;
	int fd;

	pci_adopt(need_gpu());
	SYS(setrlimit(RLIMIT_NOFILE, &files));
	snprintf(node, sizeof(node), "/proc/self/fd/%d", open_gpu());
	pid = fork();
	if (pid == 0) {
		unsigned int contexts = 1;

		set_memlock(64 * MIB);
		become_user(true);
		fd = open_gpu();
		take_vram(fd);
		while (contexts < TOO_MANY && (fd = open(node, O_RDWR | O_CLOEXEC)) >= 0)
			contexts++;
		diag("a user has %u contexts", contexts);
		CHECK(contexts < TOO_MANY && contexts >= 100);
		CHECK_EQ(errno, ENOSPC);
		gate_open(&full);
		gate_pass(&done);
		_exit(0);
	}
	gate_pass(&full);
	check_opens();
	gate_open(&done);
	join(pid);
}

/* A user that need not pay for page tables cannot have all of them. */
TEST(tables_of_two_contexts, .seconds = 120)
{
	struct pinmap_map map = { .size = sizeof(map), .flags = PINMAP_MAP_FIXED };
	char *memory = anon(8192 / 60 + 1);
	int fd = open_gpu(), old = open_gpu(), result = 0;
	struct gpu_queue queue;

	take_vram(fd);
	for (unsigned int place = 0; place < 8192 && !result; place++) {
		/*
		 * a buffer has 64 mappings at most, and beside others a page needs no table of its
		 * own
		 */
		if (place % 60 == 0) {
			struct registration registration;

			result = try_register_memory(fd, memory + place / 60 * PAGE, PAGE, WRITE,
						     &registration);
			if (result)
				break;
			map.handle = registration.handle;
		}
		map.device_addr = (1ULL << 40) + ((uint64_t)place << 30);
		result = try_ioctl(fd, PINMAP_MAP, &map);
	}
	CHECK_ERR(ENOSPC, result);
	check_opens();
	/* a context that was open before has what is set aside for it */
	queue = queue_new(old);
	queue_push(&queue, GPU_NOP, 0, 0, 0);
	queue_finish(&queue);
}

static uint64_t clock_ms(clockid_t clock)
{
	struct timespec time;

	SYS(clock_gettime(clock, &time));
	return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* The share of its processor that this process gets in a second, in thousandths. */
static uint64_t share_of_processor(void)
{
	uint64_t start = now_ms(), had = clock_ms(CLOCK_THREAD_CPUTIME_ID), passed;

	while ((passed = now_ms() - start) < slow(1000))
		;
	return (clock_ms(CLOCK_THREAD_CPUTIME_ID) - had) * 1000 / passed;
}

/**
 * struct storm - a queue that raises interrupts
 * @fd: its context
 * @args: what QUEUE_CREATE said
 * @doorbell: its doorbell
 * @over: it is to end
 */
struct storm {
	int fd;
	struct pinmap_queue_create args;
	volatile uint64_t *doorbell;
	volatile bool over;
};

static void pin_to_processor(int number)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(number, &set);
	SYS(sched_setaffinity(0, sizeof(set), &set));
}

/* Moves all interrupts of the test GPU to a processor. */
static void irqs_to_processor(int number)
{
	DIR *irqs = opendir(pci_path(need_gpu(), "msi_irqs"));
	char path[300], mask[8];
	struct dirent *entry;

	CHECK(irqs);
	snprintf(mask, sizeof(mask), "%x", 1 << number);
	while ((entry = readdir(irqs))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/irq/%s/smp_affinity", entry->d_name);
		file_write(path, mask);
	}
	closedir(irqs);
}

/* Rings a queue of nothing but interrupts until it is told to end. */
static void *raise_interrupts(void *data)
{
	struct storm *storm = data;
	struct pinmap_queue_query args = { .size = sizeof(args), .queue = storm->args.out_queue };

	pin_to_processor(1);
	while (!storm->over) {
		CHECK_OK(try_ioctl(storm->fd, PINMAP_QUEUE_QUERY, &args));
		CHECK_EQ(args.out_state, PINMAP_QUEUE_READY);
		*storm->doorbell = args.out_index + storm->args.packets;
		sleep_ms(5);
	}
	return NULL;
}

/*
 * Finds the thread that handles interrupts of queues: of several, the one with most processor time.
 */
static clockid_t interrupt_thread(void)
{
	DIR *processes = opendir("/proc");
	uint64_t most = 0;
	clockid_t found = -1;
	struct dirent *entry;

	CHECK(processes);
	while ((entry = readdir(processes))) {
		char path[64], name[32] = "";
		struct timespec time;
		clockid_t clock;
		int comm;

		snprintf(path, sizeof(path), "/proc/%.16s/comm", entry->d_name);
		comm = open(path, O_RDONLY | O_CLOEXEC);
		if (comm < 0)
			continue;
		if (read(comm, name, sizeof(name) - 1) > 0 && !strncmp(name, "irq/", 4) &&
		    strstr(name, "pinmap") && !clock_getcpuclockid(atoi(entry->d_name), &clock) &&
		    !clock_gettime(clock, &time) &&
		    time.tv_sec * 1000000000ULL + time.tv_nsec > most) {
			most = time.tv_sec * 1000000000ULL + time.tv_nsec;
			found = clock;
			CHECK_EQ(sched_getscheduler(atoi(entry->d_name)), SCHED_OTHER);
		}
		close(comm);
	}
	closedir(processes);
	CHECK(most);
	return found;
}

/* A program that makes the device raise interrupts all the time takes no processor from others. */
TEST(interrupts_leave_the_processor, .seconds = 60)
{
	struct storm storm = { .fd = open_gpu() };
	uint64_t (*ring)[8], alone, beside, handling = 0, start;
	clockid_t handler;
	pthread_t thread;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		SKIP("it takes two processors");
	CHECK_OK(try_queue_create(storm.fd, GPU_BOTH, 65536, &storm.args));
	ring = map_at(storm.fd, storm.args.out_ring_offset, storm.args.out_ring_length);
	storm.doorbell = map_at(storm.fd, storm.args.out_doorbell_offset, PAGE);
	for (unsigned int i = 0; i < storm.args.packets; i++)
		ring[i][0] = GPU_INTERRUPT;
	irqs_to_processor(0);
	pin_to_processor(0);
	alone = share_of_processor();
	CHECK(!pthread_create(&thread, NULL, raise_interrupts, &storm));
	beside = share_of_processor();
	/*
	 * nobody else wants the processor, and still all of it is not used up; tried again, since
	 * little is left of a second on a busy machine
	 */
	handler = interrupt_thread();
	for (int tries = 0; tries < 5; tries++) {
		start = now_ms();
		handling = clock_ms(handler);
		sleep_ms(slow(1000));
		handling = (clock_ms(handler) - handling) * 1000 / (now_ms() - start);
		if (handling > 20 && handling < 850)
			break;
	}
	storm.over = true;
	CHECK(!pthread_join(thread, NULL));
	diag("thousandths of a processor: %llu alone, %llu beside the interrupts, "
	     "which take %llu when it is free",
	     (unsigned long long)alone, (unsigned long long)beside, (unsigned long long)handling);
	CHECK(beside > alone / 4);
	CHECK(handling > 20 && handling < 850);
}

static long long sleeps_of(pid_t pid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	return file_field(path, "voluntary_ctxt_switches:");
}

/* Where a task waits because its cgroup has more memory than it should. */
enum place { NOWHERE, IN_FAULT, ELSEWHERE };

static enum place waits_in(pid_t pid)
{
	if (!sleeps_in(pid, "over_high"))
		return NOWHERE;
	/* on device memory */
	return sleeps_in(pid, "vmf_insert_pfn") ? IN_FAULT : ELSEWHERE;
}

/*
 * A task that has to wait for memory while device memory is mapped for it, because its cgroup has
 * more than it should, holds up nobody else's page faults.
 */
TEST(fault_that_waits_for_memory, .seconds = 120)
{
	const char *const high = "/sys/fs/cgroup/pinmap-test/memory.high";
	/* so far apart, each needs page tables of its own */
	enum { PLACES = 512 };
	const size_t apart = (size_t)1 << 30;
	struct gate ready = gate_new();
	int fd = open_gpu();
	struct pinmap_alloc mine = {
		.size = sizeof(mine), .flags = PINMAP_ALLOC_VRAM, .length = PAGE
	};
	const int both = PROT_READ | PROT_WRITE;
	unsigned int waits = 0;
	pid_t pid;

	if (access("/proc/self/stack", R_OK))
		SKIP("the kernel does not tell where a task sleeps");
	CHECK_OK(try_ioctl(fd, PINMAP_ALLOC, &mine));
	pid = fork();
	if (pid == 0) {
		static struct iovec places[PLACES];
		struct pinmap_alloc args = {
			.size = sizeof(args), .flags = PINMAP_ALLOC_VRAM, .length = PAGE
		};
		int own = open_gpu(), zero = SYS(open("/dev/zero", O_RDONLY | O_CLOEXEC));
		char *room = SYS(mmap(NULL, PLACES * apart, PROT_NONE,
				      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));

		CHECK_OK(try_ioctl(own, PINMAP_ALLOC, &args));
		memory_cgroup(512 * MIB, false);
		/* what cannot be taken from it */
		memset(anon(64 * MIB / PAGE), 1, 64 * MIB);
		gate_open(&ready);
		for (;;) {
			/* no neighbour keeps the page tables: each round needs new ones */
			SYS(munmap(room, PLACES * apart));
			for (unsigned int i = 0; i < PLACES; i++) {
				places[i].iov_base = SYS(mmap(room + i * apart, PAGE, both,
							      MAP_SHARED | MAP_FIXED_NOREPLACE, own,
							      (off_t)args.out_offset));
				places[i].iov_len = 1;
			}
			/* one call: a task that returns to user space would sleep there */
			CHECK_EQ(readv(zero, places, PLACES), PLACES);
		}
	}
	gate_pass(&ready);
	file_write(high, "1M");
	for (bool done = false; !done;) {
		long long sleeps = sleeps_of(pid);

		CHECK_EQ(waitpid(pid, NULL, WNOHANG), 0);
		switch (waits_in(pid)) {
		case IN_FAULT:
			break;
		case ELSEWHERE:
			/* it would wait there after each of many calls */
			file_write(high, "max");
			CHECK(WAIT_FOR(20000, waits_in(pid) == NOWHERE));
			file_write(high, "1M");
			continue;
		case NOWHERE:
			sleep_ms(1);
			continue;
		}
		for (unsigned int i = 0; i < 10 && sleeps_of(pid) == sleeps; i++) {
			char *view = SYS(mmap(NULL, PAGE, both, MAP_SHARED, fd,
					      (off_t)mine.out_offset));

			*(volatile char *)view = 1;
			SYS(munmap(view, PAGE));
		}
		/* it still sleeps, and has slept all the time */
		done = waits_in(pid) == IN_FAULT && sleeps_of(pid) == sleeps;
		CHECK(++waits < 8);
	}
	diag("faults were answered while a task waited for the %uth time", waits);
	kill_now(pid);
	file_write(high, "max");
}
