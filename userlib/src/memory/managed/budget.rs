// SPDX-License-Identifier: MIT OR Apache-2.0
//! The budget: how much of the device's memory a context takes for managed memory.

use std::os::fd::AsFd;

use crate::device::accelerator::Accelerator;
use crate::error::{Error, Operation, Result};
use crate::sys::{bindings as abi, ioctl};

/// How much of the device's memory a context may take for managed memory, and takes. Returned by
/// [`Accelerator::budget`].
///
/// ```no_run
/// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
/// let budget = gpu.budget()?;
/// println!("{} bytes are on the device, {} more can go there", budget.used, budget.room);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Budget {
    /// The most that it may take, in bytes. `None`: there is no limit, as at first.
    pub limit: Option<u64>,
    /// Bytes of the device's memory in pages that this context has moved there and that are not
    /// freed.
    pub used: u64,
    /// How many more bytes can move there now, within the budget: what is free, and what could be
    /// evicted. [`Accelerator::preflight_prefetch`] tells how much memory needs.
    pub room: u64,
}

impl Accelerator {
    /// Tells how much of the device's memory this context may take for
    /// [managed](Self::manage) memory, how much it takes, and how much more can move there now. The
    /// room is also limited to half of what the program's memory cgroup may have (`memory.max`).
    ///
    /// # Errors
    ///
    /// `ENOENT`: the context manages nothing; `EOPNOTSUPP`: as for [`manage`](Self::manage);
    /// `EPERM`: another process opened the device; `ENODEV`: the device is gone; `EDEADLK`: this is
    /// a host function.
    pub fn budget(&self) -> Result<Budget> {
        self.ask_budget("ask for", abi::pinmap_budget::default())
    }

    /// Limits how much of the device's memory this context takes for managed memory, in bytes.
    /// `None`: no limit. What is there already stays; memory beyond the limit stays on the host,
    /// where the device reaches it.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
    /// // Half of the device's memory is for another program.
    /// gpu.set_budget(gpu.info()?.vram_len / 2)?;
    /// // ...
    /// gpu.set_budget(None)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`budget`](Self::budget).
    pub fn set_budget(&self, limit: impl Into<Option<u64>>) -> Result<Budget> {
        let args = abi::pinmap_budget {
            flags: abi::PINMAP_BUDGET_SET,
            bytes: limit.into().unwrap_or(u64::MAX),
            ..Default::default()
        };
        self.ask_budget("set", args)
    }

    fn ask_budget(&self, verb: &str, mut args: abi::pinmap_budget) -> Result<Budget> {
        let device = self.device();
        ioctl::budget(device.as_fd(), &mut args).map_err(|errno| {
            let attempt = format!("{verb} the budget of managed memory on {device}");
            Error::new(Operation::Budget, attempt, errno)
        })?;
        Ok(Budget {
            limit: (args.out_bytes != u64::MAX).then_some(args.out_bytes),
            used: args.out_used,
            room: args.out_room,
        })
    }
}
