// SPDX-License-Identifier: GPL-2.0
//! Statistics: how much contexts have, for fdinfo, debugfs, tracepoints and GET_TOTALS.
//!
//! Nothing is decided by these numbers; what is charged against limits is in
//! `sys/task/account.rs`. A [`StatGuard`] counts something for as long as that lives, in its
//! context. Those of a device are added up when somebody asks for them; only faults, which stay
//! counted when a context has ended, are counted in the device as well.

use crate::{
    sys::task::clock,
    uapi::{self, pinmap_get_totals, pinmap_info, pinmap_total},
};
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
pub(crate) struct Bdf {
    pub(crate) domain: u32,
    pub(crate) bus: u8,
    pub(crate) devfn: u8,
}

impl Bdf {
    /// Takes the address from the answer of GET_INFO.
    pub(crate) fn of(identity: &pinmap_info) -> Self {
        Self {
            domain: identity.out_pci_domain,
            bus: identity.out_pci_bus as u8,
            devfn: identity.out_pci_devfn as u8,
        }
    }
}

impl kernel::fmt::Display for Bdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slot, function) = (self.devfn >> 3, self.devfn & 7);
        f.write_fmt(format_args!(
            "{:04x}:{:02x}:{:02x}.{:x}",
            self.domain, self.bus, slot, function
        ))
    }
}

/// A statistic. Each counts a number of things and their bytes.
#[derive(Clone, Copy)]
pub(crate) enum Stat {
    /// Open files.
    Contexts,
    /// User memory and parts of files, while they are pinned.
    Pinned,
    /// Host memory that the driver allocated.
    Allocated,
    /// VRAM, the device's own memory, that contexts have allocated.
    Vram,
    /// Memory that was imported as a dma-buf.
    Shared,
    Mapped,
    /// Buffers whose memory went away, until they are released.
    Stale,
    /// Managed ranges.
    Managed,
}

impl Stat {
    const COUNT: usize = 8;

    /// The statistic that counts buffers of a `PINMAP_BUFFER_` kind.
    pub(crate) fn of_kind(kind: u32) -> Self {
        match kind {
            uapi::PINMAP_BUFFER_USER | uapi::PINMAP_BUFFER_FILE => Self::Pinned,
            uapi::PINMAP_BUFFER_HOST => Self::Allocated,
            uapi::PINMAP_BUFFER_VRAM => Self::Vram,
            _ => Self::Shared,
        }
    }
}

struct Tally {
    number: Atomic<u64>,
    bytes: Atomic<u64>,
}

/// Faults of queues, counted from the beginning.
struct Faults {
    served: Atomic<u64>,
    failed: Atomic<u64>,
    /// Pages that the device was given.
    pages: Atomic<u64>,
    /// Nanoseconds that the service took.
    ns: Atomic<u64>,
    /// When the last one failed, in seconds of the wall clock; 0: none did.
    failed_at: Atomic<u64>,
}

impl Faults {
    fn copy(&self) -> Self {
        let copy = |counter: &Atomic<u64>| Atomic::new(counter.load(Relaxed));
        Self {
            served: copy(&self.served),
            failed: copy(&self.failed),
            pages: copy(&self.pages),
            ns: copy(&self.ns),
            failed_at: copy(&self.failed_at),
        }
    }
}

/// The statistics of a context, or of a device.
pub(crate) struct Totals {
    tallies: [Tally; Stat::COUNT],
    faults: Faults,
}

impl Totals {
    pub(crate) fn new() -> Self {
        Self {
            tallies: core::array::from_fn(|_| Tally {
                number: Atomic::new(0),
                bytes: Atomic::new(0),
            }),
            faults: Faults {
                served: Atomic::new(0),
                failed: Atomic::new(0),
                pages: Atomic::new(0),
                ns: Atomic::new(0),
                failed_at: Atomic::new(0),
            },
        }
    }

    /// Copies what is counted for the device itself, to which contexts can be added.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self {
            faults: self.faults.copy(),
            ..Self::new()
        };
        copy.include(self);
        copy
    }

    /// Adds the tallies of `other`.
    pub(crate) fn include(&self, other: &Totals) {
        for (tally, more) in self.tallies.iter().zip(&other.tallies) {
            tally.number.fetch_add(more.number.load(Relaxed), Relaxed);
            tally.bytes.fetch_add(more.bytes.load(Relaxed), Relaxed);
        }
    }

    /// Counts one more thing of `bytes`.
    pub(crate) fn add(&self, stat: Stat, bytes: u64) {
        if let Some(tally) = self.tallies.get(stat as usize) {
            tally.number.add(1, Relaxed);
            tally.bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// Counts one thing of `bytes` less.
    pub(crate) fn remove(&self, stat: Stat, bytes: u64) {
        if let Some(tally) = self.tallies.get(stat as usize) {
            tally.number.fetch_sub(1, Relaxed);
            tally.bytes.fetch_sub(bytes, Relaxed);
        }
    }

    /// The current value of a statistic.
    pub(crate) fn of(&self, stat: Stat) -> pinmap_total {
        self.tallies
            .get(stat as usize)
            .map_or(pinmap_total::default(), |tally| pinmap_total {
                number: tally.number.load(Relaxed),
                bytes: tally.bytes.load(Relaxed),
            })
    }

    /// Fills in the answer of GET_TOTALS.
    pub(crate) fn describe(&self, args: &mut pinmap_get_totals) {
        args.out_pinned = self.of(Stat::Pinned);
        args.out_allocated = self.of(Stat::Allocated);
        args.out_vram = self.of(Stat::Vram);
        args.out_shared = self.of(Stat::Shared);
        args.out_mapped = self.of(Stat::Mapped);
        args.out_stale = self.of(Stat::Stale);
        args.out_managed = self.of(Stat::Managed);
        args.out_faults_served = self.faults_served();
        args.out_faults_failed = self.faults_failed();
        args.out_fault_pages = self.faults.pages.load(Relaxed);
        args.out_fault_ns = self.faults.ns.load(Relaxed);
    }

    pub(crate) fn faults_served(&self) -> u64 {
        self.faults.served.load(Relaxed)
    }

    /// Number of faults that stopped a queue.
    pub(crate) fn faults_failed(&self) -> u64 {
        self.faults.failed.load(Relaxed)
    }

    /// When a fault stopped a queue last, in seconds of the wall clock; 0: never.
    pub(crate) fn fault_failed_at(&self) -> u64 {
        self.faults.failed_at.load(Relaxed)
    }
}

/// A context, as it appears in statistics.
pub(crate) struct Stats {
    function: Bdf,
    context: u64,
    own: Totals,
    device: Arc<Totals>,
}

impl Stats {
    /// Makes the statistics of a context, whose faults count in its device, too.
    pub(crate) fn new(function: Bdf, context: u64, device: Arc<Totals>) -> Result<Arc<Self>> {
        let this = Self {
            function,
            context,
            own: Totals::new(),
            device,
        };
        Ok(Arc::new(this, GFP_KERNEL_ACCOUNT)?)
    }

    pub(crate) fn function(&self) -> Bdf {
        self.function
    }

    /// The number of the context among those of the device.
    pub(crate) fn context(&self) -> u64 {
        self.context
    }

    pub(crate) fn totals(&self) -> &Totals {
        &self.own
    }

    /// Counts a fault that was served, by which the device got `pages`, after `ns` nanoseconds.
    pub(crate) fn fault_served(&self, pages: u64, ns: u64) {
        for faults in [&self.own.faults, &self.device.faults] {
            faults.served.add(1, Relaxed);
            faults.pages.fetch_add(pages, Relaxed);
            faults.ns.fetch_add(ns, Relaxed);
        }
    }

    /// Counts a fault that stopped a queue.
    pub(crate) fn fault_failed(&self) {
        for faults in [&self.own.faults, &self.device.faults] {
            faults.failed.add(1, Relaxed);
            faults.failed_at.store(clock::wall_seconds(), Relaxed);
        }
    }
}

/// Something that is counted until this is dropped or stopped.
pub(crate) struct StatGuard {
    stats: Arc<Stats>,
    stat: Stat,
    /// `None`: stopped.
    bytes: Option<u64>,
}

impl StatGuard {
    /// Begins to count. From any context.
    pub(crate) fn new(stats: &Arc<Stats>, stat: Stat, bytes: u64) -> Self {
        let mut this = Self::stopped(stats, stat);
        this.begin(bytes);
        this
    }

    /// Makes a guard that counts nothing yet.
    pub(crate) fn stopped(stats: &Arc<Stats>, stat: Stat) -> Self {
        Self {
            stats: stats.clone(),
            stat,
            bytes: None,
        }
    }

    /// Begins to count, if it does not. From any context.
    pub(crate) fn begin(&mut self, bytes: u64) {
        if self.bytes.is_none() {
            self.stats.own.add(self.stat, bytes);
            self.bytes = Some(bytes);
        }
    }

    /// Stops counting. Returns whether it did count.
    pub(crate) fn stop(&mut self) -> bool {
        match self.bytes.take() {
            Some(bytes) => {
                self.stats.own.remove(self.stat, bytes);
                true
            }
            None => false,
        }
    }

    pub(crate) fn counts(&self) -> bool {
        self.bytes.is_some()
    }

    /// The context in which this is counted.
    pub(crate) fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }
}

impl Drop for StatGuard {
    fn drop(&mut self) {
        self.stop();
    }
}
