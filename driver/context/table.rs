// SPDX-License-Identifier: GPL-2.0
//! The handles of a context.
//!
//! A handle names a buffer, or a managed range (`ranges.rs`). It is *reserved* when the buffer is
//! made, together with the user addresses, if there are any, so that two registrations cannot
//! overlap; it is *published*, and can be used, after everything that can fail has succeeded and
//! the caller knows it. Numbers are not used again, so a handle that was released is told from one
//! that never was.
//!
//! A portable buffer has a handle in each context of the process: one context is its *home*, where
//! it was registered, and ends it; in the others it is a *guest*, which can only be let go of.

use super::{
    ranges::{Range, Windows},
    Context, SharedBuffers,
};
use crate::{
    buffer::{Buffer, Spare, State},
    failure::Failure,
    logic::{
        handle::{Absent, Counter},
        request::RegisterPlan,
        span::Span,
    },
    module_parameters,
    sys::{iommu::Gather, task},
    uapi,
};
use core::mem;
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNode, RBTreeNodeReservation},
    sync::{srcu, Arc},
};

mod find;
mod reserve;

pub(crate) use find::Found;
pub(crate) use reserve::{ReservedBuffers, ReservedHandle};

/// The part that a context has in a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The buffer was made here, and ends with this context.
    Home,
    /// The buffer is portable, and another context's.
    Guest,
}

/// A handle's entry.
pub(super) struct Entry {
    pub(super) buffer: Arc<Buffer>,
    pub(super) role: Role,
    /// Whether the caller knows the handle of a guest. The buffer says so for its home.
    published: bool,
}

impl Entry {
    fn new(buffer: &Arc<Buffer>, role: Role) -> Self {
        Self {
            buffer: buffer.clone(),
            role,
            published: false,
        }
    }

    fn is_published(&self) -> bool {
        match self.role {
            Role::Home => self.buffer.is_published(),
            Role::Guest => self.published,
        }
    }

    fn is_visible(&self) -> bool {
        self.buffer.is_published() && (self.role == Role::Home || self.published)
    }
}

pub(super) struct Table {
    gone: bool,
    counter: Counter,
    count: u32,
    /// `None` only while an entry is being removed, which has the lock.
    by_handle: RBTree<u64, Option<Entry>>,
    /// Disjoint registrations by their last user address. A stale one stays until it is released or
    /// another one takes its addresses.
    by_last: RBTree<u64, Place>,
    /// Handles of guests by the key of their buffer.
    guests: RBTree<usize, u64>,
    /// Managed ranges by handle.
    pub(super) ranges: RBTree<u64, Range>,
    pub(super) windows: Windows,
    /// Memory of what was released last, for the next registrations.
    spares: KVec<Kept>,
}

/// The user addresses of a registration, besides the last one.
struct Place {
    start: u64,
    handle: u64,
}

/// Memory for a registration.
struct Kept {
    buffer: Spare,
    nodes: Nodes,
}

/// Registrations whose memory is kept.
const SPARES: usize = 64;

/// Memory for a handle.
struct Nodes {
    by_handle: RBTreeNodeReservation<u64, Option<Entry>>,
    by_last: RBTreeNodeReservation<u64, Place>,
}

impl Nodes {
    fn new() -> Result<Self> {
        Ok(Self {
            by_handle: RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?,
            by_last: RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?,
        })
    }
}

/// Names a buffer as long as it exists.
fn key(buffer: &Arc<Buffer>) -> usize {
    core::ptr::from_ref(&**buffer).addr()
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            gone: false,
            counter: Counter::new(),
            count: 0,
            by_handle: RBTree::new(),
            by_last: RBTree::new(),
            guests: RBTree::new(),
            ranges: RBTree::new(),
            windows: Windows::new(),
            spares: KVec::new(),
        }
    }

    /// Refuses new handles, and published ones are not found any more. Nothing is managed any more;
    /// returns the ranges, which are dropped without the table's lock.
    pub(super) fn close(&mut self) -> RBTree<u64, Range> {
        self.gone = true;
        self.windows = Windows::new();
        mem::replace(&mut self.ranges, RBTree::new())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.gone
    }

    fn entry(&self, handle: u64) -> Option<&Entry> {
        self.by_handle.get(&handle)?.as_ref()
    }

    fn entry_mut(&mut self, handle: u64) -> Option<&mut Entry> {
        self.by_handle.get_mut(&handle)?.as_mut()
    }

    fn get(&self, handle: u64) -> Result<&Arc<Buffer>> {
        if self.gone {
            return Err(ENODEV);
        }
        match self.entry(handle) {
            Some(entry) if entry.is_visible() => Ok(&entry.buffer),
            Some(_) => Err(ENOENT),
            // A managed range has no memory of its own.
            None if self.ranges.get(&handle).is_some() => Err(EINVAL),
            None => match self.counter.absent(handle) {
                Absent::Never => Err(ENOENT),
                Absent::Released => Err(ESTALE),
            },
        }
    }

    /// Gives `range` a handle, which cannot be used yet. It is a window if there is a node for it.
    pub(super) fn reserve_range(
        &mut self,
        node: RBTreeNodeReservation<u64, Range>,
        window: Option<RBTreeNodeReservation<u64, Span>>,
        range: Range,
    ) -> Result<u64, Failure> {
        if self.gone {
            return Err(ENODEV.into());
        }
        self.check_count()?;
        if let Some(window) = window {
            let _ = self.check_way(range.span)?;
            self.windows.insert(window, range.span);
        }
        let handle = self.counter.take().ok_or(ENOSPC)?;
        self.ranges.insert(node.into_node(handle, range));
        self.count = self.count.saturating_add(1);
        Ok(handle)
    }

    /// Whether `handle` is that of a managed range which user space knows.
    fn has_range(&self, handle: u64) -> bool {
        self.ranges
            .get(&handle)
            .is_some_and(|range| range.published)
    }

    /// Removes the entries of `handles` into `removed`, which has room for them. Fails, and removes
    /// none, if one cannot be released or is there twice.
    fn remove_all(
        &mut self,
        handles: &[u64],
        removed: &mut KVVec<Removed>,
    ) -> Result<(), (Error, usize)> {
        for (index, &handle) in handles.iter().enumerate() {
            let one = if self.gone {
                None
            } else {
                self.remove_if(handle, Entry::is_visible)
            };
            let Some(one) = one else {
                return Err((self.undo_removal(handle, removed), index));
            };
            // There is room.
            let _ = removed.push_within_capacity(one);
        }
        Ok(())
    }

    /// Puts the entries of `removed` back, since `handle` cannot be released. Returns the reason.
    fn undo_removal(&mut self, handle: u64, removed: &mut KVVec<Removed>) -> Error {
        let is_twice = removed.iter().any(|one| one.handle == handle);
        while let Some(one) = removed.pop() {
            let span = one.entry.buffer.span();
            self.by_handle
                .insert(one.by_handle.into_node(one.handle, Some(one.entry)));
            if let Some(by_last) = one.by_last {
                let place = Place {
                    start: span.start(),
                    handle: one.handle,
                };
                self.by_last.insert(by_last.into_node(span.last(), place));
            }
            if let Some(guest) = one.guest {
                self.guests.insert(guest);
            }
            self.count = self.count.saturating_add(1);
        }
        if is_twice {
            return EINVAL;
        }
        self.get(handle).map_or_else(|error| error, |_| ENOENT)
    }

    pub(super) fn remove_range(&mut self, handle: u64) -> Option<RBTreeNode<u64, Range>> {
        if let Some(range) = self.ranges.get(&handle) {
            self.windows.remove(range);
        }
        let node = self.ranges.remove_node(&handle)?;
        self.count = self.count.saturating_sub(1);
        Some(node)
    }

    /// The registration with the lowest addresses that is not wholly below `address`.
    fn first_from(&self, address: u64) -> Option<(u64, &Arc<Buffer>)> {
        let cursor = self.by_last.cursor_lower_bound(&address)?;
        let handle = cursor.current().1.handle;
        self.entry(handle).map(|entry| (handle, &entry.buffer))
    }

    /// Whether it is certain, by a short look, that no registration and no window overlaps `span`.
    fn is_free(&self, span: Span) -> bool {
        let first = self.by_last.cursor_lower_bound(&span.start());
        let is_in_way = first.is_some_and(|first| first.current().1.start <= span.last());
        self.windows.is_empty() && !is_in_way
    }

    /// Fails if there is one registration too many with one more.
    fn check_count(&self) -> Result<(), Failure> {
        let (needed, allowed) = self.counts();
        if needed > allowed {
            return Err(Failure::limit(
                ENOSPC,
                uapi::PINMAP_FAIL_OBJECTS,
                needed,
                allowed,
            ));
        }
        Ok(())
    }

    /// Prepares for one more registration of `span`. Returns its handle.
    fn prepare(&mut self, span: Option<Span>) -> Result<u64, Failure> {
        if self.gone {
            return Err(ENODEV.into());
        }
        self.check_count()?;
        if let Some(span) = span {
            self.make_way(span)?;
        }
        Ok(self.counter.take().ok_or(ENOSPC)?)
    }

    /// Adds the entry of `handle`, for which everything was prepared.
    fn insert(&mut self, handle: u64, entry: Entry, span: Option<Span>, nodes: Nodes) {
        self.by_handle
            .insert(nodes.by_handle.into_node(handle, Some(entry)));
        if let Some(span) = span {
            let start = span.start();
            let place = Place { start, handle };
            self.by_last
                .insert(nodes.by_last.into_node(span.last(), place));
        }
        self.count = self.count.saturating_add(1);
    }

    /// Makes a buffer of the user memory of `plan` of memory that was kept, with a handle. `None`:
    /// there is none. `is_free`: nobody has its addresses, as the caller knows.
    fn reserve_kept(
        &mut self,
        plan: &RegisterPlan,
        is_free: bool,
    ) -> Result<Option<(Arc<Buffer>, u64)>, Failure> {
        if self.spares.is_empty() {
            return Ok(None);
        }
        let handle = self.prepare((!is_free).then_some(plan.span))?;
        let Kept { buffer, nodes } = self.spares.pop().ok_or(ENOMEM)?;
        let buffer = buffer.register(plan, handle);
        let entry = Entry::new(&buffer, Role::Home);
        self.insert(handle, entry, Some(plan.span), nodes);
        Ok(Some((buffer, handle)))
    }

    /// Registrations that there would be with one more, and that there may be.
    fn counts(&self) -> (u64, u64) {
        let needed = u64::from(self.count).saturating_add(1);
        (needed, module_parameters::max_registrations.value().into())
    }

    /// Fails if a window or a live registration overlaps `span`. Returns whether a stale one does.
    fn check_way(&self, span: Span) -> Result<bool, Failure> {
        self.windows.check_way(span)?;
        let mut from = span.start();
        let mut is_stale = false;
        while let Some((_, buffer)) = self.first_from(from) {
            let way = buffer.span();
            if !way.overlaps(span) {
                break;
            }
            if buffer.state() != State::Stale {
                return Err(Failure::at(EEXIST, uapi::PINMAP_FAIL_OVERLAP, way.start()));
            }
            is_stale = true;
            let Some(next) = way.last().checked_add(1) else {
                break;
            };
            from = next;
        }
        Ok(is_stale)
    }

    /// Like [`check_way`](Self::check_way), and removes stale registrations from the addresses.
    fn make_way(&mut self, span: Span) -> Result<(), Failure> {
        // Only once it is known that none is live: a call that fails changes nothing.
        if !self.is_free(span) && self.check_way(span)? {
            while let Some(last) = self.first_last_in(span) {
                self.by_last.remove(&last);
            }
        }
        Ok(())
    }

    /// The last address of the first registration that overlaps `span`.
    fn first_last_in(&self, span: Span) -> Option<u64> {
        let (_, buffer) = self.first_from(span.start())?;
        buffer.span().overlaps(span).then(|| buffer.span().last())
    }

    fn remove(&mut self, handle: u64) -> Option<Removed> {
        self.remove_if(handle, |_| true)
    }

    /// Removes the entry of `handle`, if there is one and it is `wanted`.
    fn remove_if(&mut self, handle: u64, wanted: impl FnOnce(&Entry) -> bool) -> Option<Removed> {
        let mut found = self.by_handle.find_mut(&handle)?;
        if !found.get().as_ref().is_some_and(wanted) {
            return None;
        }
        let entry = found.get_mut().take()?;
        let by_handle = found.remove_node();
        let by_last = self.by_last.find_mut(&entry.buffer.span().last());
        // Whoever took the addresses of a stale registration has removed it here.
        let by_last = by_last.filter(|found| found.get().handle == handle);
        let by_last = by_last.map(|found| found.remove_node().into_reservation());
        let guest = match entry.role {
            Role::Home => None,
            Role::Guest => self.guests.remove_node(&key(&entry.buffer)),
        };
        self.count = self.count.saturating_sub(1);
        Some(Removed {
            entry,
            handle,
            by_handle: by_handle.into_reservation(),
            by_last,
            guest,
        })
    }
}

/// An entry that a context loses.
pub(super) enum Taken {
    Removed(Removed),
    /// The call that makes it gives the handle up.
    Unpublished(Arc<Buffer>),
}

/// A handle that was removed.
pub(super) struct Removed {
    pub(super) entry: Entry,
    handle: u64,
    by_handle: RBTreeNodeReservation<u64, Option<Entry>>,
    by_last: Option<RBTreeNodeReservation<u64, Place>>,
    guest: Option<RBTreeNode<usize, u64>>,
}

impl Removed {
    /// Begins to end the buffer, with the lock of the table: see [`Device::begin_ending`].
    ///
    /// [`Device::begin_ending`]: crate::device::Device::begin_ending
    pub(super) fn begin<'a>(&self, context: &'a Context) -> Option<srcu::Guard<'a>> {
        let outlives = self.entry.buffer.may_outlive_function();
        outlives.then(|| context.device.begin_ending())
    }

    /// Ends the buffer, if this is its home, or lets go of it.
    pub(super) fn release(self, context: &Context) -> Result {
        let buffer = match self.entry.role {
            Role::Home => self.entry.buffer,
            Role::Guest => {
                self.entry.buffer.remove_guest(&context.events);
                return Buffer::unmap_all_in(&self.entry.buffer, &context.space);
            }
        };
        let result = SharedBuffers::end(context, &buffer, State::Released);
        buffer.withdraw_event();
        if let Some(by_last) = self.by_last {
            let by_handle = self.by_handle;
            context.recycle(buffer, Nodes { by_handle, by_last });
        }
        result
    }
}

impl Context {
    /// Releases the buffer that is called `handle`, or ends the managed range.
    pub(crate) fn release(&self, handle: u64) -> Result {
        let mut table = self.table.lock();
        if !table.gone {
            if let Some(removed) = table.remove_if(handle, Entry::is_visible) {
                let _ending = removed.begin(self);
                drop(table);
                return removed.release(self);
            }
        }
        if table.has_range(handle) {
            drop(table);
            return self.release_range(handle);
        }
        table.get(handle).and(Err(ENOENT))
    }

    /// Releases the buffers that are called `handles`, or none of them. A failure comes with the
    /// index of the handle, or the number of all of them, if they were released.
    pub(crate) fn release_all(&self, handles: &[u64]) -> Result<(), (Error, usize)> {
        let all = |error| (error, handles.len());
        let room = KVVec::with_capacity(handles.len(), GFP_KERNEL);
        let mut removed: KVVec<Removed> = room.map_err(|error| all(error.into()))?;
        let mut gather = Gather::new().map_err(all)?;
        let mut table = self.table.lock();
        table.remove_all(handles, &mut removed)?;
        let _ending = removed.iter().find_map(|one| one.begin(self));
        drop(table);
        // One flush for all that needs no more than that.
        for one in &removed {
            if one.entry.role == Role::Home && !one.entry.buffer.is_portable() {
                one.entry.buffer.unmap_into(&mut gather);
            }
        }
        gather.flush();
        let mut result = Ok(());
        // From the end on, so that the next registration of these finds the memory of the first one
        // first.
        while let Some(one) = removed.pop() {
            result = result.and(one.release(self));
            task::cond_resched();
        }
        result.map_err(all)
    }

    /// Removes a portable buffer of another context, which has ended or left this context.
    pub(super) fn forget_guest(&self, buffer: &Arc<Buffer>) {
        let mut table = self.table.lock();
        let handle = table.guests.get(&key(buffer)).copied();
        if let Some(handle) = handle {
            table.remove(handle);
        }
        drop(table);
        if let Some(handle) = handle {
            buffer.remove_guest(&self.events);
            self.events.generations().bump(handle);
        }
    }

    /// Removes any published entry. Dooms the registrations before it that are not published yet,
    /// or returns one whose memory would outlive the function: nobody knows when the call that made
    /// it returns.
    pub(super) fn take_any(&self) -> Option<Taken> {
        let mut table = self.table.lock();
        let mut published = None;
        for (&handle, entry) in table.by_handle.iter() {
            let Some(entry) = entry else {
                continue;
            };
            if entry.is_published() {
                published = Some(handle);
                break;
            }
            let is_new = entry.role == Role::Home && entry.buffer.doom();
            if is_new && entry.buffer.may_outlive_function() {
                return Some(Taken::Unpublished(entry.buffer.clone()));
            }
        }
        published
            .and_then(|handle| table.remove(handle))
            .map(Taken::Removed)
    }
}
