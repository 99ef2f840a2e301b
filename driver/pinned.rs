// SPDX-License-Identifier: GPL-2.0
//! Pinned user pages.

use crate::{
    failure::Failure,
    logic::{span::Span, PAGE_SIZE},
    sys::{
        account::{Account, Charge},
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
    _charge: Charge,
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
        Ok(Self {
            runs,
            _charge: charge,
        })
    }

    /// The pages.
    pub(crate) fn runs(&self) -> &PinnedRuns {
        &self.runs
    }
}

/// The page at `at` could not be pinned: why?
fn explain(errno: Error, at: u64, write: bool) -> Failure {
    if errno == EFAULT || errno == EHWPOISON {
        Failure::at(EFAULT, gup::explain(at, write), at)
    } else {
        errno.into()
    }
}
