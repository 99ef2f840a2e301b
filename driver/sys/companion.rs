// SPDX-License-Identifier: GPL-2.0
//! A second thread of the process, for a part of a call.
//!
//! What pins user pages must be a thread of their process: it has the address space, its page
//! faults count for the cgroups of the process, and a fatal signal for the process ends its waits.
//! The kernel makes such threads for vhost (`vhost_task`), where user space sees them as
//! `/proc/PID/task/TID`. They take no signal but SIGKILL and SIGSTOP.
//!
//! The thread ends when its part is done, shortly before the call returns or after. A process that
//! has a second thread may not do everything that one with a single thread may, such as
//! `unshare(CLONE_NEWUSER)`. If user space stops, freezes or traces the thread, it ends when that
//! is over: nobody waits for it.
//!
//! If no thread can be made, because of RLIMIT_NPROC, a pids cgroup or a signal that waits, the
//! caller does everything.
//!
//! C header: [`include/linux/sched/vhost_task.h`](srctree/include/linux/sched/vhost_task.h).

use super::{helpers, task, work};

/// Calls `own`, and meanwhile `other` in another thread of the process, if one can be made and has
/// a CPU. Neither runs any more when this returns. Called by a task that has an address space.
pub(crate) fn with_companion(own: &mut dyn FnMut(), other: &mut (dyn FnMut() + Send)) {
    if !task::has_company() {
        own();
        return;
    }
    // SAFETY: The C function does what is demanded. The current task has an address space, as the
    // documentation demands, and the queues exist as long as there are files.
    unsafe { work::hand_over(helpers::pinmap_with_companion, own, other) };
}
