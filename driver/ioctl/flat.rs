// SPDX-License-Identifier: GPL-2.0
//! The calls of paged devices in a module built without them: known, and not supported.

use super::{pending::Pending, Request};
use crate::{
    context::Context,
    failure::Failure,
    uapi::{
        self, pinmap_gpu_counters, pinmap_gpu_info, pinmap_gpu_walk, pinmap_queue_create,
        pinmap_queue_destroy, pinmap_queue_notify, pinmap_queue_query, pinmap_queue_submit,
        pinmap_queue_wait,
    },
};
use kernel::{prelude::*, sync::Arc};

macro_rules! unsupported {
    ($($request:ty = $nr:expr;)*) => {$(
        impl Request for $request {
            const NR: u32 = $nr;

            fn run<'a>(&mut self, _context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
                Err(EOPNOTSUPP.into())
            }
        }
    )*};
}

unsupported! {
    pinmap_gpu_info = uapi::PINMAP_CMD_GPU_INFO;
    pinmap_gpu_counters = uapi::PINMAP_CMD_GPU_COUNTERS;
    pinmap_gpu_walk = uapi::PINMAP_CMD_GPU_WALK;
    pinmap_queue_create = uapi::PINMAP_CMD_QUEUE_CREATE;
    pinmap_queue_destroy = uapi::PINMAP_CMD_QUEUE_DESTROY;
    pinmap_queue_wait = uapi::PINMAP_CMD_QUEUE_WAIT;
    pinmap_queue_query = uapi::PINMAP_CMD_QUEUE_QUERY;
    pinmap_queue_submit = uapi::PINMAP_CMD_QUEUE_SUBMIT;
    pinmap_queue_notify = uapi::PINMAP_CMD_QUEUE_NOTIFY;
}
