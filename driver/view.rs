// SPDX-License-Identifier: GPL-2.0
//! What `mmap()` of an open file shows, besides BARs: offsets, and what is there.

use crate::{
    logic::{pte::LARGE, span::Span, PAGE_SIZE},
    sys::{
        folios::Folios,
        memfd::PinnedFile,
        pages::Pages,
        vma::{Faults, NewArea, PageSource},
    },
};
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::{Arc, Mutex},
};

/// The first offset. Those below are BARs'. A program for 32 bits can still ask for as much again.
pub(crate) const START: u64 = 1 << 43;
/// The file offsets that there are: what `loff_t` can tell.
const LAST: u64 = i64::MAX as u64;

/// Pages of a device that can be viewed.
pub(crate) trait DevicePages: Send + Sync {
    /// Calls `insert` with the page frame at the byte `offset` of it, unless the device is gone.
    fn insert(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32>;

    /// The same for a huge page that begins there, with its first page frame; `None` also if there is none.
    fn insert_huge(&self, _offset: u64, _insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        None
    }

    /// Whether it is memory, and so viewed write-combined.
    fn is_memory(&self) -> bool;
}

/// Host memory at an offset.
pub(crate) struct HostView {
    folios: Arc<Folios>,
    offset: u64,
    read_only: bool,
}

impl HostView {
    /// Shows `folios` from `offset` on.
    pub(crate) fn new(folios: &Arc<Folios>, offset: u64) -> Self {
        Self {
            folios: folios.clone(),
            offset,
            read_only: false,
        }
    }
}

impl PageSource for HostView {
    fn folios(&self) -> &Folios {
        &self.folios
    }

    fn offset(&self) -> u64 {
        self.offset
    }
}

/// Pinned pages of a file, from the offset 0 on.
pub(crate) struct FileView {
    pages: Arc<PinnedFile>,
    starts: KVVec<u64>,
}

impl FileView {
    /// Shows all of `pages`.
    pub(crate) fn new(pages: &Arc<PinnedFile>) -> Result<Arc<Self>> {
        let this = Self {
            pages: pages.clone(),
            starts: pages.starts()?,
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    /// Makes `area` a view of it. A seal against writing holds here, too.
    pub(crate) fn show(this: &Arc<Self>, area: NewArea<'_>) -> Result {
        let last = area.offset().checked_add(area.length()).ok_or(EINVAL)?;
        if last > this.pages.pages().saturating_mul(PAGE_SIZE) {
            return Err(EINVAL);
        }
        if this.pages.is_sealed() {
            if area.is_writable() {
                return Err(EPERM);
            }
            area.forbid_writing();
        }
        area.view_pinned_file(this.clone());
        Ok(())
    }
}

impl Faults for FileView {
    fn fault(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        let pfn = self.pages.pfn_at(&self.starts, offset / PAGE_SIZE)?;
        Some(insert(pfn))
    }
}

/// Something of the device at an offset.
struct DeviceView {
    pages: Arc<dyn DevicePages>,
    offset: u64,
}

impl Faults for DeviceView {
    fn fault(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        self.pages.insert(offset.checked_sub(self.offset)?, insert)
    }

    fn huge_fault(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        let offset = offset.checked_sub(self.offset)?;
        self.pages.insert_huge(offset, insert)
    }
}

/// What is at an offset.
#[derive(Clone)]
enum View {
    Host(Arc<HostView>),
    Device(Arc<DeviceView>),
}

/// What is shown.
pub(crate) enum MmapSource {
    /// Memory of the driver's own.
    Host(Arc<Folios>),
    /// The same, not to be written to.
    ReadOnly(Arc<Folios>),
    /// Something of the device.
    Device(Arc<dyn DevicePages>),
}

struct Offsets {
    /// Where the next one goes: none is used twice.
    next: u64,
    /// By the last offset.
    by_last: RBTree<u64, Entry>,
}

struct Entry {
    span: Span,
    view: View,
    /// What it is a view of; 0: nothing that has a handle.
    handle: u64,
}

/// The views of an open file.
#[pin_data]
pub(crate) struct MmapOffsets {
    #[pin]
    offsets: Mutex<Offsets>,
}

impl MmapOffsets {
    /// None yet.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let offsets = Offsets {
            next: START,
            by_last: RBTree::new(),
        };
        Arc::pin_init(
            pin_init!(Self {
                offsets <- new_mutex!(offsets, "pinmap_views"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Shows `length` bytes, whole pages, from now on.
    pub(crate) fn add(this: &Arc<Self>, length: u64, what: MmapSource) -> Result<MmapOffset> {
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let offset = this.take_offset(length)?;
        let span = Span::new(offset, length).map_err(|_| EINVAL)?;
        let host = |folios, read_only| -> Result<View> {
            let view = HostView {
                folios,
                offset,
                read_only,
            };
            Ok(View::Host(Arc::new(view, GFP_KERNEL_ACCOUNT)?))
        };
        let view = match what {
            MmapSource::Host(folios) => host(folios, false)?,
            MmapSource::ReadOnly(folios) => host(folios, true)?,
            MmapSource::Device(pages) => {
                View::Device(Arc::new(DeviceView { pages, offset }, GFP_KERNEL_ACCOUNT)?)
            }
        };
        let mut offsets = this.offsets.lock();
        let entry = Entry {
            span,
            view,
            handle: 0,
        };
        offsets.by_last.insert(node.into_node(span.last(), entry));
        drop(offsets);
        Ok(MmapOffset {
            table: this.clone(),
            span,
        })
    }

    /// Whether it shows nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.offsets.lock().by_last.is_empty()
    }

    /// What is shown at `offset` is called `handle` from now on.
    pub(crate) fn set_handle(&self, offset: u64, handle: u64) {
        let mut offsets = self.offsets.lock();
        if let Some(mut cursor) = offsets.by_last.cursor_lower_bound_mut(&offset) {
            let entry = cursor.current_mut().1;
            if entry.span.start() == offset {
                entry.handle = handle;
            }
        }
    }

    /// The handle of what is shown at `offset`, and the offset of its first byte.
    pub(crate) fn find(&self, offset: u64) -> Option<(u64, u64)> {
        let offsets = self.offsets.lock();
        let cursor = offsets.by_last.cursor_lower_bound(&offset)?;
        let entry = cursor.current().1;
        let found = entry.span.contains(offset) && entry.handle != 0;
        found.then(|| (entry.handle, entry.span.start()))
    }

    /// An offset that a huge page may have.
    fn take_offset(&self, length: u64) -> Result<u64> {
        let mut offsets = self.offsets.lock();
        let offset = offsets.next;
        offsets.next = offset
            .checked_add(length)
            .and_then(|end| end.checked_next_multiple_of(LARGE))
            .filter(|&end| end <= LAST)
            .ok_or(ENOSPC)?;
        Ok(offset)
    }

    /// Makes `area` a view of what is at its offset; `EINVAL` if nothing is, or not so much.
    pub(crate) fn view(&self, area: NewArea<'_>) -> Result {
        let wanted = Span::new(area.offset(), area.length()).map_err(|_| EINVAL)?;
        let view = {
            let offsets = self.offsets.lock();
            let cursor = offsets.by_last.cursor_lower_bound(&wanted.start());
            let cursor = cursor.ok_or(EINVAL)?;
            let entry = cursor.current().1;
            if !entry.span.covers(wanted) {
                return Err(EINVAL);
            }
            entry.view.clone()
        };
        match view {
            View::Host(host) => {
                if host.read_only {
                    if area.is_writable() {
                        return Err(EACCES);
                    }
                    area.forbid_writing();
                }
                area.view_pages(host);
            }
            View::Device(device) => {
                let write_combine = device.pages.is_memory();
                area.view_device_memory(device, write_combine);
            }
        }
        Ok(())
    }
}

/// Something that is shown. Dropping it ends that; areas that exist stay.
pub(crate) struct MmapOffset {
    table: Arc<MmapOffsets>,
    span: Span,
}

impl MmapOffset {
    /// What to pass to `mmap()`.
    pub(crate) fn offset(&self) -> u64 {
        self.span.start()
    }
}

impl Drop for MmapOffset {
    fn drop(&mut self) {
        // What is shown may be freed here, but not under the lock.
        let node = self
            .table
            .offsets
            .lock()
            .by_last
            .remove_node(&self.span.last());
        drop(node);
    }
}
