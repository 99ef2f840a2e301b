// SPDX-License-Identifier: GPL-2.0
//! MAP and UNMAP.

use super::{
    pending::{check_flags, done, errno, FreshMapping, Pending},
    Request,
};
use crate::{
    claim::Claim,
    context::{Context, SharedBuffers},
    failure::Failure,
    logic::{pte::Access, request},
    uapi::{self, pinmap_fail, pinmap_map, pinmap_unmap},
};
use kernel::{prelude::*, sync::Arc};

impl Request for pinmap_map {
    const NR: u32 = uapi::PINMAP_CMD_MAP;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        let plan = request::map(
            self.flags,
            self.__reserved,
            self.device_addr,
            self.address_bits,
        )
        .map_err(errno)?;
        let buffer = context.find(self.handle)?;
        if plan.access.is_write() && !buffer.writable() {
            return Err(EACCES.into());
        }
        if plan.access == Access::Fetch && !context.device().backend().has_programs() {
            return Err(EOPNOTSUPP.into());
        }
        let target = plan.target(buffer.span()).map_err(errno)?;
        buffer.check_usable()?;
        let claim = Claim::new(context)?;
        let (device_addr, id) =
            buffer.map_unpublished(context.tenant(self.handle), target, plan.access)?;
        self.device_addr = device_addr;
        let mut fresh = FreshMapping::new(&buffer, id);
        // The first mapping of a portable allocation shares it. Portable registrations were shared
        // when they were registered.
        if buffer.is_portable() && !buffer.is_user_memory() && buffer.is_home(context.events()) {
            let write = plan.access.is_write();
            if let Some(guests) = SharedBuffers::share(context, &buffer, target, write)? {
                fresh.shared(context, guests);
            }
        }
        // If the handle was a guest's and was released since, its mappings were removed before this
        // one was made.
        context.find(self.handle)?;
        Ok(Pending::Mapping(fresh, claim))
    }

    fn detail(&mut self) -> Option<&mut pinmap_fail> {
        Some(&mut self.fail)
    }
}

impl Request for pinmap_unmap {
    const NR: u32 = uapi::PINMAP_CMD_UNMAP;
    const ANSWERS: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags)?;
        let buffer = context.find(self.handle)?;
        done(buffer.unmap(context.space(), self.device_addr))
    }
}
