// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for a channel's transfer.

use std::time::{Duration, Instant};

use pinmap::ErrorKind;

use super::{nothing, Channel, PAUSE};
use crate::error::{Error, Failed};
use crate::memory::Memory;
use crate::transfer::Done;

impl<M: Memory> Channel<M> {
    /// Waits until the transfer is done. If it takes too long, the channel is told to stop after
    /// the descriptor that it executes, and may take as long again for that.
    ///
    /// # Errors
    ///
    /// [`Error::Status`]: the channel has stopped at an error; [`Error::TimedOut`]: the transfer
    /// took too long. If there is no memory with the error, the channel has not stopped; the next
    /// wait returns the memory when it has. [`Error::Confused`]: the core did other than it was
    /// told; [`Error::Gone`]: the card is gone; [`Error::Invalid`]: there is no transfer.
    pub fn wait(&mut self) -> Result<Done<M>, Failed<M>> {
        if let Some(flight) = self.flight.as_mut().filter(|flight| flight.stopped) {
            flight.deadline = Instant::now().checked_add(self.options.timeout);
        }
        let mut looked = Instant::now();
        loop {
            if let Some(done) = self.poll()? {
                return Ok(done);
            }
            let Some(flight) = &self.flight else {
                return Err(Failed::without(nothing()));
            };
            let now = Instant::now();
            let is_late = flight.deadline.is_some_and(|deadline| deadline <= now);
            // Registers of a card that is gone end the program.
            if is_late || now - looked >= PAUSE {
                if self.shared.is_gone() {
                    return self.lose();
                }
                looked = now;
            }
            match flight.deadline {
                _ if is_late && flight.stopped => return Err(Failed::without(Error::TimedOut)),
                _ if is_late => self.stop(),
                deadline => self.idle(deadline.map(|deadline| deadline - now))?,
            }
        }
    }

    /// Waits as [`wait`](Self::wait) does, without blocking the thread, on any executor, and
    /// without a limit, because that takes a timer, which the executor has.
    ///
    /// # Errors
    ///
    /// As for [`wait`](Self::wait); [`Error::Unsupported`]: the channel is polled.
    pub async fn next(&mut self) -> Result<Done<M>, Failed<M>> {
        loop {
            if let Some(done) = self.poll()? {
                return Ok(done);
            }
            let Some(interrupt) = &self.interrupt else {
                let words = "no interrupt for this channel, which is polled";
                return Err(Failed::without(Error::Unsupported(words.into())));
            };
            match interrupt.wait_async().await {
                Err(error) if error.kind() == ErrorKind::Gone => return self.lose(),
                came => _ = came.map_err(Failed::without)?,
            }
        }
    }

    /// Sleeps until the interrupt, or a part of what is left of the time, or polls once more.
    fn idle(&mut self, left: Option<Duration>) -> Result<(), Failed<M>> {
        let Some(interrupt) = &self.interrupt else {
            (0..16).for_each(|_| std::hint::spin_loop());
            return Ok(());
        };
        match interrupt.wait_timeout(left.map_or(PAUSE, |left| left.min(PAUSE))) {
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(()),
            Err(error) if error.kind() == ErrorKind::Gone => self.lose(),
            came => came.map(drop).map_err(Failed::without),
        }
    }
}
