// SPDX-License-Identifier: GPL-2.0
//! Tracepoints, which `sys/fs/trace.h` declares.
//!
//! C header: [`include/linux/tracepoint.h`](srctree/include/linux/tracepoint.h).

use crate::sys::helpers;

pub(crate) use helpers::pinmap_trace as Record;

#[derive(Clone, Copy)]
pub(crate) enum Tracepoint {
    Register,
    Release,
    Map,
    Unmap,
    Stale,
    Fault,
    FaultBegin,
    FaultServed,
    FaultFailed,
    Migrate,
}

impl Tracepoint {
    fn number(self) -> u32 {
        match self {
            Self::Register => helpers::PINMAP_TRACE_REGISTER,
            Self::Release => helpers::PINMAP_TRACE_RELEASE,
            Self::Map => helpers::PINMAP_TRACE_MAP,
            Self::Unmap => helpers::PINMAP_TRACE_UNMAP,
            Self::Stale => helpers::PINMAP_TRACE_STALE,
            Self::Fault => helpers::PINMAP_TRACE_FAULT,
            Self::FaultBegin => helpers::PINMAP_TRACE_FAULT_BEGIN,
            Self::FaultServed => helpers::PINMAP_TRACE_FAULT_SERVED,
            Self::FaultFailed => helpers::PINMAP_TRACE_FAULT_FAILED,
            Self::Migrate => helpers::PINMAP_TRACE_MIGRATE,
        }
    }

    /// Whether the tracepoint is on. May be called in any context.
    pub(crate) fn is_on(self) -> bool {
        // SAFETY: The array is never written to.
        let listeners = unsafe { &helpers::pinmap_trace_listeners };
        listeners
            .get(self.number() as usize)
            // SAFETY: Each is a counter that lives as long as the module, and is read as
            // READ_ONCE() does.
            .is_some_and(|&listeners| unsafe { listeners.read_volatile() } != 0)
    }

    /// Hands `record` to the tracepoint. May be called in any context.
    pub(crate) fn emit(self, record: &Record) {
        // SAFETY: The call only reads the record, and does not keep it.
        unsafe { helpers::pinmap_trace_emit(self.number(), record) };
    }
}
