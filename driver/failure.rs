// SPDX-License-Identifier: GPL-2.0
//! Failures: an errno, and the detail that REGISTER and some other calls answer with it.

use crate::{
    sys::{iommu::NoTables, task::account::OverLimit},
    uapi::{self, pinmap_fail},
};
use kernel::{alloc::AllocError, prelude::*};

/// An errno with its detail.
pub(crate) struct Failure {
    pub(crate) errno: Error,
    /// The `fail` of the ioctl's struct.
    pub(crate) detail: pinmap_fail,
}

impl Failure {
    /// Makes a failure with a reason of `enum pinmap_fail_reason` and an address.
    pub(crate) fn at(errno: Error, reason: u32, addr: u64) -> Self {
        Self {
            errno,
            detail: pinmap_fail {
                reason,
                addr,
                ..pinmap_fail::default()
            },
        }
    }

    /// Makes a failure with a limit.
    pub(crate) fn limit(errno: Error, reason: u32, needed: u64, allowed: u64) -> Self {
        Self {
            errno,
            detail: pinmap_fail {
                reason,
                needed,
                allowed,
                ..pinmap_fail::default()
            },
        }
    }
}

impl From<Error> for Failure {
    fn from(errno: Error) -> Self {
        let reason = if errno == ENOMEM {
            uapi::PINMAP_FAIL_MEMORY
        } else {
            0
        };
        Self::at(errno, reason, 0)
    }
}

impl From<OverLimit> for Failure {
    fn from(over: OverLimit) -> Self {
        Self::limit(ENOMEM, uapi::PINMAP_FAIL_MEMLOCK, over.needed, over.allowed)
    }
}

impl From<NoTables> for Failure {
    fn from(why: NoTables) -> Self {
        match why {
            NoTables::OverLimit(over) => over.into(),
            NoTables::Failed(error) => error.into(),
        }
    }
}

impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Self {
        Error::from(error).into()
    }
}
