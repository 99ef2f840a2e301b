// SPDX-License-Identifier: GPL-2.0
//! Watching ranges of a process's address space: their owners are told when they change.
//!
//! There is one MMU notifier for each address space (`mmu_notifier.rs` says why), and a tree of the
//! ranges that are watched.
//!
//! The meaning of a change depends on its event. When addresses go away, [`Watcher::going`] is
//! called before that happens, and [`Watcher::gone`] after it. When entries of the page table are
//! cleared, it cannot be told whether the memory goes away; [`Watcher::cleared`] is called once the
//! change is over. All other changes leave the memory in place and are ignored.
//!
//! While a callback runs, its [`Interval`] stays in the tree: `told` counts the callbacks, and
//! removing the interval waits for them.
//!
//! C header: [`include/linux/interval_tree.h`](srctree/include/linux/interval_tree.h).

use super::mmu_notifier::{Change, Event, Notified, Notifier};
use crate::logic::span::Span;
use core::{
    cell::UnsafeCell,
    marker::{PhantomData, PhantomPinned},
    pin::Pin,
};
use kernel::{
    bindings,
    mm::Mm,
    new_condvar, new_spinlock,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed, Release},
        Arc, ArcBorrow, CondVar, SpinLock,
    },
    types::Opaque,
};

/// Watches a range. No method may allocate with GFP_KERNEL, unpin pages, remove the interval, or
/// wait for a device.
pub(crate) trait Watcher: Send + Sync + Sized {
    /// The watched range, which is part of `self`.
    fn interval(&self) -> &Interval<Self>;

    /// Called before `range` leaves the address space, or the address space itself ends. May sleep.
    fn going(this: ArcBorrow<'_, Self>, range: Span);

    /// Called when entries of the page table in `range` were cleared; the pages may come back or
    /// not. The change is over, but its call has not returned. Must not sleep unless `may_sleep`.
    fn cleared(this: ArcBorrow<'_, Self>, range: Span, may_sleep: bool);

    /// Called after `range` has left the address space.
    fn gone(this: ArcBorrow<'_, Self>, range: Span);
}

/// The tree of the ranges that are watched.
struct Tree(bindings::rb_root_cached);

// SAFETY: Nothing in the tree belongs to a thread.
unsafe impl Send for Tree {}

/// An address space of which ranges are watched.
pub(crate) type Watch<T> = Notifier<Watched<T>>;

/// The ranges of an address space that are watched.
///
/// # Invariants
///
/// `tree` consists of the `node`s of the [`Interval`]s that are inserted.
#[pin_data]
pub(crate) struct Watched<T: Watcher> {
    #[pin]
    tree: SpinLock<Tree>,
    /// Signalled when the last callback of an interval returns.
    #[pin]
    idle: CondVar,
    _watcher: PhantomData<fn(T)>,
}

impl<T: Watcher> Watch<T> {
    /// Prepares to watch ranges of `mm`, which must be the current task's (`EPERM`). Takes the mmap
    /// lock.
    pub(crate) fn new(mm: &Mm) -> Result<Arc<Self>> {
        Self::register(
            mm,
            try_pin_init!(Watched {
                tree <- new_spinlock!(Tree(pin_init::zeroed()), "pinmap_watched"),
                idle <- new_condvar!("pinmap_watched"),
                _watcher: PhantomData,
            }? Error),
        )
    }
}

impl<T: Watcher> Watched<T> {
    /// Calls `tell` for each watcher of a part of `range`. May leave out those that are inserted
    /// meanwhile.
    fn each(&self, range: Span, tell: impl Fn(ArcBorrow<'_, T>)) {
        let (start, last) = (range.start() as usize, range.last() as usize);
        let mut tree = self.tree.lock();
        // SAFETY: The tree is locked.
        let mut node = unsafe { bindings::interval_tree_iter_first(&mut tree.0, start, last) };
        while !node.is_null() {
            // SAFETY: The node is part of an `Interval`, by the type invariants.
            let interval =
                unsafe { &*kernel::container_of!(Opaque::cast_from(node), Interval<T>, node) };
            if !interval.leaving.load(Relaxed) {
                // The interval stays in the tree as long as `told` is not 0.
                interval.told.fetch_add(1, Relaxed);
                drop(tree);
                // SAFETY: The owner was written before the interval was inserted.
                if let Some(owner) = unsafe { &*interval.owner.get() } {
                    // SAFETY: By the type invariants of `Interval`, the pointer is to a value in an
                    // `Arc` that contains `interval`. Whoever drops its last reference removes the
                    // interval first, which waits for this call.
                    tell(unsafe { ArcBorrow::from_raw(owner.watcher) });
                }
                tree = self.tree.lock();
                if interval.told.fetch_sub(1, Relaxed) == 1 {
                    self.idle.notify_all();
                }
            }
            // SAFETY: The tree is locked, and `node` is still in it.
            node = unsafe { bindings::interval_tree_iter_next(node, start, last) };
        }
    }
}

// No callback has the last reference to the notifier: an interval that is inserted has one, too.
impl<T: Watcher> Notified for Watched<T> {
    fn begins(&self, change: &Change<'_>) {
        // Where this may not sleep, no range leaves the address space.
        if change.event() == Event::Gone && change.may_sleep() {
            self.each(change.span, |watcher| T::going(watcher, change.span));
        }
    }

    fn ends(&self, change: &Change<'_>) {
        match change.event() {
            Event::Cleared => {
                let may_sleep = change.may_sleep();
                self.each(change.span, |watcher| {
                    T::cleared(watcher, change.span, may_sleep)
                });
            }
            Event::Gone => self.each(change.span, |watcher| T::gone(watcher, change.span)),
            Event::Other => {}
        }
    }

    fn exits(&self, all: Span) {
        self.each(all, |watcher| T::going(watcher, all));
    }
}

/// The watcher of a range, and the address space in which it watches.
struct Owner<T: Watcher> {
    watcher: *const T,
    watch: Arc<Watch<T>>,
}

/// A watched range, as a field of a `T` that lives in an [`Arc`].
///
/// # Invariants
///
/// If `inserted`, `node` is in the tree of the `Watch` in `owner`. The other pointer in `owner` is
/// to the `T` in an `Arc` that contains `self`.
#[pin_data(PinnedDrop)]
pub(crate) struct Interval<T: Watcher> {
    #[pin]
    node: Opaque<bindings::interval_tree_node>,
    /// Written by the task that set `begun`, while the interval is not inserted.
    owner: UnsafeCell<Option<Owner<T>>>,
    begun: Atomic<bool>,
    inserted: Atomic<bool>,
    /// Number of callbacks that run, and whether no more may begin; changed with the tree locked.
    told: Atomic<u32>,
    leaving: Atomic<bool>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The node is only changed with the tree locked; `owner` is written before
// insertion.
unsafe impl<T: Watcher> Send for Interval<T> {}
// SAFETY: The node is only changed with the tree locked; `owner` is written before
// insertion.
unsafe impl<T: Watcher> Sync for Interval<T> {}

impl<T: Watcher> Interval<T> {
    /// Makes an interval that watches nothing yet.
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

    /// Begins to watch `range` for `watcher`. Of a change that is under way, only the end may be
    /// told. Fails with `EINVAL` if it was inserted already, and not removed.
    pub(crate) fn insert(watcher: &Arc<T>, watch: &Arc<Watch<T>>, range: Span) -> Result {
        let this = watcher.interval();
        if this.begun.xchg(true, Full) {
            return Err(EINVAL);
        }
        let node = this.node.get();
        // SAFETY: The interval is not inserted, so nobody reads it; the exchange lets no other task
        // get here.
        unsafe {
            let owner = &mut *this.owner.get();
            // The owner of an interval that watches again is the same.
            if !matches!(owner, Some(owner) if Arc::ptr_eq(&owner.watch, watch)) {
                *owner = Some(Owner {
                    watcher: Arc::as_ptr(watcher),
                    watch: watch.clone(),
                });
            }
            (*node).start = range.start() as usize;
            (*node).last = range.last() as usize;
        }
        let mut tree = watch.tree.lock();
        // SAFETY: The tree is locked. The node is pinned in its `Arc`, and removed before that is
        // freed.
        unsafe { bindings::interval_tree_insert(node, &mut tree.0) };
        // INVARIANT: The node is in the tree, and `owner` is set.
        this.inserted.store(true, Release);
        Ok(())
    }

    /// Stops watching, after the callbacks that are running: the interval may be inserted again.
    /// Sleeps; must not be called from a callback.
    pub(crate) fn remove(&self) {
        if !self.inserted.xchg(false, Full) {
            return;
        }
        // SAFETY: The owner was written before the interval was inserted.
        let Some(Owner { watch, .. }) = (unsafe { &*self.owner.get() }) else {
            return;
        };
        let mut tree = watch.tree.lock();
        self.leaving.store(true, Relaxed);
        while self.told.load(Relaxed) != 0 {
            watch.idle.wait(&mut tree);
        }
        // SAFETY: The tree is locked. The interval was inserted, and the exchange lets no other
        // task remove it.
        unsafe { bindings::interval_tree_remove(self.node.get(), &mut tree.0) };
        self.leaving.store(false, Relaxed);
        drop(tree);
        self.begun.store(false, Release);
    }
}

#[pinned_drop]
impl<T: Watcher> PinnedDrop for Interval<T> {
    fn drop(self: Pin<&mut Self>) {
        self.as_ref().get_ref().remove();
    }
}
