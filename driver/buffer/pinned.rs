// SPDX-License-Identifier: GPL-2.0
//! Pinning user memory and parts of files, and the reasons why some cannot be.

use crate::{
    failure::Failure,
    logic::{span::Span, PAGE_SIZE},
    sys::{
        account::{Account, Charge},
        companion, compat,
        gup::{self, Chunk, PinnedRuns},
        memfd::{MemoryFile, PinnedFile},
        task, uapi,
    },
};
use core::cell::Cell;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, UniqueArc,
    },
};

/// Pages pinned at a time: 4 MiB, an array of two pages.
const CHUNK_PAGES: u64 = 1024;
/// What one thread pins before it takes more, in bytes of addresses: no huge page is divided.
const PIECE: u64 = CHUNK_PAGES * PAGE_SIZE;
/// Pages from which on a second thread helps: to make it takes as long as to pin one piece.
const SHARED: u64 = 4 * CHUNK_PAGES;

/// Charges for `span` of the current task and pins it, for writing if `write`, into `runs`, which
/// is empty. `progress` is told how many pages are pinned so far; its failure stops the call, and
/// so does a fatal signal, between chunks. Sleeps: the caller holds no lock that a page fault, a
/// FUSE daemon or a userfaultfd handler might wait for.
pub(crate) fn pin(
    mut runs: UniqueArc<PinnedRuns>,
    account: &Arc<Account>,
    span: Span,
    write: bool,
    progress: impl Fn(u64) -> Result,
) -> Result<Arc<PinnedRuns>, Failure> {
    runs.begin(write, account, span.pages())?;
    // Pages that are there are pinned without a look at the areas that they are in, and hardware
    // permits reading wherever it permits writing or executing. The answer must not depend on
    // whether pages are there.
    if let Some((address, reason)) = (!write).then(|| gup::survey(span, false)).flatten() {
        return Err(Failure::at(EFAULT, reason, address));
    }
    if span.pages() < SHARED {
        let mut chunk = Chunk::new(write);
        chunk.make_room(span.pages().min(CHUNK_PAGES) as usize)?;
        pin_part(&mut runs, &mut chunk, span, write, progress)?;
    } else {
        pin_many(&mut runs, span, write, &progress)?;
    }
    runs.finish()?;
    Ok(runs.into())
}

/// Pins `span`, which is long, into `runs`, with the help of a second thread if that is of use.
#[inline(never)]
fn pin_many(
    runs: &mut PinnedRuns,
    span: Span,
    write: bool,
    progress: &dyn Fn(u64) -> Result,
) -> Result<(), Failure> {
    let mut chunk = Chunk::new(write);
    chunk.make_room(CHUNK_PAGES as usize)?;
    let first = span.piece(PIECE, 0).ok_or(EINVAL)?;
    pin_part(runs, &mut chunk, first, write, progress)?;
    let rest = span.behind(first).ok_or(EINVAL)?;
    // Huge pages are pinned in less time than a thread is made.
    if chunk.is_huge() {
        pin_part(runs, &mut chunk, rest, write, progress)
    } else {
        pin_by_two(runs, &mut chunk, rest, write, progress)
    }
}

/// Pins `part` into `runs`, behind what is there.
#[inline]
fn pin_part(
    runs: &mut PinnedRuns,
    chunk: &mut Chunk,
    part: Span,
    write: bool,
    progress: impl Fn(u64) -> Result,
) -> Result<(), Failure> {
    let before = runs.pages();
    loop {
        let done = runs.pages().saturating_sub(before);
        let left = part.pages().saturating_sub(done);
        if left == 0 {
            return Ok(());
        }
        if runs.pages() != 0 {
            task::cond_resched();
            if task::fatal_signal_pending() {
                return Err(EINTR.into());
            }
        }
        let at = part.start().saturating_add(done.saturating_mul(PAGE_SIZE));
        chunk
            .pin(at, left)
            .map_err(|errno| explain(errno, at, write))?;
        runs.take(chunk)?;
        progress(runs.pages())?;
    }
}

/// Pins `rest` into `runs`, behind what is there. A second thread of the process pins from the back
/// while the caller pins from the front, piece by piece, until they meet.
///
/// A piece that the second thread could not pin is left to the caller. If the caller fails, it lets
/// go of what the second thread has pinned, which may be in the way of moving a page, and tries
/// again alone. So the failure is that of the first page that cannot be pinned by one thread.
fn pin_by_two(
    runs: &mut PinnedRuns,
    chunk: &mut Chunk,
    rest: Span,
    write: bool,
    progress: &dyn Fn(u64) -> Result,
) -> Result<(), Failure> {
    let before = runs.pages();
    let pieces = rest.pieces(PIECE);
    // Pieces that were begun, at the front and at the back together.
    let begun = Atomic::<u64>::new(0);
    let stopped = Atomic::new(false);
    // Pages that the second thread has pinned.
    let behind = Atomic::<u64>::new(0);
    let begin = || !stopped.load(Relaxed) && begun.fetch_add(1, Relaxed) < pieces;
    let all = |pages: u64| progress(pages.saturating_add(behind.load(Relaxed)));
    let front = Cell::new(0_u64);
    let mut pin_next = || {
        let piece = rest.piece(PIECE, front.get()).ok_or(EINVAL)?;
        front.set(front.get().saturating_add(1));
        pin_part(runs, chunk, piece, write, all)
    };
    let mut result = Ok(());
    let mut back: KVVec<UniqueArc<PinnedRuns>> = KVVec::new();
    companion::with_companion(
        &mut || {
            while result.is_ok() && begin() {
                result = pin_next();
            }
            if result.is_err() {
                stopped.store(true, Relaxed);
            }
        },
        &mut || {
            // What fails here is left to the caller.
            let _ = pin_back(&mut back, rest, write, begin, &stopped, &behind);
        },
    );
    while result.is_ok() && front.get().saturating_add(back.len() as u64) < pieces {
        result = pin_next();
    }
    if let Err(failure) = result {
        if failure.errno == EINTR {
            return Err(failure);
        }
        drop(back);
        let done = runs.pages().saturating_sub(before);
        let left = rest.pages().saturating_sub(done).saturating_mul(PAGE_SIZE);
        return pin_part(runs, chunk, rest.tail(left).ok_or(EINVAL)?, write, progress);
    }
    while let Some(pinned) = back.pop() {
        runs.append(pinned)?;
    }
    progress(runs.pages()).map_err(Failure::from)
}

/// Pins the last pieces of `rest`, as long as `begin` says so, in the second thread. `back` gets
/// the last piece first. `behind` becomes the number of pages.
fn pin_back(
    back: &mut KVVec<UniqueArc<PinnedRuns>>,
    rest: Span,
    write: bool,
    begin: impl Fn() -> bool,
    stopped: &Atomic<bool>,
    behind: &Atomic<u64>,
) -> Result<(), Failure> {
    let mut chunk = Chunk::new(write);
    chunk.make_room(CHUNK_PAGES as usize)?;
    while !task::fatal_signal_pending() && begin() {
        let done = (back.len() as u64).saturating_add(1);
        let index = rest.pieces(PIECE).saturating_sub(done);
        let piece = rest.piece(PIECE, index).ok_or(EINVAL)?;
        let before = behind.load(Relaxed);
        let wanted = |pages: u64| {
            if stopped.load(Relaxed) {
                return Err(EINTR);
            }
            behind.store(before.saturating_add(pages), Relaxed);
            Ok(())
        };
        let mut pinned = PinnedRuns::part(write)?;
        let result = pin_part(&mut pinned, &mut chunk, piece, write, wanted)
            .and_then(|()| Ok(back.push(pinned, GFP_KERNEL)?));
        if result.is_err() {
            behind.store(before, Relaxed);
            return result;
        }
        task::cond_resched();
    }
    Ok(())
}

/// Charges for `span` of `file` and pins it. A failure of `wanted` stops the call, and so does a
/// fatal signal. Sleeps.
pub(crate) fn pin_file(
    account: &Arc<Account>,
    file: MemoryFile,
    span: Span,
    wanted: impl Fn() -> Result,
) -> Result<Arc<PinnedFile>, Failure> {
    let size = file.size();
    if span.last() >= size {
        let at = span.start().max(size & !(PAGE_SIZE - 1));
        return Err(Failure::at(EFAULT, uapi::PINMAP_FAIL_FAULT, at));
    }
    let charge = Charge::new(account, span.pages())?;
    let mut pinned = PinnedFile::new(file, charge);
    let filled = pinned.fill(span, || {
        if task::fatal_signal_pending() {
            return Err(EINTR);
        }
        wanted()
    });
    filled.map_err(|(errno, at)| {
        // The file was truncated since, or the page is poisoned.
        if errno == EINVAL || compat::is_poisoned(errno) {
            Failure::at(EFAULT, uapi::PINMAP_FAIL_FAULT, at)
        } else {
            errno.into()
        }
    })?;
    Ok(Arc::new(pinned, GFP_KERNEL_ACCOUNT)?)
}

/// The failure for the page at `at`, which could not be pinned.
fn explain(errno: Error, at: u64, write: bool) -> Failure {
    if errno == EFAULT || compat::is_poisoned(errno) {
        Failure::at(EFAULT, gup::explain(at, write), at)
    } else {
        errno.into()
    }
}
