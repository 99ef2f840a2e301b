// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kinds of host memory, and allocations that devices share.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::fcntl::{fcntl, FcntlArg, SealFlag};
use nix::libc;
use nix::sys::memfd::{memfd_create, MFdFlags};
use pinmap::{Access, AllocOptions, Device, DmaBuf, Operation, RegisterOptions};

use crate::harness::{skip, Outcome};
use crate::setup::{device, device_content, edu, pattern, PAGE};

fn errno<T>(result: pinmap::Result<T>) -> i32 {
    result.map_or_else(|error| error.errno(), |_| 0)
}

fn memfd(len: usize) -> Result<File, Box<dyn std::error::Error>> {
    let file = File::from(memfd_create(c"test", MFdFlags::MFD_CLOEXEC)?);
    file.set_len(len as u64)?;
    Ok(file)
}

pub(crate) fn alloc_of_all_kinds() -> Outcome {
    let mut edu = edu()?;
    let mut combined = AllocOptions::new();
    if pinmap_samples::zero_copy::WRITE_COMBINED {
        combined = combined.write_combined();
    } else {
        let refused = edu.device().alloc_with::<u8>(1, combined.write_combined());
        assert_eq!(errno(refused), libc::EOPNOTSUPP);
    }
    let portable = combined.node(0).portable();
    for options in [AllocOptions::new(), combined, combined.node(0), portable] {
        let mut memory = edu.device().alloc_with::<u8>(2 * PAGE, options)?;
        assert!(memory.to_vec().iter().all(|&byte| byte == 0), "{options:?}");
        memory.write(100, &pattern(9, 700))?;
        memory.sync_for_device(100..800)?;
        edu.fetch(memory.device_addr() + 100, 0, 700)?;
        assert_eq!(
            device_content(&mut edu, 700)?,
            pattern(9, 700),
            "{options:?}"
        );
        memory.sync_for_cpu(0..0)?;
        let error = memory.sync_for_cpu(0..2 * PAGE + 1).expect_err("too many");
        assert_eq!(
            (error.operation(), error.errno()),
            (Operation::Sync, libc::EINVAL)
        );
    }
    let nowhere = AllocOptions::new().node(1 << 20);
    assert_eq!(
        errno(edu.device().alloc_with::<u8>(1, nowhere)),
        libc::EINVAL
    );
    Ok(())
}

pub(crate) fn shared_allocation() -> Outcome {
    let mut edu = edu()?;
    let mut memory = edu.device().alloc::<u16>(2 * PAGE)?;
    let dma_buf = memory.export(Access::ReadWrite)?;
    // The descriptor as another process would get it.
    let dma_buf = DmaBuf::from(OwnedFd::from(dma_buf.try_clone()?));
    let mut shared = edu.device().import::<u8>(&dma_buf)?;
    drop(dma_buf);
    assert_eq!((shared.len(), memory.len()), (4 * PAGE, 2 * PAGE));
    assert_ne!(
        (shared.addr(), shared.device_addr()),
        (memory.addr(), memory.device_addr())
    );
    shared.write(0, &pattern(3, 600))?;
    edu.fetch(memory.device_addr(), 0, 600)?;
    assert_eq!(device_content(&mut edu, 600)?, pattern(3, 600));
    memory.set(9, 0x0201)?;
    drop(memory);
    assert_eq!([shared.get(18)?, shared.get(19)?], [1, 2]);
    edu.fetch(shared.device_addr() + 18, 0, 2)?;
    assert_eq!(device_content(&mut edu, 2)?, [1, 2]);
    Ok(())
}

/// A part of a file can be an allocation of another context; it outlives what it was made from.
pub(crate) fn shared_file() -> Outcome {
    let mut edu = edu()?;
    let file = memfd(8 * PAGE)?;
    let part = edu
        .device()
        .register_file(&file, PAGE as u64, 2 * PAGE, Access::ReadWrite)?;
    let mut shared = edu
        .device()
        .import::<u8>(&part.export(Access::ReadWrite)?)?;
    assert_eq!(shared.len(), 2 * PAGE);
    shared.write(PAGE, &pattern(4, 500))?;
    edu.fetch(part.device_addr()? + PAGE as u64, 0, 500)?;
    assert_eq!(device_content(&mut edu, 500)?, pattern(4, 500));
    let mut content = vec![0; 500];
    file.read_exact_at(&mut content, 2 * PAGE as u64)?;
    assert_eq!(content, pattern(4, 500));
    drop(part);
    file.set_len(0)?;
    assert_eq!(shared.get(PAGE)?, pattern(4, 1)[0]);
    let readable = edu.device().register_file(
        &memfd(PAGE)?,
        0,
        PAGE,
        RegisterOptions::new(Access::Read).portable(),
    )?;
    assert_eq!(errno(readable.export(Access::ReadWrite)), libc::EACCES);
    Ok(())
}

/// Memory of another driver is an allocation, too.
pub(crate) fn dma_buf_of_udmabuf_is_imported() -> Outcome {
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    nix::ioctl_write_ptr_bad!(create, nix::request_code_write!(b'u', 0x42, 24), Create);
    let Ok(udmabuf) = File::options().read(true).write(true).open("/dev/udmabuf") else {
        return skip("the kernel has no udmabuf");
    };
    let sealing = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(c"test", sealing)?);
    file.set_len(2 * PAGE as u64)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))?;
    let args = Create {
        memfd: u32::try_from(file.as_raw_fd())?,
        flags: 0,
        offset: 0,
        size: 2 * PAGE as u64,
    };
    // SAFETY: The struct is as linux/udmabuf.h has it.
    let dma_buf = unsafe { create(udmabuf.as_raw_fd(), &raw const args)? };
    // SAFETY: The call has just opened it.
    let dma_buf = DmaBuf::from(unsafe { OwnedFd::from_raw_fd(dma_buf) });
    let mut edu = edu()?;
    let shared = edu.device().import::<u8>(&dma_buf)?;
    assert_eq!(shared.len(), 2 * PAGE);
    file.write_all_at(&pattern(8, 300), PAGE as u64)?;
    edu.fetch(shared.device_addr() + PAGE as u64, 0, 300)?;
    assert_eq!(device_content(&mut edu, 300)?, pattern(8, 300));
    Ok(())
}

pub(crate) fn sharing_refuses_what_cannot_be() -> Outcome {
    let device = device()?;
    let memory = device.alloc::<u64>(1)?;
    let readable = memory.export(Access::Read)?;
    assert_eq!(errno(device.import::<u64>(&readable)), libc::EACCES);
    let file = DmaBuf::from(OwnedFd::from(File::open("/dev/null")?));
    assert_eq!(errno(device.import::<u64>(&file)), libc::EINVAL);
    let other = Device::open(device.path())?;
    let shared = memory.export(Access::ReadWrite)?;
    let busy = other
        .import::<u64>(&shared)
        .expect_err("a flat device has one owner");
    assert_eq!(
        (busy.operation(), busy.errno()),
        (Operation::Import, libc::EBUSY)
    );
    let registrations = device.info()?.registrations;
    assert_eq!(registrations, 1);
    Ok(())
}
