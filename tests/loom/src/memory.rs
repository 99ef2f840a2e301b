// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements and descriptor rings as they are, above memory of loom's words. Nothing is lent here.

#[path = "../../../userlib/src/memory/completion_ring.rs"]
pub(crate) mod completion_ring;
#[path = "../../../userlib/src/memory/element.rs"]
pub(crate) mod element;
pub mod models;
#[path = "../../../userlib/src/memory/ring.rs"]
pub(crate) mod ring;

pub(crate) mod options {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Access {
        Read,
        ReadWrite,
    }

    pub struct RegisterOptions;

    impl RegisterOptions {
        pub(crate) fn access(&self) -> Access {
            Access::ReadWrite
        }
    }
}

pub(crate) mod buffer {
    use std::marker::PhantomData;

    use super::element::Element;
    use super::options::RegisterOptions;
    use super::registration::Registration;
    use crate::device::Device;
    use crate::error::Result;
    use crate::sys::map::Map;

    pub struct Buffer<T>(Map, PhantomData<T>);

    impl<T: Element> Buffer<T> {
        pub(crate) fn new(len: usize) -> Result<Self> {
            Ok(Self(Map::of_words(len * size_of::<T>() / 8), PhantomData))
        }

        pub(crate) fn register(
            self,
            device: &Device,
            _options: RegisterOptions,
        ) -> Result<Registration<Self>> {
            Ok(Registration::new(device, self.0))
        }
    }
}

pub(crate) mod registration {
    use std::marker::PhantomData;
    use std::ops::Range;

    use crate::device::Device;
    use crate::error::Result;
    use crate::sys::barrier::drain_writes;
    use crate::sys::map::Map;
    use crate::sys::word::{self, Word};

    /// Registered memory of a device that snoops the CPU's caches.
    pub struct Registration<T> {
        device: Device,
        memory: Map,
        elements: PhantomData<T>,
    }

    impl<T> Registration<T> {
        pub(super) fn new(device: &Device, memory: Map) -> Self {
            Self {
                device: device.clone(),
                memory,
                elements: PhantomData,
            }
        }

        /// The memory as the device has it.
        pub(crate) fn mapped(&self) -> Map {
            self.memory.clone()
        }

        pub(crate) fn device(&self) -> &Device {
            &self.device
        }

        pub(crate) fn device_addr(&self) -> Result<u64> {
            Ok(0)
        }

        pub(crate) fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<()> {
            word::read(self.memory.words(), offset, to);
            Ok(())
        }

        pub(crate) fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
            word::write(self.memory.words(), offset, from);
            Ok(())
        }

        pub(crate) fn load<W: Word>(&self, offset: usize) -> Result<W> {
            Ok(word::load(self.memory.words(), offset))
        }

        pub(crate) fn store<W: Word>(&self, offset: usize, value: W) -> Result<()> {
            drain_writes();
            word::store(self.memory.words(), offset, value);
            Ok(())
        }

        pub(crate) fn sync_for_device(&self, _bytes: Range<usize>) -> Result<()> {
            Ok(())
        }

        pub(crate) fn sync_for_cpu(&self, _bytes: Range<usize>) -> Result<()> {
            Ok(())
        }
    }
}

pub(crate) mod slice {
    use std::marker::PhantomData;

    pub struct DeviceSlice<'a, T>(PhantomData<&'a T>);
    pub struct DeviceSliceMut<'a, T>(PhantomData<&'a mut T>);
}

pub(crate) mod lent {
    use super::element::Element;
    use super::slice::{DeviceSlice, DeviceSliceMut};
    use crate::device::Device;
    use crate::error::Result;

    #[derive(Default)]
    pub(crate) struct Loans;

    #[derive(Default)]
    pub(crate) struct Lending;

    impl Lending {
        pub(crate) fn slice<'a, T: Element>(
            &self,
            _device: &Device,
            _memory: &'a [T],
            _loans: &Loans,
        ) -> Result<DeviceSlice<'a, T>> {
            unreachable!("nothing is lent")
        }

        pub(crate) fn slice_mut<'a, T: Element>(
            &self,
            _device: &Device,
            _memory: &'a mut [T],
            _loans: &Loans,
        ) -> Result<DeviceSliceMut<'a, T>> {
            unreachable!("nothing is lent")
        }
    }
}
