// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw packets in one queue can overwrite the fences of another. Even then there is no reference to
//! memory that a device can reach.

use pinmap::accelerator::StreamOptions;
use pinmap::{accelerator, Access, Buffer, Error};

use crate::fake::Fake;

#[test]
fn borrowed_memory_is_released_before_its_scope_ends() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let stream = gpu.stream(StreamOptions::new()).expect("a stream");
    let mut vram = gpu.alloc_vram::<u8>(4096).expect("memory");
    let mut target = Buffer::<u8>::new(4096).expect("memory");
    let source = vec![1u8; 4096];
    accelerator::scope(|scope| -> Result<(), Error> {
        let work = scope.on(&stream);
        work.copy(vram.slice(), &mut target)?;
        assert_eq!(fake.registrations().0, 1);
        fake.forge_fences();
        Ok(())
    })
    .expect("it seems to be done");
    assert_eq!(fake.registrations().0, 0);
    target[0] = 1;
    accelerator::scope(|scope| -> Result<(), Error> {
        let work = scope.on(&stream);
        work.copy(&source, vram.slice_mut())?;
        fake.forge_fences();
        Ok(())
    })
    .expect("it seems to be done");
    assert_eq!(fake.registrations().0, 0);
}

#[test]
fn memory_is_released_before_it_is_given_back() {
    let fake = Fake::new();
    let gpu = fake.accelerator();
    let stream = gpu.stream(StreamOptions::new()).expect("a stream");
    let vram = gpu.alloc_vram::<u8>(4096).expect("memory");
    let target = Buffer::<u8>::new(4096).expect("memory");
    let pending = stream.submit((vram, target), |work, (vram, target)| {
        work.copy(vram.slice(), target)
    });
    let pending = pending.expect("submitted");
    assert_eq!(fake.registrations().0, 1);
    fake.forge_fences();
    let (_, mut target) = pending.try_into_memory().expect("it seems to be done");
    assert_eq!(fake.registrations().0, 0);
    target[0] = 1;
    // Registered again, the memory has no references, whatever the fences say.
    let registration = target.register(gpu.device(), Access::ReadWrite);
    assert_eq!(
        registration.expect("registered").access(),
        Access::ReadWrite
    );
}
