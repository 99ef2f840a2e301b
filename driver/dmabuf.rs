// SPDX-License-Identifier: GPL-2.0
//! Exported memory: dma-bufs, and the buffers that imported them here.
//!
//! An [`Export`] is one dma-buf, or what another device of the process was given without one. Host
//! memory that the driver allocated stays with whoever has it. Registered memory belongs to a
//! program and can go away, and memory of a device goes with the device, so whoever has these keeps
//! a list of the exports, and revokes them at the end: importers here are unmapped and go stale,
//! too, and other drivers are told to let go. That is done by the buffer's worker or by whoever
//! ends it, never in an MMU notifier, because it waits.

use crate::{
    logic::span::Span,
    mapping::{Memory, VramRange},
    sys::{
        fs::{
            dmabuf::{Exporter, Operations, Shared, Unpublished},
            import::{Imported, Revoked},
        },
        mm::{
            folios::Folios,
            pages::{Origin, Pages},
            vma::NewArea,
        },
        pci::{bar_pages::BarPages, Function},
    },
    view::{FileView, HostView},
};
use core::{mem, ptr};
use kernel::{
    device, new_mutex,
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::{Arc, Mutex},
};

/// A buffer here that was imported, and so must go stale with what it was imported from.
pub(crate) trait Importer: Revoked {
    /// Unmaps the memory everywhere and goes stale. When it returns, no device reaches the memory
    /// through this buffer. Sleeps.
    fn revoke_import(self: Arc<Self>);
}

fn key(importer: &dyn Importer) -> usize {
    ptr::from_ref(importer).addr()
}

/// A dma-buf's memory, and the buffers here that were imported from it.
pub(crate) struct Export {
    write: bool,
    view: View,
    /// The memory can go away while the dma-buf exists.
    revocable: bool,
    /// The memory is a device's, and so does not outlive its binding.
    of_device: bool,
    state: Pin<KBox<Mutex<State>>>,
    /// Held while the memory is taken back: who comes second waits for the first.
    revoking: Pin<KBox<Mutex<()>>>,
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
    memory: Option<Memory>,
    /// By their addresses.
    importers: RBTree<usize, Arc<dyn Importer>>,
}

/// An [`Export`] with its dma-buf.
pub(crate) type Source = Shared<Export>;

static OPERATIONS: Operations<Export> = Operations::new();

impl Exporter for Export {
    fn operations() -> &'static Operations<Self> {
        &OPERATIONS
    }

    fn memory(&self) -> Result<Arc<dyn Pages>> {
        match self.state.lock().memory.clone().ok_or(ENODEV)? {
            Memory::Host(pages) => Ok(pages),
            Memory::Vram(vram) => on_bus(vram),
        }
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
        let of_device = is_of_a_device(&parts.memory);
        let state = State {
            memory: Some(parts.memory),
            importers: RBTree::new(),
        };
        Ok(Self {
            write,
            view: parts.view,
            revocable: parts.revocable,
            of_device,
            revoking: KBox::pin_init(new_mutex!((), "pinmap_revoking"), GFP_KERNEL_ACCOUNT)?,
            state: KBox::pin_init(new_mutex!(state, "pinmap_export"), GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// Adds a buffer that goes stale with the export. Fails with `ESTALE` if that was revoked.
    pub(crate) fn add_importer(&self, importer: Arc<dyn Importer>) -> Result {
        let node = RBTreeNode::new(key(&*importer), importer, GFP_KERNEL_ACCOUNT)?;
        let mut state = self.state.lock();
        if state.memory.is_none() {
            return Err(ESTALE);
        }
        let replaced = self.revocable.then(|| state.importers.insert(node));
        drop(state);
        drop(replaced);
        Ok(())
    }

    /// Removes a buffer that has let go of the memory.
    pub(crate) fn remove_importer(&self, importer: &dyn Importer) {
        let removed = self.state.lock().importers.remove_node(&key(importer));
        drop(removed);
    }

    /// The memory as `function` reaches it. `ESTALE`: it was revoked; `EREMOTEIO`: the bus does not
    /// let the function reach it; `EINVAL`: a BAR of the function itself.
    ///
    /// A function whose memory it is stays bound during the call: its unbinding takes the memory
    /// back, for which it needs the lock, or the caller sees to it.
    pub(crate) fn memory_for(&self, function: &Function) -> Result<Memory> {
        let state = self.state.lock();
        let pages = match state.memory.clone().ok_or(ESTALE)? {
            Memory::Vram(vram) if is_same(vram.function(), function) => {
                return Ok(Memory::Vram(vram));
            }
            Memory::Vram(vram) => on_bus(vram)?,
            Memory::Host(pages) => pages,
        };
        if let Origin::Bar(giver, _) = pages.origin() {
            if is_same(giver, function) {
                return Err(EINVAL);
            }
            if !function.reaches(giver) {
                return Err(EREMOTEIO);
            }
        }
        Ok(Memory::Host(pages))
    }

    /// Whether nobody has the memory, and can get it: there is no dma-buf any more. If so, nobody
    /// can from here on.
    fn close_if_unused(&self) -> bool {
        let mut state = self.state.lock();
        if state.importers.iter().next().is_some() {
            return false;
        }
        let memory = state.memory.take();
        drop(state);
        drop(memory);
        true
    }
}

/// Takes the memory away from all importers. When it returns, no device of this driver reaches it
/// through `source`. Other drivers let go in their own time; if the memory is a device's, they have
/// done so, too.
pub(crate) fn revoke(source: &Source) {
    begin_to_revoke(source);
    await_revoked(source);
}

/// Takes the memory away from this driver's importers, and tells all others to let go.
fn begin_to_revoke(source: &Source) {
    let export = source.exporter();
    let _one_at_a_time = export.revoking.lock();
    let mut state = export.state.lock();
    let memory = state.memory.take();
    let importers = mem::replace(&mut state.importers, RBTree::new());
    drop(state);
    for importer in importers.values() {
        importer.clone().revoke_import();
    }
    source.invalidate(export.of_device);
    // Importers that have not let go yet have references of their own.
    drop(memory);
}

/// Waits until other drivers have let go of memory of a device.
fn await_revoked(source: &Source) {
    if source.exporter().of_device {
        source.await_importers();
    }
}

fn is_of_a_device(memory: &Memory) -> bool {
    match memory {
        Memory::Vram(_) => true,
        Memory::Host(pages) => !matches!(pages.origin(), Origin::Host),
    }
}

fn is_same(a: &Function, b: &Function) -> bool {
    let (a, b): (&device::Device, &device::Device) = (a.as_ref(), b.as_ref());
    ptr::eq(a, b)
}

fn on_bus(vram: Arc<dyn VramRange>) -> Result<Arc<dyn Pages>> {
    let whole = Span::new(0, vram.span().length()).map_err(|_| EINVAL)?;
    vram.on_bus(whole)
}

/// Returns `part` of the BAR `bar` of `function`, which `keep` keeps, to be exported. `EINVAL`: it
/// leaves the BAR.
#[allow(unsafe_code, reason = "only here it is known when exports are revoked")]
pub(crate) fn pages_of_bar<K: Send + Sync + 'static>(
    function: &Function,
    bar: u32,
    part: Span,
    keep: K,
) -> Result<Arc<dyn Pages>> {
    // SAFETY: Exports of memory of a device are revoked before its function is unbound, and
    // `revoke` waits until nobody has it mapped.
    Ok(unsafe { BarPages::new(function, bar, part, keep)? })
}

/// Where imported memory comes from.
pub(crate) enum Giver {
    /// An export of this driver.
    Export(Arc<Source>),
    /// A dma-buf of another driver.
    Foreign(Arc<Imported>),
}

impl Giver {
    /// Has `importer` go stale when the memory is taken back. `ESTALE`: it was.
    pub(crate) fn add_importer<T: Importer + 'static>(&self, importer: Arc<T>) -> Result {
        match self {
            Self::Export(source) => source.exporter().add_importer(importer),
            Self::Foreign(imported) => imported.set_importer(importer),
        }
    }

    /// Forgets an importer that has let go of the memory.
    pub(crate) fn remove_importer(&self, importer: &dyn Importer) {
        match self {
            Self::Export(source) => source.exporter().remove_importer(importer),
            Self::Foreign(imported) => imported.forget_importer(),
        }
    }

    /// The `memory` that was imported as it can be exported in turn. `EOPNOTSUPP`: it belongs to
    /// another driver or device, which exports it itself, and which could not wait for those who
    /// have it at second hand.
    pub(crate) fn parts(&self, memory: Memory) -> Result<Parts> {
        let Self::Export(source) = self else {
            return Err(EOPNOTSUPP);
        };
        let export = source.exporter();
        if export.of_device {
            return Err(EOPNOTSUPP);
        }
        Ok(Parts {
            memory,
            view: export.view.clone(),
            revocable: export.revocable,
        })
    }
}

/// The memory of a buffer as it can be exported.
pub(crate) struct Parts {
    pub(crate) memory: Memory,
    pub(crate) view: View,
    /// See [`Exporter::is_revocable`].
    pub(crate) revocable: bool,
}

/// Makes a dma-buf of `length` bytes, whose descriptor user space does not know yet.
pub(crate) fn export(parts: Parts, write: bool, length: u64) -> Result<(Arc<Source>, Unpublished)> {
    Source::new(Export::new(parts, write)?, length)
}

/// Gives memory to devices of this driver alone, without a dma-buf.
pub(crate) fn share(parts: Parts, write: bool) -> Result<Arc<Source>> {
    Source::unshared(Export::new(parts, write)?)
}

/// The exports of a buffer, to be revoked with it. Adding one drops those that nobody uses any
/// more.
#[derive(Default)]
pub(crate) struct Exports(KVVec<Arc<Source>>);

impl Exports {
    /// Adds an export that can be revoked.
    pub(crate) fn add(&mut self, source: &Arc<Source>) -> Result {
        if self.0.len() == self.0.capacity() {
            self.0
                .retain(|known| !known.is_released() || !known.exporter().close_if_unused());
        }
        Ok(self.0.push(source.clone(), GFP_KERNEL_ACCOUNT)?)
    }

    /// Takes the list, if there is any export.
    pub(crate) fn take(&mut self) -> Option<Self> {
        (!self.0.is_empty()).then(|| mem::take(self))
    }

    /// Revokes all of them.
    pub(crate) fn revoke(self) {
        for source in &self.0 {
            begin_to_revoke(source);
        }
        for source in &self.0 {
            await_revoked(source);
        }
    }
}
