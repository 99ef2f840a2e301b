// SPDX-License-Identifier: GPL-2.0
//! Memory that `mmap()` of an open file shows, besides BARs.
//!
//! Everything that can be mapped has an offset of its own, from [`START`] on, which the call that
//! makes it returns. Offsets are not used again. Areas keep what they show: an [`MmapOffset`] can
//! be dropped while memory is still mapped.

use crate::{
    context::Context,
    device::Device,
    logic::{pte::LARGE, span::Span, PAGE_SIZE},
    mapping::VramRange,
    sys::mm::{
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
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// The first offset. Offsets below belong to BARs. Programs of 32 bits can reach this one, too.
pub(crate) const START: u64 = 1 << 43;
/// The first offset of [loans](Loan).
pub(crate) const LOANS: u64 = 1 << 62;
/// The last file offset: what `loff_t` can hold.
const LAST: u64 = i64::MAX as u64;

/// The offset behind one of `length` bytes at `offset`, at most `last`.
fn next_offset(offset: u64, length: u64, last: u64) -> Result<u64> {
    offset
        .checked_add(length)
        .and_then(|end| end.checked_next_multiple_of(LARGE))
        .filter(|&end| end <= last)
        .ok_or(ENOSPC)
}

/// Offsets of [loans](Loan): all files of a device have different ones, because they share the
/// kernel's list of what is mapped, by which a loan is unmapped. Programs of 32 bits reach none.
pub(crate) struct LoanOffsets(Atomic<u64>);

impl LoanOffsets {
    pub(crate) fn new() -> Self {
        Self(Atomic::new(LOANS))
    }

    /// Returns a new offset, aligned for huge pages.
    pub(crate) fn take(&self, length: u64) -> Result<u64> {
        let step = next_offset(0, length, LAST)?;
        let mut offset = self.0.load(Relaxed);
        loop {
            next_offset(offset, length, LAST)?;
            match self.0.cmpxchg(offset, offset.saturating_add(step), Relaxed) {
                Ok(_) => return Ok(offset),
                Err(other) => offset = other,
            }
        }
    }
}

/// Pages of a device that can be mapped.
pub(crate) trait DevicePages: Send + Sync {
    /// Calls `insert` with the page frame at byte `offset`, unless the device is gone.
    fn insert(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32>;

    /// Calls `insert` with the first page frame of a huge page at byte `offset`. Returns `None`
    /// also if there is no huge page.
    fn insert_huge(&self, _offset: u64, _insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        None
    }

    /// Whether the pages are memory, and so mapped write-combined.
    fn is_memory(&self) -> bool;

    /// Whether the pages are P2PDMA pages, also write-combined.
    fn is_p2pdma(&self) -> bool {
        false
    }
}

/// Host memory that the driver allocated, shown from an offset on.
pub(crate) struct HostView {
    folios: Arc<Folios>,
    offset: u64,
}

impl HostView {
    pub(crate) fn new(folios: &Arc<Folios>, offset: u64) -> Self {
        Self {
            folios: folios.clone(),
            offset,
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

/// Pinned pages of a file, shown from offset 0 on.
pub(crate) struct FileView {
    pages: Arc<PinnedFile>,
    starts: KVVec<u64>,
}

impl FileView {
    pub(crate) fn new(pages: &Arc<PinnedFile>) -> Result<Arc<Self>> {
        let this = Self {
            pages: pages.clone(),
            starts: pages.starts()?,
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    /// Maps the pages in `area`. A seal against writing holds here, too.
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

/// VRAM that another context lends, until either of the two ends that.
#[pin_data]
struct LentPages {
    device: Arc<Device>,
    context: u64,
    /// Offsets that no other file of the device has.
    span: Span,
    #[pin]
    pages: Mutex<Option<Arc<dyn DevicePages>>>,
}

impl LentPages {
    /// Calls `insert` with the pages. It may wait for memory, and whoever ends the loan must not
    /// wait for that. So if the loan has ended meanwhile, the page is taken out again; until then
    /// the pages are kept.
    fn while_lent(&self, insert: impl FnOnce(&dyn DevicePages) -> Option<u32>) -> Option<u32> {
        let pages = self.pages.lock().clone()?;
        let result = insert(&*pages);
        if self.pages.lock().is_none() {
            self.unmap();
        }
        result
    }

    fn unmap(&self) {
        self.device.zap_view(self.context, self.span);
    }
}

impl DevicePages for LentPages {
    fn insert(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        self.while_lent(|pages| pages.insert(offset, insert))
    }

    fn insert_huge(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        self.while_lent(|pages| pages.insert_huge(offset, insert))
    }

    fn is_memory(&self) -> bool {
        true
    }
}

/// VRAM that `context` has imported, as `mmap()` shows it to the program that imported it. When
/// this is dropped, the areas that show it are empty: a touch is a `SIGBUS`.
pub(crate) struct Loan {
    pages: Arc<LentPages>,
    offset: MmapOffset,
}

impl Loan {
    pub(crate) fn new(context: &Context, vram: Arc<dyn VramRange>, write: bool) -> Result<Self> {
        let device = context.device();
        let offset = device.take_loan_offset(vram.span().length())?;
        let span = Span::new(offset, vram.span().length()).map_err(|_| EINVAL)?;
        let pages = Arc::pin_init(
            pin_init!(LentPages {
                device: device.clone(),
                context: context.id(),
                span,
                pages <- new_mutex!(Some(vram.shown()), "pinmap_lent"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let source = MmapSource::Device(pages.clone());
        Ok(Self {
            pages,
            offset: MmapOffsets::add_at(context.mmap_offsets(), span, source, write)?,
        })
    }

    pub(crate) fn offset(&self) -> u64 {
        self.offset.offset()
    }

    /// Takes the memory away from the program. When this returns, nobody reaches it by the CPU; it
    /// is kept by faults that are under way.
    pub(crate) fn end(&self) {
        let pages = self.pages.pages.lock().take();
        self.pages.unmap();
        drop(pages);
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.end();
    }
}

/// Pages of a device, shown from an offset on.
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

#[derive(Clone)]
enum View {
    Host(Arc<HostView>),
    Device(Arc<DeviceView>),
}

/// Something that `mmap()` can show.
pub(crate) enum MmapSource {
    /// Memory that the driver allocated.
    Host(Arc<Folios>),
    /// Pages of the device.
    Device(Arc<dyn DevicePages>),
}

struct Offsets {
    /// The next offset to be given out.
    next: u64,
    /// Entries by their last offset.
    by_last: RBTree<u64, Entry>,
}

struct Entry {
    span: Span,
    view: View,
    /// Whether the program may write it.
    write: bool,
    /// The buffer's handle; 0: not a buffer.
    handle: u64,
}

/// The offsets of an open file.
#[pin_data]
pub(crate) struct MmapOffsets {
    #[pin]
    offsets: Mutex<Offsets>,
    /// Whether there was ever an entry.
    used: Atomic<bool>,
}

impl MmapOffsets {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let offsets = Offsets {
            next: START,
            by_last: RBTree::new(),
        };
        Arc::pin_init(
            pin_init!(Self {
                offsets <- new_mutex!(offsets, "pinmap_views"),
                used: Atomic::new(false),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Gives `source`, of `length` bytes, whole pages, an offset.
    /// `write`: the program may write it.
    pub(crate) fn add(
        this: &Arc<Self>,
        length: u64,
        source: MmapSource,
        write: bool,
    ) -> Result<MmapOffset> {
        let offset = this.take_offset(length)?;
        let span = Span::new(offset, length).map_err(|_| EINVAL)?;
        Self::add_at(this, span, source, write)
    }

    /// As [`add`](Self::add), at offsets that the caller has chosen.
    fn add_at(this: &Arc<Self>, span: Span, source: MmapSource, write: bool) -> Result<MmapOffset> {
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let offset = span.start();
        let view = match source {
            MmapSource::Host(folios) => {
                View::Host(Arc::new(HostView { folios, offset }, GFP_KERNEL_ACCOUNT)?)
            }
            MmapSource::Device(pages) => {
                View::Device(Arc::new(DeviceView { pages, offset }, GFP_KERNEL_ACCOUNT)?)
            }
        };
        this.used.store(true, Relaxed);
        let mut offsets = this.offsets.lock();
        let entry = Entry {
            span,
            view,
            write,
            handle: 0,
        };
        offsets.by_last.insert(node.into_node(span.last(), entry));
        drop(offsets);
        Ok(MmapOffset {
            table: this.clone(),
            span,
        })
    }

    /// Whether there is no entry. Most programs never have one, and take no lock here.
    pub(crate) fn is_empty(&self) -> bool {
        !self.used.load(Relaxed) || self.offsets.lock().by_last.is_empty()
    }

    pub(crate) fn set_handle(&self, offset: u64, handle: u64) {
        let mut offsets = self.offsets.lock();
        if let Some(mut cursor) = offsets.by_last.cursor_lower_bound_mut(&offset) {
            let entry = cursor.current_mut().1;
            if entry.span.start() == offset {
                entry.handle = handle;
            }
        }
    }

    /// Returns the handle of the buffer that `offset` is in, and the offset of its first byte.
    pub(crate) fn find(&self, offset: u64) -> Option<(u64, u64)> {
        let offsets = self.offsets.lock();
        let cursor = offsets.by_last.cursor_lower_bound(&offset)?;
        let entry = cursor.current().1;
        let found = entry.span.contains(offset) && entry.handle != 0;
        found.then(|| (entry.handle, entry.span.start()))
    }

    /// Returns a new offset, aligned for huge pages.
    fn take_offset(&self, length: u64) -> Result<u64> {
        let mut offsets = self.offsets.lock();
        let offset = offsets.next;
        offsets.next = next_offset(offset, length, LOANS)?;
        Ok(offset)
    }

    /// Maps in `area` what is at its offset. `EINVAL`: nothing is, or less than the area; `EACCES`:
    /// the program may not write it.
    pub(crate) fn view(&self, area: NewArea<'_>) -> Result {
        let wanted = Span::new(area.offset(), area.length()).map_err(|_| EINVAL)?;
        let (view, write) = {
            let offsets = self.offsets.lock();
            let cursor = offsets.by_last.cursor_lower_bound(&wanted.start());
            let cursor = cursor.ok_or(EINVAL)?;
            let entry = cursor.current().1;
            if !entry.span.covers(wanted) {
                return Err(EINVAL);
            }
            (entry.view.clone(), entry.write)
        };
        if !write {
            if area.is_writable() {
                return Err(EACCES);
            }
            area.forbid_writing();
        }
        match view {
            View::Host(host) => area.view_pages(host),
            View::Device(device) if device.pages.is_p2pdma() => area.view_p2pdma_pages(device),
            View::Device(device) => {
                let write_combine = device.pages.is_memory();
                area.view_device_memory(device, write_combine);
            }
        }
        Ok(())
    }
}

/// An offset. Dropping it ends that; areas that exist stay.
pub(crate) struct MmapOffset {
    table: Arc<MmapOffsets>,
    span: Span,
}

impl MmapOffset {
    /// The offset to pass to `mmap()`.
    pub(crate) fn offset(&self) -> u64 {
        self.span.start()
    }
}

impl Drop for MmapOffset {
    fn drop(&mut self) {
        // Not under the lock: this may free what was shown.
        let node = self
            .table
            .offsets
            .lock()
            .by_last
            .remove_node(&self.span.last());
        drop(node);
    }
}
