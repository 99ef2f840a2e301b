// SPDX-License-Identifier: MIT OR Apache-2.0
//! An engine. It takes a packet, executes it, and reports the outcome. The paging engine does so
//! with copies.

use crate::compute::{self, Buffers};
use crate::device::Device;
use crate::fault::{Fault, Reason};
use crate::kernel;
use crate::pacer::{Pacer, Stop, CHUNK};
use crate::packet::{decode, words, Arguments, Packet, PACKET_SIZE};
use crate::paging::Transfer;
use crate::port::Port;
use crate::program::Held;
use crate::regs;
use crate::slot::Stamp;
use crate::state::{class_of, kinds_in, kinds_of, Job, Outcome, Pick, State, WAKE_PAGING};
use crate::sys::wake_on_time;
use std::sync::atomic::Ordering;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// How often a stuck engine checks whether it is still stuck.
const STUCK_PERIOD: Duration = Duration::from_millis(1);

/// Body of the thread of an engine that executes packets; returns when the device is closed.
pub fn run(device: &Device, engine: usize) {
    wake_on_time();
    let mut buffers = Buffers::default();
    loop {
        let mut state = device.lock();
        if state.closed {
            return;
        }
        match state.pick(engine) {
            Pick::Wait(until) => device.wait(state, class_of(engine), until),
            Pick::Job(job) => {
                device.unlock(state);
                serve(device, engine, job, &mut buffers);
            }
        }
    }
}

/// Body of the paging engine's thread; returns when the device is closed.
pub fn run_paging(device: &Device) {
    wake_on_time();
    let mut buffer = vec![0; CHUNK];
    loop {
        let mut state = device.lock();
        if state.closed {
            return;
        }
        match state.begin_copy() {
            None => device.wait(state, WAKE_PAGING, None),
            Some((transfer, limit)) => {
                device.unlock(state);
                copy(device, &transfer, limit, &mut buffer);
            }
        }
    }
}

fn copy(device: &Device, transfer: &Transfer, limit: Duration, buffer: &mut [u8]) {
    let engine = regs::PAGING_ENGINE as usize;
    let hardware = device.hardware();
    let outcome = hold(device, engine, || {
        let mut pacer = Pacer::new(hardware, engine, device.abandon(engine), limit);
        transfer.execute(hardware, &mut pacer, buffer)
    });
    if outcome.is_ok() {
        let counters = &hardware.counters;
        counters.add_engine(engine, regs::ENGINE_PACKETS, 1);
    }
    let mut state = device.lock();
    state.complete_copy(outcome);
    let_go(device, engine, state);
}

fn serve(device: &Device, engine: usize, mut job: Job, buffers: &mut Buffers) {
    let held = job.held.take();
    let mut execution = Execution {
        device,
        engine,
        job: &job,
        opcode: 0,
        progress: job.progress,
        held,
    };
    let began = device.hardware().now();
    let outcome =
        hold(device, engine, || execution.run(buffers)).unwrap_or_else(|stop| match stop {
            Stop::Fault(fault) => Outcome::Stopped(fault),
            Stop::Abandoned => Outcome::Abandoned,
        });
    if let Outcome::Done { .. } = outcome {
        let counters = &device.hardware().counters;
        counters.add_engine(engine, regs::ENGINE_PACKETS, 1);
    }
    let stamp = Stamp {
        began,
        ended: device.hardware().now(),
        engine,
    };
    let mut state = device.lock();
    let (opcode, progress) = (execution.opcode, execution.progress);
    let held = execution.held;
    state.complete(stamp, &job, opcode, (progress, held), outcome);
    let_go(device, engine, state);
}

/// Does the work that an engine holds, unless a reset ends it, and counts the time.
fn hold<T>(
    device: &Device,
    engine: usize,
    work: impl FnOnce() -> Result<T, Stop>,
) -> Result<T, Stop> {
    let start = Instant::now();
    let result = match stay_stuck(device, engine) {
        true => Err(Stop::Abandoned),
        false => work(),
    };
    if let Err(Stop::Abandoned) = result {
        keep_holding(device, engine);
    }
    let counters = &device.hardware().counters;
    let busy = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    counters.add_engine(engine, regs::ENGINE_BUSY_NS, busy);
    result
}

/// Makes an engine whose outcome is recorded ready for what comes next.
fn let_go(device: &Device, engine: usize, state: MutexGuard<'_, State>) {
    if state.resetting.is_none() {
        device.abandon(engine).store(false, Ordering::Relaxed);
    }
    device.unlock(state);
}

/// Does nothing while `KNOB_STUCK` is set for the engine. Returns true if a reset ended that.
fn stay_stuck(device: &Device, engine: usize) -> bool {
    loop {
        if device.abandon(engine).load(Ordering::Relaxed) {
            return true;
        }
        if device.lock().knobs.stuck & (1 << engine) == 0 {
            return false;
        }
        std::thread::sleep(STUCK_PERIOD);
    }
}

/// Keeps the packet or copy while `NO_ACK_ENGINE_RESET` is set, unless the whole device is reset.
fn keep_holding(device: &Device, engine: usize) {
    loop {
        let state = device.lock();
        let held = state.knobs.no_ack & regs::NO_ACK_ENGINE_RESET != 0
            && state.engine_resets & (1 << engine) != 0;
        if !held || state.resetting.is_some() || state.closed {
            return;
        }
        drop(state);
        std::thread::sleep(STUCK_PERIOD);
    }
}

struct Execution<'a> {
    device: &'a Device,
    engine: usize,
    job: &'a Job,
    opcode: u8,
    progress: u64,
    held: Option<Box<Held>>,
}

impl Execution<'_> {
    fn run(&mut self, buffers: &mut Buffers) -> Result<Outcome, Stop> {
        let job = self.job;
        if !job.valid_index {
            return Err(Reason::BadIndex.into());
        }
        let abandon = self.device.abandon(self.engine);
        let hardware = self.device.hardware();
        let mut port = Port::new(hardware, self.engine, job.victim.vmid, abandon, job.max_run);
        let bytes = port.fetch::<PACKET_SIZE>(job.va)?;
        let packet = decode(words(&bytes));
        self.opcode = bytes[0];
        let packet = packet.map_err(Fault::error)?;
        if packet.kinds() & kinds_of(self.engine) == 0 {
            return match packet.kinds() & kinds_in(job.classes) {
                0 => Err(Reason::BadClass.into()),
                kinds => Ok(Outcome::Elsewhere(kinds)),
            };
        }
        let outcome = self.execute(&mut port, packet, buffers)?;
        port.pacer.settle()?;
        Ok(outcome)
    }

    fn execute(
        &mut self,
        port: &mut Port<'_>,
        packet: Packet,
        buffers: &mut Buffers,
    ) -> Result<Outcome, Stop> {
        let progress = &mut self.progress;
        let (mut fence, mut interrupt) = (false, false);
        match packet {
            Packet::Nop => {}
            Packet::Copy {
                source,
                destination,
                bytes,
                ..
            } => {
                compute::copy(port, buffers, (source, destination, bytes), progress)?;
            }
            Packet::Fill {
                destination,
                bytes,
                pattern,
            } => {
                compute::fill(port, buffers, (destination, bytes, pattern), progress)?;
            }
            Packet::Launch { kernel, arguments } => {
                let arguments = match arguments {
                    Arguments::Inline(arguments) => arguments,
                    Arguments::Indirect(va) => indirect(port, va)?,
                };
                let kernel = kernel::decode(kernel, arguments).map_err(Fault::error)?;
                let settings = self.device.hardware().settings();
                if matches!(kernel, kernel::Kernel::Program { .. }) && !settings.programs {
                    return Err(Fault::error(Reason::BadKernel).into());
                }
                compute::run(port, buffers, kernel, progress, &mut self.held)?;
            }
            Packet::FenceWrite { va, value } => {
                port.store(va, |_| value)?;
                fence = true;
            }
            Packet::FenceWait { va, until } => {
                if !until.is_met(port.load(va)?) {
                    return Ok(Outcome::Waiting);
                }
            }
            Packet::Timestamp { va, packet: false } => {
                port.store(va, |hardware| hardware.now())?;
            }
            Packet::Timestamp { va, packet: true } => port.stamp(va, self.job.last)?,
            Packet::Interrupt => {
                port.pacer.settle()?;
                let delay = self.device.lock().knobs.delay();
                port.pacer.delay(delay)?;
                interrupt = true;
            }
        }
        Ok(Outcome::Done { fence, interrupt })
    }
}

/// Reads the arguments of a kernel from memory.
fn indirect(port: &mut Port<'_>, va: u64) -> Result<[u64; 7], Stop> {
    let mut bytes = [0; 56];
    port.read(va, &mut bytes)?;
    let mut arguments = [0; 7];
    for (argument, bytes) in arguments.iter_mut().zip(bytes.chunks_exact(8)) {
        *argument = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    Ok(arguments)
}
