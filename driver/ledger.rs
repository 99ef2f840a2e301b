// SPDX-License-Identifier: GPL-2.0
//! Who a context is, and how much it has: for whoever looks, in fdinfo, debugfs, tracepoints or by
//! GET_TOTALS. Nothing is decided by these numbers; the charge is `sys/account.rs`.

use crate::sys::uapi::{self, pinmap_get_totals, pinmap_info, pinmap_total};
use core::fmt;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc,
    },
};

/// The address of a PCI function.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    pub(crate) domain: u32,
    pub(crate) bus: u8,
    pub(crate) devfn: u8,
}

impl Function {
    /// As it was asked for once.
    pub(crate) fn of(identity: &pinmap_info) -> Self {
        Self {
            domain: identity.out_pci_domain,
            bus: identity.out_pci_bus as u8,
            devfn: identity.out_pci_devfn as u8,
        }
    }
}

impl kernel::fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slot, function) = (self.devfn >> 3, self.devfn & 7);
        f.write_fmt(format_args!(
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, slot, function
        ))
    }
}

/// What is counted, by number and by bytes.
#[derive(Clone, Copy)]
pub(crate) enum What {
    /// Open files.
    Contexts,
    /// User memory and parts of files, as long as they are pinned.
    Pinned,
    /// Host memory that the driver allocated.
    Allocated,
    /// Memory of the device's own.
    Local,
    /// Memory that belongs elsewhere.
    Shared,
    /// Mappings.
    Mapped,
    /// Buffers whose memory went away, and that are not released yet.
    Stale,
}

impl What {
    const COUNT: usize = 7;

    /// That of a `PINMAP_BUFFER_` kind.
    pub(crate) fn of_kind(kind: u32) -> Self {
        match kind {
            uapi::PINMAP_BUFFER_USER | uapi::PINMAP_BUFFER_FILE => Self::Pinned,
            uapi::PINMAP_BUFFER_HOST => Self::Allocated,
            uapi::PINMAP_BUFFER_VRAM => Self::Local,
            _ => Self::Shared,
        }
    }
}

/// How much there is of one thing.
struct Tally {
    number: Atomic<u64>,
    bytes: Atomic<u64>,
}

/// How much there is.
pub(crate) struct Totals([Tally; What::COUNT]);

impl Totals {
    /// Nothing.
    pub(crate) fn new() -> Self {
        Self(core::array::from_fn(|_| Tally {
            number: Atomic::new(0),
            bytes: Atomic::new(0),
        }))
    }

    /// One more.
    pub(crate) fn add(&self, what: What, bytes: u64) {
        if let Some(tally) = self.0.get(what as usize) {
            tally.number.add(1, Relaxed);
            tally.bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// One less.
    pub(crate) fn remove(&self, what: What, bytes: u64) {
        if let Some(tally) = self.0.get(what as usize) {
            tally.number.fetch_sub(1, Relaxed);
            tally.bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// How much there is now.
    pub(crate) fn of(&self, what: What) -> pinmap_total {
        self.0
            .get(what as usize)
            .map_or(pinmap_total::default(), |tally| pinmap_total {
                number: tally.number.load(Relaxed),
                bytes: tally.bytes.load(Relaxed),
            })
    }

    /// GET_TOTALS.
    pub(crate) fn describe(&self, args: &mut pinmap_get_totals) {
        args.out_pinned = self.of(What::Pinned);
        args.out_allocated = self.of(What::Allocated);
        args.out_vram = self.of(What::Local);
        args.out_shared = self.of(What::Shared);
        args.out_mapped = self.of(What::Mapped);
        args.out_stale = self.of(What::Stale);
    }
}

/// A context, for whoever looks.
pub(crate) struct Ledger {
    function: Function,
    context: u64,
    own: Totals,
    device: Arc<Totals>,
}

impl Ledger {
    /// Of the context named `context`, of a device that has `device` in all.
    pub(crate) fn new(function: Function, context: u64, device: Arc<Totals>) -> Result<Arc<Self>> {
        let this = Self {
            function,
            context,
            own: Totals::new(),
            device,
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    /// The function.
    pub(crate) fn function(&self) -> Function {
        self.function
    }

    /// Its name among the contexts of the device.
    pub(crate) fn context(&self) -> u64 {
        self.context
    }

    /// What the context has.
    pub(crate) fn totals(&self) -> &Totals {
        &self.own
    }
}

/// Something that is counted as long as this lives.
pub(crate) struct Counted {
    ledger: Arc<Ledger>,
    what: What,
    bytes: u64,
}

impl Counted {
    /// From any context.
    pub(crate) fn new(ledger: &Arc<Ledger>, what: What, bytes: u64) -> Self {
        ledger.own.add(what, bytes);
        ledger.device.add(what, bytes);
        Self {
            ledger: ledger.clone(),
            what,
            bytes,
        }
    }

    /// Whose it is.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.ledger.own.remove(self.what, self.bytes);
        self.ledger.device.remove(self.what, self.bytes);
    }
}
