// SPDX-License-Identifier: GPL-2.0
//! Exported memory: dma-bufs, and the buffers that imported them here.
//!
//! An [`Export`] is one dma-buf. Memory that the driver allocated stays with whoever has it.
//! Registered memory belongs to a program and can go away, so its buffer keeps a list of its
//! exports, and revokes them when it ends or goes stale: importers here are unmapped and go stale,
//! too, and other drivers are told to let go. That is done by the buffer's worker or by whoever
//! ends it, never in an MMU notifier, because it waits.

use crate::{
    sys::{
        fs::dmabuf::{Exporter, Operations, Shared, Unpublished},
        mm::{folios::Folios, pages::Pages, vma::NewArea},
    },
    view::{FileView, HostView},
};
use core::mem;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};

/// A buffer here that was imported from an export, and so must go stale with it.
pub(crate) trait Importer: Send + Sync {
    /// Unmaps the memory everywhere and goes stale. When it returns, no device reaches the memory
    /// through this buffer. Sleeps.
    fn revoke_import(self: Arc<Self>);
}

/// A dma-buf's memory, and the buffers here that were imported from it.
pub(crate) struct Export {
    write: bool,
    view: View,
    /// The memory can go away while the dma-buf exists.
    revocable: bool,
    state: Pin<KBox<Mutex<State>>>,
}

/// How `mmap()` of the dma-buf shows the memory.
#[derive(Clone)]
pub(crate) enum View {
    /// Not mappable: registered memory can vanish, and its owner has it mapped already.
    None,
    /// Memory that the driver allocated.
    Host(Arc<Folios>),
    File(Arc<FileView>),
}

struct State {
    /// `None` once it was revoked.
    pages: Option<Arc<dyn Pages>>,
    importers: KVec<Arc<dyn Importer>>,
}

/// An [`Export`] with its dma-buf.
pub(crate) type Source = Shared<Export>;

static OPERATIONS: Operations<Export> = Operations::new();

impl Exporter for Export {
    fn operations() -> &'static Operations<Self> {
        &OPERATIONS
    }

    fn memory(&self) -> Result<Arc<dyn Pages>> {
        self.state.lock().pages.clone().ok_or(ENODEV)
    }

    fn is_writable(&self) -> bool {
        self.write
    }

    fn is_revocable(&self) -> bool {
        self.revocable
    }

    fn view(&self, area: NewArea<'_>) -> Result {
        if !area.is_shared() {
            return Err(EINVAL);
        }
        if area.is_executable() {
            return Err(EACCES);
        }
        if !self.write {
            if area.is_writable() {
                return Err(EACCES);
            }
            area.forbid_writing();
        }
        match &self.view {
            View::None => return Err(EINVAL),
            View::Host(folios) => {
                area.view_pages(Arc::new(HostView::new(folios, 0), GFP_KERNEL_ACCOUNT)?);
            }
            View::File(file) => FileView::show(file, area)?,
        }
        Ok(())
    }
}

impl Export {
    fn new(parts: Parts, write: bool) -> Result<Self> {
        let state = State {
            pages: Some(parts.pages),
            importers: KVec::new(),
        };
        Ok(Self {
            write,
            view: parts.view,
            revocable: parts.revocable,
            state: KBox::pin_init(new_mutex!(state, "pinmap_export"), GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// Adds a buffer that goes stale with the export. Fails with `ESTALE` if that was revoked.
    pub(crate) fn add_importer(&self, importer: Arc<dyn Importer>) -> Result {
        let mut state = self.state.lock();
        if state.pages.is_none() {
            return Err(ESTALE);
        }
        if self.revocable {
            state.importers.push(importer, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(())
    }

    /// Removes a buffer that has let go of the memory.
    pub(crate) fn remove_importer(&self, importer: &dyn Importer) {
        let mut state = self.state.lock();
        let wanted = |other: &Arc<dyn Importer>| core::ptr::addr_eq(&raw const **other, importer);
        let index = state.importers.iter().position(wanted);
        let removed = index.and_then(|index| state.importers.remove(index).ok());
        drop(state);
        drop(removed);
    }

    /// The memory as a buffer that was imported from this export can export it in turn.
    pub(crate) fn parts(&self, pages: Arc<dyn Pages>) -> Parts {
        Parts {
            pages,
            view: self.view.clone(),
            revocable: self.revocable,
        }
    }

    fn has_importers(&self) -> bool {
        !self.state.lock().importers.is_empty()
    }
}

/// Takes the memory away from all importers. When it returns, no device of this driver reaches it
/// through `source`. Other drivers let go in their own time.
pub(crate) fn revoke(source: &Source) {
    let mut state = source.exporter().state.lock();
    let pages = state.pages.take();
    let importers = mem::take(&mut state.importers);
    drop(state);
    for importer in &importers {
        importer.clone().revoke_import();
    }
    source.invalidate();
    // Importers that have not let go yet have references of their own.
    drop(pages);
}

/// The memory of a buffer as it can be exported.
pub(crate) struct Parts {
    pub(crate) pages: Arc<dyn Pages>,
    pub(crate) view: View,
    /// See [`Exporter::is_revocable`].
    pub(crate) revocable: bool,
}

/// Makes a dma-buf of `length` bytes, whose descriptor user space does not know yet.
pub(crate) fn export(parts: Parts, write: bool, length: u64) -> Result<(Arc<Source>, Unpublished)> {
    Source::new(Export::new(parts, write)?, length)
}

/// The exports of a buffer, to be revoked with it. Adding one drops those that nobody uses any
/// more.
#[derive(Default)]
pub(crate) struct Exports(KVec<Arc<Source>>);

impl Exports {
    /// Adds an export that can be revoked.
    pub(crate) fn add(&mut self, source: &Arc<Source>) -> Result {
        self.0
            .retain(|known| !known.is_released() || known.exporter().has_importers());
        Ok(self.0.push(source.clone(), GFP_KERNEL_ACCOUNT)?)
    }

    /// Takes the list, if there is any export.
    pub(crate) fn take(&mut self) -> Option<Self> {
        (!self.0.is_empty()).then(|| mem::take(self))
    }

    /// Revokes all of them.
    pub(crate) fn revoke(self) {
        for source in &self.0 {
            revoke(source);
        }
    }
}
