// SPDX-License-Identifier: GPL-2.0
//! Cancelling work items; queueing them is in `kernel::workqueue`.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h).

use kernel::{
    bindings,
    sync::Arc,
    workqueue::{HasWork, Work, WorkItem},
};

/// Takes `item` off its queue, or waits until it has run. Must not be called from its own `run`.
pub(crate) fn cancel<T>(item: &Arc<T>)
where
    T: HasWork<T> + WorkItem<Pointer = Arc<T>>,
{
    let raw = Arc::as_ptr(item);
    // SAFETY: `raw` points to a valid `T`.
    let work = unsafe { Work::raw_get(T::raw_get_work(raw.cast_mut())) };
    // SAFETY: The work item is initialised and valid as long as `item`.
    if unsafe { bindings::cancel_work_sync(work) } {
        // SAFETY: Queueing an `Arc` turned it into a raw pointer, which the queue owned until it
        // gave the item up to us.
        drop(unsafe { Arc::from_raw(raw) });
    }
}
