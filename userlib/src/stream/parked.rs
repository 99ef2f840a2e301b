// SPDX-License-Identifier: MIT OR Apache-2.0
//! A value that is moved about while a device may write to it.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// A value on the heap, which stays where it is: a box, but for what the compiler may conclude from one. Whoever
/// moves a `Box` claims that nobody else accesses its content; a device may, if a part of the value itself was
/// registered.
///
/// # Invariants
///
/// The pointer is from a `Box`, and nobody else owns it.
pub(super) struct Parked<M>(NonNull<M>);

// SAFETY: It owns the value, as a `Box` does.
unsafe impl<M: Send> Send for Parked<M> {}
// SAFETY: As above.
unsafe impl<M: Sync> Sync for Parked<M> {}

impl<M> Parked<M> {
    pub(super) fn new(value: M) -> Self {
        // INVARIANT: It is leaked, so nobody else owns it.
        Self(NonNull::from(Box::leak(Box::new(value))))
    }

    pub(super) fn get_mut(&mut self) -> &mut M {
        // SAFETY: Valid, and ours alone, by the invariant. What a device has of it is lent by what
        // this returns.
        unsafe { self.0.as_mut() }
    }

    pub(super) fn into_inner(self) -> M {
        let this = ManuallyDrop::new(self);
        // SAFETY: By the invariant; `this` is not dropped.
        *unsafe { Box::from_raw(this.0.as_ptr()) }
    }
}

impl<M> Drop for Parked<M> {
    fn drop(&mut self) {
        // SAFETY: By the invariant; it is not used any more.
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
