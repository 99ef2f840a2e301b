// SPDX-License-Identifier: MIT OR Apache-2.0
/* Advice of programs for managed memory, and what becomes of it. */
#define _GNU_SOURCE
#include "../told.h"

#include "edu.h"
#include "memory.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const struct {
	const char *name;
	uint32_t advice;
	bool write;
	uint32_t place, rule;
} cases[] = {
	{ "none_read", 0, false, ON_DEVICE, PINMAP_RULE_TOUCHED },
	{ "none_write", 0, true, ON_DEVICE, PINMAP_RULE_TOUCHED },
	{ "host_read", PREFER_HOST, false, ON_HOST, PINMAP_RULE_ADVISED },
	{ "host_write", PREFER_HOST, true, ON_HOST, PINMAP_RULE_ADVISED },
	{ "accessed_by_read", ACCESSED_BY, false, ON_HOST, PINMAP_RULE_ADVISED },
	{ "accessed_by_write", ACCESSED_BY, true, ON_HOST, PINMAP_RULE_ADVISED },
	{ "device_read", PREFER_DEVICE, false, ON_DEVICE, PINMAP_RULE_PREFERRED },
	{ "device_write", PREFER_DEVICE, true, ON_DEVICE, PINMAP_RULE_PREFERRED },
	{ "device_accessed_by", PREFER_DEVICE | ACCESSED_BY, false, ON_DEVICE,
	  PINMAP_RULE_PREFERRED },
	{ "host_accessed_by", PREFER_HOST | ACCESSED_BY, true, ON_HOST, PINMAP_RULE_ADVISED },
	{ "mostly_read", READ_MOSTLY, false, ON_HOST, PINMAP_RULE_ADVISED },
	{ "mostly_write", READ_MOSTLY, true, ON_DEVICE, PINMAP_RULE_TOUCHED },
	{ "mostly_device_read", READ_MOSTLY | PREFER_DEVICE, false, ON_HOST, PINMAP_RULE_ADVISED },
	{ "mostly_device_write", READ_MOSTLY | PREFER_DEVICE, true, ON_DEVICE,
	  PINMAP_RULE_PREFERRED },
	{ "mostly_host_write", READ_MOSTLY | PREFER_HOST, true, ON_HOST, PINMAP_RULE_ADVISED },
};

/* Where memory goes that the device touches, by advice alone; nothing moves before. */
TEST_EACH(advised, cases)
{
	char *memory = small_blocks(1);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	struct pinmap_run run;

	memset(memory, 0x51, HUGE);
	advise(fd, memory, HUGE, row->advice);
	CHECK_EQ(on_device(fd, memory, HUGE), 0);
	if (row->write)
		device_writes(&queue, memory, 0x51);
	else
		device_reads(&queue, memory);
	run = tell_page(fd, memory);
	CHECK_EQ(run.place, row->place);
	CHECK_EQ(run.rule, row->rule);
	CHECK_EQ(run.advice, row->advice);
	CHECK(bytes_are(memory, HUGE, 0x51));
}

/* Advice counts for a huge page, too. */
TEST_EACH(advised_huge, cases)
{
	char *memory = block_of(true);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x52, HUGE);
	advise(fd, memory, HUGE, row->advice);
	if (row->write)
		device_writes(&queue, memory, 0x52);
	else
		device_reads(&queue, memory);
	CHECK_EQ(on_device(fd, memory, HUGE), row->place == ON_DEVICE ? HUGE : 0);
	CHECK(bytes_are(memory, HUGE, 0x52));
}

/* A read leaves what is read mostly on the host; the write behind it moves it. */
TEST(advised_mostly_read_then_written)
{
	char *memory = small_blocks(1);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x53, HUGE);
	advise(fd, memory, HUGE, READ_MOSTLY);
	device_reads(&queue, memory);
	CHECK_EQ(tell_page(fd, memory).access, PINMAP_RUN_READ);
	CHECK_EQ(tell_page(fd, memory).place, ON_HOST);
	device_writes(&queue, memory, 0x54);
	CHECK_EQ(tell_page(fd, memory).place, ON_DEVICE);
	CHECK(bytes_are(memory, 8, 0x54));
	CHECK(bytes_are(memory + 8, HUGE - 8, 0x53));
}

/* The last advice counts, for the next access that faults. */
TEST(advised_anew)
{
	char *memory = small_blocks(1);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x55, HUGE);
	advise(fd, memory, HUGE, PREFER_HOST);
	advise(fd, memory, HUGE, PREFER_DEVICE);
	device_reads(&queue, memory);
	CHECK_EQ(tell_page(fd, memory).rule, PINMAP_RULE_PREFERRED);
	memory[0] = 0x55;
	advise(fd, memory, HUGE, PREFER_HOST);
	device_reads(&queue, memory);
	CHECK_EQ(tell_page(fd, memory).rule, PINMAP_RULE_ADVISED);
	CHECK_EQ(tell_page(fd, memory).place, ON_HOST);
}

/*
 * The device goes on reaching memory where it reaches it already; advice counts at the next fault.
 */
TEST(advised_after_host)
{
	char *memory = small_blocks(1);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x56, HUGE);
	advise(fd, memory, HUGE, PREFER_HOST);
	device_reads(&queue, memory);
	advise(fd, memory, HUGE, PREFER_DEVICE);
	device_reads(&queue, memory);
	CHECK_EQ(tell_page(fd, memory).place, ON_HOST);
	/* which takes it away from the device */
	SYS(mprotect(memory, HUGE, PROT_READ));
	CHECK_EQ(tell_page(fd, memory).access, 0);
	device_reads(&queue, memory);
	CHECK_EQ(tell_page(fd, memory).place, ON_DEVICE);
	CHECK(bytes_are(memory, HUGE, 0x56));
}

/* Advice ends at its last page: the memory beside it moves, and takes none of it along. */
TEST(advised_part)
{
	char *memory = small_blocks(1);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x57, HUGE);
	advise(fd, memory + 4 * PAGE, 4 * PAGE, PREFER_HOST);
	device_reads(&queue, memory);
	device_reads(&queue, memory + 4 * PAGE);
	device_reads(&queue, memory + 8 * PAGE);
	CHECK_PLACE(fd, memory, 4 * PAGE, ON_DEVICE, TOUCHED);
	CHECK_PLACE(fd, memory + 4 * PAGE, 4 * PAGE, ON_HOST, ADVISED);
	CHECK_PLACE(fd, memory + 8 * PAGE, 16 * PAGE, ON_DEVICE, TOUCHED);
	CHECK(bytes_are(memory, HUGE, 0x57));
}

/* PREFETCH moves memory whatever is advised. */
TEST(advised_and_prefetched)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();

	manage_all_host(fd);
	advise(fd, memory, HUGE, PREFER_HOST);
	MOVE_THERE(fd, memory, HUGE);
	CHECK_PLACE(fd, memory, HUGE, ON_DEVICE, PREFETCHED);
	advise(fd, memory, HUGE, PREFER_DEVICE);
	MOVE_HOME(fd, memory, HUGE);
	CHECK_EQ(on_device(fd, memory, HUGE), 0);
}

/* mremap() takes advice along with memory that was touched; nothing is left behind. */
TEST(advised_remapped)
{
	char *memory = small_blocks(1), *elsewhere = address_space(HUGE, HUGE);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	memset(memory, 0x58, HUGE);
	advise(fd, memory, HUGE, PREFER_HOST);
	SYS(mremap(memory, HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere));
	CHECK_EQ(tell_page(fd, elsewhere).advice, PREFER_HOST);
	CHECK_EQ(tell_page(fd, elsewhere + HUGE - PAGE).advice, PREFER_HOST);
	device_reads(&queue, elsewhere);
	CHECK_EQ(tell_page(fd, elsewhere).place, ON_HOST);
	SYS(mmap(memory, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0));
	memory[0] = 1;
	CHECK_EQ(tell_page(fd, memory).advice, 0);
	device_reads(&queue, memory);
	CHECK_EQ(tell_page(fd, memory).place, ON_DEVICE);
}

/* Advice for memory that was moved before is kept, too, and can be replaced. */
TEST(advised_where_remapped)
{
	char *memory = small_blocks(1), *elsewhere = address_space(HUGE, HUGE);
	int fd = open_managed();

	memset(memory, 0x59, HUGE);
	SYS(mremap(memory, HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere));
	advise(fd, elsewhere, HUGE, ACCESSED_BY);
	CHECK_EQ(tell_page(fd, elsewhere).advice, ACCESSED_BY);
	advise(fd, elsewhere + PAGE, PAGE, 0);
	CHECK_EQ(tell_page(fd, elsewhere).advice, ACCESSED_BY);
	CHECK_EQ(tell_page(fd, elsewhere + PAGE).advice, 0);
	CHECK_EQ(tell_page(fd, elsewhere + 2 * PAGE).advice, ACCESSED_BY);
}

/* A part of memory with advice, moved by itself, has that advice; so has what stays. */
TEST(advised_part_remapped)
{
	char *memory = small_blocks(1), *elsewhere = address_space(HUGE, HUGE);
	int fd = open_managed();

	memset(memory, 0x5a, HUGE);
	advise(fd, memory + 8 * PAGE, 8 * PAGE, READ_MOSTLY);
	SYS(mremap(memory + 4 * PAGE, 8 * PAGE, 8 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
		   elsewhere));
	CHECK_EQ(tell_page(fd, elsewhere + 3 * PAGE).advice, 0);
	CHECK_EQ(tell_page(fd, elsewhere + 4 * PAGE).advice, READ_MOSTLY);
	CHECK_EQ(tell_page(fd, elsewhere + 7 * PAGE).advice, READ_MOSTLY);
	CHECK_EQ(tell_page(fd, memory + 12 * PAGE).advice, READ_MOSTLY);
	CHECK_EQ(tell_page(fd, memory + 16 * PAGE).advice, 0);
}

/* New memory has no advice, though it is where memory with advice was. */
TEST(advised_unmapped)
{
	char *memory = small_blocks(1);
	int fd = open_managed();

	for (unsigned int i = 0; i < 100; i++) {
		memory[0] = 1;
		advise(fd, memory, HUGE, PREFER_HOST);
		CHECK_EQ(tell_page(fd, memory).advice, PREFER_HOST);
		SYS(munmap(memory, HUGE));
		SYS(mmap(memory, HUGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
		memory[0] = 1;
		CHECK_EQ(tell_page(fd, memory).advice, 0);
	}
}

/* Maps new memory at an address, gives advice for it, and moves it. Returns where it is. */
static char *advised_and_moved(int fd, char *memory)
{
	char *elsewhere = address_space(HUGE, HUGE);

	SYS(mmap(memory, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0));
	memory[0] = 1;
	advise(fd, memory, HUGE, READ_MOSTLY);
	SYS(mremap(memory, HUGE, HUGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere));
	return elsewhere;
}

/*
 * Advice for memory that was freed takes no room from advice for other memory. Memory that was
 * moved keeps its advice, also where two pieces of it come from the same addresses.
 */
TEST(advised_and_freed)
{
	/* more than a context may advise at once */
	size_t rounds = 4 * (1 << 16) / (HUGE / PAGE / 2);
	char *room = address_space(rounds * HUGE, HUGE), *memory = room;
	char *from = address_space(2 * HUGE, HUGE), *moved[3];
	int fd = open_managed();

	for (int i = 0; i < 3; i++)
		moved[i] = advised_and_moved(fd, from + i / 2 * HUGE);
	for (size_t round = 0; round < rounds; round++) {
		SYS(munmap(memory, HUGE));
		memory = SYS(mmap(room + round * HUGE, HUGE, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
		for (size_t offset = 0; offset < HUGE; offset += 2 * PAGE)
			advise(fd, memory + offset, PAGE, PREFER_HOST);
	}
	memory[0] = 1;
	CHECK_EQ(tell_page(fd, memory).advice, PREFER_HOST);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(tell_page(fd, moved[i]).advice, READ_MOSTLY);
}

/* Advice for every other page is kept page by page, and taken back at once. */
TEST(advised_alternating)
{
	char *memory = small_blocks(2);
	const struct told *told;
	int fd = open_managed();

	for (unsigned int i = 0; i < 5; i++) {
		for (size_t page = 0; page < 500; page += 2)
			advise(fd, memory + HUGE + (page - 250) * PAGE, PAGE, PREFER_HOST);
		told = tell(fd, memory + HUGE - 250 * PAGE, 500 * PAGE);
		CHECK_EQ(told->args.out_count, 500);
		for (size_t page = 0; page < 500; page++)
			CHECK_EQ(told->runs[page].advice, page % 2 ? 0 : PREFER_HOST);
		advise(fd, memory, 2 * HUGE, 0);
		CHECK_EQ(tell(fd, memory, 2 * HUGE)->args.out_count, 1);
	}
}

/* Advising waits for no work of the device, for however much memory. */
TEST(advised_while_device_is_busy)
{
	size_t large = 64ULL << 30;
	char *memory = small_blocks(1), *space = address_space(large, HUGE);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	MOVE_THERE(fd, memory, HUGE);
	gpu_set_register(GPU_STUCK, 63);
	queue_push(&queue, GPU_FILL, (uintptr_t)memory, HUGE, 0x5b);
	queue_submit(&queue);
	CHECK(WAIT_FOR(5000, gpu_register(GPU_ENGINE_BUSY) != 0));
	advise(fd, memory, PAGE, PREFER_HOST);
	advise(fd, memory, HUGE, PREFER_DEVICE);
	advise(fd, space, large, PREFER_HOST);
	advise(fd, space, large, 0);
	CHECK_ERR(ETIMEDOUT, try_queue_wait(&queue, 0));
	gpu_set_register(GPU_STUCK, 0);
	CHECK_OK(try_queue_wait(&queue, slow(20000)));
}

/* Advice ends with the context. */
TEST(advised_by_another_context)
{
	char *memory = small_blocks(1);
	int fd = open_gpu(), other = open_gpu();

	manage_all(fd);
	manage_all(other);
	advise(fd, memory, HUGE, PREFER_HOST);
	CHECK_EQ(tell_page(other, memory).advice, 0);
	close(fd);
	fd = open_gpu();
	manage_all(fd);
	CHECK_EQ(tell_page(fd, memory).advice, 0);
}

/* A call that is refused changes nothing. */
TEST(advised_arguments)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();

	CHECK_ERR(ENOENT, try_advise(fd, memory, PAGE, 0));
	manage(fd, memory, 2 * PAGE);
	advise(fd, memory, PAGE, ACCESSED_BY);
	CHECK_ERR(ENOENT, try_advise(fd, memory, 3 * PAGE, PREFER_HOST));
	CHECK_ERR(EINVAL, try_advise(fd, memory, 0, PREFER_HOST));
	CHECK_ERR(EINVAL, try_advise(fd, memory, 100, PREFER_HOST));
	CHECK_ERR(EINVAL, try_advise(fd, memory + 1, PAGE, PREFER_HOST));
	CHECK_ERR(EINVAL, try_advise(fd, memory, PAGE, PREFER_HOST | PREFER_DEVICE));
	CHECK_ERR(EOPNOTSUPP, try_advise(fd, memory, PAGE, 16));
	CHECK_ERR(EOVERFLOW, try_advise(fd, (void *)-PAGE, 2 * PAGE, PREFER_HOST));
	CHECK_EQ(tell(fd, memory, 2 * PAGE)->args.out_count, 2);
	CHECK_EQ(tell_page(fd, memory).advice, ACCESSED_BY);
	CHECK_EQ(tell_page(fd, memory + PAGE).advice, 0);
}
