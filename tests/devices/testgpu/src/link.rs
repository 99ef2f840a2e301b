// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bus model (section 11 of the manual): how long accesses take, in real time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lowest bandwidth. With less, a single transfer would hold up all others for too long.
pub const MIN_BANDWIDTH: u64 = 1_000_000;
/// Longest latency, in nanoseconds.
pub const MAX_LATENCY: u64 = 1_000_000_000;

/// Direction of a transfer, seen from the device.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Direction {
    Read,
    Write,
}

/// Bandwidth in bytes per second for each direction, and latency in nanoseconds. 0 means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Speed {
    pub bandwidth: u64,
    pub latency: u64,
}

/// Connection between a memory and the engines, which all engines share.
#[derive(Debug)]
pub struct Link {
    bandwidth: AtomicU64,
    latency: AtomicU64,
    /// End of the transfers that were accepted so far, for each direction.
    free: [Mutex<Instant>; 2],
}

impl Link {
    /// Makes a link without transfers.
    pub fn new(speed: Speed) -> Self {
        let now = Instant::now();
        let link = Self {
            bandwidth: AtomicU64::new(0),
            latency: AtomicU64::new(0),
            free: [Mutex::new(now), Mutex::new(now)],
        };
        link.set(speed);
        link
    }

    /// Returns the speed of the link.
    pub fn speed(&self) -> Speed {
        Speed {
            bandwidth: self.bandwidth.load(Relaxed),
            latency: self.latency.load(Relaxed),
        }
    }

    /// Changes the speed for later transfers.
    pub fn set(&self, speed: Speed) {
        let bandwidth = match speed.bandwidth {
            0 => 0,
            bandwidth => bandwidth.max(MIN_BANDWIDTH),
        };
        self.bandwidth.store(bandwidth, Relaxed);
        self.latency.store(speed.latency.min(MAX_LATENCY), Relaxed);
    }

    /// Reserves the link for `bytes`, behind earlier transfers. Returns when the last byte is
    /// through.
    pub fn transfer(&self, direction: Direction, bytes: u64) -> Option<Instant> {
        let bandwidth = self.bandwidth.load(Relaxed);
        if bandwidth == 0 {
            return None;
        }
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth);
        let duration = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let mut free = self.free[direction as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *free = (*free).max(Instant::now()) + duration;
        Some(*free)
    }

    /// Returns the latency of one access.
    pub fn latency(&self) -> Duration {
        Duration::from_nanos(self.latency.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_queue_up_in_each_direction() {
        // Each takes twenty seconds, so all of them begin before one is over.
        let link = Link::new(Speed {
            bandwidth: 1_000_000,
            latency: 5,
        });
        let start = Instant::now();
        link.transfer(Direction::Read, 20_000_000).unwrap();
        let second = link.transfer(Direction::Read, 20_000_000).unwrap();
        let other = link.transfer(Direction::Write, 20_000_000).unwrap();
        assert!(second - start >= Duration::from_secs(40));
        assert!(other < second);
        assert_eq!(link.latency(), Duration::from_nanos(5));
        link.set(Speed {
            bandwidth: 1,
            latency: u64::MAX,
        });
        assert_eq!(
            link.speed(),
            Speed {
                bandwidth: MIN_BANDWIDTH,
                latency: MAX_LATENCY
            }
        );
        link.set(Speed {
            bandwidth: 0,
            latency: 0,
        });
        assert_eq!(link.transfer(Direction::Read, 1 << 40), None);
    }
}
