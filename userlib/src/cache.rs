// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registrations that are kept, so that the same memory need not be registered again.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::failure::Reason;
use crate::generations::Generations;
use crate::options::RegisterOptions;
use crate::pages::page_size;
use crate::query::State;
use crate::raw::{outwards, RawRegistration};

/// Keeps registrations of memory that is not this crate's, so that using the same memory again does
/// not register it again: a *hit* costs no system call.
///
/// It does not look at how the memory is allocated. The driver tells when registered memory leaves
/// the address space: it counts in a page that is mapped here, before `munmap()` or `madvise()`
/// returns, and a lookup compares. So memory that was freed and allocated anew at the same address
/// is registered anew.
///
/// What no longer fits in the limit of bytes is released, the least recently used first, and so is
/// what is in the way; but nothing that is in use: as long as there is a [`Cached`] of it, a
/// registration is kept.
///
/// ```no_run
/// # fn f(device: &pinmap::Device, memory: *mut u8) -> pinmap::Result<()> {
/// use pinmap::{Access, Cache};
///
/// let cache = Cache::new(device, Access::ReadWrite, 64 << 20)?;
/// for _ in 0..1000 {
///     // SAFETY: Nothing refers to the memory as long as `cached` exists; the device is done with it
///     // then, and is not told of it again but by the next `get`.
///     let cached = unsafe { cache.get(memory, 8192)? };
///     let address = cached.device_addr();
///     // ... have the device work there, and wait for it ...
///     assert!(cached.is_live()?, "somebody has unmapped it meanwhile");
/// }
/// # Ok(()) }
/// ```
pub struct Cache {
    device: Device,
    options: RegisterOptions,
    generations: Arc<Generations>,
    limit: usize,
    kept: Arc<Mutex<Kept>>,
}

/// What is kept.
#[derive(Default)]
struct Kept {
    /// By first address; disjoint.
    entries: BTreeMap<usize, Arc<Entry>>,
    /// First addresses by when they were used last.
    order: BTreeMap<u64, usize>,
    /// Uses.
    clock: u64,
    bytes: usize,
    statistics: CacheStatistics,
}

/// A registration that is kept.
struct Entry {
    registration: RawRegistration,
    generations: Arc<Generations>,
    /// The generation at which it was last known to be live.
    seen: AtomicU64,
    /// When it was used last.
    used: AtomicU64,
    /// Larger than all that may be kept: it is there to be found as long as it is in use.
    too_large: bool,
}

/// What a [`Cache`] has done so far, and what it keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStatistics {
    /// Lookups that found a registration.
    pub hits: u64,
    /// Of these, lookups for which the driver had to be asked whether it is live still.
    pub checked: u64,
    /// Lookups that had to register.
    pub misses: u64,
    /// Registrations that were released because of the limit, or to make way for another.
    pub evicted: u64,
    /// Registrations that were found to be stale.
    pub stale: u64,
    /// Registrations that are kept now.
    pub registrations: usize,
    /// Bytes in them.
    pub bytes: usize,
}

impl Entry {
    fn range(&self) -> (usize, usize) {
        let addr = self.registration.addr();
        (addr, addr + (self.registration.len() - 1))
    }

    fn covers(&self, addr: usize, last: usize) -> bool {
        let (start, end) = self.range();
        start <= addr && last <= end
    }

    fn generation(&self) -> u64 {
        self.generations.of_handle(self.registration.handle())
    }

    /// As far as the numbers tell.
    fn is_unchanged(&self) -> bool {
        self.generation() == self.seen.load(Ordering::Relaxed)
    }

    /// Asks the driver, if the numbers do not tell. Says whether it had to, too.
    fn is_live(&self) -> Result<(bool, bool)> {
        let generation = self.generation();
        if generation == self.seen.load(Ordering::Relaxed) {
            return Ok((true, false));
        }
        let live = self.registration.state()? == State::Live;
        if live {
            // As it was before it was asked: what has happened since will be asked for again.
            self.seen.store(generation, Ordering::Relaxed);
        }
        Ok((live, true))
    }
}

impl Kept {
    fn touch(&mut self, entry: &Entry) {
        let now = self.clock;
        self.clock += 1;
        let before = entry.used.swap(now, Ordering::Relaxed);
        self.order.remove(&before);
        self.order.insert(now, entry.registration.addr());
    }

    /// The entries that overlap a range.
    fn overlapping(&self, addr: usize, last: usize) -> Vec<Arc<Entry>> {
        let upwards = self.entries.range(..=last).rev();
        upwards
            .map(|(_, entry)| entry)
            .take_while(|entry| entry.range().1 >= addr)
            .cloned()
            .collect()
    }

    fn insert(&mut self, entry: &Arc<Entry>) {
        let (addr, _) = entry.range();
        if !entry.too_large {
            self.bytes += entry.registration.len();
        }
        self.entries.insert(addr, entry.clone());
        self.touch(entry);
    }

    /// Takes an entry out. It is released when nobody uses it any more.
    fn remove(&mut self, entry: &Entry) {
        if self.entries.remove(&entry.range().0).is_some() {
            if !entry.too_large {
                self.bytes -= entry.registration.len();
            }
            self.order.remove(&entry.used.load(Ordering::Relaxed));
        }
    }

    /// Takes out the least recently used that nobody uses, until so many bytes are left at most.
    fn shrink(&mut self, bytes: usize) -> Vec<Arc<Entry>> {
        let mut gone = Vec::new();
        let oldest: Vec<usize> = self.order.values().copied().collect();
        for addr in oldest {
            if self.bytes <= bytes {
                break;
            }
            if let Some(entry) = self.entries.get(&addr).cloned() {
                // Two: the cache's and this one.
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

impl Cache {
    /// An empty cache of registrations with a device, all made in the same way, of at most `limit`
    /// bytes. Of the options, those that demand one address make no sense for more than one
    /// registration.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: over `RLIMIT_MEMLOCK`, or out of memory; `EPERM`: another process opened the
    /// device; `ENOTTY`: the driver is older than this crate; `ENODEV`: the device is gone.
    pub fn new(device: &Device, options: impl Into<RegisterOptions>, limit: usize) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            options: options.into(),
            generations: Arc::new(Generations::of(device)?),
            limit,
            kept: Arc::default(),
        })
    }

    /// The registration that has this memory, or a new one, of the whole pages around it.
    ///
    /// # Errors
    ///
    /// As for [`Device::register_raw`]; `EBUSY`: a registration that has only a part of it is in
    /// use, by a [`Cached`]. `EEXIST` only if the program has registered some of it itself, beside the
    /// cache.
    ///
    /// # Safety
    ///
    /// - As long as the [`Cached`] or a clone of it exists: as for [`Device::register_raw`], of the
    ///   whole pages.
    /// - Afterwards the registration is kept, and the device can still reach the memory until it is
    ///   unmapped, the registration is evicted, or the cache is dropped. What is done with the memory
    ///   then is free (references, giving it back to an allocator), provided that the device does
    ///   nothing with it by itself, and nobody has it do so: neither by the device's registers nor by
    ///   packets made by hand, which are safe to write and to submit.
    /// - The memory is not freed while this runs, by another thread: then it may find what is there
    ///   no more, as with any use of memory.
    pub unsafe fn get(&self, memory: *mut u8, len: usize) -> Result<Cached> {
        let start = memory.expose_provenance();
        let attempt = || format!("find {len} bytes at {start:#x} with {}", self.device);
        let range = outwards(start, len, page_size()).filter(|&(_, len)| len != 0);
        let (addr, len) =
            range.ok_or_else(|| Error::new(Operation::Cache, attempt(), Errno::EINVAL))?;
        let last = addr + (len - 1);

        let mut kept = self.lock();
        let mut gone = Vec::new();
        for entry in kept.overlapping(addr, last) {
            let (live, checked) = entry.is_live()?;
            kept.statistics.checked += u64::from(checked);
            if live && entry.covers(addr, last) {
                kept.statistics.hits += 1;
                kept.touch(&entry);
                return Ok(self.found(entry, start));
            }
            // Another one is the loop's.
            if live && Arc::strong_count(&entry) > 2 {
                let cause = "a registration of a part of it is in use";
                let error = Error::refused(Operation::Cache, attempt(), Errno::EBUSY, cause);
                return Err(
                    error.with_hint("drop that `Cached` first, or ask for all of it at first")
                );
            }
            kept.remove(&entry);
            match live {
                true => kept.statistics.evicted += 1,
                false => kept.statistics.stale += 1,
            }
            gone.push(entry);
        }
        // Released before they are registered again.
        drop(gone);
        // SAFETY: As the caller promises.
        let entry = unsafe { self.add(&mut kept, addr, len)? };
        Ok(self.found(entry, start))
    }

    /// As [`get`](Self::get), but in as many parts as it takes, each with its length: what other
    /// registrations have a part of is not in their way. At most one lookup registers a page.
    ///
    /// # Safety
    ///
    /// As for [`get`](Self::get).
    pub(crate) unsafe fn get_parts(
        &self,
        memory: *mut u8,
        len: usize,
    ) -> Result<Vec<(Cached, usize)>> {
        let start = memory.expose_provenance();
        let Some((addr, pages)) = outwards(start, len, page_size()) else {
            let attempt = format!("find {len} bytes at {start:#x} with {}", self.device);
            return Err(Error::new(Operation::Cache, attempt, Errno::EINVAL));
        };
        if pages == 0 {
            return Ok(Vec::new());
        }
        let (mut entries, last) = (Vec::new(), addr + (pages - 1));
        let mut kept = self.lock();
        // SAFETY: As the caller promises.
        let found = unsafe { self.find_parts(&mut kept, addr, last, &mut entries) };
        // What was found is given up without the lock, if something else was not.
        drop(kept);
        let parts = entries.into_iter().map(|entry| {
            let (first, end) = entry.range();
            let from = start.max(first);
            let part = (start + (len - 1)).min(end) - from + 1;
            (self.found(entry, from), part)
        });
        let parts = parts.collect();
        found.map(|()| parts)
    }

    /// All registrations that have whole pages, in their order, made where there is none.
    ///
    /// # Safety
    ///
    /// As for [`get`](Self::get).
    unsafe fn find_parts(
        &self,
        kept: &mut Kept,
        addr: usize,
        last: usize,
        found: &mut Vec<Arc<Entry>>,
    ) -> Result<()> {
        let (mut known, mut gone) = (Vec::new(), Vec::new());
        for entry in kept.overlapping(addr, last).into_iter().rev() {
            let (live, checked) = entry.is_live()?;
            kept.statistics.checked += u64::from(checked);
            if live {
                kept.statistics.hits += 1;
                kept.touch(&entry);
                known.push(entry);
            } else {
                kept.remove(&entry);
                kept.statistics.stale += 1;
                gone.push(entry);
            }
        }
        // Released before they are registered again.
        drop(gone);
        let mut at = addr;
        for entry in known {
            let (first, end) = entry.range();
            if at < first {
                // SAFETY: As the caller promises.
                found.push(unsafe { self.add(kept, at, first - at)? });
            }
            found.push(entry);
            at = end + 1;
        }
        if at <= last {
            // SAFETY: As the caller promises.
            found.push(unsafe { self.add(kept, at, last - at + 1)? });
        }
        Ok(())
    }

    /// Registers whole pages, of which none is registered.
    ///
    /// # Safety
    ///
    /// As for [`get`](Self::get).
    unsafe fn add(&self, kept: &mut Kept, addr: usize, len: usize) -> Result<Arc<Entry>> {
        let too_large = len > self.limit;
        if !too_large {
            drop(kept.shrink(self.limit - len));
        }
        kept.statistics.misses += 1;
        // SAFETY: As the caller promises.
        let registration = match unsafe { self.register(addr, len) } {
            Err(error)
                if error
                    .failure()
                    .is_some_and(|failure| failure.reason == Reason::Memlock) =>
            {
                // Others need more than the limit here leaves.
                drop(kept.shrink(0));
                // SAFETY: As above.
                unsafe { self.register(addr, len)? }
            }
            result => result?,
        };
        let entry = Entry {
            seen: AtomicU64::new(self.generations.of_handle(registration.handle())),
            used: AtomicU64::new(u64::MAX),
            too_large,
            generations: self.generations.clone(),
            registration,
        };
        // What has happened before its number was read, the number does not tell.
        let live = entry.registration.state()? == State::Live;
        let entry = Arc::new(entry);
        if live {
            kept.insert(&entry);
        }
        Ok(entry)
    }

    fn found(&self, entry: Arc<Entry>, start: usize) -> Cached {
        Cached {
            entry: Some(entry),
            start,
            kept: self.kept.clone(),
        }
    }

    /// # Safety
    ///
    /// As for [`get`](Self::get), of whole pages.
    unsafe fn register(&self, addr: usize, len: usize) -> Result<RawRegistration> {
        // SAFETY: As the caller promises.
        unsafe { RawRegistration::new(&self.device, addr, len, self.options) }
    }

    /// Releases what nobody uses, and keeps the rest.
    pub fn clear(&self) {
        let gone = self.lock().shrink(0);
        drop(gone);
    }

    /// What it has done and what it keeps.
    pub fn statistics(&self) -> CacheStatistics {
        let kept = self.lock();
        CacheStatistics {
            registrations: kept.entries.len(),
            bytes: kept.bytes,
            ..kept.statistics
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    // Nothing that is half done can be seen: who panics has only looked.
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("device", &self.device)
            .field("limit", &self.limit)
            .field("statistics", &self.statistics())
            .finish()
    }
}

/// Memory that was found in a [`Cache`]. As long as it exists, the registration is kept, even if the
/// memory is unmapped; afterwards the device must not be made to use it: see [`Cache::get`].
#[derive(Clone)]
pub struct Cached {
    /// Until it is dropped.
    entry: Option<Arc<Entry>>,
    /// What was asked for.
    start: usize,
    /// Where it is kept.
    kept: Arc<Mutex<Kept>>,
}

impl Drop for Cached {
    fn drop(&mut self) {
        if !self.entry().too_large {
            return;
        }
        // Released under the lock, if it was the last use, so that a lookup finds it or can register.
        let mut kept = lock(&self.kept);
        if let Some(entry) = self.entry.take() {
            let known = kept.entries.get(&entry.range().0);
            // Two: the cache's and this one.
            if known.is_some_and(|known| Arc::ptr_eq(known, &entry))
                && Arc::strong_count(&entry) == 2
            {
                kept.remove(&entry);
            }
        }
    }
}

impl Cached {
    /// Device address of the memory that was asked for.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the cache registers [`unmapped`](RegisterOptions::unmapped).
    pub fn device_addr(&self) -> Result<u64> {
        let registration = self.registration();
        let first = registration.device_addr()?;
        Ok(first + (self.start - registration.addr()) as u64)
    }

    /// The registration, of whole pages, and perhaps of more than what was asked for.
    pub fn registration(&self) -> &RawRegistration {
        &self.entry().registration
    }

    fn entry(&self) -> &Entry {
        match &self.entry {
            Some(entry) => entry,
            None => unreachable!("it is there until it is dropped"),
        }
    }

    /// Whether the device could reach the memory all the time since it was looked up: without a
    /// system call, unless memory of this registration, or of one that shares its number, may
    /// have gone.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn is_live(&self) -> Result<bool> {
        if self.entry().is_unchanged() {
            return Ok(true);
        }
        Ok(self.entry().is_live()?.0)
    }
}

impl fmt::Debug for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cached").field(self.registration()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the driver would have it, were there one.
    fn entry(addr: usize, len: usize) -> Arc<Entry> {
        let numbers = memmap2::MmapMut::map_anon(4096).expect("memory");
        Arc::new(Entry {
            registration: RawRegistration::fake(addr, len, Some(addr as u64)),
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

    #[test]
    fn without_the_driver_there_is_no_cache() {
        let error = Cache::new(&Device::fake(), crate::Access::Read, 0).expect_err("no driver");
        assert_eq!(error.errno(), Errno::ENOTTY as i32);
    }

    #[test]
    fn caches_can_be_shared_and_sent() {
        fn check<T: Send + Sync>() {}
        check::<Cache>();
        check::<Cached>();
    }
}
