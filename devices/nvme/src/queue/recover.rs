// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that do not come back, and controllers that do not work: aborts, resets, and what
//! becomes of the commands in flight.

use std::time::Instant;

use super::{Queue, Slot};
use crate::error::{Error, Result};
use crate::memory::Memory;

impl<M: Memory> Queue<M> {
    /// Asks the controller to end a command in flight, whose number [`submit`](Self::submit) has
    /// returned. If it does, the command ends with a [`Status`](crate::Status) of type 0 and code
    /// 7. Whether it does, and when, is up to the controller.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: no such command is in flight; [`Error::Status`], [`Error::TimedOut`],
    /// [`Error::Fatal`], [`Error::Down`], [`Error::Gone`]: the controller does not listen.
    pub fn abort(&mut self, number: u64) -> Result<()> {
        self.gather()?;
        let is_it = |slot: &Option<Slot<M>>| slot.as_ref().is_some_and(|s| s.number == number);
        match self.slots.iter().position(is_it) {
            Some(id) => self.shared.abort(self.number, id as u16, self.generation),
            None => Err(Error::Invalid(format!("no command {number} is in flight"))),
        }
    }

    /// Looks whether the controller works, and no command takes too long. One that does is aborted.
    /// If it is still in flight after as long again, or the controller does not work, that is
    /// reset, so that all commands in flight are done, with an error. A program that only polls
    /// calls this now and then.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], [`Error::Fatal`], [`Error::Pinmap`]: the controller cannot be reset. If
    /// it could not be disabled either, commands stay in flight. [`Error::Gone`]: it does not
    /// answer, though it is still bound to the driver.
    pub fn check(&mut self) -> Result<()> {
        // What is done is not late.
        self.gather()?;
        match self.shared.check() {
            // The driver has taken all memory from it.
            Err(Error::Gone) if matches!(self.shared.look_for_device(), Err(Error::Gone)) => {
                self.lose();
                Ok(())
            }
            Err(Error::Fatal) => self.reset(|_| Error::Fatal),
            Ok(()) => self.hurry(),
            other => other,
        }
    }

    /// Aborts commands that take too long, or resets the controller if it does not listen.
    fn hurry(&mut self) -> Result<()> {
        let now = Instant::now();
        for id in 0..self.slots.len() {
            let slot = self.slots[id].as_mut();
            let Some(slot) = slot.filter(|slot| slot.deadline.is_some_and(|at| at <= now)) else {
                continue;
            };
            let was_late = std::mem::replace(&mut slot.is_late, true);
            slot.deadline = now.checked_add(self.options.timeout);
            let abort = || self.shared.abort(self.number, id as u16, self.generation);
            // A controller that refuses to abort works.
            let is_deaf = || !matches!(abort(), Ok(()) | Err(Error::Status(_)));
            if was_late || !self.shared.is_ready()? || is_deaf() {
                return self.reset(|slot| match slot.is_late {
                    true => Error::TimedOut,
                    false => Error::Reset,
                });
            }
        }
        Ok(())
    }

    /// Resets the controller, and ends the commands in flight.
    pub(super) fn reset(&mut self, why: impl Fn(&Slot<M>) -> Error) -> Result<()> {
        let reset = self.shared.reset(self.generation);
        if self.generation != self.shared.generation() {
            self.end(why);
        }
        reset
    }

    /// Ends the commands in flight, on whose memory the controller does not work any more.
    pub(super) fn end(&mut self, why: impl Fn(&Slot<M>) -> Error) {
        for id in 0..self.slots.len() {
            if let Some(slot) = self.slots[id].take() {
                let why = why(&slot);
                self.finish(id as u16, slot, Err(why));
            }
        }
    }

    /// Ends the commands in flight of a device that is gone, from which the driver has taken all
    /// memory. The next command asks again whether it is.
    pub(super) fn lose(&mut self) {
        self.generation = 0;
        self.end(|_| Error::Gone);
    }

    /// Begins anew after a reset.
    #[inline]
    pub(super) fn renew(&mut self) -> Result<()> {
        if self.generation != self.shared.generation() {
            self.end(|_| Error::Reset);
            let (options, interrupt) = (&self.options, self.interrupt.as_ref());
            let made = self.shared.create(self.number, options, interrupt)?;
            (self.held().pair, self.generation) = made;
        }
        Ok(())
    }
}
