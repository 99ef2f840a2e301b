// SPDX-License-Identifier: GPL-2.0
//! The driver's work queues, and ways to cancel work.
//!
//! The queues are the driver's own, for user space decides how much there is to do and, where a
//! work item waits for something, for how long. In a queue of the system's, the work of everybody
//! else would wait behind it.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h).

use crate::sys::helpers;
use kernel::{
    bindings,
    error::to_result,
    prelude::*,
    sync::Arc,
    workqueue::{HasDelayedWork, HasWork, Queue, Work, WorkItem},
};

/// All queues. Dropping it runs what is queued; nobody may use the queues afterwards, and no
/// delayed work may be left.
pub(crate) struct Queues(());

impl Queues {
    /// Makes the queues. Called by the module's initializer, before anything is queued.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: The module's initializer calls this once.
        to_result(unsafe { helpers::pinmap_queues_begin() })?;
        Ok(Self(()))
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // SAFETY: `new` made the queues, and the module ends.
        unsafe { helpers::pinmap_queues_end() };
    }
}

fn queue(which: u32) -> &'static Queue {
    // SAFETY: The queues exist as long as there are devices and files, and only these get here.
    unsafe { Queue::from_raw(helpers::pinmap_queue(which)) }
}

/// The queue for looking at what registered memory has become. Its work never waits, neither for
/// devices nor for locks that others may hold for long, and reschedules often.
pub(crate) fn watching() -> &'static Queue {
    queue(helpers::PINMAP_QUEUE_WATCH)
}

/// The queue for letting go of memory. Its work may wait for devices, and for drivers that import
/// memory.
pub(crate) fn ending() -> &'static Queue {
    queue(helpers::PINMAP_QUEUE_END)
}

/// The queue for stopping devices that are out of control. Its work must not wait behind anything.
pub(crate) fn guarding() -> &'static Queue {
    queue(helpers::PINMAP_QUEUE_GUARD)
}

/// The queue for starting threads that serve faults. Its work waits for memory at most.
pub(crate) fn starting() -> &'static Queue {
    queue(helpers::PINMAP_QUEUE_START)
}

/// Takes `item` off its queue, or waits until it has run. Must not be called from its own `run`.
pub(crate) fn cancel<T>(item: &Arc<T>)
where
    T: HasWork<T> + WorkItem<Pointer = Arc<T>>,
{
    take_off::<_, 0>(item, bindings::cancel_work_sync);
}

/// Like [`cancel`], also for an item that is queued for later.
pub(crate) fn cancel_delayed<T>(item: &Arc<T>)
where
    T: HasDelayedWork<T> + WorkItem<Pointer = Arc<T>>,
{
    /// # Safety
    ///
    /// `work` must be that of an initialised `delayed_work`.
    unsafe extern "C" fn cancel(work: *mut bindings::work_struct) -> bool {
        // SAFETY: By the requirements.
        unsafe {
            bindings::cancel_delayed_work_sync(kernel::container_of!(
                work,
                bindings::delayed_work,
                work
            ))
        }
    }

    take_off::<_, 0>(item, cancel);
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

/// Like [`cancel`], and the item never runs again.
pub(crate) fn disable<T, const ID: u64>(item: &Arc<T>)
where
    T: HasWork<T, ID> + WorkItem<ID, Pointer = Arc<T>>,
{
    take_off::<_, ID>(item, bindings::disable_work_sync);
}

fn take_off<T, const ID: u64>(
    item: &Arc<T>,
    how: unsafe extern "C" fn(*mut bindings::work_struct) -> bool,
) where
    T: HasWork<T, ID> + WorkItem<ID, Pointer = Arc<T>>,
{
    let raw = Arc::as_ptr(item);
    // SAFETY: `raw` points to a valid `T`.
    let work = unsafe { Work::raw_get(T::raw_get_work(raw.cast_mut())) };
    // SAFETY: The work item is initialised and valid as long as `item`; it is delayed if `how`
    // expects that.
    if unsafe { how(work) } {
        // SAFETY: Queueing an `Arc` turned it into a raw pointer, which the queue owned until it
        // gave the item up to us.
        drop(unsafe { Arc::from_raw(raw) });
    }
}
