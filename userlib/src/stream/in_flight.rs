// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of which more work can be submitted while work on it is in flight.

use std::sync::Arc;

use crate::memory::allocation::Allocation;
use crate::memory::element::Element;
use crate::memory::managed::owned::Managed;
use crate::memory::pinned::Pinned;
use crate::memory::program::{Memory, MemoryMut};
use crate::memory::registered::Registered;
use crate::memory::slice::{DeviceSlice, DeviceSliceMut};

/// Memory of which [`Pending::then`](super::Pending::then) submits more work: allocations and
/// registered memory, in an [`Arc`] if work only reads them, and tuples, arrays, vectors and
/// options of those. Sealed: other crates cannot implement it.
///
/// Ordinary memory is not among it. A reference to a `Vec` would be a reference to what the device
/// writes.
pub trait InFlight: sealed::Sealed {
    /// Device slices of all of the memory.
    type Slices<'w>
    where
        Self: 'w;

    /// Borrows all of the memory, without a reference to its elements.
    fn slices(&mut self) -> Self::Slices<'_>;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! owners {
    ($($owner:ident)*) => { $(
        impl<T> sealed::Sealed for $owner<T> {}

        impl<T: Element> InFlight for $owner<T> {
            type Slices<'w> = DeviceSliceMut<'w, T>;

            fn slices(&mut self) -> DeviceSliceMut<'_, T> {
                self.slice_mut()
            }
        }

        impl<T> sealed::Sealed for Arc<$owner<T>> {}

        impl<T: Element> InFlight for Arc<$owner<T>> {
            type Slices<'w> = DeviceSlice<'w, T>;

            fn slices(&mut self) -> DeviceSlice<'_, T> {
                self.slice()
            }
        }
    )* };
}
owners!(Allocation Managed Pinned);

impl<M: Memory> sealed::Sealed for Registered<M> {}

impl<M: MemoryMut> InFlight for Registered<M> {
    type Slices<'w>
        = DeviceSliceMut<'w, M::Element>
    where
        Self: 'w;

    fn slices(&mut self) -> Self::Slices<'_> {
        self.slice_mut()
    }
}

impl<M: Memory> sealed::Sealed for Arc<Registered<M>> {}

impl<M: Memory> InFlight for Arc<Registered<M>> {
    type Slices<'w>
        = DeviceSlice<'w, M::Element>
    where
        Self: 'w;

    fn slices(&mut self) -> Self::Slices<'_> {
        self.slice()
    }
}

impl<M: InFlight> sealed::Sealed for Option<M> {}

impl<M: InFlight> InFlight for Option<M> {
    type Slices<'w>
        = Option<M::Slices<'w>>
    where
        Self: 'w;

    fn slices(&mut self) -> Self::Slices<'_> {
        self.as_mut().map(|memory| memory.slices())
    }
}

macro_rules! tuples {
    ($(($($member:ident)+))*) => { $(
        impl<$($member: InFlight),+> sealed::Sealed for ($($member,)+) {}

        impl<$($member: InFlight),+> InFlight for ($($member,)+) {
            type Slices<'w> = ($($member::Slices<'w>,)+) where Self: 'w;

            fn slices(&mut self) -> Self::Slices<'_> {
                #[allow(non_snake_case)]
                let ($($member,)+) = self;
                ($($member.slices(),)+)
            }
        }
    )* };
}
tuples!((A B) (A B C) (A B C D) (A B C D E));

impl<M: InFlight> sealed::Sealed for Vec<M> {}

impl<M: InFlight> InFlight for Vec<M> {
    type Slices<'w>
        = Vec<M::Slices<'w>>
    where
        Self: 'w;

    fn slices(&mut self) -> Self::Slices<'_> {
        let mut slices = Vec::with_capacity(self.len());
        for memory in self {
            slices.push(memory.slices());
        }
        slices
    }
}

impl<M: InFlight, const N: usize> sealed::Sealed for [M; N] {}

impl<M: InFlight, const N: usize> InFlight for [M; N] {
    type Slices<'w>
        = [M::Slices<'w>; N]
    where
        Self: 'w;

    fn slices(&mut self) -> Self::Slices<'_> {
        self.each_mut().map(|memory| memory.slices())
    }
}
