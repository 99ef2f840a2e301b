// SPDX-License-Identifier: GPL-2.0
//! Finds the test GPU behind a function, and reads what it has.

use super::{field, regs::*, TestGpu, WORD, WORDS};
use crate::{
    gpu::hardware::{Hardware, Limits},
    logic::{pte, span::Span, PAGE_SIZE},
    sys::pci::{
        mmio::{Caching, Mmio},
        Bar, Function,
    },
    uapi,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{atomic::Atomic, Arc},
};

/// Entries of the fault queue for which there can be registers.
const MAX_FAULTS: u64 = 4096;
/// How long a packet may run: the value of `MAX_RUN_NS` after a reset.
const MAX_RUN: u64 = 2_000_000_000;
/// Bits of a device address: what the tables translate.
const VA_WIDTH: u32 = pte::shift(pte::ROOT_LEVEL + 1);
/// Number of vectors of the enabled causes: 0 to 3.
const USED_VECTORS: u32 = 4;

impl TestGpu {
    /// Returns the hardware behind `function`, if it is a test GPU.
    pub(in crate::backend) fn find(function: &Function) -> Result<Option<Arc<dyn Hardware>>> {
        let mut ids = uapi::pinmap_info::default();
        function.identify(&mut ids);
        if ids.out_vendor != VENDOR || ids.out_device != DEVICE {
            return Ok(None);
        }
        let registers = function.bar(BAR_REGISTERS);
        let registers = KBox::pin_init(Mmio::new(&registers, Caching::Uncached), GFP_KERNEL)?;
        let major = field(registers.read(VERSION), 31, 16);
        if registers.read(MAGIC) != MAGIC_VALUE || major != VERSION_MAJOR {
            return Ok(None);
        }
        drop(registers);
        let gpu: Arc<dyn Hardware> = Arc::pin_init(Self::new(function), GFP_KERNEL)?;
        Ok(Some(gpu))
    }

    fn new(function: &Function) -> impl PinInit<Self, Error> + '_ {
        pin_init::pin_init_scope(move || {
            let doorbell_bar = function.bar(BAR_DOORBELLS);
            let vram_bar = function.bar(BAR_VRAM);
            let register_bar = function.bar(BAR_REGISTERS);
            let registers =
                KBox::pin_init(Mmio::new(&register_bar, Caching::Uncached), GFP_KERNEL)?;
            let limits = Self::read_limits(&registers, &doorbell_bar, &vram_bar)?;
            let fault_entries = registers.read(FAULT_ENTRIES).clamp(1, MAX_FAULTS);
            let features = registers.read(FEATURES);
            let has_atomics = features & FEATURE_ATOMIC != 0;
            drop(registers);
            Ok(try_pin_init!(Self {
                registers <- Mmio::new(&register_bar, Caching::Uncached),
                doorbells <- Mmio::new(&doorbell_bar, Caching::Uncached),
                vram <- Mmio::new(&vram_bar, Caching::WriteCombined),
                doorbell_bar,
                vram_bar,
                limits,
                enabled <- new_mutex!([0; WORDS as usize], "pinmap_doorbells"),
                faults: Atomic::new(0),
                fault_entries,
                atomic: if has_atomics { PTE_ATOMIC } else { 0 },
                #[cfg(pinmap_mirror)]
                can_zero: features & FEATURE_ZEROS != 0,
            }? Error))
        })
    }

    fn read_limits(registers: &Mmio, doorbells: &Bar, vram: &Bar) -> Result<Limits> {
        let number = |offset| u32::try_from(registers.read(offset)).map_err(|_| ENODEV);
        let va_bits = number(VA_BITS)?;
        let features = registers.read(FEATURES);
        let limits = Limits {
            queues: number(DOORBELLS)?,
            slots: number(SLOTS)?,
            vmids: number(VMIDS)?,
            max_priority: 3,
            vram: registers.read(VRAM_SIZE),
            integrated: features & FEATURE_INTEGRATED != 0,
            programs: features & FEATURE_PROGRAM != 0,
            vram_bar: BAR_VRAM,
            addresses: 1_u64
                .checked_shl(va_bits)
                .and_then(|end| Span::from_bounds(0, end.wrapping_sub(1)))
                .ok_or(ENODEV)?,
            max_run: MAX_RUN,
            vectors: USED_VECTORS,
        };
        // The code below, and its callers, rely on this.
        let fits = limits.queues <= WORD.saturating_mul(WORDS)
            && u64::from(limits.queues).saturating_mul(PAGE_SIZE) <= doorbells.length
            && (1..=u64::BITS).contains(&limits.slots)
            && limits.queues != 0
            && va_bits == VA_WIDTH
            && (2..=16).contains(&limits.vmids)
            && limits.vram <= vram.length
            && registers.read(VECTORS) >= USED_VECTORS.into();
        if fits {
            Ok(limits)
        } else {
            Err(ENODEV)
        }
    }
}
