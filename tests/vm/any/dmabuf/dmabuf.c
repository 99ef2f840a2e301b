// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory that is shared as dma-bufs: with other contexts, devices, processes and drivers. */
#define _GNU_SOURCE
#include "dmabuf.h"

#include "alloc.h"
#include "edu.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <linux/dma-buf.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

TEST(values)
{
	int fd = open_device(0), dma_buf, pipes[2];
	struct registration memory = alloc_memory(fd, 0, 4 * PAGE), readable;
	struct pinmap_export args = { .size = sizeof(args),
				      .handle = memory.handle,
				      .__reserved = 1 };
	struct pinmap_import import;
	pid_t pid;

	CHECK_ERR(EOPNOTSUPP, try_ioctl(fd, PINMAP_EXPORT, &args));
	CHECK_ERR(EOPNOTSUPP, try_export(fd, memory.handle, 4));
	CHECK_ERR(ENOENT, try_export(fd, 0, 0));
	CHECK_ERR(ENOENT, try_export(fd, memory.handle + 1, 0));
	readable = register_memory(fd, anon(1), PAGE, 0);
	CHECK_ERR(EACCES, try_export(fd, readable.handle, EXPORT_WRITE));
	release(fd, readable.handle);
	CHECK_ERR(ESTALE, try_export(fd, readable.handle, 0));
	dma_buf = export_buffer(fd, memory.handle, EXPORT_WRITE);
	CHECK_EQ(SYS(fcntl(dma_buf, F_GETFD)), FD_CLOEXEC);
	CHECK_EQ(SYS(lseek(dma_buf, 0, SEEK_END)), 4 * PAGE);

	import = (struct pinmap_import){ .size = sizeof(import), .fd = dma_buf, .flags = 1 };
	CHECK_ERR(EOPNOTSUPP, try_ioctl(fd, PINMAP_IMPORT, &import));
	CHECK_ERR(EBADF, try_import(fd, -1, &import));
	CHECK_ERR(EBADF, try_import(fd, 1000, &import));
	SYS(pipe(pipes));
	CHECK_ERR(EINVAL, try_import(fd, pipes[0], &import));
	CHECK_ERR(EINVAL, try_import(fd, fd, &import));
	pid = fork();
	if (pid == 0) {
		CHECK_ERR(EPERM, try_export(fd, memory.handle, 0));
		CHECK_ERR(EPERM, try_import(fd, dma_buf, &import));
		_exit(0);
	}
	join(pid);
	CHECK_EQ(get_info(fd).out_registrations, 1);
}

/* Memory of the driver's, and dma-bufs of it. */
struct exported {
	int fd, dma_buf;
	struct registration memory;
};

static struct exported exported_new(size_t length, uint32_t flags)
{
	struct exported exported = { .fd = open_device(0) };

	exported.memory = alloc_memory(exported.fd, 0, length);
	exported.dma_buf = export_buffer(exported.fd, exported.memory.handle, flags);
	return exported;
}

/* Whoever has the dma-buf sees the memory that the device and the owner see. */
TEST(view, .smoke = true)
{
	struct exported exported = exported_new(HUGE + 4 * PAGE, EXPORT_WRITE);
	char *second = view(exported.dma_buf, exported.memory.length);
	struct edu edu = edu_open(exported.fd);

	edu_load(&edu, 3);
	edu_writes(&edu, exported.memory.device_addr + HUGE, PAGE);
	CHECK(pattern_is(second + HUGE, PAGE, 3));
	second[5] = 5;
	CHECK_EQ(exported.memory.addr[5], 5);
}

/* DMA_BUF_IOCTL_SYNC works, and does nothing, since importers are coherent. */
TEST(view_sync)
{
	struct exported exported = exported_new(PAGE, EXPORT_WRITE);
	struct dma_buf_sync sync = { .flags = DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW };

	SYS(ioctl(exported.dma_buf, DMA_BUF_IOCTL_SYNC, &sync));
	sync.flags = DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW;
	SYS(ioctl(exported.dma_buf, DMA_BUF_IOCTL_SYNC, &sync));
}

TEST(view_for_reading)
{
	struct exported exported = exported_new(PAGE, 0);
	int readable = exported.dma_buf;

	exported.memory.addr[5] = 5;
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, readable, 0) == MAP_FAILED);
	CHECK_EQ(errno, EACCES);
	CHECK_EQ(((char *)SYS(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, readable, 0)))[5], 5);
}

/* A dma-buf is not mapped beyond its end, privately or for execution. */
TEST(view_refused)
{
	struct exported exported = exported_new(4 * PAGE, EXPORT_WRITE);
	int dma_buf = exported.dma_buf;

	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, dma_buf, exported.memory.length) ==
	      MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, dma_buf, 0) == MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, dma_buf, 0) == MAP_FAILED);
	CHECK_EQ(errno, EPERM);
}

/* The memory, and the charge for it, stay without handle, context and device. */
TEST(view_keeps_the_memory)
{
	struct exported exported = exported_new(HUGE + 4 * PAGE, EXPORT_WRITE);
	char *second = view(exported.dma_buf, exported.memory.length);
	struct edu edu = edu_open(exported.fd);

	edu_load(&edu, 3);
	edu_writes(&edu, exported.memory.device_addr + HUGE, PAGE);
	second[5] = 5;
	edu_close(&edu);
	release(exported.fd, exported.memory.handle);
	SYS(munmap(exported.memory.addr, exported.memory.length));
	close(exported.fd);
	CHECK_EQ(second[5], 5);
	CHECK(pattern_is(second + HUGE, PAGE, 3));
	CHECK_EQ(pinned_kib(), (HUGE + 4 * PAGE) / 1024);
}

/* Checks an import: one pin and one charge, however many imports on however many devices. */
static void check_shared(int from, int to, const struct registration *memory, int dma_buf)
{
	long long pins = pins_held(), charged = get_info(from).out_memlock_used,
		  pinned = pinned_kib();
	struct pinmap_import import = import_buffer(to, dma_buf);
	struct pinmap_query query;
	struct edu edu;
	uint64_t addr;

	CHECK_EQ(import.out_length, memory->length);
	CHECK_EQ(import.out_flags, EXPORT_WRITE);
	edu = edu_open(to);
	addr = map(to, import.out_handle, PINMAP_MAP_WRITE, 0);
	CHECK_REACHES(&edu, addr, memory->addr, PAGE);
	CHECK_REACHES(&edu, addr + memory->length - PAGE, memory->addr + memory->length - PAGE,
		      PAGE);
	CHECK_EQ(pins_held(), pins);
	CHECK_EQ(get_info(from).out_memlock_used, charged);
	CHECK_EQ(pinned_kib(), pinned);
	query = query_handle(to, import.out_handle);
	CHECK_EQ(query.out_kind, PINMAP_BUFFER_IMPORT);
	CHECK_EQ(query.out_state, PINMAP_STATE_LIVE);
	CHECK_EQ(query.out_nr_mappings, 1);
	CHECK_EQ(query.out_length, memory->length);
	release(to, import.out_handle);
	CHECK_ERR(ESTALE, try_release(to, import.out_handle));
	edu_close(&edu);
}

static const struct source {
	const char *name;
	bool allocated;
	uint32_t flags;
} sources[] = {
	{ "allocated", true, 0 },
	{ "write_combined", true, PINMAP_ALLOC_WRITE_COMBINED },
	{ "portable", true, PINMAP_ALLOC_PORTABLE },
	{ "portable_write_combined", true, PINMAP_ALLOC_PORTABLE | PINMAP_ALLOC_WRITE_COMBINED },
	{ "registered", false, 0 },
};

static struct registration source_new(const struct source *source, int fd, size_t length)
{
	if (source->allocated)
		return alloc_memory(fd, source->flags, length);
	return register_memory(fd, memory_new(ANON, length).addr, length, WRITE | NO_MAP);
}

/* A dma-buf is imported by the same context, and by another device. */
TEST_EACH(import, sources, .smoke = true)
{
	int fd, other;
	struct registration memory;
	struct edu edu;
	int dma_buf;

	need_device(1);
	fd = open_device(0);
	other = open_device(1);
	memory = source_new(row, fd, 33 * PAGE);
	dma_buf = export_buffer(fd, memory.handle, EXPORT_WRITE);
	check_shared(fd, fd, &memory, dma_buf);
	check_shared(fd, other, &memory, dma_buf);
	/* the descriptor is not needed any more */
	close(dma_buf);
	edu = edu_open(fd);
	CHECK_REACHES(&edu, map(fd, memory.handle, PINMAP_MAP_WRITE, 0), memory.addr, PAGE);
	edu_close(&edu);
}

/* Both devices at the same memory at once: what one writes the other one reads. */
TEST(two_devices)
{
	int fds[2], dma_buf;
	struct registration memory;
	struct pinmap_import import;
	struct edu edus[2];
	char buffer[PAGE];
	uint64_t addr;

	need_device(1);
	fds[0] = open_device(0);
	fds[1] = open_device(1);
	memory = alloc_memory(fds[0], 0, PAGE);
	dma_buf = export_buffer(fds[0], memory.handle, EXPORT_WRITE);
	import = import_buffer(fds[1], dma_buf);
	close(dma_buf);
	for (int i = 0; i < 2; i++)
		edus[i] = edu_open(fds[i]);
	addr = map(fds[1], import.out_handle, PINMAP_MAP_WRITE, 0);
	edu_load(&edus[0], 11);
	edu_writes(&edus[0], memory.device_addr, PAGE);
	edu_reads(&edus[1], addr, PAGE);
	edu_store(&edus[1], buffer);
	CHECK(pattern_is(buffer, PAGE, 11));
	/* the release of one leaves the mapping of the other alone */
	release(fds[0], memory.handle);
	CHECK_REACHES(&edus[1], addr, memory.addr, PAGE);
}

/* A device does not write by a dma-buf that was exported for reading. */
TEST(read_only)
{
	int fd = open_device(0), dma_buf;
	struct registration memory = alloc_memory(fd, 0, PAGE);
	struct pinmap_import import;
	struct pinmap_fail fail;
	uint64_t addr = 0;

	dma_buf = export_buffer(fd, memory.handle, 0);
	import = import_buffer(fd, dma_buf);
	CHECK_EQ(import.out_flags, 0);
	CHECK_ERR(EACCES, try_map(fd, import.out_handle, PINMAP_MAP_WRITE, &addr, &fail));
	CHECK_ERR(EACCES, try_export(fd, import.out_handle, EXPORT_WRITE));
	map(fd, import.out_handle, 0, 0);
}

/* A process with a context of its own gets the descriptor, also when the exporter is gone then. */
TEST_EACH(other_process, sources)
{
	struct gate ready = gate_new(), go = gate_new();
	int ends[2];
	pid_t pid;

	need_device(1);
	need_kind(row->flags);
	SYS(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends));
	pid = fork();
	if (pid == 0) {
		int fd = open_device(0);
		struct registration memory = source_new(row, fd, 4 * PAGE);

		pattern_fill(memory.addr, memory.length, 21);
		send_fd(ends[0], export_buffer(fd, memory.handle, EXPORT_WRITE));
		gate_pass(&go);
		/* what the other process's device wrote */
		CHECK(pattern_is(memory.addr + PAGE, PAGE, 22));
		gate_open(&ready);
		pause();
		_exit(1);
	}
	{
		int fd = open_device(1), dma_buf = receive_fd(ends[1]);
		struct pinmap_import import = import_buffer(fd, dma_buf);
		struct edu edu = edu_open(fd);
		uint64_t addr = map(fd, import.out_handle, PINMAP_MAP_WRITE, 0);
		char buffer[PAGE];

		edu_reads(&edu, addr, PAGE);
		edu_store(&edu, buffer);
		CHECK(pattern_is(buffer, PAGE, 21));
		edu_load(&edu, 22);
		edu_writes(&edu, addr + PAGE, PAGE);
		gate_open(&go);
		gate_pass(&ready);
		kill_now(pid);
		if (row->allocated) {
			CHECK_EQ(query_handle(fd, import.out_handle).out_state, PINMAP_STATE_LIVE);
			CHECK(pattern_is(view(dma_buf, 4 * PAGE) + PAGE, PAGE, 22));
			CHECK_REACHES(&edu, addr, view(dma_buf, 4 * PAGE), PAGE);
		} else {
			CHECK(WAIT_FOR(2000, query_handle(fd, import.out_handle).out_state ==
						     PINMAP_STATE_STALE));
			CHECK_PINS_SOON(0);
		}
		edu_close(&edu);
	}
}

/* Exports that nobody has any more are forgotten, also thousands of them. */
TEST(again_and_again)
{
	int fd = open_device(0);
	struct registration memory = register_memory(fd, anon(1), PAGE, WRITE);
	struct pinmap_import import;

	for (unsigned int i = 0; i < rounds(2000); i++) {
		int dma_buf = export_buffer(fd, memory.handle, EXPORT_WRITE);

		if (i % 2) {
			import = import_buffer(fd, dma_buf);
			release(fd, import.out_handle);
		}
		close(dma_buf);
	}
	release(fd, memory.handle);
	CHECK_PINS_SOON(0);
}

/* The module stays as long as there is a dma-buf or a mapping of one. */
TEST(rmmod)
{
	int fd, dma_buf;
	struct registration memory;
	char *second;

	need_module();
	fd = open_device(0);
	memory = alloc_memory(fd, 0, PAGE);
	dma_buf = export_buffer(fd, memory.handle, EXPORT_WRITE);
	SYS(munmap(memory.addr, PAGE));
	close(fd);
	CHECK(try_module_unload() < 0);
	second = view(dma_buf, PAGE);
	close(dma_buf);
	CHECK(try_module_unload() < 0);
	second[0] = 1;
	SYS(munmap(second, PAGE));
	CHECK_EQ(module_users(), 0);
	module_unload();
	module_load();
	close(open_device(0));
}

/* Once the device is gone, memory that it allocated is there still, but is not shared any more. */
TEST(gone)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0), dma_buf;
	struct registration memory = alloc_memory(fd, 0, PAGE);
	struct pinmap_import import;

	dma_buf = export_buffer(fd, memory.handle, EXPORT_WRITE);
	pci_unbind(device.bdf);
	CHECK_ERR(ENODEV, try_export(fd, memory.handle, 0));
	CHECK_ERR(ENODEV, try_import(fd, dma_buf, &import));
	CHECK_ERR(ENODEV, try_sync(fd, memory.handle, PINMAP_SYNC_FOR_CPU, 0, 1));
	view(dma_buf, PAGE)[0] = 4;
	CHECK_EQ(memory.addr[0], 4);
	pci_bind(device.bdf);
	close(fd);
	/* the device works when it is bound again */
	fd = open_device(0);
	import = import_buffer(fd, dma_buf);
	{
		struct edu edu = edu_open(fd);

		CHECK_REACHES(&edu, map(fd, import.out_handle, PINMAP_MAP_WRITE, 0), memory.addr,
			      PAGE);
		edu_close(&edu);
	}
}
