// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of device slices, and memory without a device for other tests.

use super::*;
use crate::sys::map::Map;

/// Memory that a device would have at this address.
pub(crate) struct Fake {
    pub(crate) device: Device,
    memory: Map,
    addr: u64,
}

impl Fake {
    pub(crate) fn new(addr: u64) -> Self {
        Self {
            device: Device::fake(),
            memory: Map::anonymous(0x2000),
            addr,
        }
    }

    pub(crate) fn of(device: &Device, addr: u64) -> Self {
        let device = device.clone();
        Self {
            device,
            ..Self::new(addr)
        }
    }

    pub(crate) fn slice<T: Element>(&self) -> DeviceSlice<'_, T> {
        let len = 0x2000 / size_of::<T>();
        DeviceSlice::new(
            &self.device,
            View::Host(self.memory.words()),
            self.addr,
            len,
        )
    }

    pub(crate) fn slice_mut<T: Element>(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut::new(self.slice())
    }
}

#[test]
fn elements_are_copied_inside_of_the_bounds() {
    let mut fake = Fake::new(0x10_0000);
    let mut slice = fake.slice_mut::<f32>();
    let all: Vec<f32> = (0..2048u16).map(f32::from).collect();
    slice.write(0, &all).expect("a write");
    assert_eq!(slice.to_vec(), all);
    slice.set(5, -1.5).expect("a write");
    assert_eq!(slice.get(5).expect("an element"), -1.5);
    let mut some = [0.0; 3];
    slice.read(2045, &mut some).expect("a read");
    assert_eq!(some, [2045.0, 2046.0, 2047.0]);
    let error = slice.read(2046, &mut some).expect_err("beyond the end");
    assert_eq!(
        error.to_string(),
        "cannot read 3 elements of device memory at 0x100000, from element 2046 on: it has \
         2048 elements (EINVAL)"
    );
    assert!(slice.set(2048, 0.0).is_err());
    assert!(slice.get(usize::MAX).is_err());
}

#[test]
fn parts_lie_inside() {
    let fake = Fake::new(0x10_0000);
    let slice = fake.slice::<u16>();
    let part = slice.part(10..20).expect("a part");
    assert_eq!((part.len(), part.device_addr()), (10, 0x10_0014));
    let part = part.part(3..=4).expect("a part");
    assert_eq!((part.len(), part.device_addr()), (2, 0x10_001a));
    part.write(0, &[7, 8]).expect("a write");
    assert_eq!(slice.get(14).expect("an element"), 8);
    assert!(slice.part(4096..).expect("nothing").is_empty());
    assert_eq!(slice.part(..).expect("all").bytes(), 0x2000);
    assert!(slice.part(..4097).is_err());
    assert!(slice.part(4097..).is_err());
    assert!(slice.part(..=usize::MAX).is_err());
    let backwards = (Bound::Included(3), Bound::Excluded(2));
    assert!(slice.part(backwards).is_err());
    let behind_all = (Bound::Excluded(usize::MAX), Bound::Unbounded);
    assert!(slice.part(behind_all).is_err());
}

#[test]
fn what_is_split_is_all_of_it() {
    let mut fake = Fake::new(0x10_0000);
    let (before, after) = fake.slice_mut::<u64>().split_at(1000).expect("two");
    assert_eq!((before.len(), after.len()), (1000, 24));
    assert_eq!(after.device_addr(), before.device_addr() + 8000);
    assert!(fake.slice_mut::<u64>().split_at(1025).is_err());
}

#[test]
fn slices_can_be_shared_and_sent() {
    fn check<T: Send + Sync>() {}
    check::<DeviceSlice<'_, f32>>();
    check::<DeviceSliceMut<'_, f32>>();
}
