// SPDX-License-Identifier: GPL-2.0
//! Pages of a block on their way to VRAM, or home.
//!
//! [`Moving`] begins with pages that are collected, and with the copies that the engine is told to
//! make. It ends when the copies have: the new pages take the place of the old ones. In between the
//! caller can begin with the next block, so that the engine always has something to do.

use super::{
    mover::{Copies, Jobs, Move},
    peers::PeerSource,
    reserve::Reserved,
};
use crate::{
    gpu::{mmu::pager::Taker, Gpu},
    logic::{block::PAGES, span::Span, PAGE_SIZE},
    sys::{
        mm::{
            areas::Area,
            migrate::{Batch, Collected, HomeFault, Item, Source},
            new_page::NewPage,
        },
        task,
    },
};
use core::ops::Range;
use kernel::{prelude::*, sync::Arc};

/// Lists that are kept for the next blocks.
const SPARE: usize = 4;
/// Blocks, or parts of them, that one task has under way at the same time.
const TOGETHER: usize = 3;

/// The outcome for some pages that were to move.
#[derive(Clone, Copy, Default)]
pub(crate) struct Outcome {
    /// Pages that moved.
    pub(crate) moved: u64,
    /// Pages for which there was no room, in VRAM or in the host's memory.
    pub(crate) no_room: u64,
    /// Pages that somebody has pinned, or is using at this moment.
    pub(crate) busy: u64,
    /// Pages of `moved` that came from a peer.
    pub(crate) from_peer: u64,
}

/// A page that is to move, and the one it is to move to.
struct Pair {
    item: Item,
    /// The page number in VRAM.
    number: u64,
    /// The new page. `None`: it was moved to, or given up.
    page: Option<NewPage>,
}

/// Room for the lists of a block.
struct Lists {
    pairs: KVec<Pair>,
    jobs: Jobs,
}

impl Lists {
    fn new() -> Result<Self> {
        Ok(Self {
            pairs: KVec::with_capacity(PAGES, GFP_KERNEL)?,
            jobs: Jobs::new()?,
        })
    }
}

/// Room for what is under way, of blocks that have moved.
pub(in crate::gpu) struct Spares(KVec<(Batch, Lists)>);

impl Spares {
    pub(in crate::gpu) fn new() -> Result<Self> {
        Ok(Self(KVec::with_capacity(SPARE, GFP_KERNEL)?))
    }
}

/// Pages of a block on their way. Dropping it is the same as [`finish`](Self::finish). Who has
/// several keeps them in a [`Line`].
pub(crate) struct Moving<'a> {
    gpu: &'a Gpu,
    /// `None`: it is over.
    under_way: Option<UnderWay<'a>>,
    outcome: Outcome,
}

/// The copies come first, since they have to end before the pages are let go.
struct UnderWay<'a> {
    copies: Copies<'a>,
    collected: Collected<'a>,
    pairs: KVec<Pair>,
    home: bool,
    peer: Option<FromPeer<'a>>,
}

/// Where pages of a peer come from.
struct FromPeer<'a> {
    gpu: Arc<Gpu>,
    taker: Taker,
    area: Area<'a>,
    part: Span,
}

impl<'a> Moving<'a> {
    /// Waits until the pages have moved. `EIO`: the device did not copy them to VRAM, and they are
    /// where they were; if some are a peer's they count as busy instead. `ENODEV`: VRAM cannot be
    /// read any more, and its pages stay.
    pub(crate) fn finish(mut self) -> Result<Outcome> {
        self.complete()?;
        Ok(self.outcome)
    }

    /// Pages that were collected, also those for which there was no room.
    pub(crate) fn collected(&self) -> u64 {
        let pairs = self.under_way.as_ref().map_or(0, |this| this.pairs.len());
        self.outcome.no_room.saturating_add(pairs as u64)
    }

    /// Whether the engine was told to copy; otherwise it waits for others to end.
    fn has_begun(&self) -> bool {
        self.under_way
            .as_ref()
            .is_none_or(|this| this.copies.has_begun())
    }

    fn complete(&mut self) -> Result {
        let Some(mut this) = self.under_way.take() else {
            return Ok(());
        };
        let gpu = self.gpu;
        let mut copied = this.copies.wait();
        if this.home {
            copied = copied.or_else(|_| gpu.save_pages(&this.pairs));
        }
        // What could not be read in a peer is tried by way of the host.
        let mut is_forgiven = false;
        if let Some(peer) = &this.peer {
            copied = copied.and_then(|()| peer.gpu.check_vram());
            if let Err(error) = copied {
                gpu.forget_peer(&peer.gpu, error);
                is_forgiven = true;
            }
        }
        if !this.pairs.is_empty() {
            copied = copied.and_then(|()| gpu.check_vram());
        }
        let is_copied = copied.is_ok();
        for pair in &mut this.pairs {
            if let Some(page) = pair.page.take().filter(|_| is_copied) {
                this.collected.set(pair.item.index, page);
            }
        }
        this.collected.commit();
        for pair in &this.pairs {
            if is_copied && this.collected.moves(pair.item.index) {
                self.outcome.moved = self.outcome.moved.saturating_add(1);
                let from = this.peer.as_ref().and_then(|peer| {
                    let pfn = pair.item.pfn?;
                    peer.gpu.offset_of(pfn)
                });
                if from.is_some() {
                    self.outcome.from_peer = self.outcome.from_peer.saturating_add(1);
                }
            } else {
                self.outcome.busy = self.outcome.busy.saturating_add(1);
            }
        }
        let batch = this.collected.end();
        if let Some(peer) = &this.peer {
            let pages = self.outcome.from_peer;
            peer.gpu
                .tell_taken(&peer.area, peer.part, pages, peer.taker);
        }
        let lists = Lists {
            pairs: this.pairs,
            jobs: this.copies.into_jobs(),
        };
        gpu.keep_lists(batch, lists);
        if is_forgiven {
            return Ok(());
        }
        copied
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        let _ = self.complete();
    }
}

/// Moves that one task has under way, the first begun first, each with the caller's notes.
///
/// They are finished in the order in which they were begun, and none is begun while the last has
/// not. So nobody waits for a window with pages that those who have one may wait for. To collect
/// the next pages may mean to sleep for the lock of a huge page of the system. Its owner does not
/// wait for pages that were collected here: these are all small, and whoever has a huge page locked
/// only tries to lock others.
pub(crate) struct Line<'a, T>(KVec<(T, Moving<'a>)>);

impl<'a, T> Line<'a, T> {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(KVec::with_capacity(TOGETHER, GFP_KERNEL)?))
    }

    /// Takes the first one, for the caller to finish, if there is no room for another one. To be
    /// called until it returns `None`, before one is begun.
    pub(crate) fn take_if_full(&mut self) -> Option<(T, Moving<'a>)> {
        let waits = self.0.last().is_some_and(|(_, last)| !last.has_begun());
        if waits || self.0.len() == TOGETHER {
            self.take_first()
        } else {
            None
        }
    }

    /// Takes the first one, for the caller to finish.
    pub(crate) fn take_first(&mut self) -> Option<(T, Moving<'a>)> {
        self.0.remove(0).ok()
    }

    /// Adds what was begun. There is room for it.
    pub(crate) fn add(&mut self, what: T, moving: Moving<'a>) -> Result {
        Ok(self.0.push_within_capacity((what, moving))?)
    }
}

impl Gpu {
    /// Room for a block.
    fn lists(&self) -> Result<(Batch, Lists)> {
        let spare = self.spares.lock().0.pop();
        match spare {
            Some(spare) => Ok(spare),
            None => Ok((Batch::new()?, Lists::new()?)),
        }
    }

    fn keep_lists(&self, batch: Batch, mut lists: Lists) {
        lists.pairs.clear();
        lists.jobs.clear();
        // More than that are not kept.
        let _ = self.spares.lock().0.push_within_capacity((batch, lists));
    }

    /// Begins to move the pages of `part`, in one block of 2 MiB, to VRAM, as far as they are the
    /// host's or a `peer`'s, and frames are `reserved`. Addresses without a page get one, of zeros.
    pub(crate) fn begin_in<'a>(
        &'a self,
        area: Area<'a>,
        part: Span,
        reserved: &mut Reserved<'_>,
        peer: Option<PeerSource<'_>>,
    ) -> Result<Moving<'a>> {
        let (batch, mut lists) = self.lists()?;
        let source = match peer {
            Some(peer) => Source::SystemAndDevice(peer.gpu.token()),
            None => Source::System,
        };
        let collected = batch.collect(area, part, source)?;
        let mut outcome = Outcome::default();
        let pairs = &mut lists.pairs;
        let taking = self.begin_taking(area.may_be_huge());
        collected.each(|item| {
            let taken = taking.take(reserved, collected.address(item.index));
            if let Some((number, page)) = taken {
                let page = Some(page);
                let _ = pairs.push_within_capacity(Pair { item, number, page });
            } else {
                outcome.no_room = outcome.no_room.saturating_add(1);
            }
        });
        drop(taking);
        for pair in &*pairs {
            let offset = pair.number.saturating_mul(PAGE_SIZE);
            let list = match pair.item.pfn {
                Some(_) => &mut lists.jobs.moves,
                None => &mut lists.jobs.zeros,
            };
            let pfn = pair.item.pfn.unwrap_or(0);
            let on_bus = peer.and_then(|peer| peer.gpu.bus_frame(pfn));
            // INVARIANT: The page was collected, and is let go of only after the copies.
            let _ = list.push_within_capacity(Move {
                pfn: on_bus.unwrap_or(pfn),
                peer: on_bus.is_some(),
                offset,
                pages: 1,
            });
        }
        let peer = peer.filter(|_| lists.jobs.moves.iter().any(|pages| pages.peer));
        lists.jobs.peer = peer.map(|peer| peer.gpu.clone());
        if !self.can_zero() {
            self.zero_pages(&lists.jobs.zeros);
            lists.jobs.zeros.clear();
        }
        let mut moving = self.begin(lists, collected, false, outcome);
        if let (Some(peer), Some(under_way)) = (peer, &mut moving.under_way) {
            under_way.peer = Some(FromPeer {
                gpu: peer.gpu.clone(),
                taker: peer.taker,
                area,
                part,
            });
        }
        Ok(moving)
    }

    /// Begins to move the pages of `part`, in one block of 2 MiB, home, as far as they are in VRAM.
    pub(crate) fn begin_home<'a>(&'a self, area: Area<'a>, part: Span) -> Result<Moving<'a>> {
        let (batch, lists) = self.lists()?;
        let collected = batch.collect(area, part, Source::Device(self.token()))?;
        Ok(self.send_home(lists, collected, None))
    }

    /// Does the same for the memory of a CPU fault.
    pub(super) fn begin_for<'a>(
        &'a self,
        fault: &'a HomeFault<'a>,
        part: Span,
    ) -> Result<Moving<'a>> {
        let (batch, lists) = self.lists()?;
        let collected = batch.collect_for(fault, part, self.token())?;
        Ok(self.send_home(lists, collected, None))
    }

    /// Does the same for what of `part` is among `numbers`, which are pages of VRAM.
    pub(super) fn begin_eviction<'a>(
        &'a self,
        area: Area<'a>,
        part: Span,
        numbers: &Range<u64>,
    ) -> Result<Moving<'a>> {
        let (batch, lists) = self.lists()?;
        let collected = batch.collect(area, part, Source::Device(self.token()))?;
        Ok(self.send_home(lists, collected, Some(numbers)))
    }

    fn begin<'a>(
        &'a self,
        lists: Lists,
        collected: Collected<'a>,
        home: bool,
        outcome: Outcome,
    ) -> Moving<'a> {
        let under_way = UnderWay {
            copies: self.copy_pages(lists.jobs, !home),
            collected,
            pairs: lists.pairs,
            home,
            peer: None,
        };
        Moving {
            gpu: self,
            under_way: Some(under_way),
            outcome,
        }
    }

    /// Has collected pages of VRAM go home, or only those among `numbers`.
    fn send_home<'a>(
        &'a self,
        mut lists: Lists,
        collected: Collected<'a>,
        numbers: Option<&Range<u64>>,
    ) -> Moving<'a> {
        let mut outcome = Outcome::default();
        let (pairs, moves) = (&mut lists.pairs, &mut lists.jobs.moves);
        collected.each(|item| {
            let offset = item.pfn.and_then(|pfn| self.offset_of(pfn));
            let number = offset.map(|offset| offset / PAGE_SIZE);
            let number = number.filter(|number| numbers.is_none_or(|all| all.contains(number)));
            if let Some(number) = number {
                let page = None;
                let _ = pairs.push_within_capacity(Pair { item, number, page });
            }
        });
        // What moves as a block is copied as a block.
        let mut neighbours = match pairs.len() {
            PAGES => collected.allocate_neighbours(),
            _ => None,
        };
        pairs.retain(|pair| {
            let page = neighbours.as_mut().and_then(Iterator::next);
            let page = page.or_else(|| collected.allocate_home(pair.item.index));
            let Some(page) = page else {
                outcome.no_room = outcome.no_room.saturating_add(1);
                return false;
            };
            // INVARIANT: The pair has the page, which is let go of only after the copies.
            let _ = moves.push_within_capacity(Move {
                pfn: page.pfn(),
                peer: false,
                offset: pair.number.saturating_mul(PAGE_SIZE),
                pages: 1,
            });
            pair.page = Some(page);
            true
        });
        self.begin(lists, collected, true, outcome)
    }

    /// Zeroes pages of VRAM by the CPU.
    fn zero_pages(&self, zeros: &[Move]) {
        for zeros in zeros {
            for page in 0..zeros.pages {
                let at = page.saturating_mul(PAGE_SIZE);
                self.hardware
                    .zero(zeros.offset.saturating_add(at), PAGE_SIZE);
                task::cond_resched();
            }
        }
        self.hardware.order();
    }

    /// Copies pages of VRAM to the host by the CPU. `ENODEV`: it cannot reach them any more.
    fn save_pages(&self, pairs: &[Pair]) -> Result {
        for pair in pairs {
            let offset = pair.number.saturating_mul(PAGE_SIZE);
            if let Some(page) = &pair.page {
                if !self.hardware.save_page(offset, page) {
                    return Err(ENODEV);
                }
                task::cond_resched();
            }
        }
        Ok(())
    }
}
