// SPDX-License-Identifier: MIT OR Apache-2.0
//! What copy engines do: copies and fills.

use crate::element::Element;
use crate::error::Result;
use crate::operand::Operands;
use crate::packet::Packet;
use crate::queue::Full;
use crate::queue_options::Engines;
use crate::scope::Scope;
use crate::slice::{DeviceSlice, DeviceSliceMut};

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
        const WHAT: &str = "a copy";
        let mut queue = self.queue.borrow_mut();
        queue.demand(WHAT, Engines::Copy)?;
        let mut operands = Operands::new(queue.progress().device(), WHAT, u64::MAX);
        operands.demand("`to`", to.len(), from.len())?;
        let (source, target) = (operands.read(from)?, operands.write(to)?);
        let (count, pieces) = pieces(from.bytes(), queue.limits().max_transfer);
        let packets = pieces.map(|(at, len)| Packet::copy(source + at, target + at, len));
        queue.submit(count, packets, full)
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
        const WHAT: &str = "a fill";
        let mut queue = self.queue.borrow_mut();
        queue.demand(WHAT, Engines::Copy)?;
        let mut operands = Operands::new(queue.progress().device(), WHAT, u64::MAX);
        let target = operands.write(to)?;
        // Elements have 1, 2, 4 or 8 bytes.
        let log2 = size_of::<T>().trailing_zeros() as u8;
        let (count, pieces) = pieces(to.as_slice().bytes(), queue.limits().max_transfer);
        let packets = pieces.map(|(at, len)| Packet::fill(target + at, len, value.bits(), log2));
        queue.submit(count, packets, full)
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
