// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters: what a paged device has done.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::device::accelerator::Accelerator;
use crate::error::{Error, Operation, Result};
use crate::sys::{bindings as abi, ioctl};

/// The work of a paged device for all contexts together, since the driver was bound to it. Returned
/// by [`Accelerator::counters`].
///
/// ```no_run
/// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
/// let before = gpu.counters()?.copied();
/// // ... work ...
/// let copied = gpu.counters()?.copied().since(&before);
/// println!("{} bytes in {:?} of the copy engines' time", copied.bytes(), copied.busy);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Counters {
    /// Translations that were found in the device's TLB.
    pub tlb_hits: u64,
    /// Translations that needed a walk of the page table.
    pub tlb_misses: u64,
    /// How often a queue stopped.
    pub faults: u64,
    /// How often a queue was put into a slot of the device.
    pub binds: u64,
    /// How often a context was given an address space (VMID) of the device.
    pub vmid_binds: u64,
    /// How often the TLB was invalidated.
    pub invalidates: u64,
    /// Counters of each copy engine.
    pub copy_engines: Vec<EngineCounters>,
    /// Counters of each slot of the compute engine.
    pub compute_slots: Vec<EngineCounters>,
}

/// The work that one engine has done.
///
/// Only the bytes of operands are counted, not those of packets, page tables, fences and
/// timestamps.
///
/// ```no_run
/// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
/// for (number, engine) in gpu.counters()?.copy_engines.iter().enumerate() {
///     println!("copy engine {number}: {} packets in {:?}", engine.packets, engine.busy);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct EngineCounters {
    /// Bytes read from host memory.
    pub host_read: u64,
    /// Bytes written to host memory.
    pub host_written: u64,
    /// Bytes read from the device's memory.
    pub vram_read: u64,
    /// Bytes written to the device's memory.
    pub vram_written: u64,
    /// Packets that were completed.
    pub packets: u64,
    /// Time during which the engine held a packet.
    pub busy: Duration,
}

impl EngineCounters {
    fn from_abi(engine: &abi::pinmap_engine_counters) -> Self {
        Self {
            host_read: engine.host_read,
            host_written: engine.host_written,
            vram_read: engine.vram_read,
            vram_written: engine.vram_written,
            packets: engine.packets,
            busy: Duration::from_nanos(engine.busy_ns),
        }
    }

    /// Sum of all bytes, read and written, of the host and of the device.
    pub fn bytes(&self) -> u64 {
        self.host_read + self.host_written + self.vram_read + self.vram_written
    }

    /// The difference to an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            host_read: self.host_read.wrapping_sub(earlier.host_read),
            host_written: self.host_written.wrapping_sub(earlier.host_written),
            vram_read: self.vram_read.wrapping_sub(earlier.vram_read),
            vram_written: self.vram_written.wrapping_sub(earlier.vram_written),
            packets: self.packets.wrapping_sub(earlier.packets),
            busy: self.busy.saturating_sub(earlier.busy),
        }
    }
}

impl Counters {
    fn from_abi(counters: &abi::pinmap_gpu_counters, copy_engines: usize) -> Self {
        let known = counters.out_engines.len();
        let engines = (counters.out_nr_engines as usize).min(known);
        let all = counters.out_engines[..engines].iter();
        let mut copy: Vec<_> = all.map(EngineCounters::from_abi).collect();
        let compute = copy.split_off(copy_engines.min(engines));
        Self {
            tlb_hits: counters.out_tlb_hits,
            tlb_misses: counters.out_tlb_misses,
            faults: counters.out_faults,
            binds: counters.out_binds,
            vmid_binds: counters.out_vmid_binds,
            invalidates: counters.out_invalidates,
            copy_engines: copy,
            compute_slots: compute,
        }
    }

    /// Sum of the counters of all copy engines.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
    /// println!("{} bytes were copied", gpu.counters()?.copied().bytes());
    /// # Ok(()) }
    /// ```
    pub fn copied(&self) -> EngineCounters {
        sum(&self.copy_engines)
    }

    /// Sum of the counters of all slots of the compute engine.
    pub fn computed(&self) -> EngineCounters {
        sum(&self.compute_slots)
    }
}

fn sum(engines: &[EngineCounters]) -> EngineCounters {
    let mut all = EngineCounters::default();
    for engine in engines {
        all.host_read += engine.host_read;
        all.host_written += engine.host_written;
        all.vram_read += engine.vram_read;
        all.vram_written += engine.vram_written;
        all.packets += engine.packets;
        all.busy += engine.busy;
    }
    all
}

impl Accelerator {
    /// Reads the counters of the device, which are for all contexts together.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
    /// let counters = gpu.counters()?;
    /// println!("{} TLB hits, {} misses", counters.tlb_hits, counters.tlb_misses);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn counters(&self) -> Result<Counters> {
        // The copy engines come first; only the info tells how many they are.
        let copy_engines = self.info()?.copy_engines as usize;
        let mut args = abi::pinmap_gpu_counters::default();
        ioctl::gpu_counters(self.device().as_fd(), &mut args).map_err(|errno| {
            let attempt = format!("read the counters of {}", self.device());
            Error::new(Operation::Accelerator, attempt, errno)
        })?;
        Ok(Counters::from_abi(&args, copy_engines))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_told_apart() {
        let mut abi = abi::pinmap_gpu_counters {
            out_nr_engines: 6,
            out_faults: 5,
            ..Default::default()
        };
        for (number, engine) in (1..).zip(&mut abi.out_engines) {
            engine.host_read = number;
            engine.packets = 10 * number;
            engine.busy_ns = 100 * number;
        }
        let counters = Counters::from_abi(&abi, 2);
        assert_eq!(
            (counters.copy_engines.len(), counters.compute_slots.len()),
            (2, 4)
        );
        assert_eq!(counters.copied().host_read, 1 + 2);
        assert_eq!(counters.computed().packets, 10 * (3 + 4 + 5 + 6));
        assert_eq!(counters.faults, 5);
        let one = counters.compute_slots[0];
        assert_eq!(one.since(&counters.copy_engines[0]).bytes(), 2);
        // A newer driver may count more engines than the struct has.
        abi.out_nr_engines = 99;
        assert_eq!(Counters::from_abi(&abi, 2).compute_slots.len(), 6);
        assert_eq!(Counters::from_abi(&abi, 99).copy_engines.len(), 8);
    }
}
