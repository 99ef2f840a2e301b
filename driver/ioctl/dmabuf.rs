// SPDX-License-Identifier: GPL-2.0
//! EXPORT, IMPORT and SYNC.

use super::{
    pending::{check_flags, done, errno, Pending, Publish},
    Request,
};
use crate::{
    buffer::{Backing, Buffer},
    context::Context,
    dmabuf,
    failure::Failure,
    logic::{request, span::Span},
    mapping::Memory,
    sys::{
        fs::dmabuf::{Exporter, Unpublished},
        mm::cache,
    },
    uapi::{self, pinmap_export, pinmap_import, pinmap_sync},
};
use kernel::{prelude::*, sync::Arc};

/// A dma-buf whose descriptor the caller has not been told.
struct FreshExport(Option<Unpublished>);

impl Publish for FreshExport {
    fn publish(&mut self) -> Result {
        if let Some(unpublished) = self.0.take() {
            unpublished.publish();
        }
        Ok(())
    }
}

impl Request for pinmap_export {
    const NR: u32 = uapi::PINMAP_CMD_EXPORT;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags((self.flags & !uapi::PINMAP_EXPORT_WRITE) | self.__reserved)?;
        let write = self.flags & uapi::PINMAP_EXPORT_WRITE != 0;
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
        self.out_fd = unpublished.descriptor();
        let fresh = FreshExport(Some(unpublished));
        Ok(Pending::Other(KBox::new(fresh, GFP_KERNEL_ACCOUNT)?))
    }
}

impl Request for pinmap_import {
    const NR: u32 = uapi::PINMAP_CMD_IMPORT;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags)?;
        context.check_caller()?;
        let (source, length) = dmabuf::Source::from_fd(self.fd)?;
        let export = source.exporter();
        let pages = export.memory().map_err(|_| ESTALE)?;
        let span = Span::new(0, length).map_err(errno)?;
        let write = export.is_writable();
        let backing = Backing::Import(pages, source.clone());
        let account = context.account().clone();
        let events = context.events().clone();
        let buffer = Buffer::allocated(span, write, backing, account, events)?;
        // `reserved` ends the buffer, whatever fails from here on.
        let reserved = context.reserve(&buffer)?;
        export.add_importer(buffer.clone())?;
        Buffer::go_live(&buffer)?;
        self.out_handle = reserved.handle();
        self.out_length = length;
        self.out_flags = if write { uapi::PINMAP_EXPORT_WRITE } else { 0 };
        Ok(Pending::Registration {
            guests: None,
            reserved,
            claim: None,
        })
    }
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
        let memory = buffer
            .with_backing(Backing::memory)
            .map_err(|failure| failure.errno)?;
        if context.device().domain().is_coherent() && !plan.always {
            return Ok(Pending::Done);
        }
        match memory {
            // `pages` keeps them pinned, even if the buffer ends.
            Memory::Host(pages) => done(cache::flush(&*pages, plan.part)),
            // The CPU does not cache VRAM.
            Memory::Vram(_) => Ok(Pending::Done),
        }
    }
}
