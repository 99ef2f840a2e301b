// SPDX-License-Identifier: GPL-2.0
//! Message-signalled interrupts that only signal eventfds.
//!
//! C headers: [`include/linux/interrupt.h`](srctree/include/linux/interrupt.h),
//! [`include/linux/pci.h`](srctree/include/linux/pci.h).

use super::Function;
use crate::sys::{
    fs::eventfd::EventFd,
    helpers,
    iommu::{Domain, MessagesUse},
};
use kernel::{
    bindings,
    error::to_result,
    prelude::*,
    str::CStrExt,
    sync::{
        atomic::{Atomic, Release},
        Arc,
    },
};

/// All vectors that the system gives a function. Dropping it frees them.
///
/// # Invariants
///
/// The vectors are allocated. No [`Line`] outlives `self`, which owns the lines.
pub(crate) struct Vectors {
    lines: KVec<Option<Line>>,
    function: Function,
    _messages: MessagesUse,
}

impl Vectors {
    /// Allocates MSI-X vectors if the function has them, otherwise MSI. Its DMA goes through
    /// `domain`.
    pub(crate) fn new(function: &Function, domain: &Arc<Domain>) -> Result<Self> {
        let wanted = function.vectors();
        if wanted == 0 {
            return Err(ENOENT);
        }
        let mut lines = KVec::with_capacity(wanted as usize, GFP_KERNEL)?;
        let messages = MessagesUse::new(domain)?;
        // SAFETY: The function is bound to us and enabled; its vectors are allocated here only.
        let got = unsafe { helpers::pinmap_pci_alloc_vectors(function.as_raw(), wanted) };
        to_result(got)?;
        // INVARIANT: The vectors were allocated just now; from here on `drop` frees them.
        for _ in 0..got.unsigned_abs().min(wanted) {
            if lines.push(None, GFP_KERNEL).is_err() {
                break; // Room for `wanted` was made above.
            }
        }
        Ok(Self {
            lines,
            function: function.clone(),
            _messages: messages,
        })
    }

    /// Lets vector `index` signal `eventfd`, or nothing. When this returns, the previous eventfd is
    /// not signalled any more. Fails with `ENOENT` if there is no such vector.
    pub(crate) fn set(&mut self, index: u32, eventfd: Option<EventFd>) -> Result {
        let slot = self.lines.get_mut(index as usize).ok_or(ENOENT)?;
        if let Some(line) = slot {
            line.set(eventfd);
        } else if let Some(eventfd) = eventfd {
            // SAFETY: The vectors are allocated by the type invariants.
            let irq = unsafe { bindings::pci_irq_vector(self.function.as_raw(), index) };
            to_result(irq)?;
            let mut line = Line::new(irq.unsigned_abs())?;
            line.set(Some(eventfd));
            *slot = Some(line);
        }
        Ok(())
    }
}

impl Drop for Vectors {
    fn drop(&mut self) {
        self.lines.clear();
        // Switching MSI off switches INTx on, which this driver cannot handle.
        //
        // SAFETY: The vectors are allocated by the type invariants, and no line is left.
        unsafe {
            bindings::pci_free_irq_vectors(self.function.as_raw());
            bindings::pci_intx(self.function.as_raw(), 0);
        }
    }
}

/// A requested interrupt line.
///
/// The line stays requested as long as the vectors are allocated, even if it signals nothing.
/// Freeing it would give a function that has no mask bit an empty message: its next interrupt would
/// then be a write to device address 0.
///
/// # Invariants
///
/// `irq` is requested with `slot` as its cookie, which holds the eventfd's context, or null.
struct Line {
    irq: u32,
    slot: KBox<Atomic<usize>>,
    eventfd: Option<EventFd>,
}

impl Line {
    fn new(irq: u32) -> Result<Self> {
        let slot = KBox::new(Atomic::new(0), GFP_KERNEL)?;
        // SAFETY: The cookie is valid until `drop`, which frees the line before the slot.
        to_result(unsafe {
            helpers::pinmap_request_eventfd_irq(
                irq,
                c"pinmap".as_char_ptr().cast(),
                slot.as_ptr().cast(),
            )
        })?;
        // INVARIANT: The line was requested just now, and the slot is empty.
        Ok(Self {
            irq,
            slot,
            eventfd: None,
        })
    }

    fn set(&mut self, eventfd: Option<EventFd>) {
        let context = eventfd
            .as_ref()
            .map_or(0, |eventfd| eventfd.as_ptr() as usize);
        self.slot.store(context, Release);
        // A handler that is running may have read the old eventfd.
        //
        // SAFETY: The line is requested by the type invariants.
        unsafe { bindings::synchronize_irq(self.irq) };
        // INVARIANT: The slot holds the new eventfd, and nobody uses the old one.
        self.eventfd = eventfd;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // SAFETY: The line is requested with this cookie by the type invariants. Waits for a
        // running handler.
        unsafe { bindings::free_irq(self.irq, self.slot.as_ptr().cast()) };
    }
}
