// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that work reads and writes: device slices, owners of them, and slices of the program.

use crate::error::Result;
use crate::memory::allocation::Allocation;
use crate::memory::buffer::Buffer;
use crate::memory::element::Element;
use crate::memory::managed::owned::Managed;
use crate::memory::pinned::Pinned;
use crate::memory::program::{Memory, MemoryMut};
use crate::memory::registered::Registered;
use crate::memory::slice::{DeviceSlice, DeviceSliceMut};

use super::work::Work;

/// Memory of elements `T` that work reads for as long as `'w`.
///
/// Implemented by device slices, by what owns them, such as [`Allocation`], and by slices of the
/// program, which are [lent](Work::slice) to the device.
pub trait Source<'w, T> {
    /// Returns the device slice of the memory.
    ///
    /// # Errors
    ///
    /// For a slice of the program, as for [`Work::slice`]; otherwise none.
    fn lend(self, work: &Work<'w>) -> Result<DeviceSlice<'w, T>>;
}

/// Memory of elements `T` that work writes for as long as `'w`. Implemented as [`Source`] is.
pub trait Destination<'w, T> {
    /// Returns the device slice of the memory.
    ///
    /// # Errors
    ///
    /// For a slice of the program, as for [`Work::slice_mut`]; otherwise none.
    fn lend_mut(self, work: &Work<'w>) -> Result<DeviceSliceMut<'w, T>>;
}

impl<'w, 'a: 'w, T: Element> Source<'w, T> for DeviceSlice<'a, T> {
    fn lend(self, _: &Work<'w>) -> Result<DeviceSlice<'w, T>> {
        Ok(self)
    }
}

impl<'w, 'a: 'w, T: Element> Source<'w, T> for &DeviceSlice<'a, T> {
    fn lend(self, _: &Work<'w>) -> Result<DeviceSlice<'w, T>> {
        Ok(*self)
    }
}

impl<'w, 'a: 'w, T: Element> Source<'w, T> for &DeviceSliceMut<'a, T> {
    fn lend(self, _: &Work<'w>) -> Result<DeviceSlice<'w, T>> {
        Ok(self.as_slice())
    }
}

impl<'w, 'a: 'w, T: Element> Destination<'w, T> for DeviceSliceMut<'a, T> {
    fn lend_mut(self, _: &Work<'w>) -> Result<DeviceSliceMut<'w, T>> {
        Ok(self)
    }
}

impl<'w, 'a: 'w, T: Element> Destination<'w, T> for &mut DeviceSliceMut<'a, T> {
    fn lend_mut(self, _: &Work<'w>) -> Result<DeviceSliceMut<'w, T>> {
        Ok(self.reborrow())
    }
}

macro_rules! owners {
    ($($owner:ident)*) => { $(
        impl<'w, T: Element> Source<'w, T> for &'w $owner<T> {
            fn lend(self, _: &Work<'w>) -> Result<DeviceSlice<'w, T>> {
                Ok(self.slice())
            }
        }

        impl<'w, T: Element> Destination<'w, T> for &'w mut $owner<T> {
            fn lend_mut(self, _: &Work<'w>) -> Result<DeviceSliceMut<'w, T>> {
                Ok(self.slice_mut())
            }
        }
    )* };
}
owners!(Allocation Managed Pinned);

impl<'w, M: Memory> Source<'w, M::Element> for &'w Registered<M> {
    fn lend(self, _: &Work<'w>) -> Result<DeviceSlice<'w, M::Element>> {
        Ok(self.slice())
    }
}

impl<'w, M: MemoryMut> Destination<'w, M::Element> for &'w mut Registered<M> {
    fn lend_mut(self, _: &Work<'w>) -> Result<DeviceSliceMut<'w, M::Element>> {
        Ok(self.slice_mut())
    }
}

macro_rules! slices {
    ($($memory:ty $(, $length:ident)?;)*) => { $(
        impl<'w, T: Element $(, const $length: usize)?> Source<'w, T> for &'w $memory {
            fn lend(self, work: &Work<'w>) -> Result<DeviceSlice<'w, T>> {
                work.slice(self)
            }
        }

        impl<'w, T: Element $(, const $length: usize)?> Destination<'w, T> for &'w mut $memory {
            fn lend_mut(self, work: &Work<'w>) -> Result<DeviceSliceMut<'w, T>> {
                work.slice_mut(self)
            }
        }
    )* };
}
slices! {
    [T];
    [T; N], N;
    Vec<T>;
    Box<[T]>;
    Buffer<T>;
}
