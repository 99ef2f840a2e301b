// SPDX-License-Identifier: GPL-2.0
//! Message-signalled interrupts that the driver handles, in threads.
//!
//! `kernel::irq` needs vectors of a `kernel::pci` driver, which this one is not (see `pci.rs`).
//!
//! C headers: [`include/linux/interrupt.h`](srctree/include/linux/interrupt.h),
//! [`include/linux/pci.h`](srctree/include/linux/pci.h).

use super::Function;
use crate::sys::{
    helpers,
    iommu::{Domain, MessagesUse},
    task::coverage::Covered,
};
use core::marker::PhantomData;
use kernel::{bindings, error::to_result, ffi, prelude::*, str::CStrExt, sync::Arc};

/// Handles the interrupts of a device.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Handles interrupt `index`. Runs in a thread of the vector; may sleep.
    fn interrupt(&self, index: u32);
}

/// Vectors that the driver handles. Dropping it waits for running handlers, then frees the vectors.
///
/// # Invariants
///
/// The vectors are allocated; each of `lines` is requested with its own `thread` as the cookie.
pub(crate) struct Handled<T: Handler> {
    lines: KVec<HandledLine<T>>,
    function: Function,
    _handler: Arc<T>,
    _messages: MessagesUse,
}

struct HandledLine<T> {
    irq: u32,
    cookie: KBox<Cookie<T>>,
}

/// Argument of a vector's thread.
#[repr(C)]
struct Cookie<T> {
    thread: helpers::pinmap_irq_thread,
    handler: *const T,
    index: u32,
    _handler: PhantomData<T>,
}

// SAFETY: The pointers are to things that are `Send` and `Sync`.
unsafe impl<T: Handler> Send for Handled<T> {}
// SAFETY: It has no methods.
unsafe impl<T: Handler> Sync for Handled<T> {}

impl<T: Handler> Handled<T> {
    /// Lets `handler` handle the first `count` vectors of `function`, whose DMA goes through
    /// `domain`.
    pub(crate) fn new(
        function: &Function,
        domain: &Arc<Domain>,
        count: u32,
        handler: Arc<T>,
    ) -> Result<Self> {
        let lines = KVec::with_capacity(count as usize, GFP_KERNEL)?;
        let messages = MessagesUse::new(domain)?;
        // SAFETY: The function is bound to us and enabled; its vectors are allocated here only.
        let got = unsafe { helpers::pinmap_pci_alloc_vectors(function.as_raw(), count) };
        to_result(got)?;
        // INVARIANT: The vectors were allocated just now; from here on `drop` frees them.
        let mut this = Self {
            lines,
            function: function.clone(),
            _handler: handler,
            _messages: messages,
        };
        if got.unsigned_abs() < count {
            return Err(ENOSPC);
        }
        for index in 0..count {
            this.request(index)?;
        }
        Ok(this)
    }

    fn request(&mut self, index: u32) -> Result {
        let cookie = Cookie {
            thread: helpers::pinmap_irq_thread {
                run: Some(Self::run),
                data: core::ptr::null_mut(),
            },
            handler: Arc::as_ptr(&self._handler),
            index,
            _handler: PhantomData,
        };
        let mut cookie = KBox::new(cookie, GFP_KERNEL)?;
        cookie.thread.data = (&raw mut *cookie).cast();
        self.lines.reserve(1, GFP_KERNEL)?;
        // SAFETY: The vectors are allocated by the type invariants.
        let irq = unsafe { bindings::pci_irq_vector(self.function.as_raw(), index) };
        to_result(irq)?;
        let irq = irq.unsigned_abs();
        // SAFETY: The cookie is valid until `drop`, which frees the line first.
        to_result(unsafe {
            helpers::pinmap_request_irq_thread(
                irq,
                c"pinmap".as_char_ptr().cast(),
                &raw mut cookie.thread,
            )
        })?;
        let line = HandledLine { irq, cookie };
        // INVARIANT: The line was requested just now. Room was made above.
        if let Err(full) = self.lines.push_within_capacity(line) {
            free(full.0);
            return Err(ENOMEM);
        }
        Ok(())
    }

    /// # Safety
    ///
    /// Called in the thread of a requested line, with its cookie.
    unsafe extern "C" fn run(data: *mut ffi::c_void) {
        // SAFETY: The cookie is valid by the requirements; the handler is kept until the line is
        // free.
        let (handler, index) = unsafe {
            let cookie = data.cast::<Cookie<T>>();
            (&*(*cookie).handler, (*cookie).index)
        };
        let _covered = Covered::begin();
        handler.interrupt(index);
    }
}

fn free<T>(mut line: HandledLine<T>) {
    let cookie: *mut helpers::pinmap_irq_thread = &raw mut line.cookie.thread;
    // SAFETY: The line was requested with this cookie. Waits for a running handler.
    unsafe { bindings::free_irq(line.irq, cookie.cast()) };
}

impl<T: Handler> Drop for Handled<T> {
    fn drop(&mut self) {
        for line in self.lines.drain_all() {
            free(line);
        }
        // Switching MSI off switches INTx on, which this driver cannot handle.
        //
        // SAFETY: The vectors are allocated by the type invariants, and no line is left.
        unsafe {
            bindings::pci_free_irq_vectors(self.function.as_raw());
            bindings::pci_intx(self.function.as_raw(), 0);
        }
    }
}
