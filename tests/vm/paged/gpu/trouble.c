// SPDX-License-Identifier: MIT OR Apache-2.0
/* A device that misbehaves. */
#define _GNU_SOURCE
#include "gpu.h"
#include "memory.h"
#include "pins.h"
#include "process.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* When interrupts get lost, everything goes on, somewhat later. */
TEST(lost_interrupts, .seconds = 30)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	gpu_set_register(GPU_LOSE_INTERRUPTS, 1000);
	for (int i = 0; i < 10; i++)
		queue_finish_within(&queue, slow(5000));
	gpu_set_register(GPU_LOSE_INTERRUPTS, 0);
}

/* A kernel that runs for too long stops its queue only. */
TEST(runs_too_long, .seconds = 30)
{
	int fd = open_gpu();
	struct gpu_queue bad = queue_new(fd), good = queue_new(open_gpu());

	queue_push(&bad, gpu_launch(GPU_SPIN), 60000000000, 0, 0);
	queue_ring(&bad);
	queue_finish(&good);
	CHECK_EQ(queue_stopped(&bad), 32);
	CHECK_EQ(queue_query(&bad).out_state, PINMAP_QUEUE_ERROR);
	queue_finish(&good);
}

/* An engine that is stuck is reset: its queue is told, others go on. */
TEST(stuck_engine, .seconds = 30)
{
	struct gpu_queue bad = queue_new(open_gpu()), good = queue_new(open_gpu());

	gpu_set_register(GPU_STUCK, 0x3c);
	queue_push(&bad, gpu_launch(GPU_SPIN), 1000, 0, 0);
	queue_ring(&bad);
	CHECK(WAIT_FOR(2000, gpu_register(GPU_ENGINE_BUSY) & 0x3c));
	CHECK_EQ(queue_stopped(&bad), GPU_ENGINE_LOST);
	gpu_set_register(GPU_STUCK, 0);
	queue_push(&good, gpu_launch(GPU_SPIN), 1000, 0, 0);
	queue_finish(&good);
}

/* Nobody else waits while an engine is being reset, which may take long. */
TEST(reset_holds_nobody_up, .seconds = 60)
{
	struct gpu_queue bad = queue_new(open_gpu()), good = queue_new(open_gpu());
	unsigned int finished = 0;

	gpu_set_register(GPU_STUCK, 0x3c);
	queue_push(&bad, gpu_launch(GPU_SPIN), 1000, 0, 0);
	queue_ring(&bad);
	CHECK(WAIT_FOR(2000, gpu_register(GPU_ENGINE_BUSY) & 0x3c));
	gpu_set_register(GPU_STUCK, gpu_register(GPU_ENGINE_BUSY) & 0x3c);
	gpu_set_register(GPU_NO_ACK, NO_ACK_ENGINE_RESET);
	if (!WAIT_FOR(10000, gpu_register(GPU_ENGINE_RESET)))
		FAIL("the engine is not reset");
	/* for 0.5 s: the driver waits 2 s for the reset, and does not give up before */
	for (uint64_t until = now_ms() + 500; now_ms() < until; finished++) {
		CHECK_EQ(queue_query(&bad).out_state, PINMAP_QUEUE_READY);
		queue_finish(&good);
		if (!gpu_register(GPU_ENGINE_RESET))
			break;
	}
	gpu_set_register(GPU_NO_ACK, 0);
	CHECK_EQ(queue_stopped(&bad), GPU_ENGINE_LOST);
	diag("meanwhile another queue has finished %u times", finished);
	CHECK(finished > 0);
}

/* The device is given up if an engine keeps its packet even when it is reset. */
TEST(engine_that_cannot_be_reset, .seconds = 60, .faults = true)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	gpu_set_register(GPU_STUCK, 0x3c);
	gpu_set_register(GPU_NO_ACK, NO_ACK_ENGINE_RESET);
	queue_push(&queue, gpu_launch(GPU_SPIN), 1000, 0, 0);
	queue_ring(&queue);
	if (!WAIT_FOR(30000, gpu_register(GPU_ENGINE_RESET)))
		FAIL("the engine is not reset");
	CHECK(WAIT_FOR(15000, get_info(fd).out_flags & PINMAP_INFO_GONE));
	close(fd);
	gpu_rebind();
	queue = queue_new(open_gpu());
	queue_finish(&queue);
}

/*
 * A queue that has stopped is not heard any more, and cannot keep the driver busy by its doorbell.
 */
TEST(stopped_queue_is_not_heard)
{
	struct gpu_queue queue = queue_new(open_gpu());
	uint64_t ignored = gpu_register(GPU_IGNORED_DOORBELLS);

	queue_push(&queue, 99, 0, 0, 0);
	queue_ring(&queue);
	CHECK_EQ(queue_stopped(&queue), GPU_BAD_OPCODE);
	CHECK(WAIT_FOR(5000, (queue_ring(&queue), gpu_register(GPU_IGNORED_DOORBELLS) > ignored)));
}

/* A queue whose packet never ends is destroyed nevertheless. */
TEST(destroy_stuck, .seconds = 60)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	gpu_set_register(GPU_STUCK, 0x3c);
	queue_push(&queue, gpu_launch(GPU_SPIN), 1000, 0, 0);
	queue_ring(&queue);
	CHECK(WAIT_FOR(2000, gpu_register(GPU_ENGINE_BUSY) & 0x3c));
	CHECK_OK(try_queue_destroy(fd, queue.args.out_queue));
	gpu_set_register(GPU_STUCK, 0);
	queue = queue_new(fd);
	queue_finish(&queue);
}

/* Pages stay pinned until the device has confirmed that it has forgotten them. */
TEST(pinned_until_acknowledged, .seconds = 30)
{
	struct memory memory = memory_new(ANON, 8 * PAGE);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct registration registration;
	struct task releaser = { .what = task_release, .fd = fd };
	long long pins = pins_held();
	uint64_t done;

	registration = register_memory(fd, memory.addr, memory.length, WRITE);
	queue_push(&queue, GPU_FILL, (uintptr_t)memory.addr, memory.length, 0x22);
	queue_finish(&queue);
	gpu_set_register(GPU_NO_ACK, NO_ACK_INVALIDATE);
	done = gpu_register(GPU_INV_DONE);
	releaser.handle = registration.handle;
	task_begin(&releaser);
	/* less than the driver's patience, which is 2 s */
	for (int i = 0; i < 20; i++, sleep_ms(10)) {
		CHECK_EQ(gpu_register(GPU_INV_DONE), done);
		CHECK_PINS(pins + 8);
	}
	CHECK(!releaser.is_over);
	gpu_set_register(GPU_NO_ACK, 0);
	CHECK_OK(task_end(&releaser));
	CHECK(gpu_register(GPU_INV_DONE) > done);
	CHECK_PINS(pins);
	queue_finish(&queue);
}

static int task_unmap(struct task *task)
{
	return try_unmap(task->fd, task->handle, *(const uint64_t *)task->argument);
}

/* Whether the call is over, or waits where no signal ends that. */
static bool is_over_or_waits(const struct task *task)
{
	char path[64], line[256], state;
	FILE *file;

	if (task->is_over)
		return true;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", task->id);
	file = fopen(path, "r");
	if (!file)
		return true;
	CHECK(fgets(line, sizeof(line), file) && sscanf(line, "%*d (%*[^)]) %c", &state) == 1);
	fclose(file);
	return state == 'D';
}

/* The second of two calls that remove the same mapping waits for the device, too. */
TEST(removed_by_two, .seconds = 30)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct registration registration = register_memory(fd, anon(1), PAGE, WRITE);
	struct task tasks[2];
	int unmapped;

	/* gives the context a VMID: without one there is nothing to forget */
	queue_finish(&queue);
	gpu_set_register(GPU_NO_ACK, NO_ACK_INVALIDATE);
	for (size_t i = 0; i < ARRAY_SIZE(tasks); i++) {
		tasks[i] = (struct task){
			.what = i ? task_release : task_unmap,
			.fd = fd,
			.handle = registration.handle,
			.argument = &registration.device_addr,
		};
		task_begin(&tasks[i]);
		CHECK(WAIT_FOR(1000, is_over_or_waits(&tasks[i])));
	}
	gpu_set_register(GPU_NO_ACK, 0);
	unmapped = task_end(&tasks[0]);
	CHECK(unmapped == 0 || unmapped == -ESTALE);
	CHECK_OK(task_end(&tasks[1]));
	queue_finish(&queue);
}

/*
 * More INVALIDATEs at once than the device can queue: the rest waits, and none is lost. The device
 * confirms nothing before its queue is full and one more is wanted.
 */
TEST(more_to_forget_than_fits, .seconds = 60)
{
	enum { MAPPINGS = 64 };
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct task releasers[2];
	uint64_t bad = gpu_register(GPU_BAD_ACCESSES), done;

	for (size_t i = 0; i < ARRAY_SIZE(releasers); i++) {
		struct registration registration = register_memory(fd, anon(1), PAGE, WRITE);

		releasers[i] = (struct task){
			.what = task_release, .fd = fd, .handle = registration.handle
		};
		for (unsigned int mapping = 1; mapping < MAPPINGS; mapping++)
			map(fd, registration.handle, PINMAP_MAP_WRITE, 0);
	}
	/* gives the context a VMID: without one there is nothing to forget */
	queue_finish(&queue);
	done = gpu_register(GPU_INV_DONE);
	gpu_set_register(GPU_HOLD, MAPPINGS + 1);
	for (size_t i = 0; i < ARRAY_SIZE(releasers); i++)
		task_begin(&releasers[i]);
	for (size_t i = 0; i < ARRAY_SIZE(releasers); i++)
		CHECK_OK(task_end(&releasers[i]));
	CHECK_EQ(gpu_register(GPU_HOLD), 0);
	CHECK(gpu_register(GPU_INV_DONE) >= done + MAPPINGS * ARRAY_SIZE(releasers));
	CHECK_EQ(gpu_register(GPU_BAD_ACCESSES), bad);
}

/*
 * Memory of many contexts is taken from all of them at once, and not from one after the other: the
 * device confirms nothing before all INVALIDATEs are there.
 */
TEST(forgotten_by_all_at_once, .seconds = 60)
{
	enum { CONTEXTS = 8 };
	int fds[CONTEXTS];
	struct gpu_queue queues[CONTEXTS];

	for (int i = 0; i < CONTEXTS; i++) {
		fds[i] = open_gpu();
		queues[i] = queue_new(fds[i]);
	}
	for (int unmapped = 0; unmapped < 2; unmapped++) {
		char *memory = anon(1);
		struct registration registration =
			register_memory(fds[0], memory, PAGE, WRITE | PINMAP_REGISTER_PORTABLE);

		for (int i = 0; i < CONTEXTS; i++) {
			queue_push(&queues[i], GPU_FILL, (uintptr_t)memory, PAGE, 0x22);
			queue_finish(&queues[i]);
		}
		gpu_set_register(GPU_HOLD, CONTEXTS);
		if (unmapped) {
			SYS(munmap(memory, PAGE));
			CHECK_EQ(query_handle(fds[0], registration.handle).out_state,
				 PINMAP_STATE_STALE);
		}
		release(fds[0], registration.handle);
		CHECK_EQ(gpu_register(GPU_HOLD), 0);
	}
}

struct asker {
	int fd;
	uint64_t handle;
	struct pinmap_query query;
	int result;
};

static void *ask_it(void *argument)
{
	struct asker *asker = argument;
	int result = try_query_handle(asker->fd, asker->handle, &asker->query);

	__atomic_store_n(&asker->result, result, __ATOMIC_SEQ_CST);
	return NULL;
}

/* QUERY says that the memory went away once the device has forgotten it, and it is unpinned. */
TEST(stale_when_it_is_over, .seconds = 30)
{
	struct memory memory = memory_new(ANON, 8 * PAGE);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct registration registration;
	long long pins = pins_held();
	struct asker asker;
	pthread_t thread;

	registration = register_memory(fd, memory.addr, memory.length, WRITE);
	queue_push(&queue, GPU_FILL, (uintptr_t)memory.addr, memory.length, 0x22);
	queue_finish(&queue);
	gpu_set_register(GPU_NO_ACK, NO_ACK_INVALIDATE);
	SYS(munmap(memory.addr, memory.length));
	asker = (struct asker){ .fd = fd, .handle = registration.handle, .result = 1 };
	CHECK_EQ(pthread_create(&thread, NULL, ask_it, &asker), 0);
	/* less than the driver's patience, which is 2 s */
	for (int i = 0; i < 10; i++, sleep_ms(10))
		CHECK_EQ(__atomic_load_n(&asker.result, __ATOMIC_SEQ_CST), 1);
	gpu_set_register(GPU_NO_ACK, 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_OK(asker.result);
	CHECK_EQ(asker.query.out_state, PINMAP_STATE_STALE);
	CHECK_PINS(pins);
	release(fd, registration.handle);
}

/* A device that does not confirm that it has forgotten is cut off, and gone. */
TEST(no_acknowledgement, .seconds = 60, .faults = true)
{
	struct memory memory = memory_new(ANON, PAGE);
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct registration registration = register_memory(fd, memory.addr, PAGE, WRITE);
	struct pinmap_event event;
	long long pins = pins_held();

	queue_push(&queue, GPU_FILL, (uintptr_t)memory.addr, PAGE, 0x22);
	queue_finish(&queue);
	gpu_set_register(GPU_NO_ACK, NO_ACK_INVALIDATE);
	CHECK_ERR(EIO, try_release(fd, registration.handle));
	memset(memory.addr, 0x77, PAGE);
	queue_push(&queue, GPU_FILL, (uintptr_t)memory.addr, PAGE, 0x33);
	CHECK(try_queue_finish(&queue, 500) != 0);
	CHECK_EQ(memory.addr[0], 0x77);
	event = next_event(other);
	CHECK_EQ(event.type, PINMAP_EVENT_GONE);
	CHECK(get_info(fd).out_flags & PINMAP_INFO_GONE);
	CHECK_PINS_SOON(pins - 1);
	close(fd);
	close(other);
	gpu_rebind();
	queue = queue_new(open_gpu());
	queue_finish(&queue);
}
