// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: what a card can read from or write to.

use std::ops::Range;
use std::sync::Arc;

use pinmap::{Access, Allocation, Device, Registration, Result};

/// The device addresses of memory are consecutive, so descriptors cross any page.
const NO_PAGE: u64 = 1 << 63;

/// A function that is called with device address and length.
pub(crate) type Each<'a> = &'a mut dyn FnMut(u64, usize);

/// Memory that a transfer can own: registered, or allocated by the driver. In an `Arc` it is the
/// memory of several transfers at once. Transfers of one channel can have memory of different kinds
/// if it is boxed (`Box<dyn Memory>`).
///
/// A reference is not memory: a transfer that is forgotten would outlive what it borrows. Other
/// crates can implement the trait; they then must keep the memory as it is.
pub trait Memory: 'static {
    /// The device that reaches the memory.
    fn device(&self) -> &Device;

    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The access that the device has.
    fn access(&self) -> Access;

    /// Calls a function for each piece of these bytes in order, with its device address and its
    /// length, at most `most`.
    ///
    /// # Errors
    ///
    /// As for [`Registration::segments`].
    fn pieces(&self, bytes: Range<usize>, most: usize, each: Each<'_>) -> Result<()>;
}

impl<M: 'static> Memory for Registration<M> {
    fn device(&self) -> &Device {
        self.device()
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn access(&self) -> Access {
        self.access()
    }

    fn pieces(&self, bytes: Range<usize>, most: usize, each: Each<'_>) -> Result<()> {
        let pieces = self.segments(bytes, NO_PAGE, most)?;
        pieces.for_each(|(addr, len)| each(addr, len));
        Ok(())
    }
}

impl<T: 'static> Memory for Allocation<T> {
    fn device(&self) -> &Device {
        self.device()
    }

    fn len(&self) -> usize {
        self.len() * size_of::<T>()
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn pieces(&self, bytes: Range<usize>, most: usize, each: Each<'_>) -> Result<()> {
        let pieces = self.segments(bytes, NO_PAGE, most)?;
        pieces.for_each(|(addr, len)| each(addr, len));
        Ok(())
    }
}

macro_rules! pointers {
    ($($pointer:ident)*) => { $(
        impl<M: Memory + ?Sized> Memory for $pointer<M> {
            fn device(&self) -> &Device {
                (**self).device()
            }

            fn len(&self) -> usize {
                (**self).len()
            }

            fn access(&self) -> Access {
                (**self).access()
            }

            fn pieces(&self, bytes: Range<usize>, most: usize, each: Each<'_>) -> Result<()> {
                (**self).pieces(bytes, most, each)
            }
        }
    )* };
}

pointers! { Arc Box }
