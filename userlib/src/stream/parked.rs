// SPDX-License-Identifier: MIT OR Apache-2.0
//! A box for values that a device may write to while they are moved.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// A value on the heap that stays where it is.
///
/// Moving a `Box` asserts to the compiler that nobody else accesses its content. A device may do
/// so, if a part of the value itself is lent to it; so this is a box without that assertion.
///
/// # Invariants
///
/// The pointer comes from a `Box`, and nothing else owns the value.
pub(super) struct Parked<M>(NonNull<M>);

// SAFETY: It owns the value as a `Box` does, which is `Send` if the value is.
unsafe impl<M: Send> Send for Parked<M> {}
// SAFETY: A shared reference gives no access to the value.
unsafe impl<M: Send> Sync for Parked<M> {}

impl<M> Parked<M> {
    pub(super) fn new(value: M) -> Self {
        // INVARIANT: The box is leaked, so nothing else owns the value.
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    pub(super) fn get_mut(&mut self) -> &mut M {
        // SAFETY: Valid, and owned by this alone, by the invariant. A device can reach only what
        // was borrowed from the reference that this returns.
        unsafe { self.0.as_mut() }
    }

    pub(super) fn into_inner(self) -> M {
        let this = ManuallyDrop::new(self);
        // SAFETY: The pointer comes from a `Box` by the invariant, and `this` is not dropped.
        *unsafe { Box::from_raw(this.0.as_ptr()) }
    }
}

impl<M> Drop for Parked<M> {
    fn drop(&mut self) {
        // SAFETY: The pointer comes from a `Box` by the invariant, and is not used again.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn is_dropped_once_wherever_it_goes() {
        let counted = Arc::new(());
        let mut parked = Parked::new((Arc::clone(&counted), [1u8; 4096]));
        let addr = parked.get_mut().1.as_ptr();
        let mut moved = Some(parked).into_iter().collect::<Vec<_>>();
        assert_eq!(moved[0].get_mut().1.as_ptr(), addr, "it stays where it is");
        assert_eq!(Arc::strong_count(&counted), 2);
        drop(moved);
        assert_eq!(Arc::strong_count(&counted), 1);
        let (inner, bytes) = Parked::new((Arc::clone(&counted), [2u8; 8])).into_inner();
        assert_eq!((Arc::strong_count(&inner), bytes), (2, [2; 8]));
    }
}
