// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limit of locked memory, `RLIMIT_MEMLOCK`.

use std::fs;

use nix::sys::resource::{getrlimit, Resource, RLIM_INFINITY};
use pinmap::inspect::Memlock;

/// With less memory to be locked, in bytes, the command says how to raise the limit.
pub(crate) const COMFORT: u64 = 64 << 20;

/// How to be allowed to lock more memory, if the limit is low.
pub(crate) fn raise(memlock: Memlock) -> Option<String> {
    let refused = memlock.check(COMFORT).err()?;
    refused.hint().map(str::to_owned)
}

/// The limit of this process, for when no device can be asked. What is used is not known then.
pub(crate) fn own_memlock() -> Memlock {
    let soft = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(RLIM_INFINITY, |(soft, _)| soft);
    let exempt = fs::read_to_string("/proc/self/status").is_ok_and(|status| may_lock(&status));
    Memlock {
        limit: (soft != RLIM_INFINITY && !exempt).then_some(soft),
        used: 0,
    }
}

/// Whether a process has `CAP_IPC_LOCK`, by its `/proc/PID/status`.
fn may_lock(status: &str) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits & (1 << CAP_IPC_LOCK) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_is_one_bit() {
        assert!(may_lock("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(may_lock("CapEff:\t0000000000004000\n"));
        assert!(!may_lock("CapEff:\t0000000000002000\n"));
        assert!(!may_lock(""));
    }
}
