// SPDX-License-Identifier: MIT OR Apache-2.0
/* Programs of RISC-V instructions on the device (section 17 of its manual). */
#define _GNU_SOURCE
#include "gpu.h"

#include "memory.h"
#include "pins.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS = 64 };

/* Where the functions are in the code, in bytes. */
enum { SAXPY = 0x00, STRIDED = 0x28, COUNT = 0x50 };

static const uint32_t code[] = {
	/* saxpy: y[i] = a x[i] + y[i] where i, the number of the thread, is less than a0 */
	0xcce022f3, /* csrr t0, 0xcce */
	0x02a2f063, /* bgeu t0, a0, 1f */
	0x00229293, /* slli t0, t0, 2 */
	0x005585b3, /* add a1, a1, t0 */
	0x00560633, /* add a2, a2, t0 */
	0x0005a587, /* flw fa1, (a1) */
	0x00062607, /* flw fa2, (a2) */
	0x60b575c3, /* fmadd.s fa1, fa0, fa1, fa2 */
	0x00b62027, /* fsw fa1, (a2) */
	0x00008067, /* 1: ret */
	/* strided: increments the words of a1 bytes of its own behind a0 */
	0xccc022f3, /* csrr t0, 0xccc */
	0x02b282b3, /* mul t0, t0, a1 */
	0x00550533, /* add a0, a0, t0 */
	0x00052303, /* 1: lw t1, (a0) */
	0x00130313, /* addi t1, t1, 1 */
	0x00652023, /* sw t1, (a0) */
	0x00450513, /* addi a0, a0, 4 */
	0xffc58593, /* addi a1, a1, -4 */
	0xfe0596e3, /* bnez a1, 1b */
	0x00008067, /* ret */
	/* count: adds a1 to the word at a0 */
	0x00b5302f, /* amoadd.d zero, a1, (a0) */
	0x00008067, /* ret */
};

/* A descriptor, its arguments, and its save area. */
struct launch {
	uint64_t flags, entry;
	uint32_t grid[3], block[3];
	uint64_t first, count, arguments, arguments_bytes, stacks, stack_bytes;
	uint64_t shared, shared_bytes, gp, ring, save, save_bytes, unused[7];
	uint64_t code, pc, value, thread, block_number, instructions, blocks, more;
	uint64_t a[8];
	double fa[8];
	char state[64 + 576 * THREADS] __attribute__((aligned(64)));
} __attribute__((aligned(256)));

/* Whether each access to host memory goes through QEMU, which takes a thousand times as long. */
static bool by_messages(void)
{
	return gpu_register(GPU_FEATURES) & 0x10;
}

static void need_programs(int fd)
{
	if (!(get_info(fd).out_flags & PINMAP_INFO_PROGRAMS))
		SKIP("the device executes no programs");
}

/* Loads the code; returns its address on the device. */
static uint64_t load(int fd)
{
	struct pinmap_alloc args;

	need_programs(fd);
	CHECK_OK(try_alloc(fd, 0, PAGE, &args));
	memcpy(alloc_view(fd, &args), code, sizeof(code));
	return map(fd, args.out_handle, PINMAP_MAP_EXECUTE, 0);
}

/* Makes a launch of threads, by blocks of 64. */
static struct launch *prepare(int fd, uint64_t entry, size_t threads)
{
	struct launch *launch = (void *)gpu_alloc(fd, 0, 16 * PAGE).addr;

	CHECK(sizeof(*launch) <= 16 * PAGE);
	launch->entry = entry;
	launch->count = (threads + THREADS - 1) / THREADS;
	for (int i = 0; i < 3; i++) {
		launch->grid[i] = i ? 1 : launch->count;
		launch->block[i] = i ? 1 : THREADS;
	}
	launch->arguments = (uintptr_t)launch->a;
	launch->arguments_bytes = 128;
	launch->save = (uintptr_t)launch->state;
	launch->save_bytes = sizeof(launch->state);
	return launch;
}

static void push(struct gpu_queue *queue, const struct launch *launch)
{
	queue_push(queue, gpu_launch(GPU_PROGRAM), (uintptr_t)launch, 0, 0);
}

static struct launch *prepare_saxpy(int fd, float *x, float *y, size_t count)
{
	struct launch *launch = prepare(fd, load(fd) + SAXPY, count);
	uint64_t boxed = 0xffffffff40000000; /* 2.0 */

	launch->a[0] = count;
	launch->a[1] = (uintptr_t)x;
	launch->a[2] = (uintptr_t)y;
	memcpy(launch->fa, &boxed, sizeof(boxed));
	for (size_t i = 0; i < count; i++) {
		x[i] = i % 1000;
		y[i] = i % 7;
	}
	return launch;
}

static void run_saxpy(int fd, float *x, float *y, size_t count)
{
	struct gpu_queue queue = queue_new(fd);
	struct launch *launch = prepare_saxpy(fd, x, y, count);

	push(&queue, launch);
	queue_finish_within(&queue, slow(60000));
	for (size_t i = 0; i < count; i++)
		CHECK(y[i] == 2 * (i % 1000) + i % 7);
	CHECK_EQ(launch->code, 0);
	CHECK_EQ(launch->blocks, launch->count);
	queue_delete(&queue);
}

static void manage_all(int fd)
{
	struct pinmap_manage args;

	if (!(get_info(fd).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel lets no driver follow the memory of programs");
	CHECK_OK(try_manage(fd, PINMAP_MANAGE_ALL, NULL, 0, &args));
}

/* A program works on memory of each kind, at the addresses of the CPU. */
TEST(registered_and_allocated)
{
	enum { BYTES = 64 * PAGE };
	size_t counted = by_messages() ? 700 : 50000;
	unsigned int pins = pins_held();
	int fd = open_gpu();
	char *x = anon(64), *y = anon(64);
	struct registration registrations[] = {
		register_memory(fd, x, BYTES, WRITE),
		register_memory(fd, y, BYTES, WRITE),
	};

	run_saxpy(fd, (float *)x, (float *)y, counted);
	for (int i = 0; i < 2; i++)
		release(fd, registrations[i].handle);
	x = gpu_alloc(fd, PINMAP_ALLOC_VRAM, BYTES).addr;
	y = gpu_alloc(fd, 0, BYTES).addr;
	run_saxpy(fd, (float *)x, (float *)y, counted);
	CHECK_PINS(pins);
}

/* Memory that nobody told the device about comes by faults, at the instructions that need it. */
TEST(managed_by_faults)
{
	size_t counted = by_messages() ? 4000 : 300000;
	int fd = open_gpu();
	float *x = malloc(4 * counted), *y = malloc(4 * counted);
	uint64_t before = gpu_register(GPU_FAULTS);

	CHECK(x && y);
	manage_all(fd);
	run_saxpy(fd, x, y, counted);
	CHECK(gpu_register(GPU_FAULTS) > before);
}

/* A program that works on three times the VRAM that there is comes to its end. */
TEST(oversubscribed, .seconds = 200)
{
	enum { ROOM = 8 << 20, WORK = 3 * ROOM };
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	unsigned int *memory = (void *)address_space(WORK, HUGE);
	uint64_t room = vram_free(other);
	struct launch *launch;

	if (by_messages())
		SKIP("it takes too long by messages");
	SYS(mprotect(memory, WORK, PROT_READ | PROT_WRITE));
	manage_all(fd);
	gpu_alloc(other, PINMAP_ALLOC_VRAM, (room - ROOM) & ~(uint64_t)(HUGE - 1));
	launch = prepare(fd, load(fd) + STRIDED, THREADS);
	launch->a[0] = (uintptr_t)memory;
	launch->a[1] = WORK / THREADS;
	for (unsigned int i = 0; i < 2; i++)
		push(&queue, launch);
	queue_finish_within(&queue, slow(120000));
	for (size_t i = 0; i < WORK / sizeof(*memory); i++)
		CHECK_EQ(memory[i], 2);
}

/* An atomic instruction has its page move to where it can be made. */
TEST(atomic_on_managed)
{
	enum { BLOCKS = 50 };
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	volatile uint64_t *word = (void *)anon(1);
	struct launch *launch;

	*word = 1000;
	manage_all(fd);
	launch = prepare(fd, load(fd) + COUNT, BLOCKS * THREADS);
	launch->a[0] = (uintptr_t)word;
	launch->a[1] = 3;
	for (unsigned int i = 0; i < 10; i++) {
		push(&queue, launch);
		queue_finish(&queue);
		CHECK_EQ(*word, 1000 + (i + 1) * 3 * BLOCKS * THREADS);
	}
}

/*
 * More queues than the device has slots, whose programs fault again and again: they leave their
 * slots while they wait for memory, and go on from their save areas.
 */
TEST(more_queues_than_slots, .seconds = 200)
{
	enum { QUEUES = 40, EACH = 64 * PAGE };
	size_t used = by_messages() ? PAGE : EACH;
	int fd = open_gpu();
	struct gpu_queue queues[QUEUES];
	unsigned int *memory = (void *)anon(QUEUES * EACH / PAGE);
	uint64_t entry = load(fd) + STRIDED, before = gpu_register(GPU_UNBINDS);

	memset(memory, 0, QUEUES * EACH);
	manage_all(fd);
	for (int i = 0; i < QUEUES; i++) {
		struct launch *launch = prepare(fd, entry, THREADS);

		queues[i] = queue_new(fd);
		launch->a[0] = (uintptr_t)memory + i * EACH;
		launch->a[1] = used / THREADS;
		push(&queues[i], launch);
		push(&queues[i], launch);
	}
	for (int i = 0; i < QUEUES; i++)
		queue_submit(&queues[i]);
	for (int i = 0; i < QUEUES; i++)
		queue_finish_within(&queues[i], slow(60000));
	for (size_t i = 0; i < QUEUES * EACH / sizeof(*memory); i++)
		CHECK_EQ(memory[i], i * sizeof(*memory) % EACH < used ? 2 : 0);
	diag("%llu times a queue left its slot",
	     (unsigned long long)(gpu_register(GPU_UNBINDS) - before));
}

/* Code runs only where it was mapped for that, and cannot be written there. */
TEST(execute_is_a_right_of_its_own)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd), other = queue_new(fd);
	struct gpu_memory memory = gpu_alloc(fd, 0, PAGE);
	struct launch *launch = prepare(fd, (uintptr_t)memory.addr + COUNT, 1);
	struct pinmap_queue_query query;
	uint64_t addr = 0, there;
	struct pinmap_fail fail;

	need_programs(fd);
	memcpy(memory.addr, code, sizeof(code));
	push(&queue, launch);
	queue_submit(&queue);
	CHECK_EQ(queue_stopped(&queue), GPU_PERMISSION);
	query = queue_query(&queue);
	CHECK_EQ(query.out_access, PINMAP_ACCESS_FETCH);
	CHECK_EQ(query.out_addr, launch->entry);
	CHECK_EQ(launch->pc, launch->entry);
	CHECK_ERR(EINVAL, try_map(fd, memory.args.out_handle, PINMAP_MAP_EXECUTE | PINMAP_MAP_WRITE,
				  &addr, &fail));
	there = map(fd, memory.args.out_handle, PINMAP_MAP_EXECUTE, 0);
	queue_push(&other, GPU_FILL, there, 8, 0);
	queue_submit(&other);
	CHECK_EQ(queue_stopped(&other), GPU_PERMISSION);
	query = queue_query(&other);
	CHECK_EQ(query.out_access, PINMAP_ACCESS_WRITE);
	CHECK(!memcmp(memory.addr, code, sizeof(code)));
	/* The same pages, where they may be executed. */
	queue = queue_new(fd);
	launch->entry = there + COUNT;
	launch->a[0] = (uintptr_t)gpu_alloc(fd, 0, PAGE).addr;
	launch->a[1] = 1;
	push(&queue, launch);
	queue_finish(&queue);
	CHECK_EQ(*(uint64_t *)launch->a[0], THREADS);
}

/* A device that executes no programs is told apart before a launch, and refuses one. */
TEST(none_without_the_feature, .faults = true)
{
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory memory = gpu_alloc(fd, 0, PAGE);
	struct launch *launch = prepare(fd, (uintptr_t)memory.addr, 1);
	uint64_t addr = 0;
	struct pinmap_fail fail;

	if (get_info(fd).out_flags & PINMAP_INFO_PROGRAMS)
		SKIP("the device executes programs: scripts/vm --gpu --no-programs");
	CHECK_ERR(EOPNOTSUPP, try_map(fd, memory.args.out_handle, PINMAP_MAP_EXECUTE, &addr,
				      &fail));
	push(&queue, launch);
	queue_submit(&queue);
	CHECK_EQ(queue_stopped(&queue), GPU_BAD_KERNEL);
	CHECK_EQ(launch->instructions, 0);
}
