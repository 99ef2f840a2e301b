// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device addresses: demanded ones, narrow ones, and more than one.

use std::mem;

use nix::libc;
use pinmap::{Access, Buffer, RegisterOptions};

use crate::harness::Outcome;
use crate::setup::{buffer, device, device_content, edu, fill_device, pattern, PAGE};

/// A device address that no process has as a user address.
const LOW: u64 = 0x10_0000;

pub(crate) fn identity_and_fixed_addresses() -> Outcome {
    let mut edu = edu()?;
    let write = RegisterOptions::new(Access::ReadWrite);
    let identity = Buffer::<u8>::new(PAGE)?.register(edu.device(), write.identity())?;
    assert_eq!(identity.device_addr()?, identity.addr() as u64);

    let content = pattern(1, PAGE);
    let fixed = buffer(&content)?.register(edu.device(), write.at(LOW))?;
    assert_eq!(fixed.device_addr()?, LOW);
    edu.fetch(LOW, 0, PAGE)?;
    assert_eq!(device_content(&mut edu, PAGE)?, content);

    // The address is taken.
    let refused = Buffer::<u8>::new(PAGE)?
        .register(edu.device(), write.at(LOW))
        .expect_err("taken");
    assert_eq!(refused.error.errno(), libc::EEXIST);
    // The address is no page boundary.
    let refused = refused
        .value
        .register(edu.device(), write.at(LOW + 1))
        .expect_err("refused");
    assert_eq!(refused.error.errno(), libc::EINVAL);
    drop(fixed);
    assert_eq!(
        refused
            .value
            .register(edu.device(), write.at(LOW))?
            .device_addr()?,
        LOW
    );
    Ok(())
}

pub(crate) fn address_bits_are_kept() -> Outcome {
    let mut edu = edu()?;
    let content = pattern(2, PAGE);
    let narrow = RegisterOptions::new(Access::Read).address_bits(28);
    let memory = buffer(&content)?.register(edu.device(), narrow)?;
    let device_addr = memory.device_addr()?;
    assert!(device_addr + PAGE as u64 <= 1 << 28, "{device_addr:#x}");
    assert_eq!(device_addr % (2 << 20), memory.addr() as u64 % (2 << 20));
    edu.fetch(device_addr, 0, PAGE)?;
    assert_eq!(device_content(&mut edu, PAGE)?, content);

    let identity = narrow.identity();
    let refused = Buffer::<u8>::new(PAGE)?
        .register(edu.device(), identity)
        .expect_err("too narrow");
    assert_eq!(refused.error.errno(), libc::ENOSPC);
    let allowed = refused.error.failure().expect("a reason").allowed;
    assert_eq!(allowed, (1 << 28) - 1);
    for bits in [1, 11, 65] {
        let nonsense = RegisterOptions::new(Access::Read).address_bits(bits);
        let error = Buffer::<u8>::new(PAGE)?
            .register(edu.device(), nonsense)
            .expect_err("nonsense");
        assert_eq!(error.error.errno(), libc::EINVAL, "{bits}");
    }
    Ok(())
}

pub(crate) fn unmapped_then_mapped() -> Outcome {
    let mut edu = edu()?;
    let pinned = RegisterOptions::new(Access::ReadWrite).unmapped();
    let content = pattern(3, PAGE);
    let memory = buffer(&content)?.register(edu.device(), pinned)?;
    assert!(memory.device_addr().is_err());
    assert_eq!(
        (memory.query()?.mappings, memory.query()?.device_addr),
        (0, None)
    );

    let mapping = memory.map(Access::Read)?;
    assert_eq!(mapping.device_addr(), memory.addr() as u64);
    assert_eq!(mapping.access(), Access::Read);
    edu.fetch(mapping.device_addr(), 0, PAGE)?;
    assert_eq!(device_content(&mut edu, PAGE)?, content);
    fill_device(&mut edu, &pattern(4, PAGE))?;
    edu.store(mapping.device_addr(), 0, PAGE)?;
    mapping.unmap()?;
    assert_eq!(*memory.release()?, content[..]);
    Ok(())
}

pub(crate) fn mapping_drop_unmaps() -> Outcome {
    let mut edu = edu()?;
    fill_device(&mut edu, &pattern(5, PAGE))?;
    let memory = Buffer::<u8>::new(PAGE)?.register(edu.device(), Access::ReadWrite)?;
    let second = memory.map(RegisterOptions::new(Access::ReadWrite).at(LOW))?;
    assert_eq!((second.device_addr(), memory.query()?.mappings), (LOW, 2));
    edu.store(LOW, 0, PAGE)?;
    let mut content = vec![0; PAGE];
    memory.read_at(0, &mut content)?;
    assert_eq!(content, pattern(5, PAGE));
    drop(second);
    assert_eq!(memory.query()?.mappings, 1);

    // The device reaches the memory through the first address still, through the second no more.
    memory.write_at(0, &[0; PAGE])?;
    edu.store(LOW, 0, PAGE)?;
    memory.read_at(0, &mut content)?;
    assert_eq!(content, [0; PAGE]);
    edu.store(memory.device_addr()?, 0, PAGE)?;
    assert_eq!(*memory.release()?, pattern(5, PAGE)[..]);
    Ok(())
}

pub(crate) fn mapping_forgotten_goes_with_registration() -> Outcome {
    let mut edu = edu()?;
    let memory = buffer(&pattern(6, PAGE))?.register(edu.device(), Access::ReadWrite)?;
    mem::forget(memory.map(RegisterOptions::new(Access::ReadWrite).at(LOW))?);
    edu.fetch(LOW, 0, PAGE)?;
    let memory = memory.release()?;
    fill_device(&mut edu, &pattern(7, PAGE))?;
    edu.store(LOW, 0, PAGE)?;
    assert_eq!(*memory, pattern(6, PAGE)[..]);
    Ok(())
}

pub(crate) fn mapping_needs_write_access() -> Outcome {
    let device = device()?;
    let memory = Buffer::<u8>::new(PAGE)?.register(&device, Access::Read)?;
    let error = memory.map(Access::ReadWrite).expect_err("read-only");
    assert_eq!(error.errno(), libc::EACCES);
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("Access::ReadWrite")),
        "{error}"
    );
    let error = memory.map(RegisterOptions::new(Access::Read).interruptible());
    let error = error.map(drop).expect_err("mapping is quick");
    assert!(
        error
            .to_string()
            .contains("only registering is interrupted"),
        "{error}"
    );
    drop(memory.map(Access::Read)?);
    assert_eq!(memory.query()?.mappings, 1);
    Ok(())
}
