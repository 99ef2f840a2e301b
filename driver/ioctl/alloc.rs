// SPDX-License-Identifier: GPL-2.0
//! ALLOC.

use super::{
    pending::{errno, Pending},
    Request,
};
use crate::{
    allocation,
    buffer::{Backing, Buffer},
    claim::Claim,
    context::Context,
    failure::Failure,
    logic::request,
    sys::mm::folios::Kind,
    uapi::{self, pinmap_alloc, pinmap_fail},
    view::{MmapOffsets, MmapSource},
};
use kernel::{prelude::*, sync::Arc};

impl Request for pinmap_alloc {
    const NR: u32 = uapi::PINMAP_CMD_ALLOC;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        let plan = request::alloc(self.flags, self.__reserved, self.length, self.node);
        let plan = plan.map_err(errno)?;
        let backend = context.device().backend();
        if plan.vram && !backend.has_vram() {
            return Err(EOPNOTSUPP.into());
        }
        context.check_caller()?;
        let show =
            |shown| MmapOffsets::add(context.mmap_offsets(), plan.span.length(), shown, true);
        // Of an integrated device all memory is the host's, and disks take that as it is.
        let (backing, claim) = if plan.vram && !backend.is_integrated() {
            let claim = Claim::new(context)?;
            let memory = backend.allocate_vram(plan.span.length(), plan.p2pdma);
            let memory = memory.map_err(|errno| match errno {
                ENOSPC => Failure::at(errno, uapi::PINMAP_FAIL_FULL, 0),
                _ => errno.into(),
            })?;
            let mmap_offset = show(MmapSource::Device(memory.clone().shown()))?;
            (Backing::Vram(memory, mmap_offset), Some(claim))
        } else {
            let kind = Kind {
                write_combined: plan.write_combined,
                node: plan.node,
            };
            let pages = plan.span.pages();
            let folios = allocation::host_memory_of_kind(context.account(), pages, kind)?;
            let mmap_offset = show(MmapSource::Host(folios.clone()))?;
            (Backing::Host(folios, mmap_offset), None)
        };
        let offset = backing.offset();
        let account = context.account().clone();
        let events = context.events().clone();
        let buffer = Buffer::allocated(plan.span, true, backing, account, events)?;
        if plan.portable {
            buffer.make_portable();
        }
        let reserved = context.reserve(&buffer)?;
        Buffer::go_live(&buffer)?;
        context.mmap_offsets().set_handle(offset, reserved.handle());
        self.out_handle = reserved.handle();
        self.out_offset = offset;
        Ok(Pending::Registration {
            guests: None,
            reserved,
            claim,
        })
    }

    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        Some(&mut self.fail)
    }
}
