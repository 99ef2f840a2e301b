// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code that needs `unsafe`.

#![allow(unsafe_code)]

/// Makes the calling thread wake up from short sleeps on time, without the kernel's timer slack.
pub(crate) fn wake_on_time() {
    // SAFETY: The call takes numbers only. A failure costs precision, nothing else.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}
