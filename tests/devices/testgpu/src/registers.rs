// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers of BAR 0.

use crate::device::Device;
use crate::hardware::Hardware;
use crate::link::Speed;
use crate::regs;
use crate::slot::Phase;
use crate::state::{Reset, State, WAKE_CONTROL, WAKE_PAGING};

/// Returns which element of an array contains an offset, and the offset within it; `None` if the
/// offset is outside of the array.
fn element(offset: u64, base: u64, stride: u64, count: usize) -> Option<(usize, u64)> {
    let offset = offset.checked_sub(base)?;
    let index = usize::try_from(offset / stride).ok()?;
    (index < count).then_some((index, offset % stride))
}

fn bitmap(offset: u64, base: u64) -> Option<usize> {
    element(offset, base, 8, regs::BITMAP_WORDS).map(|(index, _)| index)
}

fn slot(offset: u64) -> Option<(usize, u64)> {
    element(offset, regs::SLOT, regs::SLOT_STRIDE, regs::SLOT_COUNT)
}

fn root(offset: u64) -> Option<usize> {
    element(offset, regs::ROOT, 8, regs::VMID_COUNT).map(|(vmid, _)| vmid)
}

fn doorbell_value(offset: u64) -> Option<usize> {
    element(offset, regs::DOORBELL_VALUE, 8, regs::QUEUE_COUNT).map(|(queue, _)| queue)
}

/// Returns shift and mask of the part of a register that an access is about. `None` if the access
/// is not allowed.
fn part(offset: u64, bytes: usize) -> Option<(u32, u64)> {
    match (bytes, offset % 8) {
        _ if offset >= regs::BAR0_SIZE => None,
        (8, 0) => Some((0, u64::MAX)),
        (4, 0) => Some((0, 0xffff_ffff)),
        (4, 4) => Some((32, 0xffff_ffff)),
        _ => None,
    }
}

/// Reads 4 or 8 bytes.
pub fn read(state: &State, offset: u64, bytes: usize) -> u64 {
    let bad = || state.hardware().counters.add(regs::BAD_ACCESSES, 1);
    let Some((shift, mask)) = part(offset, bytes) else {
        bad();
        return u64::MAX;
    };
    let value = register(state, offset & !7).unwrap_or_else(|| {
        bad();
        0
    });
    (value >> shift) & mask
}

fn register(state: &State, offset: u64) -> Option<u64> {
    let hardware = &**state.hardware();
    if let Some(value) = fixed(hardware, offset) {
        return Some(value);
    }
    if let Some(value) = hardware.counters.read(offset) {
        return Some(value);
    }
    if let Some(vmid) = root(offset) {
        return Some(hardware.mmu.root(vmid));
    }
    if let Some(queue) = doorbell_value(offset) {
        return Some(state.write_index(queue));
    }
    if let Some((number, offset)) = slot(offset) {
        return slot_register(state, number, offset);
    }
    for (base, words) in [
        (regs::PENDING, &state.pending),
        (regs::COMPLETION, &state.completion),
        (regs::DOORBELL_ENABLE, &state.enabled),
    ] {
        if let Some(word) = bitmap(offset, base) {
            return Some(words[word]);
        }
    }
    if let Some((place, offset)) = element(
        offset,
        regs::FAULT_ENTRY,
        regs::FAULT_STRIDE,
        regs::FAULT_COUNT,
    ) {
        return Some(state.faults.place(place)[(offset / 8) as usize]);
    }
    variable(state, offset)
}

/// Reads the registers that describe the device.
fn fixed(hardware: &Hardware, offset: u64) -> Option<u64> {
    let message = match hardware.bus().is_message() {
        true => regs::FEATURE_MESSAGE,
        false => 0,
    };
    let integrated = match hardware.settings().integrated {
        true => regs::FEATURE_INTEGRATED,
        false => 0,
    };
    let programs = match hardware.settings().programs {
        true => regs::FEATURE_PROGRAM,
        false => 0,
    };
    let always = regs::FEATURE_COPY
        | regs::FEATURE_COMPUTE
        | regs::FEATURE_RETRY
        | regs::FEATURE_KNOBS
        | regs::FEATURE_PAGING
        | regs::FEATURE_ATOMIC
        | regs::FEATURE_ZEROS
        | regs::FEATURE_STAMP;
    Some(match offset {
        regs::MAGIC => u64::from_le_bytes(*b"TESTGPU1"),
        regs::VERSION => (1 << 16) | 4,
        regs::FEATURES => always | message | integrated | programs,
        regs::VRAM_SIZE => hardware.vram.size(),
        regs::DOORBELLS => regs::QUEUE_COUNT as u64,
        regs::SLOTS => regs::SLOT_COUNT as u64,
        regs::COPY_ENGINES => regs::COPY_ENGINE_COUNT as u64,
        regs::COMPUTE_SLOTS => regs::COMPUTE_SLOT_COUNT as u64,
        regs::VMIDS => regs::VMID_COUNT as u64,
        regs::VA_BITS => u64::from(regs::VA_END.trailing_zeros()),
        regs::BUS_BITS => u64::from(u64::BITS - regs::PTE_ADDRESS.leading_zeros()),
        regs::MAX_TRANSFER => regs::TRANSFER_LIMIT,
        regs::TLB_ENTRIES => crate::tlb::SMALL_ENTRIES as u64,
        regs::FAULT_ENTRIES => regs::FAULT_COUNT as u64,
        regs::VECTORS => regs::VECTOR_COUNT as u64,
        regs::TIME => hardware.now(),
        regs::BUS_MASTER => u64::from(hardware.is_master()),
        regs::LINK_BANDWIDTH => hardware.link.speed().bandwidth,
        regs::LINK_LATENCY => hardware.link.speed().latency,
        regs::VRAM_BANDWIDTH => hardware.vram_link.speed().bandwidth,
        regs::VRAM_LATENCY => hardware.vram_link.speed().latency,
        regs::PROGRAM_RATE => hardware.program_rate(),
        regs::DMA_MAPPED => hardware.bus().counts().live,
        regs::DMA_MAPS => hardware.bus().counts().mapped,
        regs::DMA_UNMAPS => hardware.bus().counts().unmapped,
        regs::MESSAGE_ACCESSES => hardware.messages(),
        _ => return None,
    })
}

fn summary(words: &[u64]) -> u64 {
    (0..).zip(words).fold(0, |mask, (number, word)| {
        mask | (u64::from(*word != 0) << number)
    })
}

fn variable(state: &State, offset: u64) -> Option<u64> {
    Some(match offset {
        regs::RESET => u64::from(state.resetting.is_some()),
        regs::MAX_RUN_NS => state.max_run(),
        regs::SCRATCH => state.scratch,
        regs::ENGINE_RESET => state.engine_resets,
        regs::ENGINE_BUSY => state.busy(),
        regs::INT_STATUS => state.interrupts.status(),
        regs::INT_ENABLE => state.interrupts.enabled(),
        regs::PENDING_SUMMARY => summary(&state.pending),
        regs::COMPLETION_SUMMARY => summary(&state.completion),
        regs::SLOT_EVENT => state.slot_event,
        regs::INV_SCOPE => state.invalidates.scope,
        regs::INV_FIRST => state.invalidates.first,
        regs::INV_LAST => state.invalidates.last,
        regs::INV_SUBMIT => 0,
        regs::INV_DONE => state.invalidates.done,
        regs::INV_FREE => state.invalidates.free() as u64,
        regs::PAGING_SOURCE => state.paging.source(),
        regs::PAGING_TARGET => state.paging.target(),
        regs::PAGING_BYTES => state.paging.bytes(),
        regs::PAGING_SUBMIT => 0,
        regs::PAGING_DONE => state.paging.done(),
        regs::PAGING_FREE => state.paging.free() as u64,
        regs::PAGING_ERROR => state.paging.error(),
        regs::FAULT_WRITE => state.faults.written(),
        regs::FAULT_READ => state.faults.taken(),
        regs::FAULT_DROPPED => state.faults.dropped(),
        regs::KNOB_LOSE_INTERRUPTS => state.interrupts.lose,
        regs::KNOB_DELAY_NS => state.knobs.delay_register(),
        regs::KNOB_AFTER_UNMAP => state.knobs.after_unmap(),
        regs::KNOB_AFTER_RESULT => state.knobs.after_result,
        regs::KNOB_AFTER_ADDRESS => state.knobs.after_address,
        regs::KNOB_STUCK => state.knobs.stuck,
        regs::KNOB_NO_ACK => state.knobs.no_ack,
        regs::KNOB_POST_NS => state.posted.delay(),
        regs::KNOB_HOLD => state.invalidates.hold(),
        _ => return None,
    })
}

fn slot_register(state: &State, number: usize, offset: u64) -> Option<u64> {
    let slot = &state.slots[number];
    Some(match offset {
        regs::SLOT_CONFIG => slot.config(),
        regs::SLOT_RING => slot.ring,
        regs::SLOT_SIZE => slot.size,
        regs::SLOT_READ_INDEX => slot.read_index,
        regs::SLOT_PROGRESS => slot.progress,
        regs::SLOT_COMMAND => 0,
        regs::SLOT_STATE => slot.state() | (slot.result << 8),
        regs::SLOT_SINCE => slot.since,
        regs::SLOT_ERROR => slot.error,
        regs::SLOT_FAULT_VA => slot.fault_va,
        regs::SLOT_WRITE_INDEX if slot.phase == Phase::Free => 0,
        regs::SLOT_WRITE_INDEX => state.write_index(slot.queue()),
        regs::SLOT_ENGINE => slot.engine.map_or(0xff, |engine| engine as u64),
        _ => return None,
    })
}

/// Makes engines abandon their packets.
fn abandon(device: &Device, engines: u64) {
    for engine in (0..regs::ENGINE_COUNT).filter(|engine| engines & (1 << engine) != 0) {
        device
            .abandon(engine)
            .store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Writes 4 or 8 bytes.
pub fn write(device: &Device, state: &mut State, offset: u64, bytes: usize, value: u64) {
    let done = part(offset, bytes).and_then(|(shift, mask)| {
        if state.resetting.is_some() {
            // The access is allowed and has no effect.
            return Some(());
        }
        let write = Write {
            offset: offset & !7,
            value: (value & mask) << shift,
            mask: mask << shift,
        };
        write.carry_out(device, state)
    });
    if done.is_none() {
        state.hardware().counters.add(regs::BAD_ACCESSES, 1);
    }
}

/// A write of one register or of half of it. The methods return `None` for a bad access.
struct Write {
    offset: u64,
    value: u64,
    mask: u64,
}

impl Write {
    /// Returns the new value of a register that can be read and written.
    fn over(&self, old: u64) -> u64 {
        old & !self.mask | self.value
    }

    fn to(&self, register: &mut u64) -> Option<()> {
        *register = self.over(*register);
        Some(())
    }

    /// Returns the command, if the low half is written.
    fn command(&self) -> Option<u64> {
        (self.mask & 1 == 1).then_some(self.value)
    }

    fn carry_out(&self, device: &Device, state: &mut State) -> Option<()> {
        let offset = self.offset;
        if let Some((number, offset)) = slot(offset) {
            return self.slot(device, state, number, offset);
        }
        if let Some(vmid) = root(offset) {
            let mmu = &device.hardware().mmu;
            mmu.set_root(vmid, self.over(mmu.root(vmid)));
            return Some(());
        }
        if let Some(queue) = doorbell_value(offset) {
            state.set_write_index(queue, self.over(state.write_index(queue)));
            return Some(());
        }
        if let Some(word) = bitmap(offset, regs::PENDING) {
            state.pending[word] &= !self.value;
            return Some(());
        }
        if let Some(word) = bitmap(offset, regs::COMPLETION) {
            state.completion[word] &= !self.value;
            return Some(());
        }
        if let Some(word) = bitmap(offset, regs::DOORBELL_ENABLE) {
            return self.to(&mut state.enabled[word]);
        }
        self.control(device, state)
            .or_else(|| self.paging(state))
            .or_else(|| self.bus_model(device.hardware()))
            .or_else(|| self.knob(state))
    }

    fn slot(&self, device: &Device, state: &mut State, number: usize, offset: u64) -> Option<()> {
        if offset == regs::SLOT_COMMAND {
            let busy = state.command(number, self.command()?);
            abandon(device, busy);
            return Some(());
        }
        let slot = &mut state.slots[number];
        if slot.phase != Phase::Free {
            return None;
        }
        match offset {
            regs::SLOT_CONFIG => {
                slot.set_config(self.over(slot.config()));
                Some(())
            }
            regs::SLOT_RING => self.to(&mut slot.ring),
            regs::SLOT_SIZE => self.to(&mut slot.size),
            regs::SLOT_READ_INDEX => self.to(&mut slot.read_index),
            regs::SLOT_PROGRESS => self.to(&mut slot.progress),
            _ => None,
        }
    }

    fn control(&self, device: &Device, state: &mut State) -> Option<()> {
        let hardware = device.hardware();
        match self.offset {
            regs::RESET => {
                if self.command()? == 1 {
                    device.begin_reset(state, Reset::Device);
                }
            }
            regs::MAX_RUN_NS => state.set_max_run(self.over(state.max_run())),
            regs::SCRATCH => self.to(&mut state.scratch)?,
            regs::ENGINE_RESET => {
                let busy = state.reset_engines(self.command()?);
                abandon(device, busy);
            }
            regs::INT_STATUS => state.interrupts.clear(self.value),
            regs::INT_ENABLE => {
                let causes = self.over(state.interrupts.enabled());
                state.interrupts.enable(causes, hardware);
            }
            regs::SLOT_EVENT => state.slot_event &= !self.value,
            regs::INV_SCOPE => self.to(&mut state.invalidates.scope)?,
            regs::INV_FIRST => self.to(&mut state.invalidates.first)?,
            regs::INV_LAST => self.to(&mut state.invalidates.last)?,
            regs::INV_SUBMIT => {
                let sequence = self.command()?;
                state.wake |= WAKE_CONTROL;
                return state.invalidates.submit(sequence).then_some(());
            }
            regs::FAULT_READ => {
                let index = self.over(state.faults.taken());
                return state.faults.take(index).then_some(());
            }
            _ => return None,
        }
        Some(())
    }

    fn paging(&self, state: &mut State) -> Option<()> {
        let paging = &mut state.paging;
        match self.offset {
            regs::PAGING_SOURCE => paging.set_source(self.over(paging.source())),
            regs::PAGING_TARGET => paging.set_target(self.over(paging.target())),
            regs::PAGING_BYTES => paging.set_bytes(self.over(paging.bytes())),
            regs::PAGING_SUBMIT => {
                let sequence = self.command()?;
                state.wake |= WAKE_PAGING;
                return paging.submit(sequence).then_some(());
            }
            regs::PAGING_ERROR => paging.clear_error(self.value),
            _ => return None,
        }
        Some(())
    }

    fn bus_model(&self, hardware: &Hardware) -> Option<()> {
        let link = match self.offset {
            regs::PROGRAM_RATE => {
                hardware.set_program_rate(self.over(hardware.program_rate()));
                return Some(());
            }
            regs::LINK_BANDWIDTH | regs::LINK_LATENCY => &hardware.link,
            regs::VRAM_BANDWIDTH | regs::VRAM_LATENCY => &hardware.vram_link,
            _ => return None,
        };
        let speed = link.speed();
        link.set(match self.offset {
            regs::LINK_BANDWIDTH | regs::VRAM_BANDWIDTH => Speed {
                bandwidth: self.over(speed.bandwidth),
                ..speed
            },
            _ => Speed {
                latency: self.over(speed.latency),
                ..speed
            },
        });
        Some(())
    }

    fn knob(&self, state: &mut State) -> Option<()> {
        let knobs = &mut state.knobs;
        state.wake |= WAKE_CONTROL;
        match self.offset {
            regs::KNOB_LOSE_INTERRUPTS => self.to(&mut state.interrupts.lose),
            regs::KNOB_DELAY_NS => {
                knobs.set_delay(self.over(knobs.delay_register()));
                Some(())
            }
            regs::KNOB_AFTER_UNMAP => {
                knobs.set_after_unmap(self.over(knobs.after_unmap()));
                Some(())
            }
            regs::KNOB_STUCK => self.to(&mut knobs.stuck),
            regs::KNOB_NO_ACK => self.to(&mut knobs.no_ack),
            regs::KNOB_POST_NS => {
                let delay = self.over(state.posted.delay());
                state.posted.set_delay(delay);
                Some(())
            }
            regs::KNOB_HOLD => {
                let count = self.over(state.invalidates.hold());
                state.invalidates.set_hold(count);
                Some(())
            }
            _ => None,
        }
    }
}
