// SPDX-License-Identifier: GPL-2.0
//! Interval notifiers: what happens to a range of somebody's address space.
//!
//! C header: [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h).

use super::raw;
use crate::logic::span::Span;
use core::{cell::UnsafeCell, marker::PhantomPinned, pin::Pin};
use kernel::{
    bindings,
    error::to_result,
    mm::Mm,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Acquire, Atomic, Full, Release},
        Arc, ArcBorrow,
    },
    types::Opaque,
};

/// What is about to happen to a range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Its page-table entries are cleared; the pages may or may not come back.
    Clear,
    /// It leaves the address space, or the address space ends.
    Gone,
}

/// Somebody who watches a range.
pub(crate) trait Watcher: Send + Sync + Sized {
    /// The notifier in it.
    fn interval(&self) -> &Interval<Self>;

    /// Called before `range` changes, with `Clear` or `Gone`. Must not allocate with GFP_KERNEL,
    /// unpin pages, remove the notifier or wait for a device; must not sleep unless `may_sleep`.
    /// Returns `false` if it would have had to, which is allowed only then.
    fn notice(this: ArcBorrow<'_, Self>, notice: Notice, range: Span, may_sleep: bool) -> bool;
}

/// A notifier for one range, to be put into a `T` that lives in an [`Arc`].
///
/// # Invariants
///
/// If `inserted`, `inner` is in the tree of the `mm_struct` in `owner`, whose pointer is to the `T` in
/// its `Arc`, which contains `self`.
#[pin_data(PinnedDrop)]
pub(crate) struct Interval<T: Watcher> {
    #[pin]
    inner: Opaque<bindings::mmu_interval_notifier>,
    /// Written once, by whoever set `begun`.
    owner: UnsafeCell<Option<(*const T, ARef<Mm>)>>,
    begun: Atomic<bool>,
    inserted: Atomic<bool>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The notifier core does its own locking; `owner` is written once, before insertion.
unsafe impl<T: Watcher> Send for Interval<T> {}
// SAFETY: As above.
unsafe impl<T: Watcher> Sync for Interval<T> {}

#[repr(transparent)]
struct Table(bindings::mmu_interval_notifier_ops);
// SAFETY: Never written to.
unsafe impl Sync for Table {}

impl<T: Watcher> Interval<T> {
    const TABLE: &'static Table = &Table(bindings::mmu_interval_notifier_ops {
        invalidate: Some(Self::invalidate),
        ..pin_init::zeroed()
    });

    /// Watches nothing yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner: Opaque::uninit(),
            owner: UnsafeCell::new(None),
            begun: Atomic::new(false),
            inserted: Atomic::new(false),
            _pin: PhantomPinned,
        })
    }

    /// Begins to watch `range` of `mm` for `watcher`, and waits for changes of it that are under
    /// way. At most once for each notifier (`EINVAL`).
    pub(crate) fn insert(watcher: &Arc<T>, mm: &Mm, range: Span) -> Result {
        let this = watcher.interval();
        if this.begun.xchg(true, Full) {
            return Err(EINVAL);
        }
        // SAFETY: Not inserted, so nobody reads it, and nobody else got here.
        unsafe { *this.owner.get() = Some((Arc::as_ptr(watcher), mm.into())) };
        // SAFETY: `inner` is pinned in its `Arc` and removed before it goes; `mm` is valid.
        to_result(unsafe {
            bindings::mmu_interval_notifier_insert(
                this.inner.get(),
                mm.as_raw(),
                range.start() as usize,
                range.length() as usize,
                &raw const Self::TABLE.0,
            )
        })?;
        // INVARIANT: Both hold now.
        this.inserted.store(true, Release);
        this.wait();
        Ok(())
    }

    /// Waits for changes of the range that are under way. Sleeps; not from a notice.
    pub(crate) fn wait(&self) {
        if self.inserted.load(Acquire) {
            // SAFETY: It was inserted, and `owner` keeps the `mm_struct` even if it is removed meanwhile.
            unsafe { bindings::mmu_interval_read_begin(self.inner.get()) };
        }
    }

    /// Stops watching, once notices that are under way have returned. Sleeps; not from a notice.
    pub(crate) fn remove(&self) {
        if self.inserted.xchg(false, Full) {
            // SAFETY: It was inserted, and the exchange makes us the one who removes it.
            unsafe { bindings::mmu_interval_notifier_remove(self.inner.get()) };
        }
    }

    /// # Safety
    ///
    /// Called by the kernel for an inserted notifier with our table.
    unsafe extern "C" fn invalidate(
        interval: *mut bindings::mmu_interval_notifier,
        range: *const bindings::mmu_notifier_range,
        sequence: usize,
    ) -> bool {
        // SAFETY: `range` is valid by the requirements.
        let notice = match unsafe { raw::pinmap_notice(range) } {
            raw::PINMAP_NOTICE_CLEAR => Notice::Clear,
            raw::PINMAP_NOTICE_GONE => Notice::Gone,
            _ => return true,
        };
        // SAFETY: `interval` is the `inner` of a `Self` by the requirements.
        let this = unsafe { &*kernel::container_of!(Opaque::cast_from(interval), Self, inner) };
        // SAFETY: `range` is valid by the requirements.
        let (start, end, may_sleep) = unsafe {
            (
                (*range).start,
                (*range).end,
                raw::pinmap_notice_blockable(range),
            )
        };
        let Some(last) = (end as u64).checked_sub(1) else {
            return true;
        };
        let Some(span) = Span::from_bounds(start as u64, last) else {
            return true;
        };
        // SAFETY: Written before it was inserted.
        let Some((watcher, _)) = (unsafe { &*this.owner.get() }) else {
            return true;
        };
        // SAFETY: By the type invariants it points into an `Arc` that contains `interval`, and whoever
        // drops its last reference removes the notifier first, which waits for us.
        let watcher = unsafe { ArcBorrow::from_raw(*watcher) };
        // First, so that whoever is told by the notice and calls `wait()` waits for this change.
        // SAFETY: Called with the sequence that the kernel passed in.
        unsafe { raw::pinmap_interval_set_seq(interval, sequence) };
        T::notice(watcher, notice, span, may_sleep)
    }
}

#[pinned_drop]
impl<T: Watcher> PinnedDrop for Interval<T> {
    fn drop(self: Pin<&mut Self>) {
        self.as_ref().get_ref().remove();
    }
}
