// SPDX-License-Identifier: MIT OR Apache-2.0
//! State that the streams of a context share.
//!
//! Events are recorded in *slots*: 16 bytes each, the device's clock and a count, in registered
//! pages of the program. A slot is used again once the device is done with its last recording; its
//! count only grows, so that a wait for an earlier recording finds it complete. A stream of another
//! context reaches the slots by a registration of its own of the same page.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::device::Device;
use crate::error::Result;
use crate::memory::buffer::Buffer;
use crate::memory::options::Access;
use crate::memory::raw::RawRegistration;
use crate::memory::registration::Registration;
use crate::queue::fence::Fence;
use crate::sys::map::page_size;

use super::core::Core;

/// Bytes of a slot: the time, and the count.
const SLOT: usize = 16;

/// State that the streams of a context share. Dropped with the last of them and of their events.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    slots: Mutex<Slots>,
    /// Pages of other contexts that streams of this one wait for.
    foreign: Mutex<Vec<Foreign>>,
    members: Mutex<Vec<Weak<Core>>>,
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<Slot>,
    busy: Busy<Slot>,
}

/// Things that were given back before the device was done with them, each with a fence.
#[derive(Debug)]
struct Busy<T> {
    items: Vec<(Fence, T)>,
    /// How many items there must be before they are looked at: twice as many as were left the last
    /// time.
    limit: usize,
    /// How often an item was looked at.
    #[cfg(test)]
    looks: usize,
}

/// A page of slots. It is memory of the program, so that other contexts can register it, too.
#[derive(Debug)]
pub(crate) struct Page {
    registration: Registration,
    device: Device,
}

/// A page of another context.
#[derive(Debug)]
struct Foreign {
    /// Dropped before the page.
    registration: RawRegistration,
    page: Arc<Page>,
}

/// A place to record an event.
#[derive(Debug)]
pub(super) struct Slot {
    page: Arc<Page>,
    index: usize,
    /// How often an event was recorded here. All recordings are reached, except perhaps the last.
    count: u64,
}

/// Locks state that a panic cannot leave half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Finds what the streams of a context share, if there are any.
    pub(super) fn find(device: &Device) -> Option<Arc<Self>> {
        device.extension().find()
    }

    /// Finds or makes what the streams of a context share.
    pub(super) fn of(device: &Device) -> Arc<Self> {
        device.extension().find_or_default()
    }

    /// Adds a stream.
    pub(super) fn join(&self, core: &Arc<Core>) {
        let mut members = lock(&self.members);
        members.retain(|core| core.strong_count() != 0);
        members.push(Arc::downgrade(core));
    }

    /// The streams that are not dropped.
    pub(super) fn members(&self) -> Vec<Arc<Core>> {
        lock(&self.members)
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Takes a free slot.
    pub(super) fn take(&self, device: &Device) -> Result<Slot> {
        let mut slots = lock(&self.slots);
        let Slots { free, busy } = &mut *slots;
        if free.is_empty() {
            busy.sweep(free);
        }
        if free.is_empty() {
            let page = Arc::new(Page {
                registration: Buffer::new(page_size())?.register(device, Access::ReadWrite)?,
                device: device.clone(),
            });
            free.extend((0..page_size() / SLOT).map(|index| Slot {
                page: Arc::clone(&page),
                index,
                count: 0,
            }));
        }
        match free.pop() {
            Some(slot) => Ok(slot),
            None => unreachable!("a page has slots"),
        }
    }

    /// Gives back a slot, to which the device may write until the fence is reached.
    pub(super) fn give(&self, slot: Slot, fence: Fence) {
        let mut slots = lock(&self.slots);
        let Slots { free, busy } = &mut *slots;
        busy.items.push((fence, slot));
        // Soon, because a fence keeps part of a stream that may be dropped.
        busy.sweep(free);
    }

    /// Device address of a page for a context, which may be another one than the page's.
    pub(super) fn reach(&self, device: &Device, page: &Arc<Page>) -> Result<u64> {
        if page.device.is_same(device) {
            return page.registration.device_addr();
        }
        let mut foreign = lock(&self.foreign);
        if let Some(known) = foreign.iter().find(|known| Arc::ptr_eq(&known.page, page)) {
            return known.registration.device_addr();
        }
        // Pages that only this list has are not waited for any more.
        foreign.retain(|known| Arc::strong_count(&known.page) > 1);
        let (addr, len) = (page.registration.addr(), page.registration.len());
        // SAFETY: The memory belongs to a registration, so there are no references to it except to
        // atomics, and `page` keeps it until this registration is released.
        let registration = unsafe { RawRegistration::new(device, addr, len, Access::Read.into())? };
        let device_addr = registration.device_addr()?;
        foreign.push(Foreign {
            registration,
            page: Arc::clone(page),
        });
        Ok(device_addr)
    }
}

impl<T> Default for Busy<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            limit: 0,
            #[cfg(test)]
            looks: 0,
        }
    }
}

impl<T> Busy<T> {
    /// If there are many items: moves those that the device is done with to `free`. An item whose
    /// fence never will be reached is dropped, because somebody may still wait for its count.
    fn sweep(&mut self, free: &mut Vec<T>) {
        if self.items.len() < self.limit {
            return;
        }
        let mut index = 0;
        while let Some((fence, _)) = self.items.get(index) {
            #[cfg(test)]
            {
                self.looks += 1;
            }
            let (is_over, is_done) = (fence.is_over(), fence.is_done());
            if is_done {
                free.push(self.items.swap_remove(index).1);
            } else if is_over {
                self.items.swap_remove(index);
            } else {
                index += 1;
            }
        }
        self.limit = 2 * self.items.len();
    }
}

impl Slot {
    /// Counts one more recording, and returns what the device is to store for it.
    pub(super) fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    pub(super) fn page(&self) -> &Arc<Page> {
        &self.page
    }

    /// Offset in the page, in bytes, of the device's clock.
    pub(super) fn time_offset(&self) -> usize {
        self.index * SLOT
    }

    /// Offset in the page, in bytes, of the count.
    pub(super) fn count_offset(&self) -> usize {
        self.time_offset() + SLOT / 2
    }

    /// The device's clock as it was stored, in nanoseconds.
    pub(super) fn nanos(&self) -> Result<u64> {
        let time: u64 = self.page.registration.load(self.time_offset())?;
        Ok(u64::from_le(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::handle::Handle;

    /// Giving back an item looks at few others, however many are outstanding.
    #[test]
    fn many_events_cost_what_few_do() {
        const COUNT: u64 = 10_000;
        let handle = Arc::new(Handle::fake());
        let (mut busy, mut free) = (Busy::default(), Vec::new());
        for value in 1..=COUNT {
            busy.items
                .push((Fence::new(Arc::clone(&handle), value), value));
            busy.sweep(&mut free);
        }
        assert!(free.is_empty());
        assert!(busy.looks < 4 * COUNT as usize, "{}", busy.looks);
        handle.execute(COUNT);
        busy.limit = 0;
        busy.sweep(&mut free);
        assert_eq!((free.len(), busy.items.len()), (COUNT as usize, 0));
    }
}
