// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors tell the address, the reason, the numbers, and what to do.

use std::process::{Command, Stdio};

use nix::libc;
use nix::sys::resource::{setrlimit, Resource};
use pinmap::{Access, Buffer, Device, Reason, RegisterOptions, Registration};

use crate::harness::Outcome;
use crate::setup::{become_user, buffer, device, pattern, RawMemory, PAGE};

/// Registers memory to which no reference exists.
fn raw(
    device: &Device,
    memory: &RawMemory,
    len: usize,
    access: Access,
) -> pinmap::Result<Registration<()>> {
    // SAFETY: `RawMemory` is accessed by raw pointers only.
    unsafe { device.register_raw(memory.start(), len, access) }
}

fn check(error: &pinmap::Error, errno: i32, reason: Reason, addr: usize) {
    assert_eq!(error.errno(), errno, "{error}");
    let failure = error.failure().expect("a failure");
    assert_eq!(
        (failure.reason, failure.addr),
        (reason, addr as u64),
        "{error}"
    );
    assert!(error.to_string().contains(&format!("{addr:#x}")), "{error}");
}

pub(crate) fn failure_names_hole() -> Outcome {
    let device = device()?;
    let memory = RawMemory::new(4 * PAGE)?;
    memory.punch(2 * PAGE, PAGE)?;
    let error = raw(&device, &memory, 4 * PAGE, Access::ReadWrite).expect_err("a hole");
    check(&error, libc::EFAULT, Reason::Hole, memory.addr() + 2 * PAGE);
    assert_eq!(device.info()?.registrations, 0);
    raw(&device, &memory, 2 * PAGE, Access::ReadWrite)?.release()?;
    Ok(())
}

pub(crate) fn failure_names_permission() -> Outcome {
    let device = device()?;
    let memory = RawMemory::new(2 * PAGE)?;
    memory.fill(&pattern(1, 2 * PAGE));
    memory.protect()?;
    let error = raw(&device, &memory, 2 * PAGE, Access::ReadWrite).expect_err("read-only");
    check(&error, libc::EFAULT, Reason::Permission, memory.addr());
    assert!(
        error.hint().is_some_and(|hint| hint.contains("writable")),
        "{error}"
    );
    raw(&device, &memory, 2 * PAGE, Access::Read)?.release()?;
    memory.unmap()
}

pub(crate) fn failure_names_overlap() -> Outcome {
    let device = device()?;
    let memory = RawMemory::new(4 * PAGE)?;
    let first = raw(&device, &memory, 2 * PAGE, Access::ReadWrite)?;
    let error = raw(&device, &memory, 4 * PAGE, Access::Read).expect_err("an overlap");
    check(&error, libc::EEXIST, Reason::Overlap, memory.addr());
    first.release()?;
    raw(&device, &memory, 4 * PAGE, Access::Read)?.release()?;
    memory.unmap()
}

pub(crate) fn failure_names_aperture_and_reserved() -> Outcome {
    let device = device()?;
    let write = RegisterOptions::new(Access::ReadWrite);
    let last = *device.info()?.aperture.end();
    let mut memory = Buffer::<u8>::new(PAGE)?;
    if let Some(behind) = last.checked_add(1) {
        let refused = memory
            .register(&device, write.at(behind))
            .expect_err("outside");
        assert_eq!(refused.error.errno(), libc::ENOSPC);
        let failure = refused.error.failure().expect("a failure");
        assert_eq!((failure.reason, failure.allowed), (Reason::Aperture, last));
        memory = refused.value;
    }
    for reserved in device.reserved()? {
        let start = *reserved.range.start();
        let refused = memory
            .register(&device, write.at(start))
            .expect_err("reserved");
        check(
            &refused.error,
            libc::ENOSPC,
            Reason::Reserved,
            start as usize,
        );
        memory = refused.value;
    }
    memory.register(&device, write)?.release()?;
    Ok(())
}

pub(crate) fn failure_names_memlock() -> Outcome {
    const LIMIT: usize = 16 * PAGE;
    become_user(Some(device()?.path()))?;
    setrlimit(Resource::RLIMIT_MEMLOCK, LIMIT as u64, LIMIT as u64)?;
    let device = device()?;
    let memlock = device.info()?.memlock;
    assert_eq!((memlock.limit, memlock.used), (Some(LIMIT as u64), 0));

    let content = pattern(2, LIMIT + PAGE);
    let refused = buffer(&content)?
        .register(&device, Access::Read)
        .expect_err("too much");
    let failure = *refused.error.failure().expect("a failure");
    assert_eq!(
        (refused.error.errno(), failure.reason),
        (libc::ENOMEM, Reason::Memlock)
    );
    assert_eq!(
        (failure.needed, failure.allowed),
        ((LIMIT + PAGE) as u64, LIMIT as u64)
    );
    let hint = refused.error.hint().expect("a hint");
    assert!(
        hint.contains("`ulimit -l 68`") && hint.contains("LimitMEMLOCK=69632"),
        "{hint}"
    );
    assert_eq!(*refused.value, content[..]);

    // Of several pieces, all are needed, not only those up to the one that is too much.
    let pieces = [1, LIMIT / PAGE, 3].map(|pages| Buffer::<u8>::new(pages * PAGE));
    let pieces: pinmap::Result<Vec<_>> = pieces.into_iter().collect();
    let refused = device
        .register_all(pieces?, Access::Read)
        .expect_err("too much");
    let failure = refused.error.failure().expect("a failure");
    assert_eq!(
        (refused.index, failure.needed),
        (Some(1), (LIMIT + 4 * PAGE) as u64)
    );
    let hint = refused.error.hint().expect("a hint");
    assert!(hint.contains("`ulimit -l 80`"), "{hint}");

    // Registered memory counts against the limit; released memory does not.
    let half = Buffer::<u8>::new(LIMIT / 2)?.register(&device, Access::Read)?;
    assert_eq!(device.info()?.memlock.used, LIMIT as u64 / 2);
    assert_eq!(device.info()?.memlock.available(), Some(LIMIT as u64 / 2));
    assert!(Buffer::<u8>::new(LIMIT / 2 + PAGE)?
        .register(&device, Access::Read)
        .is_err());
    drop(half);
    Buffer::<u8>::new(LIMIT)?
        .register(&device, Access::Read)?
        .release()?;
    Ok(())
}

pub(crate) fn failure_names_other_process() -> Outcome {
    let device = device()?;
    // SAFETY: The child only makes a system call and exits: no lock, no allocation matters, for
    // this process has one thread.
    match unsafe { nix::unistd::fork()? } {
        nix::unistd::ForkResult::Child => {
            let refused =
                Buffer::<u8>::new(PAGE).map(|memory| memory.register(&device, Access::Read));
            let good = matches!(refused, Ok(Err(with)) if with.error.errno() == libc::EPERM
                && with.error.hint().is_some_and(|hint| hint.contains("fork")));
            // SAFETY: Ends the child without what the parent would do at its end.
            unsafe { libc::_exit(i32::from(!good)) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None)?;
            assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
            Ok(())
        }
    }
}

pub(crate) fn owned_device_says_what_to_do() -> Outcome {
    let first = device()?;
    let owner = Buffer::<u8>::new(PAGE)?.register(&first, Access::Read)?;
    let second = Device::open(first.path())?;
    let info = second.info()?;
    assert!(info.owned && !info.owner && first.info()?.owner);

    let unmapped = RegisterOptions::new(Access::Read).unmapped();
    let pinned = Buffer::<u8>::new(PAGE)?.register(&second, unmapped)?;
    let registered = Buffer::<u8>::new(PAGE)?.register(&second, Access::Read);
    let mut refused = vec![
        registered.map(drop).map_err(|with| with.error),
        pinned.map(Access::Read).map(drop),
        second.bar(0).map(drop),
        second.interrupt(0).map(drop),
    ];
    if info.can_reset {
        refused.push(second.reset());
    }
    for refused in refused {
        let error = refused.expect_err("another context owns it");
        assert_eq!(error.errno(), libc::EBUSY, "{error}");
        assert!(error.to_string().contains("fuser -v"), "{error}");
    }
    // The owner is the file, which the registration keeps open.
    drop(first);
    assert!(second.info()?.owned);
    drop(owner);
    assert!(!second.info()?.owned);
    drop(pinned.map(Access::Read)?);
    // Another process is told the same.
    let out = Command::new("pinmap")
        .arg("info")
        .arg(second.path())
        .stdin(Stdio::null())
        .output()?;
    assert!(
        String::from_utf8_lossy(&out.stdout).contains("a program owns it now"),
        "{out:?}"
    );
    Ok(())
}
