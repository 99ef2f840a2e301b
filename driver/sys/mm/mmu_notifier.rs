// SPDX-License-Identifier: GPL-2.0
//! MMU notifiers: they tell when ranges of a process's address space change.
//!
//! Each change has a beginning and an end, and its event says what it means. The callbacks run with
//! locks of the memory management held, and possibly on behalf of a task that reclaims memory: they
//! may neither allocate with GFP_KERNEL nor take a lock under which anything does.
//!
//! The kernel's interval notifiers would be simpler, but they do not fit: they do not tell when a
//! change is over, and both starting to watch a range and ending that wait until no change at all
//! is under way in the address space, which the threads of the process can put off forever, and no
//! signal ends the wait. So these are plain notifiers, of which each tells of a whole address
//! space. What needs less is built on top of them, in `watch.rs` and `mirror.rs`.
//!
//! C header: [`include/linux/mmu_notifier.h`](srctree/include/linux/mmu_notifier.h).

use crate::{logic::span::Span, sys::helpers};
use core::{marker::PhantomPinned, ops::Deref, pin::Pin};
use kernel::{
    bindings,
    error::to_result,
    ffi,
    mm::Mm,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Atomic, Relaxed},
        Arc,
    },
    types::Opaque,
};

/// Whoever is told of the changes of an address space. `begins` and `ends` must not sleep unless
/// the change [may](Change::may_sleep). No method may drop the last reference to the [`Notifier`].
pub(crate) trait Notified: Send + Sync {
    /// Called before a change.
    fn begins(&self, change: &Change<'_>);

    /// Called after a change, before the call that made it returns.
    fn ends(&self, change: &Change<'_>);

    /// Called once: before the address space ends, which is a change of `all`, or when the
    /// [`Notifier`] is dropped before that. May sleep.
    fn exits(&self, all: Span);
}

/// A change of a range of an address space.
pub(crate) struct Change<'a> {
    pub(crate) span: Span,
    range: &'a bindings::mmu_notifier_range,
}

/// How a change affects the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The addresses leave the address space.
    Gone,
    /// Entries of the page table are cleared. The memory may come back, or not: the event does not
    /// tell.
    Cleared,
    /// The memory stays, perhaps in other pages or with other rights.
    Other,
}

impl<'a> Change<'a> {
    /// # Safety
    ///
    /// `range` must be valid for `'a`.
    unsafe fn new(range: *const bindings::mmu_notifier_range) -> Option<Self> {
        // SAFETY: By the requirements.
        let range: &'a _ = unsafe { &*range };
        let last = (range.end as u64).checked_sub(1)?;
        let span = Span::from_bounds(range.start as u64, last)?;
        Some(Self { span, range })
    }

    /// How the change affects the memory.
    pub(crate) fn event(&self) -> Event {
        // SAFETY: The range is valid.
        match unsafe { helpers::pinmap_notice(self.range) } {
            helpers::PINMAP_NOTICE_GONE => Event::Gone,
            helpers::PINMAP_NOTICE_CLEAR => Event::Cleared,
            _ => Event::Other,
        }
    }

    /// Whether a callback may sleep. It may not for the OOM reaper only, which clears
    /// (`zap_vma_for_reaping()`).
    pub(crate) fn may_sleep(&self) -> bool {
        // SAFETY: The range is valid.
        unsafe { helpers::pinmap_notice_blockable(self.range) }
    }
}

/// An address space, of whose changes a `T` is told. Dropping it sleeps, and waits for callbacks,
/// of whichever address space: not in a callback, and with no lock that one takes.
///
/// # Invariants
///
/// `notifier` is registered for `mm` if `begun`.
#[pin_data(PinnedDrop)]
pub(crate) struct Notifier<T: Notified> {
    #[pin]
    notifier: Opaque<bindings::mmu_notifier>,
    begun: Atomic<bool>,
    mm: ARef<Mm>,
    #[pin]
    notified: T,
    #[pin]
    _pin: PhantomPinned,
}

// SAFETY: The notifier core does its own locking; all else is `Send`.
unsafe impl<T: Notified> Send for Notifier<T> {}
// SAFETY: The notifier core does its own locking; all else is `Sync`.
unsafe impl<T: Notified> Sync for Notifier<T> {}

#[repr(transparent)]
struct Table(bindings::mmu_notifier_ops);
// SAFETY: The table is never written to.
unsafe impl Sync for Table {}

impl<T: Notified> Notifier<T> {
    const TABLE: &'static Table = &Table(bindings::mmu_notifier_ops {
        invalidate_range_start: Some(Self::begins),
        invalidate_range_end: Some(Self::ends),
        release: Some(Self::exits),
        ..pin_init::zeroed()
    });

    /// Has `notified` told of the changes of `mm`, which must be the current task's (`EPERM`).
    /// Takes the mmap lock.
    pub(crate) fn register(mm: &Mm, notified: impl PinInit<T, Error>) -> Result<Arc<Self>> {
        let task = kernel::current!();
        let current: &Mm = task.mm().ok_or(EPERM)?;
        if !core::ptr::eq(current.as_raw(), mm.as_raw()) {
            return Err(EPERM);
        }
        let this = Arc::pin_init(
            try_pin_init!(Self {
                notifier: Opaque::new(bindings::mmu_notifier {
                    ops: &raw const Self::TABLE.0,
                    ..pin_init::zeroed()
                }),
                begun: Atomic::new(false),
                mm: mm.into(),
                notified <- notified,
                _pin: PhantomPinned,
            }? Error),
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
        this.begun.store(true, Relaxed);
        Ok(this)
    }

    /// The address space.
    pub(crate) fn mm(&self) -> &Mm {
        &self.mm
    }

    /// # Safety
    ///
    /// `notifier` must be that of a `Notifier<T>` which is registered.
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
        // SAFETY: By the requirements.
        let (this, change) = unsafe { (Self::of(notifier), Change::new(range)) };
        if let Some(change) = change {
            this.notified.begins(&change);
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
        let (this, change) = unsafe { (Self::of(notifier), Change::new(range)) };
        if let Some(change) = change {
            this.notified.ends(&change);
        }
    }

    /// # Safety
    ///
    /// Called by the kernel, with a notifier of ours.
    unsafe extern "C" fn exits(notifier: *mut bindings::mmu_notifier, _: *mut bindings::mm_struct) {
        if let Some(all) = Span::from_bounds(0, u64::MAX) {
            // SAFETY: By the requirements.
            unsafe { Self::of(notifier) }.notified.exits(all);
        }
    }
}

impl<T: Notified> Deref for Notifier<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.notified
    }
}

#[pinned_drop]
impl<T: Notified> PinnedDrop for Notifier<T> {
    fn drop(self: Pin<&mut Self>) {
        if self.begun.load(Relaxed) {
            // SAFETY: The notifier is registered, and `mm` kept until after this call, which waits
            // for callbacks that run: none of them is the caller, since none drops the last
            // reference to `self`. It calls `exits` itself if the address space has not ended; no
            // field has been dropped yet, and nobody uses `self` meanwhile.
            unsafe { bindings::mmu_notifier_unregister(self.notifier.get(), self.mm.as_raw()) };
        }
    }
}
