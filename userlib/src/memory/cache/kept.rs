// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contents of a cache: registrations by address, and in the order in which they were used.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::error::Result;
use crate::memory::generations::Generations;
use crate::memory::query::State;
use crate::memory::registration::Registration;

/// The statistics of a [`Cache`](crate::Cache): how it was used so far, and what it keeps now.
///
/// ```no_run
/// # fn f(cache: &pinmap::Cache) -> pinmap::Result<()> {
/// let statistics = cache.statistics();
/// let lookups = statistics.hits + statistics.misses;
/// println!("{} of {lookups} lookups were hits", statistics.hits);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct CacheStatistics {
    /// Lookups that found a registration.
    pub hits: u64,
    /// Lookups that had to ask the driver whether a registration was still live.
    pub checked: u64,
    /// Lookups that had to register memory.
    pub misses: u64,
    /// Registrations that were released because of the limit, or because they were in the way of
    /// another.
    pub evicted: u64,
    /// Registrations that were found to be stale.
    pub stale: u64,
    /// Number of registrations that are kept now.
    pub registrations: usize,
    /// Bytes of the registrations that are kept now.
    pub bytes: usize,
}

/// The registrations of a cache.
#[derive(Default)]
pub(super) struct Kept {
    /// The entries by first address. They do not overlap.
    pub(super) entries: BTreeMap<usize, Arc<Entry>>,
    /// The first addresses, ordered by the time of the last use.
    order: BTreeMap<u64, usize>,
    /// The time: how many uses there were.
    clock: u64,
    pub(super) bytes: usize,
    pub(super) statistics: CacheStatistics,
}

/// A registration in a cache.
pub(super) struct Entry {
    pub(super) registration: Registration<()>,
    pub(super) generations: Arc<Generations>,
    /// The generation at which the registration was last known to be live.
    pub(super) seen: AtomicU64,
    /// The time of the last use.
    pub(super) used: AtomicU64,
    /// The registration alone exceeds the limit: it is kept only while it is in use.
    pub(super) too_large: bool,
}

impl Entry {
    /// The first and the last address.
    pub(super) fn range(&self) -> (usize, usize) {
        let addr = self.registration.addr();
        (addr, addr + (self.registration.len() - 1))
    }

    pub(super) fn covers(&self, addr: usize, last: usize) -> bool {
        let (start, end) = self.range();
        start <= addr && last <= end
    }

    fn generation(&self) -> u64 {
        self.generations.of_handle(self.registration.handle())
    }

    /// Whether the generation proves that the registration is live.
    pub(super) fn is_unchanged(&self) -> bool {
        self.generation() == self.seen.load(Ordering::Relaxed)
    }

    /// Whether the registration is live, and whether the driver had to be asked for that.
    pub(super) fn is_live(&self) -> Result<(bool, bool)> {
        let generation = self.generation();
        if generation == self.seen.load(Ordering::Relaxed) {
            return Ok((true, false));
        }
        let live = self.registration.state()? == State::Live;
        if live {
            // The generation from before the question, so that later changes are noticed.
            self.seen.store(generation, Ordering::Relaxed);
        }
        Ok((live, true))
    }
}

impl Kept {
    /// Notes a use of an entry.
    pub(super) fn touch(&mut self, entry: &Entry) {
        let now = self.clock;
        self.clock += 1;
        let before = entry.used.swap(now, Ordering::Relaxed);
        self.order.remove(&before);
        self.order.insert(now, entry.registration.addr());
    }

    /// The entries that overlap a range, by descending address.
    pub(super) fn overlapping(&self, addr: usize, last: usize) -> Vec<Arc<Entry>> {
        let downwards = self.entries.range(..=last).rev();
        downwards
            .map(|(_, entry)| entry)
            .take_while(|entry| entry.range().1 >= addr)
            .cloned()
            .collect()
    }

    pub(super) fn insert(&mut self, entry: &Arc<Entry>) {
        let (addr, _) = entry.range();
        if !entry.too_large {
            self.bytes += entry.registration.len();
        }
        self.entries.insert(addr, entry.clone());
        self.touch(entry);
    }

    /// Removes an entry. The registration is released when nobody uses it any more.
    pub(super) fn remove(&mut self, entry: &Entry) {
        if self.entries.remove(&entry.range().0).is_some() {
            if !entry.too_large {
                self.bytes -= entry.registration.len();
            }
            self.order.remove(&entry.used.load(Ordering::Relaxed));
        }
    }

    /// Removes entries that nobody uses, the least recently used first, until at most `bytes` bytes
    /// are left.
    pub(super) fn shrink(&mut self, bytes: usize) -> Vec<Arc<Entry>> {
        let mut gone = Vec::new();
        let oldest: Vec<usize> = self.order.values().copied().collect();
        for addr in oldest {
            if self.bytes <= bytes {
                break;
            }
            if let Some(entry) = self.entries.get(&addr).cloned() {
                // Two references, the one in the cache and this one, mean that nobody uses it.
                if Arc::strong_count(&entry) == 2 {
                    self.remove(&entry);
                    self.statistics.evicted += 1;
                    gone.push(entry);
                }
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::raw::RawRegistration;

    /// An entry without a driver.
    fn entry(addr: usize, len: usize) -> Arc<Entry> {
        let numbers = memmap2::MmapMut::map_anon(4096).expect("memory");
        Arc::new(Entry {
            registration: {
                let raw = RawRegistration::fake(addr, len, Some(addr as u64));
                Registration::new(raw, ())
            },
            generations: Arc::new(Generations::fake(numbers.into())),
            seen: AtomicU64::new(0),
            used: AtomicU64::new(u64::MAX),
            too_large: false,
        })
    }

    fn addresses(entries: &[Arc<Entry>]) -> Vec<usize> {
        entries.iter().map(|entry| entry.range().0).collect()
    }

    #[test]
    fn what_overlaps_is_found() {
        let mut kept = Kept::default();
        for addr in [0x1000, 0x4000, 0x8000] {
            kept.insert(&entry(addr, 0x2000));
        }
        let found = |addr, last| addresses(&kept.overlapping(addr, last));
        assert_eq!(found(0x1000, 0x1fff), [0x1000]);
        assert_eq!(found(0x2fff, 0x4000), [0x4000, 0x1000]);
        assert_eq!(found(0x3000, 0x3fff), []);
        assert_eq!(found(0, 0xffff), [0x8000, 0x4000, 0x1000]);
        assert_eq!(found(0xa000, 0xffff), []);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut kept = Kept::default();
        let entries = [0x1000, 0x4000, 0x8000].map(|addr| entry(addr, 0x1000));
        for entry in &entries {
            kept.insert(entry);
        }
        let [first, second, third] = entries;
        kept.touch(&first);
        drop((first, second));
        assert_eq!(kept.bytes, 0x3000);
        assert_eq!(addresses(&kept.shrink(0x2000)), [0x4000]);
        // The third is in use.
        assert_eq!(addresses(&kept.shrink(0)), [0x1000]);
        assert_eq!((kept.bytes, kept.statistics.evicted), (0x1000, 2));
        assert_eq!(kept.order.len(), 1);
        drop(third);
        assert_eq!(addresses(&kept.shrink(0)), [0x8000]);
        assert_eq!(
            (kept.bytes, kept.entries.len(), kept.order.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn an_unchanged_number_needs_no_driver() {
        let entry = entry(0x1000, 0x1000);
        assert_eq!(entry.is_live().expect("not asked"), (true, false));
        entry.seen.store(1, Ordering::Relaxed);
        // There is no driver.
        assert!(entry.is_live().is_err());
    }
}
