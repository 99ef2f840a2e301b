// SPDX-License-Identifier: GPL-2.0
//! MMU notifiers: what happens to ranges of somebody's address space.
//!
//! The kernel's interval notifiers would do, but for this: when a change is over they tell nobody, and both
//! asking for that and removing one wait until no change at all is under way in the address space, which its
//! threads can put off for ever. So there is one plain notifier for an address space, which is called at both
//! ends of a change, and the ranges are in a tree of our own.
//!
//! C headers: [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h),
//! [`include/linux/interval_tree.h`](srctree/include/linux/interval_tree.h).

use super::helpers;
use crate::logic::span::Span;
use core::{cell::UnsafeCell, marker::PhantomData, marker::PhantomPinned, pin::Pin};
use kernel::{
    bindings,
    error::to_result,
    ffi,
    mm::Mm,
    new_condvar, new_spinlock,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Atomic, Full, Relaxed, Release},
        Arc, ArcBorrow, CondVar, SpinLock,
    },
    types::Opaque,
};

/// Somebody who watches a range. Neither call may allocate with GFP_KERNEL, unpin pages, remove the interval or
/// wait for a device.
pub(crate) trait Watcher: Send + Sync + Sized {
    /// The range in it.
    fn interval(&self) -> &Interval<Self>;

    /// Called before `range` leaves the address space, or that ends. May sleep.
    fn going(this: ArcBorrow<'_, Self>, range: Span);

    /// Called when page-table entries of `range` have been cleared; the pages may or may not come back. That
    /// is over, and whoever did it has not returned from it. Must not sleep unless `may_sleep`.
    fn cleared(this: ArcBorrow<'_, Self>, range: Span, may_sleep: bool);

    /// Called when `range`, which left the address space, has done so.
    fn gone(this: ArcBorrow<'_, Self>, range: Span);
}

/// Ranges that are watched.
struct Tree(bindings::rb_root_cached);

// SAFETY: Nothing in it belongs to a thread.
unsafe impl Send for Tree {}

/// An address space, parts of which are watched.
///
/// # Invariants
///
/// `notifier` is registered if `begun`. `tree` consists of the `node`s of [`Interval`]s that are inserted.
#[pin_data(PinnedDrop)]
pub(crate) struct Watch<T: Watcher> {
    #[pin]
    notifier: Opaque<bindings::mmu_notifier>,
    begun: Atomic<bool>,
    #[pin]
    tree: SpinLock<Tree>,
    /// For who waits until nobody is being told.
    #[pin]
    idle: CondVar,
    mm: ARef<Mm>,
    _watcher: PhantomData<fn(T)>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The notifier core does its own locking, and `tree` is locked.
unsafe impl<T: Watcher> Send for Watch<T> {}
// SAFETY: As above.
unsafe impl<T: Watcher> Sync for Watch<T> {}

#[repr(transparent)]
struct Table(bindings::mmu_notifier_ops);
// SAFETY: Never written to.
unsafe impl Sync for Table {}

impl<T: Watcher> Watch<T> {
    const TABLE: &'static Table = &Table(bindings::mmu_notifier_ops {
        invalidate_range_start: Some(Self::begins),
        invalidate_range_end: Some(Self::ends),
        release: Some(Self::ends_for_all),
        ..pin_init::zeroed()
    });

    /// For `mm`, which must be the current task's (`EPERM`). Nothing is watched yet. Takes the mmap lock.
    pub(crate) fn new(mm: &Mm) -> Result<Arc<Self>> {
        let task = kernel::current!();
        let current: &Mm = task.mm().ok_or(EPERM)?;
        if !core::ptr::eq(current.as_raw(), mm.as_raw()) {
            return Err(EPERM);
        }
        let this = Arc::pin_init(
            pin_init!(Self {
                notifier: Opaque::new(bindings::mmu_notifier {
                    ops: &raw const Self::TABLE.0,
                    ..pin_init::zeroed()
                }),
                begun: Atomic::new(false),
                tree <- new_spinlock!(Tree(pin_init::zeroed()), "pinmap_watched"),
                idle <- new_condvar!("pinmap_watched"),
                mm: mm.into(),
                _watcher: PhantomData,
                _pin: PhantomPinned,
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        // SAFETY: Pinned, and unregistered before it is freed; the address space is in use.
        let begun = unsafe { bindings::mmu_notifier_register(this.notifier.get(), mm.as_raw()) };
        // Any signal ends it: then the call is made once more, after that was handled.
        to_result(begun).map_err(|error| {
            if error == EINTR {
                ERESTARTNOINTR
            } else {
                error
            }
        })?;
        // INVARIANT: Registered.
        this.begun.store(true, Release);
        Ok(this)
    }

    /// Calls `tell` with each who watches some of `range`. Those that are inserted meanwhile may be left out.
    fn each(&self, range: Span, tell: impl Fn(ArcBorrow<'_, T>)) {
        let (start, last) = (range.start() as usize, range.last() as usize);
        let mut tree = self.tree.lock();
        // SAFETY: The tree is locked.
        let mut node = unsafe { bindings::interval_tree_iter_first(&mut tree.0, start, last) };
        while !node.is_null() {
            // SAFETY: By the type invariants.
            let interval =
                unsafe { &*kernel::container_of!(Opaque::cast_from(node), Interval<T>, node) };
            if !interval.leaving.load(Relaxed) {
                // It stays in the tree as long as this is not 0.
                interval.told.fetch_add(1, Relaxed);
                drop(tree);
                // SAFETY: Written before it was inserted.
                if let Some(owner) = unsafe { &*interval.owner.get() } {
                    // SAFETY: By the type invariants of `Interval` it points into an `Arc` that contains
                    // `interval`, and whoever drops its last reference removes that first, which waits for us.
                    tell(unsafe { ArcBorrow::from_raw(owner.watcher) });
                }
                tree = self.tree.lock();
                if interval.told.fetch_sub(1, Relaxed) == 1 {
                    self.idle.notify_all();
                }
            }
            // SAFETY: The tree is locked, and `node` still in it.
            node = unsafe { bindings::interval_tree_iter_next(node, start, last) };
        }
    }

    /// # Safety
    ///
    /// `notifier` must be that of a `Watch<T>` which is registered.
    unsafe fn of<'a>(notifier: *mut bindings::mmu_notifier) -> &'a Self {
        // SAFETY: By the requirements.
        unsafe { &*kernel::container_of!(Opaque::cast_from(notifier), Self, notifier) }
    }

    /// # Safety
    ///
    /// Called by the kernel, with a notifier of ours and a valid `range`.
    unsafe extern "C" fn begins(
        notifier: *mut bindings::mmu_notifier,
        range: *const bindings::mmu_notifier_range,
    ) -> ffi::c_int {
        // SAFETY: By the requirements. Where it may not sleep, nothing leaves the address space: that is the
        // killer of processes without memory, which clears.
        unsafe {
            if helpers::pinmap_notice(range) == helpers::PINMAP_NOTICE_GONE
                && helpers::pinmap_notice_blockable(range)
            {
                if let Some(span) = span_of(range) {
                    Self::of(notifier).each(span, |watcher| T::going(watcher, span));
                }
            }
        }
        0
    }

    /// # Safety
    ///
    /// As [`begins`](Self::begins).
    unsafe extern "C" fn ends(
        notifier: *mut bindings::mmu_notifier,
        range: *const bindings::mmu_notifier_range,
    ) {
        // SAFETY: By the requirements.
        unsafe {
            let Some(span) = span_of(range) else {
                return;
            };
            let may_sleep = helpers::pinmap_notice_blockable(range);
            match helpers::pinmap_notice(range) {
                helpers::PINMAP_NOTICE_CLEAR => {
                    Self::of(notifier).each(span, |watcher| T::cleared(watcher, span, may_sleep));
                }
                helpers::PINMAP_NOTICE_GONE => {
                    Self::of(notifier).each(span, |watcher| T::gone(watcher, span));
                }
                _ => {}
            }
        }
    }

    /// # Safety
    ///
    /// Called by the kernel, with a notifier of ours.
    unsafe extern "C" fn ends_for_all(
        notifier: *mut bindings::mmu_notifier,
        _: *mut bindings::mm_struct,
    ) {
        if let Some(all) = Span::from_bounds(0, u64::MAX) {
            // SAFETY: By the requirements.
            unsafe { Self::of(notifier) }.each(all, |watcher| T::going(watcher, all));
        }
    }
}

/// # Safety
///
/// `range` must be valid.
unsafe fn span_of(range: *const bindings::mmu_notifier_range) -> Option<Span> {
    // SAFETY: By the requirements.
    let (start, end) = unsafe { ((*range).start, (*range).end) };
    Span::from_bounds(start as u64, (end as u64).checked_sub(1)?)
}

#[pinned_drop]
impl<T: Watcher> PinnedDrop for Watch<T> {
    fn drop(self: Pin<&mut Self>) {
        if self.begun.load(Relaxed) {
            // SAFETY: Registered, and `mm` is kept until after this. Nothing is in the tree, whose members keep
            // this, so no notice has the last reference to it.
            unsafe { bindings::mmu_notifier_unregister(self.notifier.get(), self.mm.as_raw()) };
        }
    }
}

/// Who watches a range, and with whose help.
struct Owner<T: Watcher> {
    watcher: *const T,
    watch: Arc<Watch<T>>,
}

/// A range that is watched, to be put into a `T` that lives in an [`Arc`].
///
/// # Invariants
///
/// If `inserted`, `node` is in the tree of the `Watch` in `owner`, whose other pointer is to the `T` in its
/// `Arc`, which contains `self`.
#[pin_data(PinnedDrop)]
pub(crate) struct Interval<T: Watcher> {
    #[pin]
    node: Opaque<bindings::interval_tree_node>,
    /// Written once, by whoever set `begun`.
    owner: UnsafeCell<Option<Owner<T>>>,
    begun: Atomic<bool>,
    inserted: Atomic<bool>,
    /// By how many it is being told something, and that it is not to be told more; changed with the tree locked.
    told: Atomic<u32>,
    leaving: Atomic<bool>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The node is changed with the tree locked; `owner` is written once, before insertion.
unsafe impl<T: Watcher> Send for Interval<T> {}
// SAFETY: As above.
unsafe impl<T: Watcher> Sync for Interval<T> {}

impl<T: Watcher> Interval<T> {
    /// Watches nothing yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            node: Opaque::new(pin_init::zeroed()),
            owner: UnsafeCell::new(None),
            begun: Atomic::new(false),
            inserted: Atomic::new(false),
            told: Atomic::new(0),
            leaving: Atomic::new(false),
            _pin: PhantomPinned,
        })
    }

    /// Begins to watch `range` for `watcher`. Of changes that are under way only the end may be told. At most
    /// once for each (`EINVAL`).
    pub(crate) fn insert(watcher: &Arc<T>, watch: &Arc<Watch<T>>, range: Span) -> Result {
        let this = watcher.interval();
        if this.begun.xchg(true, Full) {
            return Err(EINVAL);
        }
        let node = this.node.get();
        // SAFETY: Not inserted, so nobody reads it, and nobody else got here.
        unsafe {
            *this.owner.get() = Some(Owner {
                watcher: Arc::as_ptr(watcher),
                watch: watch.clone(),
            });
            (*node).start = range.start() as usize;
            (*node).last = range.last() as usize;
        }
        let mut tree = watch.tree.lock();
        // SAFETY: The tree is locked; the node is pinned in its `Arc` and removed before that goes.
        unsafe { bindings::interval_tree_insert(node, &mut tree.0) };
        // INVARIANT: Both hold now.
        this.inserted.store(true, Release);
        Ok(())
    }

    /// Stops watching, once those who tell something now have done so. Sleeps; not while being told.
    pub(crate) fn remove(&self) {
        if !self.inserted.xchg(false, Full) {
            return;
        }
        // SAFETY: Written before it was inserted.
        let Some(Owner { watch, .. }) = (unsafe { &*self.owner.get() }) else {
            return;
        };
        let mut tree = watch.tree.lock();
        self.leaving.store(true, Relaxed);
        while self.told.load(Relaxed) != 0 {
            watch.idle.wait(&mut tree);
        }
        // SAFETY: The tree is locked. It was inserted, and the exchange makes us the one who removes it.
        unsafe { bindings::interval_tree_remove(self.node.get(), &mut tree.0) };
    }
}

#[pinned_drop]
impl<T: Watcher> PinnedDrop for Interval<T> {
    fn drop(self: Pin<&mut Self>) {
        self.as_ref().get_ref().remove();
    }
}
