// SPDX-License-Identifier: GPL-2.0
//! Serving a fault: see the head of `mod.rs` for the order and why it is so.
//!
//! A fault on a page brings the whole block along, as far as the program's page table has it: that
//! costs little more than the one page does. Of what is missing, only the pages right behind the
//! one that faulted are faulted in with it (`logic/fault_around.rs`).

use super::{
    block::{pages_in, Block},
    page_of, Managed, Managing, LONG, WINDOWS,
};
use crate::{
    failure::Failure,
    gpu::pager::{Area, Pager, Refusal, Served},
    logic::{
        block::{Pages, Run, PAGES},
        fault_around::{self, Window},
        pte::LARGE,
        span::Span,
        PAGE_SIZE,
    },
    sys::{
        clock::{self, MICROSECOND},
        hmm::{self, Held, Leaf, Snapshot},
        mirror::{Moment, GRANULE_PAGES},
        task, uapi,
    },
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// Pause before an access is repeated that a mapping of the context permits by now.
const PAUSE: u64 = 50 * MICROSECOND;

/// Pages that are faulted in behind the one that faulted even if others wait for the mmap lock.
const LEAST: u32 = fault_around::FIRST as u32 - 1;

/// A fault.
#[derive(Clone, Copy)]
struct Fault {
    addr: u64,
    write: bool,
    /// The block of the page.
    block: Span,
    /// The page in its block.
    index: usize,
}

/// How an attempt to serve a fault ended.
enum Attempt {
    /// The device has the page, and so many more than before.
    Done(u64),
    /// Something has changed meanwhile.
    Again,
    /// The page was faulted in.
    FaultedIn,
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

impl Pager for Managing {
    fn manages(&self, addr: u64) -> bool {
        page_of(addr).is_some_and(|page| self.first_range(page).is_some())
    }

    fn serve(&self, addr: u64, access: u32) -> Result<Served, Refusal> {
        let block = Span::new(addr & !(LARGE - 1), LARGE);
        let fault = Fault {
            addr,
            write: access == uapi::PINMAP_ACCESS_WRITE,
            block: block.map_err(|_| refusal(uapi::PINMAP_FAULT_UNMAPPED, EFAULT))?,
            index: (addr % LARGE / PAGE_SIZE) as usize,
        };
        let mut served = Served::default();
        match try_serve(self, fault, &mut served.retries) {
            Ok(pages) => {
                served.pages = pages;
                Ok(served)
            }
            Err(Failed::Refused(refusal)) => Err(Refusal {
                retries: served.retries,
                ..refusal
            }),
            Err(Failed::Stopped) => Err(refusal(uapi::PINMAP_FAULT_NONE, EINTR)),
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
            if span.covers(block.span()) {
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
fn try_serve(managing: &Managing, fault: Fault, retries: &mut u64) -> Result<u64, Failed> {
    let begun = clock::now();
    let mut snapshot = Snapshot::new()?;
    let (mut is_new, mut narrow) = (false, false);
    loop {
        let attempt = attempt(managing, fault, &mut snapshot, narrow)?;
        match attempt {
            Attempt::Done(pages) => return Ok(pages),
            Attempt::FaultedIn if !is_new => {
                is_new = true;
                continue;
            }
            Attempt::Full if !managing.make_room() => return Err(ENOSPC.into()),
            _ => {}
        }
        narrow |= !matches!(attempt, Attempt::Leaving);
        *retries = retries.saturating_add(1);
        if task::fatal_signal_pending() {
            return Err(Failed::Stopped);
        }
        if clock::now().saturating_sub(begun) > LONG {
            // The device tries again, and others have a turn before.
            return match attempt {
                Attempt::Strange => Err(refused(uapi::PINMAP_FAULT_DEVICE, EFAULT)),
                Attempt::Full => Err(ENOSPC.into()),
                _ => Ok(0),
            };
        }
        task::cond_resched();
    }
}

/// Tries to serve a fault; `narrow`: with few pages around it, since the memory changes a lot.
fn attempt(
    managing: &Managing,
    fault: Fault,
    snapshot: &mut Snapshot,
    narrow: bool,
) -> Result<Attempt, Failed> {
    let page = page_of(fault.addr).ok_or(EINVAL)?;
    if managing.first_range(page).is_none() {
        return Err(refused(uapi::PINMAP_FAULT_UNMAPPED, EFAULT));
    }
    if managing.space.first_taken(page).is_some() {
        return mapped_otherwise(managing, fault, page);
    }
    let moment = managing.all_changes().begin(fault.addr)?;
    snapshot.read(managing.mm(), fault.block.start())?;
    match snapshot.leaf(fault.index) {
        Leaf::Page { write, .. } if write || !fault.write => {}
        Leaf::Forbidden => {
            return refuse(managing, fault, None).map(|()| Attempt::Strange);
        }
        _ => {
            let window = managing.window(fault);
            let more = ahead(managing, fault, snapshot, window);
            if fault.write {
                forget_first(managing, fault, more)?;
            }
            return match hmm::fault_in(managing.mm(), fault.addr, fault.write, LEAST, more) {
                Ok(brought) => {
                    managing.note_window(fault, brought, window);
                    Ok(Attempt::FaultedIn)
                }
                Err(EINTR) => Err(Failed::Stopped),
                Err(error) => refuse(managing, fault, Some(error)).map(|()| Attempt::Again),
            };
        }
    }
    let block = match managing.block_at(fault.addr) {
        Ok(block) => block,
        Err(failure) => return is_full(failure),
    };
    let attempt = lend(managing, &block, fault, snapshot, &moment, narrow)?;
    if let Attempt::Leaving = attempt {
        block.wait_until_left(fault.index)?;
    }
    Ok(attempt)
}

impl Managed {
    /// Where the last window of a block is kept. Blocks share these places: it is only a hint.
    fn window_of(&self, number: u64) -> Option<&Atomic<u64>> {
        self.windows.get((number % WINDOWS) as usize)
    }

    /// Returns how many pages may be faulted in for `fault`, its own included.
    fn window(&self, fault: Fault) -> usize {
        let number = fault.addr / LARGE;
        let load = |number| {
            let word = self.window_of(number).map_or(0, |word| word.load(Relaxed));
            Window::from_bits(word)
        };
        let before = load(number.wrapping_sub(1));
        fault_around::pages(number, fault.index, load(number), before)
    }

    /// Notes that for `fault`, with a window of so many pages, `more` were faulted in behind its
    /// own.
    fn note_window(&self, fault: Fault, more: u32, window: usize) {
        let number = fault.addr / LARGE;
        let end = fault.index.saturating_add(more as usize).saturating_add(1);
        if let Some(word) = self.window_of(number) {
            word.store(Window::new(number, end, window).bits(), Relaxed);
        }
    }
}

/// Returns how many pages behind the one of `fault` are to be faulted in with it: those that the
/// page table does not have, or not for writing, and that are managed and free, as far as they are
/// in a window of so many pages.
fn ahead(managed: &Managed, fault: Fault, snapshot: &Snapshot, window: usize) -> u32 {
    let free = lendable(managed, fault.block);
    let is_missing = |index| match snapshot.leaf(index) {
        Leaf::Absent => true,
        Leaf::Page { write, .. } => fault.write && !write,
        Leaf::Forbidden => false,
    };
    let behind = (fault.index..PAGES).take(window).skip(1);
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

/// Gives the device what `snapshot` has of the block, if nothing has changed since `moment`.
fn lend(
    managing: &Managing,
    block: &Arc<Block>,
    fault: Fault,
    snapshot: &Snapshot,
    moment: &Moment,
    narrow: bool,
) -> Result<Attempt, Failed> {
    let managed: &Managed = managing;
    let service = block.service.lock();
    if service.dead {
        return Ok(Attempt::Again);
    }
    block.confirm(managed)?;
    let mut wanted = lendable(managed, block.span());
    if narrow {
        let last = fault.index | (GRANULE_PAGES - 1);
        wanted = wanted.and(Pages::range(fault.index, last));
    }
    if !wanted.has(fault.index) {
        return Ok(Attempt::Again);
    }
    // What the device has is left alone, unless it may not write where it has to.
    let lent = block.lent.lock();
    let present = lent.pages.present();
    let writable = lent.pages.writable();
    drop(lent);
    if present.has(fault.index) {
        if !fault.write || writable.has(fault.index) {
            return Ok(Attempt::Done(0));
        }
        // Old permissions may be cached.
        let page = page_of(fault.addr).ok_or(EINVAL)?;
        block.take_back(managed, page)?;
    }

    let changes = managing.all_changes();
    let lent = block.lent.lock();
    let current = changes.current(moment);
    if !current.pages().has(fault.index) {
        return Ok(Attempt::Again);
    }
    // What is leaving is still mapped on the bus, though nothing there changes.
    let leaving = lent.pages.leaving(Pages::ALL);
    if leaving.has(fault.index) {
        return Ok(Attempt::Leaving);
    }
    // A run may have left since `confirm`, and nobody could wait for the device.
    if block.is_unconfirmed() {
        return Ok(Attempt::Again);
    }
    let taken = lent.pages.present().or(leaving);
    let held = snapshot.hold(wanted.but(taken), &current);
    drop(lent);
    let target = fault.write.then_some(fault.index);
    let mut writable = held.writable(target);
    let is_large = taken.is_empty() && is_one(&held, &mut writable, target);
    if !is_large {
        if let Err(failure) = block.make_lower(managed) {
            return is_full(failure);
        }
    }
    let runs = Runs::new(&held, writable);
    let mut mapped = Pages::NONE;
    let mut result = Ok(());
    for run in runs {
        result = map(block, &held, run, writable);
        if result.is_err() {
            break;
        }
        mapped = mapped.or(run.pages());
    }

    // What could not be mapped is left out. If anything else has changed, all begins anew.
    let mut lent = block.lent.lock();
    let current = changes.current(moment);
    let is_current = mapped.but(current.pages()).is_empty();
    if !is_current || !mapped.has(fault.index) {
        drop(lent);
        // Nothing leads there, so the device has nothing to forget.
        let runs = Runs::new(&held, writable).filter(|run| mapped.has(run.first));
        let unmapped = block
            .lender
            .unmap(runs.filter_map(|run| block.bus_span(run)));
        if unmapped.is_err() {
            managed.dma_control().clone().block_dma();
        }
        unmapped.and(result)?;
        return Ok(Attempt::Again);
    }
    held.mark_modified(writable.and(mapped), &current);
    for run in Runs::new(&held, writable).filter(|run| mapped.has(run.first)) {
        block.enter(managed, &mut lent, run, writable.has(run.first));
    }
    managed.vm.order();
    drop(lent);
    // From here on the notifier takes the pages away before they go.
    drop(held);
    block.note_served(managed.next_served());
    drop(service);
    Ok(Attempt::Done(mapped.count() as u64))
}

/// The pages of a block that are managed, and that no mapping of the context has.
fn lendable(managed: &Managed, block: Span) -> Pages {
    let mut pages = Pages::NONE;
    let mut rest = Some(block);
    while let Some(span) = rest {
        let Some(range) = managed.first_range(span) else {
            break;
        };
        pages = pages.or(pages_in(block, range));
        rest = after(range, span);
    }
    rest = Some(block);
    while let Some(span) = rest {
        let Some(taken) = managed.space.first_taken(span) else {
            break;
        };
        pages = pages.but(pages_in(block, taken));
        rest = after(taken, span);
    }
    pages
}

/// The part of `span` behind `part`.
fn after(part: Span, span: Span) -> Option<Span> {
    Span::from_bounds(part.last().checked_add(1)?, span.last())
}

/// Whether all pages of a block are held and can be one entry. If they are all writable but not
/// all counted as modified, they are made one entry that can only be read, unless the target is to
/// be written to.
fn is_one(held: &Held<'_>, writable: &mut Pages, target: Option<usize>) -> bool {
    let Some(first) = held.pfn(0) else {
        return false;
    };
    let is_contiguous =
        (0..PAGES).all(|index| held.pfn(index) == Some(first.saturating_add(index as u64)));
    if !is_contiguous {
        return false;
    }
    if *writable == Pages::ALL {
        return true;
    }
    if target.is_none() {
        *writable = Pages::NONE;
    }
    writable.is_empty()
}

/// Maps a run on the bus.
fn map(block: &Block, held: &Held<'_>, run: Run, writable: Pages) -> Result {
    let span = block.bus_span(run).ok_or(EINVAL)?;
    let pfn = held.pfn(run.first).ok_or(EINVAL)?;
    block.lender.map(span, pfn, writable.has(run.first))
}

/// The runs of pages that are held: contiguous in memory, and alike.
struct Runs<'a> {
    held: &'a Held<'a>,
    writable: Pages,
    next: usize,
}

impl<'a> Runs<'a> {
    fn new(held: &'a Held<'a>, writable: Pages) -> Self {
        Self {
            held,
            writable,
            next: 0,
        }
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let first = self.held.pages().next(self.next)?;
        let pfn = self.held.pfn(first)?;
        let is_next = |index: usize| {
            let offset = index.saturating_sub(first) as u64;
            self.held.pfn(index) == Some(pfn.saturating_add(offset))
                && self.writable.has(index) == self.writable.has(first)
        };
        let mut end = first.saturating_add(1);
        while end < PAGES && is_next(end) {
            end = end.saturating_add(1);
        }
        self.next = end;
        Some(Run {
            first,
            count: end.saturating_sub(first),
        })
    }
}
