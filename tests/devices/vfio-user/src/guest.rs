// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest as the device's host: its memory, mapped or by messages, and its interrupt vectors.

use crate::bus::{Bus, Counts, Held, Refused, Side};
use crate::interval::{Intervals, Skip};
use crate::messenger::Messenger;
use crate::protocol::Map;
use crate::sys::memory::{Mapping, Page};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// Bytes that are compared to find out whether guest memory is shared.
const SAMPLE: usize = 64;
/// How often they are compared if they differ, since the guest may be changing them.
const TRIES: u32 = 16;
/// The smallest piece in which the guest's IOMMU maps memory.
const PAGE: u64 = 4096;

/// A file that holds guest memory.
#[derive(Debug)]
struct Backing {
    memory: Arc<Mapping>,
    /// Whether the file was seen to have the guest's content. If it does not, it is useless, and
    /// DMA goes by messages.
    shared: OnceLock<bool>,
}

impl Backing {
    fn is_verified(&self) -> bool {
        self.shared.get() == Some(&true)
    }

    fn is_foreign(&self) -> bool {
        self.shared.get() == Some(&false)
    }
}

/// Target of a range of bus addresses.
#[derive(Clone, Debug)]
struct Place {
    readable: bool,
    writable: bool,
    /// The file; `None` if QEMU passed none (a ROM, or a device).
    file: Option<(Arc<Backing>, u64)>,
}

impl Skip for Place {
    fn skip(&self, bytes: u64) -> Self {
        let file = self.file.as_ref();
        Self {
            file: file.map(|(backing, offset)| (Arc::clone(backing), offset + bytes)),
            ..*self
        }
    }
}

/// Files by device and inode.
type Files = HashMap<(u64, u64), Arc<Backing>>;

/// The guest.
#[derive(Debug)]
pub(crate) struct Guest {
    messenger: Arc<Messenger>,
    message_mode: bool,
    /// Bus Master, for accesses that QEMU does not check itself.
    master: AtomicBool,
    places: RwLock<Intervals<Place>>,
    files: Mutex<Files>,
    mapped: AtomicU64,
    unmapped: AtomicU64,
    /// Number of times that a page in `places` may have become one that must not be accessed.
    generation: AtomicU64,
    /// Accesses by messages.
    messages: AtomicU64,
    vectors: Mutex<Vec<Option<File>>>,
}

/// Answer of the table of mappings about an access.
enum Way {
    /// So many bytes were accessed; the file is returned if it is not verified yet.
    Direct(usize, Option<Arc<Backing>>),
    /// The guest's IOMMU has to decide about so many bytes.
    Message(usize),
}

impl Guest {
    /// Makes a guest at the other end of `messenger`.
    pub(crate) fn new(messenger: Arc<Messenger>, message_mode: bool) -> Self {
        Self {
            messenger,
            message_mode,
            master: AtomicBool::new(false),
            places: RwLock::default(),
            files: Mutex::default(),
            mapped: AtomicU64::new(0),
            unmapped: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            vectors: Mutex::default(),
        }
    }

    /// Records that the guest's IOMMU maps a range.
    pub(crate) fn map(&self, map: &Map, file: Option<OwnedFd>) -> io::Result<()> {
        let last = map
            .size
            .checked_sub(1)
            .and_then(|size| map.address.checked_add(size));
        let last = last.ok_or(io::ErrorKind::InvalidInput)?;
        let file = match file {
            Some(file) if !self.message_mode => Some((self.backing(file.into(), map)?, map.offset)),
            _ => None,
        };
        let place = Place {
            readable: map.readable,
            writable: map.writable,
            file,
        };
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        places.insert(map.address, last, place);
        self.mapped.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn backing(&self, file: File, map: &Map) -> io::Result<Arc<Backing>> {
        let metadata = file.metadata()?;
        let end = map.offset.checked_add(map.size);
        if end.is_none_or(|end| end > metadata.len()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let key = (metadata.dev(), metadata.ino());
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backing) = files
            .get(&key)
            .filter(|backing| backing.memory.size() == metadata.len())
        {
            return Ok(Arc::clone(backing));
        }
        let memory = Arc::new(Mapping::new(&file, metadata.len())?);
        let backing = Arc::new(Backing {
            memory,
            shared: OnceLock::new(),
        });
        files.insert(key, Arc::clone(&backing));
        Ok(backing)
    }

    /// Records that the guest's IOMMU has unmapped a range. When this returns, no access reaches
    /// it.
    pub(crate) fn unmap(&self, address: u64, size: u64) {
        let last = address.saturating_add(size.saturating_sub(1));
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        if size != 0 {
            places.remove(address, last);
        }
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.unmapped.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that nothing is mapped any more.
    pub(crate) fn unmap_all(&self) {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        places.clear();
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.unmapped.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the eventfds of these vectors, and removes those of vectors without one.
    pub(crate) fn set_vectors(&self, which: Range<usize>, eventfds: Vec<OwnedFd>) {
        let mut vectors = self.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        if vectors.len() < which.end {
            vectors.resize_with(which.end, || None);
        }
        let mut eventfds = eventfds.into_iter();
        for vector in &mut vectors[which] {
            *vector = eventfds.next().map(File::from);
        }
    }

    /// Turns Bus Master on or off. Once it is off and this returns, no access reaches the guest's
    /// memory.
    pub(crate) fn set_master(&self, on: bool) {
        self.master.store(on, Ordering::SeqCst);
        // When the table is free, every access that saw Bus Master on is over.
        let _places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes an access, piece by piece: `direct` copies a piece from or to a file if it can;
    /// `message` does it through QEMU.
    fn access(
        &self,
        (address, bytes): (u64, usize),
        allowed: impl Fn(&Place) -> bool,
        mut direct: impl FnMut(&Mapping, u64, usize, usize) -> Option<()>,
        mut message: impl FnMut(u64, usize, usize) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let mut done = 0;
        while done < bytes {
            let at = address.checked_add(done as u64).ok_or(Refused)?;
            let left = bytes - done;
            let copy = |memory: &Mapping, offset, piece, count| {
                direct(memory, offset, done + piece, count)
            };
            match self.way(at, left, &allowed, copy) {
                Way::Direct(count, unverified) => {
                    // Bytes written to a file that is not shared are lost: repeat the access by
                    // message.
                    if unverified.is_none_or(|backing| self.verify(&backing, at, count)) {
                        done += count;
                    }
                }
                Way::Message(count) => {
                    self.messages.fetch_add(1, Ordering::Relaxed);
                    message(at, done, count)?;
                    done += count;
                }
            }
        }
        Ok(())
    }

    fn way(
        &self,
        at: u64,
        left: usize,
        allowed: impl Fn(&Place) -> bool,
        mut direct: impl FnMut(&Mapping, u64, usize, usize) -> Option<()>,
    ) -> Way {
        if self.message_mode {
            return Way::Message(left);
        }
        // The lock is held during the copies, so that an unmapping waits for them.
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        let mut done = 0;
        let mut unverified = None;
        if self.master.load(Ordering::SeqCst) {
            for (place, offset, rest) in places.follow(at) {
                let file = place.file.as_ref().filter(|_| allowed(place));
                let Some((backing, start)) = file.filter(|(backing, _)| !backing.is_foreign())
                else {
                    break;
                };
                let count = (left - done).min(usize::try_from(rest).unwrap_or(usize::MAX));
                if direct(&backing.memory, start + offset, done, count).is_none() {
                    break;
                }
                done += count;
                if !backing.is_verified() {
                    unverified = Some(Arc::clone(backing));
                    break;
                }
                if done == left {
                    break;
                }
            }
        }
        if done > 0 {
            return Way::Direct(done, unverified);
        }
        // Memory of another device is mapped, but has no file.
        let mapped = places.find(at).map_or(0, |(_, _, rest)| rest);
        let most = mapped.max(PAGE - at % PAGE);
        Way::Message(left.min(usize::try_from(most).unwrap_or(usize::MAX)))
    }

    /// Checks that the guest has the content of its file at `address`. With memory that is not
    /// shared it has not, and DMA would be lost silently. A guest that changes its memory during
    /// the check can at worst make its device work by messages.
    fn verify(&self, backing: &Arc<Backing>, address: u64, bytes: usize) -> bool {
        let bytes = bytes.min(SAMPLE);
        let sample = |buffer: &mut [u8]| {
            let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
            let (place, offset, _) = places
                .find(address)
                .filter(|(_, _, rest)| *rest >= bytes as u64)?;
            let (file, start) = place.file.as_ref()?;
            file.memory.read(start + offset, buffer)
        };
        for _ in 0..TRIES {
            let (mut before, mut theirs, mut after) = ([0; SAMPLE], [0; SAMPLE], [0; SAMPLE]);
            let read = sample(&mut before[..bytes]).is_some()
                && self.messenger.read(address, &mut theirs[..bytes]).is_ok()
                && sample(&mut after[..bytes]).is_some();
            // The range is write-only or unmapped by now, so this access proves nothing.
            if !read {
                return true;
            }
            if before == theirs || after == theirs {
                // Zeros prove nothing: the memory may never have been touched.
                if theirs != [0; SAMPLE] {
                    let _ = backing.shared.set(true);
                }
                return true;
            }
        }
        if backing.shared.set(false).is_ok() {
            eprintln!(
                "vfio-user: guest memory is not shared with this process: QEMU needs share=on for \
                 its memory backend. DMA goes by messages, slowly"
            );
        }
        false
    }

    /// Returns the file and offset of 8 bytes, for a single access to them.
    fn single<T>(
        &self,
        address: u64,
        allowed: impl Fn(&Place) -> bool,
        access: impl FnOnce(&Mapping, u64) -> Option<T>,
    ) -> Option<(T, Option<Arc<Backing>>)> {
        if self.message_mode {
            return None;
        }
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        if !self.master.load(Ordering::SeqCst) {
            return None;
        }
        let (place, offset, rest) = places.find(address)?;
        let (backing, start) = place
            .file
            .as_ref()
            .filter(|(backing, _)| allowed(place) && rest >= 8 && !backing.is_foreign())?;
        let value = access(&backing.memory, start + offset)?;
        Some((value, (!backing.is_verified()).then(|| Arc::clone(backing))))
    }
}

/// Returns where byte `skip` of one end of a copy is, and how many bytes follow it there. `None` if
/// a plain copy is not enough.
fn resolve<'a>(
    places: &'a Intervals<Place>,
    side: Side<'a>,
    skip: u64,
    write: bool,
) -> Option<(&'a Mapping, u64, u64)> {
    match side {
        Side::Device(memory, offset) => Some((memory, offset.checked_add(skip)?, u64::MAX)),
        Side::Host(address) => {
            let (place, offset, rest) = places.find(address.checked_add(skip)?)?;
            let (backing, start) = place.file.as_ref()?;
            let allowed = if write {
                place.writable
            } else {
                place.readable
            };
            (allowed && backing.is_verified()).then_some((&backing.memory, start + offset, rest))
        }
    }
}

impl Bus for Guest {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Refused> {
        let to = std::cell::RefCell::new(to);
        let bytes = to.borrow().len();
        self.access(
            (address, bytes),
            |place| place.readable,
            |memory, offset, done, count| {
                memory.read(offset, &mut to.borrow_mut()[done..done + count])
            },
            |at, done, count| {
                self.messenger
                    .read(at, &mut to.borrow_mut()[done..done + count])
            },
        )
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Refused> {
        self.access(
            (address, from.len()),
            |place| place.writable,
            |memory, offset, done, count| memory.write(offset, &from[done..done + count]),
            |at, done, count| self.messenger.write(at, &from[done..done + count]),
        )
    }

    fn copy(&self, from: Side<'_>, to: Side<'_>, bytes: usize) -> usize {
        if self.message_mode {
            return 0;
        }
        // The lock is held during the copies, so that an unmapping waits for them.
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        if !self.master.load(Ordering::SeqCst) {
            return 0;
        }
        let mut done = 0;
        while done < bytes {
            let resolve = |side, write| resolve(&places, side, done as u64, write);
            let (Some(from), Some(to)) = (resolve(from, false), resolve(to, true)) else {
                break;
            };
            let count = [from.2, to.2]
                .into_iter()
                .fold((bytes - done) as u64, u64::min) as usize;
            if from.0.copy(from.1, to.0, to.1, count).is_none() {
                break;
            }
            done += count;
        }
        done
    }

    fn load(&self, address: u64) -> Result<u64, Refused> {
        match self.single(
            address,
            |place| place.readable,
            |memory, offset| memory.load(offset),
        ) {
            Some((value, None)) => Ok(value),
            Some((value, Some(backing))) if self.verify(&backing, address, 8) => Ok(value),
            _ => {
                let mut bytes = [0; 8];
                self.messages.fetch_add(1, Ordering::Relaxed);
                self.messenger.read(address, &mut bytes)?;
                Ok(u64::from_le_bytes(bytes))
            }
        }
    }

    fn store(&self, address: u64, value: u64) -> Result<(), Refused> {
        match self.single(
            address,
            |place| place.writable,
            |memory, offset| memory.store(offset, value),
        ) {
            Some(((), None)) => Ok(()),
            Some(((), Some(backing))) if self.verify(&backing, address, 8) => Ok(()),
            _ => {
                self.messages.fetch_add(1, Ordering::Relaxed);
                self.messenger.write(address, &value.to_le_bytes())
            }
        }
    }

    fn page(&self, address: u64, write: bool) -> Option<(Page, u64)> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        if self.message_mode || !self.master.load(Ordering::SeqCst) {
            return None;
        }
        let (place, offset, rest) = places.find(address)?;
        let allowed = if write {
            place.writable
        } else {
            place.readable
        };
        let (backing, start) = place.file.as_ref()?;
        let is_whole = allowed && backing.is_verified() && rest >= PAGE;
        let page = is_whole.then(|| backing.memory.page(start + offset))??;
        Some((page, self.generation.load(Ordering::Relaxed)))
    }

    fn hold(&self) -> Held<'_> {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        Held {
            generation: self.generation.load(Ordering::Relaxed),
            _guard: Some(Box::new(places)),
        }
    }

    fn interrupt(&self, vector: usize) {
        let vectors = self.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(mut eventfd)) = vectors.get(vector).map(Option::as_ref) {
            // The write fails if the counter is full, and then QEMU has been told often enough.
            let _ = eventfd.write(&1_u64.to_ne_bytes());
        }
    }

    fn is_message(&self) -> bool {
        self.message_mode
    }

    fn counts(&self) -> Counts {
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        Counts {
            live: places.len() as u64,
            mapped: self.mapped.load(Ordering::Relaxed),
            unmapped: self.unmapped.load(Ordering::Relaxed),
            messages: self.messages.load(Ordering::Relaxed),
        }
    }
}
