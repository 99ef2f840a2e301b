// SPDX-License-Identifier: GPL-2.0
//! What differs between kinds of devices.

use crate::sys::{eventfd::EventFd, pci::Function, uapi::Info, vma::NewArea};
use kernel::{prelude::*, sync::Arc};

mod pci;

/// A kind of device.
///
/// Contexts are named by numbers that are never used again for the same device.
pub(crate) trait Backend: Send + Sync {
    /// Makes `context` able to use the device, or fails: `EBUSY` if another one has it, `ENODEV` if
    /// the device is gone. Takes no lock that is held across allocation or page faults.
    fn claim(&self, context: u64) -> Result;

    /// When it returns, the device starts no more DMA and no more interrupts for `context`.
    fn stop(&self, context: u64);

    /// Takes interrupts and whatever else the context has. Its mappings are gone. When it returns,
    /// nothing that the device still does was begun by `context`, if the device can be reset at all.
    fn disown(&self, context: u64);

    /// The device is being taken away: from now on everything fails with `ENODEV`, and no page of
    /// device memory is given out.
    fn leave(&self);

    /// Whether any context has the device.
    fn is_in_use(&self) -> bool;

    /// Fills in what it knows.
    fn describe(&self, context: u64, info: &mut Info);

    /// Maps device memory for `context`; the area was checked for what any device demands.
    fn mmap(&self, context: u64, area: NewArea<'_>) -> Result;

    /// Calls `insert` with the page frame of device memory at this file offset, unless it is gone;
    /// [`leave`](Self::leave) waits for that.
    fn fault(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32>;

    /// Lets interrupt vector `index` signal `eventfd`, or nothing.
    fn set_vector(&self, context: u64, index: u32, eventfd: Option<EventFd>) -> Result;

    /// Resets the device.
    fn reset(&self, context: u64) -> Result;
}

/// The backend for `function`.
pub(crate) fn choose(function: &Function) -> Result<Arc<dyn Backend>> {
    // The one place that knows all of them.
    let backend = Arc::pin_init(pci::Flat::new(function), GFP_KERNEL)?;
    Ok(backend)
}
