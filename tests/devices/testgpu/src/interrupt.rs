// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interrupt causes and messages (section 3 of the manual).

use crate::hardware::Hardware;
use crate::regs;

const DEFINED: u64 = regs::INT_PENDING
    | regs::INT_COMPLETION
    | regs::INT_FAULT
    | regs::INT_SLOT
    | regs::INT_INVALIDATE
    | regs::INT_RESET
    | regs::INT_PAGING;

/// The interrupt registers.
#[derive(Debug, Default)]
pub struct Interrupts {
    status: u64,
    enable: u64,
    /// Messages that `KNOB_LOSE_INTERRUPTS` will still suppress.
    pub lose: u64,
}

impl Interrupts {
    /// Returns `INT_STATUS`.
    pub fn status(&self) -> u64 {
        self.status
    }

    /// Returns `INT_ENABLE`.
    pub fn enabled(&self) -> u64 {
        self.enable
    }

    /// Records that a cause has happened.
    pub fn raise(&mut self, cause: u64, hardware: &Hardware) {
        let before = self.status & self.enable;
        self.status |= cause;
        self.send(before, hardware);
    }

    /// Clears causes.
    pub fn clear(&mut self, causes: u64) {
        self.status &= !causes;
    }

    /// Writes `INT_ENABLE`.
    pub fn enable(&mut self, causes: u64, hardware: &Hardware) {
        let before = self.status & self.enable;
        self.enable = causes & DEFINED;
        self.send(before, hardware);
    }

    fn send(&mut self, before: u64, hardware: &Hardware) {
        let mut new = self.status & self.enable & !before;
        while new != 0 {
            let vector = new.trailing_zeros() as usize;
            new &= new - 1;
            if self.lose > 0 {
                self.lose -= 1;
                hardware.counters.add(regs::LOST_INTERRUPTS, 1);
            } else {
                hardware.counters.add(regs::INTERRUPTS, 1);
                hardware.bus().interrupt(vector);
            }
        }
    }
}
