// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control thread. It does what takes time and belongs to no engine: INVALIDATE, delayed
//! completions, resets.

use crate::device::Device;
use crate::port::Port;
use crate::regs;
use crate::state::{Reset, State, WAKE_CONTROL};
use crate::sys::wake_on_time;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How long a function-level reset takes at least. It is longer than software needs to go on, so
/// that software which does not wait is always found out.
const FUNCTION_RESET: Duration = Duration::from_millis(100);

/// Body of the control thread; returns when the device is closed.
pub fn run(device: &Device) {
    wake_on_time();
    loop {
        let mut state = device.lock();
        if state.closed {
            return;
        }
        let now = Instant::now();
        if state.posted.due().is_some_and(|due| due <= now) {
            device.arrive(&mut state, Some(now));
            device.unlock(state);
            continue;
        }
        if let Some(reset) = state.resetting {
            if state.busy() != 0 {
                device.wait(state, WAKE_CONTROL, None);
                continue;
            }
            drop(state);
            carry_out_reset(device, reset);
            continue;
        }
        if let Some(scope) = state.invalidates.begin() {
            drop(state);
            let dropped = device.hardware().mmu.invalidate(scope);
            device.hardware().counters.add(regs::INVALIDATES, 1);
            let mut state = device.lock();
            if let Some(address) = dropped {
                state.knobs.dropped(address);
            }
            let due = Instant::now() + state.knobs.delay();
            state.invalidates.finish(due);
            device.unlock(state);
            continue;
        }
        if let Some((slot, vmid, held)) = state.begin_save() {
            drop(state);
            let never = AtomicBool::new(false);
            let engine = regs::COPY_ENGINE_COUNT;
            let mut port = Port::new(device.hardware(), engine, vmid, &never, Duration::ZERO);
            let progress = held.save(&mut port);
            let mut state = device.lock();
            state.end_save(slot, progress);
            device.unlock(state);
            continue;
        }
        if let Some(address) = state.knobs.take_write(Instant::now()) {
            drop(state);
            let written = device
                .hardware()
                .store(true, address, regs::AFTER_UNMAP_MARKER);
            let mut state = device.lock();
            state.knobs.after_address = address;
            state.knobs.after_result = if written.is_ok() { 1 } else { 2 };
            device.unlock(state);
            continue;
        }
        let next = complete(&mut state);
        let wake = std::mem::take(&mut state.wake);
        debug_assert_eq!(wake & !WAKE_CONTROL, 0);
        device.wait(state, WAKE_CONTROL, next);
    }
}

/// Completes everything that is due. Returns when the next completion is due.
fn complete(state: &mut State) -> Option<Instant> {
    let now = Instant::now();
    let mut next = earliest(state.finish_unbinds(), state.posted.due());
    next = earliest(next, state.end_copies());
    if state.knobs.no_ack & regs::NO_ACK_INVALIDATE == 0 {
        if state.invalidates.acknowledge(now) {
            state.raise(regs::INT_INVALIDATE);
        }
        if state.invalidates.is_idle() {
            state.knobs.acknowledged(now);
        }
        next = earliest(next, state.invalidates.due());
    }
    earliest(next, state.knobs.due())
}

fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// All engines are parked and stay parked.
fn carry_out_reset(device: &Device, reset: Reset) {
    let hardware = device.hardware();
    hardware.mmu.reset();
    if reset == Reset::Function {
        std::thread::sleep(FUNCTION_RESET);
        hardware.reset_function();
    }
    let mut state = device.lock();
    if state.resetting > Some(reset) {
        // A greater reset was requested in the meantime.
        return;
    }
    state.reset();
    device.end_reset(&mut state);
    device.unlock(state);
}
