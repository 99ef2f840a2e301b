// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of the bench that is made with the crate: registrations that are kept, and what queues
//! do.
//!
//! usage: `bench-crate LABEL ROUNDS [PATTERN...]`, as root in the VM, with the first device bound
//! to pinmap. Prints one JSON record a measurement.

mod cached;
mod gpu;

use std::error::Error;
use std::process::ExitCode;

pub(crate) type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Options of the bench: how to measure, and the label of the records.
pub(crate) struct Bench {
    label: String,
    rounds: usize,
    patterns: Vec<String>,
}

impl Bench {
    /// Reads the options from the command line.
    fn new() -> Result<Self> {
        let mut arguments = std::env::args().skip(1);
        let missing = "usage: bench-crate LABEL ROUNDS [PATTERN...]";
        Ok(Self {
            label: arguments.next().ok_or(missing)?,
            rounds: arguments.next().ok_or(missing)?.parse()?,
            patterns: arguments.collect(),
        })
    }

    fn wants(&self, operation: &str, kind: &str) -> bool {
        let name = format!("{operation}/{kind}");
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| name.contains(pattern))
    }

    /// Measures, in turns, what several systems take for the same; each tells nanoseconds. The
    /// first round of each is dropped.
    fn compare<const N: usize>(
        &self,
        operation: &str,
        size: &str,
        kind: &str,
        systems: [&str; N],
        mut measure: impl FnMut(usize) -> Result<u64>,
    ) -> Result<()> {
        if !self.wants(operation, kind) {
            return Ok(());
        }
        let mut all = [const { Vec::new() }; N];
        for round in 0..=self.rounds {
            for turn in 0..N {
                let system = (round + turn) % N;
                let ns = measure(system)?;
                if round > 0 {
                    all[system].push(ns);
                }
            }
        }
        for (system, mut samples) in systems.iter().zip(all) {
            samples.sort_unstable();
            let quarter = |quarters| samples[(samples.len() - 1) * quarters / 4];
            println!(
                "{{\"case\": \"{operation}/{size}/{kind}/{}\", \"system\": \"{system}\", \
                 \"median_ns\": {}, \"q1_ns\": {}, \"q3_ns\": {}, \"rounds\": {}}}",
                self.label,
                quarter(2),
                quarter(1),
                quarter(3),
                samples.len()
            );
        }
        Ok(())
    }
}

fn run() -> Result<()> {
    let bench = Bench::new()?;
    match pinmap_testgpu::find() {
        Ok(gpu) => gpu::measure(&bench, &gpu),
        Err(_) => cached::measure(&bench),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-crate: {error}");
            ExitCode::FAILURE
        }
    }
}
