// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "container.h"

#include "device.h"
#include "file.h"
#include "pins.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Makes the image, of programs that need no library. */
static const char image[] =
	"root=$(mktemp -d)\n"
	"mkdir -p $root/usr/bin $root/proc $root/sys $root/dev $root/run $root/tmp $root/etc\n"
	"ln -s usr/bin $root/bin\n"
	"cd /usr/lib/pinmap/bin && cp busybox pinmap zero_copy $root/usr/bin/\n"
	"cp /usr/lib/pinmap/tests/container $root/usr/bin/\n"
	"for name in sh cat id ls mknod; do ln -s busybox $root/usr/bin/$name; done\n"
	"tar -C $root -c . | podman import -q - pinmap && rm -r $root";

/* The names of devices for containers; it comes after the image. */
#define NAMES "/etc/cdi/pinmap.json"

static char output[1 << 14];

const char *printed(void)
{
	return output;
}

/* Reads all that the other end writes; what does not fit is lost. */
static void keep_output(int end)
{
	char lost[256];
	size_t length = 0;
	ssize_t got;

	do {
		size_t room = sizeof(output) - 1 - length;

		got = room ? read(end, output + length, room) : read(end, lost, sizeof(lost));
		length += room && got > 0 ? got : 0;
	} while (got > 0);
	output[length] = 0;
}

int run_as(const char *user, const char *format, ...)
{
	int ends[2], status;
	va_list arguments;
	char *line;
	pid_t pid;

	va_start(arguments, format);
	CHECK(vasprintf(&line, format, arguments) > 0);
	va_end(arguments);
	SYS(pipe2(ends, O_CLOEXEC));
	pid = SYS(fork());
	if (pid == 0) {
		dup2(ends[1], STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		/*
		 * A session, in which the user's own systemd makes control groups. What stays of
		 * podman's is not this test's child.
		 */
		if (strcmp(user, "root"))
			execlp("systemd-run", "systemd-run", "--quiet", "--wait", "--pipe",
			       "--collect", "--uid", user, "-pPAMName=login",
			       "-pWorkingDirectory=~", "-pLimitMEMLOCK=infinity", "sh", "-c", line,
			       NULL);
		execlp("sh", "sh", "-c", line, NULL);
		_exit(127);
	}
	close(ends[1]);
	keep_output(ends[0]);
	close(ends[0]);
	SYS(waitpid(pid, &status, 0));
	free(line);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

struct pci_device need_containers(void)
{
	const char *machine = getenv("PINMAP_SYSTEMD");

	if (!machine || !*machine)
		SKIP("there are no containers: scripts/vm --systemd");
	if (access(NAMES, F_OK)) {
		CHECK_RUN(as_user, 0, "", "%s", image);
		CHECK_RUN(as_root, 0, "", "pinmap cdi --output " NAMES);
	}
	return need_device(0);
}

void await_pins(long long pins)
{
	if (!WAIT_FOR(slow(30000), pins_held() > pins))
		FAIL("nothing is pinned");
}

/*
 * In a container or a unit: "--register NODE MIB [hold]" registers memory, says what came of it,
 * and keeps it until it is killed.
 */
bool helper_main(int argc, char **argv)
{
	struct pinmap_register args;
	char text[32] = "?";
	size_t length;
	char *memory;
	int fd, result;

	if (argc < 4 || strcmp(argv[1], "--register"))
		return false;
	length = strtoul(argv[3], NULL, 0) * MIB;
	fd = SYS(open(argv[2], O_RDWR | O_CLOEXEC));
	memory = SYS(mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			  0));
	args = register_args(memory, length, WRITE);
	result = try_register_args(fd, &args);
	if (result) {
		printf("%s, reason %u, needed %llu, allowed %llu\n", error_name(-result),
		       args.fail.reason, (unsigned long long)args.fail.needed,
		       (unsigned long long)args.fail.allowed);
		exit(1);
	}
	(void)try_file_read("/sys/fs/cgroup/memory.current", text, sizeof(text));
	printf("registered, memory.current %s\n", text);
	fflush(stdout);
	if (argc > 4)
		pause();
	return true;
}
