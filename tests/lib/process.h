/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Other processes and threads: waiting for each other, handing over descriptors, being others. */
#ifndef TESTS_PROCESS_H
#define TESTS_PROCESS_H

#include "harness.h"

#include <pthread.h>
#include <sys/types.h>

enum { USER_ID = 1000, PINMAP_GROUP_ID = 900 };

/* A gate is closed until somebody opens it; each opening lets one pass. Made before fork(). */
struct gate {
	int ends[2];
};

struct gate gate_new(void);
void gate_open(const struct gate *gate);
void gate_pass(const struct gate *gate);

/* Waits for a child, in which every check must have held; a skip in the child skips the test. */
void join(pid_t pid);
/* Waits for a child, which must die from this signal. */
void join_killed(pid_t pid, int signal);
/* Whether a child has not ended yet. */
bool runs_still(pid_t pid);
/* Whether a task, a thread or a child, sleeps in the kernel in a function with this in its name. */
bool sleeps_in(pid_t task, const char *function);
/* Kills a child and waits for it; it must die at once. */
void kill_now(pid_t pid);

/**
 * struct task - a thread that makes one call
 * @what: makes the call: 0 or -errno
 * @fd: for @what; so are @handle and @argument
 * @id: the number of the thread
 * @is_over: @what has returned
 * @result: of @what
 */
struct task {
	int (*what)(struct task *task);
	int fd;
	uint64_t handle;
	const void *argument;
	pthread_t thread;
	_Atomic pid_t id;
	_Atomic bool is_over;
	int result;
};

/* Begins the call; returns when its thread runs. */
void task_begin(struct task *task);
/* Waits for the end of the call; returns its result. */
int task_end(struct task *task);
/* Calls RELEASE. */
int task_release(struct task *task);

void send_fd(int socket, int fd);
int receive_fd(int socket);

/* Becomes the ordinary user of the tests, with the group that may use the devices or without. */
void become_user(bool in_group);

/* Sets RLIMIT_MEMLOCK of this process. */
void set_memlock(uint64_t bytes);

#endif
