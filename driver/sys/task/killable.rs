// SPDX-License-Identifier: GPL-2.0
//! Kernel threads that can be told to give up whatever they wait for.
//!
//! Serving a fault may wait for user space: for a handler of userfaultfd, or for the server of a
//! file system. The kernel ends such waits for a task that has a fatal signal. So these threads,
//! unlike other kernel threads, can get one. Some waits of the kernel do not end even then, so
//! nobody waits for such a thread: it holds the module, and everything that it uses, until it ends.
//!
//! C headers: [`include/linux/kthread.h`](srctree/include/linux/kthread.h),
//! [`include/linux/sched/signal.h`](srctree/include/linux/sched/signal.h).

use crate::sys::helpers;
use core::{marker::PhantomData, ptr::NonNull};
use kernel::{
    bindings, error::from_err_ptr, ffi, mm::Mm, prelude::*, str::CStrExt, sync::Arc,
    types::NotThreadSafe,
};

/// Work of a thread that can be killed.
pub(crate) trait Errand: Send + Sync + 'static {
    /// Runs in the thread. It is to return soon after [`Killable::kill`].
    fn run(this: &Arc<Self>);
}

/// A thread that can be killed. Dropping it kills the thread, and does not wait for it.
///
/// # Invariants
///
/// We own a reference to the task.
pub(crate) struct Killable(NonNull<bindings::task_struct>);

// SAFETY: A task may be sent a signal from any thread.
unsafe impl Send for Killable {}
// SAFETY: A task may be sent a signal from any thread.
unsafe impl Sync for Killable {}

impl Killable {
    /// Starts a thread that runs `body`.
    pub(crate) fn start<T: Errand>(name: &'static CStr, body: Arc<T>) -> Result<Self> {
        let data = Arc::into_raw(body).cast_mut().cast();
        // SAFETY: `main` takes the reference that is its argument.
        let task = from_err_ptr(unsafe {
            helpers::pinmap_start_killable(Some(main::<T>), data, name.as_char_ptr().cast())
        });
        match task.map(NonNull::new) {
            // INVARIANT: The call took a reference.
            Ok(Some(task)) => Ok(Self(task)),
            failed => {
                // SAFETY: There is no thread, so the reference is still ours.
                drop(unsafe { Arc::from_raw(data.cast::<T>()) });
                Err(failed.err().unwrap_or(ENOMEM))
            }
        }
    }

    /// Sends the thread a fatal signal.
    pub(crate) fn kill(&self) {
        // SAFETY: The task is valid by the type invariants, even if it has ended.
        unsafe { bindings::send_sig(bindings::SIGKILL as ffi::c_int, self.0.as_ptr(), 1) };
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        self.kill();
        // SAFETY: We own the reference by the type invariants.
        unsafe { bindings::put_task_struct(self.0.as_ptr()) };
    }
}

/// # Safety
///
/// Called once, by a thread that [`Killable::start`] made, with what it got from `Arc::into_raw`.
unsafe extern "C" fn main<T: Errand>(data: *mut ffi::c_void) {
    // SAFETY: By the requirements.
    let body = unsafe { Arc::from_raw(data.cast::<T>()) };
    T::run(&body);
}

/// Drops the signals that the current thread, a [`Killable`], got until now. Whoever wants it to
/// end has to say so by other means as well, which are to be looked at after this.
pub(crate) fn forget_signals() {
    // SAFETY: The current task is a kthread, as the documentation demands.
    unsafe { helpers::pinmap_forget_signals() };
}

/// Has the current kernel thread use the address space of a process, which is kept meanwhile. What
/// the thread allocates is charged to the memory cgroup of that process.
pub(crate) struct Using<'a> {
    mm: &'a Mm,
    cgroups: helpers::pinmap_using,
    _of_this_thread: PhantomData<NotThreadSafe>,
}

impl<'a> Using<'a> {
    /// Begins to use `mm`. `None`: it has ended. The current task must be a [`Killable`] that uses
    /// none.
    pub(crate) fn new(mm: &'a Mm) -> Option<Self> {
        let mut cgroups = helpers::pinmap_using::default();
        // SAFETY: The `mm_struct` is valid; the current task is a kthread, as the documentation
        // demands. `drop` ends what this begins.
        let begun = unsafe { helpers::pinmap_use_mm(mm.as_raw(), &raw mut cgroups) };
        // Only then is there something to end.
        begun.then(|| Self {
            mm,
            cgroups,
            _of_this_thread: PhantomData,
        })
    }
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        // SAFETY: `new` began it, in this thread. No lock is held, as callers see to it: if nobody
        // else uses the address space any more, it ends here.
        unsafe { helpers::pinmap_unuse_mm(self.mm.as_raw(), &raw mut self.cgroups) };
    }
}
