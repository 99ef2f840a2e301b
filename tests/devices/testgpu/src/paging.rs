// SPDX-License-Identifier: MIT OR Apache-2.0
//! The paging engine: its registers, the copies that were submitted, and how one is executed
//! (section 16 of the manual).

use crate::fault::Reason;
use crate::hardware::Hardware;
use crate::link::Direction;
use crate::pacer::{Pacer, Stop};
use crate::packet::{check_alignment, check_length};
use crate::regs;
use std::collections::VecDeque;
use std::time::Instant;

/// Bits of `PAGING_TARGET` that hold a value.
const TARGET_BITS: u64 = regs::PTE_ADDRESS | regs::PAGING_HOST;

/// Bits of `PAGING_SOURCE` that hold a value.
const SOURCE_BITS: u64 = TARGET_BITS | regs::PAGING_ZEROS;

/// First address that is too wide for the bus.
const BUS_END: u64 = regs::PTE_ADDRESS + regs::PAGE;

/// A copy, as its registers describe it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transfer {
    source: u64,
    target: u64,
    bytes: u64,
}

/// Returns whether a place is in host memory, and its address there or in VRAM.
fn place(register: u64) -> (bool, u64) {
    (
        register & regs::PAGING_HOST != 0,
        register & regs::PTE_ADDRESS,
    )
}

impl Transfer {
    fn check(&self, vram: u64) -> Result<(), Reason> {
        check_length(self.bytes)?;
        check_alignment(self.bytes, regs::PAGE)?;
        if self.bytes == 0 {
            return Ok(());
        }
        let source = (!self.is_zeros()).then(|| place(self.source));
        for (host, address) in source.into_iter().chain([place(self.target)]) {
            // No overflow: an address has 52 bits, and the length was checked.
            let end = address + self.bytes;
            match host {
                true if end > BUS_END => return Err(Reason::Bus),
                false if end > vram => return Err(Reason::VramRange),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether the source is zeros, and no memory.
    fn is_zeros(&self) -> bool {
        self.source & regs::PAGING_ZEROS != 0
    }

    /// Executes the copy, at the pace of the bus model.
    pub fn execute(
        &self,
        hardware: &Hardware,
        pacer: &mut Pacer<'_>,
        buffer: &mut [u8],
    ) -> Result<(), Stop> {
        self.check(hardware.vram.size())?;
        let (source, target) = (place(self.source), place(self.target));
        let zeros = self.is_zeros();
        if zeros {
            buffer.fill(0);
        }
        let mut done = 0;
        while done < self.bytes {
            pacer.check()?;
            let from = (source.0, source.1 + done);
            let to = (target.0, target.1 + done);
            let left = (self.bytes - done).min(buffer.len() as u64) as usize;
            let copied = match zeros {
                true => 0,
                false => hardware.copy(from, to, left),
            };
            let bytes = match copied {
                0 => {
                    let piece = &mut buffer[..left];
                    if !zeros {
                        hardware.read(from.0, from.1, piece)?;
                    }
                    hardware.write(to.0, to.1, piece)?;
                    left as u64
                }
                bytes => bytes as u64,
            };
            let read = (!zeros).then_some((from.0, Direction::Read));
            for (host, direction) in read.into_iter().chain([(to.0, Direction::Write)]) {
                if done == 0 {
                    pacer.latency(host);
                }
                pacer.transfer(host, direction, bytes);
            }
            done += bytes;
        }
        pacer.settle()
    }
}

/// A copy that was executed and has not ended yet.
#[derive(Clone, Copy, Debug)]
struct Finished {
    sequence: u64,
    result: Result<(), Reason>,
    due: Instant,
}

/// The registers and the submitted copies.
#[derive(Debug, Default)]
pub struct Paging {
    next: Transfer,
    done: u64,
    error: u64,
    waiting: VecDeque<(u64, Transfer)>,
    running: Option<u64>,
    finished: VecDeque<Finished>,
}

impl Paging {
    /// Returns `PAGING_SOURCE`.
    pub fn source(&self) -> u64 {
        self.next.source
    }

    /// Writes `PAGING_SOURCE`.
    pub fn set_source(&mut self, value: u64) {
        self.next.source = value & SOURCE_BITS;
    }

    /// Returns `PAGING_TARGET`.
    pub fn target(&self) -> u64 {
        self.next.target
    }

    /// Writes `PAGING_TARGET`.
    pub fn set_target(&mut self, value: u64) {
        self.next.target = value & TARGET_BITS;
    }

    /// Returns `PAGING_BYTES`.
    pub fn bytes(&self) -> u64 {
        self.next.bytes
    }

    /// Writes `PAGING_BYTES`.
    pub fn set_bytes(&mut self, value: u64) {
        self.next.bytes = value;
    }

    /// Returns `PAGING_DONE`.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Returns `PAGING_ERROR`.
    pub fn error(&self) -> u64 {
        self.error
    }

    /// Clears bits of `PAGING_ERROR`.
    pub fn clear_error(&mut self, bits: u64) {
        self.error &= !bits;
    }

    /// Returns `PAGING_FREE`.
    pub fn free(&self) -> usize {
        let used = self.waiting.len() + self.finished.len() + usize::from(self.is_busy());
        regs::PAGING_COUNT.saturating_sub(used)
    }

    /// Returns whether every copy that was submitted has ended.
    pub fn is_done(&self) -> bool {
        self.free() == regs::PAGING_COUNT
    }

    /// Whether the engine holds a copy.
    pub fn is_busy(&self) -> bool {
        self.running.is_some()
    }

    /// Queues a copy with the values of the registers. Returns false if there is no room.
    pub fn submit(&mut self, sequence: u64) -> bool {
        let has_room = self.free() > 0;
        if has_room {
            self.waiting.push_back((sequence, self.next));
        }
        has_room
    }

    /// Takes the next copy, which is to be executed now.
    pub fn begin(&mut self) -> Option<Transfer> {
        let (sequence, transfer) = self.waiting.pop_front()?;
        self.running = Some(sequence);
        Some(transfer)
    }

    /// Records that the engine has let go of the copy that was taken. It ends at `due` with this
    /// result; without a result it never ends.
    pub fn finish(&mut self, result: Option<Result<(), Reason>>, due: Instant) {
        if let (Some(sequence), Some(result)) = (self.running.take(), result) {
            self.finished.push_back(Finished {
                sequence,
                result,
                due,
            });
        }
    }

    /// Returns when the next copy that was executed is due to end.
    pub fn due(&self) -> Option<Instant> {
        self.finished.front().map(|finished| finished.due)
    }

    /// Ends the copies that are due. Returns false if there were none.
    pub fn end(&mut self, now: Instant) -> bool {
        let before = self.finished.len();
        while let Some(finished) = self.finished.front().filter(|finished| finished.due <= now) {
            self.done = finished.sequence;
            if let (0, Err(reason)) = (self.error, finished.result) {
                self.error = reason.code();
            }
            self.finished.pop_front();
        }
        self.finished.len() < before
    }
}
