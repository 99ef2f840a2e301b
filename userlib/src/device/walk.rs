// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walks of a paged device's page table, for inspection and tests.

use std::os::fd::AsFd;

use nix::errno::Errno;

use crate::device::accelerator::Accelerator;
use crate::error::{Error, Operation, Result};
use crate::sys::{bindings as abi, ioctl};

/// The translation of an address by a device's page table. Returned by [`Accelerator::walk`].
///
/// ```no_run
/// # use pinmap::accelerator::{Accelerator, Pinned};
/// # use pinmap::Result;
/// # fn f(gpu: &Accelerator, numbers: &Pinned<f32>) -> Result<()> {
/// // Where does the device find the first element?
/// if let Some(walk) = gpu.walk(numbers.slice().device_addr())? {
///     println!("{:?}, by an entry of {} bytes", walk.target, walk.leaf_len);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Walk {
    /// Where the address leads.
    pub target: Target,
    /// Bytes that the page table entry covers: 4 KiB or 2 MiB.
    pub leaf_len: u64,
    /// Number of tables that were read.
    pub levels: u32,
    /// Whether the device may read at the address.
    pub read: bool,
    /// Whether the device may write at the address.
    pub write: bool,
    /// Whether the device may fetch packets from the address.
    pub fetch: bool,
    /// Whether accesses of the device snoop the CPU's caches.
    pub snoop: bool,
}

/// The target of a device address.
///
/// ```no_run
/// # fn f(gpu: &pinmap::accelerator::Accelerator, addr: u64) -> pinmap::Result<()> {
/// use pinmap::inspect::Target;
///
/// match gpu.walk(addr)?.map(|walk| walk.target) {
///     Some(Target::Host(addr)) => println!("host memory, for the IOMMU at {addr:#x}"),
///     Some(Target::Vram(offset)) => println!("byte {offset:#x} of the device's memory"),
///     None => println!("nothing is mapped there"),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Target {
    /// Host memory at this I/O virtual address, which the IOMMU translates.
    Host(u64),
    /// The device's own memory at this offset in bytes.
    Vram(u64),
}

impl Walk {
    fn from_abi(args: &abi::pinmap_gpu_walk) -> Self {
        let is = |flag| args.out_flags & flag != 0;
        Self {
            target: if is(abi::PINMAP_WALK_HOST) {
                Target::Host(args.out_target)
            } else {
                Target::Vram(args.out_target)
            },
            leaf_len: args.out_leaf_length,
            levels: args.out_levels,
            read: is(abi::PINMAP_WALK_READ),
            write: is(abi::PINMAP_WALK_WRITE),
            fetch: is(abi::PINMAP_WALK_FETCH),
            snoop: is(abi::PINMAP_WALK_SNOOP),
        }
    }
}

impl Accelerator {
    /// Walks this context's page table in the device's memory, as the device does after a TLB miss.
    /// Returns `None` if nothing is mapped at the address. This is for inspection and tests: the
    /// translation can change at any moment.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the address has more bits than the tables translate; `ENODEV`: the device is gone.
    pub fn walk(&self, device_addr: u64) -> Result<Option<Walk>> {
        let mut args = abi::pinmap_gpu_walk {
            addr: device_addr,
            ..Default::default()
        };
        match ioctl::gpu_walk(self.device().as_fd(), &mut args) {
            Ok(()) => Ok(Some(Walk::from_abi(&args))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => {
                let attempt = format!("walk to {device_addr:#x} in {}", self.device());
                Err(Error::new(Operation::Accelerator, attempt, errno))
            }
        }
    }
}
