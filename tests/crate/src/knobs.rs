// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trouble knobs of the test GPU, behind the driver's back (section 12 of its manual).

use std::error::Error;
use std::fs::OpenOptions;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::libc::c_void;
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};
use pinmap::accelerator::Accelerator;
use pinmap::Device;

use crate::harness::skip;

const BAR0: usize = 64 << 10;
const ENGINE_BUSY: usize = 0x0128;
const LOSE_INTERRUPTS: usize = 0xa000;
const STUCK: usize = 0xa028;

/// The engines of the test GPU that run kernels; the two before them copy.
pub(crate) const COMPUTE_SLOTS: u64 = 0b11_1100;

/// The registers of the test GPU. When this is dropped, nothing is stuck or lost any more.
pub(crate) struct Knobs(NonNull<c_void>);

impl Knobs {
    pub(crate) fn of(gpu: &Accelerator) -> Result<Self, Box<dyn Error>> {
        let nodes = Device::list()?;
        let node = nodes.iter().find(|node| node.path == gpu.device().path());
        let pci = node
            .map(|node| node.pci)
            .ok_or("the device has no PCI address")?;
        let path = format!("/sys/bus/pci/devices/{pci}/resource0");
        let Ok(file) = OpenOptions::new().read(true).write(true).open(path) else {
            return skip("the registers cannot be mapped here");
        };
        let len = NonZeroUsize::new(BAR0).ok_or("no registers")?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new mapping, where there is none.
        let bar = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, &file, 0)? };
        Ok(Self(bar))
    }

    fn register(&self, offset: usize) -> *mut u64 {
        // SAFETY: Inside of the mapping.
        unsafe { self.0.byte_add(offset) }.as_ptr().cast()
    }

    /// Makes the next packets that these engines take get stuck.
    pub(crate) fn stuck(&self, engines: u64) {
        // SAFETY: Mapped, aligned, and of a device that takes any value.
        unsafe { self.register(STUCK).write_volatile(engines) };
    }

    /// Makes so many of the next interrupts get lost.
    pub(crate) fn lose_interrupts(&self, count: u64) {
        // SAFETY: As above.
        unsafe { self.register(LOSE_INTERRUPTS).write_volatile(count) };
    }

    /// Returns the engines that hold a packet.
    pub(crate) fn busy(&self) -> u64 {
        // SAFETY: As above.
        unsafe { self.register(ENGINE_BUSY).read_volatile() }
    }
}

impl Drop for Knobs {
    fn drop(&mut self) {
        self.stuck(0);
        self.lose_interrupts(0);
        // SAFETY: Nobody has a pointer into it any more.
        let _ = unsafe { munmap(self.0, BAR0) };
    }
}
