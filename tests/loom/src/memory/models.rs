// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptor rings: what the program and the device see of each other's descriptors.

use std::sync::atomic::Ordering;

use loom::thread;

use crate::device::Device;
use crate::kernel::check_with;
use crate::sys::map::Map;

use super::element::Element;
use super::options::RegisterOptions;
use super::ring::{Descriptor, Ring};

/// Descriptors in the ring of the model.
const LEN: usize = 2;

/// Status words.
const PUSHED: u64 = 1;
const DONE: u64 = 2;

/// Added by the device to the number of a job.
const RESULT: u64 = 100;

#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Job {
    number: u64,
    status: u64,
}

// SAFETY: Two numbers, and nothing in between.
unsafe impl Element for Job {}

impl Descriptor for Job {
    type Status = u64;
    const STATUS: usize = 8;

    fn is_done(status: u64) -> bool {
        status == DONE
    }
}

/// A device that works off jobs, which are numbered from 1.
struct Engine {
    ring: Map,
    done: u64,
}

impl Engine {
    /// Works off the next job, if that was pushed.
    fn step(&mut self) {
        let at = 2 * (self.done as usize % LEN);
        let [number, status] = [at, at + 1].map(|word| &self.ring.words()[word]);
        if u64::from_le(status.load(Ordering::Acquire)) != PUSHED {
            return;
        }
        self.done += 1;
        let seen = u64::from_le(number.load(Ordering::Relaxed));
        assert_eq!(seen, self.done, "the job that was pushed");
        number.store((RESULT + seen).to_le(), Ordering::Relaxed);
        status.store(DONE.to_le(), Ordering::Release);
    }
}

/// The program's side, which checks the results.
struct Program {
    ring: Ring<Job>,
    pushed: u64,
    popped: u64,
}

impl Program {
    fn push(&mut self) {
        if self.ring.room() != 0 {
            self.pushed += 1;
            let (number, status) = (self.pushed, PUSHED);
            self.ring.push(Job { number, status }).expect("room");
        }
    }

    fn pop(&mut self) {
        if let Some(job) = self.ring.pop().expect("memory") {
            self.popped += 1;
            assert_eq!(
                job.number,
                RESULT + self.popped,
                "what the device has stored"
            );
        }
    }
}

/// The device sees each descriptor as it was pushed, and the program as the device left it, also
/// where the ring begins anew.
pub fn descriptors_go_there_and_come_back() {
    check_with(3, || {
        let ring = Device.ring::<Job>(LEN, RegisterOptions).expect("memory");
        let mut engine = Engine {
            ring: ring.memory().mapped(),
            done: 0,
        };
        let mut program = Program {
            ring,
            pushed: 0,
            popped: 0,
        };
        program.push();
        let device = thread::spawn(move || {
            for _ in 0..3 {
                engine.step();
            }
            engine
        });
        for _ in 0..2 {
            program.push();
            program.pop();
        }
        program.push();
        let mut engine = device.join().expect("the device");
        while program.popped < program.pushed {
            engine.step();
            program.pop();
        }
        assert_eq!(engine.done, program.pushed, "every job was worked off");
        assert!(program.pushed >= 2);
    });
}
