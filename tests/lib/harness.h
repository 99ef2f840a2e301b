/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Tests: how one is written, checked and run.
 *
 * Each test runs in a process of its own (tests/runner/), which prints what the reader of the
 * results should know and exits with one of the statuses below.
 */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))

/**
 * struct test - one test
 * @name: unique in its program
 * @run: what it does
 * @variant: passed to @run
 * @seconds: what it takes at most on a quick kernel; 0: as long as most, which is also the least
 * @smoke: belongs to the few that show whether anything works at all
 * @faults: the IOMMU is expected to report faults
 * @leaks: pages that stay pinned
 */
struct test {
	const char *name;
	void (*run)(const void *variant);
	const void *variant;
	unsigned int seconds;
	bool smoke;
	bool faults;
	unsigned int leaks;
	struct test *next;
};

/* Exit statuses of a test's process. A skipped test prints the reason last. */
enum { EXIT_PASS = 0, EXIT_FAIL = 1, EXIT_SKIP = 4 };

void test_add(const struct test *test, const char *group, const char *name);

/* Defines a test: TEST(name, .option = ...) { ... } */
#define TEST(name_, ...)									\
	static void test_##name_(void);								\
	static void run_##name_(const void *variant)						\
	{											\
		(void)variant;									\
		test_##name_();									\
	}											\
	__attribute__((constructor)) static void add_##name_(void)				\
	{											\
		test_add(&(struct test){ .run = run_##name_, __VA_ARGS__ }, NULL, #name_);	\
	}											\
	static void test_##name_(void)

/*
 * Defines one test for each row of a table whose rows begin with a name: TEST_EACH(group, table,
 * .option = ...) { uses row }
 */
#define TEST_EACH(group_, table_, ...)								\
	static void each_##group_(const __typeof__((table_)[0]) * row);				\
	static void run_##group_(const void *variant)						\
	{											\
		each_##group_(variant);								\
	}											\
	__attribute__((constructor)) static void add_##group_(void)				\
	{											\
		for (size_t i = 0; i < ARRAY_SIZE(table_); i++)					\
			test_add(&(struct test){ .run = run_##group_, .variant = &(table_)[i], \
						 __VA_ARGS__ }, #group_, \
				 (table_)[i].name);						\
	}											\
	static void each_##group_(const __typeof__((table_)[0]) * row)

/* Prints a line for the reader of the results. */
void diag(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * Runs a test and ends this process with the test's verdict. A check that fails in any process that
 * the test has forked fails the test, however that process is waited for. A test that returns while
 * it still has a child fails.
 */
void test_run(const struct test *test) __attribute__((noreturn));
/* Ends this process with @status, or with EXIT_FAIL if a check has failed in another one. */
void test_end(int status) __attribute__((noreturn));

/* Ends this process. The test fails, also if this is a thread or a child. */
void test_fail(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4), noreturn));
void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#define FAIL(...) test_fail(__FILE__, __LINE__, __VA_ARGS__)
#define SKIP(...) test_skip(__VA_ARGS__)

#define CHECK(condition)						\
	do {								\
		if (!(condition))					\
			FAIL("not true: %s", #condition);		\
	} while (0)

#define CHECK_EQ(left, right)									\
	do {											\
		long long left_ = (long long)(left), right_ = (long long)(right);		\
		if (left_ != right_)								\
			FAIL("%s is %lld (%#llx), but %s is %lld (%#llx)", #left, left_, left_, \
			     #right, right_, \
			     right_);								\
	} while (0)

/* For calls that return 0 or -errno. */
#define CHECK_OK(call)							\
	do {								\
		int result_ = (call);					\
		if (result_)						\
			FAIL("%s: %s", #call, error_name(-result_));	\
	} while (0)

#define CHECK_ERR(errno_, call)									\
	do {											\
		int result_ = (call), wanted_ = (errno_);					\
		if (result_ != -wanted_)							\
			FAIL("%s: %s instead of %s", #call, error_name(-result_), \
			     error_name(wanted_)); \
	} while (0)

/*
 * For calls that set errno: returns the value, which must not be -1 (nor MAP_FAILED, which is the
 * same).
 */
#define SYS(call)							\
	({								\
		__typeof__(call) value_ = (call);			\
		if ((intptr_t)value_ == -1)				\
			FAIL("%s: %s", #call, error_name(errno));	\
		value_;							\
	})

/*
 * Waits until the condition holds. The time is what it takes on a quick kernel that has nothing
 * else to do; the macro waits ten seconds longer, since the machine may be busy. It says when to
 * give up, not how quick something is.
 */
#define WAIT_FOR(milliseconds, condition)					\
	({									\
		uint64_t until_ = now_ms() + slow((milliseconds) + 10000);	\
		bool holds_;							\
		while (!(holds_ = (condition)) && now_ms() < until_)		\
			sleep_ms(2);						\
		holds_ || (condition);						\
	})

const char *error_name(int error);
uint64_t now_ns(void);
uint64_t now_ms(void);
/* Waits without sleeping. */
void spin_ns(uint64_t nanoseconds);
void sleep_ms(unsigned int milliseconds);

/* Whether this kernel has checks and fault injection: everything takes several times as long. */
bool debug_kernel(void);
/* Returns a time limit: @milliseconds, and several times as much on a debug kernel. */
unsigned int slow(unsigned int milliseconds);
/*
 * How often to repeat something: fewer times on a debug kernel, PINMAP_TEST_SCALE times as often
 * for a long run.
 */
unsigned int rounds(unsigned int usual);

/* The name that this program was called by: `abi` and `abi32` are the same source. */
const char *program_name(void);

/*
 * Defined by a program that executes itself; returns true if this was such a call, which is over
 * now.
 */
bool helper_main(int argc, char **argv) __attribute__((weak));

#endif
