// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The cases of the kernel's own hmm-tests (tools/testing/selftests/mm), which have no device but
 * lib/test_hmm.c. Those about host memory, and what covers them here:
 *
 *   open_close                      values, query, release
 *   anon_read, anon_write           small_alone_*, untouched_alone_*, stack_*, heap_*
 *   anon_read_prot, anon_write_prot never_permitted, *_protect_*
 *   anon_write_child                *_fork_reader_*, *_fork_writer_* of private kinds
 *   anon_write_child_shared         the same rows of shared, memfd, tmpfs, hugetlb, shared_file
 *   anon_write_huge                 thp_*, large_as_they_are
 *   anon_write_hugetlbfs            hugetlb_*, large_as_they_are
 *   file_read, file_write           shared_file_*, private_file_*, read_only_file_*
 *   migrate_partial_unmap_fault     thp_munmap_half_*
 *   migrate_remap_fault             thp_mremap_*, small_mremap_*
 *   anon_read_multiple              mapped_again_and_again
 *   anon_teardown                   torn_down, while_busy_munmap
 *   mixedmap                        bar, mappings_of_the_driver, raw_memory
 *   snapshot                        block_of_all_kinds
 *   compound                        large_as_they_are
 *   double_map                      two_contexts
 *   hmm_gup_test                    registration_inside, direct_io
 *   userfaultfd_read                userfaultfd_*
 *
 * Those about memory of a device (migrate*, hmm_cow_in_device) are in moves/hmm.c. The others are
 * about access that is exclusive (exclusive*), which pinmap does not have.
 */
#define _GNU_SOURCE
#include "../managed.h"

#include "edu.h"
#include "memory.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 16 };

static char *block(int protection)
{
	char *memory = small_blocks(1);

	SYS(mprotect(memory, HUGE, protection));
	return memory;
}

/* Memory that the program could never read, or never write, is refused before it has a page. */
TEST(never_permitted)
{
	char *nothing = block(PROT_NONE), *readable = block(PROT_READ);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory result = gpu_alloc(fd, 0, PAGE);

	manage_all(fd);
	CHECK_READ_REFUSED(fd, nothing, PERMISSION);
	CHECK_WRITE_REFUSED(fd, nothing + PAGE, PERMISSION);
	CHECK_WRITE_REFUSED(fd, readable, PERMISSION);
	memset(result.addr, 1, PAGE);
	copy(&queue, readable, result.addr, PAGE);
	CHECK(bytes_are(result.addr, PAGE, 0));
	CHECK_WRITE_REFUSED(fd, readable, PERMISSION);
	SYS(mprotect(readable, HUGE, PROT_READ | PROT_WRITE));
	fill(&queue, readable, PAGE, 0x11);
	CHECK(bytes_are(readable, PAGE, 0x11));
	SYS(mprotect(nothing, HUGE, PROT_READ | PROT_WRITE));
	fill(&queue, nothing, PAGE, 0x12);
	CHECK(bytes_are(nothing, PAGE, 0x12));
}

/* Addresses have other memory each time. */
TEST(mapped_again_and_again)
{
	char *memory = address_space(PAGES * PAGE, PAGE);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory result = gpu_alloc(fd, 0, PAGES * PAGE);

	manage_all(fd);
	for (unsigned int i = 0; i < rounds(64); i++) {
		SYS(mmap(memory, PAGES * PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
		for (int page = 0; page < PAGES; page++)
			memset(memory + page * PAGE, 1 + (i + page) % 100, PAGE);
		copy(&queue, memory, result.addr, PAGES * PAGE);
		SYS(munmap(memory, PAGES * PAGE));
		for (int page = 0; page < PAGES; page++)
			CHECK(bytes_are(result.addr + page * PAGE, PAGE, 1 + (i + page) % 100));
	}
	CHECK_READ_REFUSED(fd, memory, HOLE);
}

struct teardown {
	char *memory;
	unsigned int delay;
};

static void *tear_down(void *argument)
{
	struct teardown *teardown = argument;

	usleep(teardown->delay);
	SYS(munmap(teardown->memory + PAGES / 2 * PAGE, PAGES / 2 * PAGE));
	return NULL;
}

/* The second half goes while the device reads: it has read it before, or stops there. */
TEST(torn_down, .seconds = 60)
{
	unsigned int through = 0, stopped = 0;
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory result = gpu_alloc(fd, 0, PAGES * PAGE);

	manage_all(fd);
	for (unsigned int i = 0; i < rounds(40); i++) {
		struct teardown teardown = { anon(PAGES), i % 20 * 500 };
		char *half = teardown.memory + PAGES / 2 * PAGE;
		struct pinmap_queue_query query;
		pthread_t thread;
		int error;

		memset(teardown.memory, 0x21, PAGES * PAGE);
		memset(result.addr, 0, PAGES * PAGE);
		CHECK_OK(-pthread_create(&thread, NULL, tear_down, &teardown));
		error = try_copy(&queue, teardown.memory, result.addr, PAGES * PAGE);
		CHECK_OK(-pthread_join(thread, NULL));
		if (!error) {
			CHECK(bytes_are(result.addr, PAGES * PAGE, 0x21));
			through++;
		} else {
			query = queue_query(&queue);
			CHECK_EQ(error, -EIO);
			CHECK_EQ(query.out_reason, PINMAP_FAULT_HOLE);
			CHECK(query.out_addr >= (uintptr_t)half);
			CHECK(query.out_addr < (uintptr_t)half + PAGES / 2 * PAGE);
			queue_delete(&queue);
			queue = queue_new(fd);
			stopped++;
		}
		CHECK(bytes_are(teardown.memory, PAGES / 2 * PAGE, 0x21));
		SYS(munmap(teardown.memory, PAGES / 2 * PAGE));
	}
	diag("%u times read, %u times stopped", through, stopped);
}

/* Returns what GPU_WALK says, without what depends on the machine; 0: nothing. */
static uint32_t rights(int fd, const char *addr)
{
	uint32_t flags;
	int error = try_walk(fd, addr, &flags);

	if (error == -ENOENT)
		return 0;
	CHECK_OK(error);
	return flags & (PINMAP_WALK_READ | PINMAP_WALK_WRITE);
}

/*
 * One fault brings along what the program has of the block, each page with its own rights, and
 * nothing of what it does not have.
 */
TEST(block_of_all_kinds)
{
	enum { READ = PINMAP_WALK_READ, BOTH = PINMAP_WALK_READ | PINMAP_WALK_WRITE };
	char *memory = small_blocks(1);
	int file = new_memfd(PAGE, 0), fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	manage_all_host(fd);
	memset(memory, 1, 8 * PAGE);
	SYS(munmap(memory + PAGE, PAGE));
	SYS(madvise(memory + 2 * PAGE, PAGE, MADV_DONTNEED));
	SYS(madvise(memory + 3 * PAGE, PAGE, MADV_DONTNEED));
	touch_read(memory + 3 * PAGE);
	SYS(mprotect(memory + 4 * PAGE, PAGE, PROT_READ));
	SYS(mprotect(memory + 5 * PAGE, PAGE, PROT_NONE));
	SYS(mmap(memory + 6 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0));
	memory[6 * PAGE] = 1;
	fill(&queue, memory, 8, 2);
	CHECK_EQ(rights(fd, memory), BOTH);
	CHECK_EQ(rights(fd, memory + PAGE), 0);
	CHECK_EQ(rights(fd, memory + 2 * PAGE), 0);
	CHECK_EQ(rights(fd, memory + 3 * PAGE), READ);
	CHECK_EQ(rights(fd, memory + 4 * PAGE), READ);
	CHECK_EQ(rights(fd, memory + 5 * PAGE), 0);
	CHECK(rights(fd, memory + 6 * PAGE) & READ);
	CHECK_EQ(rights(fd, memory + 7 * PAGE), BOTH);
	CHECK_EQ(rights(fd, memory + 8 * PAGE), 0);
	CHECK_WRITE_REFUSED(fd, memory + PAGE, HOLE);
	CHECK_WRITE_REFUSED(fd, memory + 4 * PAGE, PERMISSION);
	CHECK_READ_REFUSED(fd, memory + 5 * PAGE, PERMISSION);
	fill(&queue, memory + 2 * PAGE, 2 * PAGE, 3);
	fill(&queue, memory + 6 * PAGE, 3 * PAGE, 4);
	CHECK(bytes_are(memory + 2 * PAGE, 2 * PAGE, 3));
	CHECK(bytes_are(memory + 6 * PAGE, 3 * PAGE, 4));
	CHECK(bytes_are(memory + 4 * PAGE, PAGE, 1));
}

static const struct {
	const char *name;
	enum memory_kind kind;
	unsigned int faults;
} larges[] = { { "thp", THP, 1 }, { "hugetlb", HUGETLB, 1 } };

/* A huge page is one entry for the device, which has one fault on it. */
TEST_EACH(large_as_they_are, larges)
{
	struct memory memory = memory_new(row->kind, 2 * HUGE);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_gpu_walk walk = { .size = sizeof(walk) };

	for (int page = 0; page < 2; page++) {
		char *addr = memory.addr + page * HUGE;

		fill(&queue, addr + 300 * PAGE + 8, 8, 0x31);
		walk.addr = (uintptr_t)addr + 7 * PAGE;
		CHECK_OK(try_ioctl(fd, PINMAP_GPU_WALK, &walk));
		CHECK_EQ(walk.out_leaf_length, HUGE);
		CHECK_EQ(walk.out_flags & PINMAP_WALK_WRITE, PINMAP_WALK_WRITE);
		fill(&queue, addr, HUGE, 0x41 + page);
		CHECK(bytes_are(addr, HUGE, 0x41 + page));
		CHECK_EQ(totals(fd, PINMAP_TOTALS_CONTEXT).out_faults_served,
			 (page + 1) * row->faults);
	}
	memory_free(&memory);
}

/* Two contexts have the same memory. What happens to it happens to both. */
TEST(two_contexts)
{
	char *memory = anon(PAGES);
	int fds[2] = { open_gpu(), open_gpu() };
	struct gpu_queue queues[2] = { queue_new(fds[0]), queue_new(fds[1]) };
	struct gpu_memory result = gpu_alloc(fds[1], 0, PAGES * PAGE);

	for (int i = 0; i < 2; i++)
		manage(fds[i], memory, PAGES * PAGE);
	for (int i = 0; i < 6; i++) {
		fill(&queues[i % 2], memory, PAGES * PAGE, 0x51 + i);
		CHECK(bytes_are(memory, PAGES * PAGE, 0x51 + i));
	}
	SYS(mprotect(memory, PAGES * PAGE, PROT_READ));
	for (int i = 0; i < 2; i++)
		CHECK_WRITE_REFUSED(fds[i], memory, PERMISSION);
	copy(&queues[1], memory, result.addr, PAGES * PAGE);
	CHECK(bytes_are(result.addr, PAGES * PAGE, 0x56));
	SYS(mprotect(memory, PAGES * PAGE, PROT_READ | PROT_WRITE));
	for (int i = 0; i < 2; i++) {
		fill(&queues[i], memory, PAGES * PAGE, 0x61 + i);
		CHECK(bytes_are(memory, PAGES * PAGE, 0x61 + i));
	}
	SYS(munmap(memory, PAGES * PAGE));
	for (int i = 0; i < 2; i++)
		CHECK_READ_REFUSED(fds[i], memory, HOLE);
}
