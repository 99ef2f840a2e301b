// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registering and releasing: content, reach, pins.

use std::mem;

use pinmap::inspect::State;
use pinmap::{Access, Buffer, Device, RegisterOptions};

use crate::harness::Outcome;
use crate::pins::Pins;
use crate::setup::{buffer, device, device_content, edu, fill_device, pattern, RawMemory, PAGE};

pub(crate) fn register_roundtrip() -> Outcome {
    let mut edu = edu()?;
    let content = pattern(1, PAGE);
    let source = buffer(&content)?.register(edu.device(), Access::Read)?;
    let target = Buffer::<u8>::new(PAGE)?.register(edu.device(), Access::ReadWrite)?;
    assert_eq!(source.device_addr()?, source.addr() as u64);
    assert_eq!(target.device_addr()?, target.addr() as u64);
    assert_eq!(
        (source.access(), target.access()),
        (Access::Read, Access::ReadWrite)
    );
    assert_ne!(source.handle(), target.handle());
    assert_eq!(target.state()?, State::Live);
    edu.fetch(source.device_addr()?, 0, PAGE)?;
    edu.store(target.device_addr()?, 0, PAGE)?;
    assert_eq!(*target.release()?, content[..]);
    assert_eq!(*source.release()?, content[..]);
    Ok(())
}

pub(crate) fn release_returns_content() -> Outcome {
    let mut edu = edu()?;
    fill_device(&mut edu, &pattern(2, PAGE))?;
    let mut memory = Buffer::<u8>::new(2 * PAGE)?;
    memory[0] = 0xa5;
    let addr = memory.addr();
    let memory = memory.register(edu.device(), Access::ReadWrite)?;

    // Everything is there that was written by the slice, the copies, the stores, the device.
    memory.write_at(1, b"hello")?;
    memory.store(16, 0x1122_3344u32)?;
    edu.store(memory.device_addr()? + PAGE as u64, 0, PAGE)?;

    let mut copied = vec![0; PAGE];
    memory.read_at(PAGE, &mut copied)?;
    assert_eq!(copied, pattern(2, PAGE));
    assert_eq!(memory.load::<u32>(16)?, 0x1122_3344);
    assert!(memory.read_at(PAGE + 1, &mut copied).is_err());

    let memory = memory.release()?;
    assert_eq!((memory.addr(), memory.len()), (addr, 2 * PAGE));
    assert_eq!(&memory[..6], b"\xa5hello");
    assert_eq!(memory[16..20], 0x1122_3344u32.to_ne_bytes());
    assert_eq!(memory[PAGE..], pattern(2, PAGE));
    Ok(())
}

pub(crate) fn register_in_another_thread() -> Outcome {
    let device = device()?;
    let register = || {
        Buffer::<u8>::new(PAGE)?
            .register(&device, Access::Read)
            .map_err(Into::into)
    };
    let registration: pinmap::Result<_> =
        std::thread::scope(|scope| scope.spawn(register).join().expect("no panic"));
    let registration = registration?;
    drop(device);
    let released = std::thread::spawn(move || registration.release().map(|buffer| buffer.len()));
    assert_eq!(released.join().expect("no panic")?, PAGE);
    Ok(())
}

/// Lets the device write to an address that is no longer ours; it does not notice.
fn store_in_vain(edu: &mut crate::edu::Edu, device_addr: u64) -> Outcome {
    fill_device(edu, &pattern(3, PAGE))?;
    Ok(edu.store(device_addr, 0, PAGE)?)
}

pub(crate) fn release_ends_reach() -> Outcome {
    let mut edu = edu()?;
    let content = pattern(4, PAGE);
    let memory = buffer(&content)?.register(edu.device(), Access::ReadWrite)?;
    let device_addr = memory.device_addr()?;
    // The device uses the address, so that the IOMMU has the translation in its cache.
    edu.fetch(device_addr, 0, PAGE)?;
    let memory = memory.release()?;
    store_in_vain(&mut edu, device_addr)?;
    assert_eq!(*memory, content[..]);
    Ok(())
}

pub(crate) fn drop_ends_reach_and_unpins() -> Outcome {
    let mut edu = edu()?;
    let content = pattern(5, PAGE);
    let memory = RawMemory::new(64 * PAGE)?;
    memory.fill(&content);
    let before = Pins::now();
    // SAFETY: The memory is accessed by raw pointers only.
    let raw = unsafe {
        edu.device()
            .register_raw(memory.start(), 64 * PAGE, Access::ReadWrite)?
    };
    let owned = Buffer::<u8>::new(64 * PAGE)?.register(edu.device(), Access::ReadWrite)?;
    assert_eq!(edu.device().info()?.registrations, 2);
    let device_addr = raw.device_addr()?;
    edu.fetch(device_addr, 0, PAGE)?;
    drop((raw, owned));
    assert_eq!(edu.device().info()?.registrations, 0);
    if let Some(since) = before.and_then(Pins::settled_since) {
        assert_eq!(
            since,
            Pins {
                acquired: 128,
                released: 128
            }
        );
    }
    store_in_vain(&mut edu, device_addr)?;
    assert_eq!(memory.content(PAGE), content);
    memory.unmap()
}

pub(crate) fn forget_keeps_memory_pinned() -> Outcome {
    let before = Pins::now();
    let mut edu = edu()?;
    let memory = Buffer::<u8>::new(16 * PAGE)?.register(edu.device(), Access::ReadWrite)?;
    let (device_addr, addr) = (memory.device_addr()?, memory.addr());
    mem::forget(memory);
    // The memory is still there, mapped and counted.
    fill_device(&mut edu, &pattern(6, PAGE))?;
    edu.store(device_addr, 0, PAGE)?;
    assert_eq!(device_content(&mut edu, PAGE)?, pattern(6, PAGE));
    let path = edu.device().path().to_owned();
    let info = edu.device().query(addr)?.expect("it is registered");
    assert_eq!((info.state, info.len), (State::Live, 16 * PAGE));
    drop(edu);
    if let (Some(before), Some(now)) = (before, Pins::now()) {
        let held = |pins: Pins| pins.acquired.wrapping_sub(pins.released);
        assert_eq!(held(now).wrapping_sub(held(before)), 16);
    }
    // The file is still open: the device has an owner until this process ends.
    assert!(Device::open(path)?.info()?.owned);
    let content: *const u8 = std::ptr::with_exposed_provenance(addr);
    // SAFETY: A `Buffer`'s memory that is never unmapped; the device writes it no more.
    assert_eq!(unsafe { content.read_volatile() }, pattern(6, 1)[0]);
    Ok(())
}

pub(crate) fn read_only_is_enforced() -> Outcome {
    let mut edu = edu()?;
    let content = pattern(7, PAGE);
    let memory = buffer(&content)?.register(edu.device(), Access::Read)?;
    store_in_vain(&mut edu, memory.device_addr()?)?;
    edu.fetch(memory.device_addr()?, 0, PAGE)?;
    assert_eq!(device_content(&mut edu, PAGE)?, content);
    assert_eq!(*memory.release()?, content[..]);
    Ok(())
}

pub(crate) fn register_raw_rounds_outwards() -> Outcome {
    let mut edu = edu()?;
    let memory = RawMemory::new(4 * PAGE)?;
    memory.fill(&pattern(8, 4 * PAGE));
    let inside = memory.start().wrapping_add(PAGE + 100);
    let options = RegisterOptions::new(Access::ReadWrite);
    // SAFETY: The memory is accessed by raw pointers only, all of it.
    let error = unsafe { edu.device().register_raw(inside, PAGE, options) };
    assert_eq!(
        error.expect_err("no whole pages").errno(),
        nix::libc::EINVAL
    );
    // SAFETY: As above.
    let raw = unsafe {
        edu.device()
            .register_raw(inside, PAGE, options.round_outwards())?
    };
    assert_eq!((raw.addr(), raw.len()), (inside.addr(), PAGE));
    let whole = raw.query()?;
    assert_eq!((whole.addr, whole.len), (memory.addr() + PAGE, 2 * PAGE));
    edu.fetch(raw.device_addr()?, 0, 500)?;
    assert_eq!(
        device_content(&mut edu, 500)?,
        memory.content(4 * PAGE)[PAGE + 100..][..500]
    );
    raw.release()?;
    memory.unmap()
}

pub(crate) fn vec_is_read_where_it_is() -> Outcome {
    let mut edu = edu()?;
    let mut content = pattern(9, 3 * PAGE);
    content.shrink_to_fit();
    let addr = content.as_ptr().addr();
    let memory = edu.device().register(content.clone(), Access::ReadWrite);
    let refused = memory.expect_err("a device must not write there");
    assert_eq!(refused.error.errno(), nix::libc::EACCES);
    assert_eq!(refused.value, content);

    let memory = edu.device().register(content, Access::Read)?;
    assert_eq!((memory.addr(), memory.len()), (addr, 3 * PAGE));
    let last = memory.device_addr()? + (3 * PAGE - 100) as u64;
    edu.fetch(memory.device_addr()?, 0, PAGE)?;
    assert_eq!(device_content(&mut edu, PAGE)?, memory.elements()[..PAGE]);
    edu.fetch(last, 0, 100)?;
    let end = &memory.elements()[3 * PAGE - 100..];
    assert_eq!(device_content(&mut edu, 100)?, end);
    let again = memory.map(Access::Read)?;
    edu.fetch(again.device_addr() + 7, 0, 100)?;
    assert_eq!(device_content(&mut edu, 100)?, memory.elements()[7..107]);
    again.unmap()?;
    let writing = memory
        .map(Access::ReadWrite)
        .expect_err("it was registered for reading");
    assert_eq!(writing.errno(), nix::libc::EACCES);

    store_in_vain(&mut edu, memory.device_addr()?)?;
    let device_addr = memory.device_addr()?;
    let content = memory.release()?;
    assert_eq!(
        (content.as_ptr().addr(), &content),
        (addr, &pattern(9, 3 * PAGE))
    );
    store_in_vain(&mut edu, device_addr)?;
    let empty = edu.device().register(Vec::<u32>::new(), Access::Read);
    assert_eq!(
        empty.expect_err("no pages").error.errno(),
        nix::libc::EINVAL
    );
    Ok(())
}

pub(crate) fn query_finds_interior_addresses() -> Outcome {
    let device = device()?;
    let memory = Buffer::<u8>::new(4 * PAGE)?.register(&device, Access::ReadWrite)?;
    let addr = memory.addr() + 2 * PAGE + 5;
    let info = device.query(addr)?.expect("it is registered");
    assert_eq!(
        (info.handle, info.addr, info.len),
        (memory.handle(), memory.addr(), 4 * PAGE)
    );
    assert_eq!(
        info.device_addr,
        Some(memory.device_addr()? + 2 * PAGE as u64 + 5)
    );
    assert_eq!(
        (info.access, info.state, info.mappings),
        (Access::ReadWrite, State::Live, 1)
    );
    assert_eq!(memory.query()?.device_addr, Some(memory.device_addr()?));
    let handle = memory.handle();
    drop(memory.release()?);
    assert_eq!(device.query(addr)?, None);
    // A handle is never used again.
    let next = Buffer::<u8>::new(PAGE)?.register(&device, Access::Read)?;
    assert_ne!(next.handle(), handle);
    Ok(())
}
