// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Programs that know managed memory from elsewhere expect this, case by case. Most cases are tests
 * of other files:
 *
 *  ======================================= ====================================================
 *  case                                    tests
 *  ======================================= ====================================================
 *  fresh memory                            moved_untouched_*, touched_first_by_device
 *  memory that nobody registered           increments, all_of_it
 *  where a page is                         residency_*
 *  the device reads 8 bytes; writes all    touched_window; touched_in_order
 *  prefetch there, back, twice             moved_there_and_back_*, moved_home_by_call_*
 *  prefetch of nothing, of what is not     moved_arguments
 *  managed
 *  prefetch across two mappings            expected_prefetch_across
 *  the CPU reads beside a kernel           expected_cpu_beside_kernel
 *  advice for any range, asked for         advised_part, advised_alternating, residency_advice
 *  preferred on the host, accessed by      advised_host_*, advised_accessed_by_*
 *  read mostly                             advised_mostly_*
 *  prefetch against advice                 advised_and_prefetched
 *  both sides write words of one page      expected_both_write
 *  free beside a kernel of others          expected_free_beside_kernel
 *  device memory is given back             expected_given_back_*, moved_exit_*
 *  registering managed memory              moved_pinned, touched_by_pin
 *  mprotect(), then the device accesses    expected_protected_*
 *  mremap()                                moved_remapped_*, advised_remapped
 *  fork()                                  moved_forked_*, touched_after_fork_*
 *  MADV_DONTNEED                           moved_freed_*
 *  io_uring                                moved_io_uring_*
 *  read(), write(), process_vm_readv()     moved_read_write_*, moved_process_vm_*
 *  O_DIRECT beside migration               moved_direct_io_*, moved_direct_io_and_device
 *  the device touches what is not there    expected_past_the_end, others_go_on
 *  reset of the device                     moved_reset_*
 *  exit with work queued                   moved_exit_killed_*
 *  ======================================= ====================================================
 */
#define _GNU_SOURCE
#include "../told.h"

#include "edu.h"
#include "memory.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Memory of two mappings that touch, with different rights, moves as one. */
TEST(expected_prefetch_across)
{
	char *memory = small_blocks(2);
	int fd = open_managed();

	write_pattern(memory, 2 * HUGE, 3);
	SYS(mprotect(memory + HUGE, HUGE, PROT_READ));
	MOVE_THERE(fd, memory + HUGE / 2, HUGE);
	CHECK_EQ(on_device(fd, memory, 2 * HUGE), HUGE);
	CHECK(has_pattern(memory, 2 * HUGE, 3));
}

/* Has all engines but the driver's work on something else, until end_long(). */
static void begin_long(struct gpu_queue *queue)
{
	gpu_set_register(GPU_STUCK, (1 << GPU_PAGING_ENGINE) - 1);
	queue_push(queue, gpu_launch(GPU_SPIN), 1000, 0, 0);
	queue_submit(queue);
	CHECK(WAIT_FOR(5000, gpu_register(GPU_ENGINE_BUSY) != 0));
}

static void end_long(struct gpu_queue *queue)
{
	CHECK_ERR(ETIMEDOUT, try_queue_wait(queue, 0));
	gpu_set_register(GPU_STUCK, 0);
	CHECK_OK(try_queue_wait(queue, slow(20000)));
}

/* The CPU takes memory back from the device without waiting for a kernel that runs. */
TEST(expected_cpu_beside_kernel)
{
	char *memory = small_blocks(1);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x31, HUGE);
	MOVE_THERE(fd, memory, HUGE);
	begin_long(&queue);
	CHECK(bytes_are(memory, 16 * PAGE, 0x31));
	CHECK_EQ(tell_page(fd, memory).place, ON_HOST);
	end_long(&queue);
}

/* Freeing memory that is on the device does not wait for a kernel that does not use it. */
TEST(expected_free_beside_kernel)
{
	char *memory = small_blocks(2);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	MOVE_THERE(fd, memory, 2 * HUGE);
	begin_long(&queue);
	SYS(munmap(memory, HUGE));
	SYS(madvise(memory + HUGE, HUGE, MADV_DONTNEED));
	end_long(&queue);
	CHECK(bytes_are(memory + HUGE, HUGE, 0));
}

/* CPU and device write different words of one page at the same time; none is lost. */
TEST(expected_both_write)
{
	enum { ROUNDS = 200, WORDS = 512 };
	char *memory = small_blocks(1);
	float *theirs = (float *)memory, *ours = theirs + WORDS;
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0, PAGE);
	for (unsigned int i = 0; i < ROUNDS; i++) {
		queue_push(&queue, gpu_launch(GPU_INCREMENT_F32), (uintptr_t)theirs, WORDS, 0);
		queue_submit(&queue);
		for (unsigned int word = 0; word < WORDS; word++)
			((volatile float *)ours)[word] += 1;
		CHECK_OK(try_queue_wait(&queue, slow(20000)));
	}
	for (unsigned int word = 0; word < WORDS; word++) {
		CHECK(theirs[word] == ROUNDS);
		CHECK(ours[word] == ROUNDS);
	}
}

static const struct {
	const char *name;
	bool huge, unmap;
} frees[] = { { "munmap", false, true },
	      { "munmap_huge", true, true },
	      { "dontneed", false, false },
	      { "dontneed_huge", true, false } };

/* VRAM that freed memory had can be had by others. */
TEST_EACH(expected_given_back, frees)
{
	char *memory = block_of(row->huge);
	int fd = open_managed();
	uint64_t before;

	memset(memory, 1, HUGE);
	MOVE_THERE(fd, memory, HUGE);
	MOVE_HOME(fd, memory, HUGE);
	before = vram_free(fd);
	MOVE_THERE(fd, memory, HUGE);
	CHECK_EQ(vram_free(fd), before - HUGE);
	if (row->unmap)
		SYS(munmap(memory, HUGE));
	else
		SYS(madvise(memory, HUGE, MADV_DONTNEED));
	CHECK(WAIT_FOR(5000, vram_free(fd) == before));
}

static const struct {
	const char *name;
	bool huge, none;
} protections[] = { { "read", false, false },
		    { "read_huge", true, false },
		    { "none", false, true },
		    { "none_huge", true, true } };

/* The device may do with memory that it has what the program may, and no more. */
TEST_EACH(expected_protected, protections)
{
	char *memory = block_of(row->huge);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x32, HUGE);
	MOVE_THERE(fd, memory, HUGE);
	device_writes(&queue, memory, 0x33);
	SYS(mprotect(memory, HUGE, row->none ? PROT_NONE : PROT_READ));
	if (row->none)
		CHECK_READ_REFUSED(fd, memory, PERMISSION);
	else
		device_reads(&queue, memory);
	CHECK_WRITE_REFUSED(fd, memory, PERMISSION);
	SYS(mprotect(memory, HUGE, PROT_READ | PROT_WRITE));
	CHECK(bytes_are(memory, 8, 0x33));
	device_writes(&queue, memory, 0x34);
	CHECK(bytes_are(memory, 8, 0x34));
	CHECK(bytes_are(memory + 8, HUGE - 8, 0x32));
}

/* The first page behind memory is a fault, though memory is on the device up to there. */
TEST(expected_past_the_end)
{
	char *memory = small_blocks(1), *end = memory + 64 * PAGE;
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	SYS(munmap(end, HUGE - 64 * PAGE));
	fill(&queue, memory, 64 * PAGE, 0x35);
	CHECK_EQ(on_device(fd, memory, 64 * PAGE), 64 * PAGE);
	CHECK_WRITE_REFUSED(fd, end, HOLE);
	CHECK(bytes_are(memory, 64 * PAGE, 0x35));
}

/* The device uses locked memory, and its contents are right. */
TEST(expected_locked)
{
	char *memory = small_blocks(1);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	MOVE_THERE(fd, memory, 64 * PAGE);
	fill(&queue, memory, 64 * PAGE, 0x36);
	SYS(mlock(memory, 64 * PAGE));
	CHECK_EQ(on_device(fd, memory, 64 * PAGE), 0);
	device_writes(&queue, memory, 0x37);
	CHECK_PLACE(fd, memory, PAGE, ON_HOST, FIXED);
	CHECK(bytes_are(memory, 8, 0x37));
	CHECK(bytes_are(memory + 8, 64 * PAGE - 8, 0x36));
}
