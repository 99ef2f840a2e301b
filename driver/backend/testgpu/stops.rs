// SPDX-License-Identifier: GPL-2.0
//! Why a queue stopped, by the codes of section 7 of the manual.

use super::regs::*;
use crate::{gpu::hardware::Stop, uapi};

/// Returns why a queue stopped, by the code of the manual.
pub(super) fn stop(code: u64, access: u32, addr: u64, index: u64) -> Stop {
    let is_fault = code < BAD_OPCODE;
    Stop {
        is_fault,
        code: code as u32,
        access,
        addr,
        index,
        can_retry: matches!(code, NOT_PRESENT | PERMISSION),
        reason: if is_fault {
            uapi::PINMAP_FAULT_UNMAPPED
        } else {
            uapi::PINMAP_FAULT_NONE
        },
        area: None,
    }
}

/// Returns the `PINMAP_ACCESS_` value for the manual's.
pub(super) fn access(access: u64) -> u32 {
    match access {
        ACCESS_WRITE => uapi::PINMAP_ACCESS_WRITE,
        ACCESS_FETCH => uapi::PINMAP_ACCESS_FETCH,
        ACCESS_ATOMIC => uapi::PINMAP_ACCESS_ATOMIC,
        _ => uapi::PINMAP_ACCESS_READ,
    }
}
