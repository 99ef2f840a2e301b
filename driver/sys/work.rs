// SPDX-License-Identifier: GPL-2.0
//! A queue for work items, and cancelling them; the rest is in `kernel::workqueue`.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h).

use super::raw;
use kernel::{
    bindings,
    sync::Arc,
    workqueue::{HasWork, Queue, Work, WorkItem},
};

/// For work that may take long and runs on any CPU.
pub(crate) fn queue() -> &'static Queue {
    // SAFETY: The system's queues exist as long as the system.
    unsafe { Queue::from_raw(raw::pinmap_unbound_queue().cast()) }
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
