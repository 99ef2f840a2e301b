// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Memory that moves between two devices. In a VM whose devices reach each other (PINMAP_PEERS) it
 * does so without the host: the device that had it copies nothing, and the CPU touches nothing.
 * Elsewhere the same happens by way of the host.
 */
#define _GNU_SOURCE
#include "two.h"

#include "edu.h"
#include "memory.h"
#include "pci.h"
#include "process.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGES = 64, LENGTH = PAGES * PAGE };

/* Bytes that came to a device from the other one, without the host. */
static uint64_t came(const struct two *two, int which)
{
	return statistics(two->fds[which], two->handles[which]).out_from_peers;
}

/* Asserts that @bytes went from the first device to the second, and nothing the other way. */
static void check_went(const struct two *two, uint64_t bytes)
{
	struct pinmap_statistics from = statistics(two->fds[0], two->handles[0]);
	struct pinmap_statistics to = statistics(two->fds[1], two->handles[1]);

	if (!pci_peers())
		bytes = 0;
	CHECK_EQ(from.out_to_peers, bytes);
	CHECK_EQ(to.out_from_peers, bytes);
	CHECK_EQ(from.out_from_peers, 0);
	CHECK_EQ(to.out_to_peers, 0);
	if (bytes) {
		CHECK_EQ(from.out_host_faults, 0);
		CHECK_EQ(from.out_home_touched, 0);
	} else {
		CHECK(from.out_host_faults != 0);
		CHECK(from.out_home_touched != 0);
	}
}

/* PREFETCH reads the memory in the VRAM of the other device. */
TEST_EACH(peers_prefetch, page_sizes)
{
	char *memory = block_of(row->huge);
	struct two two = two_new(memory, HUGE);
	uint64_t copies, free = vram_free(two.fds[0]);

	write_pattern(memory, HUGE, 41);
	MOVE_THERE(two.fds[0], memory, HUGE);
	copies = gpu_register(GPU_PAGING_DONE);
	MOVE_THERE(two.fds[1], memory, HUGE);
	CHECK_EQ(gpu_register(GPU_PAGING_DONE) == copies, pci_peers());
	check_went(&two, HUGE);
	CHECK_EQ(pages_away(memory, HUGE), HUGE / PAGE);
	CHECK(WAIT_FOR(5000, vram_free(two.fds[0]) == free));
	CHECK_PLACE(two.fds[1], memory, HUGE, ON_DEVICE, PREFETCHED);
	CHECK(has_pattern(memory, HUGE, 41));
}

/* A device that touches what the other one has takes it, and sees what the other one wrote. */
TEST_EACH(peers_touch, page_sizes)
{
	char *memory = block_of(row->huge);
	struct two two = two_new(memory, HUGE);
	uint64_t copies;

	memset(memory, 0, HUGE);
	MOVE_THERE(two.fds[0], memory, HUGE);
	increment(&two.queues[0], memory, HUGE);
	copies = gpu_register(GPU_PAGING_DONE);
	increment(&two.queues[1], memory, HUGE);
	CHECK_EQ(gpu_register(GPU_PAGING_DONE) == copies, pci_peers());
	check_went(&two, HUGE);
	CHECK_EQ(on_device(two.fds[1], memory, HUGE), HUGE);
	CHECK_EQ(tell_page(two.fds[1], memory).rule, PINMAP_RULE_TOUCHED);
	CHECK_EQ(pages_away(memory, HUGE), HUGE / PAGE);
	check_floats(memory, HUGE, 2);
}

/* One call takes a part from the other device, a part from the host, and a part from nowhere. */
TEST_EACH(peers_mixed, page_sizes)
{
	enum { PART = HUGE / 4 };
	char *memory = block_of(row->huge);
	struct two two = two_new(memory, HUGE);
	struct pinmap_prefetch moved;

	write_pattern(memory, 3 * PART, 42);
	MOVE_THERE(two.fds[0], memory, PART);
	moved = prefetch_all(two.fds[1], memory, HUGE, 0);
	CHECK_EQ(moved.out_moved, HUGE);
	CHECK_EQ(on_device(two.fds[1], memory, HUGE), HUGE);
	check_went(&two, PART);
	CHECK(has_pattern(memory, 3 * PART, 42));
	CHECK(bytes_are(memory + 3 * PART, PART, 0));
}

/* No two pages that follow each other do so in the VRAM of the other device. */
TEST(peers_scattered)
{
	char *memory = small_blocks(1), *other = small_blocks(1);
	struct two two = two_new(memory, LENGTH);

	manage(two.fds[0], other, LENGTH);
	scatter(two.fds[0], memory, other, PAGES);
	write_pattern(memory, LENGTH, 43);
	for (int page = 0; page < PAGES; page++)
		MOVE_THERE(two.fds[0], memory + page * PAGE, PAGE);
	MOVE_THERE(two.fds[1], memory, LENGTH);
	CHECK_EQ(came(&two, 1), pci_peers() ? LENGTH : 0);
	CHECK(has_pattern(memory, LENGTH, 43));
}

/* A page of 2 MiB on the other device goes into pieces here. */
TEST(peers_no_huge_page)
{
	char *memory = block_of(true);
	struct two two = two_new(memory, HUGE);
	uint64_t copies;

	write_pattern(memory, HUGE, 44);
	MOVE_THERE(two.fds[0], memory, HUGE);
	break_up_vram(open_second_gpu(), second_gpu_register);
	copies = second_gpu_register(GPU_PAGING_DONE);
	prefetch_all(two.fds[1], memory, HUGE, 0);
	CHECK(second_gpu_register(GPU_PAGING_DONE) > copies + 1);
	CHECK_EQ(on_device(two.fds[1], memory, HUGE), HUGE);
	check_went(&two, HUGE);
	CHECK(has_pattern(memory, HUGE, 44));
}

/* The context that moved the memory is closed; the pages are still on its device. */
TEST_EACH(peers_of_a_closed_context, page_sizes)
{
	char *memory = block_of(row->huge);
	struct two two = two_new(memory, HUGE);

	write_pattern(memory, HUGE, 45);
	MOVE_THERE(two.fds[0], memory, HUGE);
	queue_unmap(&two.queues[0]);
	close(two.fds[0]);
	MOVE_THERE(two.fds[1], memory, HUGE);
	CHECK_EQ(came(&two, 1), pci_peers() ? HUGE : 0);
	CHECK(has_pattern(memory, HUGE, 45));
}

/* Memory that a forked child has too: both have it, whichever device needs it. */
TEST_EACH(peers_forked, page_sizes)
{
	char *memory = block_of(row->huge);
	struct two two = two_new(memory, HUGE);
	struct gate end = gate_new();
	pid_t pid;

	memset(memory, 0, HUGE);
	MOVE_THERE(two.fds[0], memory, HUGE);
	pid = SYS(fork());
	if (pid == 0) {
		gate_pass(&end);
		check_floats(memory, HUGE, 0);
		_exit(0);
	}
	increment(&two.queues[1], memory, HUGE);
	gate_open(&end);
	join(pid);
	check_floats(memory, HUGE, 1);
}

static const struct {
	const char *name;
	bool huge;
	enum { FAILS, UNBOUND, LOST } what;
} troubles[] = {
	{ "fails_small", false, FAILS },     { "fails_huge", true, FAILS },
	{ "unbound_small", false, UNBOUND }, { "unbound_huge", true, UNBOUND },
	{ "lost_small", false, LOST },	     { "lost_huge", true, LOST },
};

/* The device reads the memory of the other one at this moment, or is about to. */
static void await_reading(void)
{
	CHECK(WAIT_FOR(5000, second_gpu_register(GPU_ENGINE_BUSY) >> GPU_PAGING_ENGINE & 1));
}

/**
 * struct unbinding - a device that is being unbound, by a thread that exists before: none can be
 * made while the memory of the process is being moved
 * @bdf: its address
 * @begins: that is to be done
 * @ended: that has been done
 */
struct unbinding {
	char bdf[16];
	volatile bool begins, ended;
};

static void *unbind(void *argument)
{
	struct unbinding *unbinding = argument;

	while (!unbinding->begins)
		sleep_ms(1);
	pci_unbind(unbinding->bdf);
	unbinding->ended = true;
	return NULL;
}

/*
 * While the second device reads, its engine fails: the memory comes by way of the host, then and
 * from then on. The first device is unbound: that waits, and the memory is there. The first one
 * loses its contents: what was copied does not count, and the memory is lost with it.
 */
TEST_EACH(peers, troubles, .seconds = 120, .faults = true)
{
	char *memory = block_of(row->huge);
	struct two two = two_new(memory, HUGE);
	struct unbinding first = { .begins = false };
	struct call *call;
	pthread_t thread;
	int error;

	need_peers();
	snprintf(first.bdf, sizeof(first.bdf), "%.15s", need_gpu());
	write_pattern(memory, HUGE, 46);
	MOVE_THERE(two.fds[0], memory, HUGE);
	if (row->what == UNBOUND)
		CHECK_OK(-pthread_create(&thread, NULL, unbind, &first));
	second_gpu_set_register(GPU_STUCK, 1 << GPU_PAGING_ENGINE);
	call = begin_call(two.fds[1], 0, memory, HUGE);
	await_reading();
	switch (row->what) {
	case FAILS:
		second_gpu_set_register(GPU_ENGINE_RESET, 1 << GPU_PAGING_ENGINE);
		break;
	case UNBOUND:
		first.begins = true;
		sleep_ms(300);
		CHECK(!first.ended);
		break;
	case LOST:
		gpu_reset_behind();
		break;
	}
	second_gpu_set_register(GPU_STUCK, 0);
	error = end_call(call);
	switch (row->what) {
	case FAILS:
		CHECK_OK(error);
		CHECK_EQ(call->args.out_moved, HUGE);
		CHECK_EQ(on_device(two.fds[1], memory, HUGE), HUGE);
		CHECK(has_pattern(memory, HUGE, 46));
		MOVE_THERE(two.fds[0], memory, HUGE);
		MOVE_THERE(two.fds[1], memory, HUGE);
		CHECK_EQ(came(&two, 1), 0);
		CHECK(has_pattern(memory, HUGE, 46));
		pci_unbind(first.bdf);
		pci_bind(first.bdf);
		break;
	case UNBOUND:
		CHECK_OK(-pthread_join(thread, NULL));
		CHECK_OK(error);
		CHECK_EQ(call->args.out_moved, HUGE);
		CHECK_EQ(came(&two, 1), HUGE);
		CHECK(has_pattern(memory, HUGE, 46));
		pci_bind(first.bdf);
		break;
	case LOST:
		CHECK_EQ(call->args.out_moved, 0);
		CHECK_EQ(on_device(two.fds[1], memory, HUGE), 0);
		CHECK_EQ(touch_read(memory), SIGBUS);
		SYS(munmap(memory, HUGE));
		pci_unbind(first.bdf);
		pci_bind(first.bdf);
		break;
	}
	check_works();
}
