// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of registrations.

use super::*;
use crate::Device;

const LEN: usize = 4096;

fn fake() -> Registration {
    let buffer = Buffer::new(LEN).expect("memory");
    let raw = RawRegistration::fake(buffer.addr(), LEN, Some(0x1_0000));
    Registration::new(raw, buffer)
}

fn mapped(addr: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the memory map");
    let bounds = maps
        .lines()
        .filter_map(|line| line.split(' ').next()?.split_once('-'));
    let hex = |text| usize::from_str_radix(text, 16).expect("a number");
    bounds
        .into_iter()
        .any(|(start, end)| (hex(start)..hex(end)).contains(&addr))
}

#[test]
fn a_buffer_that_cannot_be_registered_comes_back() {
    let mut buffer = Buffer::new(1).expect("memory");
    buffer[0] = 7;
    let failed = buffer
        .register(&Device::fake(), Access::Read)
        .expect_err("no driver");
    assert_eq!(failed.error.errno(), Errno::ENOTTY as i32);
    assert_eq!(failed.value[0], 7);
}

#[test]
fn what_cannot_be_released_stays_mapped() {
    let failed = fake().release().expect_err("no driver");
    assert_eq!(failed.error.errno(), Errno::ENOTTY as i32);
    let addr = failed.value.addr();
    drop(failed);
    assert!(mapped(addr));
}

#[test]
fn memory_is_copied_inside_its_bounds() {
    let registration = fake();
    registration.write_at(LEN - 5, b"hello").expect("a write");
    let mut bytes = [0; 5];
    registration.read_at(LEN - 5, &mut bytes).expect("a read");
    assert_eq!(&bytes, b"hello");
    registration
        .read_at(LEN, &mut [])
        .expect("nothing is always there");
    let error = registration
        .read_at(LEN - 4, &mut bytes)
        .expect_err("refused");
    let expected =
        "cannot read 5 bytes at offset 0xffc of registered memory: it ends at 0x1000 (EINVAL)";
    assert_eq!(error.to_string(), expected);
    assert!(registration.write_at(usize::MAX, b"x").is_err());
}

#[test]
fn values_are_aligned() {
    let registration = fake();
    registration
        .store(LEN - 8, 0x1122_3344_5566_7788u64)
        .expect("a store");
    registration.store(LEN - 4, 1u32).expect("a store");
    assert_eq!(
        registration.load::<u32>(LEN - 8).expect("a load"),
        0x5566_7788
    );
    assert!(registration.load::<u64>(LEN - 4).is_err());
    assert!(registration.store(2, 1u32).is_err());
    assert!(registration.load::<u8>(LEN).is_err());
}

#[test]
fn elements_are_those_of_the_memory() {
    let mut registration = fake();
    registration.store(8, 1.5f32.to_bits()).expect("a store");
    let slice = registration.slice::<f32>().expect("mapped");
    assert_eq!((slice.len(), slice.device_addr()), (LEN / 4, 0x1_0000));
    assert_eq!(slice.get(2).expect("an element"), 1.5);
    let mut slice = registration.slice_mut::<f32>().expect("writable");
    slice.set(3, 2.5).expect("an element");
    let bits = registration.load::<u32>(12).expect("a load");
    assert_eq!(f32::from_bits(bits), 2.5);
}

#[test]
fn without_a_mapping_there_is_no_device_address() {
    assert_eq!(fake().device_addr().expect("an address"), 0x1_0000);
    let unmapped = RawRegistration::fake(0x1000, LEN, None);
    let error = unmapped.device_addr().expect_err("no mapping");
    assert!(
        error.hint().is_some_and(|hint| hint.contains("`Mapping`")),
        "{error}"
    );
}
