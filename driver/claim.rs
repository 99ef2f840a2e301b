// SPDX-License-Identifier: GPL-2.0
//! The use of a device by a context, for the length of a call.

use crate::{context::Context, device::Device};
use kernel::{prelude::*, sync::Arc};

/// A claim of a device. Dropping it gives the device back, unless the context had it before;
/// [`keep`](Self::keep) makes it last.
pub(crate) struct Claim(Option<Begun>);

/// A claim that has to be ended.
struct Begun {
    device: Arc<Device>,
    context: u64,
    keep: bool,
}

impl Claim {
    /// Claims the device of `context`. `EBUSY`: another context has it, or it cannot be reset.
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let device = context.device();
        if device.domain().is_overdue() && !device.domain().is_broken() {
            device.renew_domain()?;
        }
        let claim = Self::for_view(context);
        if !matches!(claim, Err(EBUSY)) {
            return claim;
        }
        device.backend().make_up();
        Self::for_view(context)
    }

    /// Claims the device in `mmap()`, where the mmap lock is held. `EBUSY`: another context has it,
    /// or it must be reset first. Neither that is done there, nor is the page table of the domain
    /// replaced, since both allocate, and take locks of the IOMMU core under which the mmap lock is
    /// taken. The first call that maps memory does both.
    pub(crate) fn for_view(context: &Context) -> Result<Self> {
        let device = context.device();
        if device.domain().is_broken() {
            return Err(ENODEV);
        }
        if !device.backend().claim(context.id())? {
            return Ok(Self(None));
        }
        Ok(Self(Some(Begun {
            device: device.clone(),
            context: context.id(),
            keep: false,
        })))
    }

    /// Fails as [`new`](Self::new) would now, without claiming anything.
    pub(crate) fn check(context: &Context) -> Result {
        let device = context.device();
        if device.domain().is_broken() {
            return Err(ENODEV);
        }
        device.backend().check_claim(context.id())
    }

    /// Makes the claim last until the context ends: the call has succeeded.
    pub(crate) fn keep(mut self) {
        if let Some(begun) = &mut self.0 {
            begun.keep = true;
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let backend = self.device.backend();
        backend.end_claim(self.context, self.keep);
        if !self.keep && !backend.is_in_use() {
            // The next owner must not inherit page tables that this one made in vain.
            self.device.domain().outdate();
        }
    }
}
