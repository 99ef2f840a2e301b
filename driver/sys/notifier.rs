// SPDX-License-Identifier: GPL-2.0
//! MMU notifiers: they tell when ranges of a process's address space change.
//!
//! The kernel's interval notifiers would be simpler, but they do not fit. They do not tell when a
//! change is over. And both starting to watch a range and ending that wait until no change at all
//! is under way in the address space, which the threads of the process can put off forever. So
//! there is one plain notifier for each address space, called at both ends of each change, and a
//! tree of the ranges that are watched.
//!
//! The meaning of a change depends on its event. UNMAP (and the end of the process): the addresses
//! go away, so [`Watcher::going`] is called before that happens, and [`Watcher::gone`] after it.
//! CLEAR: entries of the page table were cleared, and it cannot be told from the event whether the
//! memory went away; [`Watcher::cleared`] is called once the change is over. All other events leave
//! the memory in place and are ignored.
//!
//! The callbacks run with locks of the memory management held, and possibly on behalf of a task
//! that reclaims memory. While one runs, its [`Interval`] stays in the tree: `told` counts the
//! callbacks, and removing the interval waits for them.
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
///
/// # Invariants
///
/// `notifier` is registered if `begun`. `tree` consists of the `node`s of the [`Interval`]s that
/// are inserted.
#[pin_data(PinnedDrop)]
pub(crate) struct Watch<T: Watcher> {
    #[pin]
    notifier: Opaque<bindings::mmu_notifier>,
    begun: Atomic<bool>,
    #[pin]
    tree: SpinLock<Tree>,
    /// Signalled when the last callback of an interval returns.
    #[pin]
    idle: CondVar,
    mm: ARef<Mm>,
    _watcher: PhantomData<fn(T)>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The notifier core does its own locking, and `tree` is locked.
unsafe impl<T: Watcher> Send for Watch<T> {}
// SAFETY: The notifier core does its own locking, and `tree` is locked.
unsafe impl<T: Watcher> Sync for Watch<T> {}

#[repr(transparent)]
struct Table(bindings::mmu_notifier_ops);
// SAFETY: The table is never written to.
unsafe impl Sync for Table {}

impl<T: Watcher> Watch<T> {
    const TABLE: &'static Table = &Table(bindings::mmu_notifier_ops {
        invalidate_range_start: Some(Self::begins),
        invalidate_range_end: Some(Self::ends),
        release: Some(Self::ends_for_all),
        ..pin_init::zeroed()
    });

    /// Prepares to watch ranges of `mm`, which must be the current task's (`EPERM`). Takes the mmap
    /// lock.
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
        // SAFETY: The notifier is pinned, and unregistered before it is freed. The address space is
        // in use.
        let begun = unsafe { bindings::mmu_notifier_register(this.notifier.get(), mm.as_raw()) };
        // Any signal ends the call. It is then made again, after the signal was handled.
        to_result(begun).map_err(|error| {
            if error == EINTR {
                ERESTARTNOINTR
            } else {
                error
            }
        })?;
        // INVARIANT: The notifier was registered just now.
        this.begun.store(true, Release);
        Ok(this)
    }

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
        // Notifiers may not sleep for the OOM reaper only, which sends CLEAR
        // (zap_vma_for_reaping()): where this may not sleep, no range leaves the address space.
        //
        // SAFETY: By the requirements.
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
    /// Called by the kernel, with a notifier of ours and a valid `range`.
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
            // SAFETY: The notifier is registered, and `mm` kept until after this call. The tree is
            // empty, since its members keep `self`; so no callback has the last reference to
            // `self`.
            unsafe { bindings::mmu_notifier_unregister(self.notifier.get(), self.mm.as_raw()) };
        }
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
    /// Written once, by the task that set `begun`.
    owner: UnsafeCell<Option<Owner<T>>>,
    begun: Atomic<bool>,
    inserted: Atomic<bool>,
    /// Number of callbacks that run, and whether no more may begin; changed with the tree locked.
    told: Atomic<u32>,
    leaving: Atomic<bool>,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The node is only changed with the tree locked; `owner` is written once, before insertion.
unsafe impl<T: Watcher> Send for Interval<T> {}
// SAFETY: The node is only changed with the tree locked; `owner` is written once, before insertion.
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
    /// told. Fails with `EINVAL` if called twice for one interval.
    pub(crate) fn insert(watcher: &Arc<T>, watch: &Arc<Watch<T>>, range: Span) -> Result {
        let this = watcher.interval();
        if this.begun.xchg(true, Full) {
            return Err(EINVAL);
        }
        let node = this.node.get();
        // SAFETY: The interval is not inserted, so nobody reads it; the exchange lets no other task
        // get here.
        unsafe {
            *this.owner.get() = Some(Owner {
                watcher: Arc::as_ptr(watcher),
                watch: watch.clone(),
            });
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

    /// Stops watching, after the callbacks that are running. Sleeps; must not be called from a
    /// callback.
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
    }
}

#[pinned_drop]
impl<T: Watcher> PinnedDrop for Interval<T> {
    fn drop(self: Pin<&mut Self>) {
        self.as_ref().get_ref().remove();
    }
}
