// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "harness.h"

#include "oracle.h"
#include "pci.h"

#include <dirent.h>
#include <fnmatch.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Many times what a test takes: it tells a hang from a busy machine. */
enum { USUAL_SECONDS = 60 };

static struct test *tests, **tests_end = &tests;
static char *skip_reason; /* shared with the test's process */
/* Set when a check fails. All processes that a test forks share it; after exec() there is none. */
static volatile bool *any_failed;
static const char *program;

void test_add(const struct test *test, const char *group, const char *name)
{
	struct test *copy = malloc(sizeof(*copy));
	char *full = NULL;

	if (!copy || asprintf(&full, "%s%s%s", group ? group : "", group ? "_" : "", name) < 0)
		abort();
	*copy = *test;
	copy->name = full;
	*tests_end = copy;
	tests_end = &copy->next;
}

/* One write for one line: several processes share the output. */
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

static void result(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say("", format, args);
	va_end(args);
}

void test_fail(const char *file, int line, const char *format, ...)
{
	char prefix[128];
	va_list args;

	snprintf(prefix, sizeof(prefix), "# %s:%d: ", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, line);
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
	vsnprintf(skip_reason, 256, format, args);
	va_end(args);
	test_end(EXIT_SKIP);
}

void test_end(int status)
{
	_exit(any_failed && *any_failed ? EXIT_FAIL : status);
}

void test_run(const struct test *test)
{
	siginfo_t child;

	any_failed = SYS(mmap(NULL, sizeof(*any_failed), PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	test->run(test->variant);
	/* the sweep would kill it, whatever it has still to check */
	if (!waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT))
		FAIL("leaves a child that it did not wait for");
	test_end(EXIT_PASS);
}

void test_reason(const char *reason)
{
	snprintf(skip_reason, 256, "%.*s", (int)strcspn(reason, "\n"), reason);
}

const char *error_name(int error)
{
	const char *name = error ? strerrorname_np(error) : "success";

	return name ? name : "a positive result";
}

uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ULL + now.tv_nsec / 1000000;
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
	unsigned int count = (debug_kernel() ? (usual + 9) / 10 : usual) * (scale ? atoi(scale) : 1);

	return count ? count : 1;
}

const char *program_name(void)
{
	return program;
}

static bool matches(const struct test *test, const char *pattern)
{
	char full[256];

	if (!strcmp(pattern, "smoke"))
		return test->smoke;
	snprintf(full, sizeof(full), "%s: %s", program, test->name);
	if (strpbrk(pattern, "*?["))
		return !fnmatch(pattern, full, 0) || !fnmatch(pattern, test->name, 0);
	return strstr(full, pattern);
}

/* A pattern that is the whole name of a test selects no other. */
static bool is_name(const char *pattern)
{
	char full[256];

	for (struct test *test = tests; test; test = test->next) {
		snprintf(full, sizeof(full), "%s: %s", program, test->name);
		if (!strcmp(pattern, full))
			return true;
	}
	return false;
}

static bool selected(const struct test *test, int count, char **patterns)
{
	/* what is meant for a machine without an IOMMU is run when asked for only */
	bool special = !strncmp(test->name, "noiommu_", 8);
	char full[256];

	snprintf(full, sizeof(full), "%s: %s", program, test->name);
	for (int i = 0; i < count; i++) {
		if (special && !strstr(patterns[i], "noiommu"))
			continue;
		if (is_name(patterns[i]) ? !strcmp(patterns[i], full) : matches(test, patterns[i]))
			return true;
	}
	return count == 0 && !special;
}

/* Waits for the test's process; its exit status, or -1 if it took too long. */
static int await(pid_t pid, unsigned int milliseconds)
{
	struct pollfd poller = { .fd = syscall(SYS_pidfd_open, pid, 0), .events = POLLIN };
	uint64_t until = now_ms() + milliseconds;
	int status = -1, left;

	do {
		left = until > now_ms() ? until - now_ms() : 0;
	} while (poll(&poller, 1, left) < 0 && errno == EINTR);
	close(poller.fd);
	if (waitpid(pid, &status, WNOHANG) != pid)
		return -1;
	return status;
}

static void show_stack(pid_t pid, const char *thread)
{
	char path[320], line[128];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/task/%s/stack", pid, thread);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = 0;
		diag("  %s", line);
	}
	if (file)
		fclose(file);
}

/* Where its threads are, the first of them. */
static void show_stacks(pid_t pid)
{
	struct dirent *thread;
	unsigned int shown = 0;
	char path[64];
	DIR *threads;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	threads = opendir(path);
	while (threads && (thread = readdir(threads)) && shown < 8) {
		if (thread->d_name[0] == '.')
			continue;
		if (shown++)
			diag("  another thread:");
		show_stack(pid, thread->d_name);
	}
	if (threads)
		closedir(threads);
}

/* Ends whatever the test has left running. False if something cannot be killed. */
static bool sweep(pid_t group)
{
	uint64_t until = now_ms() + slow(5000);
	pid_t pid;

	do {
		kill(-group, SIGKILL);
		while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
			;
		if (pid < 0)
			return true;
		sleep_ms(5);
	} while (now_ms() < until);
	return false;
}

static bool run(const struct test *test, unsigned int number)
{
	unsigned int seconds = test->seconds > USUAL_SECONDS ? test->seconds : USUAL_SECONDS, limit = slow(seconds * 1000);
	uint64_t began = now_ms();
	struct oracle oracle;
	bool good = true;
	int status;
	pid_t pid;

	skip_reason[0] = 0;
	oracle_begin(&oracle);
	pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		test_run(test);
	}
	setpgid(pid, pid);
	status = await(pid, limit);
	if (status == -1) {
		diag("takes longer than %u s, and hangs here:", limit / 1000);
		show_stacks(pid);
		good = false;
	} else if (WIFSIGNALED(status)) {
		diag("killed by SIG%s", sigabbrev_np(WTERMSIG(status)));
		good = false;
	} else if (WEXITSTATUS(status) != EXIT_PASS && WEXITSTATUS(status) != EXIT_SKIP) {
		good = false;
	}
	if (test->ended)
		test->ended(status);
	if (!sweep(pid)) {
		diag("leaves a process that SIGKILL does not end");
		good = false;
	}
	if (pci_restore())
		diag("left a device without its driver; bound again");
	if (!oracle_end(&oracle, test->faults, skip_reason[0] ? 0 : test->leaks))
		good = false;
	if (getenv("PINMAP_TEST_TIMES"))
		diag("%llu ms", (unsigned long long)(now_ms() - began));
	result("%sok %u - %s%s%s", good ? "" : "not ", number, test->name, good && skip_reason[0] ? " # SKIP " : "",
	       good ? skip_reason : "");
	return good;
}

int main(int argc, char **argv)
{
	unsigned int count = 0, number = 0, failed = 0;

	program = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
	if (helper_main && helper_main(argc, argv))
		return 0;
	if (add_listed) {
		if (argc < 2 || !(program = add_listed(argv[1])))
			return 2;
		argc--;
		argv++;
	}
	skip_reason = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (skip_reason == MAP_FAILED)
		return 2;
	/* orphans of a test are ours to end */
	prctl(PR_SET_CHILD_SUBREAPER, 1);

	for (struct test *test = tests; test; test = test->next)
		count += selected(test, argc - 1, argv + 1);
	result("1..%u%s", count, count ? "" : " # SKIP no test of that name");
	for (struct test *test = tests; test; test = test->next)
		if (selected(test, argc - 1, argv + 1))
			failed += !run(test, ++number);
	return failed != 0;
}
