// SPDX-License-Identifier: GPL-2.0
//! GPU_INFO, GPU_COUNTERS and GPU_WALK.

use super::{
    pending::{check_flags, done, Pending},
    Request,
};
use crate::{
    context::Context,
    failure::Failure,
    gpu::{member::Member, Gpu},
    uapi::{self, pinmap_gpu_counters, pinmap_gpu_info, pinmap_gpu_walk},
};
use kernel::{prelude::*, sync::Arc};

/// Finds the paged device of `context`, and the context's part of it.
pub(super) fn gpu_of(context: &Context) -> Result<(&Arc<Gpu>, &Arc<Member>)> {
    let gpu = context.device().gpu()?;
    gpu.check_here()?;
    let member = context.member().ok_or(ENODEV)?;
    Ok((gpu, member))
}

impl Request for pinmap_gpu_info {
    const NR: u32 = uapi::PINMAP_CMD_GPU_INFO;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags)?;
        context.device().gpu()?.describe(self);
        Ok(Pending::Done)
    }
}

impl Request for pinmap_gpu_counters {
    const NR: u32 = uapi::PINMAP_CMD_GPU_COUNTERS;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags | self.__reserved)?;
        context.device().gpu()?.count(self);
        Ok(Pending::Done)
    }
}

impl Request for pinmap_gpu_walk {
    const NR: u32 = uapi::PINMAP_CMD_GPU_WALK;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags)?;
        done(gpu_of(context)?.1.vm().walk(self))
    }
}
