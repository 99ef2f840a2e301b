// SPDX-License-Identifier: GPL-2.0
//! What there is once for the whole module: `kernel::sync::global_lock!` without `unsafe`.

use crate::context::Peers;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Full},
        Arc,
    },
};

kernel::sync::global_lock! {
    // SAFETY: `init` is called by the module's initializer, before anybody can open a file.
    unsafe(uninit) static PEERS: Mutex<KVec<Arc<Peers>>> = KVec::new();
}

/// Makes it usable; by the module's initializer.
pub(crate) fn init() {
    static DONE: Atomic<bool> = Atomic::new(false);
    if !DONE.xchg(true, Full) {
        // SAFETY: Once.
        unsafe { PEERS.init() };
    }
}

/// Calls `visit` with the processes that have a file open. It must not sleep for long.
pub(crate) fn with_peers<R>(visit: impl FnOnce(&mut KVec<Arc<Peers>>) -> R) -> R {
    let mut all = PEERS.lock();
    let result = visit(&mut all);
    if all.is_empty() {
        // Nobody drops a static.
        *all = KVec::new();
    }
    result
}
