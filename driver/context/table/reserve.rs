// SPDX-License-Identifier: GPL-2.0
//! Handles that are reserved, and cannot be used yet.

use super::{key, Context, Entry, Kept, Nodes, Role, SPARES};
use crate::{
    buffer::{Buffer, Spare},
    context::Guest,
    failure::Failure,
    list,
    logic::request::RegisterPlan,
    sys::task,
};
use core::ops::Deref;
use kernel::{prelude::*, rbtree::RBTreeNodeReservation, sync::Arc};

impl Context {
    /// Makes a buffer of the user memory of `plan`, with nothing pinned yet, and reserves a handle
    /// and its user addresses.
    pub(crate) fn reserve_user(
        &self,
        plan: &RegisterPlan,
    ) -> Result<(Arc<Buffer>, ReservedHandle<&Self>), Failure> {
        let mut table = self.table.lock();
        let reserved = table.reserve_kept(plan, false)?;
        drop(table);
        match reserved {
            Some((buffer, handle)) => Ok((buffer, ReservedHandle::new(self, handle))),
            None => self.reserve_fresh(plan),
        }
    }

    /// Makes room for so many buffers whose handles cannot be used yet.
    pub(crate) fn reserve_users(self: &Arc<Self>, count: usize) -> Result<ReservedBuffers> {
        Ok(ReservedBuffers {
            buffers: KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?,
            published: false,
            context: self.clone(),
        })
    }

    /// Like [`reserve_user`](Self::reserve_user), where nothing was released before.
    fn reserve_fresh(
        &self,
        plan: &RegisterPlan,
    ) -> Result<(Arc<Buffer>, ReservedHandle<&Self>), Failure> {
        if self.table.lock().spares.capacity() == 0 {
            self.make_room_for_spares()?;
        }
        let (account, events) = (self.account.clone(), self.events.clone());
        let buffer = Buffer::new(plan, account, events, self.lookout.clone())?;
        let reserved = self.reserve(&buffer)?;
        Ok((buffer, reserved))
    }

    /// Makes room for what is released, since releasing must not fail.
    fn make_room_for_spares(&self) -> Result {
        let roomy = KVec::with_capacity(SPARES, GFP_KERNEL_ACCOUNT)?;
        let left = list::grow(&mut self.table.lock().spares, roomy)?;
        list::drop_empty(left);
        Ok(())
    }

    /// Keeps the memory of `buffer`, which has ended, and of its handle, for a registration to
    /// come, if nobody else has the buffer and there is room.
    pub(super) fn recycle(&self, buffer: Arc<Buffer>, nodes: Nodes) {
        let Some(buffer) = Spare::new(buffer) else {
            return;
        };
        let spares = Kept { buffer, nodes };
        let mut table = self.table.lock();
        let left = if table.gone {
            Some(spares)
        } else {
            let pushed = table.spares.push_within_capacity(spares);
            pushed.err().map(|full| full.0)
        };
        drop(table);
        drop(left);
    }

    /// Reserves a handle for `buffer`, and its user addresses, if it has any.
    pub(crate) fn reserve(&self, buffer: &Arc<Buffer>) -> Result<ReservedHandle<&Self>, Failure> {
        Self::reserve_as(self, buffer, Role::Home, Nodes::new()?)
    }

    /// Reserves a handle for a portable buffer of another context, and its user addresses.
    pub(in crate::context) fn reserve_guest(
        self: &Arc<Self>,
        buffer: &Arc<Buffer>,
    ) -> Result<ReservedHandle<Arc<Self>>, Failure> {
        Self::reserve_as(self.clone(), buffer, Role::Guest, Nodes::new()?)
    }

    fn reserve_as<C: Deref<Target = Self>>(
        context: C,
        buffer: &Arc<Buffer>,
        role: Role,
        nodes: Nodes,
    ) -> Result<ReservedHandle<C>, Failure> {
        // The keys are not known yet: only the memory is allocated outside of the lock.
        let guest_node = match role {
            Role::Home => None,
            Role::Guest => Some(RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?),
        };
        let entry = Entry::new(buffer, role);
        let span = buffer.is_user_memory().then(|| buffer.span());
        let mut table = context.table.lock();
        let handle = table.prepare(span)?;
        table.insert(handle, entry, span, nodes);
        if let Some(node) = guest_node {
            table.guests.insert(node.into_node(key(buffer), handle));
        }
        drop(table);
        if role == Role::Home {
            buffer.set_handle(handle);
        }
        Ok(ReservedHandle::new(context, handle))
    }

    /// Releases the buffer of a handle that was reserved, and not published.
    fn give_up(&self, handle: u64) {
        let mut table = self.table.lock();
        let removed = table.remove(handle);
        let _ending = removed.as_ref().and_then(|removed| removed.begin(self));
        drop(table);
        if let Some(removed) = removed {
            // Failures were reported by the mapping.
            let _ = removed.release(self);
        }
    }
}

/// A handle that cannot be used yet. Dropping it releases the buffer.
pub(crate) struct ReservedHandle<C: Deref<Target = Context>> {
    context: C,
    handle: u64,
    published: bool,
}

impl<C: Deref<Target = Context>> ReservedHandle<C> {
    fn new(context: C, handle: u64) -> Self {
        Self {
            context,
            handle,
            published: false,
        }
    }

    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Makes the handle usable. Fails, and releases the buffer, if the device is gone.
    pub(crate) fn publish(mut self) -> Result {
        let mut table = self.context.table.lock();
        if table.gone {
            return Err(ENODEV);
        }
        let entry = table.entry_mut(self.handle).ok_or(ENOENT)?;
        match entry.role {
            Role::Home => entry.buffer.publish(),
            Role::Guest => entry.published = true,
        }
        drop(table);
        self.published = true;
        Ok(())
    }
}

impl<C: Deref<Target = Context>> Drop for ReservedHandle<C> {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        self.context.give_up(self.handle);
    }
}

/// A buffer of user memory, whose handle cannot be used yet.
pub(crate) struct ReservedBuffer {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) handle: u64,
    /// The buffer in other contexts, if it is portable.
    pub(crate) guests: Option<KVec<Guest>>,
}

/// Buffers whose handles cannot be used yet. Dropping them releases them.
pub(crate) struct ReservedBuffers {
    pub(crate) buffers: KVVec<ReservedBuffer>,
    published: bool,
    context: Arc<Context>,
}

impl ReservedBuffers {
    /// Reserves what the first of `plans` wants and, under the same lock, as many behind it as can
    /// have memory that was kept and addresses that nobody has: whatever is in the way, or fails,
    /// is for the turn of that plan.
    pub(crate) fn fill(&mut self, plans: &[RegisterPlan]) -> Result<(), Failure> {
        let (first, rest) = plans.split_first().ok_or(EINVAL)?;
        let mut table = self.context.table.lock();
        let Some(kept) = table.reserve_kept(first, false)? else {
            drop(table);
            let (buffer, mut fresh) = self.context.reserve_fresh(first)?;
            // `self` releases it from here on.
            fresh.published = true;
            Self::add(&mut self.buffers, (buffer, fresh.handle));
            return Ok(());
        };
        Self::add(&mut self.buffers, kept);
        for plan in rest {
            if !table.is_free(plan.span) {
                break;
            }
            let Ok(Some(kept)) = table.reserve_kept(plan, true) else {
                break;
            };
            Self::add(&mut self.buffers, kept);
        }
        Ok(())
    }

    fn add(buffers: &mut KVVec<ReservedBuffer>, reserved: (Arc<Buffer>, u64)) {
        let (buffer, handle) = reserved;
        // There is room.
        let _ = buffers.push_within_capacity(ReservedBuffer {
            buffer,
            handle,
            guests: None,
        });
    }

    /// Makes all handles usable. Fails, and releases the buffers, if the device is gone.
    pub(crate) fn publish(&mut self) -> Result {
        let table = self.context.table.lock();
        if table.gone {
            return Err(ENODEV);
        }
        for one in &self.buffers {
            one.buffer.publish();
        }
        drop(table);
        self.published = true;
        for guest in self.buffers.iter_mut().filter_map(|one| one.guests.take()) {
            for guest in guest {
                guest.publish();
            }
        }
        Ok(())
    }
}

impl Drop for ReservedBuffers {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        for one in &mut self.buffers {
            one.guests = None;
            self.context.give_up(one.handle);
            task::cond_resched();
        }
    }
}
