// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes programs, and changes them.
//!
//! A value that a call wants is mostly one that an earlier call has given, which is inserted where
//! there is none. Addresses are mostly those of a few pages, so that calls collide.

use libafl_bolts::rands::Rand;
use play::calls::{call, How, Kind, Made, COUNT_OF_CALLS};
use play::program::{Program, Step, Value, ACTORS};
use std::num::NonZeroUsize;

/// The steps that a program has at most: fewer than it may have, so that programs stay quick.
const MOST: usize = 28;
const PAGE: u64 = 4096;

/// Changes programs, by the numbers of a generator.
pub(crate) struct Changer<'a, R> {
    pub(crate) rand: &'a mut R,
}

impl<R: Rand> Changer<'_, R> {
    fn below(&mut self, bound: usize) -> usize {
        NonZeroUsize::new(bound).map_or(0, |bound| self.rand.below(bound))
    }

    /// Whether something of so many percent happens.
    fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let index = self.below(from.len());
        from.get(index).copied()
    }

    /// A program of a few calls.
    pub(crate) fn new_program(&mut self) -> Program {
        let mut program = Program::default();
        for _ in 0..2 + self.below(6) {
            let at = program.steps.len();
            self.insert(&mut program, at);
        }
        program
    }

    /// Changes a program once or a few times; `other` is one whose steps may be taken.
    pub(crate) fn change(&mut self, program: &mut Program, other: Option<&Program>) {
        for _ in 0..1 + self.below(4) {
            let at = self.below(program.steps.len());
            match self.below(100) {
                _ if program.steps.is_empty() => self.insert(program, 0),
                0..40 => {
                    let at = self.below(program.steps.len() + 1);
                    self.insert(program, at);
                }
                40..52 => program.remove(at),
                52..76 => self.change_argument(program, at),
                76..82 => program.steps[at].nowait ^= true,
                82..86 => program.steps[at].actor = self.actor(program, at),
                86..91 => program.steps[at].fail = self.fail(),
                91..93 => {
                    let step = program.steps[at].clone();
                    program.insert(at, step);
                }
                93..96 => {
                    let offset = 4 * self.below(16);
                    let word = self.number(&[0, 1, 8, 0x1000]);
                    if let How::Ioctl(..) = program.steps[at].what().how {
                        program.steps[at].bytes = Some((offset, word));
                    }
                }
                _ => {
                    if let Some(other) = other {
                        append(program, other);
                    }
                }
            }
        }
        while program.steps.len() > MOST {
            let at = self.below(program.steps.len());
            program.remove(at);
        }
    }

    /// Which allocation or copy fails: mostly one of the first.
    fn fail(&mut self) -> u32 {
        let most = self.pick(&[12, 12, 20, 80]).unwrap_or(1);
        1 + self.below(most) as u32
    }

    fn actor(&mut self, program: &Program, at: usize) -> usize {
        let forks = program.steps[..at]
            .iter()
            .any(|step| step.what().name == "fork");
        match self.below(10) {
            0..6 => 0,
            6..8 => 1,
            _ if forks => 2 + self.below(ACTORS - 2),
            _ => 0,
        }
    }

    /// Inserts a call, and those that make what it wants.
    fn insert(&mut self, program: &mut Program, at: usize) {
        let all: u32 = (0..COUNT_OF_CALLS).map(|number| call(number).weight).sum();
        let mut left = self.below(all as usize) as u32;
        let number = (0..COUNT_OF_CALLS).find(|number| {
            let weight = call(*number).weight;
            let found = left < weight;
            left = left.saturating_sub(weight);
            found
        });
        let actor = self.actor(program, at);
        self.insert_call(program, at, number.unwrap_or(0), actor, 3);
    }

    /// Inserts a call. Returns where it is: the calls that make what it wants are before it.
    fn insert_call(
        &mut self,
        program: &mut Program,
        mut at: usize,
        number: usize,
        actor: usize,
        depth: usize,
    ) -> usize {
        let mut args: Vec<Value> = Vec::new();
        for arg in call(number).args {
            let before = program.steps.len();
            let value = self.value(program, at, arg.kind, actor, depth);
            // Calls that were inserted are before this one, and after those that it uses already.
            at += program.steps.len() - before;
            args.push(value);
        }
        let nowait = self.percent(8);
        let fail = if self.percent(3) { self.fail() } else { 0 };
        let step = Step {
            actor,
            nowait,
            fail,
            call: number,
            args,
            bytes: None,
        };
        program.insert(at, step);
        at
    }

    fn change_argument(&mut self, program: &mut Program, at: usize) {
        let what = program.steps[at].what();
        let index = self.below(what.args.len());
        let Some(arg) = what.args.get(index) else {
            return;
        };
        let actor = program.steps[at].actor;
        let before = program.steps.len();
        let value = match program.steps[at].args[index] {
            // A neighbour of what it was.
            Value::Pool(distance) if self.percent(40) => {
                let by = self.pick(&[PAGE, 2 * PAGE, 512 * PAGE, 1]).unwrap_or(1);
                Value::Pool(if self.percent(50) {
                    distance.wrapping_add(by)
                } else {
                    distance.saturating_sub(by)
                })
            }
            Value::Number(number) if self.percent(20) => {
                Value::Number(number ^ (1 << self.below(12)))
            }
            _ => self.value(program, at, arg.kind, actor, 2),
        };
        let at = at + program.steps.len() - before;
        program.steps[at].args[index] = value;
    }

    fn number(&mut self, likely: &[u64]) -> u64 {
        match self.below(100) {
            0..85 => self.pick(likely).unwrap_or(0),
            85..95 => self.below(300) as u64,
            95..98 => 1 << self.below(64),
            _ => self.rand.next(),
        }
    }

    /// A value of a kind, for a call at `at`. May insert calls there.
    fn value(
        &mut self,
        program: &mut Program,
        at: usize,
        kind: Kind,
        actor: usize,
        depth: usize,
    ) -> Value {
        match kind {
            Kind::Number(likely) => Value::Number(self.number(likely)),
            Kind::Choice(names) => {
                // The first ones are more likely.
                let index = self.below(names.len()).min(self.below(2 * names.len()));
                match names.get(index) {
                    Some((_, number)) if !self.percent(2) => Value::Number(*number),
                    _ => Value::Number(self.number(&[])),
                }
            }
            Kind::Flags(names) => {
                let mut flags = 0;
                if self.percent(70) {
                    for (_, bit) in names {
                        flags |= if self.percent(35) { *bit } else { 0 };
                    }
                }
                Value::Number(if self.percent(2) {
                    flags ^ (1 << self.below(32))
                } else {
                    flags
                })
            }
            Kind::Address => self.address(program, at),
            Kind::Length => Value::Number(match self.below(100) {
                0..80 => PAGE * self.pick(&[1, 1, 2, 3, 4, 8]).unwrap_or(1),
                80..92 => PAGE * self.pick(&[512, 513, 1024, 64]).unwrap_or(1),
                92..97 => self.pick(&[0, 1, 8, 4095, 4097]).unwrap_or(0),
                _ => self.number(&[1 << 47, u64::MAX, 1 << 32]),
            }),
            Kind::Made(made) => self.result(program, at, made, actor, depth),
        }
    }

    fn address(&mut self, program: &Program, at: usize) -> Value {
        let given: Vec<Value> = results(program, at, Made::Address);
        match self.below(100) {
            0..10 if !given.is_empty() => self.pick(&given).unwrap_or(Value::Number(0)),
            0..75 => Value::Pool(PAGE * self.below(8) as u64),
            75..90 => Value::Pool(PAGE * (512 * self.below(2) + self.below(3)) as u64),
            90..95 => Value::Pool(self.below(0x8000) as u64),
            _ => Value::Number(self.number(&[0, 0x1000, 1 << 47])),
        }
    }

    fn result(
        &mut self,
        program: &mut Program,
        at: usize,
        made: Made,
        actor: usize,
        depth: usize,
    ) -> Value {
        // Any file will do now and then, where a device is wanted.
        let made = match made {
            Made::Device | Made::File if self.percent(3) => self
                .pick(&[Made::File, Made::Device, Made::DmaBuf, Made::EventFd])
                .unwrap_or(made),
            _ => made,
        };
        let given = results(program, at, made);
        let fresh = if given.is_empty() { 95 } else { 8 };
        if depth > 0 && self.percent(fresh) {
            let makers: Vec<(usize, usize)> = (0..COUNT_OF_CALLS)
                .flat_map(|number| {
                    let makes = call(number)
                        .makes()
                        .filter(move |(_, made_by)| *made_by == made);
                    makes.map(move |(out, _)| (number, out))
                })
                .filter(|(number, _)| !["dup", "receive"].contains(&call(*number).name))
                .collect();
            if let Some((number, out)) = self.pick(&makers) {
                let step = self.insert_call(program, at, number, actor, depth - 1);
                if call(number).name == "memfd_create" {
                    self.give_length(program, step + 1, step, actor);
                }
                return Value::Result(step, out);
            }
        }
        match self.pick(&given) {
            Some(value) if !self.percent(2) => value,
            _ => Value::Number(self.number(&[0, 1, 3, 4, 5])),
        }
    }

    /// Gives a file that was made in `step` a few pages.
    fn give_length(&mut self, program: &mut Program, at: usize, step: usize, actor: usize) {
        if let Some(number) = (0..COUNT_OF_CALLS).find(|n| call(*n).name == "ftruncate") {
            let args = vec![Value::Result(step, 0), Value::Number(8 * PAGE)];
            let step = Step {
                actor,
                nowait: false,
                fail: 0,
                call: number,
                args,
                bytes: None,
            };
            program.insert(at, step);
        }
    }
}

/// The results before a step that are of a kind.
fn results(program: &Program, at: usize, wanted: Made) -> Vec<Value> {
    let steps = program.steps.iter().take(at).enumerate();
    steps
        .flat_map(|(step, call)| {
            let makes = call.what().makes().filter(|(_, made)| *made == wanted);
            makes.map(move |(out, _)| Value::Result(step, out))
        })
        .collect()
}

/// Appends the steps of another program.
fn append(program: &mut Program, other: &Program) {
    let first = program.steps.len();
    for step in &other.steps {
        let mut step = step.clone();
        for value in &mut step.args {
            if let Value::Result(step, _) = value {
                *step += first;
            }
        }
        program.steps.push(step);
    }
}
