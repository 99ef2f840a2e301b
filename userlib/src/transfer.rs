// SPDX-License-Identifier: MIT OR Apache-2.0
//! What queues do with operands: copies, fills, kernels, timestamps.

use crate::element::Element;
use crate::error::Result;
use crate::kernel;
use crate::operand::Operands;
use crate::packet::Packet;
use crate::queue::{Full, Queue};
use crate::queue_options::Engines;
use crate::scope::Scope;
use crate::slice::{DeviceSlice, DeviceSliceMut};

/// What a copy is called in errors.
const COPY: &str = "a copy";

/// Where a copy goes. Each direction of the link has an engine of its own, so that copies in do
/// not keep both from those that go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// From host memory to the device's.
    In,
    /// From the device's memory to the host's.
    Out,
    /// Both ends are on one side: by whichever is free.
    Inside,
}

impl Direction {
    /// Whether source and target are in the device's memory.
    fn of(source: bool, target: bool) -> Self {
        match (source, target) {
            (false, true) => Self::In,
            (true, false) => Self::Out,
            (true, true) | (false, false) => Self::Inside,
        }
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Copies elements, by a copy engine, between any two kinds of memory. Waits if the ring is
    /// full.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not as many elements in both, they overlap, the memory belongs to another context,
    /// or the queue has no copy engines; `EIO`: the queue has stopped; `ENODEV`: the device is
    /// gone.
    pub fn copy<'b: 'scope, T: Element>(
        &self,
        from: impl Into<DeviceSlice<'scope, T>>,
        to: &mut DeviceSliceMut<'b, T>,
    ) -> Result<()> {
        self.copy_if(&from.into(), to, Full::Wait)
    }

    /// As [`copy`](Self::copy), but does not wait, and submits all of it or nothing.
    ///
    /// # Errors
    ///
    /// As for [`copy`](Self::copy); `EAGAIN`: the ring is full; `EINVAL`: it is too much for the
    /// ring at once.
    pub fn try_copy<'b: 'scope, T: Element>(
        &self,
        from: impl Into<DeviceSlice<'scope, T>>,
        to: &mut DeviceSliceMut<'b, T>,
    ) -> Result<()> {
        self.copy_if(&from.into(), to, Full::Refuse)
    }

    fn copy_if<T: Element>(
        &self,
        from: &DeviceSlice<'_, T>,
        to: &DeviceSliceMut<'_, T>,
        full: Full,
    ) -> Result<()> {
        self.queue.borrow_mut().copy(from, to, full)
    }

    /// Sets each element, by a copy engine. Waits if the ring is full.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the memory belongs to another context, or the queue has no copy engines; `EIO`: the
    /// queue has stopped; `ENODEV`: the device is gone.
    pub fn fill<'b: 'scope, T: Element>(
        &self,
        to: &mut DeviceSliceMut<'b, T>,
        value: T,
    ) -> Result<()> {
        self.fill_if(to, value, Full::Wait)
    }

    /// As [`fill`](Self::fill), but does not wait, and submits all of it or nothing.
    ///
    /// # Errors
    ///
    /// As for [`fill`](Self::fill); `EAGAIN`: the ring is full; `EINVAL`: it is too much for the
    /// ring at once.
    pub fn try_fill<'b: 'scope, T: Element>(
        &self,
        to: &mut DeviceSliceMut<'b, T>,
        value: T,
    ) -> Result<()> {
        self.fill_if(to, value, Full::Refuse)
    }

    fn fill_if<T: Element>(&self, to: &DeviceSliceMut<'_, T>, value: T, full: Full) -> Result<()> {
        self.queue.borrow_mut().fill(to, value, full)
    }
}

impl Queue {
    /// Copies elements. The caller has them live until it is done.
    pub(crate) fn copy<T: Element>(
        &mut self,
        from: &DeviceSlice<'_, T>,
        to: &DeviceSliceMut<'_, T>,
        full: Full,
    ) -> Result<()> {
        let mut operands = Operands::new(self.progress().device(), COPY, u64::MAX);
        operands.demand("`to`", to.len(), from.len())?;
        let (source, target) = (operands.read(from)?, operands.write(to)?);
        let by = Direction::of(from.is_local(), to.as_slice().is_local());
        self.copy_bytes(by, source, target, from.bytes(), full)
    }

    /// Copies to elements from host memory at device addresses: pieces of so many bytes, which are
    /// all of them together. The caller has them live until it is done.
    pub(crate) fn copy_in<T: Element>(
        &mut self,
        pieces: &[(u64, u64)],
        to: &DeviceSliceMut<'_, T>,
    ) -> Result<()> {
        let mut operands = Operands::new(self.progress().device(), COPY, u64::MAX);
        let mut target = operands.write(to)?;
        let by = Direction::of(false, to.as_slice().is_local());
        for &(source, bytes) in pieces {
            self.copy_bytes(by, source, target, bytes, Full::Wait)?;
            target += bytes;
        }
        Ok(())
    }

    /// Copies elements to host memory at a device address. The caller has them live until it is
    /// done.
    pub(crate) fn copy_out<T: Element>(
        &mut self,
        from: &DeviceSlice<'_, T>,
        target: u64,
    ) -> Result<()> {
        let mut operands = Operands::new(self.progress().device(), COPY, u64::MAX);
        let source = operands.read(from)?;
        let by = Direction::of(from.is_local(), false);
        self.copy_bytes(by, source, target, from.bytes(), Full::Wait)
    }

    fn copy_bytes(
        &mut self,
        by: Direction,
        source: u64,
        target: u64,
        bytes: u64,
        full: Full,
    ) -> Result<()> {
        self.demand(COPY, Engines::Copy)?;
        let (count, pieces) = pieces(bytes, self.limits().max_transfer);
        let packets = pieces.map(|(at, len)| {
            let (source, target) = (source + at, target + at);
            match by {
                Direction::In => Packet::copy_by(0, source, target, len),
                Direction::Out => Packet::copy_by(1, source, target, len),
                Direction::Inside => Packet::copy(source, target, len),
            }
        });
        self.submit(count, packets, full)
    }

    /// Sets each element. The caller has them live until it is done.
    pub(crate) fn fill<T: Element>(
        &mut self,
        to: &DeviceSliceMut<'_, T>,
        value: T,
        full: Full,
    ) -> Result<()> {
        const WHAT: &str = "a fill";
        self.demand(WHAT, Engines::Copy)?;
        let mut operands = Operands::new(self.progress().device(), WHAT, u64::MAX);
        let target = operands.write(to)?;
        // Elements have 1, 2, 4 or 8 bytes.
        let log2 = size_of::<T>().trailing_zeros() as u8;
        let (count, pieces) = pieces(to.as_slice().bytes(), self.limits().max_transfer);
        let packets = pieces.map(|(at, len)| Packet::fill(target + at, len, value.bits(), log2));
        self.submit(count, packets, full)
    }

    /// Launches a kernel. The caller has its operands live until it is done.
    pub(crate) fn launch<K: kernel::sealed::Kernel>(
        &mut self,
        kernel: K,
        full: Full,
    ) -> Result<()> {
        self.demand(K::NAME, Engines::Compute)?;
        let device = self.progress().device();
        let packet = kernel.encode(&mut Operands::new(device, K::NAME, kernel::LONGEST))?;
        self.submit(1, std::iter::once(packet), full)
    }

    /// Stores the device's clock. The caller has the element live until it is done.
    pub(crate) fn timestamp(&mut self, to: &DeviceSliceMut<'_, u64>, index: usize) -> Result<()> {
        let one = index.checked_add(1).map_or_else(
            || to.as_slice().part(index..),
            |end| to.as_slice().part(index..end),
        )?;
        let device = self.progress().device();
        let addr = Operands::new(device, "a timestamp", 8).read(&one)?;
        self.submit(1, std::iter::once(Packet::timestamp(addr)), Full::Wait)
    }
}

/// Splits a length: how many pieces, and the offset and length of each.
fn pieces(bytes: u64, most: u64) -> (u64, impl Iterator<Item = (u64, u64)>) {
    // Whole elements of any size; a device that could not even move those would be of no use.
    let most = (most - most % 8).max(8);
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
