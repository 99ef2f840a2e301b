// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "harness.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Set when a check fails. All processes that a test forks share it; after exec() there is none. */
static volatile bool *any_failed;

/* Prints a line by one write, since several processes share the output. */
static void say(const char *prefix, const char *format, va_list args)
{
	char line[1024];
	int length = snprintf(line, sizeof(line), "%s", prefix);

	length += vsnprintf(line + length, sizeof(line) - length - 1, format, args);
	if (length > (int)sizeof(line) - 2)
		length = sizeof(line) - 2;
	line[length++] = '\n';
	if (write(STDOUT_FILENO, line, length) < 0)
		return;
}

void diag(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say("# ", format, args);
	va_end(args);
}

void test_fail(const char *file, int line, const char *format, ...)
{
	char prefix[128];
	va_list args;

	snprintf(prefix, sizeof(prefix), "# %s:%d: ", file, line);
	va_start(args, format);
	say(prefix, format, args);
	va_end(args);
	if (any_failed)
		*any_failed = true;
	_exit(EXIT_FAIL);
}

void test_skip(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say("", format, args);
	va_end(args);
	test_end(EXIT_SKIP);
}

/* Where the C library is built so that it writes down what is executed (scripts/coverage). */
int __llvm_profile_write_file(void) __attribute__((weak));

void test_end(int status)
{
	if (__llvm_profile_write_file)
		__llvm_profile_write_file();
	_exit(any_failed && *any_failed ? EXIT_FAIL : status);
}

void test_run(const struct test *test)
{
	siginfo_t child;

	any_failed = SYS(mmap(NULL, sizeof(*any_failed), PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	test->run(test->variant);
	/* the end of the test kills the child, even if it has something left to check */
	if (!waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT))
		FAIL("leaves a child that it did not wait for");
	test_end(EXIT_PASS);
}

const char *error_name(int error)
{
	const char *name = error ? strerrorname_np(error) : "success";

	return name ? name : "a positive result";
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

uint64_t now_ms(void)
{
	return now_ns() / 1000000;
}

void spin_ns(uint64_t nanoseconds)
{
	uint64_t until = now_ns() + nanoseconds;

	while (now_ns() < until)
		;
}

void sleep_ms(unsigned int milliseconds)
{
	usleep(milliseconds * 1000);
}

bool debug_kernel(void)
{
	static int known = -1;

	if (known < 0)
		known = access("/proc/self/fail-nth", F_OK) == 0;
	return known;
}

unsigned int slow(unsigned int milliseconds)
{
	return debug_kernel() ? milliseconds * 5 : milliseconds;
}

unsigned int rounds(unsigned int usual)
{
	const char *scale = getenv("PINMAP_TEST_SCALE");
	unsigned int count =
		(debug_kernel() ? (usual + 9) / 10 : usual) * (scale ? atoi(scale) : 1);

	return count ? count : 1;
}
