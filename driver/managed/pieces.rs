// SPDX-License-Identifier: GPL-2.0
//! Pages of a block that the page table has, in pieces that are mapped and entered as one.

use super::{block::Block, Managed};
use crate::{
    logic::{
        block::{Pages, Run, PAGES},
        pte::LARGE,
    },
    sys::{iommu::Row, mm::hmm::Held},
};
use kernel::prelude::*;

/// Whether all pages of a block are held and can be one entry. If they are all writable but not
/// all counted as modified, they are made one entry that can only be read, unless the target is to
/// be written to.
pub(super) fn is_one(
    managed: &Managed,
    held: &Held<'_>,
    writable: &mut Pages,
    target: Option<usize>,
) -> bool {
    let Some(first) = held.pfn(0).filter(|_| held.pages() == Pages::ALL) else {
        return false;
    };
    // On the bus the pages are aligned wherever they are. In VRAM they may be neighbours that do
    // not begin where an entry can begin.
    let private = managed.vm.gpu().offset_of(first);
    if private.is_some_and(|offset| offset % LARGE != 0) {
        return false;
    }
    let is_next = |index: usize| held.pfn(index) == Some(first.saturating_add(index as u64));
    if !held.is_one() && !(0..PAGES).all(is_next) {
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

/// Pages of a block that are held: contiguous in memory, and alike.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) run: Run,
    /// The frame number of the first page.
    pfn: u64,
    pub(super) write: bool,
    /// The offset into VRAM, if they are there.
    pub(super) private: Option<u64>,
}

/// Maps `pieces` on the bus, unless they are in VRAM. Returns the first page that could not be
/// mapped, behind which nothing is, and why.
#[allow(unsafe_code, reason = "the pages are held here, and nowhere else")]
pub(super) fn map(
    pieces: impl Iterator<Item = Piece>,
    block: &Block,
) -> Result<(), (usize, Error)> {
    let mut rest = pieces.filter(|piece| piece.private.is_none());
    let Some(first) = rest.next() else {
        return Ok(());
    };
    let Some(second) = rest.next() else {
        let span = block.bus_span(first.run).ok_or((first.run.first, EINVAL))?;
        // SAFETY: The pages are held. Before they are let go, they are unmapped, or the notifier
        // unmaps them before they can be freed. Those to be written are a part of what
        // `Held::writable()` says.
        let result = unsafe { block.lender.map(span, first.pfn, first.write) };
        return result.map_err(|error| (first.run.first, error));
    };
    map_rows(Iterator::chain([first, second].into_iter(), rest), block)
}

/// Maps several pieces on the bus, as many as possible at once; returns what [`map`] does. Not
/// inlined, because that needs a row.
#[allow(unsafe_code, reason = "the pages are held here, and nowhere else")]
#[inline(never)]
fn map_rows(pieces: impl Iterator<Item = Piece>, block: &Block) -> Result<(), (usize, Error)> {
    let map_row = |row: &Row| {
        // SAFETY: As in `map()`: all runs are pieces.
        let (mapped, result) = unsafe { block.lender.map_row(row) };
        let end = row.start().saturating_add(mapped);
        result.map_err(|error| (block.index_on_bus(end), error))
    };
    // Empty at first.
    let mut row = Row::default();
    for piece in pieces {
        let first = piece.run.first;
        let span = block.bus_span(piece.run).ok_or((first, EINVAL))?;
        let (pfn, write) = (piece.pfn, piece.write);
        if !row.add(span, pfn, write) {
            map_row(&row)?;
            row.begin(span, pfn, write);
        }
    }
    map_row(&row)
}

pub(super) struct Pieces<'a> {
    managed: &'a Managed,
    held: &'a Held<'a>,
    writable: &'a Pages,
    /// They are one piece: one folio, all of which is writable, or none.
    is_one: bool,
    next: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(managed: &'a Managed, held: &'a Held<'a>, writable: &'a Pages) -> Self {
        let is_one = held.is_one() && (*writable == Pages::ALL || writable.is_empty());
        Self {
            managed,
            held,
            writable,
            is_one,
            next: 0,
        }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.next >= PAGES {
            return None;
        }
        let first = if self.is_one {
            0
        } else {
            self.held.next(self.next)?
        };
        let pfn = self.held.pfn(first)?;
        let write = self.writable.has(first);
        // The frame numbers of pages in VRAM are not those of other memory, nor next to them.
        let is_next = |index: usize| {
            let offset = index.saturating_sub(first) as u64;
            self.held.pfn(index) == Some(pfn.saturating_add(offset))
                && self.writable.has(index) == write
        };
        let mut end = first.saturating_add(1);
        if self.is_one {
            end = PAGES;
        }
        while end < PAGES && is_next(end) {
            end = end.saturating_add(1);
        }
        self.next = end;
        Some(Piece {
            run: Run {
                first,
                count: end.saturating_sub(first),
            },
            pfn,
            write,
            private: self.managed.vm.gpu().offset_of(pfn),
        })
    }
}
