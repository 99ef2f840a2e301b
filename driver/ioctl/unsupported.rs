// SPDX-License-Identifier: GPL-2.0
//! The calls of paged devices in a module built without them, and of managed memory on a kernel
//! that cannot have it: known, and not supported.

use super::{pending::Pending, Request};
use crate::{
    context::Context,
    failure::Failure,
    uapi::{self, pinmap_fail},
};
use kernel::{prelude::*, sync::Arc};

macro_rules! unsupported {
    ($($request:ident = $nr:ident $(, $fail:ident)?;)*) => {$(
        impl Request for uapi::$request {
            const NR: u32 = uapi::$nr;

            fn run<'a>(&mut self, _context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
                Err(EOPNOTSUPP.into())
            }

            $(fn detail(&mut self) -> Option<&mut pinmap_fail> {
                Some(&mut self.$fail)
            })?
        }
    )*};
}

#[cfg(pinmap_flat)]
unsupported! {
    pinmap_gpu_info = PINMAP_CMD_GPU_INFO;
    pinmap_gpu_counters = PINMAP_CMD_GPU_COUNTERS;
    pinmap_gpu_walk = PINMAP_CMD_GPU_WALK;
    pinmap_queue_create = PINMAP_CMD_QUEUE_CREATE;
    pinmap_queue_destroy = PINMAP_CMD_QUEUE_DESTROY;
    pinmap_queue_wait = PINMAP_CMD_QUEUE_WAIT;
    pinmap_queue_query = PINMAP_CMD_QUEUE_QUERY;
    pinmap_queue_submit = PINMAP_CMD_QUEUE_SUBMIT;
    pinmap_queue_notify = PINMAP_CMD_QUEUE_NOTIFY;
}

unsupported! {
    pinmap_manage = PINMAP_CMD_MANAGE, fail;
    pinmap_prefetch = PINMAP_CMD_PREFETCH, fail;
    pinmap_advise = PINMAP_CMD_ADVISE, fail;
    pinmap_residency = PINMAP_CMD_RESIDENCY, fail;
    pinmap_statistics = PINMAP_CMD_STATISTICS;
    pinmap_budget = PINMAP_CMD_BUDGET;
}
