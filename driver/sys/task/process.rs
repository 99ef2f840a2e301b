// SPDX-License-Identifier: GPL-2.0
//! Processes, which can be named even after they have ended.
//!
//! C header: [`include/linux/pid.h`](srctree/include/linux/pid.h).

use crate::sys::helpers;
use core::{ptr::NonNull, str};
use kernel::{bindings, ffi, prelude::*};

/// Bytes of the name of a program, with the zero behind it.
pub(crate) const NAME: usize = helpers::PINMAP_NAME as usize;

/// A process that runs or has ended, with a reference.
///
/// # Invariants
///
/// The pointer is valid and we own a reference.
pub(crate) struct Process(NonNull<bindings::pid>);

// SAFETY: `struct pid` is reference-counted and may be used from any thread.
unsafe impl Send for Process {}
// SAFETY: `struct pid` is reference-counted and may be used from any thread.
unsafe impl Sync for Process {}

impl Process {
    /// Returns the process of the current task.
    pub(crate) fn current() -> Result<Self> {
        // SAFETY: There is a current task.
        let process = unsafe {
            bindings::get_task_pid(bindings::get_current(), helpers::PINMAP_WHOLE_PROCESS)
        };
        // INVARIANT: The call took a reference.
        NonNull::new(process).map(Self).ok_or(ESRCH)
    }

    /// Returns its number in the first pid namespace. After the process has ended, another one can
    /// have the number.
    pub(crate) fn number(&self) -> ffi::c_int {
        // SAFETY: Valid by the type invariants.
        unsafe { helpers::pinmap_process_number(self.0.as_ptr()) }
    }

    /// Writes the name of its program to `room`, and returns it; `None` if it has ended.
    pub(crate) fn name<'a>(&self, room: &'a mut [u8; NAME]) -> Option<&'a str> {
        // SAFETY: Valid by the type invariants; there is room for a name.
        let runs =
            unsafe { helpers::pinmap_process_name(self.0.as_ptr(), room.as_mut_ptr().cast()) };
        let length = room.iter().position(|&byte| byte == 0)?;
        let name = room.get(..length).filter(|_| runs)?;
        Some(str::from_utf8(name).unwrap_or("?"))
    }

    /// Returns the bytes that it may lock (RLIMIT_MEMLOCK); `None` if there is no limit, or it has
    /// ended.
    pub(crate) fn memlock(&self) -> Option<u64> {
        let mut limit = 0;
        // SAFETY: Valid by the type invariants; `limit` is written during the call.
        let limited = unsafe { helpers::pinmap_process_memlock(self.0.as_ptr(), &raw mut limit) };
        limited.then_some(limit)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SAFETY: We own a reference by the type invariants.
        unsafe { bindings::put_pid(self.0.as_ptr()) };
    }
}
