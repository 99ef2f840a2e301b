// SPDX-License-Identifier: GPL-2.0
//! Kernel threads.
//!
//! C header: [`include/linux/kthread.h`](srctree/include/linux/kthread.h).

use crate::sys::helpers;
use core::ptr::NonNull;
use kernel::{bindings, error::from_err_ptr, ffi, prelude::*, str::CStrExt, sync::Arc};

/// Work of a thread.
pub(crate) trait Body: Send + Sync + 'static {
    /// Runs in the thread. Returns once [`should_stop`] says so.
    fn run(&self);
}

/// Whether the current thread, which must be a [`Thread`], is to end.
pub(crate) fn should_stop() -> bool {
    // SAFETY: The current task is a kthread, as the documentation demands.
    unsafe { bindings::kthread_should_stop() }
}

/// A running thread. Dropping it tells the thread to stop, wakes it, and waits until it has ended.
///
/// # Invariants
///
/// We own a reference to the task, whose argument is the body.
pub(crate) struct Thread<T: Body> {
    task: NonNull<bindings::task_struct>,
    _body: Arc<T>,
}

// SAFETY: A thread may be stopped from any other.
unsafe impl<T: Body> Send for Thread<T> {}
// SAFETY: It has no methods.
unsafe impl<T: Body> Sync for Thread<T> {}

impl<T: Body> Thread<T> {
    /// Starts a thread that runs `body`.
    pub(crate) fn new(name: &'static CStr, body: Arc<T>) -> Result<Self> {
        let data = Arc::as_ptr(&body).cast_mut().cast();
        // SAFETY: `main` takes the body as its argument, which `self` keeps until the thread has
        // ended.
        let task = from_err_ptr(unsafe {
            helpers::pinmap_run_thread(Some(Self::main), data, name.as_char_ptr().cast())
        })?;
        // INVARIANT: The call took a reference.
        Ok(Self {
            task: NonNull::new(task).ok_or(ENOMEM)?,
            _body: body,
        })
    }

    /// # Safety
    ///
    /// `data` must point to a `T` that stays until the thread has ended.
    unsafe extern "C" fn main(data: *mut ffi::c_void) -> ffi::c_int {
        // SAFETY: By the requirements.
        let body = unsafe { &*data.cast::<T>() };
        body.run();
        0
    }
}

impl<T: Body> Drop for Thread<T> {
    fn drop(&mut self) {
        // SAFETY: We own the reference, which the call gives back.
        unsafe { bindings::kthread_stop_put(self.task.as_ptr()) };
    }
}
