// SPDX-License-Identifier: GPL-2.0
//! Allocations that are used again.

use core::{mem::MaybeUninit, pin::Pin, ptr};
use kernel::sync::{Arc, UniqueArc};

/// Drops the value of `this`, and keeps the allocation. `None`: somebody else has a reference, who
/// drops both.
pub(crate) fn into_memory<T>(this: Arc<T>) -> Option<UniqueArc<MaybeUninit<T>>> {
    let value = Arc::into_raw(Arc::from(Arc::into_unique_or_drop(this)?)).cast_mut();
    // SAFETY: Ours was the only reference. The value is dropped where it is, and nobody uses it
    // again: it is memory that is not initialised from here on.
    unsafe { ptr::drop_in_place(value) };
    // SAFETY: The pointer comes from `into_raw()`, and `MaybeUninit<T>` is laid out as `T` is.
    let memory = unsafe { Arc::from_raw(value.cast::<MaybeUninit<T>>()) };
    let memory = Arc::into_unique_or_drop(memory)?;
    // SAFETY: There is no value that could be moved.
    Some(unsafe { Pin::into_inner_unchecked(memory) })
}
