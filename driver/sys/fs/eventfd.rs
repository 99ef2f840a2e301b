// SPDX-License-Identifier: GPL-2.0
//! Event file descriptors.
//!
//! C header: [`include/linux/eventfd.h`](srctree/include/linux/eventfd.h).

use core::ptr::NonNull;
use kernel::{bindings, error::from_err_ptr, prelude::*};

/// A reference to an eventfd's counter.
///
/// # Invariants
///
/// The pointer is valid and we own a reference.
pub(crate) struct EventFd(NonNull<bindings::eventfd_ctx>);

// SAFETY: An eventfd context may be signalled and put from any thread.
unsafe impl Send for EventFd {}
// SAFETY: An eventfd context may be signalled and put from any thread.
unsafe impl Sync for EventFd {}

impl EventFd {
    /// Takes a reference by a file descriptor of the current task. Fails with `EBADF` if the
    /// descriptor is not open, and with `EINVAL` if it is not an eventfd.
    pub(crate) fn from_fd(fd: i32) -> Result<Self> {
        // SAFETY: The call takes any number.
        let context = from_err_ptr(unsafe { bindings::eventfd_ctx_fdget(fd) })?;
        // INVARIANT: The call took a reference.
        NonNull::new(context).map(Self).ok_or(EINVAL)
    }

    /// Adds 1 to the counter. May be called in any context.
    pub(crate) fn signal(&self) {
        // SAFETY: Valid by the type invariants.
        unsafe { bindings::eventfd_signal_mask(self.0.as_ptr(), 0) };
    }

    /// The context as the argument of an interrupt handler: valid as long as `self`.
    pub(in crate::sys) fn as_ptr(&self) -> *mut bindings::eventfd_ctx {
        self.0.as_ptr()
    }
}

impl Drop for EventFd {
    fn drop(&mut self) {
        // SAFETY: We own a reference by the type invariants.
        unsafe { bindings::eventfd_ctx_put(self.0.as_ptr()) };
    }
}
