// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the program, registered for reading where it is.

use std::sync::Arc;

use nix::libc::{EACCES, EEXIST, EIO};
use pinmap::{Access, ReadMemory, Registration};

use crate::fake::{After, Fake};

/// Registers numbers that begin and end within pages, and checks what the device is given.
fn there_and_back<M>(fake: &Fake, memory: M)
where
    M: ReadMemory<Element = u32, Error: std::fmt::Debug>,
{
    let device = fake.open();
    let elements = memory.elements().to_vec();
    let (addr, bytes) = (memory.elements().as_ptr().addr(), 4 * elements.len());
    let registered: Registration<M> = device.register(memory, Access::Read).expect("registered");
    assert_eq!((registered.addr(), registered.len()), (addr, bytes));
    // A made-up IOMMU has all addresses.
    assert_eq!(registered.device_addr().expect("mapped"), addr as u64);
    let (start, end) = (addr / 4096 * 4096, (addr + bytes).next_multiple_of(4096));
    assert_eq!(fake.registered(), [(start as u64, (end - start) as u64)]);
    assert_eq!(registered.elements(), elements);
    let memory = registered.release().expect("released");
    assert_eq!(memory.elements(), elements);
    assert_eq!(memory.elements().as_ptr().addr(), addr);
    assert_eq!(fake.registrations().0, 0);
}

#[test]
fn is_read_where_it_is_and_comes_back() {
    let fake = Fake::new();
    let numbers: Vec<u32> = (0..3000).collect();
    there_and_back(&fake, numbers.clone());
    there_and_back(&fake, numbers.clone().into_boxed_slice());
    there_and_back(&fake, Arc::<[u32]>::from(numbers.clone()));
    let all: &'static [u32] = numbers.leak();
    there_and_back(&fake, &all[7..2000]);
}

#[test]
fn is_never_given_to_a_device_that_writes() {
    let fake = Fake::new();
    let refused = fake.open().register(vec![1u8, 2, 3], Access::ReadWrite);
    let refused = refused.expect_err("it shares its page with others");
    assert_eq!(refused.error.errno(), EACCES);
    let hint = refused.error.hint().expect("what to do");
    assert!(hint.contains("`Buffer`"), "{hint}");
    assert_eq!((refused.value, fake.calls()), (vec![1, 2, 3], 0));
}

#[test]
fn is_registered_once() {
    let (fake, memory) = (Fake::new(), Arc::<[u8]>::from(vec![7; 2048]));
    let device = fake.open();
    let again = Arc::clone(&memory);
    let _first = device.register(memory, Access::Read).expect("registered");
    let refused = device
        .register(again, Access::Read)
        .expect_err("it is registered");
    assert_eq!(refused.errno(), EEXIST);
}

#[test]
fn is_never_freed_if_the_device_keeps_it() {
    let (fake, memory) = (Fake::new(), Arc::<[u8]>::from(vec![7; 5000]));
    let registered = fake.open().register(Arc::clone(&memory), Access::Read);
    let registered = registered.expect("registered");
    fake.break_iommu(After::Here);
    let failed = registered.release().expect_err("EIO");
    assert_eq!(failed.error.errno(), EIO);
    assert_eq!(failed.value.elements(), &memory[..]);
    drop(failed);
    assert_eq!(
        Arc::strong_count(&memory),
        2,
        "the device may still read it"
    );
}
