// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's counters of pinned pages, in `/proc/vmstat`.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How many pages were pinned and unpinned since the system started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pins {
    pub(crate) acquired: u64,
    pub(crate) released: u64,
}

/// The counters can lag behind by as long as the kernel's `vm.stat_interval`, usually 1 s.
const LAG: Duration = Duration::from_secs(3);

impl Pins {
    /// Nothing where the kernel does not count.
    pub(crate) fn now() -> Option<Self> {
        Some(Self::exact_now()?.0)
    }

    /// With whether nothing lags behind: root can have the counters of all processors summed up at
    /// once.
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

    /// What came to it since: once as many were released as acquired, or after the longest lag.
    pub(crate) fn settled_since(before: Self) -> Option<Self> {
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

    /// As many were unpinned as were pinned.
    pub(crate) fn balanced(self) -> bool {
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
