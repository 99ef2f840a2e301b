// SPDX-License-Identifier: GPL-2.0
//! The mappings of a buffer: made, published, removed.

use super::{Backing, Buffer, Holding, Inner, State};
use crate::{
    address_space::{AddressSpace, IovaRange},
    failure::Failure,
    list,
    logic::{pte::Access, request::Target},
    mapping::Mapping,
    mmu::Entries,
    stats::{Stat, StatGuard, Stats},
    sys::{iommu::Gather, task, task::work},
    trace::{Details, Timed, Tracepoint},
    uapi,
};
use core::mem::MaybeUninit;
use kernel::{prelude::*, sync::Arc};

/// Mappings that a buffer may have.
const MAX_MAPPINGS: usize = 64;

/// The context for which a buffer is mapped.
#[derive(Clone, Copy)]
pub(crate) struct Tenant<'a> {
    pub(crate) space: &'a Arc<AddressSpace>,
    pub(crate) stats: &'a Arc<Stats>,
    /// The buffer's handle there.
    pub(crate) handle: u64,
}

/// A mapping of a buffer.
pub(super) struct MappedAt {
    pub(super) mapping: Mapping,
    /// Names the mapping among those of the buffer.
    id: u64,
    /// The buffer's handle in the context of the mapping.
    handle: u64,
    /// User space knows the mapping.
    pub(super) published: bool,
    /// The mapping's entry in the statistics, until it is unmapped.
    stat: StatGuard,
}

/// Options of a mapping that is made.
pub(super) struct How {
    /// User space knows the mapping.
    pub(super) published: bool,
    /// The buffer goes live with the mapping.
    pub(super) live: bool,
    /// Memory for it.
    pub(super) place: Option<KBox<MaybeUninit<MappedAt>>>,
}

impl How {
    /// A further mapping, which user space knows.
    const PUBLISHED: Self = Self {
        published: true,
        live: false,
        place: None,
    };
}

impl MappedAt {
    /// Unmaps from the IOMMU: see [`Mapping::unmap`].
    fn unmap(&mut self, buffer: &Buffer) -> Result {
        let traced = Timed::begin_with(Tracepoint::Unmap, || {
            (self.mapping.contiguity(), self.mapping.flushes())
        });
        let result = self.mapping.unmap();
        if self.stat.stop() {
            if let Some((timed, (contiguity, before))) = traced {
                timed.end(self.stat.stats(), || Details {
                    handle: self.handle,
                    addr: buffer.life.span.start(),
                    device_addr: self.mapping.device_addr(),
                    contiguity,
                    flushes: self.mapping.flushes().saturating_sub(before),
                });
            }
        }
        result
    }
}

impl Inner {
    /// Unmaps all mappings from the IOMMU. Their addresses stay taken until [`Buffer::reap`].
    pub(super) fn unmap_all(&mut self, buffer: &Buffer) {
        for mapped in &mut self.mappings {
            if mapped.unmap(buffer).is_err() {
                self.failed = true;
                self.lost = Some(mapped.mapping.dma_control().clone());
            }
        }
    }

    /// Whether some mappings are in the MMU of a device, too.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.mappings
            .iter()
            .any(|mapped| mapped.mapping.entries().is_some())
    }

    /// How often the IOMMU's cache was flushed for all mappings.
    pub(super) fn flushes(&self) -> u64 {
        self.mappings
            .iter()
            .map(|mapped| mapped.mapping.flushes())
            .fold(0, u64::saturating_add)
    }
}

impl Buffer {
    /// Maps the pages for `tenant`. Returns the device address.
    pub(crate) fn map(
        &self,
        tenant: Tenant<'_>,
        target: Target,
        write: bool,
    ) -> Result<u64, Failure> {
        let holding = self.backing.lock();
        let access = Access::all(write);
        let (device_addr, _) = self.map_held(&holding, tenant, target, access, How::PUBLISHED)?;
        Ok(device_addr)
    }

    /// Maps the pages for `tenant`, unpublished until [`publish_mapping`](Self::publish_mapping).
    /// Returns the device address, and the id of the mapping.
    pub(crate) fn map_unpublished(
        &self,
        tenant: Tenant<'_>,
        target: Target,
        access: Access,
    ) -> Result<(u64, u64), Failure> {
        let how = How {
            published: false,
            ..How::PUBLISHED
        };
        let holding = self.backing.lock();
        self.map_held(&holding, tenant, target, access, how)
    }

    /// Maps the pages for `tenant`. `holding` is locked until the mapping is in the list, or
    /// undone: ending the buffer waits for the lock. Returns the device address, and the id of the
    /// mapping.
    pub(super) fn map_held(
        &self,
        holding: &Holding,
        tenant: Tenant<'_>,
        target: Target,
        access: Access,
        how: How,
    ) -> Result<(u64, u64), Failure> {
        // Whoever takes the memory back waits for `holding`, but not for a call that is about to
        // lock it.
        self.check_usable()?;
        let timed = Timed::begin(Tracepoint::Map);
        let memory = holding
            .memory
            .as_ref()
            .map(Backing::memory)
            .ok_or_else(|| self.refusal(self.state()))?;
        let wanted = || {
            self.check_usable().map_err(|failure| failure.errno)?;
            self.check_signal()
        };
        let place = match how.place {
            Some(place) => place,
            None => KBox::new_uninit(GFP_KERNEL_ACCOUNT)?,
        };
        let range = IovaRange::take(tenant.space, memory.length(), target)?;
        let device_addr = range.span().start();
        let mut mapped = place.write(MappedAt {
            mapping: Mapping::new(range),
            id: 0,
            handle: tenant.handle,
            published: how.published,
            stat: StatGuard::stopped(tenant.stats, Stat::Mapped),
        });
        mapped.mapping.fill(memory, access, wanted)?;
        mapped.stat.begin(self.life.span.length());
        timed.end(tenant.stats, || Details {
            handle: tenant.handle,
            addr: self.life.span.start(),
            device_addr,
            contiguity: mapped.mapping.contiguity(),
            flushes: mapped.mapping.flushes(),
        });
        let id = self.add(mapped, how.live)?;
        Ok((device_addr, id))
    }

    /// Fails if a signal has come that ends the registration.
    pub(super) fn check_signal(&self) -> Result {
        let building = self.life.interruptible && self.state() == State::Building;
        if building && task::signal_pending() {
            return Err(EINTR);
        }
        Ok(())
    }

    /// Adds a mapping to the list, where revoking finds it, or undoes it. If `live`, the buffer,
    /// which is being built, goes live. Returns the id of the mapping.
    fn add(&self, mut mapped: KBox<MappedAt>, live: bool) -> Result<u64, Failure> {
        loop {
            let mut inner = self.inner.lock();
            let count = inner.mappings.len();
            match inner.state {
                State::Building | State::Live => {}
                state => return Err(self.refusal(state)),
            }
            if count >= MAX_MAPPINGS {
                let (needed, allowed) = ((count as u64).saturating_add(1), MAX_MAPPINGS as u64);
                let failure = Failure::limit(ENOSPC, uapi::PINMAP_FAIL_OBJECTS, needed, allowed);
                return Err(failure);
            }
            if count < inner.mappings.capacity() {
                let id = inner.made;
                mapped.id = id;
                inner.made = id.wrapping_add(1);
                if live {
                    inner.state = State::Live;
                }
                // There is room.
                let _ = inner.mappings.push_within_capacity(mapped);
                return Ok(id);
            }
            drop(inner);
            self.make_room(count, |inner| &mut inner.mappings)?;
        }
    }

    /// Makes room for more than `count` entries of a list. Allocates outside of the lock, which the
    /// MMU notifier takes.
    pub(super) fn make_room<T>(
        &self,
        count: usize,
        which: impl Fn(&mut Inner) -> &mut KVec<T>,
    ) -> Result {
        let more = count.saturating_mul(2).max(1);
        let roomy = KVec::with_capacity(more, GFP_KERNEL_ACCOUNT)?;
        let mut inner = self.inner.lock();
        let old = list::grow(which(&mut inner), roomy)?;
        drop(inner);
        drop(old);
        Ok(())
    }

    /// Publishes a mapping: user space knows it.
    pub(crate) fn publish_mapping(&self, id: u64) {
        let mut inner = self.inner.lock();
        for mapped in &mut inner.mappings {
            if mapped.id == id {
                mapped.published = true;
            }
        }
    }

    /// Removes the mapping at `device_addr` of `space`. It is flushed when this returns.
    pub(crate) fn unmap(&self, space: &Arc<AddressSpace>, device_addr: u64) -> Result {
        if self.state() != State::Live {
            return Err(ESTALE);
        }
        self.remove(|mapped| {
            let mapping = &mapped.mapping;
            mapped.published && mapping.device_addr() == device_addr && mapping.is_in(space)
        })
    }

    /// Removes all mappings in `space`, where none is made meanwhile. Not called by the worker.
    pub(crate) fn unmap_all_in(this: &Arc<Self>, space: &Arc<AddressSpace>) -> Result {
        loop {
            match this.remove(|mapped| mapped.mapping.is_in(space)) {
                Ok(()) => {}
                Err(ENOENT) => return Ok(()),
                Err(EIO) => return Err(EIO),
                Err(_) => {
                    // The buffer was revoked: the mappings are undone, and the worker does the
                    // rest.
                    work::wait(this);
                    return Ok(());
                }
            }
        }
    }

    /// Removes a mapping that was not published.
    pub(crate) fn unmap_unpublished(&self, id: u64) -> Result {
        self.remove(|mapped| !mapped.published && mapped.id == id)
    }

    /// Removes the first mapping that is `wanted`. `ENOENT`: there is none.
    fn remove(&self, wanted: impl Fn(&MappedAt) -> bool) -> Result {
        // Wait for the device without the lock.
        let (id, entries) = {
            let inner = self.inner.lock();
            if !inner.state.has_mappings() {
                return Err(ESTALE);
            }
            let mapped = inner.mappings.iter().find(|mapped| wanted(mapped));
            let mapped = mapped.ok_or(ENOENT)?;
            (mapped.id, mapped.mapping.entries().cloned())
        };
        let forgotten = entries.as_ref().map_or(Ok(()), |entries| entries.remove());
        let mut inner = self.inner.lock();
        if !inner.state.has_mappings() {
            return Err(ESTALE);
        }
        // Another call may have removed the mapping, and one may have taken its address since.
        let index = inner
            .mappings
            .iter()
            .position(|mapped| mapped.id == id)
            .ok_or(ENOENT)?;
        // Unmapped under the lock, so that a concurrent munmap() or RELEASE waits for it. The pages
        // stay: `backing` has them.
        let mapped = inner.mappings.get_mut(index).ok_or(ENOENT)?;
        mapped.mapping.flush_gathered();
        let result = forgotten.and(mapped.unmap(self));
        mapped.mapping.free_address();
        inner.failed |= result.is_err();
        let mapped = inner.mappings.remove(index);
        drop(inner);
        // After a failure this drop cuts off the device.
        drop(mapped);
        result
    }

    /// Unmaps what only the IOMMU has mapped, and leaves the flush to `gather`. To be followed by
    /// [`end`](Self::end): until then the pages stay pinned, and who revokes the buffer flushes.
    pub(crate) fn unmap_into(&self, gather: &mut Gather) {
        let mut inner = self.inner.lock();
        if inner.state == State::Live {
            for mapped in &mut inner.mappings {
                mapped.mapping.unmap_into(gather);
            }
        }
    }

    /// Makes the MMUs of devices forget all mappings of the buffer, and waits until they have. If
    /// the buffer has not ended, a mapping that is added or removed during the call may be missed.
    pub(super) fn forget_all(&self) -> Result {
        self.each_entries(|_| true, Entries::begin_removal);
        let mut result = Ok(());
        self.each_entries(|_| true, |entries| result = result.and(entries.remove()));
        result
    }

    /// Makes devices begin to forget all mappings that are not in `space`. To be followed by
    /// [`unmap_all_in`](Self::unmap_all_in) for each of the other spaces.
    pub(crate) fn begin_to_leave_all_but(&self, space: &Arc<AddressSpace>) {
        self.each_entries(|mapping| !mapping.is_in(space), Entries::begin_removal);
    }

    /// Calls `visit` with the device's entries of each mapping that is `wanted`, without the lock,
    /// which the MMU notifier takes.
    fn each_entries(&self, wanted: impl Fn(&Mapping) -> bool, mut visit: impl FnMut(&Entries)) {
        for index in 0..MAX_MAPPINGS {
            let inner = self.inner.lock();
            let Some(mapped) = inner.mappings.get(index) else {
                break;
            };
            let entries = mapped.mapping.entries().filter(|_| wanted(&mapped.mapping));
            let entries = entries.cloned();
            drop(inner);
            if let Some(entries) = entries {
                visit(&entries);
            }
        }
    }

    /// Whether the buffer is mapped in `space`.
    pub(crate) fn is_in(&self, space: &Arc<AddressSpace>) -> bool {
        let inner = self.inner.lock();
        inner
            .mappings
            .iter()
            .any(|mapped| mapped.mapping.is_in(space))
    }

    /// Calls `visit` with each device address in `space`, under the lock that the MMU notifier
    /// takes.
    pub(crate) fn each_device_addr(&self, space: &Arc<AddressSpace>, mut visit: impl FnMut(u64)) {
        let inner = self.inner.lock();
        for mapped in &inner.mappings {
            if mapped.published && mapped.stat.counts() && mapped.mapping.is_in(space) {
                visit(mapped.mapping.device_addr());
            }
        }
    }
}
