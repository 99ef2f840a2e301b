// SPDX-License-Identifier: GPL-2.0
//! Telling where managed memory is: see `struct pinmap_residency` of the ABI.

use super::{block_of, Managed};
use crate::{
    logic::{block::PAGES, pte::LARGE, residence::Advice, span::Span, PAGE_SIZE},
    sys::{
        mm::{
            areas::Areas,
            hmm::{Leaf, Snapshot},
        },
        task,
    },
    uapi::{self, pinmap_run},
};
use kernel::{mm::Mm, prelude::*};

/// Sums of what was told.
#[derive(Clone, Copy, Default)]
pub(crate) struct Told {
    pub(crate) count: u32,
    /// The address behind the last page that is told of.
    pub(crate) end: u64,
    pub(crate) absent: u64,
    pub(crate) host: u64,
    pub(crate) device: u64,
}

impl Told {
    fn add(&mut self, run: &pinmap_run) {
        let sum = match run.place {
            uapi::PINMAP_PLACE_HOST => &mut self.host,
            uapi::PINMAP_PLACE_DEVICE => &mut self.device,
            _ => &mut self.absent,
        };
        *sum = sum.saturating_add(run.length);
        self.end = run.addr.saturating_add(run.length);
    }
}

/// Facts that a page has in common with its neighbours in a run.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Page {
    place: u32,
    access: u32,
    advice: u32,
    rule: u32,
}

/// Whether two runs are one: the second, which is behind the first, continues it.
fn continues(run: &pinmap_run, next: &pinmap_run) -> bool {
    run.addr.saturating_add(run.length) == next.addr
        && (run.place, run.access, run.advice, run.rule)
            == (next.place, next.access, next.advice, next.rule)
}

impl Managed {
    /// Tells where `range` of `mm`, which is in use, is: calls `tell` for at most `capacity` runs;
    /// 0: for none, but all is counted. `ENOENT`: not all of it is managed; `EINTR`: a fatal signal
    /// came. Holds no lock while it calls `tell`.
    pub(crate) fn residency(
        &self,
        mm: &Mm,
        range: Span,
        capacity: u32,
        mut tell: impl FnMut(&pinmap_run) -> Result,
    ) -> Result<Told> {
        self.check_managed(range)?;
        let mut told = Told {
            end: range.start(),
            ..Told::default()
        };
        let mut snapshot = Snapshot::new()?;
        let mut runs = KVec::with_capacity(PAGES, GFP_KERNEL_ACCOUNT)?;
        // The last run, which the next block may continue.
        let mut open: Option<pinmap_run> = None;
        let mut rest = Some(range);
        while let Some(span) = rest {
            if task::fatal_signal_pending() {
                return Err(EINTR);
            }
            let block = block_of(span.start());
            let part = span.intersection(block).ok_or(EINVAL)?;
            runs.clear();
            let mut seen = part;
            match hole(mm, span, open.as_ref())?.filter(|hole| hole.covers(part)) {
                Some(hole) => {
                    runs.push_within_capacity(absent(hole))?;
                    seen = hole;
                }
                None => self.look(mm, part, &mut snapshot, &mut runs)?,
            }
            for run in &runs {
                match &mut open {
                    Some(last) if continues(last, run) => {
                        last.length = last.length.saturating_add(run.length);
                    }
                    _ => {
                        if !close(&mut told, open.take(), capacity, &mut tell)? {
                            return Ok(told);
                        }
                        open = Some(*run);
                    }
                }
            }
            task::cond_resched();
            rest = range.behind(seen);
        }
        close(&mut told, open, capacity, &mut tell)?;
        Ok(told)
    }

    /// Calls `tell` for all runs of managed memory of `mm`, which is in use, where areas are. As
    /// [`residency`](Self::residency), without sums.
    pub(crate) fn each_run(&self, mm: &Mm, mut tell: impl FnMut(&pinmap_run) -> Result) -> Result {
        let mut at = 0;
        loop {
            let areas = Areas::lock(mm)?;
            let area = areas.next(at);
            drop(areas);
            let Some(area) = area else {
                return Ok(());
            };
            let mut rest = Some(area);
            while let Some(span) = rest {
                let Some(range) = self.first_range(span) else {
                    break;
                };
                if let Some(part) = range.intersection(span) {
                    self.residency(mm, part, u32::MAX, &mut tell)?;
                }
                rest = area.behind(range);
            }
            let Some(next) = area.last().checked_add(1) else {
                return Ok(());
            };
            at = next;
        }
    }

    /// Looks where `part` of one block is.
    fn look(
        &self,
        mm: &Mm,
        part: Span,
        snapshot: &mut Snapshot,
        runs: &mut KVec<pinmap_run>,
    ) -> Result {
        let gpu = self.vm.gpu();
        let start = block_of(part.start()).start();
        let number = part.start() / LARGE;
        snapshot.read(mm, start, gpu.token())?;
        let (present, writable) = self
            .find_block(start)
            .map_or_else(Default::default, |block| {
                let lent = block.lent.lock();
                (lent.pages.present(), lent.pages.writable())
            });
        let past = self.pasts.find(number);
        let (on_host, on_device) = past.map_or((0, 0), |past| (past.on_host(), past.on_device()));
        let page = |addr: u64, advice: Advice, is_hole: bool, is_fixed: bool| {
            let index = (addr.saturating_sub(start) / PAGE_SIZE) as usize;
            let place = match snapshot.leaf(index) {
                _ if is_hole => uapi::PINMAP_PLACE_ABSENT,
                Leaf::Page { pfn, .. } if gpu.offset_of(pfn).is_some() => uapi::PINMAP_PLACE_DEVICE,
                Leaf::Page { .. } | Leaf::Forbidden => uapi::PINMAP_PLACE_HOST,
                Leaf::Absent => uapi::PINMAP_PLACE_ABSENT,
            };
            let write = if writable.has(index) {
                uapi::PINMAP_RUN_WRITE
            } else {
                0
            };
            let access = if present.has(index) {
                uapi::PINMAP_RUN_READ | write
            } else {
                0
            };
            let rule = match place {
                uapi::PINMAP_PLACE_DEVICE => on_device,
                uapi::PINMAP_PLACE_HOST if is_fixed => uapi::PINMAP_RULE_FIXED,
                uapi::PINMAP_PLACE_HOST => on_host,
                _ => uapi::PINMAP_RULE_NONE,
            };
            Page {
                place,
                access,
                advice: advice.bits(),
                rule,
            }
        };
        let areas = Areas::lock(mm)?;
        areas.each(part, |part, area| {
            let is_hole = areas.at(part.start()).is_none();
            let mut rest = Some(part);
            while let Some(span) = rest {
                let (advice, all) = match area {
                    Some(area) => self.advice_at(area, span.start(), span),
                    None => (Advice::NONE, span),
                };
                for addr in (span.start()..=all.last()).step_by(PAGE_SIZE as usize) {
                    let Page {
                        place,
                        access,
                        advice,
                        rule,
                    } = page(addr, advice, is_hole, area.is_none());
                    let run = pinmap_run {
                        addr,
                        length: PAGE_SIZE,
                        place,
                        access,
                        advice,
                        rule,
                    };
                    match runs.last_mut() {
                        Some(last) if continues(last, &run) => {
                            last.length = last.length.saturating_add(PAGE_SIZE);
                        }
                        _ => {
                            let _ = runs.push_within_capacity(run);
                        }
                    }
                }
                rest = part.behind(all);
            }
            Ok(())
        })
    }
}

/// Returns the addresses at the beginning of `span` where nothing is mapped, up to the end of a
/// block. It is not looked for right behind memory, of which `last` is the last run: there is
/// likely to be more.
fn hole(mm: &Mm, span: Span, last: Option<&pinmap_run>) -> Result<Option<Span>> {
    if last.is_some_and(|last| last.place != uapi::PINMAP_PLACE_ABSENT) {
        return Ok(None);
    }
    Ok(match Areas::lock(mm)?.next(span.start()) {
        Some(area) => span.before(block_of(area.start())),
        None => Some(span),
    })
}

/// The answer for addresses where nothing is mapped.
fn absent(hole: Span) -> pinmap_run {
    pinmap_run {
        addr: hole.start(),
        length: hole.length(),
        place: uapi::PINMAP_PLACE_ABSENT,
        access: 0,
        advice: Advice::NONE.bits(),
        rule: uapi::PINMAP_RULE_NONE,
    }
}

/// Tells of a run that is complete. Returns whether there is room for more.
fn close(
    told: &mut Told,
    run: Option<pinmap_run>,
    capacity: u32,
    tell: &mut impl FnMut(&pinmap_run) -> Result,
) -> Result<bool> {
    let Some(run) = run else {
        return Ok(true);
    };
    if capacity != 0 {
        if told.count == capacity {
            return Ok(false);
        }
        tell(&run)?;
        told.count = told.count.saturating_add(1);
    }
    told.add(&run);
    Ok(true)
}
