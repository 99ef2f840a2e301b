// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The device is taken away from a process that has much memory, or that does not hold
 * still.
 */
#define _GNU_SOURCE
#include "alloc.h"
#include "device.h"
#include "file.h"
#include "importer/importer.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FREED_PAGES = 2048, MANY = 3000 };

static void *free_for_ever(void *argument)
{
	for (;;)
		SYS(madvise(argument, FREED_PAGES * PAGE, MADV_FREE));
	return NULL;
}

static pid_t unbind_beside(const char *bdf)
{
	pid_t pid = fork();

	if (pid == 0) {
		pci_unbind(bdf);
		_exit(0);
	}
	return pid;
}

/*
 * A process's changes of its memory never end, but unbinding does, and the file can be closed; then
 * the module unloads.
 */
TEST(unbind_while_memory_changes, .seconds = 60)
{
	struct pci_device device = need_device(0);
	long long pins = pins_held();
	struct gate ready = gate_new();
	uint64_t begin;
	pid_t pid, unbinder;

	need_module();
	pid = fork();
	if (pid == 0) {
		int fd = open_device(0);
		char *memory = anon(64);

		for (size_t i = 0; i < 64; i++)
			register_memory(fd, memory + i * PAGE, PAGE, WRITE);
		for (int i = 0; i < 3; i++) {
			pthread_t thread;

			CHECK_OK(-pthread_create(&thread, NULL, free_for_ever, anon(FREED_PAGES)));
		}
		SYS(madvise(memory, 64 * PAGE, MADV_FREE));
		gate_open(&ready);
		while (!(get_info(fd).out_flags & PINMAP_INFO_GONE))
			SYS(madvise(memory, 64 * PAGE, MADV_FREE));
		/* closing does not wait for the other threads either */
		close(fd);
		gate_open(&ready);
		for (;;)
			pause();
	}
	gate_pass(&ready);
	begin = now_ms();
	unbinder = unbind_beside(device.bdf);
	join(unbinder);
	CHECK(now_ms() - begin < slow(5000));
	gate_pass(&ready);
	CHECK_PINS(pins);
	CHECK(now_ms() - begin < slow(5000));
	/* the threads go on */
	CHECK(runs_still(pid));
	module_unload();
	module_load();
	kill_now(pid);
}

/* A process that holds the reservation lock of a dma-buf until it is killed. */
static pid_t hold_dma_buf(int dma_buf)
{
	int importer = importer_open(), held = SYS(eventfd(0, EFD_CLOEXEC));
	struct importer_args args = { .fd = dma_buf, .offset = held };
	pid_t pid = fork();
	uint64_t count;

	if (pid == 0) {
		CHECK_OK(try_ioctl(importer, IMPORTER_LOCK, &args));
		FAIL("the lock is held no longer");
	}
	CHECK_EQ(read(held, &count, sizeof(count)), sizeof(count));
	close(held);
	close(importer);
	return pid;
}

/*
 * While a device is being unbound it cannot be opened, other devices can, and no open() waits.
 * Unbinding takes long here because it needs the lock of an exported buffer, which another process
 * holds.
 */
TEST(open_during_unbind, .seconds = 60)
{
	struct pci_device device = need_device(0), other = need_device(1);
	int fd = open_device(0), dma_buf;
	struct registration registration = register_memory(fd, anon(1), PAGE, NO_MAP);
	struct gate known = gate_new();
	pid_t holder, unbinder, opener;

	dma_buf = export_buffer(fd, registration.handle, 0);
	holder = hold_dma_buf(dma_buf);
	unbinder = unbind_beside(device.bdf);
	opener = fork();
	if (opener == 0) {
		int opened;

		while ((opened = open(device.node, O_RDWR | O_CLOEXEC)) >= 0)
			close(opened);
		CHECK_EQ(errno, ENODEV);
		close(SYS(open(other.node, O_RDWR | O_CLOEXEC)));
		gate_open(&known);
		_exit(0);
	}
	gate_pass(&known);
	CHECK(runs_still(unbinder));
	kill_now(holder);
	join(unbinder);
	join(opener);
	pci_bind(device.bdf);
}

/* A process that is told that the device is gone has all its memory back. */
TEST(gone_means_over, .seconds = 60)
{
	struct pci_device device = need_device(0);

	for (unsigned int i = 0; i < rounds(5); i++) {
		int fd = open_device(0);
		char *memory = anon(MANY);
		struct registration registration;
		struct pinmap_query query;
		pid_t unbinder;
		int result;

		for (size_t i = 0; i < MANY; i++)
			registration = register_memory(fd, memory + i * PAGE, PAGE, NO_MAP);
		unbinder = unbind_beside(device.bdf);
		do {
			result = try_query_handle(fd, registration.handle, &query);
		} while (result != -ENODEV);
		CHECK_EQ(file_field("/proc/self/status", "VmPin:"), 0);
		join(unbinder);
		close(fd);
		SYS(munmap(memory, MANY * PAGE));
		pci_bind(device.bdf);
	}
}
