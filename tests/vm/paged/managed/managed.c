// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "managed.h"

#include "edu.h"
#include "iommu.h"
#include "memory.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

char *small_blocks(size_t count)
{
	char *memory = address_space(count * HUGE, HUGE);

	SYS(mprotect(memory, count * HUGE, PROT_READ | PROT_WRITE));
	SYS(madvise(memory, count * HUGE, MADV_NOHUGEPAGE));
	return memory;
}

static uint64_t manage_with(int fd, uint32_t flags, const void *addr, size_t length)
{
	struct pinmap_manage args;

	if (!(get_info(fd).out_flags & PINMAP_INFO_MANAGED))
		SKIP("the kernel lets no driver follow the memory of programs");
	CHECK_OK(try_manage(fd, flags, addr, length, &args));
	return args.out_handle;
}

uint64_t manage(int fd, const void *addr, size_t length)
{
	return manage_with(fd, 0, addr, length);
}

uint64_t manage_all(int fd)
{
	return manage_with(fd, PINMAP_MANAGE_ALL, NULL, 0);
}

int open_managed(void)
{
	int fd = open_gpu();

	manage_all(fd);
	return fd;
}

uint64_t manage_host(int fd, const void *addr, size_t length)
{
	return manage_with(fd, PINMAP_MANAGE_HOST, addr, length);
}

uint64_t manage_all_host(int fd)
{
	return manage_with(fd, PINMAP_MANAGE_ALL | PINMAP_MANAGE_HOST, NULL, 0);
}

int try_fill(struct gpu_queue *queue, const void *addr, size_t length, unsigned char byte)
{
	queue_push(queue, GPU_FILL, (uintptr_t)addr, length, byte);
	return try_queue_finish(queue, slow(30000));
}

int try_copy(struct gpu_queue *queue, const void *from, void *to, size_t length)
{
	queue_push(queue, GPU_COPY, (uintptr_t)from, (uintptr_t)to, length);
	return try_queue_finish(queue, slow(30000));
}

struct pinmap_queue_query check_stopped(const char *file, int line, const struct gpu_queue *queue,
					const void *addr, uint32_t access, uint32_t reason)
{
	struct pinmap_queue_query query;

	queue_stopped(queue);
	query = queue_query(queue);
	if (query.out_state != PINMAP_QUEUE_FAULTED)
		test_fail(file, line, "state %u, code %u instead of a fault", query.out_state,
			  query.out_code);
	if (query.out_reason != reason || query.out_addr != (uintptr_t)addr ||
	    query.out_access != access)
		test_fail(file, line,
			  "access %u at %#llx fails for reason %u instead of %u at %p for %u",
			  query.out_access, (unsigned long long)query.out_addr, query.out_reason,
			  access, addr, reason);
	return query;
}

struct pinmap_queue_query check_refused(const char *file, int line, int fd, const void *addr,
					uint32_t access, uint32_t reason)
{
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory result = { 0 };
	struct pinmap_queue_query query;
	int error;

	if (access == PINMAP_ACCESS_WRITE) {
		error = try_fill(&queue, addr, 8, 0xee);
	} else {
		result = gpu_alloc(fd, 0, PAGE);
		error = try_copy(&queue, addr, result.addr, 8);
	}
	if (error != -EIO)
		test_fail(file, line, "access %u at %p: %s instead of reason %u", access, addr,
			  error_name(-error), reason);
	query = check_stopped(file, line, &queue, addr, access, reason);
	if (reason == PINMAP_FAULT_HOLE || reason == PINMAP_FAULT_UNMAPPED ||
	    reason == PINMAP_FAULT_EXITED) {
		if (query.out_vma_end)
			test_fail(file, line, "nothing is mapped at %p, but an area is told", addr);
	} else if (query.out_vma_start > (uintptr_t)addr ||
		   query.out_vma_end <= (uintptr_t)addr) {
		test_fail(file, line, "%p is not in the area %#llx to %#llx", addr,
			  (unsigned long long)query.out_vma_start,
			  (unsigned long long)query.out_vma_end);
	}
	queue_delete(&queue);
	if (result.addr) {
		release(fd, result.args.out_handle);
		munmap(result.addr, PAGE);
	}
	return query;
}

int try_walk(int fd, const void *addr, uint32_t *flags)
{
	struct pinmap_gpu_walk args = { .size = sizeof(args), .addr = (uintptr_t)addr };
	int error = try_ioctl(fd, PINMAP_GPU_WALK, &args);

	*flags = args.out_flags;
	return error;
}

struct pinmap_get_totals totals(int fd, uint32_t flags)
{
	struct pinmap_get_totals totals = { .size = sizeof(totals), .flags = flags };

	CHECK_OK(try_ioctl(fd, PINMAP_GET_TOTALS, &totals));
	return totals;
}

void wait_for_ever(struct gpu_queue *queue)
{
	(void)queue;
	for (;;)
		pause();
}

void close_all(struct gpu_queue *queue)
{
	queue_unmap(queue);
	SYS(close(queue->fd));
	wait_for_ever(queue);
}

unsigned int contexts(void)
{
	int fd = open_gpu();
	unsigned int number = totals(fd, 0).out_contexts;

	close(fd);
	return number;
}

void check_works(void)
{
	char *memory = anon(4);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	fill(&queue, memory, 4 * PAGE, 0x51);
	CHECK(bytes_are(memory, 4 * PAGE, 0x51));
	queue_unmap(&queue);
	close(fd);
}

size_t bus_reach(bool all)
{
	const struct iommu_table *table = iommu_read(need_gpu());
	size_t bytes = 0;

	if (!table)
		SKIP("the IOMMU's driver does not show its page table");
	for (size_t i = 0; i < table->count; i++)
		if (all || table->entries[i].writable)
			bytes += table->entries[i].size;
	return bytes;
}
