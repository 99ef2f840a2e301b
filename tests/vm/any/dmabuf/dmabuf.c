// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory that is shared as dma-bufs: with other contexts, devices, processes and drivers. */
#define _GNU_SOURCE
#include "alloc.h"
#include "edu.h"
#include "file.h"
#include "kmsg.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <drm/drm.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <linux/udmabuf.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EXPORT_WRITE = PINMAP_EXPORT_WRITE };

static long long pinned_kib(void)
{
	return file_field("/proc/self/status", "VmPin:");
}

static char *view(int dma_buf, size_t length)
{
	return SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, dma_buf, 0));
}

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
	CHECK_ERR(EOPNOTSUPP, try_export(fd, memory.handle, 2));
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
	char buffer[4096];
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
		char buffer[4096];

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

enum how { MUNMAP, MADVISE, RELEASE, CLOSE, UNBIND };

static const struct end {
	const char *name;
	enum how how;
} ends[] = {
	{ "munmap", MUNMAP }, { "madvise", MADVISE }, { "release", RELEASE },
	{ "close", CLOSE },   { "unbind", UNBIND },
};

/*
 * Registered memory, imported on another device, and that import exported and imported once more.
 */
struct revoked {
	int fd, other, dma_bufs[2];
	char *page;
	struct registration memory;
	struct pinmap_import imports[2];
	struct pci_device device;
};

static struct revoked revoked_new(void)
{
	struct revoked it = { .page = anon(4), .device = need_device(0) };

	need_device(1);
	it.fd = open_device(0);
	it.other = open_device(1);
	it.memory = register_memory(it.fd, it.page, 4 * PAGE, WRITE | NO_MAP);
	it.dma_bufs[0] = export_buffer(it.fd, it.memory.handle, EXPORT_WRITE);
	it.imports[0] = import_buffer(it.other, it.dma_bufs[0]);
	it.dma_bufs[1] = export_buffer(it.other, it.imports[0].out_handle, EXPORT_WRITE);
	it.imports[1] = import_buffer(it.other, it.dma_bufs[1]);
	return it;
}

static void take_away(const struct revoked *it, enum how how)
{
	switch (how) {
	case MUNMAP: SYS(munmap(it->page + PAGE, PAGE)); break;
	case MADVISE: SYS(madvise(it->page + PAGE, PAGE, MADV_DONTNEED)); break;
	case RELEASE: release(it->fd, it->memory.handle); break;
	case CLOSE: close(it->fd); break;
	case UNBIND: pci_unbind(it->device.bdf); break;
	}
}

static void revoked_end(const struct revoked *it, enum how how)
{
	CHECK_PINS_SOON(0);
	for (int i = 0; i < 2; i++)
		release(it->other, it->imports[i].out_handle);
	if (how == UNBIND)
		pci_bind(it->device.bdf);
}

/* Registered memory that goes away is taken from an import, and from an import of that. */
TEST_EACH(revoked, ends)
{
	struct revoked it = revoked_new();
	struct pinmap_import late;
	struct pinmap_fail fail;
	uint64_t wish = 0;

	take_away(&it, row->how);
	for (int i = 0; i < 2; i++) {
		struct pinmap_event event = next_event(it.other);

		CHECK_EQ(event.type, PINMAP_EVENT_STALE);
		CHECK(event.handle == it.imports[0].out_handle ||
		      event.handle == it.imports[1].out_handle);
		CHECK_EQ(event.length, 4 * PAGE);
	}
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(query_handle(it.other, it.imports[i].out_handle).out_state,
			 PINMAP_STATE_STALE);
		CHECK_ERR(ESTALE, try_map(it.other, it.imports[i].out_handle, 0, &wish, &fail));
		CHECK_ERR(ESTALE, try_export(it.other, it.imports[i].out_handle, 0));
		CHECK_ERR(ESTALE, try_import(it.other, it.dma_bufs[i], &late));
	}
	revoked_end(&it, row->how);
}

/* The device of an importer does not reach memory that went away. */
TEST_EACH(revoked_reach, ends, .faults = true)
{
	struct revoked it = revoked_new();
	struct edu edu = edu_open(it.other);
	char content[4096];
	uint64_t addr;
	int alias;

	map(it.other, it.imports[0].out_handle, PINMAP_MAP_WRITE, 0);
	addr = map(it.other, it.imports[1].out_handle, PINMAP_MAP_WRITE, 0);
	CHECK_REACHES(&edu, addr, it.page, PAGE);
	edu_load(&edu, 40);
	memset(it.page, 0x33, PAGE);
	alias = keep_page(it.page);
	take_away(&it, row->how);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(next_event(it.other).type, PINMAP_EVENT_STALE);
	edu_writes(&edu, addr, PAGE);
	read_kept_page(alias, content);
	CHECK(bytes_are(content, PAGE, 0x33));
	close(alias);
	revoked_end(&it, row->how);
	edu_close(&edu);
}

/* Pages that may go away are not for everybody to map. */
TEST(registered_memory_has_no_view)
{
	int fd = open_device(0);
	struct registration memory = register_memory(fd, anon(4), 4 * PAGE, WRITE | NO_MAP);
	int dma_buf = export_buffer(fd, memory.handle, EXPORT_WRITE);

	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, dma_buf, 0) == MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
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

/* A dma-buf of another driver is refused. */
TEST(foreign)
{
	int fd = open_device(0), udmabuf = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), memfd, dma_buf;
	struct udmabuf_create create = { .size = 4 * PAGE };
	struct pinmap_import import;

	if (udmabuf < 0)
		SKIP("the kernel has no udmabuf");
	memfd = SYS(memfd_create("foreign", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	SYS(ftruncate(memfd, 4 * PAGE));
	SYS(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK));
	create.memfd = memfd;
	dma_buf = SYS(ioctl(udmabuf, UDMABUF_CREATE, &create));
	CHECK_ERR(EOPNOTSUPP, try_import(fd, dma_buf, &import));
	CHECK_EQ(get_info(fd).out_registrations, 0);
	/* the manual's alternative: both have the memfd */
	{
		char *memory =
			SYS(mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0));
		struct registration registration = register_memory(fd, memory, 4 * PAGE, WRITE);
		struct edu edu = edu_open(fd);

		edu_load(&edu, 30);
		edu_writes(&edu, registration.device_addr, PAGE);
		CHECK(pattern_is(view(dma_buf, PAGE), PAGE, 30));
		edu_close(&edu);
	}
}

static int vgem_open(void)
{
	char path[32], name[16] = "";
	struct drm_version version;

	for (int i = 128; i < 136; i++) {
		int fd;

		snprintf(path, sizeof(path), "/dev/dri/renderD%d", i);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		version = (struct drm_version){ .name = name, .name_len = sizeof(name) - 1 };
		if (!ioctl(fd, DRM_IOCTL_VERSION, &version) && !strcmp(name, "vgem"))
			return fd;
		close(fd);
	}
	SKIP("the kernel has no vgem");
}

static int try_vgem_import(int vgem, int dma_buf, uint32_t *handle)
{
	struct drm_prime_handle args = { .fd = dma_buf };
	int result = try_ioctl(vgem, DRM_IOCTL_PRIME_FD_TO_HANDLE, &args);

	*handle = args.handle;
	return result;
}

static void vgem_close(int vgem, uint32_t handle)
{
	struct drm_gem_close args = { .handle = handle };

	SYS(ioctl(vgem, DRM_IOCTL_GEM_CLOSE, &args));
}

static const struct allocated {
	const char *name;
	uint32_t flags;
} allocated[] = {
	{ "plain", 0 },
	{ "write_combined", PINMAP_ALLOC_WRITE_COMBINED },
};

/* Another driver of the kernel imports a dma-buf, and keeps the memory as long as it has it. */
TEST_EACH(vgem, allocated, .smoke = true)
{
	int vgem = vgem_open(), fd = open_device(0), dma_buf, again;
	struct registration memory = alloc_memory(fd, row->flags, HUGE + 17 * PAGE);
	struct drm_prime_handle back = { 0 };
	uint32_t handle;
	char *second;

	dma_buf = export_buffer(fd, memory.handle, EXPORT_WRITE);
	CHECK_OK(try_vgem_import(vgem, dma_buf, &handle));
	pattern_fill(memory.addr, memory.length, 50);
	close(dma_buf);
	release(fd, memory.handle);
	SYS(munmap(memory.addr, memory.length));
	close(fd);
	CHECK_EQ(pinned_kib(), memory.length / 1024);
	/* vgem gives back the same dma-buf */
	back.handle = handle;
	back.flags = DRM_CLOEXEC | DRM_RDWR;
	SYS(ioctl(vgem, DRM_IOCTL_PRIME_HANDLE_TO_FD, &back));
	again = back.fd;
	second = view(again, memory.length);
	CHECK(pattern_is(second, memory.length, 50));
	fd = open_device(0);
	{
		struct pinmap_import import = import_buffer(fd, again);
		struct edu edu = edu_open(fd);

		CHECK_REACHES(&edu, map(fd, import.out_handle, PINMAP_MAP_WRITE, 0), second, PAGE);
		release(fd, import.out_handle);
		edu_close(&edu);
	}
	SYS(munmap(second, memory.length));
	close(again);
	CHECK_EQ(pinned_kib(), memory.length / 1024);
	vgem_close(vgem, handle);
	CHECK(WAIT_FOR(2000, pinned_kib() == 0));
}

/* Registered memory is not for vgem, which cannot be made to let go. */
TEST(vgem_refused)
{
	int vgem = vgem_open(), fd = open_device(0), dma_buf;
	struct registration memory = register_memory(fd, anon(1), PAGE, WRITE);
	uint32_t handle;

	dma_buf = export_buffer(fd, memory.handle, EXPORT_WRITE);
	CHECK_ERR(EOPNOTSUPP, try_vgem_import(vgem, dma_buf, &handle));
	release(fd, memory.handle);
	CHECK_ERR(EOPNOTSUPP, try_vgem_import(vgem, dma_buf, &handle));
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

TEST(sync_values)
{
	enum {
		DEVICE = PINMAP_SYNC_FOR_DEVICE,
		CPU = PINMAP_SYNC_FOR_CPU,
		ALWAYS = PINMAP_SYNC_NO_SNOOP
	};
	int fd = open_device(0);
	struct registration memory = alloc_memory(fd, 0, 4 * PAGE);
	struct registration registered = register_memory(fd, anon(4), 4 * PAGE, 0);

	CHECK_ERR(EOPNOTSUPP, try_sync(fd, memory.handle, 8, 0, 1));
	CHECK_ERR(EOVERFLOW, try_sync(fd, memory.handle, CPU, ~0ULL, 2));
	CHECK_ERR(EINVAL, try_sync(fd, memory.handle, CPU, 0, 0));
	CHECK_ERR(EINVAL, try_sync(fd, memory.handle, 0, 0, 1));
	CHECK_ERR(EINVAL, try_sync(fd, memory.handle, ALWAYS, 0, 1));
	CHECK_ERR(EINVAL, try_sync(fd, memory.handle, CPU, 0, 4 * PAGE + 1));
	CHECK_ERR(EINVAL, try_sync(fd, memory.handle, CPU, 4 * PAGE, 1));
	CHECK_ERR(ENOENT, try_sync(fd, memory.handle + 9, CPU, 0, 1));
	CHECK_OK(try_sync(fd, memory.handle, CPU, 0, 4 * PAGE));
	CHECK_OK(try_sync(fd, memory.handle, DEVICE | CPU, 1, 1));
	CHECK_OK(try_sync(fd, memory.handle, DEVICE | CPU | ALWAYS, 4 * PAGE - 1, 1));
	CHECK_OK(try_sync(fd, registered.handle, CPU | ALWAYS, 5, 3 * PAGE));
	release(fd, registered.handle);
	CHECK_ERR(ESTALE, try_sync(fd, registered.handle, CPU, 0, 1));
}

static uint64_t sync_ns(int fd, uint64_t handle, uint32_t flags, size_t length)
{
	uint64_t before = now_ns();

	CHECK_OK(try_sync(fd, handle, flags, 0, length));
	return now_ns() - before;
}

/*
 * SYNC flushes when it has to, and costs nothing when it has not: here the devices snoop. The
 * content stays.
 */
TEST(sync_cost)
{
	const size_t length = 16 * MIB;
	int fd = open_device(0);
	struct registration memory = alloc_memory(fd, 0, length);
	uint64_t none = ~0ULL, small = ~0ULL, large = ~0ULL;

	if (!(get_info(fd).out_flags & PINMAP_INFO_COHERENT))
		SKIP("the device does not snoop");
	pattern_fill(memory.addr, length, 60);
	for (int i = 0; i < 9; i++) {
		uint64_t now = sync_ns(fd, memory.handle, PINMAP_SYNC_FOR_DEVICE, length);

		none = now < none ? now : none;
		now = sync_ns(fd, memory.handle, PINMAP_SYNC_FOR_DEVICE | PINMAP_SYNC_NO_SNOOP,
			      length / 64);
		small = now < small ? now : small;
		now = sync_ns(fd, memory.handle, PINMAP_SYNC_FOR_DEVICE | PINMAP_SYNC_NO_SNOOP,
			      length);
		large = now < large ? now : large;
	}
	diag("16 MiB: nothing to do %llu ns, flushed %llu ns; 256 KiB flushed %llu ns",
	     (unsigned long long)none, (unsigned long long)large, (unsigned long long)small);
	CHECK(large > 10 * none && large > 8 * small);
	CHECK(pattern_is(memory.addr, length, 60));
}
