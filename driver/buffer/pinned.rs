// SPDX-License-Identifier: GPL-2.0
//! Pinning user memory and parts of files, and the reasons why some cannot be.

use crate::{
    failure::Failure,
    logic::{span::Span, PAGE_SIZE},
    sys::{
        mm::{
            gup::{self, Chunk, PinnedRuns},
            memfd::{MemoryFile, PinnedFile},
        },
        task,
        task::account::{Account, Charge},
    },
    uapi,
};
use kernel::{
    prelude::*,
    sync::{Arc, UniqueArc},
};

/// Pages pinned at a time: 4 MiB, an array of two pages.
const CHUNK_PAGES: u64 = 1024;

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
    let mut chunk = Chunk::new(write);
    chunk.make_room(span.pages().min(CHUNK_PAGES) as usize)?;
    loop {
        let done = runs.pages();
        let left = span.pages().saturating_sub(done);
        if left == 0 {
            break;
        }
        if done != 0 {
            task::cond_resched();
            if task::fatal_signal_pending() {
                return Err(EINTR.into());
            }
        }
        let at = span.start().saturating_add(done.saturating_mul(PAGE_SIZE));
        chunk
            .pin(at, left)
            .map_err(|errno| explain(errno, at, write))?;
        runs.take(&mut chunk)?;
        progress(runs.pages())?;
    }
    runs.finish()?;
    Ok(runs.into())
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
        if errno == EINVAL || errno == EHWPOISON {
            Failure::at(EFAULT, uapi::PINMAP_FAIL_FAULT, at)
        } else {
            errno.into()
        }
    })?;
    Ok(Arc::new(pinned, GFP_KERNEL_ACCOUNT)?)
}

/// The failure for the page at `at`, which could not be pinned.
fn explain(errno: Error, at: u64, write: bool) -> Failure {
    if errno == EFAULT || errno == EHWPOISON {
        Failure::at(EFAULT, gup::explain(at, write), at)
    } else {
        errno.into()
    }
}
