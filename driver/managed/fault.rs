// SPDX-License-Identifier: GPL-2.0
//! A fault of the device on managed memory, and what may be in the way of serving it.

use super::{block::Block, block_of, page_of};
use crate::{
    failure::Failure,
    gpu::mmu::pager::Refusal,
    logic::{pte::LARGE, span::Span, PAGE_SIZE},
    uapi,
};
use kernel::{prelude::*, sync::Arc};

#[derive(Clone, Copy)]
pub(super) struct Fault {
    pub(super) addr: u64,
    pub(super) write: bool,
    /// An atomic access, which also writes.
    pub(super) atomic: bool,
    pub(super) block: Span,
    /// The page in its block.
    pub(super) index: usize,
}

impl Fault {
    /// A fault at `addr`, by `access`, a `PINMAP_ACCESS_` value.
    pub(super) fn new(addr: u64, access: u32) -> Self {
        let atomic = access == uapi::PINMAP_ACCESS_ATOMIC;
        Self {
            addr,
            write: atomic || access == uapi::PINMAP_ACCESS_WRITE,
            atomic,
            block: block_of(addr),
            index: (addr % LARGE / PAGE_SIZE) as usize,
        }
    }

    /// The addresses of the page.
    pub(super) fn page(&self) -> Span {
        page_of(self.addr)
    }
}

/// Why an attempt to serve a fault came to nothing. All but two have it begin anew.
pub(super) enum Setback {
    /// Something has changed meanwhile.
    Changed,
    /// The page was faulted in.
    FaultedIn,
    /// Memory has moved.
    Moved,
    /// Memory in which an atomic access is made did not move.
    Busy,
    /// The page table has something that no device may have, though nothing says why.
    Strange,
    /// The page belongs to a run of this block that is being taken away for the sake of another
    /// page.
    Leaving(Arc<Block>),
    /// Page tables or addresses on the bus have run out.
    Full,
    /// The device can reach the page already.
    Reached,
    /// The fault cannot be served.
    Refused(Refusal),
}

impl From<Refusal> for Setback {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for Refusal {
    fn from(errno: Error) -> Self {
        // `EINTR`: the thread was told to stop. Nothing else fails but for memory, while there is a
        // context.
        Self::new(uapi::PINMAP_FAULT_MEMORY, errno)
    }
}

impl From<Error> for Setback {
    fn from(errno: Error) -> Self {
        Self::Refused(errno.into())
    }
}

impl From<Failure> for Setback {
    fn from(failure: Failure) -> Self {
        match failure.errno {
            // Making room helps against this.
            ENOSPC => Self::Full,
            errno => errno.into(),
        }
    }
}
