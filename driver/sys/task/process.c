// SPDX-License-Identifier: GPL-2.0
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/pid.h>
#include <linux/sched/signal.h>
#include <linux/string.h>
#include <linux/user_namespace.h>
#include "../helpers.h"

int pinmap_process_number(struct pid *process)
{
	return pid_nr(process);
}

/* Whether @process runs; @name is then set to that of its program. */
bool pinmap_process_name(struct pid *process, char *name)
{
	struct task_struct *task;

	rcu_read_lock();
	task = pid_task(process, PIDTYPE_TGID);
	if (task)
		strscpy(name, task->comm, TASK_COMM_LEN);
	rcu_read_unlock();
	return task;
}

/* Whether @process runs and has an RLIMIT_MEMLOCK; @limit is then set, in bytes. */
bool pinmap_process_memlock(struct pid *process, u64 *limit)
{
	const struct cred *cred;
	struct task_struct *task;
	bool limited = false;

	rcu_read_lock();
	task = pid_task(process, PIDTYPE_TGID);
	if (task) {
		cred = __task_cred(task);
		*limit = task_rlimit(task, RLIMIT_MEMLOCK);
		/* Asks what capable() would ask in that process. */
		limited = *limit != RLIM_INFINITY &&
			  !(cred->user_ns == &init_user_ns &&
			    cap_raised(cred->cap_effective, CAP_IPC_LOCK));
	}
	rcu_read_unlock();
	return limited;
}
