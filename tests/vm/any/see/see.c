// SPDX-License-Identifier: MIT OR Apache-2.0
/* Observability: fdinfo, the totals, and each buffer in debugfs. */
#define _GNU_SOURCE
#include "alloc.h"
#include "edu.h"
#include "file.h"
#include "memory.h"
#include "module.h"
#include "pci.h"
#include "process.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct pinmap_get_totals totals(int fd, uint32_t flags)
{
	struct pinmap_get_totals args = { .size = sizeof(args), .flags = flags };

	CHECK_OK(try_ioctl(fd, PINMAP_GET_TOTALS, &args));
	return args;
}

/*
 * Reads the number behind "pinmap-KEY:" in the fdinfo of a descriptor of this process; -1: no such
 * key.
 */
static long long fdinfo(int fd, const char *key)
{
	char path[64], word[64];

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	snprintf(word, sizeof(word), "pinmap-%s:", key);
	return file_field(path, word);
}

#define CHECK_TOTAL(total, number_, bytes_)				\
	do {								\
		CHECK_EQ((total).number, number_);			\
		CHECK_EQ((total).bytes, bytes_);			\
	} while (0)

/*
 * Two contexts of one device, one with registered and with allocated memory, one with pinned
 * memory.
 */
struct counted {
	char *memory;
	int fd, other;
	struct registration one;
	struct pinmap_alloc alloc;
};

static struct counted counted_new(void)
{
	struct counted counted = { .memory = anon(8) };

	need_device(0);
	counted.fd = open_device(0);
	counted.other = open_device(0);
	counted.one = register_memory(counted.fd, counted.memory, 2 * PAGE, WRITE);
	register_memory(counted.other, counted.memory + 4 * PAGE, 3 * PAGE, NO_MAP);
	CHECK_OK(try_alloc(counted.fd, 0, 16 * PAGE, &counted.alloc));
	return counted;
}

TEST(totals_of_a_context, .smoke = true)
{
	struct counted counted = counted_new();
	struct pinmap_get_totals own = totals(counted.fd, PINMAP_TOTALS_CONTEXT);

	CHECK_EQ(own.out_contexts, 1);
	CHECK_TOTAL(own.out_pinned, 1, 2 * PAGE);
	CHECK_TOTAL(own.out_allocated, 1, 16 * PAGE);
	CHECK_TOTAL(own.out_vram, 0, 0);
	CHECK_TOTAL(own.out_shared, 0, 0);
	CHECK_TOTAL(own.out_mapped, 1, 2 * PAGE);
	CHECK_TOTAL(own.out_stale, 0, 0);
	own = totals(counted.other, PINMAP_TOTALS_CONTEXT);
	CHECK_TOTAL(own.out_pinned, 1, 3 * PAGE);
	CHECK_TOTAL(own.out_mapped, 0, 0);
}

TEST(totals_of_a_device)
{
	struct counted counted = counted_new();
	struct pinmap_get_totals all = totals(counted.other, 0);

	CHECK_EQ(all.out_contexts, 2);
	CHECK_TOTAL(all.out_pinned, 2, 5 * PAGE);
	CHECK_TOTAL(all.out_allocated, 1, 16 * PAGE);
	CHECK_TOTAL(all.out_mapped, 1, 2 * PAGE);
}

TEST(totals_count_mappings)
{
	struct counted counted = counted_new();

	map(counted.fd, counted.one.handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, 0x40000000);
	CHECK_TOTAL(totals(counted.fd, 0).out_mapped, 2, 4 * PAGE);
	unmap(counted.fd, counted.one.handle, 0x40000000);
	CHECK_TOTAL(totals(counted.fd, 0).out_mapped, 1, 2 * PAGE);
}

/* Memory that goes is not mapped, soon not pinned, and stale until it is released. */
TEST(totals_count_what_is_stale)
{
	struct counted counted = counted_new();

	SYS(munmap(counted.memory, PAGE));
	CHECK_TOTAL(totals(counted.fd, 0).out_mapped, 0, 0);
	CHECK_TOTAL(totals(counted.fd, 0).out_stale, 1, 2 * PAGE);
	CHECK(WAIT_FOR(2000, totals(counted.fd, PINMAP_TOTALS_CONTEXT).out_pinned.number == 0));
	release(counted.fd, counted.one.handle);
	CHECK_TOTAL(totals(counted.fd, 0).out_stale, 0, 0);
}

TEST(totals_count_what_is_given_back)
{
	struct counted counted = counted_new();
	struct pinmap_get_totals all;

	release(counted.fd, counted.one.handle);
	release(counted.fd, counted.alloc.out_handle);
	CHECK_TOTAL(totals(counted.fd, 0).out_allocated, 0, 0);
	CHECK_TOTAL(totals(counted.fd, 0).out_pinned, 1, 3 * PAGE);
	close(counted.other);
	all = totals(counted.fd, 0);
	CHECK_EQ(all.out_contexts, 1);
	CHECK_TOTAL(all.out_pinned, 0, 0);
}

/* A call that fails changes no number. */
TEST(totals_after_failure)
{
	struct registration registration;
	char *memory = anon(4);
	int fd;

	need_device(0);
	fd = open_device(0);
	SYS(munmap(memory + 2 * PAGE, PAGE));
	CHECK_ERR(EFAULT, try_register_memory(fd, memory, 4 * PAGE, WRITE, &registration));
	CHECK_TOTAL(totals(fd, 0).out_pinned, 0, 0);
	register_memory(fd, memory, PAGE, WRITE);
	CHECK_ERR(EEXIST, try_register_memory(fd, memory, 2 * PAGE, WRITE, &registration));
	CHECK_TOTAL(totals(fd, 0).out_pinned, 1, PAGE);
	CHECK_TOTAL(totals(fd, 0).out_mapped, 1, PAGE);
}

/* Each line is `key:<blank>value[ unit]`, and the keys are the driver's own. */
TEST(fdinfo_grammar, .smoke = true)
{
	struct pci_device device = need_device(0);
	char *memory = anon(2), text[4096], path[64], *line, *rest = text, pdev[32] = "";
	int fd = open_device(0);
	unsigned int ours = 0;

	register_memory(fd, memory, 2 * PAGE, WRITE);
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	file_read(path, text, sizeof(text));
	while ((line = strsep(&rest, "\n"))) {
		char *colon = strchr(line, ':'), *value;
		char unit[8];
		unsigned long long number;
		int fields;

		CHECK(colon);
		*colon = 0;
		CHECK(!strpbrk(line, " \t"));
		if (strncmp(line, "pinmap-", 7)) {
			CHECK(strstr("pos flags mnt_id ino", line));
			continue;
		}
		ours++;
		CHECK(strspn(line, "abcdefghijklmnopqrstuvwxyz-") == strlen(line));
		value = colon + 1 + strspn(colon + 1, " \t");
		if (!strcmp(line, "pinmap-pdev")) {
			snprintf(pdev, sizeof(pdev), "%s", value);
			continue;
		}
		fields = sscanf(value, "%llu %7s", &number, unit);
		CHECK(fields == 1 || (fields == 2 && !strcmp(unit, "KiB")));
	}
	CHECK(ours >= 12);
	CHECK(!strcmp(pdev, device.bdf));
}

TEST(fdinfo_follows)
{
	struct registration registration;
	struct pinmap_info info;
	char *memory = anon(8);
	int fd;

	need_device(0);
	fd = open_device(0);
	info = get_info(fd);
	CHECK_EQ(fdinfo(fd, "objects"), 0);
	CHECK_EQ(fdinfo(fd, "objects-limit"), info.out_max_registrations);
	CHECK_EQ(fdinfo(fd, "pinned"), 0);
	registration = register_memory(fd, memory, 8 * PAGE, WRITE);
	CHECK_EQ(fdinfo(fd, "objects"), 1);
	CHECK_EQ(fdinfo(fd, "pinned"), 32);
	CHECK_EQ(fdinfo(fd, "mapped"), 32);
	CHECK_EQ(fdinfo(fd, "mappings"), 1);
	CHECK_EQ(fdinfo(fd, "stale"), 0);
	unmap(fd, registration.handle, registration.device_addr);
	CHECK_EQ(fdinfo(fd, "pinned"), 32);
	CHECK_EQ(fdinfo(fd, "mapped"), 0);
	SYS(munmap(memory, 8 * PAGE));
	CHECK_EQ(fdinfo(fd, "stale"), 1);
	CHECK(WAIT_FOR(2000, fdinfo(fd, "pinned") == 0));
	CHECK_EQ(fdinfo(fd, "objects"), 1);
	release(fd, registration.handle);
	CHECK_EQ(fdinfo(fd, "objects"), 0);
	CHECK_EQ(fdinfo(fd, "stale"), 0);
}

/*
 * The limit is that of the process that opened the file, whoever reads; without a limit there is no
 * line.
 */
TEST(fdinfo_limit)
{
	struct gate ready = gate_new(), done = gate_new();
	/* a paged device's tables count as well */
	uint64_t *locked =
		SYS(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	char path[64];
	pid_t child;
	int fd;

	need_device(0);
	child = SYS(fork());
	if (!child) {
		char *memory = anon(4);

		set_memlock(64 * 1024);
		become_user(true);
		fd = SYS(dup2(open_device(0), 100));
		register_memory(fd, memory, 4 * PAGE, WRITE);
		CHECK_EQ(fdinfo(fd, "limit"), 64);
		*locked = get_info(fd).out_memlock_used / 1024;
		CHECK_EQ(fdinfo(fd, "locked"), *locked);
		gate_open(&ready);
		gate_pass(&done);
		_exit(0);
	}
	gate_pass(&ready);
	snprintf(path, sizeof(path), "/proc/%d/fdinfo/100", child);
	CHECK_EQ(file_field(path, "pinmap-limit:"), 64);
	CHECK(*locked >= 16);
	CHECK_EQ(file_field(path, "pinmap-locked:"), *locked);
	gate_open(&done);
	join(child);
	/* this process is root's */
	CHECK_EQ(fdinfo(open_device(0), "limit"), -1);
}

static void debugfs_path(const struct pci_device *device, char path[128])
{
	snprintf(path, 128, "/sys/kernel/debug/pinmap/%s/buffers", device->bdf);
	if (access("/sys/kernel/debug/pinmap", F_OK))
		SKIP("there is no debugfs");
}

/**
 * struct line - a buffer as debugfs shows it
 * @words: device context pid handle kind access state address length runs huge mapped-at
 */
struct line {
	char words[12][160];
};

/* Finds the first line of this process with a text in a certain word; false: there is none. */
static bool find_word(const char *path, unsigned int word, const char *wanted, struct line *line)
{
	char text[65536], *rest = text, *next;

	file_read(path, text, sizeof(text));
	while ((next = strsep(&rest, "\n"))) {
		int words;

		if (next[0] == '#')
			continue;
		words = sscanf(
			next,
			"%159s %159s %159s %159s %159s %159s %159s %159s %159s %159s %159s %159s",
			line->words[0], line->words[1], line->words[2], line->words[3],
			line->words[4], line->words[5], line->words[6], line->words[7],
			line->words[8], line->words[9], line->words[10], line->words[11]);
		if (words != 12)
			FAIL("%d words: %s", words, next);
		if (!strcmp(line->words[word], wanted) && atoi(line->words[2]) == getpid())
			return true;
	}
	return false;
}

/* Finds the line of a buffer that begins at @addr. */
static bool find_line(const char *path, const void *addr, struct line *line)
{
	char wanted[32];

	snprintf(wanted, sizeof(wanted), "%#llx", (unsigned long long)(uintptr_t)addr);
	return find_word(path, 7, wanted, line);
}

/*
 * Checks the line of the buffer that the context of @fd, which has no other of that kind, calls
 * @handle.
 */
static void check_line(const char *path, int fd, const char *kind, uint64_t handle,
		       const char *access, const char *state, const char *mapped_at)
{
	struct line line;

	if (!find_word(path, 4, kind, &line))
		FAIL("nothing is %s", kind);
	CHECK_EQ(atoll(line.words[1]), fdinfo(fd, "client-id"));
	CHECK_EQ(strtoull(line.words[3], NULL, 0), handle);
	CHECK(!strcmp(line.words[5], access));
	CHECK(!strcmp(line.words[6], state));
	if (strcmp(line.words[11], mapped_at))
		FAIL("%s is mapped at %s, not %s", kind, line.words[11], mapped_at);
}

TEST(debugfs_buffer, .smoke = true)
{
	struct pci_device device = need_device(0);
	struct memory memory = memory_new(THP, HUGE);
	int fd = open_device(0);
	struct registration registration;
	struct line line;
	char path[128], expected[64];
	bool huge;

	debugfs_path(&device, path);
	CHECK(!find_line(path, memory.addr, &line));
	huge = is_thp(memory.addr);
	registration = register_memory(fd, memory.addr, HUGE, WRITE);
	CHECK(find_line(path, memory.addr, &line));
	CHECK(!strcmp(line.words[0], device.bdf));
	CHECK_EQ(atoll(line.words[1]), fdinfo(fd, "client-id"));
	CHECK_EQ(strtoull(line.words[3], NULL, 0), registration.handle);
	CHECK(!strcmp(line.words[4], "registered"));
	CHECK(!strcmp(line.words[5], "rw"));
	CHECK(!strcmp(line.words[6], "live"));
	CHECK_EQ(atoll(line.words[8]), HUGE);
	if (huge) {
		CHECK_EQ(atoll(line.words[9]), 1);
		CHECK(!strcmp(line.words[10], "100%"));
	}
	CHECK_EQ(strtoull(line.words[11], NULL, 0), registration.device_addr);

	map(fd, registration.handle, PINMAP_MAP_FIXED, 0x40000000);
	CHECK(find_line(path, memory.addr, &line));
	snprintf(expected, sizeof(expected), "%#llx,0x40000000",
		 (unsigned long long)registration.device_addr);
	CHECK(!strcmp(line.words[11], expected));

	SYS(munmap(memory.addr, PAGE));
	CHECK(find_line(path, memory.addr, &line));
	CHECK(!strcmp(line.words[6], "stale"));
	CHECK(!strcmp(line.words[11], "-"));
	release(fd, registration.handle);
	CHECK(!find_line(path, memory.addr, &line));
}

/* Lines of scattered, read-only and unmapped memory say nothing of where it lies in the machine. */
TEST(debugfs_tells_no_secrets)
{
	struct pci_device device = need_device(0);
	enum { PAGES = 8 };
	char *memory = anon(PAGES), path[128], text[65536], number[32];
	uint64_t frames[PAGES];
	int fd = open_device(0);
	struct line line;
	struct stat status;
	unsigned int runs = 1;

	debugfs_path(&device, path);
	register_memory(fd, memory, PAGES * PAGE, NO_MAP);
	page_frames(memory, PAGES, frames);
	for (int i = 1; i < PAGES; i++)
		runs += frames[i] != frames[i - 1] + 1;
	CHECK(find_line(path, memory, &line));
	CHECK(!strcmp(line.words[5], "r"));
	CHECK_EQ(atoi(line.words[9]), runs);
	CHECK(!strcmp(line.words[10], "0%"));
	CHECK(!strcmp(line.words[11], "-"));
	file_read(path, text, sizeof(text));
	CHECK(!strstr(text, "0xffff"));
	SYS(stat(path, &status));
	CHECK_EQ(status.st_mode & 0777, 0400);
	for (int i = 0; i < PAGES; i++) {
		snprintf(number, sizeof(number), "0x%llx", (unsigned long long)frames[i] << 12);
		CHECK(!strstr(text, number));
	}
	become_user(true);
	CHECK_EQ(open(path, O_RDONLY), -1);
	CHECK_EQ(errno, EACCES);
}

static const char *hexadecimal(uint64_t number)
{
	static char text[4][32];
	static unsigned int next;
	char *at = text[next++ % 4];

	snprintf(at, sizeof(text[0]), "%#llx", (unsigned long long)number);
	return at;
}

/*
 * A part of a file counts as pinned memory, whatever becomes of the file; it has no user address.
 */
TEST(file_is_seen)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0), file = new_memfd(8 * PAGE, 0);
	struct pinmap_register_fd part = register_fd(fd, file, 2 * PAGE, 4 * PAGE, 0);
	struct pinmap_get_totals own = totals(fd, PINMAP_TOTALS_CONTEXT);
	char path[128];

	CHECK_TOTAL(own.out_pinned, 1, 4 * PAGE);
	CHECK_TOTAL(own.out_mapped, 1, 4 * PAGE);
	CHECK_EQ(fdinfo(fd, "pinned"), 16);
	CHECK_EQ(fdinfo(fd, "mappings"), 1);
	debugfs_path(&device, path);
	check_line(path, fd, "file", part.out_handle, "r", "live", hexadecimal(part.device_addr));
	SYS(ftruncate(file, 0));
	check_line(path, fd, "file", part.out_handle, "r", "live", hexadecimal(part.device_addr));
	CHECK_TOTAL(totals(fd, 0).out_stale, 0, 0);
	release(fd, part.out_handle);
	CHECK_TOTAL(totals(fd, 0).out_pinned, 0, 0);
	CHECK_EQ(fdinfo(fd, "mapped"), 0);
}

/* An import counts as shared, and is stale when the exporter's memory is. */
TEST(import_is_seen)
{
	struct pci_device device = need_device(0);
	struct memory memory = memory_new(ANON, 4 * PAGE);
	int fd = open_device(0), dma_buf;
	struct registration registration = register_memory(fd, memory.addr, memory.length, WRITE);
	struct pinmap_import import;
	struct pinmap_get_totals own;
	uint64_t device_addr;
	char path[128];

	debugfs_path(&device, path);
	dma_buf = export_buffer(fd, registration.handle, PINMAP_EXPORT_WRITE);
	own = totals(fd, PINMAP_TOTALS_CONTEXT);
	CHECK_TOTAL(own.out_shared, 0, 0);
	import = import_buffer(fd, dma_buf);
	check_line(path, fd, "shared", import.out_handle, "rw", "live", "-");
	device_addr = map(fd, import.out_handle, PINMAP_MAP_WRITE, 0);
	check_line(path, fd, "shared", import.out_handle, "rw", "live", hexadecimal(device_addr));
	own = totals(fd, PINMAP_TOTALS_CONTEXT);
	CHECK_TOTAL(own.out_pinned, 1, 4 * PAGE);
	CHECK_TOTAL(own.out_shared, 1, 4 * PAGE);
	CHECK_TOTAL(own.out_mapped, 2, 8 * PAGE);
	CHECK_EQ(fdinfo(fd, "shared"), 16);
	CHECK_EQ(fdinfo(fd, "objects"), 2);
	close(dma_buf);
	CHECK_EQ(fdinfo(fd, "shared"), 16);
	SYS(munmap(memory.addr, PAGE));
	CHECK(WAIT_FOR(2000,
		       fdinfo(fd, "stale") == 2 && !fdinfo(fd, "shared") && !fdinfo(fd, "pinned")));
	check_line(path, fd, "shared", import.out_handle, "rw", "stale", "-");
	own = totals(fd, PINMAP_TOTALS_CONTEXT);
	CHECK_TOTAL(own.out_stale, 2, 8 * PAGE);
	CHECK_TOTAL(own.out_mapped, 0, 0);
	release(fd, import.out_handle);
	release(fd, registration.handle);
	CHECK_TOTAL(totals(fd, 0).out_stale, 0, 0);
	CHECK_EQ(fdinfo(fd, "objects"), 0);
}

/*
 * Portable memory counts as pinned where it was registered. In each context that has it, it has a
 * handle, a mapping and, in the end, the name of stale.
 */
struct guest {
	bool paged; /* two contexts of one device; otherwise of two */
	int fd, other;
	char *memory, path[128], elsewhere[128];
	struct registration registration;
	struct pinmap_query query;
};

static struct guest guest_new(void)
{
	struct guest guest = { .memory = anon(4) };
	struct pci_device device = need_device(0);

	guest.fd = open_device(0);
	debugfs_path(&device, guest.path);
	/* a device without an MMU is one context's */
	guest.paged = get_info(guest.fd).out_kind == PINMAP_KIND_PAGED;
	if (!guest.paged)
		device = need_device(1);
	debugfs_path(&device, guest.elsewhere);
	guest.other = open_device(guest.paged ? 0 : 1);
	guest.registration =
		register_memory(guest.fd, guest.memory, 4 * PAGE, WRITE | PINMAP_REGISTER_PORTABLE);
	guest.query = query_addr(guest.other, guest.memory);
	return guest;
}

TEST(guest_in_totals)
{
	struct guest guest = guest_new();
	struct pinmap_get_totals own = totals(guest.fd, PINMAP_TOTALS_CONTEXT);

	CHECK_TOTAL(own.out_mapped, 1, 4 * PAGE);
	CHECK_TOTAL(own.out_pinned, 1, 4 * PAGE);
	own = totals(guest.other, PINMAP_TOTALS_CONTEXT);
	CHECK_TOTAL(own.out_mapped, 1, 4 * PAGE);
	CHECK_TOTAL(own.out_pinned, 0, 0);
	CHECK_EQ(totals(guest.other, 0).out_mapped.number, guest.paged ? 2 : 1);
	CHECK_EQ(totals(guest.other, 0).out_pinned.number, guest.paged ? 1 : 0);
}

TEST(guest_in_fdinfo)
{
	struct guest guest = guest_new();

	CHECK_EQ(fdinfo(guest.other, "objects"), 1);
	CHECK_EQ(fdinfo(guest.other, "pinned"), 0);
	CHECK_EQ(fdinfo(guest.other, "mapped"), 16);
	CHECK_EQ(fdinfo(guest.other, "mappings"), 1);
}

/* Each context has its own addresses. */
TEST(guest_mappings_are_its_own)
{
	struct guest guest = guest_new();
	char both[64];

	map(guest.other, guest.query.handle, PINMAP_MAP_WRITE | PINMAP_MAP_FIXED, 0x40000000);
	CHECK_TOTAL(totals(guest.other, PINMAP_TOTALS_CONTEXT).out_mapped, 2, 8 * PAGE);
	CHECK_TOTAL(totals(guest.fd, PINMAP_TOTALS_CONTEXT).out_mapped, 1, 4 * PAGE);
	if (!guest.paged) {
		check_line(guest.path, guest.fd, "registered", guest.registration.handle, "rw",
			   "live", hexadecimal(guest.registration.device_addr));
		snprintf(both, sizeof(both), "%s,0x40000000",
			 hexadecimal(guest.query.out_device_addr));
		check_line(guest.elsewhere, guest.other, "registered", guest.query.handle, "rw",
			   "live", both);
	}
	unmap(guest.other, guest.query.handle, 0x40000000);
	CHECK_TOTAL(totals(guest.other, PINMAP_TOTALS_CONTEXT).out_mapped, 1, 4 * PAGE);
}

/* Stale in both contexts, in each until it is released there. */
TEST(guest_is_stale)
{
	struct guest guest = guest_new();
	struct line line;

	SYS(munmap(guest.memory, PAGE));
	CHECK_TOTAL(totals(guest.other, PINMAP_TOTALS_CONTEXT).out_mapped, 0, 0);
	CHECK_TOTAL(totals(guest.other, PINMAP_TOTALS_CONTEXT).out_stale, 1, 4 * PAGE);
	CHECK_EQ(fdinfo(guest.other, "stale"), 1);
	CHECK_EQ(fdinfo(guest.fd, "stale"), 1);
	CHECK(find_line(guest.elsewhere, guest.memory, &line));
	CHECK(!strcmp(line.words[6], "stale"));
	CHECK(!strcmp(line.words[11], "-"));
	release(guest.other, guest.query.handle);
	CHECK_EQ(fdinfo(guest.other, "stale"), 0);
	CHECK_EQ(fdinfo(guest.fd, "stale"), 1);
	release(guest.fd, guest.registration.handle);
	CHECK_EQ(fdinfo(guest.fd, "stale"), 0);
}

TEST(guest_is_stale_when_its_owner_closes)
{
	struct guest guest = guest_new();

	close(guest.fd);
	CHECK_TOTAL(totals(guest.other, 0).out_stale, 1, 4 * PAGE);
	CHECK_TOTAL(totals(guest.other, 0).out_pinned, 0, 0);
	CHECK_TOTAL(totals(guest.other, 0).out_mapped, 0, 0);
	release(guest.other, guest.query.handle);
	CHECK_TOTAL(totals(guest.other, 0).out_stale, 0, 0);
}

/* The file of a device with more lines than fit a page has them all. */
TEST(debugfs_many)
{
	struct pci_device device = need_device(0);
	enum { COUNT = 300 };
	static char text[256 * 1024];
	char *memory = anon(2 * COUNT), path[128], *at = text;
	int fd = open_device(0);
	unsigned int lines = 0;

	debugfs_path(&device, path);
	for (int i = 0; i < COUNT; i++)
		register_memory(fd, memory + 2 * i * PAGE, PAGE, WRITE);
	file_read(path, text, sizeof(text));
	while ((at = strstr(at, " registered "))) {
		at++;
		lines++;
	}
	CHECK_EQ(lines, COUNT);
}

struct reader {
	char path[128];
	volatile bool stop;
	volatile unsigned int reads;
};

static void *read_on(void *argument)
{
	struct reader *reader = argument;
	char text[4096];

	while (!reader->stop) {
		int fd = open(reader->path, O_RDONLY);

		while (fd >= 0 && read(fd, text, sizeof(text)) > 0)
			;
		if (fd >= 0)
			close(fd);
		reader->reads++;
	}
	return NULL;
}

/* The files can be read while buffers, contexts and the device come and go. */
TEST(debugfs_while_things_go, .seconds = 60)
{
	struct pci_device device = need_device(0);
	struct reader reader = {};
	pthread_t threads[2];
	char *memory = anon(64);
	unsigned int reads;

	debugfs_path(&device, reader.path);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, read_on, &reader), 0);
	for (unsigned int round = 0; round < rounds(10); round++) {
		int fd = open_device(0);
		struct registration registrations[16];

		for (int i = 0; i < 16; i++)
			registrations[i] =
				register_memory(fd, memory + 4 * i * PAGE, 3 * PAGE, WRITE);
		for (int i = 0; i < 8; i++)
			release(fd, registrations[i].handle);
		madvise(memory + 4 * 12 * PAGE, PAGE, MADV_DONTNEED);
		reads = reader.reads;
		CHECK(WAIT_FOR(5000, reader.reads > reads));
		if (round % 3) {
			close(fd);
		} else {
			pci_unbind(device.bdf);
			close(fd);
			pci_bind(device.bdf);
			pci_adopt(device.bdf);
		}
	}
	reader.stop = true;
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		pthread_join(threads[i], NULL);
}

/*
 * An open file holds the module, not the device; reading it after the device has gone is an error.
 */
TEST(debugfs_open_file)
{
	struct pci_device device = need_device(0);
	char path[128], text[256];
	int fd;

	need_module();
	debugfs_path(&device, path);
	fd = SYS(open(path, O_RDONLY));
	CHECK(read(fd, text, sizeof(text)) > 0);
	CHECK(try_module_unload() < 0);
	pci_unbind(device.bdf);
	CHECK_EQ(access(path, F_OK), -1);
	CHECK_EQ(pread(fd, text, sizeof(text), 0), -1);
	CHECK_EQ(errno, EIO);
	CHECK(try_module_unload() < 0);
	close(fd);
	module_unload();
	CHECK_EQ(access("/sys/kernel/debug/pinmap", F_OK), -1);
	module_load();
	CHECK_EQ(access(path, F_OK), 0);
}
