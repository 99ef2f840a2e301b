// SPDX-License-Identifier: GPL-2.0
//! Moving managed memory where the program wants it.
//!
//! A range is moved block by block, and each block area by area. While the device copies one part,
//! the CPU collects the next. After some blocks, and when others wait for the mmap lock, everything
//! that is under way ends, and others have a turn. It also ends when something could not move: what
//! is swapped out, or on a device that is out of reach, is faulted in, and has a second try.

use super::{block::pages_in, block_of, range::Count, Managed};
use crate::{
    gpu::{
        mmu::pager::Taker,
        vram::{
            moving::{Line, Moving, Outcome},
            reserve::Reserved,
        },
    },
    logic::{
        block::{Pages, PAGES},
        pte::LARGE,
        residence::Rule,
        span::Span,
        PAGE_SIZE,
    },
    sys::{
        mm::{
            areas::{Area, Areas},
            hmm::{self, Leaf, Snapshot},
        },
        task,
    },
    trace,
};
use kernel::{mm::Mm, prelude::*};

/// The outcome for a range, in bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Prefetched {
    pub(crate) moved: u64,
    pub(crate) there: u64,
    pub(crate) no_room: u64,
    pub(crate) busy: u64,
    pub(crate) fixed: u64,
}

impl Prefetched {
    fn add(&mut self, more: Self) {
        let sum = u64::saturating_add;
        self.moved = sum(self.moved, more.moved);
        self.there = sum(self.there, more.there);
        self.no_room = sum(self.no_room, more.no_room);
        self.busy = sum(self.busy, more.busy);
        self.fixed = sum(self.fixed, more.fixed);
    }
}

fn add(bytes: &mut u64, pages: u64) {
    *bytes = bytes.saturating_add(pages.saturating_mul(PAGE_SIZE));
}

/// Blocks between two turns of others.
const BLOCKS: usize = 16;
/// Parts of which something did not move, after which a turn ends.
const MISSED: usize = 6;

/// A part of a block that is under way.
struct Part {
    span: Span,
    /// Pages of it that were there before.
    there: u64,
}

/// One turn: what is under way, and what became of what was.
struct Turn<'a> {
    managed: &'a Managed,
    home: bool,
    line: Line<'a, Part>,
    done: Prefetched,
    /// Parts of which something could not move, and what became of the rest.
    missed: Missed,
}

type Missed = KVec<(Span, Prefetched)>;

impl<'a> Turn<'a> {
    fn new(managed: &'a Managed, home: bool) -> Result<Self> {
        Ok(Self {
            managed,
            home,
            line: Line::new()?,
            done: Prefetched::default(),
            missed: KVec::with_capacity(MISSED, GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// Makes room for one more part.
    fn make_room(&mut self) -> Result {
        while let Some((part, moving)) = self.line.take_if_full() {
            self.finish(part, moving)?;
        }
        Ok(())
    }

    fn finish(&mut self, part: Part, moving: Moving<'_>) -> Result {
        let outcome = moving.finish()?;
        self.managed.note_prefetched(part.span, outcome, self.home);
        let mut done = Prefetched::default();
        add(&mut done.moved, outcome.moved);
        add(&mut done.no_room, outcome.no_room);
        let others = outcome.moved.saturating_add(outcome.no_room);
        let rest = part.span.pages().saturating_sub(others);
        // What was not collected was there, or cannot be moved.
        let there = part.there.min(rest);
        add(&mut done.there, there);
        add(&mut done.busy, rest.saturating_sub(there));
        let missed = !self.home && done.busy != 0;
        if !missed || self.missed.push_within_capacity((part.span, done)).is_err() {
            self.done.add(done);
        }
        Ok(())
    }

    /// Ends everything. Returns what became of it, and the parts that are not counted there.
    fn end(mut self) -> Result<(Prefetched, Missed)> {
        while let Some((part, moving)) = self.line.take_first() {
            self.finish(part, moving)?;
        }
        Ok((self.done, self.missed))
    }
}

/// A call, and how it moves memory.
struct Call<'a> {
    managed: &'a Managed,
    mm: &'a Mm,
    home: bool,
    /// Memory that the device was given before this moment may make room.
    until: u64,
    /// The range, until what it has on the device counts as given after that.
    unkept: Option<Span>,
    snapshot: Snapshot,
}

impl Managed {
    /// Moves `range` of `mm`, the current task's memory, to the device, or home. `ENOENT`: not all
    /// of it is managed; `EIO`: the device did not copy; `EINTR`: a fatal signal came.
    pub(crate) fn prefetch(&self, mm: &Mm, range: Span, home: bool) -> Result<Prefetched> {
        self.check_managed(range)?;
        if let Some(all) = self.is_there_anyway(range) {
            return Ok(all);
        }
        let mut call = Call {
            managed: self,
            mm,
            home,
            // What this call moves does not make room for what it moves next.
            until: self.vm.gpu().moment(),
            unkept: Some(range),
            snapshot: self.snapshot()?,
        };
        let mut rest = Some(range);
        let mut done = Prefetched::default();
        while rest.is_some() {
            let (some, missed) = call.advance(&mut rest)?;
            done.add(some);
            for (part, first) in missed {
                done.add(call.try_again(part, first)?);
            }
        }
        self.keep_snapshot(call.snapshot);
        Ok(done)
    }

    /// Tells what [`prefetch`](Self::prefetch) would do now. Moves nothing.
    pub(crate) fn preflight(&self, mm: &Mm, range: Span, home: bool) -> Result<Prefetched> {
        self.check_managed(range)?;
        if let Some(all) = self.is_there_anyway(range) {
            return Ok(all);
        }
        let gpu = self.vm.gpu();
        let mut call = Call {
            managed: self,
            mm,
            home,
            until: 0,
            unkept: None,
            snapshot: Snapshot::new()?,
        };
        let mut told = Prefetched::default();
        let mut rest = Some(range);
        while let Some(span) = rest {
            gpu.check_here()?;
            if task::fatal_signal_pending() {
                return Err(EINTR);
            }
            let block = block_of(span.start());
            let part = span.intersection(block).ok_or(EINVAL)?;
            let areas = Areas::lock(mm)?;
            call.snapshot
                .read_locked(&areas, block.start(), gpu.token())?;
            areas.each(part, |part, area| {
                if area.is_none() {
                    add(&mut told.fixed, part.pages());
                    return Ok(());
                }
                let there = call.count_there(part);
                add(&mut told.there, there);
                add(&mut told.moved, part.pages().saturating_sub(there));
                Ok(())
            })?;
            drop(areas);
            task::cond_resched();
            rest = range.behind(block);
        }
        if !home {
            // What the range has there itself does not make room for it.
            let others = gpu.room().saturating_sub(told.there / PAGE_SIZE);
            let room = self.budget.room(mm).min(others).saturating_mul(PAGE_SIZE);
            told.no_room = told.moved.saturating_sub(room);
            told.moved = told.moved.min(room);
        }
        Ok(told)
    }

    /// The outcome where the device's memory is a part of the host's.
    fn is_there_anyway(&self, range: Span) -> Option<Prefetched> {
        let all = Prefetched {
            there: range.length(),
            ..Prefetched::default()
        };
        self.vm.gpu().limits().integrated.then_some(all)
    }

    /// Fails with `ENOENT` unless all of `range` is managed.
    pub(super) fn check_managed(&self, range: Span) -> Result {
        let mut rest = Some(range);
        while let Some(span) = rest {
            let found = self.first_range(span).ok_or(ENOENT)?;
            if found.start() > span.start() {
                return Err(ENOENT);
            }
            rest = range.behind(found);
        }
        Ok(())
    }

    /// Counts pages of `part` that were moved.
    fn note_prefetched(&self, part: Span, outcome: Outcome, home: bool) {
        let pages = outcome.moved;
        if pages == 0 {
            return;
        }
        let count = if home {
            Count::HomePrefetched
        } else {
            Count::InPrefetched
        };
        let rule = Rule::Prefetched;
        self.add_to_ranges(count, part, pages);
        self.add_to_ranges(Count::FromPeers, part, outcome.from_peer);
        if let Some(past) = self.pasts.get(part.start() / LARGE) {
            if home {
                past.stays(rule);
            } else {
                past.moves(rule);
            }
        }
        self.trace_move(part, pages, home, trace::Cause::Prefetched, rule);
    }
}

impl<'a> Call<'a> {
    /// Moves some blocks of `rest`, and takes them from it.
    fn advance(&mut self, rest: &mut Option<Span>) -> Result<(Prefetched, Missed)> {
        let gpu = self.managed.vm.gpu();
        gpu.check_here()?;
        if task::fatal_signal_pending() {
            return Err(EINTR);
        }
        let (missing, mut ended) = self.group(rest, None)?;
        let Some(pages) = missing else {
            return Ok(ended);
        };
        self.keep()?;
        // Nobody who has the mmap lock may wait for others to make room.
        let reserved = gpu.reserve(&self.managed.budget, pages, self.until)?;
        let (_, (done, missed)) = self.group(rest, Some(reserved))?;
        ended.0.add(done);
        for part in missed {
            ended.1.push(part, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(ended)
    }

    /// Protects what the range has on the device from being evicted for the rest of it.
    fn keep(&mut self) -> Result {
        let Some(range) = self.unkept.take() else {
            return Ok(());
        };
        let gpu = self.managed.vm.gpu();
        let mut rest = Some(range);
        while let Some(span) = rest {
            if task::fatal_signal_pending() {
                return Err(EINTR);
            }
            let block = block_of(span.start());
            let areas = Areas::lock(self.mm)?;
            self.snapshot
                .read_locked(&areas, block.start(), gpu.token())?;
            drop(areas);
            for index in pages_in(block, range).iter() {
                let pfn = self.snapshot.pfn(index);
                if let Some(offset) = pfn.and_then(|pfn| gpu.offset_of(pfn)) {
                    gpu.note_given(offset);
                }
            }
            task::cond_resched();
            rest = range.behind(block);
        }
        Ok(())
    }

    /// Moves some blocks with the mmap lock held, as [`move_blocks`](Self::move_blocks) does.
    fn group(
        &mut self,
        rest: &mut Option<Span>,
        reserved: Option<Reserved<'a>>,
    ) -> Result<(Option<u64>, (Prefetched, Missed))> {
        task::cond_resched();
        let areas = Areas::lock(self.mm)?;
        let mut turn = Turn::new(self.managed, self.home)?;
        let missing = self.move_blocks(&areas, rest, reserved, &mut turn)?;
        Ok((missing, turn.end()?))
    }

    /// Moves a part of which something could not move: after it was faulted in, if that helps.
    fn try_again(&mut self, part: Span, first: Prefetched) -> Result<Prefetched> {
        if !self.fetch(part)? {
            return Ok(first);
        }
        let mut rest = Some(part);
        let mut second = Prefetched::default();
        while rest.is_some() {
            let (some, missed) = self.advance(&mut rest)?;
            second.add(some);
            for (_, some) in missed {
                second.add(some);
            }
        }
        // What moved the first time is there the second time.
        let moved = first.moved.min(second.there);
        second.moved = second.moved.saturating_add(moved);
        second.there = second.there.saturating_sub(moved);
        Ok(second)
    }

    /// Begins to move some blocks of `rest`, and takes them from it. `reserved` is for the first.
    /// Returns the number of pages for which frames are missing, if it stops for that.
    fn move_blocks<'b>(
        &mut self,
        areas: &'b Areas<'_>,
        rest: &mut Option<Span>,
        mut reserved: Option<Reserved<'a>>,
        turn: &mut Turn<'b>,
    ) -> Result<Option<u64>>
    where
        'a: 'b,
    {
        let gpu = self.managed.vm.gpu();
        for _ in 0..BLOCKS {
            let Some(range) = *rest else { break };
            let block = block_of(range.start());
            let part = range.intersection(block).ok_or(EINVAL)?;
            if !self.home {
                self.snapshot
                    .read_locked(areas, block.start(), gpu.token())?;
                if reserved.is_none() {
                    let wanted = self.wanted(areas, part)?;
                    reserved = gpu.reserve_free(&self.managed.budget, wanted)?;
                    if reserved.is_none() {
                        return Ok(Some(wanted));
                    }
                }
            }
            self.move_block(areas, part, reserved.take(), turn)?;
            *rest = range.behind(block);
            if areas.is_contended() || !turn.missed.is_empty() {
                break;
            }
        }
        Ok(None)
    }

    /// Pages of `part`, in one block, for which frames are to be reserved.
    fn wanted(&self, areas: &Areas<'_>, part: Span) -> Result<u64> {
        let mut movable = 0_u64;
        areas.each(part, |part, area| {
            movable = movable.saturating_add(area.map_or(0, |_| part.pages()));
            Ok(())
        })?;
        let wanted = movable.saturating_sub(self.count_there(part));
        Ok(wanted.min(self.managed.budget.room(self.mm)))
    }

    /// Pages of `part`, in one block, that are where they are to go.
    fn count_there(&self, part: Span) -> u64 {
        let pages = pages_in(block_of(part.start()), part);
        let private = self.snapshot.among(&self.managed.vm.gpu().frames());
        // What the page table does not have counts as being at home.
        let there = if self.home {
            pages.but(private)
        } else {
            pages.and(private)
        };
        there.count() as u64
    }

    /// Pages of `part`, in one block, that were at home when so many others were `collected` there:
    /// of those, the page table has nothing now.
    fn count_home(&mut self, areas: &Areas<'_>, part: Span, collected: u64) -> Result<u64> {
        // Mostly there is none, and nothing is to be read.
        if collected == part.pages() {
            return Ok(0);
        }
        let start = block_of(part.start()).start();
        let token = self.managed.vm.gpu().token();
        self.snapshot.read_locked(areas, start, token)?;
        Ok(self.count_there(part).saturating_sub(collected))
    }

    /// Begins to move a part of one block: to frames that are `reserved`, or home.
    fn move_block<'b>(
        &mut self,
        areas: &'b Areas<'_>,
        part: Span,
        mut reserved: Option<Reserved<'_>>,
        turn: &mut Turn<'b>,
    ) -> Result
    where
        'a: 'b,
    {
        let managed = self.managed;
        let gpu = managed.vm.gpu();
        let holder = if self.home {
            None
        } else {
            let block = block_of(part.start());
            gpu.holder(areas, block, || {
                let mut absent = Pages::NONE;
                for index in pages_in(block, part).iter() {
                    absent.set(index, self.snapshot.leaf(index) == Leaf::Absent);
                }
                absent
            })?
        };
        let peer = holder.as_ref().map(|holder| holder.source(Taker::Program));
        areas.each(part, |span, area: Option<Area<'b>>| {
            let Some(area) = area else {
                add(&mut turn.done.fixed, span.pages());
                return Ok(());
            };
            turn.make_room()?;
            let (moving, there) = match &mut reserved {
                None => {
                    let moving = gpu.begin_home(area, span)?;
                    let there = self.count_home(areas, span, moving.collected())?;
                    (moving, there)
                }
                Some(reserved) => {
                    let moving = gpu.begin_in(area, span, reserved, peer)?;
                    (moving, self.count_there(span))
                }
            };
            turn.line.add(Part { span, there }, moving)
        })
    }

    /// Faults in what of `part`, in one block, could move then: it is swapped out, or on a device
    /// that is out of reach, or it can only be read at the moment, as the balancing of NUMA nodes
    /// leaves pages, and so is taken for one that a child has too. Returns whether there was
    /// anything. `EINTR`: a fatal signal came.
    fn fetch(&mut self, part: Span) -> Result<bool> {
        let block = block_of(part.start());
        let (gpu, snapshot) = (self.managed.vm.gpu(), &mut self.snapshot);
        snapshot.read(self.mm, block.start(), gpu.token())?;
        let (mut missing, mut read_only) = (Pages::NONE, Pages::NONE);
        Areas::lock(self.mm)?.each(part, |part, area| {
            // A userfaultfd is asked for nothing that was not touched.
            let Some(area) = area.filter(|area| !area.asks_user_space()) else {
                return Ok(());
            };
            let is_unshared = area.is_unshared();
            for index in pages_in(block, part).iter() {
                match snapshot.leaf(index) {
                    Leaf::Absent => missing.set(index, true),
                    Leaf::Page { pfn, write: false } if gpu.offset_of(pfn).is_none() => {
                        read_only.set(index, is_unshared);
                    }
                    _ => {}
                }
            }
            Ok(())
        })?;
        self.fault_in(block, missing, false)?;
        self.fault_in(block, read_only, true)?;
        Ok(!missing.is_empty() || !read_only.is_empty())
    }

    /// Faults in `pages` of `block`, as far as they can be.
    fn fault_in(&self, block: Span, pages: Pages, write: bool) -> Result {
        let mut next = pages.next(0);
        while let Some(index) = next {
            let behind = (index..PAGES).skip(1);
            let more = behind.take_while(|&index| pages.has(index)).count();
            let addr = (index as u64).saturating_mul(PAGE_SIZE);
            let addr = block.start().saturating_add(addr);
            let brought = match hmm::fault_in(self.mm, addr, write, more as u32, more as u32) {
                Err(EINTR) => return Err(EINTR),
                brought => brought.unwrap_or(0),
            };
            let done = index.saturating_add(brought as usize).saturating_add(1);
            next = pages.next(done);
        }
        Ok(())
    }
}
