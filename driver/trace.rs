// SPDX-License-Identifier: GPL-2.0
//! What is told to whoever traces. Nothing is gathered where nobody listens.

use crate::{
    ledger::Ledger,
    logic::{shape::Shape, PAGE_SIZE},
    sys::trace::{self, Record},
};

pub(crate) use crate::sys::trace::What;

/// What there is to tell of a buffer.
#[derive(Default)]
pub(crate) struct Details {
    pub(crate) handle: u64,
    pub(crate) addr: u64,
    pub(crate) device_addr: u64,
    pub(crate) shape: Shape,
    /// Of the IOMMU's cache.
    pub(crate) flushes: u64,
}

/// Something that is being done, and takes its time.
pub(crate) struct Timed {
    what: What,
    /// When it began, if somebody listened then.
    since: Option<u64>,
}

impl Timed {
    /// It begins.
    pub(crate) fn begin(what: What) -> Self {
        let since = what.is_on().then(trace::now);
        Self { what, since }
    }

    /// It has succeeded, for the context of `ledger`. `details` are gathered if somebody listens, and
    /// after the time is taken.
    pub(crate) fn end(&self, ledger: &Ledger, details: impl FnOnce() -> Details) {
        let Some(since) = self.since else {
            return;
        };
        let ns = trace::now().saturating_sub(since);
        let details = details();
        let record = Record {
            handle: details.handle,
            addr: details.addr,
            device_addr: details.device_addr,
            bytes: details.shape.pages.saturating_mul(PAGE_SIZE),
            runs: details.shape.runs,
            huge: details.shape.huge_percent(),
            flushes: details.flushes,
            ns,
            ..of(ledger)
        };
        self.what.emit(&record);
    }
}

/// What `gather` finds, if somebody listens for `what`: for what is not there any more afterwards.
pub(crate) fn wanted<T: Default>(what: What, gather: impl FnOnce() -> T) -> T {
    if what.is_on() {
        gather()
    } else {
        T::default()
    }
}

/// The queue `handle` of a context was stopped by its device.
#[cfg(not(pinmap_flat))]
pub(crate) fn fault(ledger: &Ledger, handle: u64, stop: &crate::gpu::hardware::Stop) {
    /// No access: a packet was to blame.
    const NONE: u32 = 3;

    if What::Fault.is_on() {
        What::Fault.emit(&Record {
            handle,
            device_addr: stop.addr,
            access: if stop.is_fault { stop.access } else { NONE },
            code: stop.code,
            index: stop.index,
            ..of(ledger)
        });
    }
}

fn of(ledger: &Ledger) -> Record {
    let function = ledger.function();
    Record {
        context: ledger.context(),
        domain: function.domain,
        bus: function.bus,
        devfn: function.devfn,
        ..Record::default()
    }
}
