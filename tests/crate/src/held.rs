// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages that are not there until a test says so: userfaultfd(2), which holds whoever needs them.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::libc;

/// `UFFD_API`.
const API: u64 = 0xaa;
/// `UFFDIO_REGISTER_MODE_MISSING`.
const MISSING: u64 = 1;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

nix::ioctl_readwrite!(uffdio_api, 0xaa, 0x3f, Api);
nix::ioctl_readwrite!(uffdio_register, 0xaa, 0x00, Register);

/// A range of memory whose missing pages come when this is dropped. Faults on them wait, also those
/// of the kernel for the program.
pub(crate) struct HeldFaults {
    _file: OwnedFd,
}

impl HeldFaults {
    /// Holds the faults on `len` bytes at `addr`, which are whole pages of anonymous memory.
    pub(crate) fn new(addr: usize, len: usize) -> io::Result<Self> {
        // SAFETY: It takes flags alone, and the result is checked.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: It is new, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let mut api = Api {
            api: API,
            features: 0,
            ioctls: 0,
        };
        let mut register = Register {
            start: addr as u64,
            len: len as u64,
            mode: MISSING,
            ioctls: 0,
        };
        // SAFETY: The kernel reads and writes these structures only, and a page that comes late
        // has the content that it would have had at once.
        unsafe {
            uffdio_api(file.as_raw_fd(), &raw mut api)?;
            uffdio_register(file.as_raw_fd(), &raw mut register)?;
        }
        Ok(Self { _file: file })
    }
}
