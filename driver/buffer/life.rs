// SPDX-License-Identifier: GPL-2.0
//! The life of a buffer: pinned, live, revoked, reaped, ended.

use super::{mappings::How, pinned, Backing, Buffer, Inner, Kit, Tenant};
use crate::{
    dmabuf::Importer,
    failure::Failure,
    list,
    logic::{contiguity::Contiguity, pte::Access, request::Target},
    stats::{Stat, StatGuard},
    sys::{fs::import::Revoked, mm::gup::PinnedRuns, task::work},
    trace::{Details, Timed, Tracepoint},
    uapi::{self, pinmap_event},
};
use core::mem;
use kernel::{
    prelude::*,
    sync::{
        atomic::{Acquire, Relaxed, Release},
        lock::{mutex::MutexBackend, Guard},
        Arc, UniqueArc,
    },
};

/// The states of a buffer, in the order in which it goes through them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Being made. No other task can find the buffer.
    Building,
    /// Being made, and its memory went away: it will not go live.
    Doomed,
    /// In use.
    Live,
    /// Stale: the memory went away, and the mappings are undone.
    Stale,
    /// Ended, because it was released.
    Released,
    /// Ended, because its context or device is gone.
    Gone,
}

impl State {
    /// Whether the mappings of a buffer in this state are in use.
    pub(super) fn has_mappings(self) -> bool {
        matches!(self, Self::Building | Self::Doomed | Self::Live)
    }
}

impl Buffer {
    /// Begins to watch the user addresses, pins the pages, and maps them for `tenant`, the home
    /// context, if there is a target. Unless it is portable, the buffer goes live then. Called by
    /// the task that owns the pages. Returns the device address.
    pub(crate) fn begin(
        this: &Arc<Self>,
        tenant: Tenant<'_>,
        target: Option<Target>,
    ) -> Result<u64, Failure> {
        let lookout = this.lookout.as_ref().ok_or(EINVAL)?;
        lookout.watch(this, this.account.mm())?;
        let kit = mem::take(&mut this.inner.lock().kit);
        let runs = match kit.runs {
            Some(runs) => runs,
            None => PinnedRuns::new()?,
        };
        let pinned = pinned::pin(
            runs,
            &this.account,
            this.life.span,
            this.life.write,
            |pages| {
                this.life.pinned.store(pages, Relaxed);
                this.check_signal()
            },
        )?;
        let live = !this.is_portable();
        let mut holding = this.backing.lock();
        holding.memory = Some(Backing::User(pinned));
        holding.stat.begin(this.life.span.length());
        let Some(target) = target else {
            drop(holding);
            Self::go_live(this)?;
            return Ok(0);
        };
        let how = How {
            published: true,
            live,
            place: kit.place,
        };
        let access = Access::all(this.life.write);
        let (device_addr, _) = this.map_held(&holding, tenant, target, access, how)?;
        drop(holding);
        if live {
            this.check_told();
        }
        Ok(device_addr)
    }

    /// Makes the buffer live: in use, and able to go stale. Fails if its memory went away.
    pub(crate) fn go_live(this: &Arc<Self>) -> Result<(), Failure> {
        let mut inner = this.inner.lock();
        match inner.state {
            State::Building => inner.state = State::Live,
            state => return Err(this.refusal(state)),
        }
        drop(inner);
        this.check_told();
        Ok(())
    }

    /// Queues the worker, if it was told of a change while the buffer, which is live by now, was
    /// being built: it has looked at no more than the state then. It looks at that with the lock,
    /// after `told` was set. So if this does not see that, the worker sees that the buffer is live.
    fn check_told(self: &Arc<Self>) {
        if self.life.told.load(Relaxed) && self.suspect.lock().is_open() {
            self.queue_check();
        }
    }

    /// Fails if the memory went away, or the buffer has ended.
    pub(crate) fn check_usable(&self) -> Result<(), Failure> {
        match self.state() {
            State::Building | State::Live => Ok(()),
            state => Err(self.refusal(state)),
        }
    }

    /// The reason why a buffer in this state cannot be used.
    pub(super) fn refusal(&self, state: State) -> Failure {
        match state {
            State::Gone => ENODEV.into(),
            _ => Failure::at(ESTALE, uapi::PINMAP_FAIL_STALE, self.life.span.start()),
        }
    }

    /// Waits until the worker has decided whether memory that changed until now has gone away, and,
    /// if it has, until the pages are unpinned. Fails if the current task is killed.
    pub(crate) fn await_decision(&self) -> Result {
        let Some(lookout) = &self.lookout else {
            return Ok(());
        };
        // The worker looks at live buffers only.
        if !matches!(self.state(), State::Live | State::Stale) {
            return Ok(());
        }
        let noted = self.suspect.lock().noted();
        lookout
            .changed
            .wait_killable(|| self.suspect.lock().is_decided(noted))?;
        if self.state() == State::Stale {
            lookout
                .changed
                .wait_killable(|| self.life.reaped.load(Acquire))?;
        }
        Ok(())
    }

    /// Locks the state, for [`revoke`](Self::revoke).
    pub(super) fn lock(&self) -> Guard<'_, Inner, MutexBackend> {
        self.inner.lock()
    }

    /// Takes the memory away from all devices, because it goes away: undoes all mappings, sends the
    /// event, and queues the worker, which unpins the pages. Safe in an MMU notifier.
    pub(super) fn revoke(this: &Arc<Self>, mut inner: Guard<'_, Inner, MutexBackend>) {
        match inner.state {
            State::Building => inner.state = State::Doomed,
            State::Live => {
                let traced = Timed::begin_with(Tracepoint::Stale, || {
                    (this.contiguity_now(&inner), inner.flushes())
                });
                inner.state = State::Stale;
                for known in &inner.mappings {
                    known.mapping.flush_gathered();
                }
                inner.unmap_all(this);
                if let Some((timed, (contiguity, before))) = traced {
                    timed.end(this.stats(), || Details {
                        handle: this.handle(),
                        addr: this.life.span.start(),
                        device_addr: 0,
                        contiguity,
                        flushes: inner.flushes().saturating_sub(before),
                    });
                }
                let bytes = this.life.span.length();
                inner.stale = Some(StatGuard::new(this.stats(), Stat::Stale, bytes));
                // A program may register the same addresses again at once.
                if !this.is_import() {
                    for known in &inner.mappings {
                        known.mapping.free_address();
                    }
                }
                let handle = this.handle();
                let event = pinmap_event {
                    type_: uapi::PINMAP_EVENT_STALE,
                    handle,
                    addr: this.life.span.start(),
                    length: this.life.span.length(),
                    ..pinmap_event::default()
                };
                inner.event = inner.slot.take().map(|slot| this.events.push(slot, event));
                for guest in &mut inner.guests {
                    let handle = guest.handle;
                    let event = pinmap_event { handle, ..event };
                    let slot = guest.slot.take();
                    guest.event = slot.map(|slot| guest.events.push(slot, event));
                    let stats = guest.events.stats();
                    guest.stale = Some(StatGuard::new(stats, Stat::Stale, bytes));
                    // A QUERY that this provokes waits for the lock, which is held.
                    guest.events.generations().bump(handle);
                }
                // Under the lock, so that `end` knows of it.
                this.reap_later();
                drop(inner);
                // After QUERY can see it.
                this.events.generations().bump(handle);
                this.forget_suspect();
            }
            // Being ended, perhaps by a task that waits for a device.
            State::Released | State::Gone => {
                inner.unmap_all(this);
            }
            State::Doomed | State::Stale => {}
        }
    }

    /// Like [`contiguity`](Self::contiguity), for callers that have `inner`, and must not wait for
    /// `backing`.
    fn contiguity_now(&self, inner: &Inner) -> Contiguity {
        if let Some(known) = inner.mappings.first() {
            return known.mapping.contiguity();
        }
        let Some(holding) = self.backing.try_lock() else {
            return Contiguity::default();
        };
        // Gone before the lock is: ours is never the last reference.
        let memory = holding.memory.as_ref().map(Backing::memory);
        memory.map_or(Contiguity::default(), |memory| memory.contiguity())
    }

    /// Queues the worker, for [`reap`](Self::reap).
    fn reap_later(self: &Arc<Self>) {
        self.reaped_later.store(true, Release);
        // If it is queued already, once is enough.
        let _ = work::ending().enqueue(self.clone());
    }

    /// Makes the worker stop that looks at the memory, and waits until it has.
    fn await_worker(&self) {
        self.forget_suspect();
        if let Some(lookout) = &self.lookout {
            lookout.changed.wait(|| !self.suspect.lock().is_busy());
        }
    }

    /// Closes the question whether the memory has gone away: decided, or of no interest any more.
    fn forget_suspect(&self) {
        self.suspect.lock().close();
        if let Some(lookout) = &self.lookout {
            lookout.changed.wake_up();
        }
    }

    /// Does what is left after the mappings were undone: makes devices forget them, frees their
    /// addresses, revokes exports, unpins and un-charges. Keeps the memory of its lists. Fails if a
    /// mapping could ever not be removed: then the device is cut off.
    ///
    /// A stale import keeps its addresses until it is released: programs give them to devices, and
    /// do not see in time that somebody else took the memory back.
    pub(super) fn reap(&self) -> Result {
        let mut mappings = mem::take(&mut self.inner.lock().mappings);
        for mapped in &mappings {
            mapped.mapping.begin_to_forget();
        }
        let forgotten = mappings
            .iter()
            .map(|known| known.mapping.forget())
            .fold(Ok(()), Result::and);
        let mut kit = Kit::default();
        if self.is_import() && self.state() == State::Stale {
            for mapped in &mut mappings {
                mapped.mapping.keep_address_only();
            }
        } else {
            while let Some(mapped) = mappings.pop() {
                kit.place = Some(KBox::drop_contents(mapped));
            }
        }
        kit.runs = self.let_go();
        let mut inner = self.inner.lock();
        inner.failed |= forgotten.is_err();
        let kept = mem::replace(&mut inner.kit, kit);
        let none = mem::replace(&mut inner.mappings, mappings);
        let failed = inner.failed;
        drop(inner);
        drop(kept);
        list::drop_empty(none);
        self.say_reaped();
        if failed {
            Err(EIO)
        } else {
            Ok(())
        }
    }

    /// Revokes exports, unpins, un-charges, and counts the memory no more. Returns the memory of
    /// the list of pages, if no mapping or export keeps the pages.
    fn let_go(&self) -> Option<UniqueArc<PinnedRuns>> {
        self.revoke_exports();
        let mut holding = self.backing.lock();
        let memory = holding.memory.take();
        holding.stat.stop();
        drop(holding);
        match memory {
            Some(Backing::User(runs)) => PinnedRuns::let_go(runs),
            Some(Backing::Import(_, giver, loan)) => {
                drop(loan);
                giver.remove_importer(self);
                None
            }
            _ => None,
        }
    }

    /// Wakes who waits for [`reap`](Self::reap).
    fn say_reaped(&self) {
        self.life.reaped.store(true, Release);
        if let Some(lookout) = &self.lookout {
            lookout.changed.wake_up();
        }
    }

    /// Makes a registration fail that is under way: the device is gone. Returns whether it is the
    /// first time that somebody says so.
    pub(crate) fn doom(&self) -> bool {
        let mut inner = self.inner.lock();
        let is_new = matches!(inner.state, State::Building | State::Doomed | State::Live);
        if is_new {
            inner.state = State::Gone;
        }
        is_new
    }

    /// Ends the buffer, as released or as gone: makes devices forget it, unmaps and flushes,
    /// unpins, un-charges. Nothing is left when this returns `Ok`, except for an event that was not
    /// read yet. After an error the pages stay pinned, and the device reaches no memory at all. Can
    /// be called again. Not called by the worker.
    pub(crate) fn end(this: &Arc<Self>, state: State) -> Result {
        let mut inner = this.inner.lock();
        let was_known = matches!(inner.state, State::Live | State::Stale);
        if inner.state != State::Gone {
            inner.state = state;
        }
        let mut traced = None;
        let is_elsewhere = inner.is_elsewhere();
        if is_elsewhere || Tracepoint::Release.is_on() {
            let before = inner.flushes();
            drop(inner);
            // A call that is mapping the pages sees the state and stops; `contiguity` waits for it.
            traced = Timed::begin_with(Tracepoint::Release, || (this.contiguity(), before));
            let forgotten = if is_elsewhere {
                this.forget_all()
            } else {
                Ok(())
            };
            inner = this.inner.lock();
            inner.failed |= forgotten.is_err();
        }
        inner.unmap_all(this);
        let flushes = traced.as_ref().map_or(0, |_| inner.flushes());
        inner.stale = None;
        drop(inner);
        this.interval.remove();
        // The notifier does not call any more. If it did, the worker stops at the next page; wait
        // for it, since it has a reference to the pages.
        if this.life.told.load(Relaxed) {
            this.await_worker();
        }
        // Whoever revoked the buffer has queued the worker by now.
        if this.reaped_later.load(Acquire) {
            work::cancel(this);
        }
        let result = this.reap();
        if let Some((timed, (contiguity, before))) = traced.filter(|_| was_known) {
            timed.end(this.stats(), || Details {
                handle: this.handle(),
                addr: this.life.span.start(),
                device_addr: 0,
                contiguity,
                flushes: flushes.saturating_sub(before),
            });
        }
        result.map_err(|_| EIO)
    }

    /// Ends the buffer because its context ends. If guests have it, it goes stale for them, and
    /// they are told; if user space never knew it, it was never there.
    pub(crate) fn end_with_context(this: &Arc<Self>) -> Result {
        if !this.is_portable() || !this.is_published() {
            return Self::end(this, State::Gone);
        }
        let mut inner = this.inner.lock();
        if inner.state == State::Live {
            // The home context gets another event: that it is gone itself.
            let slot = inner.slot.take();
            Self::revoke(this, inner);
            drop(slot);
        } else {
            drop(inner);
        }
        match this.state() {
            State::Stale => Self::end(this, State::Stale),
            _ => Self::end(this, State::Gone),
        }
    }
}

impl Revoked for Buffer {
    fn revoked(self: Arc<Self>) {
        Self::revoke(&self, self.lock());
    }
}

impl Importer for Buffer {
    fn revoke_import(self: Arc<Self>) {
        // When the program is told, it has lost the memory, too.
        let loan = match &self.backing.lock().memory {
            Some(Backing::Import(.., loan)) => loan.clone(),
            _ => None,
        };
        if let Some(loan) = loan {
            loan.end();
        }
        // Memory of the device itself is not behind the IOMMU. The worker would have it forgotten,
        // but later. If that fails, it fails for the worker, too.
        let _ = self.forget_all();
        Self::revoke(&self, self.lock());
        // A mapping that was added or removed meanwhile may have been missed; now none is.
        let _ = self.forget_all();
        // The worker would do that, too, but the exporter must not wait for it. An import is mapped
        // on one device only.
        let lost = self.inner.lock().lost.clone();
        if let Some(dma_control) = lost {
            dma_control.block_dma();
        }
        // This waits for a call that is mapping the pages: it sees the state, and undoes the
        // mapping. The worker lets go of the memory, too, but whoever has released VRAM may want it
        // for the next allocation. What was exported again, it must revoke first.
        let mut holding = self.backing.lock();
        let is_exported = self.life.exported.load(Relaxed);
        let memory = holding.memory.take_if(|_| !is_exported);
        drop(holding);
        drop(memory);
    }
}
