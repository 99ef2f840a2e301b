// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types of lent memory. Nothing is lent here.

pub(crate) mod element {
    pub trait Element {}
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
