// SPDX-License-Identifier: GPL-2.0
//! Pinning user pages, and why some cannot be.

use crate::{
    failure::Failure,
    logic::{span::Span, PAGE_SIZE},
    sys::{
        account::{Account, Charge},
        compat,
        gup::{self, Chunk, PinnedRuns},
        memfd::{MemoryFile, PinnedFile},
        task, uapi,
    },
};
use kernel::{prelude::*, sync::Arc};

/// Pages pinned at a time: 4 MiB, an array of two pages.
const CHUNK_PAGES: u64 = 1024;

/// Charges for `span` of the current task and pins it, for writing if `write`. Sleeps; no lock may be
/// held that a page fault, a FUSE daemon or a userfaultfd handler might wait for. A fatal signal stops
/// it, and whatever `progress`, which is told how many pages there are, says.
pub(crate) fn pin(
    account: &Arc<Account>,
    span: Span,
    write: bool,
    progress: impl Fn(u64) -> Result,
) -> Result<Arc<PinnedRuns>, Failure> {
    let charge = Charge::new(account, span.pages())?;
    // Pages that are there are pinned without a look at the areas that they are in; and hardware lets
    // read what may only be written or executed. Whether that is allowed must not depend on it.
    if let Some((address, reason)) = (!write).then(|| gup::survey(span, false)).flatten() {
        return Err(Failure::at(EFAULT, reason, address));
    }
    let room = span.pages().min(CHUNK_PAGES) as usize;
    let mut chunk = Chunk::new(room, write)?;
    let mut runs = PinnedRuns::new(write, charge);
    while runs.pages() < span.pages() {
        if task::fatal_signal_pending() {
            return Err(EINTR.into());
        }
        let at = span
            .start()
            .saturating_add(runs.pages().saturating_mul(PAGE_SIZE));
        let left = span.pages().saturating_sub(runs.pages());
        chunk
            .pin(at, left)
            .map_err(|errno| explain(errno, at, write))?;
        runs.take(&mut chunk)?;
        task::cond_resched();
        progress(runs.pages())?;
    }
    runs.finish()?;
    Ok(Arc::new(runs, GFP_KERNEL_ACCOUNT)?)
}

/// Charges for `span` of `file` and pins it. Sleeps; a fatal signal stops it, and whatever `wanted` says.
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
        // It was made shorter meanwhile, or has lost the page.
        if errno == EINVAL || compat::is_poisoned(errno) {
            Failure::at(EFAULT, uapi::PINMAP_FAIL_FAULT, at)
        } else {
            errno.into()
        }
    })?;
    Ok(Arc::new(pinned, GFP_KERNEL_ACCOUNT)?)
}

/// The page at `at` could not be pinned: why?
fn explain(errno: Error, at: u64, write: bool) -> Failure {
    if errno == EFAULT || compat::is_poisoned(errno) {
        Failure::at(EFAULT, gup::explain(at, write), at)
    } else {
        errno.into()
    }
}
