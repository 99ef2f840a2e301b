// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Atomic accesses of the device to managed memory. They are made in VRAM only, where no access of
 * the CPU comes between the parts of one, so nothing is lost.
 */
#define _GNU_SOURCE
#include "../managed.h"
#include "../moving.h"

#include "edu.h"
#include "memory.h"
#include "process.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct adder {
	uint64_t *word;
	volatile bool stop;
	uint64_t added;
};

static void *add(void *argument)
{
	struct adder *adder = argument;

	while (!adder->stop) {
		__atomic_fetch_add(adder->word, 1, __ATOMIC_SEQ_CST);
		adder->added++;
		/* the device has a turn */
		sleep_ms(1);
	}
	return NULL;
}

/* Both sides add to one word at the same time, and no addition is lost. */
TEST_EACH(atomic_beside_the_cpu, page_sizes, .seconds = 120)
{
	enum { PACKETS = 50, TIMES = 200 };
	struct adder adder = { .word = (uint64_t *)block_of(row->huge) };
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	pthread_t thread;

	memset(adder.word, 0, HUGE);
	CHECK_OK(-pthread_create(&thread, NULL, add, &adder));
	for (int i = 0; i < PACKETS; i++)
		queue_push_add(&queue, adder.word, 1, 1, TIMES);
	queue_finish_within(&queue, slow(60000));
	adder.stop = true;
	CHECK_OK(-pthread_join(thread, NULL));
	CHECK(adder.added != 0);
	CHECK_EQ(*adder.word, PACKETS * TIMES + adder.added);
}

/* Memory moves for an atomic access even if advice keeps it on the host. */
TEST(atomic_outweighs_advice)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	manage_host(fd, memory, HUGE);
	memset(memory, 0, HUGE);
	fill(&queue, memory, 8, 0);
	CHECK_EQ(pages_away(memory, HUGE), 0);
	queue_push_add(&queue, memory, 1, 7, 3);
	queue_finish(&queue);
	CHECK(pages_away(memory, HUGE) > 0);
	CHECK_EQ(*(uint64_t *)memory, 21);
}

enum { LOCKED, SHARED, PINNED };
static const struct {
	const char *name;
	int what;
} fixed_memory[] = { { "locked", LOCKED }, { "shared", SHARED }, { "pinned", PINNED } };

/* Memory that cannot move refuses it, precisely, and is not changed. */
TEST_EACH(atomic_refused, fixed_memory)
{
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	char *memory = row->what == SHARED ?
			       SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS, -1, 0)) :
			       anon(1);

	memset(memory, 0, PAGE);
	if (row->what == LOCKED)
		SYS(mlock(memory, PAGE));
	if (row->what == PINNED)
		register_memory(other, memory, PAGE, WRITE | NO_MAP);
	manage(fd, memory, PAGE);
	queue_push_add(&queue, memory + 64, 1, 1, 1);
	queue_submit(&queue);
	CHECK_STOPPED(&queue, memory + 64, PINMAP_ACCESS_ATOMIC, PINMAP_FAULT_ATOMIC);
	CHECK(bytes_are(memory, PAGE, 0));
}
