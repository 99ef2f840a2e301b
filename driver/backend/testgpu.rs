// SPDX-License-Identifier: GPL-2.0
//! The test GPU: an implementation of [`Hardware`], written from `tests/devices/testgpu/MANUAL.md`.

#[cfg(pinmap_mirror)]
use crate::{gpu::hardware::PageCopy, gpu::hardware::Way, sys::mm::new_page::NewPage};
use crate::{
    gpu::hardware::{Cause, Hardware, Limits, Progress, Setup, SlotState, Stop},
    logic::{
        pte::{Format, Memory},
        span::Span,
        PAGE_SHIFT, PAGE_SIZE,
    },
    sys::pci::{
        mmio::{Image, Mmio},
        Bar,
    },
    uapi::{self, pinmap_gpu_counters, pinmap_gpu_info},
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Mutex,
    },
};

mod probe;
mod regs;
mod stops;
use regs::*;
use stops::{access, stop};

/// Bits in a word of `PENDING`, `COMPLETION` and `DOORBELL_ENABLE`, and words of each.
const WORD: u32 = u64::BITS;
const WORDS: u32 = 16;
/// Interrupts that the driver enables. It polls for invalidations and resets.
const ENABLED: u64 = INT_PENDING | INT_COMPLETION | INT_FAULT | INT_SLOT;

#[pin_data]
pub(super) struct TestGpu {
    #[pin]
    registers: Mmio,
    #[pin]
    doorbells: Mmio,
    #[pin]
    vram: Mmio,
    doorbell_bar: Bar,
    vram_bar: Bar,
    limits: Limits,
    /// Copy of `DOORBELL_ENABLE`, to change single bits of it.
    #[pin]
    enabled: Mutex<[u64; WORDS as usize]>,
    /// Copy of `FAULT_READ`.
    faults: Atomic<u64>,
    fault_entries: u64,
    /// The bit of a leaf that permits atomic accesses; 0 if the device has none.
    atomic: u64,
    /// Whether the paging engine can write zeros.
    #[cfg(pinmap_mirror)]
    can_zero: bool,
}

/// Returns the offset of element `index` of an array of registers.
fn element(base: u64, stride: u64, index: u32) -> u64 {
    base.saturating_add(stride.saturating_mul(index.into()))
}

/// Returns the register and the bit of a queue in a bitmap of queues.
fn bit(base: u64, queue: u32) -> (u64, u64) {
    let word = element(base, 8, queue / WORD);
    (word, 1_u64.wrapping_shl(queue % WORD))
}

fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let lowest = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (lowest < WORD).then_some(lowest)
    })
}

/// Returns bits [`high`:`low`] of `value`.
fn field(value: u64, high: u32, low: u32) -> u64 {
    let width = high.saturating_sub(low).saturating_add(1);
    let mask = u64::MAX.wrapping_shr(u64::BITS.saturating_sub(width));
    value.wrapping_shr(low) & mask
}

impl TestGpu {
    fn read(&self, offset: u64) -> u64 {
        self.registers.read(offset)
    }

    fn write(&self, offset: u64, value: u64) {
        self.registers.write(offset, value);
    }

    /// Reads a number; that of a removed device counts as 0.
    fn known(&self, offset: u64) -> u64 {
        match self.read(offset) {
            u64::MAX => 0,
            value => value,
        }
    }

    fn slot(&self, slot: u32, offset: u64) -> u64 {
        element(SLOT, SLOT_STRIDE, slot).saturating_add(offset)
    }

    /// Returns the result of the last command.
    fn result(&self, slot: u32) -> u64 {
        field(self.read(self.slot(slot, SLOT_STATE)), 15, 8)
    }

    fn enable_doorbell(&self, queue: u32, on: bool) {
        let (register, bit) = bit(DOORBELL_ENABLE, queue);
        let mut enabled = self.enabled.lock();
        if let Some(word) = enabled.get_mut((queue / WORD) as usize) {
            *word = if on { *word | bit } else { *word & !bit };
            self.write(register, *word);
        }
    }

    /// Calls `visit` for the set bits of an array. `summary` has a bit for each word that is not
    /// zero.
    fn each(&self, summary: u64, array: u64, clear: bool, visit: &mut dyn FnMut(u32)) {
        for word in bits(self.known(summary)).take_while(|&word| word < WORDS) {
            let register = element(array, 8, word);
            // All ones can be real (64 pending queues), so they are not taken for a removed device.
            // If the device is gone, the spurious queues find out when they read their own state.
            let set = self.read(register);
            if clear && set != 0 {
                self.write(register, set);
                // The read makes the clearing write arrive before a fence in memory is looked at.
                // Otherwise a bit that is set between would be cleared unseen.
                let _ = self.read(register);
            }
            for bit in bits(set) {
                let queue = word.saturating_mul(WORD).saturating_add(bit);
                if queue < self.limits.queues {
                    visit(queue);
                }
            }
        }
    }
}

impl Hardware for TestGpu {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn cause(&self, index: u32) -> Cause {
        match 1_u64.wrapping_shl(index) {
            INT_COMPLETION => Cause::Completion,
            _ => Cause::Schedule,
        }
    }

    fn prepare(&self) {
        *self.enabled.lock() = [0; WORDS as usize];
        self.faults.store(0, Relaxed);
        self.write(MAX_RUN_NS, self.limits.max_run);
        self.write(INT_STATUS, u64::MAX);
        self.write(INT_ENABLE, ENABLED);
        let _ = self.read(INT_ENABLE);
    }

    fn reset(&self) {
        self.write(RESET, 1);
    }

    fn is_reset(&self) -> bool {
        self.read(RESET) == 0
    }

    fn revoke(&self) {
        self.registers.revoke();
        self.doorbells.revoke();
        self.vram.revoke();
    }

    fn format(&self) -> Format {
        Format {
            valid: PTE_VALID,
            read: PTE_READ,
            write: PTE_WRITE,
            execute: PTE_EXECUTE,
            atomic: self.atomic,
            host: PTE_HOST,
            snoop: PTE_SNOOP,
            leaf: PTE_LEAF,
            giant: true,
            address: PTE_ADDRESS,
        }
    }

    fn load(&self, offset: u64) -> u64 {
        self.vram.read(offset)
    }

    fn store(&self, offset: u64, value: u64) {
        self.vram.write(offset, value);
    }

    fn zero(&self, offset: u64, bytes: u64) {
        self.vram.zero(offset, bytes);
    }

    fn order(&self) {
        self.vram.order();
    }

    fn load_page(&self, offset: u64, words: &mut [u64]) {
        self.vram.load(offset, words);
    }

    fn store_page(&self, offset: u64, words: &[u64]) {
        self.vram.store(offset, words);
    }

    fn save(&self, image: Image) {
        self.vram.save(image);
    }

    fn restore(&self) {
        self.vram.restore();
    }

    fn memory_frame(&self, offset: u64) -> u64 {
        self.vram_bar.start.saturating_add(offset) >> PAGE_SHIFT
    }

    fn doorbell_frame(&self, queue: u32) -> u64 {
        element(self.doorbell_bar.start, PAGE_SIZE, queue) >> PAGE_SHIFT
    }

    fn set_root(&self, vmid: u32, table: Option<Memory>) {
        let value = match table {
            Some(Memory::Vram(offset)) => offset | ROOT_ENABLE,
            Some(Memory::Host(address)) => address | ROOT_ENABLE | ROOT_HOST,
            None => 0,
        };
        self.write(element(ROOT, 8, vmid), value);
    }

    fn invalidate(&self, vmid: u32, span: Span, sequence: u64) {
        self.write(INV_SCOPE, vmid.into());
        self.write(INV_FIRST, span.start());
        self.write(INV_LAST, span.last());
        self.write(INV_SUBMIT, sequence);
    }

    fn invalidate_room(&self) -> u64 {
        self.known(INV_FREE)
    }

    fn invalidated(&self) -> Option<u64> {
        let done = self.read(INV_DONE);
        (done != u64::MAX).then_some(done)
    }

    #[cfg(pinmap_mirror)]
    fn copy(&self, copy: PageCopy, sequence: u64) {
        let (source, target) = match copy.way {
            Way::In(bus) => (bus | PAGING_HOST, copy.vram),
            Way::Home(bus) => (copy.vram, bus | PAGING_HOST),
            Way::Zeros => (PAGING_ZEROS, copy.vram),
        };
        self.write(PAGING_SOURCE, source);
        self.write(PAGING_TARGET, target);
        self.write(PAGING_BYTES, copy.bytes);
        self.write(PAGING_SUBMIT, sequence);
    }

    #[cfg(pinmap_mirror)]
    fn can_zero(&self) -> bool {
        self.can_zero
    }

    #[cfg(pinmap_mirror)]
    fn copy_room(&self) -> u64 {
        self.known(PAGING_FREE)
    }

    #[cfg(pinmap_mirror)]
    fn copied(&self) -> Option<u64> {
        let done = self.read(PAGING_DONE);
        (done != u64::MAX).then_some(done)
    }

    #[cfg(pinmap_mirror)]
    fn take_copy_error(&self) -> u64 {
        let code = self.read(PAGING_ERROR);
        if code != 0 {
            self.write(PAGING_ERROR, code);
        }
        code
    }

    #[cfg(pinmap_mirror)]
    fn is_prepared(&self) -> bool {
        // A reset disables all interrupts.
        self.read(INT_ENABLE) == ENABLED
    }

    #[cfg(pinmap_mirror)]
    fn reset_copier(&self) {
        self.write(ENGINE_RESET, 1 << PAGING_ENGINE);
    }

    #[cfg(pinmap_mirror)]
    fn save_page(&self, offset: u64, page: &NewPage) -> bool {
        self.vram.copy_page(offset, page)
    }

    fn open_queue(&self, queue: u32) {
        self.enable_doorbell(queue, false);
        // A doorbell store of the last owner may be on its way. It arrives before this read is
        // answered.
        let _ = self.published(queue);
        self.write(element(DOORBELL_VALUE, 8, queue), 0);
        for array in [PENDING, COMPLETION] {
            let (register, bit) = bit(array, queue);
            self.write(register, bit);
        }
        self.enable_doorbell(queue, true);
    }

    fn close_queue(&self, queue: u32) {
        self.enable_doorbell(queue, false);
    }

    fn published(&self, queue: u32) -> u64 {
        self.read(element(DOORBELL_VALUE, 8, queue))
    }

    fn publish(&self, queue: u32, index: u64) {
        self.doorbells.write(element(0, PAGE_SIZE, queue), index);
    }

    fn acknowledge(&self, cause: Cause) {
        let causes = match cause {
            Cause::Completion => INT_COMPLETION,
            Cause::Schedule => INT_PENDING | INT_FAULT | INT_SLOT,
        };
        self.write(INT_STATUS, causes);
    }

    fn each_pending(&self, visit: &mut dyn FnMut(u32)) {
        self.each(PENDING_SUMMARY, PENDING, false, visit);
    }

    fn forget_pending(&self, queue: u32) {
        let (register, bit) = bit(PENDING, queue);
        self.write(register, bit);
    }

    fn each_completion(&self, visit: &mut dyn FnMut(u32)) {
        self.each(COMPLETION_SUMMARY, COMPLETION, true, visit);
    }

    fn take_slot_events(&self) -> u64 {
        let events = self.known(SLOT_EVENT);
        if events != 0 {
            self.write(SLOT_EVENT, events);
        }
        events
    }

    fn each_fault(&self, visit: &mut dyn FnMut(u32, Stop)) {
        let written = self.known(FAULT_WRITE);
        let entries = self.fault_entries;
        // No more than there can be, whatever the device returns.
        let oldest = written.saturating_sub(entries);
        let mut read = self.faults.load(Relaxed).max(oldest);
        if read >= written {
            return;
        }
        while read < written {
            let place = read.checked_rem(entries).unwrap_or(0);
            let entry = FAULT_ENTRY.saturating_add(place.saturating_mul(FAULT_STRIDE));
            let at = |offset: u64| self.known(entry.saturating_add(offset));
            let info = at(FAULT_INFO);
            let code = field(info, 23, 16);
            let access = access(field(info, 9, 8));
            let stop = stop(code, access, at(FAULT_VA), at(FAULT_INDEX));
            visit(field(info, 41, 32) as u32, stop);
            read = read.saturating_add(1);
        }
        self.faults.store(read, Relaxed);
        self.write(FAULT_READ, read);
    }

    fn bind(&self, slot: u32, setup: &Setup) -> Result {
        let mut classes = 0;
        if setup.classes & uapi::PINMAP_QUEUE_COPY != 0 {
            classes |= CLASS_COPY;
        }
        if setup.classes & uapi::PINMAP_QUEUE_COMPUTE != 0 {
            classes |= CLASS_COMPUTE;
        }
        let config = u64::from(setup.queue)
            | u64::from(setup.vmid) << 16
            | classes << 24
            | u64::from(setup.priority) << 28;
        let values = [
            (SLOT_CONFIG, config),
            (SLOT_RING, setup.ring),
            (SLOT_SIZE, setup.order.into()),
            (SLOT_READ_INDEX, setup.progress.index),
            (SLOT_PROGRESS, setup.progress.part),
            (SLOT_COMMAND, COMMAND_BIND),
        ];
        for (register, value) in values {
            self.write(self.slot(slot, register), value);
        }
        if self.result(slot) == RESULT_OK {
            Ok(())
        } else {
            Err(EIO)
        }
    }

    fn unbind(&self, slot: u32) {
        self.write(self.slot(slot, SLOT_COMMAND), COMMAND_UNBIND);
    }

    fn retry(&self, slot: u32) {
        self.write(self.slot(slot, SLOT_COMMAND), COMMAND_RETRY);
    }

    fn slot_state(&self, slot: u32) -> Option<SlotState> {
        let state = self.read(self.slot(slot, SLOT_STATE));
        if state == u64::MAX {
            return None;
        }
        match field(state, 3, 0) {
            STATE_FREE => Some(SlotState::Free),
            STATE_IDLE => Some(SlotState::Idle),
            STATE_READY => Some(SlotState::Ready),
            STATE_RUNNING => Some(SlotState::Running),
            STATE_WAITING => Some(SlotState::Waiting),
            STATE_FAULTED => Some(SlotState::Faulted),
            STATE_ERROR => Some(SlotState::Failed),
            STATE_UNBINDING => Some(SlotState::Unbinding),
            _ => None,
        }
    }

    fn slot_since(&self, slot: u32) -> u64 {
        self.known(self.slot(slot, SLOT_SINCE))
    }

    fn slot_progress(&self, slot: u32) -> Progress {
        Progress {
            index: self.known(self.slot(slot, SLOT_READ_INDEX)),
            part: self.known(self.slot(slot, SLOT_PROGRESS)),
        }
    }

    fn slot_stop(&self, slot: u32) -> Stop {
        let at = |offset| self.known(self.slot(slot, offset));
        let (code, addr) = (at(SLOT_ERROR), at(SLOT_FAULT_VA));
        stop(code, uapi::PINMAP_ACCESS_READ, addr, at(SLOT_READ_INDEX))
    }

    fn is_held(&self, slot: u32) -> bool {
        self.read(self.slot(slot, SLOT_ENGINE)) < NO_ENGINE
    }

    fn reset_engine(&self, slot: u32) -> bool {
        self.write(self.slot(slot, SLOT_COMMAND), COMMAND_RESET);
        self.result(slot) == RESULT_OK
    }

    fn time(&self) -> u64 {
        self.known(TIME)
    }

    fn describe(&self, info: &mut pinmap_gpu_info) {
        info.out_nr_queues = self.limits.queues;
        // VMID 0 is not used.
        info.out_nr_vmids = self.limits.vmids.saturating_sub(1);
        info.out_nr_slots = self.limits.slots;
        info.out_nr_copy_engines = self.known(COPY_ENGINES) as u32;
        info.out_nr_compute_slots = self.known(COMPUTE_SLOTS) as u32;
        info.out_max_priority = self.limits.max_priority;
        info.out_vram_length = self.limits.vram;
        info.out_max_transfer = self.known(MAX_TRANSFER);
        info.out_max_run_ns = self.limits.max_run;
        info.out_link_bandwidth = self.known(LINK_BANDWIDTH);
        info.out_link_latency_ns = self.known(LINK_LATENCY);
        info.out_vram_bandwidth = self.known(VRAM_BANDWIDTH);
        info.out_vram_latency_ns = self.known(VRAM_LATENCY);
        info.out_time_ns = self.time();
    }

    fn count(&self, counters: &mut pinmap_gpu_counters) {
        let engines = self
            .known(COPY_ENGINES)
            .saturating_add(self.known(COMPUTE_SLOTS));
        counters.out_tlb_hits = self.known(TLB_HITS);
        counters.out_tlb_misses = self.known(TLB_MISSES);
        counters.out_faults = self.known(FAULTS);
        counters.out_binds = self.known(BINDS);
        counters.out_invalidates = self.known(INVALIDATES);
        let engines = engines.min(counters.out_engines.len() as u64) as u32;
        counters.out_nr_engines = engines;
        for (index, out) in (0..engines).zip(&mut counters.out_engines) {
            let at = |offset: u64| {
                let engine = element(ENGINE, ENGINE_STRIDE, index);
                self.known(engine.saturating_add(offset))
            };
            out.host_read = at(ENGINE_HOST_READ);
            out.host_written = at(ENGINE_HOST_WRITTEN);
            out.vram_read = at(ENGINE_VRAM_READ);
            out.vram_written = at(ENGINE_VRAM_WRITTEN);
            out.packets = at(ENGINE_PACKETS);
            out.busy_ns = at(ENGINE_BUSY_NS);
        }
    }
}
