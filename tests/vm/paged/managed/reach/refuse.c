// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory that a device cannot have: the reason is told, and nothing else is affected. */
#define _GNU_SOURCE
#include "../managed.h"
#include "../windows/window.h"

#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"
#include "uffd.h"

#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

static char text[] = "constant";

TEST(secret_memory)
{
	struct memory memory = memory_new(SECRET, 4 * PAGE);
	int fd = open_managed();

	CHECK_READ_REFUSED(fd, memory.addr + PAGE, SECRET);
	CHECK_WRITE_REFUSED(fd, memory.addr + PAGE, SECRET);
	CHECK(bytes_are(memory.addr, 4 * PAGE, 0x11));
}

/* The registers of a function, mapped by sysfs. */
TEST(bar)
{
	int fd = open_managed();
	int bar = SYS(open(pci_path(need_gpu(), "resource0"), O_RDWR | O_CLOEXEC));
	char *registers = SYS(mmap(NULL, 0x10000, PROT_READ | PROT_WRITE, MAP_SHARED, bar, 0));

	CHECK_READ_REFUSED(fd, registers, DEVICE);
	CHECK_WRITE_REFUSED(fd, registers + 0xa000, DEVICE);
}

/* Mappings of the driver: a doorbell, and memory of the device that another context has. */
TEST(mappings_of_the_driver)
{
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(fd);
	struct gpu_memory vram = gpu_alloc(other, PINMAP_ALLOC_VRAM, PAGE);

	manage_all(fd);
	CHECK_WRITE_REFUSED(fd, (const char *)queue.doorbell, DEVICE);
	vram.addr[0] = 1;
	CHECK_READ_REFUSED(fd, vram.addr, DEVICE);
	queue_finish(&queue);
}

TEST(raw_memory)
{
	int fd = open_gpu(), memory = open("/dev/mem", O_RDONLY | O_CLOEXEC);
	char *bios;

	if (memory < 0)
		SKIP("the kernel has no /dev/mem");
	bios = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, memory, 0xf0000);
	if (bios == MAP_FAILED)
		SKIP("the kernel lets nobody map /dev/mem");
	manage_all(fd);
	CHECK_READ_REFUSED(fd, bios, DEVICE);
}

TEST(write_to_the_programs_text)
{
	struct gpu_memory result;
	struct pinmap_queue_query query;
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	const char *code = (const char *)((uintptr_t)try_manage & ~(PAGE - 1));

	query = CHECK_WRITE_REFUSED(fd, code, PERMISSION);
	CHECK_EQ(query.out_vma_flags, PINMAP_VMA_READ | PINMAP_VMA_EXEC);
	result = gpu_alloc(fd, 0, PAGE);
	copy(&queue, code, result.addr, PAGE);
	CHECK(!memcmp(code, result.addr, PAGE));
	/* data are copied from the file when they are written */
	fill(&queue, text, 1, 'C');
	CHECK(!strcmp(text, "Constant"));
}

/* HMM knows no memory that can be written and not read, nor does the device ask for less. */
TEST(write_only)
{
	char *memory = anon(2);
	struct gpu_queue queue;
	int fd = open_gpu();

	SYS(mprotect(memory, PAGE, PROT_WRITE));
	manage_all(fd);
	queue = queue_new(fd);
	fill(&queue, memory + PAGE, PAGE, 0x22);
	CHECK_READ_REFUSED(fd, memory, PERMISSION);
}

TEST(behind_the_end_of_a_file)
{
	int file = new_memfd(3 * PAGE, 0), fd = open_gpu();
	char *memory = SYS(mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
	struct gpu_queue queue = queue_new(fd);

	manage_all(fd);
	/* three pages are filled, and no more */
	CHECK_ERR(EIO, try_fill(&queue, memory, 8 * PAGE, 0x33));
	CHECK_STOPPED(&queue, memory + 3 * PAGE, PINMAP_ACCESS_WRITE, PINMAP_FAULT_FILE);
	CHECK(bytes_are(memory, 3 * PAGE, 0x33));
	CHECK_READ_REFUSED(fd, memory + 7 * PAGE, FILE);
}

/* Pages that userfaultfd serves in user mode alone. */
TEST(userfaultfd_of_user_mode)
{
	char *memory = SYS(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	int fd = open_gpu(), uffd = uffd_new_user_mode(memory, 4 * PAGE);

	manage_all(fd);
	CHECK_READ_REFUSED(fd, memory + PAGE, USERFAULTFD);
	CHECK_WRITE_REFUSED(fd, memory + PAGE, USERFAULTFD);
	CHECK(!uffd_touched(uffd));
}

/* The guard below a stack is what it is for the program, whose stack does not grow for a device. */
TEST(below_a_stack)
{
	char *memory = SYS(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN, -1, 0));
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	fill(&queue, memory, PAGE, 0x44);
	CHECK(bytes_are(memory, PAGE, 0x44));
	CHECK_WRITE_REFUSED(fd, memory - PAGE, HOLE);
}

/* Addresses that no program has. */
TEST(no_addresses_of_a_program)
{
	int fd = open_managed();

	CHECK_READ_REFUSED(fd, (char *)PAGE, HOLE);
	CHECK_REFUSED(fd, (char *)((1ULL << 47) - 2 * PAGE), PINMAP_ACCESS_WRITE,
		      PINMAP_FAULT_HOLE);
}

/*
 * Addresses of the driver, which a program may have on arm64, are not managed; registered memory
 * there is reached at another address. What the driver has there stays as it is.
 */
TEST(addresses_of_the_driver)
{
	/* the driver takes the lowest addresses */
	char *memory = (char *)(GPU_MIDDLE + (1ULL << 39));
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);
	struct registration registration;

	if (GPU_END == GPU_MIDDLE)
		SKIP("no program has these addresses");
	SYS(mmap(memory, 2 * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
	SYS(mmap((void *)GPU_MIDDLE, PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
	memset(memory, 0x11, 2 * PAGE);
	CHECK_WRITE_REFUSED(fd, memory, UNMAPPED);
	CHECK_WRITE_REFUSED(fd, (char *)GPU_MIDDLE, UNMAPPED);
	CHECK(bytes_are(memory, 2 * PAGE, 0x11));
	registration = register_memory(fd, memory, 2 * PAGE, WRITE);
	CHECK(registration.device_addr < GPU_MIDDLE);
	fill(&queue, (void *)registration.device_addr, 2 * PAGE, 0x22);
	CHECK(bytes_are(memory, 2 * PAGE, 0x22));
	release(fd, registration.handle);
	/* on either side there is nothing special */
	memory = SYS(mmap((void *)(GPU_MIDDLE - HUGE), PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
	fill(&queue, memory, PAGE, 0x33);
	CHECK(bytes_are(memory, PAGE, 0x33));
	memory = SYS(mmap((void *)(GPU_MIDDLE + (1ULL << 40)), PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0));
	fill(&queue, memory, PAGE, 0x44);
	CHECK(bytes_are(memory, PAGE, 0x44));
	queue_delete(&queue);
}

TEST(outside_of_the_range)
{
	char *memory = anon(8);
	int fd = open_gpu();
	struct gpu_queue queue = queue_new(fd);

	manage(fd, memory + 2 * PAGE, 4 * PAGE);
	fill(&queue, memory + 2 * PAGE, 4 * PAGE, 0x55);
	CHECK_WRITE_REFUSED(fd, memory + PAGE, UNMAPPED);
	CHECK_WRITE_REFUSED(fd, memory + 6 * PAGE, UNMAPPED);
	CHECK(bytes_are(memory, 2 * PAGE, 0x11));
	CHECK(bytes_are(memory + 2 * PAGE, 4 * PAGE, 0x55));
	CHECK(bytes_are(memory + 6 * PAGE, 2 * PAGE, 0x11));
}

/* A registration for reading is not written to, though the program could. */
TEST(registered_for_reading)
{
	char *memory = anon(4);
	int fd = open_managed();
	struct registration registration;
	struct gpu_queue queue = queue_new(fd);

	registration = register_memory(fd, memory, 4 * PAGE, 0);
	CHECK_WRITE_REFUSED(fd, memory, UNMAPPED);
	release(fd, registration.handle);
	fill(&queue, memory, 4 * PAGE, 0x66);
	CHECK(bytes_are(memory, 4 * PAGE, 0x66));
}

/* Nor where a window was before. */
TEST(registered_for_reading_after_a_window)
{
	char *memory = small_blocks(1);
	int fd = open_gpu();
	struct registration registration;

	memset(memory, 0x11, HUGE);
	manage_all(fd);
	/* A window at addresses that the driver has kept from before gives them back quickly. */
	release(fd, register_memory(fd, memory, HUGE, 0).handle);
	release(fd, window(fd, memory, HUGE));
	registration = register_memory(fd, memory, HUGE, 0);
	CHECK_EQ(registration.device_addr, (uintptr_t)memory);
	CHECK_WRITE_REFUSED(fd, memory + HUGE / 2, UNMAPPED);
	CHECK(bytes_are(memory, HUGE, 0x11));
}

static void live_on(int signal)
{
	(void)signal;
}

TEST(poisoned_page)
{
	char *memory = anon(4);
	int fd = open_managed();
	struct gpu_queue queue = queue_new(fd);

	fill(&queue, memory, 4 * PAGE, 0x77);
	/* the process is told, too */
	signal(SIGBUS, live_on);
	if (madvise(memory + PAGE, PAGE, MADV_HWPOISON))
		SKIP("the kernel cannot poison a page: %s", error_name(errno));
	CHECK_READ_REFUSED(fd, memory + PAGE, POISON);
	fill(&queue, memory + 2 * PAGE, PAGE, 0x78);
	CHECK_EQ(memory[2 * PAGE], 0x78);
	CHECK_EQ(memory[0], 0x77);
}

/* Other streams of the context, and other contexts, go on after a failure; events tell. */
TEST(others_go_on)
{
	char *memory = anon(8), *hole = NOWHERE;
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue bad = queue_new(fd), good = queue_new(fd), far = queue_new(other);
	struct pinmap_event event;

	manage_all(fd);
	manage_all(other);
	queue_push(&good, gpu_launch(GPU_SPIN), 20000000, 0, 0);
	queue_push(&good, GPU_FILL, (uintptr_t)memory, PAGE, 0x81);
	queue_submit(&good);
	queue_push(&bad, GPU_FILL, (uintptr_t)memory + PAGE, PAGE, 0x82);
	queue_push(&bad, GPU_FILL, (uintptr_t)hole, PAGE, 0x83);
	queue_push(&bad, GPU_FILL, (uintptr_t)memory + 2 * PAGE, PAGE, 0x84);
	CHECK_ERR(EIO, try_queue_finish(&bad, slow(20000)));
	CHECK_STOPPED(&bad, hole, PINMAP_ACCESS_WRITE, PINMAP_FAULT_HOLE);
	CHECK_EQ(queue_query(&bad).out_index, 1);
	event = next_event(fd);
	CHECK_EQ(event.type, PINMAP_EVENT_FAULT);
	CHECK_EQ(event.handle, bad.args.out_queue);
	CHECK_EQ(event.addr, (uintptr_t)hole);
	CHECK_EQ(event.access, PINMAP_ACCESS_WRITE);
	CHECK_NO_EVENT(other);
	CHECK_OK(try_queue_wait(&good, slow(20000)));
	fill(&far, memory + 3 * PAGE, PAGE, 0x85);
	CHECK(bytes_are(memory, PAGE, 0x81));
	CHECK(bytes_are(memory + PAGE, PAGE, 0x82));
	CHECK(bytes_are(memory + 2 * PAGE, PAGE, 0x11));
	CHECK(bytes_are(memory + 3 * PAGE, PAGE, 0x85));
	/* the context can have a new queue in place of the one that stopped */
	CHECK_OK(try_queue_destroy(fd, bad.args.out_queue));
	bad = queue_new(fd);
	fill(&bad, memory + 2 * PAGE, PAGE, 0x86);
	CHECK(bytes_are(memory + 2 * PAGE, PAGE, 0x86));
}

static char *attribute(const char *name)
{
	static char path[96];
	struct pci_device device;

	snprintf(device.bdf, sizeof(device.bdf), "%s", need_gpu());
	pci_look(&device);
	snprintf(path, sizeof(path), "/sys/class/misc/%s/%s", strrchr(device.node, '/') + 1, name);
	return path;
}

/* A context whose queues stop by faults again and again is held off, and nobody else. */
TEST(held_off)
{
	char *memory = anon(4), *hole = NOWHERE;
	long long before = file_number(attribute("held_off"), -1);
	long long limit = file_number(attribute("fault_limit"), -1);
	long long failed = file_number(attribute("faults_failed"), -1);
	int fd = open_gpu(), other = open_gpu();
	struct gpu_queue queue = queue_new(other);
	char number[24];

	CHECK(before >= 0 && limit >= 0 && failed >= 0);
	manage_all(fd);
	manage_all(other);
	file_write(attribute("fault_limit"), "3");
	for (int i = 0; i < 6; i++)
		CHECK_WRITE_REFUSED(fd, hole, HOLE);
	snprintf(number, sizeof(number), "%lld", limit);
	file_write(attribute("fault_limit"), number);
	CHECK(file_number(attribute("held_off"), -1) > before);
	CHECK(file_number(attribute("faults_failed"), -1) >= failed + 6);
	CHECK(file_number(attribute("fault_failed_at"), -1) > 0);
	fill(&queue, memory, PAGE, 0x91);
	CHECK(bytes_are(memory, PAGE, 0x91));
}
