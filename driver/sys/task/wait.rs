// SPDX-License-Identifier: GPL-2.0
//! Wait queues. `kernel::sync::CondVar` has no waits that only a fatal signal ends, and the kernel
//! crate's `PollCondVar` waits for an RCU grace period when it is dropped.
//!
//! C header: [`include/linux/wait.h`](srctree/include/linux/wait.h).

use crate::sys::helpers;
use core::{marker::PhantomPinned, ptr};
use kernel::{bindings, error::to_result, ffi, prelude::*, types::Opaque};

/// A queue of waiting tasks.
#[pin_data]
pub(crate) struct WaitQueue {
    #[pin]
    queue: Opaque<bindings::wait_queue_head>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: A wait queue may be used from any thread.
unsafe impl Send for WaitQueue {}
// SAFETY: A wait queue may be used from any thread.
unsafe impl Sync for WaitQueue {}

impl WaitQueue {
    /// Makes an empty queue.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: The slot is valid, and pinned as long as a task waits.
            queue <- Opaque::ffi_init(|slot: *mut bindings::wait_queue_head| unsafe {
                helpers::pinmap_wait_queue_init(slot.cast());
            }),
            _pin: PhantomPinned,
        })
    }

    /// Wakes all tasks that wait, so that they look at their conditions again. May be called in any
    /// context.
    pub(crate) fn wake_up(&self) {
        // SAFETY: The queue is initialised.
        unsafe { helpers::pinmap_wake_up(self.queue.get().cast()) };
    }

    /// The queue, for `poll_wait()`.
    pub(in crate::sys) fn as_raw(&self) -> *mut bindings::wait_queue_head {
        self.queue.get()
    }

    /// Waits until `done` returns true. It must not sleep, and is called again after each
    /// [`wake_up`](Self::wake_up).
    pub(crate) fn wait(&self, done: impl Fn() -> bool) {
        // Only a killable wait can fail.
        let _ = self.wait_as(helpers::PINMAP_WAIT_ALWAYS, &done);
    }

    /// Like [`wait`](Self::wait), but fails if the current task is killed meanwhile.
    pub(crate) fn wait_killable(&self, done: impl Fn() -> bool) -> Result {
        self.wait_as(helpers::PINMAP_WAIT_KILLABLE, &done)
    }

    /// Like [`wait`](Self::wait), but fails with `ERESTARTSYS` if a signal comes meanwhile.
    pub(crate) fn wait_interruptible(&self, done: impl Fn() -> bool) -> Result {
        self.wait_as(helpers::PINMAP_WAIT_INTERRUPTIBLE, &done)
    }

    fn wait_as<F: Fn() -> bool>(&self, how: u32, done: &F) -> Result {
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
        // SAFETY: The queue is initialised. This task calls `ask` with its `F`, before the call
        // returns.
        to_result(unsafe {
            helpers::pinmap_wait_event(self.queue.get().cast(), Some(ask::<F>), data, how)
        })
    }
}
