// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The numbers by which a program sees, without a system call, that registered memory may
 * have gone.
 */
#define _GNU_SOURCE
#include "file.h"
#include "memory.h"
#include "pci.h"
#include "pins.h"
#include "process.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct numbers {
	const volatile uint64_t *at;
	uint64_t count;
	uint64_t offset;
};

static struct numbers numbers_of(int fd)
{
	struct pinmap_generations args = { .size = sizeof(args) };
	struct numbers numbers;

	CHECK_OK(try_ioctl(fd, PINMAP_GENERATIONS, &args));
	numbers.at =
		SYS(mmap(NULL, args.out_length, PROT_READ, MAP_SHARED, fd, (off_t)args.out_offset));
	numbers.count = args.out_length / sizeof(uint64_t);
	numbers.offset = args.out_offset;
	return numbers;
}

static uint64_t number(const struct numbers *numbers, const struct registration *registration)
{
	return __atomic_load_n(&numbers->at[registration->handle % numbers->count],
			       __ATOMIC_ACQUIRE);
}

TEST(generations_page)
{
	int fd = open_device(0), other = open_device(0);
	struct numbers numbers = numbers_of(fd), again = numbers_of(fd);
	uint64_t length = numbers.count * sizeof(uint64_t);
	pid_t pid;

	CHECK(numbers.count >= 256);
	CHECK_EQ(numbers.offset, again.offset);
	for (uint64_t i = 0; i < numbers.count; i++)
		CHECK_EQ(numbers.at[i], 0);
	/* nobody can write to the page */
	CHECK(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)numbers.offset) ==
	      MAP_FAILED);
	CHECK_EQ(errno, EACCES);
	CHECK_EQ(mprotect((void *)numbers.at, length, PROT_READ | PROT_WRITE), -1);
	CHECK_EQ(errno, EACCES);
	CHECK(touch_write((void *)numbers.at));
	/* nor can a device, which may read it like other memory */
	CHECK_REGISTER_FAILS(other, (void *)numbers.at, length, WRITE, EFAULT,
			     PINMAP_FAIL_PERMISSION, numbers.at);
	pid = fork();
	if (pid == 0) {
		struct pinmap_generations args = { .size = sizeof(args) };

		CHECK_ERR(EPERM, try_ioctl(fd, PINMAP_GENERATIONS, &args));
		_exit(0);
	}
	join(pid);
}

static void unmap_all(struct memory *memory)
{
	SYS(munmap(memory->addr, memory->length));
}

static void unmap_page(struct memory *memory)
{
	SYS(munmap(memory->addr + 3 * PAGE, PAGE));
}

static void move(struct memory *memory)
{
	char *elsewhere = address_space(memory->length, PAGE);

	SYS(mremap(memory->addr, memory->length, memory->length, MREMAP_MAYMOVE | MREMAP_FIXED,
		   elsewhere));
}

static void map_over(struct memory *memory)
{
	SYS(mmap(memory->addr, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
}

static void discard(struct memory *memory)
{
	SYS(madvise(memory->addr, PAGE, MADV_DONTNEED));
}

static void truncate_file(struct memory *memory)
{
	SYS(ftruncate(memory->fd, 2 * PAGE));
}

static void punch(struct memory *memory)
{
	SYS(fallocate(memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE));
}

static const struct loss {
	const char *name;
	enum memory_kind kind;
	void (*lose)(struct memory *memory);
} losses[] = {
	{ "munmap", ANON, unmap_all },
	{ "munmap_page", ANON, unmap_page },
	{ "mremap", ANON, move },
	{ "map_fixed", ANON, map_over },
	{ "dontneed", ANON, discard },
	{ "munmap_memfd", MEMFD, unmap_all },
	{ "truncate", MEMFD, truncate_file },
	{ "punch", MEMFD, punch },
	{ "dontneed_thp", THP, discard },
};

/*
 * The number has grown before the call returns, and the number of a registration that lost nothing
 * has not.
 */
TEST_EACH(generations, losses)
{
	struct memory memory = memory_new(row->kind, 8 * PAGE);
	int fd = open_device(0);
	struct numbers numbers = numbers_of(fd);
	char *still = anon(1);
	struct registration lost = register_memory(fd, memory.addr, memory.length, WRITE);
	struct registration other = register_memory(fd, still, PAGE, WRITE);
	uint64_t before = number(&numbers, &lost), others = number(&numbers, &other);

	row->lose(&memory);
	CHECK(number(&numbers, &lost) > before);
	CHECK_EQ(number(&numbers, &other), others);
	CHECK_EQ(query_handle(fd, lost.handle).out_state, PINMAP_STATE_STALE);
	/* the registration is known to be stale: its number does not change any more */
	before = number(&numbers, &lost);
	sleep_ms(20);
	CHECK_EQ(number(&numbers, &lost), before);
	CHECK_EQ(query_handle(fd, other.handle).out_state, PINMAP_STATE_LIVE);
}

/* A change that loses nothing may count, but then QUERY says that nothing was lost. */
TEST(generations_of_nothing)
{
	struct memory memory = memory_new(THP, HUGE);
	int fd = open_device(0);
	struct numbers numbers = numbers_of(fd);
	struct registration registration = register_memory(fd, memory.addr, HUGE / 2, WRITE);
	uint64_t before = number(&numbers, &registration);

	/* a neighbour in the same huge page */
	SYS(munmap(memory.addr + HUGE - PAGE, PAGE));
	CHECK(number(&numbers, &registration) > before);
	before = number(&numbers, &registration);
	CHECK_EQ(query_handle(fd, registration.handle).out_state, PINMAP_STATE_LIVE);
	CHECK_EQ(number(&numbers, &registration), before);
	SYS(mprotect(memory.addr, PAGE, PROT_READ));
	CHECK_EQ(number(&numbers, &registration), before);
	release(fd, registration.handle);
}

/* The page may be asked for late, and lasts as long as the context. */
TEST(generations_late)
{
	int fd = open_device(0);
	char *memory = anon(8);
	struct registration early = register_memory(fd, memory, PAGE, WRITE);
	struct numbers numbers;

	SYS(munmap(memory, PAGE));
	numbers = numbers_of(fd);
	CHECK_EQ(number(&numbers, &early), 0);
	early = register_memory(fd, memory + PAGE, PAGE, WRITE);
	SYS(munmap(memory + PAGE, PAGE));
	CHECK_EQ(number(&numbers, &early), 1);
	/* the mapping keeps the page */
	close(fd);
	CHECK(number(&numbers, &early) >= 1);
}

/* All numbers grow when the device goes, before anybody is told. */
TEST(generations_unbind)
{
	struct pci_device device = need_device(0);
	int fd = open_device(0);
	struct numbers numbers = numbers_of(fd);
	struct registration registration = register_memory(fd, anon(1), PAGE, NO_MAP);
	uint64_t before = number(&numbers, &registration);

	pci_unbind(device.bdf);
	CHECK(number(&numbers, &registration) > before);
	for (uint64_t i = 0; i < numbers.count; i++)
		CHECK(numbers.at[i] > 0);
	pci_bind(device.bdf);
}
