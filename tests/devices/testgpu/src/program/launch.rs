// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a launch: its blocks one after another, and the threads of a block in turns.

use super::descriptor::{coordinates, Descriptor, DESCRIPTOR_SIZE, REGISTER_BYTES};
use super::memory::{Code, Direct, Miss, Pages, Single};
use super::thread::{Csrs, Exit, Phase, Thread};
use super::{ring, save};
use crate::fault::{Access, Fault, Reason};
use crate::link::Direction;
use crate::pacer::Stop;
use crate::port::Port;
use crate::regs;
use std::time::Duration;

/// Instructions in a turn of a thread.
pub(super) const TURN: u32 = 4096;
/// Instructions for which the gates of MMU and bus are held.
const SESSION: u32 = 8192;
/// Where a thread jumps that returns from its entry.
const RETURN: u64 = !0xfff;

/// Progress of a launch whose state the device holds.
const HELD: u64 = 1;

/// State of a launch that stopped and can go on.
#[derive(Clone, Debug)]
pub struct Held {
    /// State of each thread of the block.
    pub(super) phases: Vec<Phase>,
    /// Where the registers of those are that run or wait.
    pub(super) places: Vec<usize>,
    pub(super) threads: Vec<Thread>,
    /// Places that are free; the one that was used last, which is near, is taken first.
    pub(super) free: Vec<usize>,
    /// Blocks that are done.
    pub(super) done: u64,
    /// The thread whose turn it is, and how many instructions it has left.
    pub(super) current: usize,
    pub(super) turn: u32,
    pub(super) instructions: u64,
    /// VA of the save area; 0: none.
    pub(super) save: u64,
}

/// Parts of a slot of the compute engine that only programs use.
#[derive(Debug)]
pub struct Units {
    pages: Pages,
    code: Code,
}

impl Default for Units {
    fn default() -> Self {
        Self {
            pages: Pages::new(),
            code: Code::new(),
        }
    }
}

/// Runs a launch, or goes on with one. `progress` and `held` say how far it has come.
pub fn run(
    port: &mut Port<'_>,
    units: &mut Units,
    va: u64,
    progress: &mut u64,
    held: &mut Option<Box<Held>>,
) -> Result<(), Stop> {
    let mut bytes = [0; DESCRIPTOR_SIZE];
    port.read(va, &mut bytes)?;
    let descriptor = Descriptor::decode(&bytes)?;
    let mut arguments = vec![0; descriptor.arguments_bytes as usize];
    port.read(descriptor.arguments, &mut arguments)?;
    if held.is_none() {
        *held = Some(Box::new(match *progress {
            0 => Held::new(&descriptor),
            save::SAVED => save::restore(port, &descriptor)?,
            _ => return Err(Reason::StateLost.into()),
        }));
    }
    let Some(mut state) = held.take().filter(|held| held.is_of(&descriptor)) else {
        return Err(Reason::StateLost.into());
    };
    state.save = descriptor.save;
    units.pages.clear();
    units.code.renew_all();
    let mut launch = Launch {
        descriptor: &descriptor,
        arguments: &arguments,
        units,
        state: &mut state,
        value: 0,
    };
    let result = launch.run(port);
    launch.report(port, va + regs::PROGRAM_REPORT, result);
    if matches!(result, Err(Stop::Fault(fault)) if fault.reason.can_be_retried()) {
        *progress = HELD;
        *held = Some(state);
    }
    result
}

impl Held {
    fn new(descriptor: &Descriptor) -> Self {
        Self {
            phases: vec![Phase::New; descriptor.threads() as usize],
            places: vec![0; descriptor.threads() as usize],
            threads: Vec::new(),
            free: Vec::new(),
            done: 0,
            current: 0,
            turn: TURN,
            instructions: 0,
            save: 0,
        }
    }

    /// Whether this can be the state of a launch.
    pub(super) fn is_of(&self, descriptor: &Descriptor) -> bool {
        self.phases.len() as u64 == descriptor.threads()
            && self.current < self.phases.len()
            && self.done <= descriptor.count
    }

    /// The thread whose turn it is, which runs.
    fn thread(&mut self) -> &mut Thread {
        &mut self.threads[self.places[self.current]]
    }

    /// Begins the thread whose turn it is.
    fn begin(&mut self, descriptor: &Descriptor, arguments: &[u8]) {
        self.phases[self.current] = Phase::Running;
        self.places[self.current] = self.free.pop().unwrap_or_else(|| {
            self.threads.push(Thread::default());
            self.threads.len() - 1
        });
        let sp = descriptor.stack(self.current as u64);
        let thread = self.thread();
        thread.clear();
        thread.pc = descriptor.entry;
        thread.x[1] = RETURN;
        thread.x[2] = sp;
        thread.x[3] = descriptor.gp;
        let (x, f) = (thread.x[10..18].iter_mut(), thread.f[10..18].iter_mut());
        for (register, bytes) in x.chain(f).zip(arguments.chunks_exact(8)) {
            *register = bytes.try_into().map_or(0, u64::from_le_bytes);
        }
    }

    /// Ends it.
    fn end(&mut self) {
        self.phases[self.current] = Phase::Ended;
        self.free.push(self.places[self.current]);
    }

    /// Gives the turn to the next thread. Returns whether that is the first one again.
    fn next(&mut self) -> bool {
        self.turn = TURN;
        self.current += 1;
        if self.current == self.phases.len() {
            self.current = 0;
        }
        self.current == 0
    }

    /// Ends a round, after which every thread had its turn: opens the barrier if all are there, and
    /// ends the block if none is left.
    fn end_round(&mut self) {
        let mut is_over = true;
        for phase in &self.phases {
            match phase {
                Phase::New | Phase::Running => return,
                Phase::Waiting => is_over = false,
                Phase::Ended => {}
            }
        }
        for phase in self.phases.iter_mut().filter(|_| !is_over) {
            if *phase == Phase::Waiting {
                *phase = Phase::Running;
            }
        }
        if is_over {
            self.done += 1;
            self.phases.fill(Phase::New);
        }
    }
}

/// The CSRs of a thread's place.
struct Place<'a> {
    descriptor: &'a Descriptor,
    port: &'a Port<'a>,
    thread: u64,
    block: u64,
    instructions: u64,
}

impl Csrs for Place<'_> {
    fn is_stack(&self, sp: u64) -> bool {
        self.descriptor.is_stack(self.thread, sp)
    }

    fn read(&self, number: u32, executed: u64) -> Option<u64> {
        let descriptor = self.descriptor;
        let instructions = self.instructions + executed;
        let number = u64::from(number);
        let triple = |first: u64, values: [u64; 3]| values[(number - first) as usize % 3];
        Some(match number {
            regs::CSR_CYCLE => instructions,
            regs::CSR_TIME if descriptor.deterministic => match self.port.hardware.program_rate() {
                0 => instructions,
                rate => (u128::from(instructions) * 1_000_000_000 / u128::from(rate)) as u64,
            },
            regs::CSR_TIME => self.port.hardware.now(),
            0xcc0..0xcc3 => triple(0xcc0, coordinates(self.thread, descriptor.block)),
            0xcc3..0xcc6 => triple(0xcc3, coordinates(self.block, descriptor.grid)),
            0xcc6..0xcc9 => triple(0xcc6, descriptor.block.map(u64::from)),
            0xcc9..0xccc => triple(0xcc9, descriptor.grid.map(u64::from)),
            regs::CSR_THREAD_NUMBER => self.thread,
            regs::CSR_BLOCK_NUMBER => self.block,
            regs::CSR_NUMBER => self.block * descriptor.threads() + self.thread,
            regs::CSR_SHARED => descriptor.shared,
            regs::CSR_SHARED_BYTES => descriptor.shared_bytes,
            regs::CSR_ENGINE => self.port.pacer.engine() as u64,
            _ => return None,
        })
    }
}

/// Why the threads stopped.
enum Pause {
    /// The launch is done.
    Done,
    /// Nothing is wrong.
    Enough,
    /// A thread begins that has arguments on its stack.
    Begin,
    /// The current thread cannot go on by itself.
    Exit(Exit),
}

struct Launch<'a> {
    descriptor: &'a Descriptor,
    arguments: &'a [u8],
    units: &'a mut Units,
    state: &'a mut Held,
    /// Value for the report.
    value: u64,
}

impl Launch<'_> {
    fn block(&self) -> u64 {
        self.descriptor.first + self.state.done
    }

    fn thread(&mut self) -> &mut Thread {
        self.state.thread()
    }

    fn run(&mut self, port: &mut Port<'_>) -> Result<(), Stop> {
        let mut missed = None;
        loop {
            port.pacer.check()?;
            let before = self.state.instructions;
            let pause = self.session(port);
            self.account(port, self.state.instructions - before);
            match pause {
                Pause::Done => return Ok(()),
                Pause::Enough => {}
                Pause::Begin => self.begin_with_arguments(port)?,
                Pause::Exit(exit) => self.serve(port, exit, &mut missed)?,
            }
        }
    }

    /// Executes instructions as long as nothing but direct accesses is needed.
    fn session(&mut self, port: &Port<'_>) -> Pause {
        let hardware = port.hardware;
        let passage = hardware.mmu.enter();
        let held = hardware.bus().hold();
        let generation = hardware.mmu.generation(&passage);
        let Units { pages, code } = &mut *self.units;
        pages.renew(generation, Some(held.generation));
        code.renew(generation);
        let mut data = Direct { pages, hardware };
        let mut left = SESSION;
        let state = &mut *self.state;
        while state.done < self.descriptor.count {
            if left == 0 {
                return Pause::Enough;
            }
            // Threads that do nothing take time, too.
            left -= 1;
            let block = self.descriptor.first + state.done;
            match state.phases[state.current] {
                Phase::Running => {}
                Phase::New if self.descriptor.stack_arguments() != 0 => return Pause::Begin,
                Phase::New => state.begin(self.descriptor, self.arguments),
                Phase::Waiting | Phase::Ended => {
                    if state.next() {
                        state.end_round();
                    }
                    continue;
                }
            }
            let place = Place {
                descriptor: self.descriptor,
                port,
                thread: state.current as u64,
                block,
                instructions: state.instructions,
            };
            let thread = &mut state.threads[state.places[state.current]];
            let budget = state.turn.min(left + 1);
            let mut rest = budget;
            let exit = thread.run(code, &mut data, &place, &mut rest);
            let executed = budget - rest;
            left = left.saturating_sub(executed);
            state.turn -= executed;
            state.instructions += u64::from(executed);
            let is_over = match exit {
                Exit::Enough => state.turn == 0,
                Exit::Pause => true,
                Exit::Synchronize => {
                    code.renew_all();
                    state.turn == 0
                }
                Exit::Fetch if thread.pc == RETURN => {
                    state.end();
                    true
                }
                Exit::Call if thread.x[17] == regs::CALL_EXIT => {
                    state.instructions += 1;
                    state.end();
                    true
                }
                Exit::Call if thread.x[17] == regs::CALL_BARRIER => {
                    state.instructions += 1;
                    thread.executed += 1;
                    thread.pc = thread.pc.wrapping_add(4);
                    state.phases[state.current] = Phase::Waiting;
                    true
                }
                exit => return Pause::Exit(exit),
            };
            if is_over && state.next() {
                state.end_round();
            }
        }
        Pause::Done
    }

    fn begin_with_arguments(&mut self, port: &mut Port<'_>) -> Result<(), Stop> {
        let number = self.state.current;
        let sp = self.descriptor.stack(number as u64);
        let rest = &self.arguments[REGISTER_BYTES as usize..];
        port.write(sp, rest, &mut 0)?;
        self.state.begin(self.descriptor, self.arguments);
        Ok(())
    }

    /// Does for the current thread what it could not do by itself.
    fn serve(
        &mut self,
        port: &mut Port<'_>,
        exit: Exit,
        missed: &mut Option<(u64, Miss)>,
    ) -> Result<(), Stop> {
        match exit {
            Exit::Miss(miss) => {
                let found = port.find(miss.va, miss.access)?;
                let is_direct = self.units.pages.enter(miss.va, miss.access, found);
                let now = (self.state.instructions, miss);
                if is_direct && missed.replace(now) != Some(now) {
                    return Ok(());
                }
                // It lies on two pages, or the page cannot be accessed directly.
                self.step(port)
            }
            Exit::Fetch => {
                let pc = self.thread().pc;
                self.units.code.fetch(port, pc)
            }
            Exit::Call => self.call(port),
            Exit::Trap(reason, value) => self.trap(reason, value),
            Exit::Enough | Exit::Pause | Exit::Synchronize => Ok(()),
        }
    }

    /// Executes one instruction without direct accesses.
    fn step(&mut self, port: &mut Port<'_>) -> Result<(), Stop> {
        let mut data = Single { port, stop: None };
        let mut left = 1;
        // An access to memory reads no CSR.
        let exit = {
            let thread = self.state.thread();
            thread.run(&mut self.units.code, &mut data, &NoCsrs, &mut left)
        };
        let stop = data.stop;
        if left == 0 {
            self.count();
        }
        match (exit, stop) {
            (Exit::Miss(_), Some(stop)) => Err(stop),
            (Exit::Trap(reason, value), _) => self.trap(reason, value),
            _ => Ok(()),
        }
    }

    /// Counts an instruction that the current thread has executed.
    fn count(&mut self) {
        self.state.instructions += 1;
        self.state.turn = self.state.turn.saturating_sub(1);
        if self.state.turn == 0 && self.state.next() {
            self.state.end_round();
        }
    }

    fn call(&mut self, port: &mut Port<'_>) -> Result<(), Stop> {
        let block = self.block();
        let number = self.state.current as u64;
        let thread = self.thread();
        let (text, bytes, call) = (thread.x[10], thread.x[11], thread.x[17]);
        match call {
            regs::CALL_PRINT if bytes <= ring::LONGEST => {
                let ring = self.descriptor.ring;
                let dropped = match ring {
                    0 => true,
                    _ => ring::print(port, ring, (text, bytes), [number, block])
                        .map_err(|stop| self.note_call(stop, call))?,
                };
                let thread = self.thread();
                thread.x[10] = dropped.into();
                thread.pc = thread.pc.wrapping_add(4);
                thread.executed += 1;
                self.count();
                Ok(())
            }
            regs::CALL_ABORT => self.trap(Reason::Aborted, text),
            _ => self.trap(Reason::BadCall, call),
        }
    }

    /// Completes the error of a ring that is not valid.
    fn note_call(&mut self, stop: Stop, call: u64) -> Stop {
        match stop {
            Stop::Fault(fault) if fault.reason == Reason::BadCall => {
                self.value = call;
                Stop::Fault(Fault::at(fault.reason, self.thread().pc, Access::Fetch))
            }
            stop => stop,
        }
    }

    fn trap(&mut self, reason: Reason, value: u64) -> Result<(), Stop> {
        self.value = value;
        Err(Fault::at(reason, self.thread().pc, Access::Fetch).into())
    }

    /// Has the bus model spend what was executed since the last time.
    fn account(&mut self, port: &mut Port<'_>, instructions: u64) {
        for (host, bytes) in [false, true].into_iter().zip(self.units.pages.take_moved()) {
            for (direction, bytes) in [Direction::Read, Direction::Write].into_iter().zip(bytes) {
                if bytes != 0 {
                    port.pacer.transfer(host, direction, bytes);
                }
            }
        }
        let rate = port.hardware.program_rate();
        if rate != 0 {
            let time = u128::from(instructions) * 1_000_000_000 / u128::from(rate);
            port.pacer.spend(Duration::from_nanos(time as u64));
        }
    }

    fn report(&mut self, port: &mut Port<'_>, va: u64, result: Result<(), Stop>) {
        let (code, value) = match result {
            Ok(()) => (0, 0),
            Err(Stop::Fault(fault)) if fault.reason.can_be_retried() => {
                (fault.reason.code(), fault.va)
            }
            Err(Stop::Fault(fault)) => (fault.reason.code(), self.value),
            Err(Stop::Abandoned) => return,
        };
        let pc = match self.state.phases[self.state.current] {
            Phase::Running => self.thread().pc,
            _ => self.descriptor.entry,
        };
        let words = [
            code,
            pc,
            value,
            self.state.current as u64,
            self.block(),
            self.state.instructions,
            self.state.done,
            0,
        ];
        port.attempt(va, words.map(u64::to_le_bytes).as_flattened());
    }
}

/// CSRs where there are none.
struct NoCsrs;

impl Csrs for NoCsrs {
    fn is_stack(&self, _: u64) -> bool {
        true
    }

    fn read(&self, _: u32, _: u64) -> Option<u64> {
        None
    }
}
