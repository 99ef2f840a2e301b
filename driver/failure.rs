// SPDX-License-Identifier: GPL-2.0
//! An errno, and what exactly failed.

use crate::sys::{
    account::OverLimit,
    iommu::NoTables,
    uapi::{self, pinmap_fail},
};
use kernel::{alloc::AllocError, prelude::*};

/// Why a REGISTER or MAP failed.
pub(crate) struct Failure {
    pub(crate) errno: Error,
    /// What `fail` of the ioctl's struct tells.
    pub(crate) detail: pinmap_fail,
}

impl Failure {
    /// With a reason of `enum pinmap_fail_reason` and its address.
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

    /// With a limit.
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
