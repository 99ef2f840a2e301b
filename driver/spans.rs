// SPDX-License-Identifier: GPL-2.0
//! The ranges of a space that are taken, and the gaps between them, each found in logarithmic time.
//!
//! Taken ranges are kept in a tree by their last address, gaps in a tree by size class and address
//! (see `logic/gaps.rs`). Freeing a range must not allocate, because an MMU notifier may free it.
//! So when a range is taken, a node is allocated for the gap that it may leave when it is freed.
//! Nodes that hold no gap wait in the tree of gaps.
//!
//! The ranges that were freed last are *vacant*: they stay in the tree of taken ranges until
//! somebody looks at that, because a program often registers the same addresses again, and then
//! neither tree changes.

use crate::logic::{
    gaps::{self, Bounds, FreeSpace},
    place::Taken,
    span::Span,
};
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
};

struct TakenSpan<L> {
    span: Span,
    /// Number of the owner, by which it is told from a later owner of the same span. `None`: the
    /// span is vacant.
    owner: Option<u64>,
    /// The entries that the owner left behind: see [`Spans::leave`].
    left: Option<L>,
    /// The owner maps nothing there: it is a window of managed memory.
    is_window: bool,
}

/// Disjoint taken spans, and the gaps between them.
pub(crate) struct Spans<L> {
    /// Taken spans by their last address: the first one that is not wholly below an address is the
    /// lower bound of that address.
    taken: RBTree<u64, TakenSpan<L>>,
    gaps: Gaps,
    owners: u64,
    /// Spans that are vacant, the last one freed last.
    vacant: KVec<Span>,
}

/// The most spans that are vacant at a time.
const VACANT: usize = 64;

/// Gaps by class and address, and nodes without a gap, under a class of their own. There are as
/// many nodes as there can be gaps: those of the empty space, and one for each taken span.
struct Gaps {
    nodes: RBTree<(u32, u64), Option<Span>>,
    spare: u64,
    /// How many gaps there are of each class, and a bit for each class of which there are any.
    counts: [u64; gaps::CLASSES],
    classes: u64,
}

/// The class of nodes without a gap.
const SPARE: u32 = u32::MAX;

/// Memory for taking a span.
pub(crate) struct SpanNodes<L> {
    taken: RBTreeNodeReservation<u64, TakenSpan<L>>,
    gap: RBTreeNodeReservation<(u32, u64), Option<Span>>,
}

impl<L> SpanNodes<L> {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            taken: RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?,
            gap: RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?,
        })
    }
}

impl Gaps {
    fn add_spare(&mut self, node: RBTreeNodeReservation<(u32, u64), Option<Span>>) {
        self.nodes.insert(node.into_node((SPARE, self.spare), None));
        self.spare = self.spare.saturating_add(1);
    }

    fn take_spare(&mut self) -> Option<RBTreeNodeReservation<(u32, u64), Option<Span>>> {
        self.spare = self.spare.checked_sub(1)?;
        let node = self.nodes.remove_node(&(SPARE, self.spare))?;
        Some(node.into_reservation())
    }

    fn put(&mut self, gap: Span) {
        // There is a spare node for each gap: see the type.
        if let Some(node) = self.take_spare() {
            let class = gaps::class(gap);
            self.nodes
                .insert(node.into_node((class, gap.start()), Some(gap)));
            self.count(class, u64::saturating_add);
        }
    }

    /// Counts a gap that came or went.
    fn count(&mut self, class: u32, change: fn(u64, u64) -> u64) {
        let bit = 1_u64.wrapping_shl(class);
        if let Some(count) = self.counts.get_mut(class as usize) {
            *count = change(*count, 1);
            self.classes = if *count == 0 {
                self.classes & !bit
            } else {
                self.classes | bit
            };
        }
    }

    fn remove(&mut self, gap: Span) {
        let class = gaps::class(gap);
        if let Some(node) = self.nodes.remove_node(&(class, gap.start())) {
            self.count(class, u64::saturating_sub);
            self.add_spare(node.into_reservation());
        }
    }

    fn lowest(&self, class: u32, from: u64) -> Option<Span> {
        let cursor = self.nodes.cursor_lower_bound(&(class, from))?;
        let (key, gap) = cursor.current();
        gap.filter(|_| key.0 == class)
    }
}

impl<L> FreeSpace for Spans<L> {
    fn below(&self, address: u64) -> Option<Span> {
        match self.taken.cursor_lower_bound(&address) {
            Some(cursor) => cursor.peek_prev().map(|(_, taken)| taken.span),
            None => {
                let highest = self.taken.cursor_back()?;
                Some(highest.current().1.span)
            }
        }
    }

    fn above(&self, address: u64) -> Option<Span> {
        self.taken
            .cursor_lower_bound(&address)
            .map(|cursor| cursor.current().1.span)
    }

    fn put(&mut self, gap: Span) {
        self.gaps.put(gap);
    }

    fn remove(&mut self, gap: Span) {
        self.gaps.remove(gap);
    }
}

impl<L> Taken for Spans<L> {
    fn from(&self, address: u64) -> Option<Span> {
        self.above(address)
    }

    fn gap(&self, class: u32, from: u64) -> Option<Span> {
        self.gaps.lowest(class, from)
    }

    fn classes(&self) -> u64 {
        self.gaps.classes
    }
}

impl<L: Clone> Spans<L> {
    /// Makes a space where nothing is taken. All calls must be given these `bounds`.
    pub(crate) fn new(bounds: Bounds<'_>) -> Result<Self> {
        let mut gaps = Gaps {
            nodes: RBTree::new(),
            spare: 0,
            counts: [0; gaps::CLASSES],
            classes: 0,
        };
        let mut result = Ok(());
        bounds.each(|gap| {
            match RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT) {
                Ok(node) => gaps.add_spare(node),
                Err(error) => result = Err(error),
            }
            gaps.put(gap);
        });
        result?;
        Ok(Self {
            taken: RBTree::new(),
            gaps,
            owners: 0,
            vacant: KVec::with_capacity(VACANT, GFP_KERNEL_ACCOUNT)?,
        })
    }

    fn next_owner(&mut self) -> u64 {
        let owner = self.owners;
        self.owners = owner.wrapping_add(1);
        owner
    }

    /// Takes a vacant span that `suits`, of several the one that was freed last. Returns the number
    /// of its owner, too.
    pub(crate) fn take_again(&mut self, suits: impl Fn(Span) -> bool) -> Option<(Span, u64)> {
        let index = self.vacant.iter().rposition(|&span| suits(span))?;
        let span = self.vacant.remove(index).ok()?;
        let owner = self.next_owner();
        self.taken.get_mut(&span.last())?.owner = Some(owner);
        Some((span, owner))
    }

    /// Frees the vacant spans in the trees. Called before looking at what is taken.
    pub(crate) fn free_vacant(&mut self, bounds: Bounds<'_>) {
        while let Some(span) = self.vacant.pop() {
            self.remove(bounds, span);
        }
    }

    /// Removes `span`, which nobody can take again.
    fn remove(&mut self, bounds: Bounds<'_>, span: Span) {
        self.taken.remove(&span.last());
        bounds.free(self, span);
        drop(self.gaps.take_spare());
    }

    /// Takes `span`, which is free. Returns the number of its owner.
    pub(crate) fn take(&mut self, bounds: Bounds<'_>, span: Span, nodes: SpanNodes<L>) -> u64 {
        self.gaps.add_spare(nodes.gap);
        bounds.take(self, span);
        let owner = self.next_owner();
        let entry = TakenSpan {
            span,
            owner: Some(owner),
            left: None,
            is_window: false,
        };
        self.taken.insert(nodes.taken.into_node(span.last(), entry));
        owner
    }

    /// Finds the span that ends at `last`, if it is still that of `owner`.
    fn find_mut(&mut self, last: u64, owner: u64) -> Option<&mut TakenSpan<L>> {
        let taken = self.taken.get_mut(&last)?;
        (taken.owner == Some(owner)).then_some(taken)
    }

    /// Frees the span of `owner` that ends at `last`, unless somebody else has done so. Does not
    /// allocate. Returns what the owner has [left](Self::leave).
    pub(crate) fn free(&mut self, bounds: Bounds<'_>, last: u64, owner: u64) -> Option<L> {
        let taken = self.find_mut(last, owner)?;
        taken.owner = None;
        taken.is_window = false;
        let (span, left) = (taken.span, taken.left.take());
        if self.vacant.len() == VACANT {
            self.free_vacant(bounds);
        }
        // There is room.
        let _ = self.vacant.push_within_capacity(span);
        left
    }

    /// Keeps the span of `owner` that ends at `last` taken for as long as the space exists. Returns
    /// what the owner has [left](Self::leave): nobody else gets it.
    pub(crate) fn keep(&mut self, last: u64, owner: u64) -> Option<L> {
        let nobody = self.next_owner();
        let taken = self.find_mut(last, owner)?;
        taken.owner = Some(nobody);
        taken.left.take()
    }

    /// Frees the span that ends at `last`, if `owner` has left it and nobody else has freed it.
    pub(crate) fn free_left(&mut self, bounds: Bounds<'_>, last: u64, owner: u64) {
        let taken = self.taken.get(&last);
        let taken = taken.filter(|taken| taken.owner == Some(owner) && taken.left.is_some());
        if let Some(taken) = taken {
            let span = taken.span;
            // The owner, when he comes to free the span, does not find it.
            self.remove(bounds, span);
        }
    }

    /// Leaves the span of `owner` that ends at `last`: whoever wants it next may have it, after
    /// dealing with `left`.
    pub(crate) fn leave(&mut self, last: u64, owner: u64, left: L) {
        if let Some(taken) = self.find_mut(last, owner) {
            taken.left = Some(left);
        }
    }

    /// Makes the span of `owner` that ends at `last` a window.
    pub(crate) fn set_window(&mut self, last: u64, owner: u64) {
        if let Some(taken) = self.find_mut(last, owner) {
            taken.is_window = true;
        }
    }

    pub(crate) fn is_window(&self, span: Span) -> bool {
        let taken = self.taken.get(&span.last());
        taken.is_some_and(|taken| taken.is_window)
    }

    /// The first span that overlaps `within` and is taken by a mapping, not by a window.
    pub(crate) fn first_mapped(&self, within: Span) -> Option<Span> {
        let mut from = within.start();
        loop {
            let span = self.above(from).filter(|span| span.overlaps(within))?;
            let taken = self.taken.get(&span.last())?;
            if taken.owner.is_some() && !taken.is_window {
                return Some(span);
            }
            from = span.last().checked_add(1)?;
        }
    }

    /// The first span within `within` that was left: its last address, its owner, and what is left.
    pub(crate) fn leftover(&self, within: Span) -> Option<(u64, u64, L)> {
        let mut from = within.start();
        loop {
            let cursor = self.taken.cursor_lower_bound(&from)?;
            let (&last, taken) = cursor.current();
            if !taken.span.overlaps(within) {
                return None;
            }
            if let (Some(owner), Some(left)) = (taken.owner, &taken.left) {
                return Some((last, owner, left.clone()));
            }
            from = last.checked_add(1)?;
        }
    }
}
