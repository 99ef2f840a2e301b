// SPDX-License-Identifier: GPL-2.0
//! What differs between kinds of devices.

#[cfg(not(pinmap_flat))]
use crate::gpu::{Gpu, Paged};
use crate::{
    context::Context,
    device::Device,
    mapping::{AddressSpace, Guardian, Local},
    sys::{
        account::Account,
        compat,
        eventfd::EventFd,
        iommu::Domain,
        pci::{Function, Locked},
        uapi::pinmap_info,
    },
    view::DevicePages,
};
use kernel::{prelude::*, sync::Arc};

mod pci;
#[cfg(not(pinmap_flat))]
mod testgpu;

/// Memory of the device's own, to be mapped and to be viewed.
pub(crate) struct LocalMemory {
    pub(crate) local: Arc<dyn Local>,
    pub(crate) pages: Arc<dyn DevicePages>,
}

/// A kind of device.
///
/// Contexts are named by numbers that are never used again for the same device.
pub(crate) trait Backend: Send + Sync {
    /// The function was bound, its DMA goes through `domain`, and nobody can open it yet.
    /// [`leave`](Self::leave) ends what this begins, also if it fails.
    fn start(
        &self,
        _locked: &Locked<'_>,
        _domain: &Arc<Domain>,
        _guardian: Arc<dyn Guardian>,
    ) -> Result {
        Ok(())
    }

    /// There is a new context. Its address space, if the device has an MMU that gives it one of its own.
    /// [`disown`](Self::disown) ends what this begins.
    fn open(&self, _context: u64, _account: &Arc<Account>) -> Result<Option<Arc<AddressSpace>>> {
        Ok(None)
    }

    /// The paged device that it is.
    #[cfg(not(pinmap_flat))]
    fn gpu(&self) -> Option<&Arc<Gpu>> {
        None
    }

    /// Whether it has memory of its own.
    fn has_memory(&self) -> bool {
        false
    }

    /// `length` bytes of it, zeroed. `ENOSPC`: not free in one piece.
    fn allocate(&self, _length: u64) -> Result<LocalMemory> {
        Err(compat::unsupported())
    }

    /// Makes `context` able to use the device, or fails: `EBUSY` if another one has it, `ENODEV` if
    /// the device is gone. Takes no lock that is held across allocation or page faults. Called by
    /// [`Claim`] only, which calls [`settle`](Self::settle) once for each success.
    fn claim(&self, context: u64) -> Result;

    /// Whether [`claim`](Self::claim) would succeed now, as far as can be told without doing anything.
    fn check_claim(&self, _context: u64) -> Result {
        Ok(())
    }

    /// The call that claimed has succeeded (`keep`) or failed. If none of a context's has succeeded
    /// when the last one fails, the device is free again.
    fn settle(&self, context: u64, keep: bool);

    /// When it returns, the device starts no more DMA and no more interrupts for `context`.
    fn stop(&self, context: u64);

    /// Takes interrupts and whatever else the context has. Its mappings are gone. If the device can be
    /// reset, nothing that it does once somebody else has claimed it was begun by `context`.
    fn disown(&self, context: u64);

    /// The device is being taken away: from now on everything fails with `ENODEV`, and no page of
    /// device memory is given out.
    fn leave(&self);

    /// Whether any context has the device.
    fn is_in_use(&self) -> bool;

    /// Whether `context` has the device, and so nobody else.
    fn is_owner(&self, _context: u64) -> bool {
        false
    }

    /// Whether what a context began may still be going on, and a reset would end it.
    fn needs_reset(&self) -> bool;

    /// Whether contexts can go on after a reset that they did not ask for. If not, one begins with
    /// [`leave`](Self::leave).
    fn survives_reset(&self) -> bool;

    /// The device is about to be reset: until [`after_reset`](Self::after_reset) no page of device memory
    /// is given out, and who asks for one waits.
    fn before_reset(&self) {}

    /// It was reset.
    fn after_reset(&self) {}

    /// The system was asleep, while nobody had the device: it may have forgotten everything.
    fn resume(&self) {}

    /// Fills in what it knows.
    fn describe(&self, context: u64, info: &mut pinmap_info);

    /// Checks that `length` bytes of device memory at this file offset may be mapped. Returns how to,
    /// `true`: write-combined.
    fn check_view(&self, offset: u64, length: u64) -> Result<bool>;

    /// Calls `insert` with the page frame of device memory at this file offset, unless it is gone;
    /// [`leave`](Self::leave) waits for that.
    fn fault(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32>;

    /// Whether contexts can have its interrupts.
    fn has_vectors(&self) -> bool {
        true
    }

    /// Whether there is such a vector.
    fn has_vector(&self, index: u32) -> bool;

    /// Lets interrupt vector `index` signal `eventfd`, or nothing. The device is claimed.
    fn set_vector(&self, index: u32, eventfd: Option<EventFd>) -> Result;

    /// Whether the device can be reset.
    fn can_reset(&self) -> bool;

    /// Resets it. The device is claimed.
    fn reset(&self) -> Result;
}

/// The device in use by a context, for the length of a call. Dropping it leaves everything as it was
/// before; [`keep`](Self::keep) makes it last.
pub(crate) struct Claim {
    device: Arc<Device>,
    context: u64,
    keep: bool,
}

impl Claim {
    /// Claims the device for `context`.
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let device = context.device().clone();
        if device.domain().is_broken() {
            return Err(ENODEV);
        }
        if device.domain().is_overdue() {
            device.renew_domain()?;
        }
        device.backend().claim(context.id())?;
        Ok(Self {
            device,
            context: context.id(),
            keep: false,
        })
    }

    /// Whether [`new`](Self::new) would succeed now; does nothing to the device.
    pub(crate) fn check(context: &Context) -> Result {
        let device = context.device();
        if device.domain().is_broken() {
            return Err(ENODEV);
        }
        device.backend().check_claim(context.id())
    }

    /// The call has succeeded.
    pub(crate) fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let backend = self.device.backend();
        backend.settle(self.context, self.keep);
        if !self.keep && !backend.is_in_use() {
            // What it mapped in vain is not the next one's.
            self.device.domain().outdate();
        }
    }
}

/// The backend for `function`: the one place that knows all of them.
pub(crate) fn choose(function: &Function) -> Result<Arc<dyn Backend>> {
    #[cfg(not(pinmap_flat))]
    if let Some(hardware) = testgpu::TestGpu::find(function)? {
        let gpu = Gpu::new(function, hardware)?;
        return Ok(Arc::new(Paged::new(gpu), GFP_KERNEL)?);
    }
    let flat = Arc::pin_init(pci::Flat::new(function), GFP_KERNEL)?;
    Ok(flat)
}
