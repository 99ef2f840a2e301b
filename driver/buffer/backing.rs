// SPDX-License-Identifier: GPL-2.0
//! The memory of a buffer: its kinds, and what each allows.

use super::Buffer;
use crate::{
    dmabuf::{Giver, Parts, Source, View},
    failure::Failure,
    logic::{contiguity::Contiguity, span::Span},
    mapping::{Memory, VramRange},
    stats::StatGuard,
    sys::mm::{folios::Folios, gup::PinnedRuns, memfd::PinnedFile},
    uapi,
    view::{FileView, Loan, MmapOffset},
};
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};

/// The source of a buffer's memory, which keeps the memory.
pub(crate) enum Backing {
    User(Arc<PinnedRuns>),
    /// Pinned memory of a file.
    File(Arc<PinnedFile>),
    /// Memory that the driver allocated.
    Host(Arc<Folios>, MmapOffset),
    Vram(Arc<dyn VramRange>, MmapOffset),
    /// Memory of somebody else. VRAM of the device itself can be mapped by the program.
    Import(Memory, Giver, Option<Arc<Loan>>),
}

/// The memory of a buffer.
pub(super) struct Holding {
    /// `None` before the memory is pinned, and after it was let go of.
    pub(super) memory: Option<Backing>,
    /// The entry in the statistics.
    pub(super) stat: StatGuard,
}

impl Backing {
    /// The memory, to be mapped.
    pub(crate) fn memory(&self) -> Memory {
        match self {
            Self::User(runs) => Memory::Host(runs.clone()),
            Self::Import(memory, ..) => memory.clone(),
            Self::File(pages) => Memory::Host(pages.clone()),
            Self::Host(folios, _) => Memory::Host(folios.clone()),
            Self::Vram(vram, _) => Memory::Vram(vram.clone()),
        }
    }

    /// Whether it is memory of another driver.
    pub(crate) fn is_foreign(&self) -> bool {
        matches!(self, Self::Import(_, Giver::Foreign(_), _))
    }

    /// The offset to pass to `mmap()`; 0: not mappable.
    pub(crate) fn offset(&self) -> u64 {
        match self {
            Self::User(_) | Self::File(_) => 0,
            Self::Import(.., loan) => loan.as_ref().map_or(0, |loan| loan.offset()),
            Self::Host(_, mmap_offset) | Self::Vram(_, mmap_offset) => mmap_offset.offset(),
        }
    }

    /// A `PINMAP_BUFFER_` kind.
    pub(super) fn kind(&self) -> u32 {
        match self {
            Self::User(_) => uapi::PINMAP_BUFFER_USER,
            Self::File(_) => uapi::PINMAP_BUFFER_FILE,
            Self::Host(..) => uapi::PINMAP_BUFFER_HOST,
            Self::Vram(..) => uapi::PINMAP_BUFFER_VRAM,
            Self::Import(..) => uapi::PINMAP_BUFFER_IMPORT,
        }
    }

    /// The runs of user memory.
    pub(super) fn pinned(&self) -> Option<&Arc<PinnedRuns>> {
        match self {
            Self::User(runs) => Some(runs),
            Self::File(_) | Self::Host(..) | Self::Vram(..) | Self::Import(..) => None,
        }
    }

    /// A part of VRAM, counted from its first byte, as other devices can be given it.
    pub(crate) fn part_of_vram(&self, part: Span) -> Result<Parts> {
        let Self::Vram(vram, _) = self else {
            return Err(EOPNOTSUPP);
        };
        Ok(Parts {
            memory: Memory::Host(vram.clone().on_bus(part)?),
            view: View::None,
            revocable: true,
        })
    }

    /// The memory as it can be exported; `EOPNOTSUPP`: it cannot, by us.
    pub(crate) fn parts(&self) -> Result<Parts> {
        let (view, revocable) = match self {
            Self::User(_) => (View::None, true),
            Self::Host(folios, _) => (View::Host(folios.clone()), false),
            Self::File(pages) => (View::File(FileView::new(pages)?), false),
            Self::Vram(..) => (View::None, true),
            Self::Import(memory, giver, _) => return giver.parts(memory.clone()),
        };
        Ok(Parts {
            memory: self.memory(),
            view,
            revocable,
        })
    }
}

impl Buffer {
    /// Calls `look` with the backing. Fails if the memory was let go of.
    pub(crate) fn with_backing<T>(&self, look: impl FnOnce(&Backing) -> T) -> Result<T, Failure> {
        let holding = self.backing.lock();
        let looked = holding.memory.as_ref().map(look);
        looked.ok_or_else(|| self.refusal(self.state()))
    }

    /// How scattered the memory is; all zero once it was let go of. Waits for calls that map it.
    pub(crate) fn contiguity(&self) -> Contiguity {
        let holding = self.backing.lock();
        let memory = holding.memory.as_ref().map(Backing::memory);
        memory.map_or(Contiguity::default(), |memory| memory.contiguity())
    }

    /// Has the buffer go stale when imported memory is taken back. `ESTALE`: it was.
    pub(crate) fn subscribe(self: &Arc<Self>) -> Result {
        match &self.backing.lock().memory {
            Some(Backing::Import(_, giver, _)) => giver.add_importer(self.clone()),
            _ => Ok(()),
        }
    }

    /// Adds an export that is revoked with the buffer. The caller looks afterwards whether the
    /// buffer is usable: if it has ended, it may not have known of the export.
    pub(crate) fn add_export(&self, source: &Arc<Source>) -> Result {
        let mut exports = self.exports.lock();
        self.life.exported.store(true, Relaxed);
        exports.add(source)
    }

    /// Revokes the exports. The buffer has ended, or is stale.
    pub(super) fn revoke_exports(&self) {
        // Whoever has added one since the state was changed finds out.
        if self.life.exported.load(Relaxed) {
            let exports = self.exports.lock().take();
            if let Some(exports) = exports {
                exports.revoke();
            }
        }
    }
}
