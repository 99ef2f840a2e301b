// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations that errors name.

/// The operation that failed.
///
/// ```no_run
/// # fn f(error: &pinmap::Error) -> pinmap::Result<()> {
/// if error.operation() == pinmap::Operation::Register {
///     println!("the memory is not registered: {error}");
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Operation {
    /// Listing or finding devices.
    Find,
    /// Opening a device.
    Open,
    /// Asking for a device's properties or reserved ranges.
    Info,
    /// Looking up a registration.
    Query,
    /// Allocating memory: a [`Buffer`](crate::Buffer) or an [`Allocation`](crate::Allocation).
    Allocate,
    /// Registering memory.
    Register,
    /// Looking for a registration in a [`Cache`](crate::Cache).
    Cache,
    /// Having addresses of the program managed.
    Manage,
    /// Moving managed memory to the device, or home.
    Prefetch,
    /// Advising how managed memory will be used.
    Advise,
    /// Asking where managed memory is.
    Residency,
    /// Asking what happened to managed memory.
    Statistics,
    /// Limiting, or asking, how much of the device's memory managed memory takes.
    Budget,
    /// Releasing a registration.
    Release,
    /// Mapping a registration at one more device address.
    Map,
    /// Removing a mapping.
    Unmap,
    /// Reading or writing registered memory or a BAR, or taking a part of a slice, with a bad
    /// offset.
    Access,
    /// Mapping a BAR.
    Bar,
    /// Attaching an eventfd.
    Eventfd,
    /// Waiting for an interrupt, an event, or submitted work.
    Wait,
    /// Reading an event.
    Event,
    /// Resetting the function.
    Reset,
    /// Saying whether the system may sleep.
    StayAwake,
    /// Asking what a paged device can do, or has done.
    Accelerator,
    /// Making a queue.
    Queue,
    /// Submitting work to a queue or a stream.
    Submit,
    /// Destroying a queue.
    Destroy,
    /// Exporting memory as a dma-buf.
    Export,
    /// Importing a dma-buf.
    Import,
    /// Writing back or invalidating the CPU's caches.
    Sync,
    /// Making, using, resetting or waiting for a stream or an event.
    Stream,
}
