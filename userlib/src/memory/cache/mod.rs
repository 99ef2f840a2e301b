// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cache of registrations, so that memory that is used again need not be registered again.
//!
//! [Generations](super::generations) tell without a system call whether a registration found in the
//! cache may have gone stale since it was made.
#![allow(unsafe_code)]

mod kept;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;

use crate::device::Device;
use crate::error::failure::Reason;
use crate::error::{Error, Operation, Result};
use crate::memory::generations::Generations;
use crate::memory::options::RegisterOptions;
use crate::memory::query::State;
use crate::memory::raw::{outwards, RawRegistration};
use crate::memory::registration::Registration;
use crate::sys::map::page_size;

pub use kept::CacheStatistics;
use kept::{Entry, Kept};

/// A cache of registrations of memory that does not belong to this crate.
///
/// Looking up memory that is in the cache, a *hit*, makes no system call. The cache need not know
/// how the memory is allocated: before `munmap()` or `madvise()` returns, the driver marks the
/// registrations of that memory in a page that is mapped here. So memory that was freed and
/// allocated anew at the same address is registered anew.
///
/// The cache keeps a limited number of bytes registered, and evicts the least recently used
/// registrations first. A lookup also evicts registrations that overlap with the memory without
/// containing it. A registration that is in use, because a [`Cached`] of it exists, is never
/// evicted.
///
/// ```no_run
/// # fn f(device: &pinmap::Device, memory: *mut u8) -> pinmap::Result<()> {
/// use pinmap::{Access, Cache};
///
/// let cache = Cache::new(device, Access::ReadWrite, 64 << 20)?;
/// for _ in 0..1000 {
///     // SAFETY: Nothing refers to the memory as long as `cached` exists. By then the device is
///     // done with it, and nobody tells the device to use it again before the next `get`.
///     let cached = unsafe { cache.get(memory, 8192)? };
///     let address = cached.device_addr();
///     // ... have the device work there, and wait for it ...
///     assert!(cached.is_live()?, "somebody has unmapped it");
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

impl Cache {
    /// Makes an empty cache, which registers memory with these options and keeps at most `limit`
    /// bytes. Options that demand a device address suit only a single registration.
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// // At most 64 MiB stay registered.
    /// let cache = pinmap::Cache::new(device, pinmap::Access::ReadWrite, 64 << 20)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENOMEM`: over `RLIMIT_MEMLOCK`, or out of memory; `EPERM`: another process opened the
    /// device; `ENODEV`: the device is gone.
    pub fn new(device: &Device, options: impl Into<RegisterOptions>, limit: usize) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            options: options.into(),
            generations: Arc::new(Generations::of(device)?),
            limit,
            kept: Arc::default(),
        })
    }

    /// Finds a registration that contains this memory, or registers the whole pages around it.
    ///
    /// # Errors
    ///
    /// As for [`Device::register_raw`]. `EBUSY`: a registration of only a part of the memory is in
    /// use, by a [`Cached`]; `EEXIST`: the program has registered some of the memory itself,
    /// without this cache.
    ///
    /// # Safety
    ///
    /// - As long as the [`Cached`] or a clone of it exists, the requirements of
    ///   [`Device::register_raw`] hold for the whole pages.
    /// - Afterwards the device can still reach the memory until it is unmapped, the registration is
    ///   evicted, or the cache is dropped. The program may use the memory freely during that time
    ///   (refer to it, give it back to an allocator), provided that the device does not use it: not
    ///   by itself, and not because somebody tells it to, by its registers or by raw packets.
    /// - No other thread frees the memory during the call. The lookup could return a registration
    ///   of memory that is gone, as any use of freed memory can.
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
            // Two references are the cache's and the loop's.
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
        // The old registrations are released before their pages are registered again.
        drop(gone);
        // SAFETY: As the caller promises.
        let entry = unsafe { self.add(&mut kept, addr, len)? };
        Ok(self.found(entry, start))
    }

    /// Registers whole pages of which none is registered, and keeps the registration.
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
                // Other memory of the user needs what this cache has locked.
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
        // The generation does not tell what happened before it was read.
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

    /// Makes a registration with the options of the cache.
    ///
    /// # Safety
    ///
    /// As for [`get`](Self::get), for whole pages.
    unsafe fn register(&self, addr: usize, len: usize) -> Result<Registration<()>> {
        // SAFETY: As the caller promises.
        let raw = unsafe { RawRegistration::new(&self.device, addr, len, self.options)? };
        Ok(Registration::new(raw, ()))
    }

    /// Releases all registrations that are not in use.
    ///
    /// ```no_run
    /// # fn f(cache: &pinmap::Cache) -> pinmap::Result<()> {
    /// // Another program of this user needs the limit now.
    /// cache.clear();
    /// println!("{} bytes are still in use", cache.statistics().bytes);
    /// # Ok(()) }
    /// ```
    pub fn clear(&self) {
        let gone = self.lock().shrink(0);
        drop(gone);
    }

    /// Returns how the cache was used so far, and what it keeps now.
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

/// Locks the contents.
fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    // A panic cannot leave a change half done: only reading can panic.
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

/// Memory that was found in a [`Cache`].
///
/// Made by [`Cache::get`]. As long as it exists, the registration is kept, even if the memory is
/// unmapped. Afterwards nobody may tell the device to use the memory.
///
/// ```no_run
/// # fn f(cache: &pinmap::Cache, memory: *mut u8, registers: &pinmap::Bar) -> pinmap::Result<()> {
/// // SAFETY: The device is done with the memory when `cached` is dropped, nothing refers to it
/// // until then, and nobody frees it.
/// let cached = unsafe { cache.get(memory, 100)? };
/// registers.write(0x80, cached.device_addr()?)?; // of `memory`, not of its page
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Cached {
    /// `None` only while it is being dropped.
    entry: Option<Arc<Entry>>,
    /// The address that was looked up.
    start: usize,
    /// The cache that keeps the entry.
    kept: Arc<Mutex<Kept>>,
}

impl Drop for Cached {
    fn drop(&mut self) {
        if !self.entry().too_large {
            return;
        }
        // A registration that exceeds the limit ends with its last use. It is released under the
        // lock, so that a lookup either finds it or can register again.
        let mut kept = lock(&self.kept);
        if let Some(entry) = self.entry.take() {
            let known = kept.entries.get(&entry.range().0);
            // Two references are the cache's and this one.
            if known.is_some_and(|known| Arc::ptr_eq(known, &entry))
                && Arc::strong_count(&entry) == 2
            {
                kept.remove(&entry);
            }
        }
    }
}

impl Cached {
    /// Device address of the memory that was looked up.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the cache registers [`unmapped`](RegisterOptions::unmapped).
    pub fn device_addr(&self) -> Result<u64> {
        let registration = self.registration();
        let first = registration.device_addr()?;
        Ok(first + (self.start - registration.addr()) as u64)
    }

    /// The registration. It consists of whole pages, and can contain more than what was looked up.
    pub fn registration(&self) -> &Registration<()> {
        &self.entry().registration
    }

    fn entry(&self) -> &Entry {
        match &self.entry {
            Some(entry) => entry,
            None => unreachable!("it is there until the drop"),
        }
    }

    /// Whether the device could reach the memory all the time since the lookup. Makes no system
    /// call, unless memory of this registration, or of one that shares its generation, may have
    /// left the address space.
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
