// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the streams of a context share: the memory that events are recorded in, and who they are.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::cache::Cache;
use crate::device::Device;
use crate::error::Result;
use crate::fence::Fence;
use crate::memory::Buffer;
use crate::options::Access;
use crate::pages::page_size;
use crate::raw::RawRegistration;
use crate::registration::Registration;

use super::core::Core;

/// Bytes of a slot: when it was reached, and how often it was.
const SLOT: usize = 16;

/// What the streams of a context share. It goes with the last of them, and of their events.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    slots: Mutex<Slots>,
    /// Pages of other contexts that this one's streams wait at.
    foreign: Mutex<Vec<Foreign>>,
    members: Mutex<Vec<Weak<Core>>>,
    /// Memory that is registered for copies, as long as they last.
    borrowed: Mutex<Option<Arc<Cache>>>,
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<Slot>,
    busy: Busy<Slot>,
}

/// What was given back before the device had done with it.
#[derive(Debug)]
struct Busy<T> {
    items: Vec<(Fence, T)>,
    /// They are looked at when there are so many: twice as many as were left the last time.
    limit: usize,
    /// How often one was looked at.
    #[cfg(test)]
    looks: usize,
}

/// A page of slots. It is the program's own memory, so that other contexts can have it too.
#[derive(Debug)]
pub(crate) struct Page {
    registration: Registration,
    device: Device,
}

/// A page of another context.
#[derive(Debug)]
struct Foreign {
    /// Dropped before the memory can be.
    registration: RawRegistration,
    page: Arc<Page>,
}

/// Where one event is recorded.
#[derive(Debug)]
pub(super) struct Slot {
    page: Arc<Page>,
    index: usize,
    /// How often something was recorded in it, all of which came to pass but perhaps the last. It only
    /// grows, so that who waits for an earlier time finds that it was.
    times: u64,
}

/// Locks what a panic cannot leave half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// That of a context, if it has any.
    pub(crate) fn find(device: &Device) -> Option<Arc<Self>> {
        lock(device.streams()).upgrade()
    }

    /// That of a context.
    pub(super) fn of(device: &Device) -> Arc<Self> {
        let mut known = lock(device.streams());
        known.upgrade().unwrap_or_else(|| {
            let shared = Arc::new(Self::default());
            *known = Arc::downgrade(&shared);
            shared
        })
    }

    /// One more stream.
    pub(super) fn join(&self, core: &Arc<Core>) {
        let mut members = lock(&self.members);
        members.retain(|core| core.strong_count() != 0);
        members.push(Arc::downgrade(core));
    }

    /// The registrations of memory that copies read. There they are found as long as they are in use.
    pub(super) fn borrowed(&self, device: &Device) -> Result<Arc<Cache>> {
        let mut borrowed = lock(&self.borrowed);
        match &*borrowed {
            Some(cache) => Ok(Arc::clone(cache)),
            None => {
                let cache = Arc::new(Cache::new(device, Access::Read, 0)?);
                Ok(Arc::clone(borrowed.insert(cache)))
            }
        }
    }

    /// All streams.
    pub(super) fn members(&self) -> Vec<Arc<Core>> {
        lock(&self.members)
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// A slot that nobody has.
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
                times: 0,
            }));
        }
        match free.pop() {
            Some(slot) => Ok(slot),
            None => unreachable!("a page has slots"),
        }
    }

    /// Takes a slot back, to which the device writes until the fence is reached.
    pub(super) fn give(&self, slot: Slot, fence: Fence) {
        let mut slots = lock(&self.slots);
        let Slots { free, busy } = &mut *slots;
        busy.items.push((fence, slot));
        // A fence keeps part of a stream that may be no more.
        busy.sweep(free);
    }

    /// Device address of a page's first byte, for a context.
    pub(super) fn reach(&self, device: &Device, page: &Arc<Page>) -> Result<u64> {
        if page.device.is_same(device) {
            return page.registration.device_addr();
        }
        let mut foreign = lock(&self.foreign);
        if let Some(known) = foreign.iter().find(|known| Arc::ptr_eq(&known.page, page)) {
            return known.registration.device_addr();
        }
        // Nobody else has those, so nothing waits there.
        foreign.retain(|known| Arc::strong_count(&known.page) > 1);
        let (addr, len) = (page.registration.addr(), page.registration.len());
        // SAFETY: It is memory of a registration, which nobody has references to but to atomics,
        // and which `page` keeps until this is released.
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
    /// If there are many: finds those that the device has done with since. One that it never will be done with
    /// is never used again: whoever waits at it must not find what was recorded later.
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
    /// One time more: what it stores then.
    pub(super) fn next(&mut self) -> u64 {
        self.times += 1;
        self.times
    }

    pub(super) fn page(&self) -> &Arc<Page> {
        &self.page
    }

    /// Where the device stores its clock, from the page's first byte.
    pub(super) fn time(&self) -> usize {
        self.index * SLOT
    }

    /// Where it stores how often it was reached.
    pub(super) fn count(&self) -> usize {
        self.time() + SLOT / 2
    }

    /// The device's clock, as it was stored.
    pub(super) fn nanos(&self) -> Result<u64> {
        let time: u64 = self.page.registration.load(self.time())?;
        Ok(u64::from_le(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::Progress;

    /// However many are outstanding, giving one back costs looking at a few.
    #[test]
    fn many_events_cost_what_few_do() {
        const COUNT: u64 = 10_000;
        let progress = Arc::new(Progress::fake());
        let (mut busy, mut free) = (Busy::default(), Vec::new());
        for value in 1..=COUNT {
            busy.items
                .push((Fence::new(Arc::clone(&progress), value), value));
            busy.sweep(&mut free);
        }
        assert!(free.is_empty());
        assert!(busy.looks < 4 * COUNT as usize, "{}", busy.looks);
        progress.execute(COUNT);
        busy.limit = 0;
        busy.sweep(&mut free);
        assert_eq!((free.len(), busy.items.len()), (COUNT as usize, 0));
    }
}
