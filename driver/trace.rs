// SPDX-License-Identifier: GPL-2.0
//! Tracepoints. Nothing is gathered for a tracepoint that is off.

use crate::{
    logic::{contiguity::Contiguity, PAGE_SIZE},
    stats::Stats,
    sys::{fs::trace::Record, task::clock},
};
use kernel::error::Error;

pub(crate) use crate::sys::fs::trace::Tracepoint;

/// The part of a record that is about a buffer.
#[derive(Default)]
pub(crate) struct Details {
    pub(crate) handle: u64,
    pub(crate) addr: u64,
    pub(crate) device_addr: u64,
    pub(crate) contiguity: Contiguity,
    /// Flushes of the IOMMU's cache.
    pub(crate) flushes: u64,
}

/// An operation whose time is taken, if its tracepoint is on.
pub(crate) struct Timed {
    tracepoint: Tracepoint,
    /// When the operation began; `None`: the tracepoint was off then.
    since: Option<u64>,
}

impl Timed {
    pub(crate) fn begin(tracepoint: Tracepoint) -> Self {
        let since = tracepoint.is_on().then(clock::now);
        Self { tracepoint, since }
    }

    /// Begins, if the tracepoint is on, with what `gather` returns. Gathers values before the
    /// traced operation destroys them.
    pub(crate) fn begin_with<T>(
        tracepoint: Tracepoint,
        gather: impl FnOnce() -> T,
    ) -> Option<(Self, T)> {
        tracepoint.is_on().then(|| {
            let gathered = gather();
            (Self::begin(tracepoint), gathered)
        })
    }

    /// Records an operation that has succeeded, for the context of `stats`. `details` runs only if
    /// the tracepoint is on, and after the time was taken.
    pub(crate) fn end(&self, stats: &Stats, details: impl FnOnce() -> Details) {
        let Some(since) = self.since else {
            return;
        };
        let ns = clock::now().saturating_sub(since);
        let details = details();
        let record = Record {
            handle: details.handle,
            addr: details.addr,
            device_addr: details.device_addr,
            bytes: details.contiguity.pages.saturating_mul(PAGE_SIZE),
            runs: details.contiguity.runs,
            huge: details.contiguity.huge_percent(),
            flushes: details.flushes,
            ns,
            ..of(stats)
        };
        self.tracepoint.emit(&record);
    }
}

/// The fault of a queue, or why it stopped.
pub(crate) struct QueueFault {
    pub(crate) handle: u64,
    /// Index of the packet.
    pub(crate) index: u64,
    /// The device's own code.
    pub(crate) code: u32,
    /// The access that faulted, a `PINMAP_ACCESS_` value; `None`: the packet was invalid.
    pub(crate) access: Option<u32>,
    pub(crate) addr: u64,
}

/// How the service of a fault ended.
pub(crate) enum FaultEnd {
    Served {
        pages: u64,
        retries: u64,
    },
    Failed {
        /// A `PINMAP_FAULT_` value.
        reason: u32,
        errno: Error,
        retries: u64,
    },
}

/// Records that the device stopped a queue of the context of `stats`.
pub(crate) fn fault(stats: &Stats, stop: impl FnOnce() -> QueueFault) {
    if Tracepoint::Fault.is_on() {
        Tracepoint::Fault.emit(&about(stats, stop()));
    }
}

/// Records that a fault is going to be served.
pub(crate) fn fault_begin(stats: &Stats, fault: impl FnOnce() -> QueueFault) {
    if Tracepoint::FaultBegin.is_on() {
        Tracepoint::FaultBegin.emit(&about(stats, fault()));
    }
}

/// Records how the service of a fault ended, after `ns` nanoseconds.
pub(crate) fn fault_end(stats: &Stats, ns: u64, end: FaultEnd, fault: impl FnOnce() -> QueueFault) {
    let tracepoint = match end {
        FaultEnd::Served { .. } => Tracepoint::FaultServed,
        FaultEnd::Failed { .. } => Tracepoint::FaultFailed,
    };
    if !tracepoint.is_on() {
        return;
    }
    let record = Record {
        ns,
        ..about(stats, fault())
    };
    tracepoint.emit(&match end {
        FaultEnd::Served { pages, retries } => Record {
            pages,
            retries,
            ..record
        },
        FaultEnd::Failed {
            reason,
            errno,
            retries,
        } => Record {
            reason,
            error: errno.to_errno(),
            retries,
            ..record
        },
    });
}

/// Why memory has moved: its value in the record.
#[derive(Clone, Copy)]
pub(crate) enum Cause {
    /// The side that it moved to has touched it.
    Touched = 0,
    /// The program has moved it.
    Prefetched = 1,
    /// Made room for others.
    Evicted = 2,
}

/// Memory that has moved.
pub(crate) struct Migration {
    pub(crate) addr: u64,
    pub(crate) bytes: u64,
    /// Whether it came to the host.
    pub(crate) home: bool,
    pub(crate) cause: Cause,
    /// A `PINMAP_RULE_` value.
    pub(crate) rule: u32,
}

/// Records that memory has moved. From any context.
pub(crate) fn migrate(stats: &Stats, migration: impl FnOnce() -> Migration) {
    if Tracepoint::Migrate.is_on() {
        let migration = migration();
        Tracepoint::Migrate.emit(&Record {
            addr: migration.addr,
            bytes: migration.bytes,
            home: migration.home.into(),
            cause: migration.cause as u32,
            rule: migration.rule,
            ..of(stats)
        });
    }
}

fn about(stats: &Stats, fault: QueueFault) -> Record {
    /// The record's value for [`QueueFault::access`] where there is none.
    const NONE: u32 = 255;

    Record {
        handle: fault.handle,
        device_addr: fault.addr,
        access: fault.access.unwrap_or(NONE),
        code: fault.code,
        index: fault.index,
        ..of(stats)
    }
}

fn of(stats: &Stats) -> Record {
    let function = stats.function();
    Record {
        context: stats.context(),
        domain: function.domain,
        bus: function.bus,
        devfn: function.devfn,
        ..Record::default()
    }
}
