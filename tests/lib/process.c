// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "process.h"

#include "device.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct gate gate_new(void)
{
	struct gate gate;

	SYS(pipe2(gate.ends, O_CLOEXEC));
	return gate;
}

void gate_open(const struct gate *gate)
{
	CHECK_EQ(write(gate->ends[1], "", 1), 1);
}

void gate_pass(const struct gate *gate)
{
	struct pollfd poller = { .fd = gate->ends[0], .events = POLLIN };
	char byte;

	if (poll(&poller, 1, slow(120000)) <= 0 || read(gate->ends[0], &byte, 1) != 1)
		FAIL("the other process does not come along");
}

void join(pid_t pid)
{
	int status;

	CHECK_EQ(SYS(waitpid(pid, &status, 0)), pid);
	if (WIFSIGNALED(status))
		FAIL("a child was killed by SIG%s", sigabbrev_np(WTERMSIG(status)));
	/* the child has said why */
	if (WEXITSTATUS(status))
		test_end(WEXITSTATUS(status));
}

void join_killed(pid_t pid, int signal)
{
	int status;

	CHECK_EQ(SYS(waitpid(pid, &status, 0)), pid);
	if (!WIFSIGNALED(status))
		FAIL("a child exits with %d instead of dying from SIG%s", WEXITSTATUS(status),
		     sigabbrev_np(signal));
	CHECK_EQ(WTERMSIG(status), signal);
}

bool runs_still(pid_t pid)
{
	siginfo_t info = { 0 };

	SYS(waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT));
	return info.si_pid == 0;
}

bool sleeps_in(pid_t task, const char *function)
{
	char path[32], stack[4096];
	ssize_t got;
	int file;

	snprintf(path, sizeof(path), "/proc/%d/stack", task);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return false;
	got = read(file, stack, sizeof(stack) - 1);
	stack[got > 0 ? got : 0] = 0;
	close(file);
	return strstr(stack, function) != NULL;
}

void kill_now(pid_t pid)
{
	struct pollfd poller = { .fd = SYS(syscall(SYS_pidfd_open, pid, 0)), .events = POLLIN };

	SYS(kill(pid, SIGKILL));
	if (poll(&poller, 1, slow(60000)) != 1)
		FAIL("SIGKILL does not end a process");
	close(poller.fd);
	SYS(waitpid(pid, NULL, 0));
}

union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(sizeof(int))];
};

static void *task_run(void *argument)
{
	struct task *task = argument;

	task->id = gettid();
	task->result = task->what(task);
	task->is_over = true;
	return NULL;
}

void task_begin(struct task *task)
{
	CHECK_EQ(pthread_create(&task->thread, NULL, task_run, task), 0);
	CHECK(WAIT_FOR(5000, task->id != 0));
}

int task_end(struct task *task)
{
	CHECK_EQ(pthread_join(task->thread, NULL), 0);
	return task->result;
}

int task_release(struct task *task)
{
	return try_release(task->fd, task->handle);
}

void send_fd(int socket, int fd)
{
	union control control = { 0 };
	struct iovec part = { .iov_base = "", .iov_len = 1 };
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	CHECK_EQ(SYS(sendmsg(socket, &message, 0)), 1);
}

int receive_fd(int socket)
{
	union control control = { 0 };
	char byte;
	struct iovec part = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	int fd;

	CHECK_EQ(SYS(recvmsg(socket, &message, MSG_CMSG_CLOEXEC)), 1);
	CHECK(CMSG_FIRSTHDR(&message));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

void become_user(bool in_group)
{
	gid_t group = PINMAP_GROUP_ID;

	SYS(setgroups(in_group ? 1 : 0, &group));
	SYS(setgid(USER_ID));
	SYS(setuid(USER_ID));
}

void set_memlock(uint64_t bytes)
{
	struct rlimit limit = { .rlim_cur = bytes, .rlim_max = bytes };

	SYS(setrlimit(RLIMIT_MEMLOCK, &limit));
}
