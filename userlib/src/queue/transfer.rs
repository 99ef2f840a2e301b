// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work of a queue with operands: copies, fills, kernels, timestamps.

use std::any::TypeId;
use std::sync::Arc;

use nix::errno::Errno;

use super::{Queue, WhenFull};
use crate::error::{Error, Operation, Result};
use crate::memory::element::{Element, Number};
use crate::memory::slice::{DeviceSlice, DeviceSliceMut};
use crate::queue::format::{Direction, Kernel, Packet};
use crate::queue::handle::Handle;
use crate::queue::operand::Operands;
use crate::queue::options::Engines;
use crate::queue::scope::QueueScope;
use crate::sys::trace::span;
use crate::trace::recorder::Traced;

/// The name of a copy in errors.
const COPY: &str = "a copy";

/// The direction of a copy, by whether source and target are in the device's memory.
fn direction(source: bool, target: bool) -> Direction {
    match (source, target) {
        (false, true) => Direction::ToDevice,
        (true, false) => Direction::ToHost,
        (true, true) | (false, false) => Direction::Inside,
    }
}

impl<'scope> QueueScope<'scope, '_> {
    /// Submits a copy of elements between any two kinds of memory, by a copy engine. Waits if the
    /// ring is full.
    ///
    /// ```no_run
    /// use pinmap::{Allocation, Pinned, Queue};
    /// # fn f(
    /// #     queue: &mut Queue, host: &Pinned<f32>, local: &mut Allocation<f32>,
    /// # ) -> pinmap::Result<()> {
    /// queue.scope(|scope| scope.copy(host, local))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: `from` and `to` differ in length or overlap, belong to another context, or the
    /// queue does not use the copy engines; `EIO`: the queue has stopped; `ENODEV`: the device is
    /// gone.
    pub fn copy<'b: 'scope, T: Element>(
        &self,
        from: impl Into<DeviceSlice<'scope, T>>,
        to: impl Into<DeviceSliceMut<'b, T>>,
    ) -> Result<()> {
        self.copy_if(&from.into(), &to.into(), WhenFull::Wait)
    }

    /// Submits a copy as [`copy`](Self::copy) does, but never waits: submits all of it or nothing.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EAGAIN`: the ring is full; `EINVAL`: the copy takes more
    /// packets than the ring holds at once.
    pub fn try_copy<'b: 'scope, T: Element>(
        &self,
        from: impl Into<DeviceSlice<'scope, T>>,
        to: impl Into<DeviceSliceMut<'b, T>>,
    ) -> Result<()> {
        self.copy_if(&from.into(), &to.into(), WhenFull::Refuse)
    }

    fn copy_if<T: Element>(
        &self,
        from: &DeviceSlice<'_, T>,
        to: &DeviceSliceMut<'_, T>,
        when_full: WhenFull,
    ) -> Result<()> {
        self.queue.borrow_mut().copy(from, to, when_full)
    }

    /// Has the device wait until one element is at least `value`, before it executes what is
    /// submitted next. The CPU does not wait. The program stores the value by
    /// [`DeviceSliceMut::set`], or other work stores it.
    ///
    /// The end of the scope waits for the value, too, for as long as that takes. But if the
    /// function of the scope fails or panics, it waits for a second, and then destroys the queue.
    ///
    /// ```no_run
    /// use pinmap::{testgpu::IncrementF32, DeviceSliceMut, QueueScope};
    /// # fn f<'s, 'a: 's>(
    /// #     scope: &QueueScope<'s, '_>,
    /// #     flags: &mut DeviceSliceMut<'a, u64>, data: &mut DeviceSliceMut<'a, f32>,
    /// # ) -> pinmap::Result<()> {
    /// scope.wait_value(&*flags, 0, 1)?;
    /// scope.launch(IncrementF32 { data })?;
    /// scope.fence()?; // publishes both
    /// flags.set(0, 1)?; // now the device goes on
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such element, or the memory belongs to another context; `EIO`: the
    /// queue has stopped; `ENODEV`: the device is gone.
    pub fn wait_value(
        &self,
        of: impl Into<DeviceSlice<'scope, u64>>,
        index: usize,
        value: u64,
    ) -> Result<()> {
        // Before borrowing the queue: this runs code of the caller, which may use the scope.
        let of = of.into();
        self.loans.await_program();
        self.queue.borrow_mut().wait_value(&of, index, value)
    }

    /// Has the device store `value` in one element, when everything before is done. The CPU sees it
    /// by [`DeviceSliceMut::get`], also while the device goes on.
    ///
    /// ```no_run
    /// use pinmap::{DeviceSliceMut, QueueScope};
    /// # fn f<'s, 'a: 's>(
    /// #     scope: &QueueScope<'s, '_>, progress: &mut DeviceSliceMut<'a, u64>,
    /// # ) -> pinmap::Result<()> {
    /// for step in 1..=10 {
    ///     // ... a kernel ...
    ///     scope.write_value(progress, 0, step)?;
    /// }
    /// println!("step {} is done", progress.get(0)?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`wait_value`](Self::wait_value).
    pub fn write_value<'b: 'scope>(
        &self,
        to: &mut DeviceSliceMut<'b, u64>,
        index: usize,
        value: u64,
    ) -> Result<()> {
        self.queue.borrow_mut().write_value(to, index, value)
    }

    /// Submits a fill, which sets each element to `value`, by a copy engine. Waits if the ring is
    /// full.
    ///
    /// ```no_run
    /// use pinmap::{Allocation, Queue};
    /// # fn f(queue: &mut Queue, local: &mut Allocation<f32>) -> pinmap::Result<()> {
    /// queue.scope(|scope| scope.fill(local, 1.5))
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the memory belongs to another context, or the queue does not use the copy engines;
    /// `EIO`: the queue has stopped; `ENODEV`: the device is gone.
    pub fn fill<'b: 'scope, T: Number>(
        &self,
        to: impl Into<DeviceSliceMut<'b, T>>,
        value: T,
    ) -> Result<()> {
        self.fill_if(&to.into(), value, WhenFull::Wait)
    }

    /// Submits a fill as [`fill`](Self::fill) does, but never waits: submits all of it or nothing.
    ///
    /// # Errors
    ///
    /// As for [`fill`](Self::fill); `EAGAIN`: the ring is full; `EINVAL`: the fill takes more
    /// packets than the ring holds at once.
    pub fn try_fill<'b: 'scope, T: Number>(
        &self,
        to: impl Into<DeviceSliceMut<'b, T>>,
        value: T,
    ) -> Result<()> {
        self.fill_if(&to.into(), value, WhenFull::Refuse)
    }

    fn fill_if<T: Number>(
        &self,
        to: &DeviceSliceMut<'_, T>,
        value: T,
        when_full: WhenFull,
    ) -> Result<()> {
        self.queue.borrow_mut().fill(to, value, when_full)
    }
}

/// The functions below submit work on memory that the caller keeps alive until the work is done.
impl Queue {
    /// Submits a copy of elements.
    pub(crate) fn copy<T: Element>(
        &mut self,
        from: &DeviceSlice<'_, T>,
        to: &DeviceSliceMut<'_, T>,
        when_full: WhenFull,
    ) -> Result<()> {
        let mut operands = Operands::new(self.handle().device(), COPY, u64::MAX);
        operands.require_len("`to`", to.len(), from.len())?;
        let (source, target) = (operands.read(from)?, operands.write(to)?);
        let by = direction(from.is_local(), to.as_slice().is_local());
        self.copy_bytes(by, source, target, from.bytes(), when_full)
    }

    fn copy_bytes(
        &mut self,
        by: Direction,
        source: u64,
        target: u64,
        bytes: u64,
        when_full: WhenFull,
    ) -> Result<()> {
        span!("copy", queue = self.handle().id(), len = bytes);
        self.require(COPY, Engines::Copy)?;
        let format = self.format();
        let (count, pieces) = pieces(bytes, self.limits().max_transfer);
        let packets = pieces.map(|(at, len)| format.copy(by, source + at, target + at, len));
        let what = Traced::Copy {
            direction: by,
            bytes,
            most: piece_len(self.limits().max_transfer),
        };
        self.submit(what, count, packets, when_full)
    }

    /// Submits a fill of elements.
    pub(crate) fn fill<T: Number>(
        &mut self,
        to: &DeviceSliceMut<'_, T>,
        value: T,
        when_full: WhenFull,
    ) -> Result<()> {
        const WHAT: &str = "a fill";
        self.require(WHAT, Engines::Copy)?;
        let mut operands = Operands::new(self.handle().device(), WHAT, u64::MAX);
        let target = operands.write(to)?;
        // Numbers have 1, 2, 4 or 8 bytes.
        let format = self.format();
        let log2 = size_of::<T>().trailing_zeros() as u8;
        let (bytes, limit) = (to.as_slice().bytes(), self.limits().max_transfer);
        let (count, pieces) = pieces(bytes, limit);
        let packets = pieces.map(|(at, len)| format.fill(target + at, len, value.bits(), log2));
        let most = piece_len(limit);
        self.submit(Traced::Fill { bytes, most }, count, packets, when_full)
    }

    /// Checks that a kernel can be submitted, and returns the handle for [`encode`].
    pub(crate) fn accept<'a, K: Kernel<'a>>(&self) -> Result<Arc<Handle>> {
        self.require(K::NAME, Engines::Compute)?;
        if self.format().id() != TypeId::of::<K::Format>() {
            let attempt = format!("submit {} to queue {}", K::NAME, self.id());
            let cause = "the device has another packet format than the kernel";
            let errno = Errno::EINVAL;
            return Err(Error::refused(Operation::Submit, attempt, errno, cause));
        }
        Ok(Arc::clone(self.handle()))
    }

    /// Submits a kernel, which was [encoded](encode) before.
    pub(crate) fn launch(&mut self, kernel: Encoded, when_full: WhenFull) -> Result<()> {
        let what = Traced::Kernel(kernel.name);
        self.submit(what, 1, std::iter::once(kernel.packet), when_full)
    }

    /// Submits a packet that stores the device's clock in one element.
    pub(crate) fn timestamp(&mut self, to: &DeviceSliceMut<'_, u64>, index: usize) -> Result<()> {
        let addr = self.word("a timestamp", &to.as_slice(), index)?;
        let packet = self.format().timestamp(addr);
        self.submit(Traced::Nothing, 1, std::iter::once(packet), WhenFull::Wait)
    }

    /// Submits a packet that waits until one element is at least `value`.
    pub(crate) fn wait_value(
        &mut self,
        of: &DeviceSlice<'_, u64>,
        index: usize,
        value: u64,
    ) -> Result<()> {
        let addr = self.word("a wait", of, index)?;
        let packet = self.format().fence_wait(addr, value);
        let what = Traced::WaitValue(value);
        self.submit(what, 1, std::iter::once(packet), WhenFull::Wait)
    }

    /// Submits a packet that stores `value` in one element.
    pub(crate) fn write_value(
        &mut self,
        to: &DeviceSliceMut<'_, u64>,
        index: usize,
        value: u64,
    ) -> Result<()> {
        let addr = self.word("a store", &to.as_slice(), index)?;
        let packet = self.format().fence_write(addr, value);
        let what = Traced::WriteValue(value);
        self.submit(what, 1, std::iter::once(packet), WhenFull::Wait)
    }

    /// The device address of one element, as the operand of a packet.
    fn word(&self, what: &'static str, of: &DeviceSlice<'_, u64>, index: usize) -> Result<u64> {
        let one = match index.checked_add(1) {
            Some(end) => of.part(index..end)?,
            None => of.part(index..)?,
        };
        Operands::new(self.handle().device(), what, 8).read(&one)
    }
}

/// A kernel as a packet.
pub(crate) struct Encoded {
    name: &'static str,
    packet: Packet,
}

/// Makes the packet of a kernel that a queue has [accepted](Queue::accept). This runs code of the
/// program, which may use the queue: so nothing is locked or borrowed meanwhile.
pub(crate) fn encode<'a, K: Kernel<'a>>(handle: &Handle, kernel: K) -> Result<Encoded> {
    let (name, device) = (K::NAME, handle.device());
    let packet = kernel.encode(&mut Operands::new(device, name, K::LONGEST))?;
    Ok(Encoded { name, packet })
}

/// The length of a piece of a transfer that takes several packets.
fn piece_len(most: u64) -> u64 {
    // A multiple of 8, so that no element of any size is split.
    (most - most % 8).max(8)
}

/// Splits a length into pieces of at most `most` bytes: their number, and their offsets and
/// lengths.
fn pieces(bytes: u64, most: u64) -> (u64, impl Iterator<Item = (u64, u64)>) {
    let most = piece_len(most);
    let count = bytes.div_ceil(most);
    let piece = move |number| {
        let at = number * most;
        (at, most.min(bytes - at))
    };
    (count, (0..count).map(piece))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::slice::tests::Fake;
    use crate::testgpu::packet;

    const ADDR: u64 = 0x10_0000;

    #[test]
    fn values_are_single_words() {
        let mut queue = Queue::fake_with_index();
        queue.handle().execute(u64::MAX);
        let mut memory = Fake::of(queue.handle().device(), ADDR);
        queue
            .scope(|scope| -> Result<()> {
                let mut words = memory.slice_mut::<u64>();
                scope.wait_value(&words, 2, 7)?;
                scope.write_value(&mut words, 3, 8)?;
                for index in [words.len(), usize::MAX] {
                    assert!(scope.wait_value(&words, index, 1).is_err());
                    assert!(scope.write_value(&mut words, index, 1).is_err());
                }
                Ok(())
            })
            .expect("done");
        let expected = [
            packet::fence_wait(ADDR + 16, 7),
            packet::fence_write(ADDR + 24, 8),
        ];
        assert_eq!(queue.packets()[..2], expected);
        let mut foreign = Fake::new(ADDR);
        let error = queue.scope(|scope| scope.write_value(&mut foreign.slice_mut(), 0, 1));
        let error = error.expect_err("another context").to_string();
        assert!(error.contains("another context"), "{error}");
    }

    /// Code of the program that a call runs may use the scope.
    #[test]
    #[allow(unsafe_code)]
    fn operands_are_made_before_the_queue_is_borrowed() {
        struct Flags<'r, 's, 'e>(&'r QueueScope<'s, 'e>, DeviceSlice<'s, u64>);
        impl<'s> From<Flags<'_, 's, '_>> for DeviceSlice<'s, u64> {
            fn from(Flags(scope, slice): Flags<'_, 's, '_>) -> Self {
                scope.fence().expect("it is free");
                slice
            }
        }
        struct Twice<'r, 's, 'e>(&'r QueueScope<'s, 'e>);
        // SAFETY: The packet accesses nothing.
        unsafe impl<'s> Kernel<'s> for Twice<'_, 's, '_> {
            type Format = packet::Format;
            const NAME: &'static str = "the kernel twice";

            fn encode(self, _: &mut Operands<'_>) -> Result<Packet> {
                self.0.fence()?;
                Ok(packet::nop())
            }
        }
        let mut queue = Queue::fake_with_index();
        queue.handle().execute(u64::MAX);
        let memory = Fake::of(queue.handle().device(), ADDR);
        let done = queue.scope(|scope| {
            scope.wait_value(Flags(scope, memory.slice()), 0, 1)?;
            scope.launch(Twice(scope))
        });
        done.expect("done");
        let packets = queue.packets();
        assert!(packets.contains(&packet::fence_wait(ADDR, 1)));
        assert!(packets.contains(&packet::nop()));
    }

    #[test]
    fn what_is_too_long_for_a_packet_is_split() {
        let (count, all) = pieces(100, 41);
        assert_eq!(count, 3);
        assert_eq!(all.collect::<Vec<_>>(), [(0, 40), (40, 40), (80, 20)]);
        assert_eq!(pieces(0, 64).0, 0);
        assert_eq!(pieces(64, 64).1.collect::<Vec<_>>(), [(0, 64)]);
        assert_eq!(pieces(9, 0).0, 2);
    }
}
