// SPDX-License-Identifier: GPL-2.0
//! Serving the faults of a context's queues: the interface between the scheduler, which learns of a
//! fault, and managed memory, which knows what to do about it.
//!
//! A queue that faults on an address which the pager manages keeps its place, and waits. A thread
//! calls [`Pager::serve`], and then the device repeats the access. If the pager refuses, the queue
//! stops with the reason.

use super::vm::Vm;
use crate::logic::span::Span;
#[cfg(pinmap_mirror)]
use crate::sys::mm::{areas::Area, migrate::HomeFault};
use core::mem;
use kernel::{prelude::*, sync::Arc};

/// Managed memory of one context, as the scheduler and the threads that serve faults see it.
pub(crate) trait Pager: Send + Sync {
    /// Returns whether faults at `addr` are to be served. Called with the scheduler's locks held,
    /// so it may only take locks under which nothing allocates, and waits for nobody.
    fn manages(&self, addr: u64) -> bool;

    /// Has the device reach `addr` for `access`, a `PINMAP_ACCESS_` value, as the program's
    /// permissions allow. The service began at `begun`, in nanoseconds of the monotonic clock.
    ///
    /// Called without locks, by a thread that uses the opener's address space and has a reference
    /// to it, and whose allocations are charged to the opener's memory cgroup. It may sleep for as
    /// long as user space keeps it waiting, but a fatal signal to the thread must end it (see
    /// [`task::fatal_signal_pending`](crate::sys::task::fatal_signal_pending)); it then fails with
    /// `EINTR` and any reason. Several threads may call it at once, for the same address too. A
    /// thread that is stuck in the kernel may come back long after the context was closed: it must
    /// find out, and change nothing then.
    fn serve(&self, addr: u64, access: u32, begun: u64) -> Result<Served, Refusal>;

    /// Prepares for the next fault, under the conditions of [`serve`](Self::serve), and after it:
    /// the device goes on meanwhile. What cannot be had is left out.
    fn prepare(&self);

    /// Takes away from the device what it was given of `span` by faults, since something else is
    /// about to be mapped there; the addresses are taken in the context's address space, and no
    /// fault on them is served until they are free. Sleeps, and waits for the device.
    fn give_way(&self, span: Span) -> Result;

    /// Tells that pages of VRAM came home for a CPU fault, which took `ns` nanoseconds. Called with
    /// a spinlock held, for each context: the memory may be that of another one.
    #[cfg(pinmap_mirror)]
    fn came_home(&self, fault: &HomeFault<'_>, pages: u64, ns: u64);

    /// Tells that `taker` took `pages` of VRAM that were in `part` of `area`, in one block. Called
    /// under the same conditions.
    #[cfg(pinmap_mirror)]
    fn was_taken(&self, area: &Area<'_>, part: Span, pages: u64, taker: Taker);

    /// Takes everything away from the device, and serves nothing any more: the context's queues are
    /// gone, and its page tables go next. Sleeps, and waits for the device.
    fn end(&self);
}

/// The reason why pages left VRAM that the CPU did not touch.
#[cfg(pinmap_mirror)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taker {
    /// Another device, which has touched them, and took them without the host.
    Device,
    /// Another device, whose program has moved them there.
    Program,
    /// Eviction: they went home, since others need the room.
    Eviction,
}

/// A fault that was served. The device is to repeat the access; if that faults again, so is the
/// fault served again.
#[derive(Clone, Copy, Default)]
pub(crate) struct Served {
    /// Pages that the device can reach now and could not before; 0: somebody else was quicker, or
    /// the memory changed all the time and others are to have a turn first.
    pub(crate) pages: u64,
    /// How often the work began anew, because the memory changed meanwhile.
    pub(crate) retries: u64,
    /// When the service ended, in nanoseconds of the monotonic clock.
    pub(crate) ended: u64,
}

/// A part of the program's memory, as `/proc/PID/maps` has it.
#[derive(Clone, Copy)]
pub(crate) struct Vma {
    pub(crate) span: Span,
    /// `PINMAP_VMA_` flags.
    pub(crate) flags: u32,
}

/// Why a fault was not served.
#[derive(Clone, Copy)]
pub(crate) struct Refusal {
    /// A `PINMAP_FAULT_` value.
    pub(crate) reason: u32,
    /// For the log of tracepoints. `EINTR`: the thread was told to stop, which is no failure.
    pub(crate) errno: Error,
    /// The area around the address, if there is one.
    pub(crate) area: Option<Vma>,
    /// As in [`Served`].
    pub(crate) retries: u64,
}

impl Refusal {
    /// A refusal for `reason`, a `PINMAP_FAULT_` value, of which nothing else is known.
    pub(crate) fn new(reason: u32, errno: Error) -> Self {
        Self {
            reason,
            errno,
            area: None,
            retries: 0,
        }
    }
}

/// Serves faults of a context's queues.
pub(super) enum Paging {
    /// The context manages no memory.
    Nothing,
    By(Arc<dyn Pager>),
    /// The context has ended.
    Ended,
}

impl Vm {
    /// Returns what serves faults of the context's queues.
    pub(in crate::gpu) fn pager(&self) -> Option<Arc<dyn Pager>> {
        match &*self.paging.lock() {
            Paging::By(pager) => Some(pager.clone()),
            Paging::Nothing | Paging::Ended => None,
        }
    }

    /// Tells what serves faults that pages came home: see [`Pager::came_home`].
    #[cfg(pinmap_mirror)]
    pub(in crate::gpu) fn came_home(&self, fault: &HomeFault<'_>, pages: u64, ns: u64) {
        if let Paging::By(pager) = &*self.paging.lock() {
            pager.came_home(fault, pages, ns);
        }
    }

    /// Tells what serves faults that pages were taken: see [`Pager::was_taken`].
    #[cfg(pinmap_mirror)]
    pub(in crate::gpu) fn was_taken(&self, area: &Area<'_>, part: Span, pages: u64, taker: Taker) {
        if let Paging::By(pager) = &*self.paging.lock() {
            pager.was_taken(area, part, pages, taker);
        }
    }

    /// Sets what serves faults from now on. `ENODEV`: the context has ended.
    pub(crate) fn set_pager(&self, pager: Arc<dyn Pager>) -> Result {
        let mut paging = self.paging.lock();
        if let Paging::Ended = *paging {
            return Err(ENODEV);
        }
        *paging = Paging::By(pager);
        Ok(())
    }

    /// Ends what serves faults: see [`Pager::end`].
    pub(in crate::gpu) fn end_pager(&self) {
        let paging = mem::replace(&mut *self.paging.lock(), Paging::Ended);
        if let Paging::By(pager) = paging {
            pager.end();
        }
    }
}
