// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Runs the tests of all programs, as root in the VM, and prints the results as one TAP stream.
 *
 * Each test runs in a process of its own with a time limit, so that a crash or a hang is a failure
 * and not the end. Before and after it the oracle looks at the kernel (see oracle.h). Numbers and
 * names are final: nobody counts or renames the results later.
 *
 * Everything that a test prints is kept back until it has ended, and then shown as comments; what
 * it says on stderr is shown if the test fails.
 */
#define _GNU_SOURCE
#include "harness.h"

#include "file.h"
#include "list.h"
#include "oracle.h"
#include "pci.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Time limit of a test. */
enum { USUAL_SECONDS = 60 };
/* How many times that limit a test gets, so that a hang is told from a busy machine. */
enum { BUSY = 4 };

/* How many tests --timings names. */
enum { SLOWEST = 40 };

static const char usage[] =
	"usage: run [--timings] [--share K/N] [PATTERN...]\n"
	"Runs the tests in this directory. PATTERN: a test's name or a part of it (\"dma: \" for\n"
	"a whole program), a glob, or \"smoke\" for the few that show whether anything works;\n"
	"with a \"!\" before it, what matches is left out.\n"
	"--timings: tells how long each test takes, and the slowest.\n"
	"--share K/N: of these tests, only every N-th from number K on (0 is the first), and\n"
	"the \"smoke\" ones.\n";

/* The files that a test's process writes to. */
struct output {
	int out;
	int err;
};

static void run_program(const struct listed *test, const struct output *output)
{
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
	dup2(output->out, STDOUT_FILENO);
	dup2(output->err, STDERR_FILENO);
	execl(test->path, test->path, "--run", test->name, NULL);
	dprintf(STDERR_FILENO, "%s: %s\n", test->path, error_name(errno));
	_exit(127);
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

/* Shows where the first of the process's threads are in the kernel. */
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

/* Ends all processes that the test has left running; false: one of them cannot be killed. */
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

/*
 * Makes the devices work for the tests that follow one that failed. In a process of its own, since
 * a driver that is broken may never answer.
 */
static void renew(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		setpgid(0, 0);
		_exit(pci_renew() ? EXIT_PASS : EXIT_FAIL);
	}
	setpgid(pid, pid);
	if (await(pid, slow(60000)) != 0)
		diag("the devices cannot be bound anew");
	sweep(pid);
}

static char *content(int file)
{
	off_t size = lseek(file, 0, SEEK_END);
	char *text = calloc(1, size + 1);

	if (!text || pread(file, text, size, 0) != size)
		abort();
	close(file);
	return text;
}

/* Takes the last line off the text and returns it. */
static const char *last_line(char *text)
{
	size_t length = strlen(text);
	char *end;

	while (length && text[length - 1] == '\n')
		text[--length] = 0;
	end = strrchr(text, '\n');
	if (!end) {
		end = strdup(text);
		text[0] = 0;
		return end;
	}
	*end = 0;
	return end + 1;
}

static void show(char *text)
{
	char *rest = NULL;

	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		diag("%s", strncmp(line, "# ", 2) ? line : line + 2);
}

/* Runs one test; returns false if it fails, and the reason if it is skipped. */
static bool run(const struct listed *test, const char **skipped)
{
	unsigned int seconds = BUSY * (test->seconds > USUAL_SECONDS ? test->seconds :
								       USUAL_SECONDS);
	struct output output = { memfd_create("out", MFD_CLOEXEC),
				 memfd_create("err", MFD_CLOEXEC) };
	struct oracle oracle;
	char *said, *complained;
	int status;
	bool good;
	pid_t pid;

	oracle_begin(&oracle);
	pid = fork();
	if (pid == 0)
		run_program(test, &output);
	setpgid(pid, pid);
	status = await(pid, slow(seconds * 1000));
	good = status != -1 && WIFEXITED(status) &&
	       (WEXITSTATUS(status) == EXIT_PASS || WEXITSTATUS(status) == EXIT_SKIP);
	said = content(output.out);
	complained = content(output.err);
	if (good && WEXITSTATUS(status) == EXIT_SKIP) {
		*skipped = last_line(said);
		if (!(*skipped)[0])
			*skipped = "no reason is given";
	}
	show(said);
	if (!good)
		show(complained);
	if (status == -1) {
		diag("takes longer than %u s, and hangs here:", slow(seconds * 1000) / 1000);
		show_stacks(pid);
	} else if (WIFSIGNALED(status)) {
		diag("killed by SIG%s", sigabbrev_np(WTERMSIG(status)));
	}
	if (!sweep(pid)) {
		diag("leaves a process that SIGKILL does not end");
		good = false;
	}
	if (pci_restore())
		diag("left a device without its driver; bound again");
	if (!oracle_end(&oracle, test->faults, *skipped ? 0 : test->leaks))
		good = false;
	if (!good)
		renew();
	free(complained);
	return good;
}

static unsigned int *times;

static int slower(const void *left, const void *right)
{
	unsigned int a = times[*(const unsigned int *)left],
		     b = times[*(const unsigned int *)right];

	return (a < b) - (a > b);
}

static void show_slowest(struct listed *const *order, unsigned int count)
{
	unsigned int *by_time = calloc(count, sizeof(*by_time));
	unsigned long long total = 0;

	for (unsigned int i = 0; i < count; i++) {
		by_time[i] = i;
		total += times[i];
	}
	qsort(by_time, count, sizeof(*by_time), slower);
	diag("%u tests took %llu ms; the slowest:", count, total);
	for (unsigned int i = 0; i < count && i < SLOWEST; i++)
		diag("%8u ms  %s", times[by_time[i]], order[by_time[i]]->full);
	free(by_time);
}

int main(int argc, char **argv)
{
	unsigned int count, number = 0, failed = 0, share = 0, of = 1;
	struct listed *tests, **order;
	bool timings = false;
	char *directory;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (; argc > 1 && !strncmp(argv[1], "--", 2); argc--, argv++) {
		if (!strcmp(argv[1], "--timings")) {
			timings = true;
		} else if (!strcmp(argv[1], "--share") && argc > 2 &&
			   sscanf(argv[2], "%u/%u", &share, &of) == 2 && share < of) {
			argc--, argv++;
		} else {
			fputs(usage, strcmp(argv[1], "--help") ? stderr : stdout);
			return strcmp(argv[1], "--help") ? 2 : 0;
		}
	}
	directory = realpath("/proc/self/exe", NULL);
	if (!directory)
		return 2;
	*strrchr(directory, '/') = 0;
	/* orphans of a test are ours to end */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	pci_remember();
	/*
	 * khugepaged makes huge pages of blocks with a few pages in device memory, for which it
	 * brings these home. It must not do so while a test counts where pages are.
	 */
	try_file_write("/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_swap", "0");

	tests = list_tests(directory);
	count = select_tests(tests, argc - 1, argv + 1, share, of);
	printf("TAP version 13\n1..%u%s\n", count, count ? "" : " # SKIP no test of that name");
	times = calloc(count + 1, sizeof(*times));
	order = calloc(count + 1, sizeof(*order));
	for (struct listed *test = tests; test; test = test->next) {
		const char *skipped = NULL;
		uint64_t began = now_ms();
		bool good;

		if (!test->selected)
			continue;
		good = test->name && run(test, &skipped);
		times[number] = now_ms() - began;
		order[number] = test;
		if (timings)
			diag("%u ms", times[number]);
		number++;
		printf("%sok %u - %s%s%s\n", good ? "" : "not ", number, test->full,
		       good && skipped ? " # SKIP " : "", good && skipped ? skipped : "");
		failed += !good;
	}
	if (timings)
		show_slowest(order, count);
	return failed || !count;
}
