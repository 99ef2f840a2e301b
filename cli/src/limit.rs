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
    let read = |name| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let exempt = may_lock(&read("status")) && is_first_namespace(&read("uid_map"));
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

/// Whether a process is in the system's own user namespace, where alone the capability counts, by
/// its `/proc/PID/uid_map`.
fn is_first_namespace(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
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

    #[test]
    fn a_user_namespace_has_another_map() {
        assert!(is_first_namespace("         0          0 4294967295\n"));
        let container = "0 1000 1\n1 100000 65536\n";
        assert!(!is_first_namespace(container));
        assert!(!is_first_namespace(""));
    }
}
