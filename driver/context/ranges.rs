// SPDX-License-Identifier: GPL-2.0
//! Managed ranges of a context, by their handles.
//!
//! They share the numbers of the buffers' handles, and the limit on how many there may be.
//!
//! A *window* has its addresses to itself. It is in the way of registrations by their user
//! addresses, by the list here, and of mappings by their device addresses, which it has taken. Both
//! are made before its tables are, so of two calls that want the same addresses one succeeds.

use super::Context;
#[cfg(pinmap_mirror)]
use crate::{
    address_space::IovaRange,
    logic::{
        place::Placement,
        request::{managed::ManagePlan, Target},
    },
    managed::{self, range::Range as ManagedRange, Managed, Managing},
    stats::Stat,
};
use crate::{failure::Failure, logic::span::Span, stats::StatGuard, uapi::PINMAP_FAIL_WINDOW};
#[cfg(pinmap_mirror)]
use kernel::sync::Arc;
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
};

/// The entry of a managed range.
pub(super) struct Range {
    pub(super) span: Span,
    pub(super) published: bool,
    /// Whether it is in the list of windows.
    is_window: bool,
    #[cfg(pinmap_mirror)]
    managed: Arc<ManagedRange>,
    /// The device addresses of a window. Freed after nothing is managed there.
    #[cfg(pinmap_mirror)]
    taken: Option<IovaRange>,
    /// Counts the range.
    pub(super) _stat: StatGuard,
}

/// The windows of a context by their last addresses.
pub(super) struct Windows(RBTree<u64, Span>);

impl Windows {
    pub(super) fn new() -> Self {
        Self(RBTree::new())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fails if a window overlaps `span`.
    pub(super) fn check_way(&self, span: Span) -> Result<(), Failure> {
        let cursor = self.0.cursor_lower_bound(&span.start());
        let first = cursor.map(|cursor| *cursor.current().1);
        match first.filter(|window| window.overlaps(span)) {
            Some(window) => Err(Failure::at(EEXIST, PINMAP_FAIL_WINDOW, window.start())),
            None => Ok(()),
        }
    }

    pub(super) fn insert(&mut self, node: RBTreeNodeReservation<u64, Span>, window: Span) {
        self.0.insert(node.into_node(window.last(), window));
    }

    /// Removes `range`, if it is a window.
    pub(super) fn remove(&mut self, range: &Range) {
        if range.is_window {
            self.0.remove(&range.span.last());
        }
    }
}

impl Context {
    /// Finds the managed range that is called `handle`. `None`: it is the handle of something else.
    pub(crate) fn find_range(&self, handle: u64) -> Result<Option<Span>> {
        let table = self.table.lock();
        if table.is_closed() {
            return Err(ENODEV);
        }
        let range = table.ranges.get(&handle).filter(|range| range.published);
        Ok(range.map(|range| range.span))
    }

    /// Ends the managed range that is called `handle`. `ESTALE`: another call has done so.
    pub(super) fn release_range(&self, handle: u64) -> Result {
        let mut table = self.table.lock();
        let node = table.remove_range(handle).ok_or(ESTALE)?;
        drop(table);
        self.end_range(node.to_key_value().1)
    }

    #[cfg(not(pinmap_mirror))]
    fn end_range(&self, _range: Range) -> Result {
        Ok(())
    }

    #[cfg(pinmap_mirror)]
    fn end_range(&self, range: Range) -> Result {
        range.managed.end_notice();
        let managing = self.managing_now();
        managing.map_or(Ok(()), |managing| managing.remove(&range.managed))
    }
}

#[cfg(pinmap_mirror)]
impl Context {
    /// The managed range that is called `handle`. `ENOENT`: there is none.
    pub(crate) fn managed_range(&self, handle: u64) -> Result<Arc<ManagedRange>> {
        let table = self.table.lock();
        let range = table.ranges.get(&handle).filter(|range| range.published);
        Ok(range.ok_or(ENOENT)?.managed.clone())
    }

    /// Finds the managed range with the lowest handle from `handle` on.
    pub(crate) fn range_from(&self, mut handle: u64) -> Option<(u64, Arc<ManagedRange>)> {
        let table = self.table.lock();
        loop {
            let cursor = table.ranges.cursor_lower_bound(&handle)?;
            let (&found, range) = cursor.current();
            if range.published {
                return Some((found, range.managed.clone()));
            }
            handle = found.checked_add(1)?;
        }
    }

    /// Returns what manages memory of the context, if something does.
    pub(crate) fn managing_now(&self) -> Option<Arc<Managing>> {
        let managing = self.managing.lock();
        managing.as_ref().map(|(managing, _)| managing.clone())
    }

    /// Returns what manages the context's memory; made by the first call.
    fn managing(&self) -> Result<Arc<Managing>> {
        let member = self.member.as_ref().ok_or(EINVAL)?;
        if let Some(managing) = self.managing_now() {
            return Ok(managing);
        }
        // Without the lock: this waits for the mmap lock, which a program can keep others from.
        let (made, mover) =
            Managed::begin(member.vm(), &self.space, &self.account, self.events.stats())?;
        let mut managing = self.managing.lock();
        if let Some((managing, _)) = &*managing {
            return Ok(managing.clone());
        }
        member.vm().set_pager(made.clone())?;
        *managing = Some((made.clone(), mover));
        Ok(made)
    }

    /// Drops what managed the context's memory, of which the device has nothing any more.
    pub(super) fn manage_no_more(&self) {
        let managing = self.managing.lock().take();
        drop(managing);
    }

    /// Manages a range as `plan` says, under a handle that cannot be used yet.
    pub(crate) fn manage(self: &Arc<Self>, plan: &ManagePlan) -> Result<ReservedRange, Failure> {
        let managing = self.managing()?;
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let window = plan
            .is_window
            .then(|| RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT));
        let window = window.transpose()?;
        let managed = ManagedRange::new(plan, &self.events)?;
        let entry = Range {
            span: plan.range,
            published: false,
            is_window: plan.is_window,
            managed: managed.clone(),
            taken: None,
            _stat: StatGuard::new(self.events.stats(), Stat::Managed, plan.range.length()),
        };
        let reserved = self.table.lock().reserve_range(node, window, entry);
        let handle = match reserved {
            Ok(handle) => handle,
            Err(failure) => {
                managed.end_notice();
                return Err(failure);
            }
        };
        managed.set_handle(handle);
        // Ends the range if anything fails.
        let reserved = ReservedRange {
            context: self.clone(),
            handle,
            published: false,
        };
        if plan.is_window {
            reserved.take_addresses(plan.range)?;
            managed::window::check_mapped(managing.mm(), plan.range)?;
            managing.furnish(plan.range)?;
        }
        managing.add(&managed)?;
        Ok(reserved)
    }
}

/// A managed range whose handle cannot be used yet. Dropping it ends the range.
#[cfg(pinmap_mirror)]
pub(crate) struct ReservedRange {
    context: Arc<Context>,
    handle: u64,
    published: bool,
}

#[cfg(pinmap_mirror)]
impl ReservedRange {
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Takes the device addresses of a window.
    fn take_addresses(&self, span: Span) -> Result<(), Failure> {
        let target = Target {
            placement: Placement::Fixed(span.start()),
            address_bits: u64::BITS,
        };
        let taken = IovaRange::take(&self.context.space, span.length(), target)?;
        taken.make_window();
        let mut table = self.context.table.lock();
        table.ranges.get_mut(&self.handle).ok_or(ENODEV)?.taken = Some(taken);
        Ok(())
    }

    /// Makes the handle usable. `ENODEV`: the device is gone.
    pub(crate) fn publish(&mut self) -> Result {
        let mut table = self.context.table.lock();
        if table.is_closed() {
            return Err(ENODEV);
        }
        let range = table.ranges.get_mut(&self.handle).ok_or(ENOENT)?;
        range.published = true;
        self.published = true;
        Ok(())
    }
}

#[cfg(pinmap_mirror)]
impl Drop for ReservedRange {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        let node = self.context.table.lock().remove_range(self.handle);
        if let Some(node) = node {
            let _ = self.context.end_range(node.to_key_value().1);
        }
    }
}
