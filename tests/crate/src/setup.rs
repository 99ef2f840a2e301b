// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of many tests: devices, memory that is not the crate's, other users.

use std::error::Error;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr::NonNull;

use nix::sys::mman::{mmap_anonymous, mprotect, munmap, MapFlags, ProtFlags};
use nix::unistd::{setgid, setgroups, setuid, Gid, Uid};
use pinmap::{Access, Buffer, Device};

use crate::edu::{self, Edu};
use crate::harness::skip;

/// Whether a wait ended because the time was up.
///
/// # Errors
///
/// Every other error of the wait.
pub(crate) fn timed_out<T>(waited: pinmap::Result<T>) -> pinmap::Result<bool> {
    match waited {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == pinmap::ErrorKind::TimedOut => Ok(true),
        Err(error) => Err(error),
    }
}

pub(crate) const PAGE: usize = 4096;

/// Whether the bus of this machine lets devices reach each other.
pub(crate) fn peers() -> bool {
    !std::env::var("PINMAP_PEERS").unwrap_or_default().is_empty()
}

/// Whether everything takes several times as long: on the debug kernel, or with a test GPU each
/// access of which is a message.
pub(crate) fn is_slow() -> bool {
    let is = |name, value: &str| std::env::var(name).is_ok_and(|is| is == value);
    is("PINMAP_KERNEL", "debug") || is("PINMAP_DMA", "message")
}

/// Opens and drives the first `edu`, or skips the test.
pub(crate) fn edu() -> Result<Edu, Box<dyn Error>> {
    Ok(Edu::new(device()?)?)
}

/// Opens the first `edu`, or skips the test.
pub(crate) fn device() -> Result<Device, Box<dyn Error>> {
    match Edu::find() {
        Err(edu::Error::None) => skip("there is no edu bound to pinmap"),
        device => Ok(device?),
    }
}

/// Opens all `edu`s.
pub(crate) fn devices() -> Result<Vec<Device>, Box<dyn Error>> {
    let mut devices = Vec::new();
    for node in Device::list()? {
        let device = Device::open(&node.path)?;
        if device.info()?.id == Edu::ID {
            devices.push(device);
        }
    }
    Ok(devices)
}

/// Makes content that differs from any other.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let byte = |i: usize| {
        (i as u64 + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(8) as u8
    };
    (0..len).map(|i| byte(i).wrapping_add(seed)).collect()
}

/// Makes a buffer with some content.
pub(crate) fn buffer(content: &[u8]) -> Result<Buffer, Box<dyn Error>> {
    let mut buffer = Buffer::<u8>::new(content.len())?;
    buffer[..content.len()].copy_from_slice(content);
    Ok(buffer)
}

/// Puts content into the device's own memory.
pub(crate) fn fill_device(edu: &mut Edu, content: &[u8]) -> Result<(), Box<dyn Error>> {
    let memory = buffer(content)?.register(edu.device(), Access::Read)?;
    Ok(edu.fetch(memory.device_addr()?, 0, content.len())?)
}

/// Reads the device's own memory.
pub(crate) fn device_content(edu: &mut Edu, len: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    let memory = Buffer::<u8>::new(len)?.register(edu.device(), Access::ReadWrite)?;
    edu.store(memory.device_addr()?, 0, len)?;
    Ok(memory.release()?[..len].to_vec())
}

/// An anonymous mapping that is not the crate's, for `register_raw`. Accessed by raw pointers only.
pub(crate) struct RawMemory {
    start: NonNull<u8>,
    len: usize,
}

impl RawMemory {
    pub(crate) fn new(len: usize) -> Result<Self, Box<dyn Error>> {
        let size = NonZeroUsize::new(len).ok_or("no length")?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new mapping, where there is none.
        let start = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_PRIVATE)? };
        Ok(Self {
            start: start.cast(),
            len,
        })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn addr(&self) -> usize {
        self.start.as_ptr().addr()
    }

    pub(crate) fn fill(&self, content: &[u8]) {
        assert!(content.len() <= self.len);
        for (i, &byte) in content.iter().enumerate() {
            // SAFETY: Inside of the mapping; by one thread and volatile, for a device may have it.
            unsafe { self.start().add(i).write_volatile(byte) };
        }
    }

    pub(crate) fn content(&self, len: usize) -> Vec<u8> {
        assert!(len <= self.len);
        let byte = |i| {
            // SAFETY: As in `fill`.
            unsafe { self.start().add(i).read_volatile() }
        };
        (0..len).map(byte).collect()
    }

    /// Unmaps some pages in the middle.
    pub(crate) fn punch(&self, offset: usize, len: usize) -> Result<(), Box<dyn Error>> {
        assert!(offset + len <= self.len);
        // SAFETY: Inside of the mapping; nothing refers to it, and the caller accesses it no more.
        unsafe { munmap(self.start.add(offset).cast(), len)? };
        Ok(())
    }

    /// Makes the mapping read-only.
    pub(crate) fn protect(&self) -> Result<(), Box<dyn Error>> {
        // SAFETY: The mapping is ours.
        unsafe { mprotect(self.start.cast(), self.len, ProtFlags::PROT_READ)? };
        Ok(())
    }

    pub(crate) fn unmap(self) -> Result<(), Box<dyn Error>> {
        // SAFETY: The mapping is ours, and nothing refers to it.
        unsafe { munmap(self.start.cast(), self.len)? };
        Ok(())
    }
}

/// Becomes an ordinary user, for good: of the group that a node has, or of no group.
pub(crate) fn become_user(of: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let gid = match of.map(std::fs::metadata).transpose()? {
        None => 1000,
        Some(node) if node.gid() != 0 => node.gid(),
        Some(_) => return skip("the device node has no group (no udev rule)"),
    };
    setgroups(&[])?;
    setgid(Gid::from_raw(gid))?;
    setuid(Uid::from_raw(1000))?;
    Ok(())
}
