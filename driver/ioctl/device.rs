// SPDX-License-Identifier: GPL-2.0
//! GET_INFO, GET_RESERVED, GET_TOTALS, SET_EVENTFD, RESET and STAY_AWAKE.

use super::{
    pending::{check_flags, done, Pending},
    Request,
};
use crate::{
    claim::Claim,
    context::Context,
    failure::Failure,
    module_parameters,
    sys::{
        fs::eventfd::EventFd,
        task::{self, account::Account},
    },
    uapi::{
        self, pinmap_get_totals, pinmap_info, pinmap_reserved, pinmap_reset, pinmap_set_eventfd,
        pinmap_stay_awake,
    },
};
use kernel::{prelude::*, sync::Arc};

impl Request for pinmap_info {
    const NR: u32 = uapi::PINMAP_CMD_GET_INFO;
    const WAKES: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags)?;
        context.device().describe(context, self);
        self.out_memlock_limit = Account::limit().unwrap_or(u64::MAX);
        self.out_memlock_used = context.account().used();
        self.out_max_registrations = module_parameters::max_registrations.value();
        self.out_registrations = context.registrations();
        Ok(Pending::Done)
    }
}

impl Request for pinmap_reserved {
    const NR: u32 = uapi::PINMAP_CMD_GET_RESERVED;
    const WAKES: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags)?;
        done(context.device().describe_reserved(context, self))
    }
}

impl Request for pinmap_get_totals {
    const NR: u32 = uapi::PINMAP_CMD_GET_TOTALS;
    const WAKES: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags((self.flags & !uapi::PINMAP_TOTALS_CONTEXT) | self.__reserved)?;
        if self.flags & uapi::PINMAP_TOTALS_CONTEXT == 0 {
            context.device().describe_totals(self);
        } else {
            self.out_contexts = 1;
            context.stats().totals().describe(self);
        }
        Ok(Pending::Done)
    }
}

impl Request for pinmap_set_eventfd {
    const NR: u32 = uapi::PINMAP_CMD_SET_EVENTFD;
    const ANSWERS: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags | self.__reserved)?;
        match self.source {
            uapi::PINMAP_SOURCE_VECTOR => {}
            uapi::PINMAP_SOURCE_EVENTS if self.index == 0 => {}
            uapi::PINMAP_SOURCE_EVENTS => return Err(EINVAL.into()),
            _ => return Err(EOPNOTSUPP.into()),
        }
        if self.fd < -1 {
            return Err(EBADF.into());
        }
        context.device().check_here()?;
        let eventfd = if self.fd == -1 {
            None
        } else {
            Some(EventFd::from_fd(self.fd)?)
        };
        if self.source == uapi::PINMAP_SOURCE_EVENTS {
            context.events().set_eventfd(eventfd);
            return Ok(Pending::Done);
        }
        let flat = context.device().flat()?;
        if !flat.has_vector(self.index) {
            return Err(ENOENT.into());
        }
        let sets = eventfd.is_some();
        let claim = Claim::new(context)?;
        flat.set_vector(self.index, eventfd, context.device().domain())?;
        if sets {
            claim.keep();
        }
        Ok(Pending::Done)
    }
}

impl Request for pinmap_reset {
    const NR: u32 = uapi::PINMAP_CMD_RESET;
    const ANSWERS: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags)?;
        let flat = context.device().flat()?;
        if !flat.can_reset() {
            return Err(EOPNOTSUPP.into());
        }
        let claim = Claim::new(context)?;
        flat.reset()?;
        claim.keep();
        Ok(Pending::Done)
    }
}

impl Request for pinmap_stay_awake {
    const NR: u32 = uapi::PINMAP_CMD_STAY_AWAKE;
    const WAKES: bool = false;
    const ANSWERS: bool = false;

    fn run<'a>(&mut self, context: &'a Arc<Context>) -> Result<Pending<'a>, Failure> {
        check_flags(self.flags & !uapi::PINMAP_STAY_AWAKE_ON)?;
        context.device().check_here()?;
        // As the kernel asks of wakeup sources.
        if self.flags != 0 && !task::may_block_suspend() {
            return Err(EPERM.into());
        }
        context.set_stays_awake(self.flags != 0);
        Ok(Pending::Done)
    }
}
