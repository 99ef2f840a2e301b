// SPDX-License-Identifier: GPL-2.0
//! EXPORT, IMPORT and SYNC: memory that others have, too.
//!
//! Memory that the driver allocated belongs to whoever has it. Registered memory belongs to a program and
//! can go away, so its buffer knows the exports, and revokes them and what was imported from them: never
//! from an MMU notifier, but from the buffer's worker or when it ends.

use crate::{
    buffer::{Backing, Buffer},
    context::Context,
    failure::Failure,
    logic::{request, span::Span},
    mapping::Memory,
    registration::{check_flags, errno, Pending, Publish},
    sys::{
        cache, compat,
        dmabuf::{Exporter, Operations, Shared, Unpublished},
        folios::Folios,
        pages::Pages,
        uapi::{self, pinmap_export, pinmap_import, pinmap_sync},
        vma::NewArea,
    },
    view::{FileView, HostView},
};
use core::mem;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};

/// Memory that was exported, and who has imported it here.
pub(crate) struct Export {
    write: bool,
    view: View,
    /// Can go away.
    revocable: bool,
    state: Pin<KBox<Mutex<State>>>,
}

/// How it can be mapped by CPUs.
#[derive(Clone)]
enum View {
    /// Not at all: it can go away, and who has it has it mapped.
    None,
    /// What the driver allocated.
    Host(Arc<Folios>),
    /// Pages of a file.
    File(Arc<FileView>),
}

struct State {
    /// `None` once it was revoked.
    pages: Option<Arc<dyn Pages>>,
    /// Buffers that go stale with it.
    imports: KVec<Arc<Buffer>>,
}

/// Memory with its dma-buf.
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
            imports: KVec::new(),
        };
        Ok(Self {
            write,
            view: parts.view,
            revocable: parts.revocable,
            state: KBox::pin_init(new_mutex!(state, "pinmap_export"), GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// Has `import` go stale with it; `ESTALE` if it has gone already.
    fn add_import(&self, import: &Arc<Buffer>) -> Result {
        let mut state = self.state.lock();
        if state.pages.is_none() {
            return Err(compat::stale());
        }
        if self.revocable {
            state.imports.push(import.clone(), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(())
    }

    /// It has let go of the memory.
    pub(crate) fn forget_import(&self, import: &Buffer) {
        let mut state = self.state.lock();
        let known = |other: &Arc<Buffer>| core::ptr::eq(&**other, import);
        let index = state.imports.iter().position(known);
        let forgotten = index.and_then(|index| state.imports.remove(index).ok());
        drop(state);
        drop(forgotten);
    }

    /// Whether nobody has imported it here.
    fn is_unused(&self) -> bool {
        self.state.lock().imports.is_empty()
    }
}

/// Takes the memory away from everybody. When it returns, no device of this driver can reach it by way of
/// `source`.
fn revoke(source: &Source) {
    let mut state = source.exporter().state.lock();
    let pages = state.pages.take();
    let imports = mem::take(&mut state.imports);
    drop(state);
    for import in &imports {
        Buffer::revoke_import(import);
        // Who is mapping it undoes that.
        import.await_mappers();
    }
    source.invalidate();
    // Whoever imported them and has not let go of them yet has them still.
    drop(pages);
}

/// What of a buffer can be exported.
pub(crate) struct Parts {
    pages: Arc<dyn Pages>,
    view: View,
    revocable: bool,
}

impl Backing {
    /// What others can be given; `EOPNOTSUPP`: nothing.
    fn parts(&self) -> Result<Parts> {
        let (view, revocable) = match self {
            Self::User(_) => (View::None, true),
            Self::Host(folios, _) => (View::Host(folios.clone()), false),
            Self::File(pages) => (View::File(FileView::new(pages)?), false),
            Self::Import(_, source) => {
                let export = source.exporter();
                (export.view.clone(), export.revocable)
            }
            Self::Local(..) => (View::None, false),
        };
        match self.memory() {
            Memory::Host(pages) => Ok(Parts {
                pages,
                view,
                revocable,
            }),
            Memory::Local(_) => Err(compat::unsupported()),
        }
    }
}

/// The exports of a buffer that go with it. Those of whom nobody has anything any more are forgotten.
#[derive(Default)]
pub(crate) struct Exports(KVec<Arc<Source>>);

impl Exports {
    fn add(&mut self, source: &Arc<Source>) -> Result {
        self.0
            .retain(|known| !(known.is_released() && known.exporter().is_unused()));
        Ok(self.0.push(source.clone(), GFP_KERNEL_ACCOUNT)?)
    }

    /// Those that there are, if any.
    pub(crate) fn take(&mut self) -> Option<Self> {
        (!self.0.is_empty()).then(|| core::mem::take(self))
    }

    /// Takes the memory away from everybody who has it by them.
    pub(crate) fn revoke(self) {
        for source in &self.0 {
            revoke(source);
        }
    }
}

/// A dma-buf whose descriptor nobody has been told.
struct Fresh(Option<Unpublished>);

impl Publish for Fresh {
    fn publish(&mut self) -> Result {
        if let Some(unpublished) = self.0.take() {
            unpublished.publish();
        }
        Ok(())
    }
}

/// EXPORT.
pub(crate) fn export(
    context: &Arc<Context>,
    args: &mut pinmap_export,
) -> core::result::Result<Pending, Failure> {
    check_flags((args.flags & !uapi::PINMAP_EXPORT_WRITE) | args.__reserved)?;
    let write = args.flags & uapi::PINMAP_EXPORT_WRITE != 0;
    context.check_caller()?;
    let buffer = context.find(args.handle)?;
    if write && !buffer.writable() {
        return Err(EACCES.into());
    }
    let parts = buffer.with_backing(Backing::parts)??;
    let revocable = parts.revocable;
    let exported = Export::new(parts, write)?;
    let (source, unpublished) = Source::new(exported, buffer.span().length())?;
    if revocable {
        buffer.exports().lock().add(&source)?;
        // If it went away before it was known there, nobody else revokes it.
        if let Err(failure) = buffer.check_usable() {
            revoke(&source);
            return Err(failure);
        }
    }
    args.out_fd = unpublished.descriptor();
    let fresh = Fresh(Some(unpublished));
    Ok(Pending::Other(KBox::new(fresh, GFP_KERNEL_ACCOUNT)?))
}

/// IMPORT.
pub(crate) fn import(
    context: &Arc<Context>,
    args: &mut pinmap_import,
) -> core::result::Result<Pending, Failure> {
    check_flags(args.flags)?;
    context.check_caller()?;
    let (source, length) = Source::from_fd(args.fd)?;
    let export = source.exporter();
    let pages = export.memory().map_err(|_| compat::stale())?;
    let span = Span::new(0, length).map_err(errno)?;
    let write = export.write;
    let backing = Backing::Import(pages, source.clone());
    let account = context.account().clone();
    let buffer = Buffer::allocated(span, write, backing, account, context.events().clone())?;
    // From here on it is ended, whatever fails.
    let reserved = context.reserve(&buffer)?;
    export.add_import(&buffer)?;
    Buffer::go_live(&buffer)?;
    args.out_handle = reserved.handle();
    args.out_length = length;
    args.out_flags = if write { uapi::PINMAP_EXPORT_WRITE } else { 0 };
    Ok(Pending::Registration(reserved, None))
}

/// SYNC.
pub(crate) fn sync(context: &Arc<Context>, args: &mut pinmap_sync) -> Result {
    let plan = request::sync(args.flags, args.offset, args.length).map_err(errno)?;
    let buffer = context.find(args.handle)?;
    if plan.part.last() >= buffer.span().length() {
        return Err(EINVAL);
    }
    let memory = buffer
        .with_backing(|backing| backing.memory())
        .map_err(|failure| failure.errno)?;
    if context.device().domain().is_coherent() && !plan.always {
        return Ok(());
    }
    match memory {
        // They stay pinned meanwhile, whatever becomes of the buffer.
        Memory::Host(pages) => cache::flush(&*pages, plan.part),
        // No cache holds it.
        Memory::Local(_) => Ok(()),
    }
}
