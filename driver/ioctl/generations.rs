// SPDX-License-Identifier: GPL-2.0
//! GENERATIONS.

use super::{
    pending::{check_flags, Pending},
    Request,
};
use crate::{
    context::Context,
    failure::Failure,
    logic::PAGE_SIZE,
    uapi::{self, pinmap_generations},
};
use kernel::{prelude::*, sync::Arc};

impl Request for pinmap_generations {
    const NR: u32 = uapi::PINMAP_CMD_GENERATIONS;
    const WAKES: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags)?;
        context.check_caller()?;
        let generations = context.events().generations();
        self.out_offset = generations.offset(context.account(), context.mmap_offsets())?;
        self.out_length = PAGE_SIZE;
        Ok(Pending::Done)
    }
}
