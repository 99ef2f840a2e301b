// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system below the crate: the driver's ABI, mapped memory, barriers, polling, sysfs.
//!
//! Nothing here knows devices, buffers or queues, and nothing here makes an
//! [`Error`](crate::Error): failures are errnos, which the callers put into words.

pub(crate) mod background;
pub(crate) mod barrier;
pub(crate) mod bindings;
pub(crate) mod inside;
pub(crate) mod ioctl;
pub(crate) mod map;
pub(crate) mod pci;
pub(crate) mod poll;
pub(crate) mod sync;
pub(crate) mod sysfs;
pub(crate) mod trace;
pub(crate) mod watch;
pub(crate) mod word;
