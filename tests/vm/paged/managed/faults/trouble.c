// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Faults that wait for user space, and what ends meanwhile: nobody waits for a handler of
 * userfaultfd that never answers.
 */
#define _GNU_SOURCE
#include "../moving.h"

#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"
#include "pressure.h"
#include "uffd.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Memory whose pages come when the test says so; nobody has touched it. */
static char *missing(size_t pages, int *uffd)
{
	char *memory = SYS(mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));

	SYS(madvise(memory, pages * PAGE, MADV_NOHUGEPAGE));
	*uffd = uffd_new(memory, pages * PAGE);
	return memory;
}

/* Has a queue fault on a page that does not come, and waits until it is asked for. */
static void stick(struct gpu_queue *queue, char *memory, int uffd)
{
	queue_push(queue, GPU_FILL, (uintptr_t)memory, 8, 0xee);
	queue_submit(queue);
	uffd_await(uffd, memory);
}

/* The device has what the handler gives. */
TEST(userfaultfd_missing)
{
	int fd = open_gpu(), uffd;
	char *memory = missing(4, &uffd);
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory result;

	manage_all(fd);
	result = gpu_alloc(fd, 0, PAGE);
	queue_push(&queue, GPU_COPY, (uintptr_t)memory + PAGE, (uintptr_t)result.addr, PAGE);
	queue_submit(&queue);
	uffd_await(uffd, memory + PAGE);
	CHECK_ERR(ETIMEDOUT, try_queue_wait(&queue, 20));
	CHECK_EQ(queue_query(&queue).out_state, PINMAP_QUEUE_READY);
	uffd_supply(uffd, memory + PAGE, 0x21);
	CHECK_OK(try_queue_wait(&queue, slow(20000)));
	CHECK(bytes_are(result.addr, PAGE, 0x21));
	/* nothing was asked for that was not touched */
	CHECK(!uffd_touched(uffd));
}

/* A write to a page that is protected by userfaultfd waits for the handler. */
TEST(userfaultfd_protected)
{
	int fd = open_gpu(), uffd;
	char *memory = anon(4);
	struct gpu_queue queue = queue_new(fd);

	manage_all(fd);
	fill(&queue, memory, 4 * PAGE, 0x22);
	uffd = uffd_new_protect(memory, 4 * PAGE);
	uffd_protect(uffd, memory, 4 * PAGE, true);
	queue_push(&queue, GPU_FILL, (uintptr_t)memory + PAGE, PAGE, 0x23);
	queue_submit(&queue);
	uffd_await(uffd, memory + PAGE);
	CHECK(bytes_are(memory, 4 * PAGE, 0x22));
	uffd_protect(uffd, memory + PAGE, PAGE, false);
	CHECK_OK(try_queue_wait(&queue, slow(20000)));
	CHECK(bytes_are(memory + PAGE, PAGE, 0x23));
	CHECK(bytes_are(memory + 2 * PAGE, 2 * PAGE, 0x22));
}

static const struct {
	const char *name;
	bool on_device;
} places[] = { { "host", false }, { "device", true } };

/*
 * A device that reads a page to which userfaultfd forbids each access waits for the handler, as a
 * CPU does, also if the page is in VRAM. Pages do not go there meanwhile.
 */
TEST_EACH(userfaultfd_access, places)
{
	int fd = open_gpu(), uffd;
	char *memory = anon(4);
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory result = gpu_alloc(fd, 0, PAGE);

	manage(fd, memory, 4 * PAGE);
	fill(&queue, memory, 4 * PAGE, 0x27);
	if (row->on_device)
		MOVE_THERE(fd, memory, 4 * PAGE);
	else
		MOVE_HOME(fd, memory, 4 * PAGE);
	uffd = uffd_new_access(memory, 4 * PAGE);
	uffd_forbid(uffd, memory + PAGE, PAGE, true);
	queue_push(&queue, GPU_COPY, (uintptr_t)memory + PAGE, (uintptr_t)result.addr, PAGE);
	queue_submit(&queue);
	uffd_await(uffd, memory + PAGE);
	CHECK_ERR(ETIMEDOUT, try_queue_wait(&queue, 20));
	CHECK_EQ(prefetch(fd, 0, memory + 2 * PAGE, PAGE).out_moved, 0);
	uffd_forbid(uffd, memory + PAGE, PAGE, false);
	CHECK_OK(try_queue_wait(&queue, slow(20000)));
	CHECK(bytes_are(result.addr, PAGE, 0x27));
}

/* Pages that are moved away by userfaultfd take what the device has with them. */
TEST(userfaultfd_move)
{
	int fd = open_gpu(), uffd;
	char *memory = missing(4, &uffd), *from = anon(4);
	struct gpu_queue queue = queue_new(fd);

	manage_all(fd);
	fill(&queue, from, 4 * PAGE, 0x24);
	if (uffd_move(uffd, memory, from, 4 * PAGE))
		SKIP("the kernel's userfaultfd does not move pages");
	fill(&queue, memory, 2 * PAGE, 0x25);
	CHECK(bytes_are(memory, 2 * PAGE, 0x25));
	CHECK(bytes_are(memory + 2 * PAGE, 2 * PAGE, 0x24));
	fill(&queue, from, PAGE, 0x26);
	CHECK(bytes_are(from, PAGE, 0x26));
	CHECK(bytes_are(from + PAGE, 3 * PAGE, 0));
}

/* Counts the kernel's threads that serve faults, and checks that none is in a control group. */
static unsigned int servers(void)
{
	DIR *processes = SYS(opendir("/proc"));
	struct dirent *entry;
	unsigned int count = 0;

	while ((entry = readdir(processes))) {
		char path[64], text[256];

		snprintf(path, sizeof(path), "/proc/%.20s/comm", entry->d_name);
		if (try_file_read(path, text, sizeof(text)) || strcmp(text, "pinmap-fault"))
			continue;
		snprintf(path, sizeof(path), "/proc/%.20s/cgroup", entry->d_name);
		if (try_file_read(path, text, sizeof(text)))
			continue;
		CHECK(!strcmp(text, "0::/"));
		count++;
	}
	closedir(processes);
	return count;
}

/* Threads of the kernel serve faults, whose time no control group of the program counts. */
TEST(served_by_the_kernel)
{
	unsigned int before = servers();
	int fd = open_gpu(), uffd;
	char *memory = missing(1, &uffd), own[64];
	struct gpu_queue queue = queue_new(fd);

	memory_cgroup(256 * MIB, true);
	file_read("/proc/self/cgroup", own, sizeof(own));
	CHECK(!strcmp(own, "0::/pinmap-test"));
	manage_all(fd);
	stick(&queue, memory, uffd);
	CHECK_EQ(servers(), before + 1);
	uffd_supply(uffd, memory, 0x33);
	CHECK_OK(try_queue_wait(&queue, slow(20000)));
}

/* Other queues and contexts go on while a fault waits, on the same memory and on other. */
TEST(others_go_on_meanwhile)
{
	int fd = open_gpu(), other = open_gpu(), uffd;
	char *memory = missing(4, &uffd), *more = anon(64);
	struct gpu_queue stuck = queue_new(fd), good = queue_new(fd), far = queue_new(other);

	manage_all(fd);
	manage_all(other);
	stick(&stuck, memory, uffd);
	for (unsigned int i = 0; i < 16; i++) {
		fill(&good, more + 2 * i * PAGE, PAGE, 0x31 + i);
		fill(&far, more + (2 * i + 1) * PAGE, PAGE, 0x31 + i);
		CHECK(bytes_are(more + 2 * i * PAGE, 2 * PAGE, 0x31 + i));
	}
	uffd_supply(uffd, memory, 0x32);
	CHECK_OK(try_queue_wait(&stuck, slow(20000)));
	CHECK(bytes_are(memory, 8, 0xee));
	CHECK(bytes_are(memory + 8, PAGE - 8, 0x32));
}

TEST(destroy_meanwhile)
{
	int fd = open_gpu(), uffd;
	char *memory = missing(4, &uffd), *more = anon(1);
	struct gpu_queue queue = queue_new(fd), good = queue_new(fd);

	manage_all(fd);
	stick(&queue, memory, uffd);
	CHECK_OK(try_queue_destroy(fd, queue.args.out_queue));
	fill(&good, more, PAGE, 0x41);
	CHECK(bytes_are(more, PAGE, 0x41));
	uffd_supply(uffd, memory, 0x42);
	CHECK(bytes_are(memory, PAGE, 0x42));
}

/* RELEASE does not wait for the fault, whose access is not permitted any more then. */
TEST(release_meanwhile)
{
	int fd = open_gpu(), uffd;
	char *memory = missing(4, &uffd);
	struct gpu_queue queue = queue_new(fd);
	uint64_t handle = manage_all(fd);

	stick(&queue, memory, uffd);
	release(fd, handle);
	uffd_supply(uffd, memory, 0x43);
	CHECK_ERR(EIO, try_queue_wait(&queue, slow(20000)));
	CHECK_STOPPED(&queue, memory, PINMAP_ACCESS_WRITE, PINMAP_FAULT_UNMAPPED);
	CHECK(bytes_are(memory, PAGE, 0x43));
}

/* The memory goes while the fault waits. */
TEST(munmap_meanwhile)
{
	int fd = open_gpu(), uffd;
	char *memory = missing(4, &uffd);
	struct gpu_queue queue = queue_new(fd);

	manage_all(fd);
	stick(&queue, memory, uffd);
	SYS(munmap(memory, 4 * PAGE));
	/* as for a thread of the program, the kernel does not end the wait by itself */
	close(uffd);
	CHECK_ERR(EIO, try_queue_wait(&queue, slow(20000)));
	CHECK_STOPPED(&queue, memory, PINMAP_ACCESS_WRITE, PINMAP_FAULT_HOLE);
}

/**
 * struct victim - a process with a fault that waits for a handler in another process
 * @pid: the process
 * @uffd: the handler's descriptor, which stays open
 * @gpu: the process's context, as far as it was asked for
 */
struct victim {
	pid_t pid;
	int uffd;
	int gpu;
	uint64_t queue;
};

static struct victim victim_new(bool hand_over, void (*then)(struct gpu_queue *queue))
{
	struct victim victim = { .gpu = -1 };
	int ends[2];
	uint64_t *shared = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
				    MAP_SHARED | MAP_ANONYMOUS, -1, 0));

	SYS(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
	victim.pid = SYS(fork());
	if (victim.pid == 0) {
		int fd = open_gpu(), uffd;
		char *memory = missing(4, &uffd);
		struct gpu_queue queue = queue_new(fd);

		close(ends[0]);
		manage_all(fd);
		stick(&queue, memory, uffd);
		*shared = queue.args.out_queue;
		send_fd(ends[1], uffd);
		send_fd(ends[1], hand_over ? fd : uffd);
		close(uffd);
		then(&queue);
		_exit(0);
	}
	close(ends[1]);
	victim.uffd = receive_fd(ends[0]);
	victim.gpu = receive_fd(ends[0]);
	victim.queue = *shared;
	if (!hand_over) {
		close(victim.gpu);
		victim.gpu = -1;
	}
	close(ends[0]);
	return victim;
}

static void wait_in_call(struct gpu_queue *queue)
{
	try_queue_wait(queue, 1000000);
}

TEST(kill_meanwhile)
{
	unsigned int before = contexts();
	long long pins = pins_held();
	struct victim victim = victim_new(false, wait_for_ever);

	kill_now(victim.pid);
	CHECK(WAIT_FOR(5000, contexts() == before));
	check_works();
	CHECK_PINS_SOON(pins);
}

TEST(kill_in_a_call_meanwhile)
{
	unsigned int before = contexts();
	struct victim victim = victim_new(false, wait_in_call);

	kill_now(victim.pid);
	CHECK(WAIT_FOR(5000, contexts() == before));
	check_works();
}

/* The last reference to the file goes, and the process lives on. */
TEST(close_meanwhile)
{
	unsigned int before = contexts();
	struct victim victim = victim_new(false, close_all);

	CHECK(WAIT_FOR(5000, contexts() == before));
	CHECK(runs_still(victim.pid));
	check_works();
	kill_now(victim.pid);
}

/* The program has ended; another one has its file, and finds out. */
TEST(exit_meanwhile)
{
	struct victim victim = victim_new(true, wait_for_ever);
	struct gpu_queue queue = { .fd = victim.gpu, .args.out_queue = victim.queue };

	CHECK_EQ(queue_query(&queue).out_state, PINMAP_QUEUE_READY);
	kill_now(victim.pid);
	queue_stopped(&queue);
	CHECK_EQ(queue_query(&queue).out_reason, PINMAP_FAULT_EXITED);
	check_works();
}

TEST(unbind_meanwhile, .faults = true)
{
	struct victim victim = victim_new(false, wait_for_ever);
	char bdf[16];

	strcpy(bdf, need_gpu());
	pci_unbind(bdf);
	CHECK(runs_still(victim.pid));
	kill_now(victim.pid);
	pci_bind(bdf);
	check_works();
}

/* A reset behind the driver's back. */
TEST(reset_meanwhile, .faults = true)
{
	struct victim victim = victim_new(false, wait_for_ever);

	file_write(pci_path(need_gpu(), "reset"), "1");
	kill_now(victim.pid);
	gpu_rebind();
	check_works();
}

/* As many faults as there can be wait, and others are served. */
TEST(many_wait, .seconds = 120)
{
	enum { QUEUES = 24 };
	struct gpu_queue queues[QUEUES], good;
	int fd = open_gpu(), other = open_gpu(), uffd;
	char *memory = missing(QUEUES, &uffd), *more = anon(QUEUES);

	manage_all(fd);
	manage_all(other);
	good = queue_new(other);
	for (int i = 0; i < QUEUES; i++) {
		queues[i] = queue_new(fd);
		stick(&queues[i], memory + i * PAGE, uffd);
		fill(&good, more + i * PAGE, PAGE, 0x61 + i);
	}
	for (int i = QUEUES - 1; i >= 0; i--) {
		uffd_supply(uffd, memory + i * PAGE, 0x11);
		CHECK_OK(try_queue_wait(&queues[i], slow(20000)));
		CHECK(bytes_are(memory + i * PAGE, 8, 0xee));
		CHECK(bytes_are(more + i * PAGE, PAGE, 0x61 + i));
	}
}
