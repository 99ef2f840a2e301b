// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statistics: what happened to the memory of a managed range.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::error::fault::{FaultAccess, FaultReason};
use crate::error::{Error, Operation, Result};
use crate::memory::lent::managed::ManagedRange;
use crate::sys::{bindings as abi, ioctl};

/// Counts of what happened to a managed range since it was managed. Returned by
/// [`ManagedRange::statistics`].
///
/// Accesses of forked children are not counted.
///
/// ```no_run
/// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
/// // A range of its own, so that nothing else is counted.
/// let numbers = gpu.alloc_managed_apart::<f32>(1 << 20)?;
/// // ... work ...
/// let seen = numbers.statistics()?;
/// println!("{} faults of the device, {} of the CPU", seen.device_faults, seen.host_faults);
/// println!("the last access that was refused: {:?}", seen.last_refused);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ManagedStatistics {
    /// Faults of the device that were served.
    pub device_faults: u64,
    /// Faults of the CPU that brought memory home. Pins count, too.
    pub host_faults: u64,
    /// Bytes that moved to the device because it touched them.
    pub in_touched: u64,
    /// Bytes that moved to the device by
    /// [`Accelerator::prefetch`](crate::accelerator::Accelerator::prefetch).
    pub in_prefetched: u64,
    /// Bytes that came home because of faults of the CPU.
    pub home_touched: u64,
    /// Bytes that came home by
    /// [`Accelerator::prefetch`](crate::accelerator::Accelerator::prefetch).
    pub home_prefetched: u64,
    /// Bytes that came home to make room, or because the device was about to go away.
    pub home_evicted: u64,
    /// Bytes of `in_touched` in blocks of 2 MiB that had been evicted before.
    pub refaults: u64,
    /// How often a block of 2 MiB began to thrash.
    pub thrashing: u64,
    /// How long queues waited for the service of faults.
    pub device_time: Duration,
    /// How long faults of the CPU took.
    pub host_time: Duration,
    /// Accesses of the device that were refused, each of which stopped a queue.
    pub refused: u64,
    /// The last access that was refused.
    pub last_refused: Option<RefusedAccess>,
    /// Bytes of `in_touched` and `in_prefetched` that came from the memory of another device,
    /// without the host's.
    pub from_peers: u64,
    /// Bytes that left the device for the memory of another one, without the host's.
    pub to_peers: u64,
}

/// An access of a device to managed memory that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RefusedAccess {
    /// The address that the device accessed, of the program and of the device.
    pub addr: usize,
    /// The access that the device wanted.
    pub access: FaultAccess,
    /// Why it was refused.
    pub reason: FaultReason,
}

impl ManagedRange {
    /// Tells what happened to the range since it was managed. A range that lies in another one of
    /// the same context has its statistics in common with that one; a window has its own.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone; `EDEADLK`: this is a host function.
    pub fn statistics(&self) -> Result<ManagedStatistics> {
        let mut args = abi::pinmap_statistics {
            handle: self.handle(),
            ..Default::default()
        };
        ioctl::statistics(self.device().as_fd(), &mut args).map_err(|errno| {
            let attempt = format!("ask {} about {}", self.device(), self.words());
            Error::new(Operation::Statistics, attempt, errno)
        })?;
        Ok(ManagedStatistics {
            device_faults: args.out_device_faults,
            host_faults: args.out_host_faults,
            in_touched: args.out_in_touched,
            in_prefetched: args.out_in_prefetched,
            home_touched: args.out_home_touched,
            home_prefetched: args.out_home_prefetched,
            home_evicted: args.out_home_evicted,
            refaults: args.out_refaults,
            thrashing: args.out_thrashing,
            device_time: Duration::from_nanos(args.out_device_ns),
            host_time: Duration::from_nanos(args.out_host_ns),
            refused: args.out_refused,
            last_refused: FaultReason::from_abi(args.out_last_reason).map(|reason| RefusedAccess {
                addr: args.out_last_addr as usize,
                access: FaultAccess::from_abi(args.out_last_access),
                reason,
            }),
            from_peers: args.out_from_peers,
            to_peers: args.out_to_peers,
        })
    }
}
