// SPDX-License-Identifier: GPL-2.0
//! Waiting for something that another task does, so that a fatal signal ends it: `kernel::sync::CondVar` has
//! only waits that any signal ends, and such that none does.
//!
//! C header: [`include/linux/wait.h`](srctree/include/linux/wait.h).

use super::helpers;
use core::{marker::PhantomPinned, ptr};
use kernel::{bindings, error::to_result, ffi, prelude::*, types::Opaque};

/// Where tasks wait.
#[pin_data]
pub(crate) struct WaitQueue {
    #[pin]
    queue: Opaque<bindings::wait_queue_head>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: A wait queue may be used from any thread.
unsafe impl Send for WaitQueue {}
// SAFETY: As above.
unsafe impl Sync for WaitQueue {}

impl WaitQueue {
    /// Nobody waits.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: The slot is valid, and pinned as long as anybody waits.
            queue <- Opaque::ffi_init(|slot: *mut bindings::wait_queue_head| unsafe {
                helpers::pinmap_gate_init(slot.cast());
            }),
            _pin: PhantomPinned,
        })
    }

    /// What somebody may wait for has changed. From any context.
    pub(crate) fn wake_up(&self) {
        // SAFETY: Initialised.
        unsafe { helpers::pinmap_gate_tell(self.queue.get().cast()) };
    }

    /// Waits until `done`, which must not sleep and is asked again after each [`wake_up`](Self::wake_up).
    pub(crate) fn wait(&self, done: impl Fn() -> bool) {
        // Without an end by a signal it cannot fail.
        let _ = self.wait_as(false, &done);
    }

    /// The same; fails if the current task is killed meanwhile.
    pub(crate) fn wait_killable(&self, done: impl Fn() -> bool) -> Result {
        self.wait_as(true, &done)
    }

    fn wait_as<F: Fn() -> bool>(&self, killable: bool, done: &F) -> Result {
        /// # Safety
        ///
        /// `data` must point to an `F`.
        unsafe extern "C" fn ask<F: Fn() -> bool>(data: *mut ffi::c_void) -> bool {
            // SAFETY: By the requirements.
            (unsafe { &*data.cast::<F>() })()
        }

        if done() {
            return Ok(());
        }
        let data = ptr::from_ref(done).cast_mut().cast();
        // SAFETY: Initialised; `ask` is called by this task, before this returns, with what it is for.
        to_result(unsafe {
            helpers::pinmap_gate_wait(self.queue.get().cast(), Some(ask::<F>), data, killable)
        })
    }
}
