// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers in memory that the device stores and waits for.

use std::panic::Location;

use nix::errno::Errno;

use crate::error::{Error, Operation, Result};
use crate::memory::element::Number;
use crate::memory::options::Access;
use crate::memory::registration::Registration;
use crate::memory::slice::DeviceSliceMut;
use crate::queue::format::Condition;
use crate::stream::operand::Source;

use super::Work;

impl<'w> Work<'w> {
    /// Has the device store its clock, in nanoseconds, in one element, when everything before is
    /// done.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Pinned, Stream};
    /// # fn f(stream: &Stream, times: &mut Pinned<u64>) -> pinmap::Result<()> {
    /// stream.scope(|work| {
    ///     let mut times = times.slice_mut();
    ///     work.timestamp(&mut times, 0)?;
    ///     // ... work ...
    ///     work.timestamp(&mut times, 1)
    /// })?;
    /// println!("{} ns", times[1] - times[0]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: there is no such element.
    #[track_caller]
    pub fn timestamp<'b: 'w>(&self, to: &mut DeviceSliceMut<'b, u64>, index: usize) -> Result<()> {
        let when_full = self.when_full;
        self.lock()?.queue_mut().timestamp(to, index, when_full)?;
        self.settle(Location::caller())
    }

    /// Makes the device wait until one element is at least `value`, before it executes what is
    /// submitted next. The CPU does not wait. The program stores the value by
    /// [`DeviceSliceMut::set`], or other work stores it.
    ///
    /// The end of a scope waits for the value, too, for as long as that takes. But if the function
    /// of the scope fails or panics, it waits for a second, and then gives the stream up. A
    /// [`Pending`](crate::accelerator::Pending) always waits: for as long as
    /// [`wait_timeout`](crate::accelerator::Pending::wait_timeout) lets it, or until a
    /// [reset](super::Stream::reset).
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Pinned, Stream};
    /// # fn f(stream: &Stream, turn: &mut Pinned<u64>) -> pinmap::Result<()> {
    /// stream.scope(|work| {
    ///     let mut turn = turn.slice_mut();
    ///     work.wait_value(&turn, 0, 1)?; // until somebody has stored 1 or more
    ///     work.write_value(&mut turn, 0, 2)
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: there is no such element.
    pub fn wait_value(&self, of: impl Source<'w, u64>, index: usize, value: u64) -> Result<()> {
        self.wait_until(of, index, Condition::AtLeast(value))
    }

    /// Makes the device wait as [`wait_value`](Self::wait_value) does, but for another condition,
    /// for instance until another device has set a bit.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Condition, Stream};
    /// use pinmap::Allocation;
    /// # fn f(stream: &Stream, flags: &Allocation<u64>) -> pinmap::Result<()> {
    /// stream.scope(|work| work.wait_until(flags, 0, Condition::And(1 << 63)))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`wait_value`](Self::wait_value); `EOPNOTSUPP`: the device cannot wait for that.
    pub fn wait_until(
        &self,
        of: impl Source<'w, u64>,
        index: usize,
        condition: Condition,
    ) -> Result<()> {
        let of = of.lend(self)?;
        self.loans.await_program();
        let when_full = self.when_full;
        self.lock()?
            .queue_mut()
            .wait_until(&of, index, condition, when_full)
    }

    /// Makes the device store a number in registered memory, at byte `offset`, in one access, when
    /// everything before is done: a doorbell of another device, whose
    /// [BAR](crate::Bar::register) is registered with this one. If the registration goes before the
    /// work is done, the stream fails.
    ///
    /// ```no_run
    /// use pinmap::accelerator::Stream;
    /// use pinmap::Registration;
    /// # fn f(stream: &Stream, doorbells: &Registration<()>) -> pinmap::Result<()> {
    /// stream.scope(|work| work.store(doorbells, 8, 1u32)) // 4 bytes
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: the number is not inside the memory, or not aligned,
    /// or the memory is another context's, or not [mapped](crate::RegisterOptions::unmapped);
    /// `EACCES`: it was registered for reading only.
    #[track_caller]
    pub fn store<M, T: Number>(
        &self,
        to: &'w Registration<M>,
        offset: usize,
        value: T,
    ) -> Result<()> {
        let refuse = |errno, cause: &str| {
            let attempt = format!("submit a store to queue {}", self.queue);
            Err(Error::refused(Operation::Submit, attempt, errno, cause))
        };
        let size = size_of::<T>();
        let end = offset.checked_add(size);
        if end.is_none_or(|end| end > to.len()) || offset % size != 0 {
            return refuse(Errno::EINVAL, "there is no such number in the memory");
        }
        if !to.device().is_same(self.core.device()) {
            let cause = "the memory belongs to another context than the queue";
            return refuse(Errno::EINVAL, cause);
        }
        if to.access() != Access::ReadWrite {
            return refuse(Errno::EACCES, "it was registered for reading only");
        }
        let addr = to.device_addr()? + offset as u64;
        let when_full = self.when_full;
        self.lock()?.queue_mut().store(addr, value, when_full)?;
        self.settle(Location::caller())
    }

    /// Makes the device store `value` in one element, when everything before is done. The CPU sees
    /// it by [`DeviceSliceMut::get`], also while the device goes on.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EINVAL`: there is no such element.
    #[track_caller]
    pub fn write_value<'b: 'w>(
        &self,
        to: &mut DeviceSliceMut<'b, u64>,
        index: usize,
        value: u64,
    ) -> Result<()> {
        let when_full = self.when_full;
        self.lock()?
            .queue_mut()
            .write_value(to, index, value, when_full)?;
        self.settle(Location::caller())
    }
}
