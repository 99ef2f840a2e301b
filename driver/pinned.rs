// SPDX-License-Identifier: GPL-2.0
//! Pinned user pages.

use crate::{
    failure::Failure,
    logic::{span::Span, PAGE_SIZE},
    sys::{
        account::{Account, Charge},
        compat,
        gup::{self, Chunk, PinnedRuns},
        uapi,
    },
};
use kernel::{prelude::*, sync::Arc};

/// Pages pinned at a time: 4 MiB, an array of two pages.
const CHUNK_PAGES: u64 = 1024;

/// User pages that are pinned and paid for.
///
/// The order of the fields is that of dropping: unpin, then give the charge back.
pub(crate) struct Pinned {
    runs: PinnedRuns,
    charge: Charge,
}

impl Pinned {
    /// Pins `span` of the current task, for writing if `write`. Sleeps; no lock may be held that a
    /// page fault, a FUSE daemon or a userfaultfd handler might wait for. A fatal signal stops it.
    pub(crate) fn pin(
        account: &Arc<Account>,
        span: Span,
        write: bool,
    ) -> core::result::Result<Self, Failure> {
        let charge = Charge::new(account, span.pages()).map_err(|over| {
            Failure::limit(ENOMEM, uapi::FAIL_MEMLOCK, over.needed, over.allowed)
        })?;
        let room = span.pages().min(CHUNK_PAGES) as usize;
        let mut chunk = Chunk::new(room, write)?;
        let mut runs = PinnedRuns::new(write);
        while runs.pages() < span.pages() {
            if gup::must_die() {
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
        }
        Ok(Self { runs, charge })
    }

    /// Never unpins them, and never gives the charge back: it is not known whether a device can still
    /// reach them.
    pub(crate) fn keep_forever(&self) {
        self.runs.keep_forever();
        self.charge.keep_forever();
    }

    /// The pages.
    pub(crate) fn runs(&self) -> &PinnedRuns {
        &self.runs
    }
}

/// The page at `at` could not be pinned: why?
fn explain(errno: Error, at: u64, write: bool) -> Failure {
    if errno == EFAULT || compat::is_poisoned(errno) {
        Failure::at(EFAULT, gup::explain(at, write), at)
    } else {
        errno.into()
    }
}
