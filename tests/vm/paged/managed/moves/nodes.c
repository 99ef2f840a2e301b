// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A machine with two NUMA nodes: pages that move from one to the other, by the program's will or by
 * the kernel's, while the device has them. (One by one they move in the table: move_pages.)
 */
#define _GNU_SOURCE
#include "../moving.h"

#include "edu.h"
#include "file.h"
#include "memory.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGES = 64, BIND = 2, MOVE_ALL = 4 };
#define BALANCING "/sys/kernel/debug/sched/numa_balancing/"

static void need_nodes(void)
{
	if (access("/sys/devices/system/node/node1", F_OK))
		SKIP("the machine has one node (--append numa=fake=2 makes two)");
}

static void bind_to(char *memory, size_t length, int node)
{
	unsigned long nodes = 1UL << node;

	SYS(syscall(SYS_mbind, memory, length, BIND, &nodes, sizeof(nodes) * 8, MOVE_ALL));
}

/* How many of the pages are on a node. */
static unsigned int pages_on(char *memory, size_t length, int node)
{
	unsigned int found = 0;

	for (size_t at = 0; at < length; at += PAGE) {
		void *page = memory + at;
		int on = -1;

		SYS(syscall(SYS_move_pages, 0, 1UL, &page, NULL, &on, 0));
		found += on == node;
	}
	return found;
}

static const struct row {
	const char *name;
	enum memory_kind kind;
	size_t length;
} rows[] = {
	{ "small", ANON, PAGES * 4096 },
	{ "thp", THP, 2 << 20 },
	{ "shared", ANON_SHARED, PAGES * 4096 },
	{ "memfd", MEMFD, PAGES * 4096 },
	{ "hugetlb", HUGETLB, 2 << 20 },
	{ "ext4", EXT4_SHARED, PAGES * 4096 },
};

/* mbind() moves what the device has: reading and writing it goes on where it is now. */
TEST_EACH(bound_to_a_node, rows)
{
	struct memory memory;
	struct gpu_memory result;
	struct gpu_queue queue;
	int fd;

	need_nodes();
	memory = memory_new(row->kind, row->length);
	fd = open_gpu();
	queue = queue_new(fd);
	result = gpu_alloc(fd, 0, row->length);
	manage_all_host(fd);
	for (int i = 0; i < 4; i++) {
		unsigned int most = 0;

		fill(&queue, memory.addr, row->length, 0x31 + i);
		for (int k = 0; k < 20 && most < row->length / PAGE; k++) {
			bind_to(memory.addr, row->length, i % 2);
			most = pages_on(memory.addr, row->length, i % 2);
		}
		/* some may be held by somebody for a moment */
		CHECK(most >= row->length / PAGE / 2);
		CHECK(bytes_are(memory.addr, row->length, 0x31 + i));
		copy(&queue, memory.addr, result.addr, row->length);
		CHECK(bytes_are(result.addr, row->length, 0x31 + i));
	}
	memory_free(&memory);
}

/* Memory that is bound to a node comes home to that node. */
TEST_EACH(bound_comes_home, page_sizes)
{
	char *memory;
	int fd;

	need_nodes();
	memory = block_of(row->huge);
	fd = open_gpu();
	manage_all(fd);
	for (int node = 0; node < 2; node++) {
		bind_to(memory, HUGE, node);
		write_pattern(memory, HUGE, 40 + node);
		MOVE_THERE(fd, memory, HUGE);
		MOVE_HOME(fd, memory, HUGE);
		CHECK_EQ(pages_on(memory, HUGE, node), HUGE / PAGE);
		CHECK(has_pattern(memory, HUGE, 40 + node));
	}
}

/* migrate_pages() moves all that the program has. */
TEST(program_moves)
{
	unsigned long nodes[2] = { 1, 2 };
	char *memory = anon(PAGES);
	struct gpu_queue queue;
	int fd;

	need_nodes();
	fd = open_gpu();
	queue = queue_new(fd);
	manage_all_host(fd);
	for (int i = 0; i < 4; i++) {
		fill(&queue, memory, PAGES * PAGE, 0x41 + i);
		CHECK(syscall(SYS_migrate_pages, 0, 64UL, &nodes[i % 2], &nodes[!(i % 2)]) >= 0);
		CHECK(pages_on(memory, PAGES * PAGE, !(i % 2)) >= PAGES / 2);
		CHECK(bytes_are(memory, PAGES * PAGE, 0x41 + i));
	}
}

struct mover {
	char *memory;
	volatile bool stop;
	volatile unsigned int moves;
};

static void *move_about(void *argument)
{
	struct mover *mover = argument;

	while (!mover->stop)
		bind_to(mover->memory, PAGES * PAGE, mover->moves++ % 2);
	return NULL;
}

/* Pages move without a pause, while the device counts in them: no increment gets lost. */
TEST(moved_all_the_time, .seconds = 120)
{
	struct mover mover = { .memory = anon(PAGES) };
	unsigned int launches = 0;
	struct gpu_queue queue;
	pthread_t thread;
	int fd;

	need_nodes();
	fd = open_gpu();
	queue = queue_new(fd);
	memset(mover.memory, 0, PAGES * PAGE);
	manage_all(fd);
	CHECK_OK(-pthread_create(&thread, NULL, move_about, &mover));
	while (launches < rounds(30) || mover.moves < rounds(30)) {
		queue_push(&queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)mover.memory,
			   PAGES * PAGE / 4, 0);
		queue_finish_within(&queue, slow(60000));
		launches++;
	}
	mover.stop = true;
	CHECK_OK(-pthread_join(thread, NULL));
	diag("%u launches, %u moves", launches, mover.moves);
	for (size_t i = 0; i < PAGES * PAGE / 4; i++)
		CHECK_EQ(((const float *)mover.memory)[i], launches);
}

struct counter {
	char *memory;
	volatile bool stop;
	unsigned int rounds;
};

/* Counts in the second half of the memory. */
static void *count_by_cpu(void *argument)
{
	struct counter *counter = argument;

	for (; !counter->stop; counter->rounds++)
		for (size_t at = PAGES * PAGE / 2; at < PAGES * PAGE; at += 64)
			++*(volatile uint32_t *)(counter->memory + at);
	return NULL;
}

/*
 * The kernel takes entries from the page table to find out who uses which page. The device loses
 * what it has, and gets it back.
 */
TEST(balanced, .seconds = 120)
{
	static const char *const settings[][2] = {
		{ "/proc/sys/kernel/numa_balancing", "1" },
		{ BALANCING "scan_delay_ms", "1" },
		{ BALANCING "scan_period_min_ms", "10" },
		{ BALANCING "scan_period_max_ms", "20" },
	};
	char *memory = anon(PAGES), before[4][16];
	struct counter counter = { .memory = memory };
	unsigned int launches = 0;
	struct gpu_queue queue;
	pthread_t thread;
	long long updates, now;
	uint64_t until;
	int fd;

	need_nodes();
	for (size_t i = 0; i < ARRAY_SIZE(settings); i++) {
		if (try_file_read(settings[i][0], before[i], sizeof(before[i])))
			SKIP("the kernel does not balance nodes (%s)", settings[i][0]);
		file_write(settings[i][0], settings[i][1]);
	}
	fd = open_gpu();
	queue = queue_new(fd);
	memset(memory, 0, PAGES * PAGE);
	manage_all(fd);
	/* a second thread, or the kernel leaves those alone that are where the first one runs */
	CHECK_OK(-pthread_create(&thread, NULL, count_by_cpu, &counter));
	updates = now = file_field("/proc/vmstat", "numa_pte_updates");
	until = now_ms() + slow(60000);
	while (now < updates + 4 * PAGES) {
		queue_push(&queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)memory,
			   PAGES * PAGE / 8, 0);
		queue_finish_within(&queue, slow(60000));
		launches++;
		now = file_field("/proc/vmstat", "numa_pte_updates");
		CHECK(now_ms() < until);
	}
	counter.stop = true;
	CHECK_OK(-pthread_join(thread, NULL));
	for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
		file_write(settings[i][0], before[i]);
	diag("%u launches, %lld entries taken", launches, now - updates);
	for (size_t i = 0; i < PAGES * PAGE / 8; i++)
		CHECK_EQ(((const float *)memory)[i], launches);
	for (size_t at = PAGES * PAGE / 2; at < PAGES * PAGE; at += 64)
		CHECK_EQ(*(const uint32_t *)(memory + at), counter.rounds);
}
