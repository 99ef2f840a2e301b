// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of files; questions about memory before, while and after it is registered.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::sys::memfd::{memfd_create, MFdFlags};
use pinmap::inspect::{BufferKind, State};
use pinmap::{Access, Buffer, Device, Error, Pages, Reason, RegisterOptions};

use crate::harness::{skip, Outcome};
use crate::held::HeldFaults;
use crate::setup::{become_user, device, edu, fill_device, pattern, RawMemory, PAGE};

fn memfd(len: usize) -> Result<File, Box<dyn std::error::Error>> {
    let file = File::from(memfd_create(c"test", MFdFlags::MFD_CLOEXEC)?);
    file.set_len(len as u64)?;
    Ok(file)
}

pub(crate) fn file_is_shared_with_the_device() -> Outcome {
    let mut edu = edu()?;
    let file = memfd(8 * PAGE)?;
    let part = edu
        .device()
        .register_file(&file, 2 * PAGE as u64, 4 * PAGE, Access::ReadWrite)?;
    assert_eq!(part.len(), 4 * PAGE);
    fill_device(&mut edu, &pattern(3, PAGE))?;
    edu.store(part.device_addr()? + PAGE as u64, 0, PAGE)?;
    let mut content = vec![0; PAGE];
    file.read_exact_at(&mut content, 3 * PAGE as u64)?;
    assert_eq!(content, pattern(3, PAGE));
    let info = part.query()?;
    assert_eq!(
        (info.kind, info.file_offset),
        (BufferKind::File, Some(2 * PAGE as u64))
    );
    assert_eq!((info.state, info.pinned), (State::Live, 4 * PAGE as u64));
    // A second mapping goes with the registration.
    let mapping = part.map(Access::Read)?;
    edu.fetch(mapping.device_addr() + PAGE as u64, 0, PAGE)?;
    drop(mapping);
    assert_eq!(part.release()?.offset, 2 * PAGE as u64);
    assert_eq!(edu.device().info()?.registrations, 0);
    Ok(())
}

pub(crate) fn file_errors_say_what_to_do() -> Outcome {
    let device = device()?;
    let fail = |file: &File, offset, len, options: RegisterOptions| {
        let failed = device.register_file(file, offset, len, options);
        failed.expect_err("refused")
    };
    let write = RegisterOptions::new(Access::ReadWrite);
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let error = fail(&null, 0, PAGE, write);
    assert_eq!(error.errno(), Errno::EINVAL as i32);
    assert!(
        error.hint().is_some_and(|hint| hint.contains("memfd")),
        "{error}"
    );
    let sealed = memfd_create(c"sealed", MFdFlags::MFD_ALLOW_SEALING)?;
    let sealed = File::from(sealed);
    sealed.set_len(PAGE as u64)?;
    fcntl(&sealed, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE))?;
    let error = fail(&sealed, 0, PAGE, write);
    assert_eq!(error.errno(), Errno::EPERM as i32);
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("Access::Read")),
        "{error}"
    );
    let file = memfd(PAGE)?;
    let error = fail(&file, 0, 2 * PAGE, write);
    assert_eq!(error.errno(), Errno::EFAULT as i32);
    assert_eq!(
        error.failure().map(|f| (f.reason, f.addr)),
        Some((Reason::Fault, PAGE as u64))
    );
    assert_eq!(
        fail(&file, 0, PAGE, write.identity()).errno(),
        Errno::EOPNOTSUPP as i32
    );
    nix::fcntl::fcntl(&memfd(1)?, nix::fcntl::FcntlArg::F_GET_SEALS)?;
    Ok(())
}

pub(crate) fn preflight_says_what_registering_would() -> Outcome {
    let device = device()?;
    let buffer = Buffer::<u8>::new(4 * PAGE)?;
    let before = device.info()?;
    let found = buffer.preflight(&device, Access::ReadWrite)?;
    assert_eq!(found.memlock_allowed, None);
    assert_eq!(found.registrations_needed, 1);
    assert_eq!(device.info()?, before);
    let memory = RawMemory::new(4 * PAGE)?;
    memory.punch(2 * PAGE, PAGE)?;
    let error = device
        .preflight(memory.addr(), 4 * PAGE, Access::Read)
        .expect_err("a hole");
    let failure = error.failure().ok_or("no failure")?;
    assert_eq!(
        (failure.reason, failure.addr),
        (Reason::Hole, (memory.addr() + 2 * PAGE) as u64)
    );
    Ok(())
}

pub(crate) fn preflight_names_the_limit() -> Outcome {
    let device = device()?;
    let path = device.path().to_owned();
    drop(device);
    let limit = (8 * PAGE) as u64;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK, limit, limit)?;
    become_user(Some(&path))?;
    let device = Device::open(&path)?;
    let found = Buffer::<u8>::new(8 * PAGE)?.preflight(&device, Access::Read)?;
    assert_eq!(
        (found.memlock_needed, found.memlock_allowed),
        (limit, Some(limit))
    );
    let error = Buffer::<u8>::new(9 * PAGE)?
        .preflight(&device, Access::Read)
        .expect_err("over the limit");
    let failure = error.failure().ok_or("no failure")?;
    assert_eq!((failure.reason, failure.allowed), (Reason::Memlock, limit));
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("`ulimit -l 36`")),
        "{error}"
    );
    Ok(())
}

pub(crate) fn progress_is_reported() -> Outcome {
    const LEN: usize = 16 << 20;
    const REPORTS: u64 = 5;
    let device = device()?;
    let buffer = Buffer::<u8>::with_pages(LEN, Pages::Normal)?;
    let addr = buffer.addr();
    assert_eq!(device.query(addr)?, None);
    // It cannot end before the last of these reports.
    let held = HeldFaults::new(addr + LEN / 2, LEN / 2)?;
    let (done, wait) = mpsc::channel::<()>();
    let registration = thread::scope(|scope| {
        let device = &device;
        let watcher = scope.spawn(move || -> Result<(), Error> {
            let (mut reports, mut last) = (0, 0);
            // It is disconnected if registering fails.
            while reports < REPORTS
                && wait.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout)
            {
                let Some(memory) = device.query(addr)? else {
                    continue;
                };
                assert_eq!((memory.state, memory.len), (State::Building, LEN));
                assert!(last <= memory.pinned && memory.pinned <= LEN as u64 / 2);
                last = memory.pinned;
                // The first half is on its way to be pinned, and the second is waited for.
                reports += u64::from(last > 0);
            }
            assert_eq!(reports, REPORTS);
            drop(held);
            Ok(())
        });
        let registration = buffer.register(device, Access::ReadWrite);
        drop(done);
        watcher.join().expect("no panic")?;
        Ok::<_, Error>(registration?)
    })?;
    let memory = registration.query()?;
    assert_eq!((memory.state, memory.pinned), (State::Live, LEN as u64));
    Ok(())
}

pub(crate) fn query_knows_every_kind() -> Outcome {
    let Some(node) = Device::list()?.into_iter().next() else {
        return skip("there is no device");
    };
    let device = Device::open(&node.path)?;
    let registered = Buffer::<u8>::new(PAGE)?.register(&device, Access::Read)?;
    let info = device.query(registered.addr() + 5)?.ok_or("not found")?;
    assert_eq!(
        (info.kind, info.handle),
        (BufferKind::User, registered.handle())
    );
    let allocated = device.alloc::<u8>(3 * PAGE)?;
    let info = device
        .query(allocated.addr() + 2 * PAGE)?
        .ok_or("not found")?;
    assert_eq!(
        (info.kind, info.handle),
        (BufferKind::Host, allocated.handle())
    );
    assert_eq!((info.addr, info.len), (allocated.addr(), 3 * PAGE));
    assert_eq!(
        info.device_addr,
        Some(allocated.device_addr() + 2 * PAGE as u64)
    );
    let address = allocated.addr();
    drop(allocated);
    assert_eq!(device.query(address)?, None);
    Ok(())
}

pub(crate) fn portable_memory_is_on_all_devices() -> Outcome {
    let mut edu = edu()?;
    let options = RegisterOptions::new(Access::ReadWrite).portable();
    let memory = Buffer::<u8>::new(2 * PAGE)?.register(edu.device(), options)?;
    let Some(other) = crate::setup::devices()?.into_iter().nth(1) else {
        return skip("there is only one edu");
    };
    let info = other.query(memory.addr() + PAGE)?.ok_or("not found")?;
    assert!(info.portable && info.handle != 0);
    let mut other = crate::edu::Edu::new(other)?;
    // Content goes from one device to the other by the same memory.
    fill_device(&mut edu, &pattern(4, PAGE))?;
    edu.store(memory.device_addr()?, 0, PAGE)?;
    other.fetch(info.device_addr.ok_or("not mapped")? - PAGE as u64, 0, PAGE)?;
    assert_eq!(
        crate::setup::device_content(&mut other, PAGE)?,
        pattern(4, PAGE)
    );
    let addr = memory.addr();
    drop(memory.release()?);
    assert_eq!(other.device().query(addr)?, None);
    Ok(())
}
