// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "gpu.h"

#include "file.h"
#include "pci.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Offsets in the configuration space, and bits there. */
enum {
	COMMAND = 0x04,
	CAPABILITIES = 0x34,
	EXPRESS = 0x10,
	DEVICE_CONTROL = 8,
	FUNCTION_RESET = 1 << 15
};

/* The PCI address of a test GPU that the driver is bound to, by its number; NULL: there is none. */
static const char *find_gpu(unsigned int number)
{
	static char bdfs[PCI_MOST][16];
	unsigned int count = pci_driven(bdfs);

	for (unsigned int i = 0; i < count; i++)
		if (pci_is(bdfs[i], GPU_VENDOR, GPU_DEVICE) && number-- == 0)
			return bdfs[i];
	return NULL;
}

const char *need_gpu(void)
{
	const char *bdf = find_gpu(0);

	if (!bdf)
		SKIP("no test GPU is bound to " PCI_DRIVER);
	return bdf;
}

int open_gpu(void)
{
	return open_function(need_gpu());
}

const char *need_second_gpu(void)
{
	const char *bdf = find_gpu(1);

	if (!bdf)
		SKIP("there is only one test GPU");
	return bdf;
}

int open_second_gpu(void)
{
	return open_function(need_second_gpu());
}

int try_queue_create(int fd, uint32_t flags, uint32_t packets, struct pinmap_queue_create *args)
{
	*args = (struct pinmap_queue_create){
		.size = sizeof(*args), .flags = flags, .packets = packets
	};
	return try_ioctl(fd, PINMAP_QUEUE_CREATE, args);
}

void *map_at(int fd, uint64_t offset, size_t length)
{
	return SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset));
}

struct gpu_queue queue_new(int fd)
{
	struct gpu_queue queue = { .fd = fd };

	CHECK_OK(try_queue_create(fd, GPU_BOTH, GPU_PACKETS, &queue.args));
	CHECK_EQ(queue.args.out_ring_length, GPU_PACKETS * 64);
	queue.ring = map_at(fd, queue.args.out_ring_offset, queue.args.out_ring_length);
	queue.fences = map_at(fd, queue.args.out_fence_offset, PAGE);
	queue.doorbell = map_at(fd, queue.args.out_doorbell_offset, PAGE);
	return queue;
}

int try_queue_destroy(int fd, uint64_t queue)
{
	struct pinmap_queue_destroy args = { .size = sizeof(args), .queue = queue };

	return try_ioctl(fd, PINMAP_QUEUE_DESTROY, &args);
}

void queue_unmap(const struct gpu_queue *queue)
{
	SYS(munmap(queue->ring, queue->args.out_ring_length));
	SYS(munmap((void *)queue->fences, PAGE));
	SYS(munmap((void *)queue->doorbell, PAGE));
}

void queue_delete(const struct gpu_queue *queue)
{
	CHECK_OK(try_queue_destroy(queue->fd, queue->args.out_queue));
	queue_unmap(queue);
}

int try_queue_notify(int fd, uint64_t queue, uint32_t fence, uint64_t value, int eventfd)
{
	struct pinmap_queue_notify args = {
		.size = sizeof(args),
		.queue = queue,
		.fence = fence,
		.fd = eventfd,
		.value = value,
	};

	return try_ioctl(fd, PINMAP_QUEUE_NOTIFY, &args);
}

void queue_push(struct gpu_queue *queue, uint64_t word0, uint64_t word1, uint64_t word2,
		uint64_t word3)
{
	uint64_t *packet = queue->ring[queue->written++ % GPU_PACKETS];

	memset(packet, 0, 64);
	packet[0] = word0;
	packet[1] = word1;
	packet[2] = word2;
	packet[3] = word3;
}

void queue_push_add(struct gpu_queue *queue, const volatile void *words, uint64_t count,
		    uint64_t value, uint64_t times)
{
	uint64_t *packet = queue->ring[queue->written % GPU_PACKETS];

	queue_push(queue, gpu_launch(GPU_ATOMIC_ADD_U64), (uintptr_t)words, count, value);
	packet[4] = times;
}

void queue_ring(struct gpu_queue *queue)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	queue->doorbell[0] = queue->written;
}

void queue_submit(struct gpu_queue *queue)
{
	queue_push(queue, GPU_FENCE_WRITE, queue->args.out_fence_addr, ++queue->fence, 0);
	queue_push(queue, GPU_INTERRUPT, 0, 0, 0);
	queue_ring(queue);
}

int try_queue_wait(const struct gpu_queue *queue, uint64_t milliseconds)
{
	struct pinmap_queue_wait args = {
		.size = sizeof(args),
		.queue = queue->args.out_queue,
		.value = queue->fence,
		.timeout_ns = milliseconds * 1000000,
	};

	return try_ioctl(queue->fd, PINMAP_QUEUE_WAIT, &args);
}

int try_queue_finish(struct gpu_queue *queue, uint64_t milliseconds)
{
	queue_submit(queue);
	return try_queue_wait(queue, milliseconds);
}

void queue_finish_at(const char *file, int line, struct gpu_queue *queue, uint64_t milliseconds)
{
	struct pinmap_queue_query query = { .size = sizeof(query), .queue = queue->args.out_queue };
	int result = try_queue_finish(queue, milliseconds);

	if (!result)
		return;
	if (try_ioctl(queue->fd, PINMAP_QUEUE_QUERY, &query))
		test_fail(file, line, "%s, and the queue cannot be asked", error_name(-result));
	test_fail(file, line, "%s: state %u, code %u, reason %u, access %u at %#llx",
		  error_name(-result), query.out_state, query.out_code, query.out_reason,
		  query.out_access, (unsigned long long)query.out_addr);
}

int try_manage(int fd, uint32_t flags, const void *addr, size_t length, struct pinmap_manage *args)
{
	memset(args, 0xaa, sizeof(*args));
	args->size = sizeof(*args);
	args->flags = flags;
	args->addr = (uintptr_t)addr;
	args->length = length;
	return try_ioctl(fd, PINMAP_MANAGE, args);
}

int try_prefetch(int fd, uint32_t flags, const void *addr, size_t length,
		 struct pinmap_prefetch *args)
{
	memset(args, 0xaa, sizeof(*args));
	args->size = sizeof(*args);
	args->flags = flags;
	args->addr = (uintptr_t)addr;
	args->length = length;
	return try_ioctl(fd, PINMAP_PREFETCH, args);
}

uint64_t gpu_launch(enum gpu_kernel kernel)
{
	return GPU_LAUNCH | (uint64_t)kernel << 32;
}

struct pinmap_queue_query queue_query(const struct gpu_queue *queue)
{
	struct pinmap_queue_query args = { .size = sizeof(args), .queue = queue->args.out_queue };

	CHECK_OK(try_ioctl(queue->fd, PINMAP_QUEUE_QUERY, &args));
	return args;
}

uint32_t queue_stopped(const struct gpu_queue *queue)
{
	if (!WAIT_FOR(10000, queue_query(queue).out_state != PINMAP_QUEUE_READY))
		FAIL("the queue has not stopped");
	return queue_query(queue).out_code;
}

struct gpu_memory gpu_alloc(int fd, uint32_t flags, size_t length)
{
	struct gpu_memory memory;

	need_kind(flags);
	CHECK_OK(try_alloc(fd, flags, length, &memory.args));
	memory.addr = map_at(fd, memory.args.out_offset, length);
	CHECK_EQ(map(fd, memory.args.out_handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED,
		     (uintptr_t)memory.addr),
		 (uintptr_t)memory.addr);
	return memory;
}

static volatile uint64_t *map_registers(const char *bdf)
{
	int fd = SYS(open(pci_path(bdf, "resource0"), O_RDWR | O_CLOEXEC));
	void *bar = SYS(mmap(NULL, 0x10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));

	close(fd);
	return bar;
}

static volatile uint64_t *registers(void)
{
	static volatile uint64_t *bar;

	if (!bar)
		bar = map_registers(need_gpu());
	return bar;
}

static volatile uint64_t *second_registers(void)
{
	static volatile uint64_t *bar;

	if (!bar)
		bar = map_registers(need_second_gpu());
	return bar;
}

void gpu_fill(struct gpu_queue *queue, uint64_t memory, size_t length, uint8_t byte)
{
	queue_push(queue, GPU_FILL, memory, length, byte);
	queue_finish(queue);
}

void gpu_copy(struct gpu_queue *queue, uint64_t to, uint64_t from, size_t length)
{
	enum { MOST = 64 << 20 };

	for (size_t at = 0; at < length; at += MOST)
		queue_push(queue, GPU_COPY, from + at, to + at,
			   length - at < MOST ? length - at : MOST);
	queue_finish(queue);
}

void gpu_fill_pages(struct gpu_queue *queue, uint64_t memory, size_t pages, uint64_t first)
{
	for (size_t page = 0; page < pages; page++) {
		queue_push(queue, GPU_FILL | 3 << 8, memory + page * PAGE, PAGE, first + page);
		if (page % (GPU_PACKETS / 2) == GPU_PACKETS / 2 - 1)
			queue_finish(queue);
	}
	queue_finish(queue);
}

void check_pages(const void *memory, size_t pages, uint64_t first)
{
	const uint64_t *words = memory;

	for (size_t i = 0; i < pages * PAGE / 8; i++)
		CHECK_EQ(words[i], first + i / (PAGE / 8));
}

uint64_t vram_free(int fd)
{
	struct pinmap_gpu_info info = { .size = sizeof(info) };

	CHECK_OK(try_ioctl(fd, PINMAP_GPU_INFO, &info));
	return info.out_vram_free;
}

uint64_t gpu_register(enum gpu_register offset)
{
	return registers()[offset / 8];
}

void gpu_set_register(enum gpu_register offset, uint64_t value)
{
	registers()[offset / 8] = value;
	(void)registers()[offset / 8];
}

uint64_t second_gpu_register(enum gpu_register offset)
{
	return second_registers()[offset / 8];
}

void second_gpu_set_register(enum gpu_register offset, uint64_t value)
{
	second_registers()[offset / 8] = value;
	(void)second_registers()[offset / 8];
}

void gpu_rebind(void)
{
	const char *bdf = need_gpu();

	pci_unbind(bdf);
	pci_bind(bdf);
}

void gpu_reset_behind(void)
{
	int config = SYS(open(pci_path(need_gpu(), "config"), O_RDWR | O_CLOEXEC));
	uint8_t at = CAPABILITIES, id = 0;
	uint16_t control, command;

	while (id != EXPRESS) {
		CHECK_EQ(pread(config, &at, 1, id ? at + 1 : at), 1);
		CHECK(at != 0);
		CHECK_EQ(pread(config, &id, 1, at), 1);
	}
	CHECK_EQ(pread(config, &control, 2, at + DEVICE_CONTROL), 2);
	control |= FUNCTION_RESET;
	CHECK_EQ(pread(config, &command, 2, COMMAND), 2);
	CHECK_EQ(pwrite(config, &control, 2, at + DEVICE_CONTROL), 2);
	CHECK_EQ(pwrite(config, &command, 2, COMMAND), 2);
	close(config);
	CHECK(WAIT_FOR(5000, gpu_register(GPU_RESET) == 0));
}
