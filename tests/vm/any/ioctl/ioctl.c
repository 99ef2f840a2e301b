// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The rules that hold for every ioctl: the size of its struct, unknown flags, pointers.
 *
 * Each test is one rule and goes through all ioctls (ioctls.c), on flat and on paged devices, where
 * those that a flat device does not support obey the same rules before they say so.
 */
#define _GNU_SOURCE
#include "ioctls.h"

#include "edu.h"
#include "memory.h"
#include "pins.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FOR_EACH_COMMAND(command) \
	for (const struct command *command = commands; command < commands + NR_COMMANDS; command++)

static void expect(const struct command *command, const char *what, int wanted, int result)
{
	if (result != -wanted)
		FAIL("%s, %s: %s instead of %s", command->name, what, error_name(-result),
		     error_name(wanted));
}

static char *pages(size_t count)
{
	return SYS(mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			0));
}

/* The error of a good argument: some devices lack what it asks for. */
static int answer(const struct context *context, const struct command *command)
{
	struct pinmap_info info = get_info(context->fd);

	if (command->number == PINMAP_GET_RESERVED)
		return info.out_nr_reserved ? 0 : ENOENT;
	if (command->number == PINMAP_RESET)
		return info.out_flags & PINMAP_INFO_RESET ? 0 : EOPNOTSUPP;
	if (command->mirror && !(info.out_flags & PINMAP_INFO_MANAGED))
		return EOPNOTSUPP;
	return command->paged && !context->paged ? EOPNOTSUPP : 0;
}

/*
 * Makes the call with a good argument of @size bytes, with @tail in all bytes behind the known
 * part.
 */
static int call(const struct context *context, const struct command *command, char *memory,
		uint32_t size, unsigned char tail)
{
	union argument *argument = (union argument *)memory;

	memset(memory, tail, 3 * PAGE);
	memset(memory, 0, command->size);
	command->fill(context, argument);
	argument->size = size;
	return try_ioctl(context->fd, command->number, argument);
}

/* Makes the call with zeros behind the known part; in a context of its own, since it succeeds. */
static void check_size(const struct command *command, char *memory, const char *what, uint32_t size)
{
	struct context context = context_new();

	expect(command, what, answer(&context, command), call(&context, command, memory, size, 0));
	context_end(&context);
}

TEST(size_too_small)
{
	struct context context = context_new();
	char *memory = pages(3);

	FOR_EACH_COMMAND(command) {
		expect(command, "size 0", EINVAL, call(&context, command, memory, 0, 0));
		expect(command, "size 4", EINVAL, call(&context, command, memory, 4, 0));
		expect(command, "a byte less", EINVAL,
		       call(&context, command, memory, command->size - 1, 0));
	}
}

/* A field that the driver does not know is not ignored, unless it is zero. */
TEST(size_with_unknown_fields)
{
	struct context context = context_new();
	char *memory = pages(3);

	FOR_EACH_COMMAND(command) {
		size_t size = command->size;

		expect(command, "a byte more", E2BIG,
		       call(&context, command, memory, size + 1, 0xff));
		expect(command, "8 bytes more", E2BIG,
		       call(&context, command, memory, size + 8, 0x01));
		expect(command, "a page", E2BIG, call(&context, command, memory, PAGE, 0x80));
	}
}

TEST(size_over_a_page)
{
	struct context context = context_new();
	char *memory = pages(3);

	FOR_EACH_COMMAND(command) {
		expect(command, "over a page", E2BIG, call(&context, command, memory, PAGE + 1, 0));
		expect(command, "4 GiB", E2BIG, call(&context, command, memory, UINT32_MAX, 0));
	}
}

TEST(size_known)
{
	char *memory = pages(3);

	FOR_EACH_COMMAND(command)
		check_size(command, memory, "the whole struct", command->size);
}

/* Programs built with a newer header, that use nothing of it. */
TEST(size_with_unknown_zeros)
{
	char *memory = pages(3);

	FOR_EACH_COMMAND(command) {
		check_size(command, memory, "a zero byte more", command->size + 1);
		check_size(command, memory, "8 zero bytes more", command->size + 8);
		check_size(command, memory, "a page of zeros", PAGE);
	}
}

/* All bytes behind the size that the caller gave belong to the caller. */
TEST(tail_untouched)
{
	char *memory = pages(2);
	union argument *argument = (union argument *)memory;

	FOR_EACH_COMMAND(command) {
		struct context context = context_new();

		memset(memory, 0xaa, 2 * PAGE);
		memset(memory, 0, command->size);
		command->fill(&context, argument);
		argument->size = command->size;
		try_ioctl(context.fd, command->number, argument);
		if (!bytes_are(memory + command->size, 2 * PAGE - command->size, 0xaa))
			FAIL("%s writes behind its struct", command->name);
		if (argument->size != command->size)
			FAIL("%s changes the size", command->name);
		context_end(&context);
	}
}

TEST(unknown_flags)
{
	struct context context = context_new();

	FOR_EACH_COMMAND(command) {
		for (unsigned int bit = 0; bit < 32; bit++) {
			union argument argument = { 0 };

			if (command->flags & 1U << bit)
				continue;
			command->fill(&context, &argument);
			argument.size = command->size;
			argument.flags |= 1U << bit;
			if (try_ioctl(context.fd, command->number, &argument) != -EOPNOTSUPP)
				FAIL("%s takes flag %#x", command->name, 1U << bit);
		}
	}
}

TEST(reserved_fields)
{
	struct context context = context_new();

	FOR_EACH_COMMAND(command) {
		for (unsigned int byte = 0; byte < 4 && command->reserved; byte++) {
			union argument argument = { 0 };

			command->fill(&context, &argument);
			argument.size = command->size;
			((char *)&argument)[command->reserved + byte] = 1;
			if (try_ioctl(context.fd, command->number, &argument) != -EOPNOTSUPP)
				FAIL("%s takes a reserved field that is not zero", command->name);
		}
	}
}

static bool is_known(unsigned int number)
{
	FOR_EACH_COMMAND(command)
		if (_IOC_NR(command->number) == number)
			return true;
	return false;
}

TEST(unknown_numbers, .smoke = true)
{
	uint32_t argument[16] = { sizeof(argument) };
	int fd = open_device(0);

	for (unsigned int number = 0; number < 256; number++)
		if (!is_known(number))
			CHECK_ERR(ENOTTY, try_ioctl(fd, _IO(PINMAP_IOCTL_TYPE, number), argument));
	/* a number comes before its argument */
	CHECK_ERR(ENOTTY, try_ioctl(fd, _IO(PINMAP_IOCTL_TYPE, 0xff), NULL));
}

/* A number that encodes a size, or that has another driver's type, is unknown. */
TEST(numbers_of_others)
{
	uint32_t argument[16] = { sizeof(argument) };
	int fd = open_device(0);

	for (unsigned int number = 0; number < 256; number++) {
		unsigned int type = PINMAP_IOCTL_TYPE;

		CHECK_ERR(ENOTTY, try_ioctl(fd, _IOC(_IOC_WRITE, type, number, 64), argument));
		CHECK_ERR(ENOTTY,
			  try_ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, type, number, 8), argument));
		CHECK_ERR(ENOTTY, try_ioctl(fd, _IO(type + 1, number), argument));
		CHECK_ERR(ENOTTY, try_ioctl(fd, _IO(';', number), argument));
	}
}

TEST(bad_pointers)
{
	char *memory = pages(2), *hole = memory + PAGE;
	int fd = open_device(0);

	SYS(munmap(hole, PAGE));
	FOR_EACH_COMMAND(command) {
		const uintptr_t bad[] = {
			0,
			8,
			(uintptr_t)hole,
			(uintptr_t)0xffff888000000000,
			(uintptr_t)0x800000000000,
			UINTPTR_MAX,
			(uintptr_t)hole - 2, /* half of the size */
			(uintptr_t)hole - 4, /* the size, and nothing else */
		};

		*(uint32_t *)(hole - 4) = command->size;
		for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
			if (try_ioctl(fd, command->number, (void *)bad[i]) != -EFAULT)
				FAIL("%s takes the pointer %#llx", command->name,
				     (unsigned long long)bad[i]);
		}
	}
}

/* Makes the call with the first @bytes bytes of a good argument of @size bytes, before @hole. */
static int call_at(const struct context *context, const struct command *command, char *hole,
		   size_t bytes, uint32_t size)
{
	union argument argument = { 0 };

	command->fill(context, &argument);
	argument.size = size;
	memcpy(hole - bytes, &argument, bytes);
	return try_ioctl(context->fd, command->number, hole - bytes);
}

/* No byte behind the struct is read, and a wrong size is told of before what cannot be read. */
TEST(struct_at_a_hole)
{
	struct context context = context_new();
	char *hole = pages(2) + PAGE;

	SYS(munmap(hole, PAGE));
	FOR_EACH_COMMAND(command) {
		size_t size = command->size;

		expect(command, "size 0", EINVAL, call_at(&context, command, hole, 4, 0));
		expect(command, "size 4", EINVAL, call_at(&context, command, hole, 4, 4));
		expect(command, "a byte less", EINVAL,
		       call_at(&context, command, hole, size - 1, size - 1));
		expect(command, "over a page", E2BIG,
		       call_at(&context, command, hole, 4, PAGE + 1));
		expect(command, "4 GiB", E2BIG,
		       call_at(&context, command, hole, 4, UINT32_MAX));
		expect(command, "a byte more", EFAULT,
		       call_at(&context, command, hole, size, size + 1));
	}
	context_end(&context);
	FOR_EACH_COMMAND(command) {
		size_t size = command->size;

		context = context_new();
		expect(command, "the whole struct", answer(&context, command),
		       call_at(&context, command, hole, size, size));
		context_end(&context);
	}
}

/* A good argument in a page that can only be read. */
static int call_read_only(const struct context *context, const struct command *command)
{
	char *memory = pages(1);
	union argument *argument = (union argument *)memory;
	int result;

	command->fill(context, argument);
	argument->size = command->size;
	SYS(mprotect(memory, PAGE, PROT_READ));
	result = try_ioctl(context->fd, command->number, argument);
	munmap(memory, PAGE);
	return result;
}

/* A call that cannot report its result leaves nothing behind. */
TEST(answer_cannot_be_written)
{
	FOR_EACH_COMMAND(command) {
		struct context context = context_new();
		struct pinmap_info before = get_info(context.fd), after;
		long long pins = pins_held();

		if (!command->writes_back || answer(&context, command)) {
			context_end(&context);
			continue;
		}
		expect(command, "a read-only struct", EFAULT, call_read_only(&context, command));
		after = get_info(context.fd);
		if (after.out_registrations != before.out_registrations ||
		    after.out_memlock_used != before.out_memlock_used ||
		    query_handle(context.fd, context.pinned.handle).out_nr_mappings != 0)
			FAIL("%s has done something that it could not report", command->name);
		CHECK_PINS(pins);
		context_end(&context);
	}
}

/* A call that has nothing to report needs no memory that can be written. */
TEST(no_answer_is_written)
{
	FOR_EACH_COMMAND(command) {
		struct context context = context_new();

		if (!command->writes_back)
			expect(command, "a read-only struct", answer(&context, command),
			       call_read_only(&context, command));
		context_end(&context);
	}
}

/* Neither the memory nor the device addresses are taken by a REGISTER that could not report. */
TEST(register_again_after_bad_answer)
{
	struct context context = context_new();
	struct pinmap_query query;

	FOR_EACH_COMMAND(command)
		if (command->number == PINMAP_REGISTER)
			CHECK_ERR(EFAULT, call_read_only(&context, command));
	CHECK_ERR(ENOENT, try_query_addr(context.fd, context.page, &query));
	register_memory(context.fd, context.page, PAGE, WRITE | IDENTITY);
}
