// SPDX-License-Identifier: GPL-2.0
//! A queue for work items, and cancelling them; the rest is in `kernel::workqueue`.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h).

use super::raw;
use core::ptr;
use kernel::{
    bindings, ffi,
    sync::Arc,
    workqueue::{HasWork, Queue, Work, WorkItem},
};

/// For work that may take long and runs on any CPU.
pub(crate) fn queue() -> &'static Queue {
    // SAFETY: The system's queues exist as long as the system.
    unsafe { Queue::from_raw(raw::pinmap_unbound_queue().cast()) }
}

/// Calls `own`, and, if another processor has time for it before that returns, `other` there. Neither
/// runs any more when this returns. What `other` allocates is charged as if it were allocated here.
pub(crate) fn beside(own: &mut dyn FnMut(), other: &mut (dyn FnMut() + Send)) {
    /// # Safety
    ///
    /// `data` must point to a `&mut dyn FnMut()` that nobody else uses.
    unsafe extern "C" fn call_own(data: *mut ffi::c_void) {
        // SAFETY: By the requirements.
        (unsafe { &mut *data.cast::<&mut dyn FnMut()>() })();
    }

    /// # Safety
    ///
    /// As above, with `Send`.
    unsafe extern "C" fn call_other(data: *mut ffi::c_void) {
        // SAFETY: By the requirements.
        (unsafe { &mut *data.cast::<&mut (dyn FnMut() + Send)>() })();
    }

    let (mut own, mut other) = (own, other);
    // SAFETY: Each function is called with what it is for, by one thread, and only before this returns;
    // `other` may be called by any thread.
    unsafe {
        raw::pinmap_beside(
            Some(call_own),
            ptr::from_mut(&mut own).cast(),
            Some(call_other),
            ptr::from_mut(&mut other).cast(),
        );
    }
}

/// Takes `item` off its queue, or waits until it has run. Must not be called from its own `run`.
pub(crate) fn cancel<T>(item: &Arc<T>)
where
    T: HasWork<T> + WorkItem<Pointer = Arc<T>>,
{
    take_off(item, bindings::cancel_work_sync);
}

/// Waits until `item`, if it is queued or running, has run. Must not be called from its own `run`.
pub(crate) fn wait<T>(item: &Arc<T>)
where
    T: HasWork<T> + WorkItem<Pointer = Arc<T>>,
{
    // SAFETY: `item` is valid, and its work item initialised, as long as the call.
    unsafe {
        let work = Work::raw_get(T::raw_get_work(Arc::as_ptr(item).cast_mut()));
        bindings::flush_work(work);
    }
}

/// As [`cancel`]; and it never runs again.
pub(crate) fn disable<T>(item: &Arc<T>)
where
    T: HasWork<T> + WorkItem<Pointer = Arc<T>>,
{
    take_off(item, bindings::disable_work_sync);
}

fn take_off<T>(item: &Arc<T>, how: unsafe extern "C" fn(*mut bindings::work_struct) -> bool)
where
    T: HasWork<T> + WorkItem<Pointer = Arc<T>>,
{
    let raw = Arc::as_ptr(item);
    // SAFETY: `raw` points to a valid `T`.
    let work = unsafe { Work::raw_get(T::raw_get_work(raw.cast_mut())) };
    // SAFETY: The work item is initialised and valid as long as `item`.
    if unsafe { how(work) } {
        // SAFETY: Queueing an `Arc` turned it into a raw pointer, which the queue owned until it
        // gave the item up to us.
        drop(unsafe { Arc::from_raw(raw) });
    }
}
