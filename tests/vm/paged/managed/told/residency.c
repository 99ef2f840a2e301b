// SPDX-License-Identifier: MIT OR Apache-2.0
/* Where managed memory is told to be. */
#define _GNU_SOURCE
#include "../told.h"

#include "edu.h"
#include "memory.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Memory that nobody has touched is nowhere, and asking does not change that. */
TEST(residency_absent)
{
	char *memory = small_blocks(2);
	int fd = open_managed();

	CHECK_PLACE(fd, memory, 2 * HUGE, ABSENT, NONE);
	CHECK_EQ(tell(fd, memory, 2 * HUGE)->args.out_count, 1);
	CHECK_EQ(page_frame(memory), 0);
}

/* One page, or a huge one: on the host, on the device, and home again. */
TEST_EACH(residency_there_and_back, page_sizes)
{
	char *memory = block_of(row->huge);
	int fd = open_managed();

	memset(memory, 0x21, HUGE);
	CHECK_PLACE(fd, memory, HUGE, ON_HOST, NONE);
	MOVE_THERE(fd, memory, HUGE);
	CHECK_PLACE(fd, memory, HUGE, ON_DEVICE, PREFETCHED);
	MOVE_HOME(fd, memory, HUGE);
	CHECK_PLACE(fd, memory, HUGE, ON_HOST, PREFETCHED);
	CHECK(bytes_are(memory, HUGE, 0x21));
}

/* Memory that the CPU has taken back is there by that rule; in part, or as one huge page. */
TEST_EACH(residency_home, page_sizes)
{
	char *memory = block_of(row->huge);
	int fd = open_managed();

	memset(memory, 0x22, HUGE);
	MOVE_THERE(fd, memory, HUGE);
	memory[0] = 1;
	CHECK_EQ(tell_page(fd, memory).place, ON_HOST);
	CHECK_EQ(tell_page(fd, memory).rule, PINMAP_RULE_HOME);
	CHECK_EQ(tell(fd, memory, HUGE)->args.out_device, pages_away(memory, HUGE) * PAGE);
}

/* Pages in turn here, there and nowhere are as many runs. */
TEST(residency_mixed)
{
	enum { PAGES = 120 };
	char *memory = small_blocks(1);
	const struct told *told;
	int fd = open_managed();

	for (size_t i = 0; i < PAGES; i++)
		if (i % 3)
			memory[i * PAGE] = 1;
	for (size_t i = 2; i < PAGES; i += 3)
		MOVE_THERE(fd, memory + i * PAGE, PAGE);
	told = tell(fd, memory, PAGES * PAGE);
	CHECK_EQ(told->args.out_count, PAGES);
	for (size_t i = 0; i < PAGES; i++)
		CHECK_EQ(told->runs[i].place, i % 3);
}

/* Runs go on across the ends of blocks, and begin and end where the range does. */
TEST(residency_across_blocks)
{
	char *memory = small_blocks(4);
	const struct told *told;
	int fd = open_managed();

	MOVE_THERE(fd, memory, 3 * HUGE);
	told = tell(fd, memory + 5 * PAGE, 4 * HUGE - 6 * PAGE);
	CHECK_EQ(told->args.out_count, 2);
	CHECK_EQ(told->runs[0].length, 3 * HUGE - 5 * PAGE);
	CHECK_EQ(told->runs[1].place, ABSENT);
	CHECK_EQ(told->args.out_end, (uintptr_t)memory + 4 * HUGE - PAGE);
}

/* With no room for runs all is told by the sums. */
TEST(residency_sums)
{
	char *memory = small_blocks(3);
	struct pinmap_residency args;
	int fd = open_managed();

	memset(memory, 1, HUGE + PAGE);
	MOVE_THERE(fd, memory, HUGE / 2);
	CHECK_OK(try_residency(fd, memory, 3 * HUGE, NULL, 0, &args));
	CHECK_EQ(args.out_count, 0);
	CHECK_EQ(args.out_end, (uintptr_t)memory + 3 * HUGE);
	CHECK_EQ(args.out_device, HUGE / 2);
	CHECK_EQ(args.out_host, HUGE / 2 + PAGE);
	CHECK_EQ(args.out_absent, 2 * HUGE - PAGE);
}

/* If the room is too small, the answer goes on from where the last one ended. */
TEST(residency_continued)
{
	enum { PAGES = 64, EACH = 5 };
	char *memory = small_blocks(2) + HUGE - PAGES / 2 * PAGE, *at = memory;
	struct pinmap_run runs[EACH + 1];
	struct pinmap_residency args;
	unsigned int number = 0;
	int fd = open_managed();

	for (size_t i = 1; i < PAGES; i += 2)
		memory[i * PAGE] = 1;
	while (at < memory + PAGES * PAGE) {
		memset(runs, 0x77, sizeof(runs));
		CHECK_OK(try_residency(fd, at, memory + PAGES * PAGE - at, runs, EACH, &args));
		CHECK(args.out_count >= 1 && args.out_count <= EACH);
		CHECK(bytes_are(runs + args.out_count, (EACH + 1 - args.out_count) * sizeof(*runs),
				0x77));
		for (uint32_t i = 0; i < args.out_count; i++) {
			CHECK_EQ(runs[i].addr, (uintptr_t)memory + number * PAGE);
			CHECK_EQ(runs[i].length, PAGE);
			CHECK_EQ(runs[i].place, number++ % 2);
		}
		at = (char *)args.out_end;
		CHECK_EQ((uintptr_t)at, (uintptr_t)memory + number * PAGE);
		CHECK_EQ(args.out_host + args.out_absent, args.out_count * PAGE);
	}
	CHECK_EQ(number, PAGES);
}

/* Room for exactly what there is to tell is enough. */
TEST(residency_exact)
{
	char *memory = small_blocks(2);
	struct pinmap_residency args;
	struct pinmap_run runs[4];
	int fd = open_managed();

	memory[PAGE] = memory[HUGE] = 1;
	CHECK_OK(try_residency(fd, memory, 2 * HUGE, runs, 4, &args));
	CHECK_EQ(args.out_count, 4);
	CHECK_EQ(args.out_end, (uintptr_t)memory + HUGE + PAGE);
	CHECK_OK(try_residency(fd, memory, HUGE + PAGE, runs, 4, &args));
	CHECK_EQ(args.out_count, 4);
	CHECK_EQ(args.out_end, (uintptr_t)memory + HUGE + PAGE);
}

/* The access that the device has without a fault: none, read, write. */
TEST(residency_access)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	manage_all_host(fd);
	memset(memory, 1, HUGE);
	CHECK_EQ(tell_page(fd, memory).access, 0);
	SYS(mprotect(memory, HUGE, PROT_READ));
	device_reads(&queue, memory);
	CHECK_EQ(tell_page(fd, memory).access, PINMAP_RUN_READ);
	SYS(mprotect(memory, HUGE, PROT_READ | PROT_WRITE));
	CHECK_EQ(tell_page(fd, memory).access, 0);
	device_writes(&queue, memory, 2);
	CHECK_EQ(tell_page(fd, memory).access, PINMAP_RUN_READ | PINMAP_RUN_WRITE);
	MOVE_THERE(fd, memory, HUGE);
	CHECK_EQ(tell_page(fd, memory).access, 0);
	device_writes(&queue, memory, 3);
	CHECK_EQ(tell_page(fd, memory).access, PINMAP_RUN_READ | PINMAP_RUN_WRITE);
	CHECK_EQ(tell_page(fd, memory).place, ON_DEVICE);
}

/* Advice makes runs, wherever the memory is. */
TEST(residency_advice)
{
	char *memory = small_blocks(1);
	const struct told *told;
	int fd = open_managed();

	advise(fd, memory + 2 * PAGE, PAGE, READ_MOSTLY);
	advise(fd, memory + 3 * PAGE, PAGE, PREFER_DEVICE | ACCESSED_BY);
	told = tell(fd, memory, 5 * PAGE);
	CHECK_EQ(told->args.out_count, 4);
	CHECK_EQ(told->runs[0].advice, 0);
	CHECK_EQ(told->runs[1].advice, READ_MOSTLY);
	CHECK_EQ(told->runs[2].advice, PREFER_DEVICE | ACCESSED_BY);
	CHECK_EQ(told->runs[3].advice, 0);
}

/* A range that is managed for the host says so in its runs, and advice takes the place of that. */
TEST(residency_managed_for_host)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();

	manage_host(fd, memory, HUGE);
	CHECK_EQ(tell_page(fd, memory).advice, PREFER_HOST);
	advise(fd, memory, HUGE, PREFER_DEVICE);
	CHECK_EQ(tell_page(fd, memory).advice, PREFER_DEVICE);
	advise(fd, memory, HUGE, 0);
	CHECK_EQ(tell_page(fd, memory).advice, PREFER_HOST);
}

static const struct {
	const char *name;
	enum memory_kind kind;
} fixed[] = { { "memfd", MEMFD },
	      { "shared", ANON_SHARED },
	      { "hugetlb", HUGETLB },
	      { "file", EXT4_SHARED } };

/* Memory that never moves is on the host by that rule. */
TEST_EACH(residency_fixed, fixed)
{
	struct memory memory = memory_new(row->kind, HUGE);
	int fd = open_managed();

	memset(memory.addr, 0x23, PAGE);
	CHECK_PLACE(fd, memory.addr, PAGE, ON_HOST, FIXED);
	memory_free(&memory);
}

/* Addresses where nothing is mapped, beside memory and all by themselves, are nowhere. */
TEST(residency_holes)
{
	char *memory = small_blocks(3);
	const struct told *told;
	int fd = open_managed();

	memset(memory, 1, 3 * HUGE);
	SYS(munmap(memory + 2 * PAGE, PAGE));
	SYS(munmap(memory + HUGE, HUGE));
	told = tell(fd, memory, 3 * HUGE);
	CHECK_EQ(told->args.out_count, 5);
	CHECK_EQ(told->runs[1].place, ABSENT);
	CHECK_EQ(told->runs[1].length, PAGE);
	CHECK_EQ(told->runs[3].place, ABSENT);
	CHECK_EQ(told->runs[3].length, HUGE);
	CHECK_PLACE(fd, memory + HUGE, HUGE, ABSENT, NONE);
}

/* Terabytes where nothing is mapped, but for one page, are told of at once. */
TEST(residency_of_terabytes, .seconds = 20)
{
	char *begin = (char *)(16ul << 40), *page = begin + (9ul << 40) + 5 * PAGE;
	const size_t length = 32ul << 40;
	int fd = open_managed();
	const struct told *told;

	SYS(mmap(page, PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
	*page = 1;
	told = tell(fd, begin, length);
	CHECK_EQ(told->args.out_count, 3);
	CHECK_EQ(told->runs[1].addr, (uintptr_t)page);
	CHECK_EQ(told->runs[1].length, PAGE);
	CHECK_EQ(told->runs[1].place, ON_HOST);
	CHECK_EQ(told->args.out_absent, length - PAGE);
	CHECK_EQ(on_device(fd, begin, length), 0);
}

/* Memory that may not be touched at all is where it was. */
TEST(residency_forbidden)
{
	char *memory = small_blocks(1);
	int fd = open_managed();

	memset(memory, 1, PAGE);
	SYS(mprotect(memory, HUGE, PROT_NONE));
	CHECK_EQ(tell_page(fd, memory).place, ON_HOST);
	CHECK_EQ(tell_page(fd, memory).access, 0);
}

/* An area of files beside one of memory, in one block. */
TEST(residency_several_areas)
{
	char *memory = small_blocks(1), *file = memory_new(MEMFD, 4 * PAGE).addr;
	const struct told *told;
	int fd = open_managed();

	memset(memory, 1, 8 * PAGE);
	memset(file, 1, 4 * PAGE);
	SYS(mremap(file, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, memory + 2 * PAGE));
	SYS(mprotect(memory + 7 * PAGE, PAGE, PROT_READ));
	told = tell(fd, memory, 9 * PAGE);
	CHECK_EQ(told->args.out_count, 4);
	CHECK_EQ(told->runs[1].length, 4 * PAGE);
	CHECK_EQ(told->runs[1].rule, PINMAP_RULE_FIXED);
	CHECK_EQ(told->runs[2].rule, PINMAP_RULE_NONE);
	CHECK_EQ(told->runs[2].length, 2 * PAGE);
	CHECK_EQ(told->runs[3].place, ABSENT);
}

/* A call that is refused says why, and writes no run. */
TEST(residency_arguments)
{
	char *memory = small_blocks(1);
	struct pinmap_residency args;
	struct pinmap_run runs[2];
	int fd = open_gpu();

	memset(runs, 0x55, sizeof(runs));
	CHECK_ERR(ENOENT, try_residency(fd, memory, PAGE, runs, 2, &args));
	manage(fd, memory, 2 * PAGE);
	CHECK_ERR(ENOENT, try_residency(fd, memory, 3 * PAGE, runs, 2, &args));
	CHECK_ERR(ENOENT, try_residency(fd, memory + 2 * PAGE, PAGE, runs, 2, &args));
	CHECK_ERR(EINVAL, try_residency(fd, memory, 0, runs, 2, &args));
	CHECK_ERR(EINVAL, try_residency(fd, memory, 1, runs, 2, &args));
	CHECK_ERR(EINVAL, try_residency(fd, memory + 8, PAGE, runs, 2, &args));
	CHECK_ERR(EINVAL, try_residency(fd, memory, PAGE, (void *)((char *)runs + 4), 1, &args));
	CHECK_ERR(EOVERFLOW, try_residency(fd, (void *)-PAGE, 2 * PAGE, runs, 2, &args));
	CHECK_ERR(EFAULT, try_residency(fd, memory, PAGE, (void *)NOWHERE, 2, &args));
	CHECK_ERR(EFAULT, try_residency(fd, memory, PAGE, NULL, 1, &args));
	CHECK_ERR(EFAULT, try_residency(fd, memory, PAGE, (void *)0xffff888000000000, 1, &args));
	CHECK(bytes_are(runs, sizeof(runs), 0x55));
	CHECK_OK(try_residency(fd, memory, 2 * PAGE, runs, UINT32_MAX, &args));
	CHECK_EQ(args.out_count, 1);
}

/* Asking waits for no kernel of the device that runs, and moves nothing. */
TEST(residency_while_device_is_busy)
{
	char *memory = small_blocks(1);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	MOVE_THERE(fd, memory, HUGE);
	gpu_set_register(GPU_STUCK, 63);
	queue_push(&queue, GPU_FILL, (uintptr_t)memory, HUGE, 0x31);
	queue_submit(&queue);
	CHECK(WAIT_FOR(5000, gpu_register(GPU_ENGINE_BUSY) != 0));
	CHECK_PLACE(fd, memory, HUGE, ON_DEVICE, PREFETCHED);
	CHECK_ERR(ETIMEDOUT, try_queue_wait(&queue, 0));
	gpu_set_register(GPU_STUCK, 0);
	CHECK_OK(try_queue_wait(&queue, slow(20000)));
	CHECK(bytes_are(memory, HUGE, 0x31));
}

static int process_of(int fd, char *memory)
{
	struct pinmap_residency args;

	return try_residency(fd, memory, PAGE, NULL, 0, &args);
}

/* Another address space cannot ask. */
TEST(residency_of_another_process)
{
	char *memory = small_blocks(1);
	int fd = open_managed();

	CHECK_OK(process_of(fd, memory));
	if (fork() == 0) {
		CHECK_ERR(EPERM, process_of(fd, memory));
		CHECK_ERR(EPERM, try_advise(fd, memory, PAGE, 0));
		_exit(EXIT_PASS);
	}
	SYS(wait(NULL));
}
