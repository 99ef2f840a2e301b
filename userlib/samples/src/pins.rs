// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's counters of pinned pages, in `/proc/vmstat`.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How many pages were pinned and unpinned: since the system started, or since an earlier reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pins {
    /// Pages that were pinned.
    pub acquired: u64,
    /// Pages that were unpinned.
    pub released: u64,
}

/// How long to wait for counters that lag behind. The kernel updates them every `vm.stat_interval`,
/// usually 1 s.
const LAG: Duration = Duration::from_secs(3);

impl Pins {
    /// Reads the counters. Returns `None` if the kernel has none.
    pub fn now() -> Option<Self> {
        Some(Self::exact_now()?.0)
    }

    /// Reads the counters, and tells whether they are exact: root can make the kernel sum up those
    /// of all processors at once.
    fn exact_now() -> Option<(Self, bool)> {
        let exact = fs::write("/proc/sys/vm/stat_refresh", "1\n").is_ok();
        let pins = Self::parse(&fs::read_to_string("/proc/vmstat").ok()?)?;
        Some((pins, exact))
    }

    fn parse(vmstat: &str) -> Option<Self> {
        let counter = |name: &str| {
            let line = vmstat
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line?.trim().parse().ok()
        };
        Some(Self {
            acquired: counter("nr_foll_pin_acquired")?,
            released: counter("nr_foll_pin_released")?,
        })
    }

    /// The difference to an earlier reading. Waits until as many pages were unpinned as pinned, or
    /// until the counters cannot lag behind any more. Returns `None` if the kernel has none.
    pub fn settled_since(before: Self) -> Option<Self> {
        let deadline = Instant::now() + LAG;
        loop {
            let (now, exact) = Self::exact_now()?;
            let since = Self {
                acquired: now.acquired.wrapping_sub(before.acquired),
                released: now.released.wrapping_sub(before.released),
            };
            let settled = since.balanced() && (exact || since.acquired != 0);
            if settled || Instant::now() > deadline {
                return Some(since);
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// Whether as many pages were unpinned as pinned.
    pub fn balanced(self) -> bool {
        self.acquired == self.released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_are_found() {
        let vmstat = "nr_free_pages 5\nnr_foll_pin_acquired 1234\nnr_foll_pin_released 1200\n";
        let pins = Pins::parse(vmstat).expect("both");
        assert_eq!(
            pins,
            Pins {
                acquired: 1234,
                released: 1200
            }
        );
        assert!(!pins.balanced());
        assert_eq!(Pins::parse("nr_foll_pin_acquired 1\n"), None);
        assert_eq!(
            Pins::parse("nr_foll_pin_acquired_x 1\nnr_foll_pin_released 1\n"),
            None
        );
    }
}
