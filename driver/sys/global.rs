// SPDX-License-Identifier: GPL-2.0
//! What there is once for the whole module: `kernel::sync::global_lock!` without `unsafe`.

use crate::portable::Process;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Full},
        Arc,
    },
};

kernel::sync::global_lock! {
    // SAFETY: `init` is called by the module's initializer, before anybody can open a file.
    unsafe(uninit) static PROCESSES: Mutex<KVec<Arc<Process>>> = KVec::new();
}

/// Makes it usable; by the module's initializer.
pub(crate) fn init() {
    static DONE: Atomic<bool> = Atomic::new(false);
    if !DONE.xchg(true, Full) {
        // SAFETY: Once.
        unsafe { PROCESSES.init() };
    }
}

/// Calls `visit` with the processes that have a file open. It must not sleep for long.
pub(crate) fn with_processes<R>(visit: impl FnOnce(&mut KVec<Arc<Process>>) -> R) -> R {
    let mut processes = PROCESSES.lock();
    let result = visit(&mut processes);
    if processes.is_empty() {
        // Nobody drops a static.
        *processes = KVec::new();
    }
    result
}
