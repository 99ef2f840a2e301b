// SPDX-License-Identifier: GPL-2.0
//! Serving a fault: see the head of `mod.rs` for the order and why it is so.
//!
//! A fault on a page brings the whole block along, as far as the program's page table has it: that
//! costs little more than the one page does. Of what is missing, only the pages right behind the
//! one that faulted are faulted in with it (`logic/fault_around.rs`).

use super::{
    block::{pages_in, Block},
    block_of, page_of,
    pieces::{self, Pieces},
    placement::{self, Extent, Placed},
    range::{Count, Range},
    Managed, Managing, LONG,
};
use crate::{
    failure::Failure,
    gpu::mmu::pager::{Area, Pager, Refusal, Served, Taker},
    logic::{
        block::{Pages, PAGES},
        fault_around,
        pte::LARGE,
        span::Span,
        PAGE_SIZE,
    },
    sys::{
        mm::{
            hmm::{self, Leaf, Snapshot},
            migrate::{self, HomeFault},
            mirror::{Moment, GRANULE_PAGES},
        },
        task,
        task::clock::{self, MICROSECOND},
    },
    uapi,
};
use kernel::{prelude::*, sync::Arc};

/// Pause before an access is repeated that a mapping of the context permits by now.
const PAUSE: u64 = 50 * MICROSECOND;

/// Pages that are faulted in behind the one that faulted even if others wait for the mmap lock.
const LEAST: u32 = fault_around::FIRST as u32 - 1;

/// A fault.
#[derive(Clone, Copy)]
pub(super) struct Fault {
    pub(super) addr: u64,
    pub(super) write: bool,
    /// An atomic access, which also writes.
    pub(super) atomic: bool,
    /// The block of the page.
    pub(super) block: Span,
    /// The page in its block.
    pub(super) index: usize,
}

/// How far the service of a fault has come.
struct Progress {
    /// When the service began.
    begun: u64,
    /// How often it began anew, because the memory changed meanwhile.
    retries: u64,
    /// The range of the page, when that was last looked for.
    range: Option<Arc<Range>>,
    /// How many ranges had been removed before that.
    removed: u64,
    /// The page was faulted in.
    is_new: bool,
    /// Only few pages around the fault are entered, since the memory changes a lot.
    narrow: bool,
    /// How often it was tried to have the memory where it is to be.
    placed: u32,
}

impl Progress {
    fn new(begun: u64) -> Self {
        Self {
            begun,
            retries: 0,
            range: None,
            removed: 0,
            is_new: false,
            narrow: false,
            placed: 0,
        }
    }

    /// The pages of `block` that are managed, and that no mapping of the context has. Called with
    /// the block's service locked: a range that is removed afterwards takes the block back.
    fn lendable(&self, managed: &Managed, block: Span) -> Pages {
        let covers = |range: &Arc<Range>| range.span().covers(block);
        // If it was not removed since, it need not be looked for again.
        let is_managed = self.range.as_ref().is_some_and(covers);
        if is_managed && managed.removed() == self.removed {
            return unmapped(managed, block, Pages::ALL);
        }
        lendable(managed, block)
    }
}

/// How often that is tried: once before the page is faulted in, and once after.
const PLACED: u32 = 2;

/// How an attempt to serve a fault ended.
enum Attempt {
    /// The device has the page, and so many more than before.
    Done(u64),
    /// Something has changed meanwhile.
    Again,
    /// The page was faulted in.
    FaultedIn,
    /// Memory has moved.
    Moved,
    /// Memory in which an atomic access is made did not move.
    Busy,
    /// The page table has something that no device may have, though nothing says why.
    Strange,
    /// The page belongs to a run that is being taken away for the sake of another page.
    Leaving,
    /// Page tables or addresses on the bus have run out.
    Full,
}

/// Why an attempt failed.
enum Failed {
    Refused(Refusal),
    /// The thread was told to stop.
    Stopped,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        if error == EINTR {
            return Self::Stopped;
        }
        // Nothing else fails but for memory, while there is a context.
        refused(uapi::PINMAP_FAULT_MEMORY, error)
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        failure.errno.into()
    }
}

fn refusal(reason: u32, errno: Error) -> Refusal {
    Refusal {
        reason,
        errno,
        area: None,
        retries: 0,
    }
}

fn refused(reason: u32, errno: Error) -> Failed {
    Failed::Refused(refusal(reason, errno))
}

/// An atomic access to memory that stays on the host.
fn refused_atomic() -> Failed {
    refused(uapi::PINMAP_FAULT_ATOMIC, EOPNOTSUPP)
}

/// Whether an access, a `PINMAP_ACCESS_` value, needs a page that may be written.
fn is_write(access: u32) -> bool {
    matches!(
        access,
        uapi::PINMAP_ACCESS_WRITE | uapi::PINMAP_ACCESS_ATOMIC
    )
}

impl Pager for Managing {
    fn manages(&self, addr: u64) -> bool {
        self.first_range(page_of(addr)).is_some()
    }

    fn serve(&self, addr: u64, access: u32, begun: u64) -> Result<Served, Refusal> {
        let fault = Fault {
            addr,
            write: is_write(access),
            atomic: access == uapi::PINMAP_ACCESS_ATOMIC,
            block: block_of(addr),
            index: (addr % LARGE / PAGE_SIZE) as usize,
        };
        let mut progress = Progress::new(begun);
        match try_serve(self, fault, &mut progress) {
            Ok(pages) => {
                let ended = clock::now();
                if let Some(range) = &progress.range {
                    range.add(Count::DeviceFaults, 1);
                    range.add(Count::DeviceNs, ended.saturating_sub(begun));
                }
                Ok(Served {
                    pages,
                    retries: progress.retries,
                    ended,
                })
            }
            Err(Failed::Refused(refusal)) => {
                if let Some(range) = self.range_at(addr) {
                    range.note_refused(addr, access, refusal.reason);
                }
                Err(Refusal {
                    retries: progress.retries,
                    ..refusal
                })
            }
            Err(Failed::Stopped) => Err(refusal(uapi::PINMAP_FAULT_NONE, EINTR)),
        }
    }

    fn prepare(&self) {
        Managed::prepare(self);
    }

    fn came_home(&self, fault: &HomeFault<'_>, pages: u64, ns: u64) {
        if fault.is_in(self.mm()) {
            self.note_came_home(fault, pages, ns);
        }
    }

    fn was_taken(&self, area: &migrate::Area<'_>, part: Span, pages: u64, taker: Taker) {
        if !area.is_in(self.mm()) {
            return;
        }
        match taker {
            Taker::Eviction => self.note_evicted(part, pages),
            Taker::Device | Taker::Program => {
                self.note_taken(part, pages, taker == Taker::Device);
            }
        }
    }

    fn end(&self) {
        self.give_up_all();
    }

    fn give_way(&self, span: Span) -> Result {
        let mut result = Ok(());
        self.each_block(span, |block| {
            let service = block.service.lock();
            if service.dead {
                return;
            }
            result = result.and(block.take_back(self, span));
            if span.covers(block.span()) && !block.is_kept() {
                // The mapping may want a large leaf there.
                result = result.and(block.give_lower(self));
            }
            drop(service);
            task::cond_resched();
        });
        result
    }
}

/// Serves a fault. Returns how many pages the device has that it had not before.
fn try_serve(managing: &Managing, fault: Fault, progress: &mut Progress) -> Result<u64, Failed> {
    let mut snapshot = managing.snapshot()?;
    let result = attempts(managing, fault, &mut snapshot, progress);
    managing.keep_snapshot(snapshot);
    result
}

/// Tries to serve a fault again and again.
fn attempts(
    managing: &Managing,
    fault: Fault,
    snapshot: &mut Snapshot,
    progress: &mut Progress,
) -> Result<u64, Failed> {
    loop {
        let attempt = attempt(managing, fault, snapshot, progress)?;
        match attempt {
            Attempt::Done(pages) => return Ok(pages),
            Attempt::FaultedIn if !progress.is_new => {
                progress.is_new = true;
                continue;
            }
            Attempt::Moved if progress.placed <= PLACED => continue,
            Attempt::Full if !managing.make_room() => return Err(ENOSPC.into()),
            _ => {}
        }
        progress.narrow |= !matches!(attempt, Attempt::Leaving);
        progress.retries = progress.retries.saturating_add(1);
        if task::fatal_signal_pending() {
            return Err(Failed::Stopped);
        }
        if clock::now().saturating_sub(progress.begun) > LONG {
            // The device tries again, and others have a turn before.
            return match attempt {
                Attempt::Strange => Err(refused(uapi::PINMAP_FAULT_DEVICE, EFAULT)),
                Attempt::Busy => Err(refused_atomic()),
                Attempt::Full => Err(ENOSPC.into()),
                _ => Ok(0),
            };
        }
        task::cond_resched();
    }
}

/// Tries to serve a fault.
fn attempt(
    managing: &Managing,
    fault: Fault,
    snapshot: &mut Snapshot,
    progress: &mut Progress,
) -> Result<Attempt, Failed> {
    let page = page_of(fault.addr);
    progress.removed = managing.removed();
    progress.range = managing.range_at(fault.addr);
    let Some(range) = &progress.range else {
        return Err(refused(uapi::PINMAP_FAULT_UNMAPPED, EFAULT));
    };
    if managing.space.first_mapped(page).is_some() {
        return mapped_otherwise(managing, fault, page);
    }
    let mut moment = Moment::default();
    managing.all_changes().begin(fault.addr, &mut moment)?;
    let gpu = managing.vm.gpu();
    snapshot.read(managing.mm(), fault.block.start(), gpu.token())?;
    let leaf = snapshot.leaf(fault.index);
    let is_private = matches!(leaf, Leaf::Page { pfn, .. } if gpu.offset_of(pfn).is_some());
    let (page, placed);
    let mut extent = &Extent::NONE;
    if !is_private && leaf != Leaf::Forbidden {
        // An atomic access is made nowhere else, however often the CPU takes the page back.
        if progress.placed >= PLACED && !fault.atomic {
            page = Extent::page(fault.index);
            extent = &page;
        } else {
            progress.placed = progress.placed.saturating_add(1);
            if !fault.atomic && managing.is_all_for_host(range) {
                managing.note_advised(fault.addr);
                extent = &Extent::ALL;
            } else {
                match placement::place(managing, fault, snapshot) {
                    Ok(Placed::Moved) => return Ok(Attempt::Moved),
                    Ok(Placed::Busy(_)) if fault.atomic && leaf != Leaf::Absent => {
                        return Ok(Attempt::Busy);
                    }
                    Ok(Placed::Stays(all) | Placed::Busy(all)) => placed = all,
                    Err(EINTR) => return Err(Failed::Stopped),
                    // It is used where it is.
                    Err(_) => placed = Extent::page(fault.index),
                }
                extent = &placed;
            }
        }
    }
    match leaf {
        Leaf::Page { write, .. } if write || !fault.write => {}
        Leaf::Forbidden => {
            return refuse(managing, fault, None).map(|()| Attempt::Strange);
        }
        _ => {
            let readahead = managing.readahead(fault);
            let more = ahead(managing, fault, snapshot, readahead);
            if fault.write {
                forget_first(managing, fault, more)?;
            }
            return match hmm::fault_in(managing.mm(), fault.addr, fault.write, LEAST, more) {
                Ok(brought) => {
                    managing.note_readahead(fault, brought, readahead);
                    Ok(Attempt::FaultedIn)
                }
                Err(EINTR) => Err(Failed::Stopped),
                Err(error) => refuse(managing, fault, Some(error)).map(|()| Attempt::Again),
            };
        }
    }
    if fault.atomic && !is_private {
        return Err(refused_atomic());
    }
    let block = match managing.block_at(fault.addr) {
        Ok(block) => block,
        Err(failure) => return is_full(failure),
    };
    let attempt = lend(managing, &block, fault, snapshot, &moment, progress, extent)?;
    if let Attempt::Leaving = attempt {
        block.wait_until_left(fault.index)?;
    }
    Ok(attempt)
}

/// Returns how many pages behind the one of `fault` are to be faulted in with it: those that the
/// page table does not have, or not for writing, and that are managed and free, as far as they are
/// with a readahead of so many pages.
fn ahead(managed: &Managed, fault: Fault, snapshot: &Snapshot, readahead: usize) -> u32 {
    let free = lendable(managed, fault.block);
    let is_missing = |index| match snapshot.leaf(index) {
        Leaf::Absent => true,
        Leaf::Page { write, .. } => fault.write && !write,
        Leaf::Forbidden => false,
    };
    let behind = (fault.index..PAGES).take(readahead).skip(1);
    let more = behind.take_while(|&index| free.has(index) && is_missing(index));
    more.count() as u32
}

/// Takes the page of `fault`, and `more` behind it, from the device, which may have them for
/// reading. They are about to be replaced, one after the other, and so the device is waited for
/// once and not for each.
fn forget_first(managed: &Managed, fault: Fault, more: u32) -> Result {
    let bytes = u64::from(more).saturating_add(1).saturating_mul(PAGE_SIZE);
    let pages = Span::new(fault.addr & !(PAGE_SIZE - 1), bytes).map_err(|_| EINVAL)?;
    match managed.find_block(fault.addr) {
        Some(block) => managed.take_back(&block, pages, false),
        None => Ok(()),
    }
}

/// Tells apart what making room helps against.
fn is_full(failure: Failure) -> Result<Attempt, Failed> {
    match failure.errno {
        ENOSPC => Ok(Attempt::Full),
        _ => Err(failure.into()),
    }
}

/// Fails with the reason why a page cannot be had. `Ok`: nothing says why, any more.
fn refuse(managing: &Managing, fault: Fault, error: Option<Error>) -> Result<(), Failed> {
    let found = hmm::explain(managing.mm(), fault.addr, fault.write, error);
    if task::fatal_signal_pending() {
        return Err(Failed::Stopped);
    }
    if found.reason == uapi::PINMAP_FAULT_NONE {
        return Ok(());
    }
    let area = found.area.map(|(span, flags)| Area { span, flags });
    Err(Failed::Refused(Refusal {
        reason: found.reason,
        errno: error.unwrap_or(EFAULT),
        area,
        retries: 0,
    }))
}

/// Deals with a fault on a page that a mapping of the context has. If its memory has gone away, the
/// addresses are managed again once the device has forgotten it. Otherwise the mapping was made
/// meanwhile, or does not permit the access.
fn mapped_otherwise(managed: &Managed, fault: Fault, page: Span) -> Result<Attempt, Failed> {
    if managed.space.free_left(page)? {
        return Ok(Attempt::Again);
    }
    match managed.vm.permits(fault.addr) {
        Some((read, write)) if !read || (fault.write && !write) => {
            Err(refused(uapi::PINMAP_FAULT_UNMAPPED, EACCES))
        }
        _ => {
            clock::rest(PAUSE);
            Ok(Attempt::Done(0))
        }
    }
}

/// Gives the device what `snapshot` has of the block, if nothing has changed since `moment`: what
/// is in VRAM, and of the host's memory that in `extent`.
fn lend(
    managing: &Managing,
    block: &Arc<Block>,
    fault: Fault,
    snapshot: &Snapshot,
    moment: &Moment,
    progress: &Progress,
    extent: &Extent,
) -> Result<Attempt, Failed> {
    let managed: &Managed = managing;
    let gpu = managed.vm.gpu();
    let service = block.service.lock();
    if service.dead {
        return Ok(Attempt::Again);
    }
    let mut wanted = progress.lendable(managed, block.span());
    if extent.pages != Pages::ALL {
        let private = snapshot.among(&gpu.frames());
        wanted = wanted.and(extent.pages.or(private));
    }
    if progress.narrow {
        let last = fault.index | (GRANULE_PAGES - 1);
        wanted = wanted.and(Pages::range(fault.index, last));
    }
    if !wanted.has(fault.index) {
        return Ok(Attempt::Again);
    }
    // What the device has is left alone, unless it may not write where it has to.
    let mut lent = block.lent.lock();
    if lent.pages.has(fault.index) {
        if !fault.write || lent.pages.may_write(fault.index) {
            return Ok(Attempt::Done(0));
        }
        drop(lent);
        // Old permissions may be cached.
        let page = page_of(fault.addr);
        block.take_back(managed, page)?;
        lent = block.lent.lock();
    }

    let changes = managing.all_changes();
    let current = changes.current(moment);
    if !current.has(fault.index) {
        return Ok(Attempt::Again);
    }
    let was_empty = lent.pages.is_empty();
    if !was_empty {
        // What is leaving is still mapped on the bus, though nothing there changes.
        let leaving = lent.pages.leaving(Pages::ALL);
        if leaving.has(fault.index) {
            return Ok(Attempt::Leaving);
        }
        wanted = wanted.but(lent.pages.present().or(leaving));
    }
    let held = snapshot.hold(wanted, &current);
    drop(lent);
    let target = fault.write.then_some(fault.index);
    let mut writable = held.writable(target);
    if extent.read_only {
        writable = writable.but(extent.pages);
    }
    let is_large = was_empty && pieces::is_one(managed, &held, &mut writable, target);
    if !is_large {
        if let Err(failure) = block.make_lower(managed) {
            return is_full(failure);
        }
    }
    let pieces = Pieces::new(managed, &held, &writable);
    let mut mapped = held.pages();
    let result = pieces::map(pieces.clone(), block).map_err(|(first, error)| {
        mapped = mapped.but(Pages::range(first, PAGES - 1));
        error
    });
    let done = || pieces.clone().filter(|piece| mapped.has(piece.run.first));

    // What could not be mapped is left out. If anything else has changed, all begins anew.
    let mut lent = block.lent.lock();
    let current = changes.current(moment);
    let is_current = current.has_all(mapped);
    if !is_current || !mapped.has(fault.index) {
        drop(lent);
        // Nothing leads there, so the device has nothing to forget.
        let on_bus = done().filter(|piece| piece.private.is_none());
        let unmapped = block
            .lender
            .unmap(on_bus.filter_map(|piece| block.bus_span(piece.run)));
        if unmapped.is_err() {
            managed.dma_control().clone().block_dma();
        }
        unmapped.and(result)?;
        return Ok(Attempt::Again);
    }
    held.mark_modified(writable.and(mapped), &current);
    let mut pages = 0_usize;
    for piece in done() {
        pages = pages.saturating_add(piece.run.count);
        block.enter(managed, &mut lent, piece, is_large);
        if let Some(offset) = piece.private {
            gpu.note_given(offset);
        }
    }
    managed.vm.order();
    drop(lent);
    // From here on the notifier takes the pages away before they go.
    drop(held);
    block.note_served(managed.next_served());
    drop(service);
    Ok(Attempt::Done(pages as u64))
}

/// The pages of a block that are managed, and that no mapping of the context has.
pub(super) fn lendable(managed: &Managed, block: Span) -> Pages {
    let mut pages = Pages::NONE;
    let mut rest = Some(block);
    while let Some(span) = rest {
        let Some(range) = managed.first_range(span) else {
            break;
        };
        pages = pages.or(pages_in(block, range));
        rest = span.behind(range);
    }
    unmapped(managed, block, pages)
}

/// Returns the pages of `pages` of a block that no mapping of the context has.
fn unmapped(managed: &Managed, block: Span, pages: Pages) -> Pages {
    let mut pages = pages;
    let mut rest = Some(block);
    while let Some(span) = rest {
        let Some(mapped) = managed.space.first_mapped(span) else {
            break;
        };
        pages = pages.but(pages_in(block, mapped));
        rest = span.behind(mapped);
    }
    pages
}
