// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory that the driver allocates: kinds, limits, how long it lives. */
#define _GNU_SOURCE
#include "alloc.h"
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "pressure.h"
#include "process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
	WRITE_COMBINED = PINMAP_ALLOC_WRITE_COMBINED,
	NODE = PINMAP_ALLOC_NODE,
	VRAM = PINMAP_ALLOC_VRAM,
	PORTABLE = PINMAP_ALLOC_PORTABLE,
};

static long long pinned_kib(void)
{
	return file_field("/proc/self/status", "VmPin:");
}

/* Checks that the device of @fd reaches both ends of the memory at @device_addr. */
static void check_ends(int fd, uint64_t device_addr, char *memory, size_t length)
{
	struct edu edu = edu_open(fd);

	CHECK_REACHES(&edu, device_addr, memory, PAGE);
	if (length > PAGE)
		CHECK_REACHES(&edu, device_addr + length - PAGE, memory + length - PAGE, PAGE);
	edu_close(&edu);
}

/*
 * Checks allocated memory: it is zero, the CPU can write it all, QUERY knows it, and the device, or
 * both devices, reach both ends.
 */
static void check_whole(uint32_t flags, size_t length)
{
	int fd = open_device(0), other = flags & PORTABLE ? open_device(1) : -1;
	struct registration memory = alloc_memory(fd, flags, length);
	struct pinmap_query query = query_handle(fd, memory.handle);

	CHECK_EQ(query.out_kind, PINMAP_BUFFER_HOST);
	CHECK_EQ(query.out_flags, WRITE | (flags & PORTABLE ? PINMAP_REGISTER_PORTABLE : 0));
	CHECK_EQ(query.out_length, length);
	CHECK_EQ(query.out_device_addr, memory.device_addr);
	CHECK_EQ(query.out_state, PINMAP_STATE_LIVE);
	CHECK_EQ(query.out_nr_mappings, 1);
	CHECK(bytes_are(memory.addr, length, 0));
	pattern_fill(memory.addr, length, 3);
	CHECK(pattern_is(memory.addr, length, 3));
	check_ends(fd, memory.device_addr, memory.addr, length);
	if (flags & PORTABLE) {
		query = query_addr(other, memory.addr + length - 1);
		CHECK_EQ(query.out_kind, PINMAP_BUFFER_HOST);
		CHECK_EQ(query.out_flags, WRITE | PINMAP_REGISTER_PORTABLE);
		CHECK_EQ(query.out_length, length);
		CHECK_EQ(query.out_device_addr, memory.device_addr + length - 1);
		check_ends(other, memory.device_addr, memory.addr, length);
		/* one charge */
		CHECK_EQ(pinned_kib(), (long long)length / 1024);
	}
	SYS(munmap(memory.addr, length));
	release(fd, memory.handle);
	if (flags & PORTABLE) {
		CHECK_EQ(get_info(other).out_registrations, 0);
		close(other);
	}
	close(fd);
}

static const struct kind {
	const char *name;
	uint32_t flags;
} kinds[] = {
	{ "plain", 0 },
	{ "write_combined", WRITE_COMBINED },
	{ "node", NODE },
	{ "write_combined_node", WRITE_COMBINED | NODE },
	{ "portable", PORTABLE },
	{ "portable_write_combined", PORTABLE | WRITE_COMBINED },
	{ "portable_node", PORTABLE | NODE },
	{ "portable_write_combined_node", PORTABLE | WRITE_COMBINED | NODE },
};

/* Every combination of flags, for one page and for pages of all sizes. */
TEST_EACH(kind, kinds, .smoke = true)
{
	static const size_t lengths[] = { PAGE, 17 * PAGE, HUGE, HUGE + 16 * PAGE + PAGE };

	if (row->flags & PORTABLE)
		need_device(1);
	for (size_t i = 0; i < ARRAY_SIZE(lengths); i++)
		check_whole(row->flags, lengths[i]);
	CHECK_EQ(pinned_kib(), 0);
}

/* Has a child write to half of the free memory, of which the next pages are then taken. */
static void use_free_memory(void)
{
	size_t length = file_field("/proc/meminfo", "MemFree:") * 512 / HUGE * HUGE;
	pid_t child = SYS(fork());

	if (!child) {
		void *memory = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));

		SYS(madvise(memory, length, MADV_HUGEPAGE));
		memset(memory, 0xff, length);
		_exit(0);
	}
	join(child);
}

/* The content of freed memory is not seen by the next one that allocates. */
TEST(zeroed_again)
{
	int fd = open_device(0);

	use_free_memory();
	for (int i = 0; i < 8; i++) {
		struct registration memory = alloc_memory(fd, i & 1 ? COMBINED : 0, 4 * HUGE);

		CHECK(bytes_are(memory.addr, memory.length, 0));
		memset(memory.addr, 0xff, memory.length);
		SYS(munmap(memory.addr, memory.length));
		release(fd, memory.handle);
	}
}

TEST(values)
{
	int fd = open_device(0);
	long long kib = pinned_kib();
	struct pinmap_alloc args;

	CHECK_ERR(EINVAL, try_alloc(fd, 0, 0, &args));
	CHECK_ERR(EINVAL, try_alloc(fd, 0, 1, &args));
	CHECK_ERR(EINVAL, try_alloc(fd, 0, PAGE + 1, &args));
	CHECK_ERR(EINVAL, try_alloc(fd, VRAM | WRITE_COMBINED, PAGE, &args));
	CHECK_ERR(EINVAL, try_alloc(fd, VRAM | NODE, PAGE, &args));
	CHECK_ERR(EINVAL, try_alloc(fd, VRAM | PORTABLE, PAGE, &args));
	CHECK_ERR(EOPNOTSUPP, try_alloc(fd, 1U << 31, PAGE, &args));
	if (!COMBINED)
		CHECK_ERR(EOPNOTSUPP, try_alloc(fd, WRITE_COMBINED, PAGE, &args));
	/* more than there is, and more than there could be */
	CHECK_ERR(ENOMEM, try_alloc(fd, 0, 1ULL << 50, &args));
	CHECK_EQ(args.fail.reason, PINMAP_FAIL_MEMORY);
	CHECK_ERR(ENOMEM, try_alloc(fd, COMBINED, -(uint64_t)PAGE, &args));
	args = (struct pinmap_alloc){ .size = sizeof(args), .length = PAGE, .node = 1 };
	CHECK_ERR(EINVAL, try_ioctl(fd, PINMAP_ALLOC, &args));
	args = (struct pinmap_alloc){ .size = sizeof(args), .length = PAGE, .__reserved = 1 };
	CHECK_ERR(EOPNOTSUPP, try_ioctl(fd, PINMAP_ALLOC, &args));
	args = (struct pinmap_alloc){
		.size = sizeof(args), .flags = NODE, .length = PAGE, .node = 1 << 20
	};
	CHECK_ERR(EINVAL, try_ioctl(fd, PINMAP_ALLOC, &args));
	args.node = ~0U;
	CHECK_ERR(EINVAL, try_ioctl(fd, PINMAP_ALLOC, &args));
	if (get_info(fd).out_kind == PINMAP_KIND_FLAT)
		CHECK_ERR(EOPNOTSUPP, try_alloc(fd, VRAM, PAGE, &args));
	CHECK_EQ(get_info(fd).out_registrations, 0);
	CHECK_EQ(pinned_kib(), kib);
}

/*
 * Handles are no addresses: neither an address in the memory nor a second RELEASE finds anything.
 */
TEST(release_twice)
{
	int fd = open_device(0);
	struct registration memory = alloc_memory(fd, 0, 4 * PAGE);

	CHECK_ERR(ENOENT, try_release(fd, (uintptr_t)memory.addr));
	CHECK_ERR(ENOENT, try_release(fd, (uintptr_t)memory.addr + PAGE));
	CHECK_ERR(ENOENT, try_release(fd, memory.handle + 1));
	release(fd, memory.handle);
	CHECK_ERR(ESTALE, try_release(fd, memory.handle));
	CHECK_EQ(get_info(fd).out_registrations, 0);
}

/*
 * A part of a buffer can neither be unmapped from the device nor mapped for the CPU beyond its end.
 */
TEST(parts)
{
	int fd = open_device(0);
	struct registration memory = alloc_memory(fd, 0, 4 * PAGE);
	struct pinmap_alloc args;
	char *part;

	CHECK_ERR(ENOENT, try_unmap(fd, memory.handle, memory.device_addr + PAGE));
	CHECK_OK(try_alloc(fd, 0, 4 * PAGE, &args));
	part = SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			args.out_offset + 2 * PAGE));
	*part = 5;
	CHECK_EQ(alloc_view(fd, &args)[2 * PAGE], 5);
	CHECK(mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fd, args.out_offset + 3 * PAGE) ==
	      MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, args.out_offset + 4 * PAGE) ==
	      MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
}

/* The limit of locked memory counts, by the byte. */
TEST(limit)
{
	struct pinmap_alloc args;
	void *view;
	int fd;

	set_memlock(16 * PAGE);
	become_user(true);
	fd = open_device(0);
	CHECK_ERR(ENOMEM, try_alloc(fd, 0, 17 * PAGE, &args));
	CHECK_EQ(args.fail.reason, PINMAP_FAIL_MEMLOCK);
	CHECK_EQ(args.fail.needed, 17 * PAGE);
	CHECK_EQ(args.fail.allowed, 16 * PAGE);
	CHECK_OK(try_alloc(fd, COMBINED, 16 * PAGE, &args));
	view = alloc_view(fd, &args);
	CHECK_EQ(get_info(fd).out_memlock_used, 16 * PAGE);
	CHECK_ERR(ENOMEM, try_alloc(fd, 0, PAGE, &(struct pinmap_alloc){ 0 }));
	/* memory that is mapped is there still, and so is the charge */
	release(fd, args.out_handle);
	CHECK_EQ(get_info(fd).out_memlock_used, 16 * PAGE);
	SYS(munmap(view, 16 * PAGE));
	CHECK_EQ(get_info(fd).out_memlock_used, 0);
}

/* The memory cgroup is charged; its limit is an error, and nobody is killed for it. */
TEST(memory_cgroup)
{
	const char *const usage = "/sys/fs/cgroup/pinmap-test/memory.current";
	struct registration memory;
	struct pinmap_alloc args;
	long long before;
	int fd;

	memory_cgroup(64 * MIB, false);
	fd = open_device(0);
	before = file_number(usage, -1);
	CHECK(before >= 0);
	memory = alloc_memory(fd, 0, 16 * MIB);
	/* the kernel counts in batches of pages */
	CHECK(file_number(usage, -1) >= before + (long long)(15 * MIB));
	CHECK_ERR(ENOMEM, try_alloc(fd, 0, 128 * MIB, &args));
	CHECK_EQ(args.fail.reason, PINMAP_FAIL_MEMORY);
	CHECK_EQ(get_info(fd).out_registrations, 1);
	SYS(munmap(memory.addr, memory.length));
	release(fd, memory.handle);
	CHECK(WAIT_FOR(2000, file_number(usage, -1) < before + (long long)(2 * MIB)));
}

/* Pages come from another node than the one that this task would get. */
TEST(node)
{
	struct pinmap_alloc args = { .size = sizeof(args), .flags = NODE, .length = 16 * PAGE };
	int fd = open_device(0), nodes[16];
	void *pages[16];
	char *memory;

	if (access("/sys/devices/system/node/node1", F_OK))
		SKIP("the machine has one node (--append numa=fake=2 makes two)");
	for (int node = 0; node < 2; node++) {
		args.node = node;
		CHECK_OK(try_ioctl(fd, PINMAP_ALLOC, &args));
		memory = alloc_view(fd, &args);
		for (int i = 0; i < 16; i++) {
			pages[i] = memory + i * PAGE;
			memory[i * PAGE] = 1;
		}
		SYS(syscall(SYS_move_pages, 0, 16UL, pages, NULL, nodes, 0));
		for (int i = 0; i < 16; i++)
			CHECK_EQ(nodes[i], node);
	}
	args.node = 2;
	CHECK_ERR(EINVAL, try_ioctl(fd, PINMAP_ALLOC, &args));
}

/* Huge pages are mapped as such, for the CPU and for the device. */
TEST(huge)
{
	int fd = open_device(0);
	struct registration memory = alloc_memory(fd, 0, 2 * HUGE);
	enum { EACH = HUGE / PAGE };
	uint64_t frames[EACH];
	char flags[256];

	CHECK_EQ((uintptr_t)memory.addr % HUGE, 0);
	memory.addr[HUGE] = 1;
	CHECK(user_entry(memory.addr + HUGE, flags));
	page_frames(memory.addr + HUGE, EACH, frames);
	CHECK_EQ(frames[0] % EACH, 0);
	for (int i = 1; i < EACH; i++)
		CHECK_EQ(frames[i], frames[0] + i);
	CHECK(strstr(flags, " pmd"));
	/* a huge mapping can be split */
	SYS(mprotect(memory.addr + HUGE + PAGE, PAGE, PROT_READ));
	memory.addr[HUGE] = 2;
	CHECK_EQ(touch_write(memory.addr + HUGE + PAGE), SIGSEGV);
	SYS(munmap(memory.addr + HUGE + 2 * PAGE, PAGE));
	CHECK_EQ(memory.addr[HUGE], 2);
	CHECK_EQ(memory.addr[HUGE + 3 * PAGE], 0);
	CHECK_EQ(page_frame(memory.addr + HUGE + 3 * PAGE), frames[3]);
}

/*
 * Without huge pages and those of the other order that the driver tries, it takes small ones. Slabs
 * are left alone.
 */
TEST(fallback)
{
	static const char *const settings[][2] = {
		{ "task-filter", "Y" }, { "ignore-gfp-wait", "N" }, { "min-order", "4" },
		{ "probability", "100" }, { "verbose", "0" }, { "times", "-1" },
	};
	const char *const directory = "/sys/kernel/debug/fail_page_alloc/";
	int fd = open_device(0);
	struct pinmap_alloc args;
	char path[96];
	int result;

	if (access("/sys/kernel/debug/fail_page_alloc", F_OK))
		SKIP("the kernel cannot let allocations of pages fail");
	for (size_t i = 0; i < ARRAY_SIZE(settings); i++) {
		snprintf(path, sizeof(path), "%s%s", directory, settings[i][0]);
		file_write(path, settings[i][1]);
	}
	file_write("/proc/self/make-it-fail", "1");
	result = try_alloc(fd, 0, 2 * HUGE, &args);
	file_write("/proc/self/make-it-fail", "0");
	snprintf(path, sizeof(path), "%sprobability", directory);
	file_write(path, "0");
	CHECK_OK(result);
	CHECK(bytes_are(alloc_view(fd, &args), 2 * HUGE, 0));
}

/* A mapping keeps the memory without the handle, without the file, without the device. */
TEST(outlives)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0);
	struct registration first = alloc_memory(fd, 0, 4 * PAGE),
			    second = alloc_memory(fd, COMBINED, 4 * PAGE);
	struct pinmap_query query;
	struct pinmap_alloc args;
	struct edu edu = edu_open(fd);

	pattern_fill(first.addr, first.length, 1);
	pattern_fill(second.addr, second.length, 2);
	CHECK_OK(try_alloc(fd, 0, PAGE, &args));
	release(fd, args.out_handle);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, args.out_offset) == MAP_FAILED);
	CHECK_EQ(errno, EINVAL);
	release(fd, first.handle);
	CHECK_ERR(ESTALE, try_query_handle(fd, first.handle, &query));
	edu_close(&edu);
	pci_unbind(device.bdf);
	CHECK(pattern_is(first.addr, first.length, 1));
	close(fd);
	CHECK(pattern_is(second.addr, second.length, 2));
	CHECK_EQ(pinned_kib(), 8 * PAGE / 1024);
	first.addr[0] = second.addr[0] = 7;
	SYS(munmap(first.addr, first.length));
	CHECK_EQ(pinned_kib(), 4 * PAGE / 1024);
	SYS(munmap(second.addr, second.length));
	CHECK_EQ(pinned_kib(), 0);
	pci_bind(device.bdf);
}

/* The device does not reach memory that was released, although the CPU does. */
TEST(released, .faults = true)
{
	int fd = open_device(0);
	struct registration memory = alloc_memory(fd, 0, PAGE);
	struct edu edu = edu_open(fd);

	edu_load(&edu, 4);
	release(fd, memory.handle);
	edu_writes(&edu, memory.device_addr, PAGE);
	CHECK(bytes_are(memory.addr, PAGE, 0));
	edu_close(&edu);
}

static void check_entries(const char *addr, uint64_t frame, bool combined)
{
	char flags[256];

	if (addr) {
		CHECK(user_entry(addr, flags));
		CHECK_EQ(is_write_combined(flags), combined);
	}
	CHECK(kernel_entry(frame, flags));
	if (is_write_combined(flags) != combined)
		FAIL("frame %#llx: %s", (unsigned long long)frame, flags);
}

/* Memory is write-combined for the CPU in both page tables until nobody has it any more. */
TEST(write_combined)
{
	static const size_t offsets[] = { 0, HUGE - PAGE, HUGE, HUGE + 3 * PAGE };
	const size_t length = HUGE + 4 * PAGE;
	int fd = open_device(0), dma_buf;
	struct registration plain = alloc_memory(fd, 0, length),
			    memory = alloc_memory(fd, WRITE_COMBINED, length);
	uint64_t frames[ARRAY_SIZE(offsets)];
	char *view;

	for (size_t i = 0; i < ARRAY_SIZE(offsets); i++) {
		plain.addr[offsets[i]] = memory.addr[offsets[i]] = 1;
		check_entries(plain.addr + offsets[i], page_frame(plain.addr + offsets[i]), false);
		frames[i] = page_frame(memory.addr + offsets[i]);
		check_entries(memory.addr + offsets[i], frames[i], true);
	}
	/* mprotect() does not change the memory type */
	SYS(mprotect(memory.addr, PAGE, PROT_READ));
	CHECK_EQ(*(volatile char *)memory.addr, 1);
	check_entries(memory.addr, frames[0], true);
	SYS(mprotect(memory.addr, PAGE, PROT_READ | PROT_WRITE));
	memory.addr[0] = 2;
	check_entries(memory.addr, frames[0], true);
	/* the handle, a mapping, a dma-buf, a mapping of that: the last one counts */
	dma_buf = export_buffer(fd, memory.handle, PINMAP_EXPORT_WRITE);
	release(fd, memory.handle);
	check_entries(memory.addr, frames[0], true);
	SYS(munmap(memory.addr, length));
	check_entries(NULL, frames[0], true);
	view = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, dma_buf, 0));
	CHECK_EQ(view[0], 2);
	check_entries(view, frames[0], true);
	close(dma_buf);
	check_entries(view, frames[0], true);
	SYS(munmap(view, length));
	for (size_t i = 0; i < ARRAY_SIZE(offsets); i++)
		check_entries(NULL, frames[i], false);
}

/* Memory is ordinary again when the process is killed, and when the device has it last. */
TEST(write_combined_killed)
{
	struct gate gate = gate_new();
	uint64_t *frame =
		SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	pid_t pid;

	need_kind(WRITE_COMBINED);
	pid = fork();
	if (pid == 0) {
		struct registration memory = alloc_memory(open_device(0), WRITE_COMBINED, 4 * PAGE);

		memory.addr[0] = 1;
		*frame = page_frame(memory.addr);
		SYS(munmap(memory.addr, memory.length));
		gate_open(&gate);
		pause();
		_exit(1);
	}
	gate_pass(&gate);
	check_entries(NULL, *frame, true);
	kill_now(pid);
	check_entries(NULL, *frame, false);
}
