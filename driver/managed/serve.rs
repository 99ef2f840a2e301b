// SPDX-License-Identifier: GPL-2.0
//! Serving a fault, in six steps: see the head of `mod.rs` for the order and why it is so.
//!
//! A fault on a page brings the whole block along, as far as the program's page table has it: that
//! costs little more than the one page does. Of what is missing, only the pages right behind the
//! one that faulted are faulted in with it (`logic/fault_around.rs`).

use super::{
    block::lendable,
    fault::{Fault, Setback},
    lend::Lending,
    page_of, placement,
    plan::Extent,
    range::{Count, Range},
    Managed, Managing,
};
use crate::{
    gpu::mmu::pager::{Pager, Refusal, Served, Taker, Vma},
    logic::{
        block::{Pages, PAGES},
        changes::Moment,
        fault_around,
        span::Span,
        PAGE_SIZE,
    },
    sys::{
        mm::{
            areas::Area,
            hmm::{self, Leaf, Snapshot},
            migrate::HomeFault,
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

/// How long a fault is tried to be served while the memory changes all the time.
const LONG: u64 = clock::SECOND / 4;

/// How often it is tried to have the memory where it is to be: once before the page is faulted in,
/// and once after.
const PLACED: u32 = 2;

/// A fault that is being served, and how far that has come.
struct Serving<'a> {
    managing: &'a Managing,
    fault: Fault,
    /// The page table of its block, as it was read last.
    snapshot: Snapshot,
    range: Option<Arc<Range>>,
    /// How often the service began anew, because the memory changed meanwhile.
    retries: u64,
    /// The page was faulted in.
    is_new: bool,
    /// Only few pages around the fault are entered, since the memory changes a lot.
    narrow: bool,
    /// How often it was tried to have the memory where it is to be.
    placed: u32,
}

impl Pager for Managing {
    fn manages(&self, addr: u64) -> bool {
        self.first_range(page_of(addr)).is_some()
    }

    fn serve(&self, addr: u64, access: u32, begun: u64) -> Result<Served, Refusal> {
        let fault = Fault::new(addr, access);
        let result = self.try_to_serve(fault, begun);
        let refused = result.as_ref().err();
        if let Some(refusal) = refused.filter(|refusal| refusal.errno != EINTR) {
            if let Some(range) = self.range_at(addr) {
                range.note_refused(addr, access, refusal.reason);
            }
        }
        result
    }

    fn prepare(&self) {
        Managed::prepare(self);
    }

    fn came_home(&self, fault: &HomeFault<'_>, pages: u64, ns: u64) {
        if fault.is_in(self.mm()) {
            self.note_came_home(fault, pages, ns);
        }
    }

    fn was_taken(&self, area: &Area<'_>, part: Span, pages: u64, taker: Taker) {
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

impl Managing {
    /// Serves `fault`, which was taken up at the time `begun`.
    fn try_to_serve(&self, fault: Fault, begun: u64) -> Result<Served, Refusal> {
        let mut serving = Serving {
            managing: self,
            fault,
            snapshot: self.snapshot()?,
            range: None,
            retries: 0,
            is_new: false,
            narrow: false,
            placed: 0,
        };
        let result = serving.try_for_long(begun);
        self.keep_snapshot(serving.snapshot);
        let retries = serving.retries;
        let pages = result.map_err(|refusal| Refusal { retries, ..refusal })?;
        let ended = clock::now();
        if let Some(range) = serving.range {
            range.add(Count::DeviceFaults, 1);
            range.add(Count::DeviceNs, ended.saturating_sub(begun));
        }
        Ok(Served {
            pages,
            retries,
            ended,
        })
    }
}

impl Serving<'_> {
    /// Tries to serve the fault until that succeeds, or has taken long. Returns how many pages the
    /// device has that it had not before.
    fn try_for_long(&mut self, begun: u64) -> Result<u64, Refusal> {
        loop {
            let setback = match self.attempt() {
                Ok(pages) => return Ok(pages),
                Err(setback) => setback,
            };
            match &setback {
                Setback::Reached => return Ok(0),
                Setback::Refused(refusal) => return Err(*refusal),
                Setback::FaultedIn if !self.is_new => {
                    self.is_new = true;
                    continue;
                }
                Setback::Moved if self.placed <= PLACED => continue,
                Setback::Full if !self.managing.make_room() => return Err(ENOSPC.into()),
                Setback::Leaving(block) => block.wait_until_left(self.fault.index)?,
                _ => self.narrow = true,
            }
            self.retries = self.retries.saturating_add(1);
            if task::fatal_signal_pending() {
                return Err(EINTR.into());
            }
            if clock::now().saturating_sub(begun) > LONG {
                return match setback {
                    Setback::Strange => Err(Refusal::new(uapi::PINMAP_FAULT_DEVICE, EFAULT)),
                    Setback::Busy => Err(atomic_on_host()),
                    Setback::Full => Err(ENOSPC.into()),
                    // The device tries again, and others have a turn before.
                    _ => Ok(0),
                };
            }
            task::cond_resched();
        }
    }

    /// Tries to serve the fault, in the six steps of docs/managed-memory.md. Returns how many pages
    /// the device has that it had not before.
    fn attempt(&mut self) -> Result<u64, Setback> {
        let (managing, fault) = (self.managing, self.fault);
        self.check()?;
        let mut moment = Moment::default();
        // 1. Wait until no change is under way around the page.
        managing.wait_for_quiet(fault.addr, &mut moment)?;
        // 2. Find the page in the program's page table. If it has to be moved or faulted in, all
        //    begins anew after that.
        let extent = self.find()?;
        let block = managing.block_at(fault.addr)?;
        let (found, narrow) = (&self.snapshot, self.narrow);
        // 3. Hold it, and the pages around it, unless it has changed since 1.
        let mut lending = Lending::hold(managing, &block, fault, found, &moment, &extent, narrow)?;
        // 4. Map them in the IOMMU.
        lending.map()?;
        // 5. Enter them in the device's page table, unless one has changed since 1.
        let pages = lending.enter()?;
        // 6. Let go of them, with `lending`: from here on the notifier takes them away before they
        //    change.
        Ok(pages)
    }

    /// Looks for the range of the page. If a mapping of the context has the page and its memory has
    /// gone away, the addresses are managed again once the device has forgotten it. Otherwise the
    /// page was mapped meanwhile, or the mapping does not permit the access.
    fn check(&mut self) -> Result<(), Setback> {
        let (managing, fault) = (self.managing, self.fault);
        let unmapped = |errno| Refusal::new(uapi::PINMAP_FAULT_UNMAPPED, errno);
        self.range = managing.range_at(fault.addr);
        if self.range.is_none() || managing.space.reserved(fault.page()).is_some() {
            return Err(unmapped(EFAULT).into());
        }
        if managing.space.first_mapped(fault.page()).is_none() {
            return Ok(());
        }
        if managing.space.free_left(fault.page())? {
            return Err(Setback::Changed);
        }
        match managing.vm.permits(fault.addr) {
            Some((read, write)) if !read || (fault.write && !write) => Err(unmapped(EACCES).into()),
            _ => {
                clock::rest(PAUSE);
                Err(Setback::Reached)
            }
        }
    }

    /// Reads the page table of the block. Returns what the device may be given of the host's
    /// memory, if the page is there and where it is to be.
    fn find(&mut self) -> Result<Extent, Setback> {
        let (managing, fault) = (self.managing, self.fault);
        let gpu = managing.vm.gpu();
        let start = fault.block.start();
        self.snapshot.read(managing.mm(), start, gpu.token())?;
        let leaf = self.snapshot.leaf(fault.index);
        if let Leaf::Forbidden = leaf {
            self.refuse(None)?;
            return Err(Setback::Strange);
        }
        let pfn = self.snapshot.pfn(fault.index);
        let is_private = pfn.and_then(|pfn| gpu.offset_of(pfn)).is_some();
        let extent = if is_private {
            Pages::NONE.into()
        } else {
            self.place()?
        };
        match leaf {
            Leaf::Page { write, .. } if write || !fault.write => {}
            _ => {
                self.fault_in()?;
                return Err(Setback::FaultedIn);
            }
        }
        if fault.atomic && !is_private {
            return Err(atomic_on_host().into());
        }
        Ok(extent)
    }

    /// Has the memory moved to where it is to be, unless that was tried already. Returns what of it
    /// stays on the host.
    fn place(&mut self) -> Result<Extent, Setback> {
        let (managing, fault) = (self.managing, self.fault);
        let page = Pages::range(fault.index, fault.index).into();
        // An atomic access is made nowhere else, however often the CPU takes the page back.
        if self.placed >= PLACED && !fault.atomic {
            return Ok(page);
        }
        self.placed = self.placed.saturating_add(1);
        let is_for_host = |range| managing.is_all_for_host(range);
        if !fault.atomic && self.range.as_deref().is_some_and(is_for_host) {
            managing.note_advised(fault.addr);
            return Ok(Pages::ALL.into());
        }
        match placement::place(managing, fault, &self.snapshot) {
            // It is used where it is.
            Err(Setback::Refused(refusal)) if refusal.errno != EINTR => Ok(page),
            result => result,
        }
    }

    /// Faults in the page, and those that are missing behind it.
    fn fault_in(&self) -> Result<(), Setback> {
        let (managing, fault) = (self.managing, self.fault);
        let readahead = managing.readahead(fault);
        let more = self.missing_behind(readahead);
        if fault.write {
            self.forget_first(more)?;
        }
        match hmm::fault_in(managing.mm(), fault.addr, fault.write, LEAST, more) {
            Ok(brought) => {
                managing.note_readahead(fault, brought, readahead);
                Ok(())
            }
            Err(EINTR) => Err(EINTR.into()),
            Err(error) => {
                self.refuse(Some(error))?;
                Err(Setback::Changed)
            }
        }
    }

    /// Returns how many pages behind the one that faulted are to be faulted in with it: those that
    /// the page table does not have, or not for writing, and that are managed and free, as far as
    /// they are with a readahead of so many pages.
    fn missing_behind(&self, readahead: usize) -> u32 {
        let fault = self.fault;
        let free = lendable(self.managing, fault.block);
        let is_missing = |index| match self.snapshot.leaf(index) {
            Leaf::Absent => true,
            Leaf::Page { write, .. } => fault.write && !write,
            Leaf::Forbidden => false,
        };
        let behind = (fault.index..PAGES).take(readahead).skip(1);
        let more = behind.take_while(|&index| free.has(index) && is_missing(index));
        more.count() as u32
    }

    /// Takes the page, and `more` behind it, from the device, which may have them for reading. They
    /// are about to be replaced, one after the other, and so the device is waited for once and not
    /// for each.
    fn forget_first(&self, more: u32) -> Result {
        let bytes = u64::from(more).saturating_add(1).saturating_mul(PAGE_SIZE);
        let pages = Span::new(self.fault.page().start(), bytes).map_err(|_| EINVAL)?;
        match self.managing.find_block(self.fault.addr) {
            Some(block) => self.managing.take_back(&block, pages, false),
            None => Ok(()),
        }
    }

    /// Fails with the reason why the page cannot be had. `Ok`: nothing says why, any more.
    fn refuse(&self, error: Option<Error>) -> Result<(), Refusal> {
        let Fault { addr, write, .. } = self.fault;
        let found = hmm::explain(self.managing.mm(), addr, write, error);
        if task::fatal_signal_pending() {
            return Err(EINTR.into());
        }
        if found.reason == uapi::PINMAP_FAULT_NONE {
            return Ok(());
        }
        Err(Refusal {
            area: found.area.map(|(span, flags)| Vma { span, flags }),
            ..Refusal::new(found.reason, error.unwrap_or(EFAULT))
        })
    }
}

/// Refuses an atomic access to memory that stays on the host.
fn atomic_on_host() -> Refusal {
    Refusal::new(uapi::PINMAP_FAULT_ATOMIC, EOPNOTSUPP)
}
