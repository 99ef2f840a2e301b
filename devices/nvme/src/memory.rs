// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: what a controller can read from or write to.

use std::fmt;
use std::sync::Arc;

use pinmap::{Access, Allocation, Device, Registration, Result};

/// Memory that a command can own: registered, or allocated by the driver; in an `Arc` it is the
/// memory of several commands at once, and boxed (`Box<dyn Memory>`) each command of a queue has
/// another kind.
///
/// A reference is not memory: a command that is forgotten would outlive what it borrows. Other
/// crates can implement the trait; they then must keep the memory as it is.
pub trait Memory: fmt::Debug + 'static {
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

    /// The device address of the first byte; the others follow.
    ///
    /// # Errors
    ///
    /// As for [`Registration::device_addr`].
    fn device_addr(&self) -> Result<u64>;
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

    fn device_addr(&self) -> Result<u64> {
        self.device_addr()
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

    fn device_addr(&self) -> Result<u64> {
        Ok(self.device_addr())
    }
}

macro_rules! pointers {
    ($($pointer:ident)*) => { $(
        impl<M: Memory + ?Sized> Memory for $pointer<M> {
            fn device(&self) -> &Device { (**self).device() }
            fn len(&self) -> usize { (**self).len() }
            fn access(&self) -> Access { (**self).access() }
            fn device_addr(&self) -> Result<u64> { (**self).device_addr() }
        }
    )* };
}

pointers! { Arc Box }
