// SPDX-License-Identifier: MIT OR Apache-2.0
/* dma-bufs that another driver of the kernel maps (tests/importer). */
#define _GNU_SOURCE
#include "alloc.h"
#include "edu.h"
#include "file.h"
#include "importer/importer.h"
#include "memory.h"
#include "module.h"
#include "pins.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int try_importer_map(int importer, int dma_buf, uint32_t flags)
{
	struct importer_args args = { .fd = dma_buf, .flags = flags };

	return try_ioctl(importer, IMPORTER_MAP, &args);
}

static int try_importer(int importer, unsigned long command)
{
	struct importer_args args = { 0 };

	return try_ioctl(importer, command, &args);
}

static struct importer_args importer_state(int importer)
{
	struct importer_args args = { 0 };

	CHECK_OK(try_ioctl(importer, IMPORTER_STATE, &args));
	return args;
}

static unsigned char importer_load(int importer, size_t offset)
{
	struct importer_args args = { .offset = offset };

	CHECK_OK(try_ioctl(importer, IMPORTER_LOAD, &args));
	return args.value;
}

static void importer_store(int importer, size_t offset, unsigned char value)
{
	struct importer_args args = { .offset = offset, .value = value };

	CHECK_OK(try_ioctl(importer, IMPORTER_STORE, &args));
}

/* Checks that the importer reaches every page of the memory at its place, in both directions. */
static void check_mapped(int importer, char *memory, size_t length)
{
	struct importer_args state = importer_state(importer);

	CHECK_EQ(state.out_length, length);
	CHECK_EQ(state.out_told, 0);
	for (size_t at = 0; at < length; at += PAGE) {
		memory[at + 7] = at / PAGE % 251;
		if (importer_load(importer, at + 7) != at / PAGE % 251)
			FAIL("page %zu is another one", at / PAGE);
		importer_store(importer, at + 9, ~(at / PAGE % 251));
		CHECK_EQ((unsigned char)memory[at + 9], (unsigned char)~(at / PAGE % 251));
	}
	CHECK_OK(try_importer(importer, IMPORTER_BEGIN));
	CHECK_OK(try_importer(importer, IMPORTER_END));
}

static const struct way {
	const char *name;
	uint32_t flags;
	uint32_t alloc;
} ways[] = {
	{ "static", IMPORTER_WRITE, 0 },
	{ "dynamic", IMPORTER_WRITE | IMPORTER_DYNAMIC, 0 },
	{ "write_combined", IMPORTER_WRITE, PINMAP_ALLOC_WRITE_COMBINED },
};

/* Allocated memory stays as long as it is mapped anywhere. */
TEST_EACH(importer, ways, .smoke = true)
{
	int importer = importer_open(), fd = open_device(0), dma_buf;
	struct registration memory = alloc_memory(fd, row->alloc, HUGE + 17 * PAGE);

	dma_buf = export_buffer(fd, memory.handle, PINMAP_EXPORT_WRITE);
	CHECK_OK(try_importer_map(importer, dma_buf, row->flags));
	check_mapped(importer, memory.addr, memory.length);
	/* once more, by another importer */
	{
		int second = importer_open();

		CHECK_OK(try_importer_map(second, dma_buf, row->flags));
		CHECK_EQ(importer_load(second, HUGE + 7), importer_load(importer, HUGE + 7));
		close(second);
	}
	close(dma_buf);
	release(fd, memory.handle);
	SYS(munmap(memory.addr, memory.length));
	close(fd);
	CHECK_EQ(importer_load(importer, HUGE + 7), HUGE / PAGE % 251);
	CHECK_EQ(importer_state(importer).out_told, 0);
	CHECK_EQ(file_field("/proc/self/status", "VmPin:"), (long long)memory.length / 1024);
	CHECK_OK(try_importer(importer, IMPORTER_UNMAP));
	CHECK(WAIT_FOR(2000, file_field("/proc/self/status", "VmPin:") == 0));
}

/* The device of an importer may not write memory that was exported for reading. */
TEST(importer_read_only)
{
	int importer = importer_open(), fd = open_device(0), dma_buf;
	struct registration memory = alloc_memory(fd, 0, PAGE);

	dma_buf = export_buffer(fd, memory.handle, 0);
	CHECK_ERR(EACCES, try_importer_map(importer, dma_buf, IMPORTER_WRITE));
	CHECK_OK(try_importer_map(importer, dma_buf, 0));
	memory.addr[3] = 3;
	CHECK_EQ(importer_load(importer, 3), 3);
}

enum how { MUNMAP, MADVISE, RELEASE, CLOSE };

static const struct end {
	const char *name;
	enum how how;
} ends[] = {
	{ "munmap", MUNMAP },
	{ "madvise", MADVISE },
	{ "release", RELEASE },
	{ "close", CLOSE },
};

/* Registered memory is for importers that can be told to let go, and they are told. */
TEST_EACH(importer_revoked, ends)
{
	int importer = importer_open(), lazy = importer_open(), fixed = importer_open(),
	    fd = open_device(0), dma_buf;
	struct memory memory = memory_new(ANON, 33 * PAGE);
	struct registration registration =
		register_memory(fd, memory.addr, memory.length, WRITE | NO_MAP);

	dma_buf = export_buffer(fd, registration.handle, PINMAP_EXPORT_WRITE);
	CHECK_ERR(EOPNOTSUPP, try_importer_map(fixed, dma_buf, IMPORTER_WRITE));
	CHECK_OK(try_importer_map(importer, dma_buf, IMPORTER_WRITE | IMPORTER_DYNAMIC));
	CHECK_OK(
		try_importer_map(lazy, dma_buf, IMPORTER_WRITE | IMPORTER_DYNAMIC | IMPORTER_LAZY));
	check_mapped(importer, memory.addr, memory.length);
	CHECK_PINS(33);
	switch (row->how) {
	case MUNMAP: SYS(munmap(memory.addr + PAGE, PAGE)); break;
	case MADVISE: SYS(madvise(memory.addr + PAGE, PAGE, MADV_DONTNEED)); break;
	case RELEASE: release(fd, registration.handle); break;
	case CLOSE: close(fd); break;
	}
	CHECK(WAIT_FOR(2000, importer_state(importer).out_told == 1));
	CHECK_EQ(importer_state(importer).out_length, 0);
	/* an importer that takes its time keeps the pages as they are */
	CHECK_EQ(importer_state(lazy).out_told, 1);
	CHECK_EQ(importer_state(lazy).out_length, memory.length);
	sleep_ms(50);
	CHECK_PINS(33);
	CHECK_EQ(importer_load(lazy, PAGE + 7), 1);
	CHECK_ERR(ENODEV, try_importer_map(fixed, dma_buf, IMPORTER_WRITE | IMPORTER_DYNAMIC));
	CHECK_OK(try_importer(lazy, IMPORTER_UNMAP));
	CHECK_PINS_SOON(0);
}

static const struct {
	const char *name;
	uint32_t flags;
} file_ways[] = {
	{ "static", IMPORTER_WRITE },
	{ "dynamic", IMPORTER_WRITE | IMPORTER_DYNAMIC },
};

/* A part of a file does not go away, so every importer may have it and keep it. */
TEST_EACH(importer_file, file_ways)
{
	int importer = importer_open(), fd = open_device(0), file = new_memfd(40 * PAGE, 0),
	    dma_buf;
	struct pinmap_register_fd part = register_fd(fd, file, 3 * PAGE, 33 * PAGE, WRITE | NO_MAP);
	char *view;

	dma_buf = export_buffer(fd, part.out_handle, PINMAP_EXPORT_WRITE);
	CHECK_OK(try_importer_map(importer, dma_buf, row->flags));
	view = SYS(mmap(NULL, 33 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, dma_buf, 0));
	check_mapped(importer, view, 33 * PAGE);
	SYS(munmap(view, 33 * PAGE));
	view = SYS(mmap(NULL, 33 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 3 * PAGE));
	check_mapped(importer, view, 33 * PAGE);
	close(dma_buf);
	release(fd, part.out_handle);
	close(fd);
	SYS(ftruncate(file, 0));
	CHECK_EQ(importer_state(importer).out_told, 0);
	CHECK_EQ(importer_load(importer, PAGE + 7), 1);
	CHECK_PINS(33);
	CHECK_OK(try_importer(importer, IMPORTER_UNMAP));
	CHECK_PINS_SOON(0);
}

/* Memory that was registered for reading is read-only for importers, too. */
TEST(importer_file_read_only)
{
	int importer = importer_open(), fd = open_device(0), file = new_memfd(PAGE, 0), dma_buf;
	struct pinmap_register_fd part = register_fd(fd, file, 0, PAGE, NO_MAP);

	dma_buf = export_buffer(fd, part.out_handle, 0);
	CHECK_ERR(EACCES, try_importer_map(importer, dma_buf, IMPORTER_WRITE));
	CHECK_OK(try_importer_map(importer, dma_buf, 0));
	CHECK_EQ(pwrite(file, "x", 1, 3), 1);
	CHECK_EQ(importer_load(importer, 3), 'x');
}

/* Memory that its driver may move at any time is not imported: it would go stale at once. */
TEST(memory_that_may_move)
{
	struct importer_args args = { 0 };
	struct pinmap_import import;
	int importer = importer_open(), fd = open_device(0);

	CHECK_OK(try_ioctl(importer, IMPORTER_EXPORT, &args));
	CHECK_ERR(EOPNOTSUPP, try_import(fd, args.fd, &import));
	CHECK_EQ(get_info(fd).out_registrations, 0);
	close(args.fd);
}
