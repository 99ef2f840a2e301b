// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work of a queue with operands: copies, fills, kernels, timestamps.

use std::any::TypeId;
use std::sync::Arc;

use nix::errno::Errno;

use super::{Queue, WhenFull};
use crate::error::{Error, Operation, Result};
use crate::memory::element::{Element, Number};
use crate::memory::slice::{DeviceSlice, DeviceSliceMut};
use crate::queue::format::{Condition, Direction, Kernel, Packet};
use crate::queue::handle::Handle;
use crate::queue::operand::Operands;
use crate::queue::options::Engines;
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

    /// Checks that this queue can copy from so many elements to so many others.
    pub(crate) fn check_copy(&self, from: usize, to: usize) -> Result<()> {
        self.require(COPY, Engines::Copy)?;
        Operands::new(self.handle().device(), COPY, u64::MAX).require_len("`to`", to, from)
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
    pub(crate) fn timestamp(
        &mut self,
        to: &DeviceSliceMut<'_, u64>,
        index: usize,
        when_full: WhenFull,
    ) -> Result<()> {
        let addr = self.word("a timestamp", &to.as_slice(), index)?;
        let packet = self.format().timestamp(addr);
        self.submit(Traced::Nothing, 1, std::iter::once(packet), when_full)
    }

    /// Submits a packet that waits until one element meets a condition.
    pub(crate) fn wait_until(
        &mut self,
        of: &DeviceSlice<'_, u64>,
        index: usize,
        condition: Condition,
        when_full: WhenFull,
    ) -> Result<()> {
        const WHAT: &str = "a wait";
        let addr = self.word(WHAT, of, index)?;
        let Some(packet) = self.format().wait_until(addr, condition) else {
            let attempt = format!("submit {WHAT} to queue {}", self.id());
            return Err(Error::new(Operation::Submit, attempt, Errno::EOPNOTSUPP));
        };
        let what = match condition {
            Condition::AtLeast(value) => Traced::WaitValue(value),
            _ => Traced::Nothing,
        };
        self.submit(what, 1, std::iter::once(packet), when_full)
    }

    /// Submits a packet that stores a number at a device address, which is one that the device
    /// reaches.
    pub(crate) fn store<T: Number>(
        &mut self,
        addr: u64,
        value: T,
        when_full: WhenFull,
    ) -> Result<()> {
        self.require("a store", Engines::Copy)?;
        let (bytes, log2) = (size_of::<T>(), size_of::<T>().trailing_zeros() as u8);
        let packet = self.format().fill(addr, bytes as u64, value.bits(), log2);
        self.submit(Traced::Nothing, 1, std::iter::once(packet), when_full)
    }

    /// Submits a packet that stores `value` in one element.
    pub(crate) fn write_value(
        &mut self,
        to: &DeviceSliceMut<'_, u64>,
        index: usize,
        value: u64,
        when_full: WhenFull,
    ) -> Result<()> {
        let addr = self.word("a store", &to.as_slice(), index)?;
        let packet = self.format().fence_write(addr, value);
        let what = Traced::WriteValue(value);
        self.submit(what, 1, std::iter::once(packet), when_full)
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
