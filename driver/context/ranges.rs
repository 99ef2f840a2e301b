// SPDX-License-Identifier: GPL-2.0
//! Managed ranges of a context, by their handles.
//!
//! They share the numbers of the buffers' handles, and the limit on how many there may be.

use super::Context;
#[cfg(pinmap_mirror)]
use crate::{failure::Failure, managed::Managed, managed::Managing, stats::Stat};
use crate::{logic::span::Span, stats::StatGuard};
use kernel::prelude::*;
#[cfg(pinmap_mirror)]
use kernel::{rbtree::RBTreeNodeReservation, sync::Arc};

/// The entry of a managed range.
pub(super) struct Range {
    pub(super) span: Span,
    pub(super) published: bool,
    /// Counts the range.
    pub(super) _stat: StatGuard,
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

    /// Ends the managed range that is called `handle`. `None`: it is the handle of something else.
    pub(super) fn release_range(&self, handle: u64) -> Option<Result> {
        let mut table = self.table.lock();
        table.ranges.get(&handle).filter(|range| range.published)?;
        let node = table.remove_range(handle)?;
        drop(table);
        Some(self.end_range(node.to_key_value().1))
    }

    #[cfg(not(pinmap_mirror))]
    fn end_range(&self, _range: Range) -> Result {
        Ok(())
    }

    #[cfg(pinmap_mirror)]
    fn end_range(&self, range: Range) -> Result {
        let managing = self.managing.lock().clone();
        managing.map_or(Ok(()), |managing| managing.remove(range.span))
    }
}

#[cfg(pinmap_mirror)]
impl Context {
    /// What manages the context's memory; made by the first call.
    fn managing(&self) -> Result<Arc<Managing>> {
        let member = self.member.as_ref().ok_or(EINVAL)?;
        let mut managing = self.managing.lock();
        if let Some(managing) = &*managing {
            return Ok(managing.clone());
        }
        let made = Managed::begin(member.vm(), &self.space, &self.account)?;
        member.vm().set_pager(made.clone())?;
        *managing = Some(made.clone());
        Ok(made)
    }

    /// Drops what managed the context's memory, of which the device has nothing any more.
    pub(super) fn manage_no_more(&self) {
        let managing = self.managing.lock().take();
        drop(managing);
    }

    /// Manages `range` under a handle that cannot be used yet.
    pub(crate) fn manage(self: &Arc<Self>, range: Span) -> Result<ReservedRange, Failure> {
        let managing = self.managing()?;
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let entry = Range {
            span: range,
            published: false,
            _stat: StatGuard::new(self.events.stats(), Stat::Managed, range.length()),
        };
        managing.add(range)?;
        let reserved = self.table.lock().reserve_range(node, entry);
        match reserved {
            Ok(handle) => Ok(ReservedRange {
                context: self.clone(),
                handle,
                published: false,
            }),
            Err(failure) => {
                // A failure was reported by the device.
                let _ = managing.remove(range);
                Err(failure)
            }
        }
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
