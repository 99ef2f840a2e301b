// SPDX-License-Identifier: GPL-2.0
//! EXPORT, IMPORT and SYNC.

use super::{
    pending::{check_flags, done, errno, Pending, Publish},
    Request,
};
use crate::{
    buffer::{Backing, Buffer},
    claim::Claim,
    context::{Context, ReservedHandle},
    dmabuf::{self, Giver},
    failure::Failure,
    logic::{request, span::Span},
    mapping::Memory,
    sys::{
        fs::{
            dmabuf::{Exporter, Unpublished},
            import::DmaBuf,
        },
        mm::{
            cache,
            pages::{Origin, Pages},
        },
    },
    uapi::{self, pinmap_export, pinmap_fail, pinmap_import, pinmap_sync},
    view::Loan,
};
use kernel::{prelude::*, sync::Arc};

/// A dma-buf whose descriptor the caller has not been told, and the claim of a device whose BAR it
/// is.
struct FreshExport(Option<(Unpublished, Option<Claim>)>);

impl Publish for FreshExport {
    fn publish(&mut self) -> Result {
        if let Some((unpublished, claim)) = self.0.take() {
            unpublished.publish();
            if let Some(claim) = claim {
                claim.keep();
            }
        }
        Ok(())
    }
}

impl Request for pinmap_export {
    const NR: u32 = uapi::PINMAP_CMD_EXPORT;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        let known = uapi::PINMAP_EXPORT_WRITE | uapi::PINMAP_EXPORT_BAR;
        check_flags((self.flags & !known) | self.__reserved)?;
        let write = self.flags & uapi::PINMAP_EXPORT_WRITE != 0;
        if self.flags & uapi::PINMAP_EXPORT_BAR != 0 {
            return self.export_bar(context, write);
        }
        if self.length != 0 {
            return Err(EINVAL.into());
        }
        context.check_caller()?;
        let buffer = context.find(self.handle)?;
        if write && !buffer.writable() {
            return Err(EACCES.into());
        }
        let parts = buffer.with_backing(Backing::parts)??;
        let (source, unpublished) = dmabuf::export(parts, write, buffer.span().length())?;
        if source.exporter().is_revocable() {
            buffer.add_export(&source)?;
            // If the buffer went stale before it knew of the export, nobody else revokes it.
            if let Err(failure) = buffer.check_usable() {
                dmabuf::revoke(&source);
                return Err(failure);
            }
        }
        self.answer(unpublished, None)
    }
}

impl pinmap_export {
    /// Exports a part of a BAR.
    fn export_bar<'a>(
        &mut self,
        context: &'a Arc<Context>,
        write: bool,
    ) -> Result<Pending<'a>, Failure> {
        let part = Span::new(self.handle, self.length).map_err(errno)?;
        context.check_caller()?;
        let flat = context.device().flat()?;
        let parts = flat.parts(part)?;
        let claim = Claim::new(context)?;
        let (source, unpublished) = dmabuf::export(parts, write, part.length())?;
        flat.add_export(context.id(), &source)?;
        self.answer(unpublished, Some(claim))
    }

    fn answer<'a>(
        &mut self,
        unpublished: Unpublished,
        claim: Option<Claim>,
    ) -> Result<Pending<'a>, Failure> {
        self.out_fd = unpublished.descriptor();
        let fresh = FreshExport(Some((unpublished, claim)));
        Ok(Pending::Other(KBox::new(fresh, GFP_KERNEL_ACCOUNT)?))
    }
}

impl Request for pinmap_import {
    const NR: u32 = uapi::PINMAP_CMD_IMPORT;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags)?;
        context.check_caller()?;
        let reserved = match dmabuf::Source::from_fd(self.fd)? {
            Some(source) => {
                let export = source.exporter();
                let memory = export.memory_for(context.device().function())?;
                let write = export.is_writable();
                self.import(context, write, memory, Giver::Export(source))?
            }
            None => {
                let dma_buf = DmaBuf::from_fd(self.fd)?;
                context.device().while_bound(|| {
                    let imported = context.device().import(dma_buf, context.account())?;
                    let memory = Memory::Host(imported.clone());
                    let write = imported.writable();
                    self.import(context, write, memory, Giver::Foreign(imported))
                })?
            }
        };
        Ok(Pending::Registration {
            guests: None,
            reserved,
            claim: None,
        })
    }

    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        Some(&mut self.fail)
    }
}

impl pinmap_import {
    fn import<'a>(
        &mut self,
        context: &'a Context,
        write: bool,
        memory: Memory,
        giver: Giver,
    ) -> Result<ReservedHandle<&'a Context>, Failure> {
        let span = Span::new(0, memory.length()).map_err(errno)?;
        let (buffer, reserved) = import(context, span, write, memory, giver)?;
        self.out_handle = reserved.handle();
        self.out_offset = buffer.with_backing(Backing::offset)?;
        context
            .mmap_offsets()
            .set_handle(self.out_offset, self.out_handle);
        self.out_length = span.length();
        self.out_flags = if write { uapi::PINMAP_EXPORT_WRITE } else { 0 };
        Ok(reserved)
    }
}

/// Makes a live buffer of memory that `giver` may take back, called by a handle that is reserved.
pub(super) fn import<'a>(
    context: &'a Context,
    span: Span,
    write: bool,
    memory: Memory,
    giver: Giver,
) -> Result<(Arc<Buffer>, ReservedHandle<&'a Context>), Failure> {
    let account = context.account().clone();
    let events = context.events().clone();
    let loan = match &memory {
        Memory::Vram(vram) => {
            let loan = Loan::new(context, vram.clone(), write)?;
            Some(Arc::new(loan, GFP_KERNEL_ACCOUNT)?)
        }
        Memory::Host(_) => None,
    };
    let backing = Backing::Import(memory, giver, loan);
    let buffer = Buffer::allocated(span, write, backing, account, events)?;
    // `reserved` ends the buffer, whatever fails from here on.
    let reserved = context.reserve(&buffer)?;
    buffer.subscribe()?;
    Buffer::go_live(&buffer)?;
    Ok((buffer, reserved))
}

impl Request for pinmap_sync {
    const NR: u32 = uapi::PINMAP_CMD_SYNC;
    const ANSWERS: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        let plan = request::sync(self.flags, self.offset, self.length).map_err(errno)?;
        let buffer = context.find(self.handle)?;
        if plan.part.last() >= buffer.span().length() {
            return Err(EINVAL.into());
        }
        // No reference to memory of another driver: it may be let go of only while the function is
        // bound.
        let own = |backing: &Backing| (!backing.is_foreign()).then(|| backing.memory());
        let memory = buffer.with_backing(own).map_err(|failure| failure.errno)?;
        if context.device().domain().is_coherent() && !plan.always {
            return Ok(Pending::Done);
        }
        match memory {
            // Its exporter does that for who has it attached.
            None => Err(EOPNOTSUPP.into()),
            // `pages` keeps them pinned, even if the buffer ends.
            Some(Memory::Host(pages)) if matches!(pages.origin(), Origin::Host) => {
                done(cache::flush(&*pages, plan.part))
            }
            // The CPU does not cache memory of devices.
            Some(Memory::Host(_) | Memory::Vram(_)) => Ok(Pending::Done),
        }
    }
}
