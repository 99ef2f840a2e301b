// SPDX-License-Identifier: GPL-2.0
//! Serving faults on managed memory.
//!
//! A queue that faults where the context's [`Pager`](crate::gpu::mmu::pager::Pager) manages memory
//! does not stop: it waits, in its slot or outside, until a thread has served the fault. Each queue
//! that has faulted has a thread of its own, since a queue has one fault at a time at most: so the
//! faults of different queues wait for each other nowhere. The thread is made at the first fault,
//! by a worker, because the scheduler must not wait for memory; it ends with the queue.
//!
//! Serving may take as long as user space likes: a handler of userfaultfd may have to bring the
//! page. So neither an interrupt nor the scheduler serves faults, and nobody waits for one that is
//! being served. Closing the queue, by whomever, kills the thread, which then gives up as soon as
//! the kernel lets it. What it holds until then is the queue and the address space, and no
//! lock of the driver's.

use super::{queue::Queue, schedule::Schedule};
use crate::{
    gpu::{
        hardware::Stop,
        mmu::{
            pager::{Pager, Refusal, Served},
            vm::Vm,
        },
        Gpu,
    },
    sys::task::{
        clock,
        coverage::Covered,
        killable::{self, Errand, Killable, Using},
        work,
    },
    trace, uapi,
};
use kernel::{
    impl_has_work, new_condvar, new_mutex,
    prelude::*,
    sync::{
        atomic::{Full, Relaxed},
        Arc, CondVar, Mutex,
    },
    workqueue::WorkItem,
};

/// State protected by `Service::state`.
struct State {
    /// The fault that is to be served next.
    fault: Option<Stop>,
    thread: Option<Killable>,
    /// The queue is being closed: nothing is served any more.
    ended: bool,
}

/// The thread that serves the faults of a queue.
#[pin_data]
pub(super) struct Service {
    #[pin]
    state: Mutex<State>,
    #[pin]
    changed: CondVar,
}

impl Service {
    /// Makes the service of a queue that had no fault yet.
    pub(super) fn new() -> impl PinInit<Self> {
        let state = State {
            fault: None,
            thread: None,
            ended: false,
        };
        pin_init!(Self {
            state <- new_mutex!(state, "pinmap_service"),
            changed <- new_condvar!("pinmap_service"),
        })
    }
}

impl Queue {
    /// Has `fault` served. Does not wait, and allocates nothing.
    fn begin_service(self: &Arc<Self>, fault: Stop) {
        let mut state = self.service.state.lock();
        if state.ended {
            return;
        }
        state.fault = Some(fault);
        // Also where no thread is noted: it may run before the worker notes it.
        self.service.changed.notify_all();
        if state.thread.is_none() {
            // Once is enough: it may be queued already.
            let _ = work::starting().enqueue(self.clone());
        }
    }

    /// Ends the service: a fault that is being served is given up, as soon as that is possible.
    pub(super) fn end_service(&self) {
        let mut state = self.service.state.lock();
        state.ended = true;
        if let Some(thread) = &state.thread {
            thread.kill();
        }
    }

    /// Gives up the fault that is being served. The queue faults again then.
    pub(super) fn interrupt_service(&self) {
        if let Some(thread) = &self.service.state.lock().thread {
            thread.kill();
        }
    }

    /// Waits for the next fault. `None`: there will be none any more.
    fn next_fault(&self) -> Option<Stop> {
        loop {
            // Before the look at `ended`, which is set before the thread is killed.
            killable::forget_signals();
            let mut state = self.service.state.lock();
            if state.ended {
                return None;
            }
            if let Some(fault) = state.fault.take() {
                return Some(fault);
            }
            let _ = self.service.changed.wait_interruptible(&mut state);
        }
    }

    /// Everything that is needed to serve a fault.
    fn server(&self) -> Result<Server<'_>, Refusal> {
        let vm = self.vm();
        let pager = vm.pager();
        let pager = pager.ok_or(Refusal::new(uapi::PINMAP_FAULT_UNMAPPED, EFAULT))?;
        let using = Using::new(vm.account().mm());
        let using = using.ok_or(Refusal::new(uapi::PINMAP_FAULT_EXITED, ESRCH))?;
        vm.serving.fetch_add(1, Full);
        let server = Server {
            vm,
            pager,
            _using: using,
        };
        // Whoever stops the device does so before it looks at who is serving.
        if !self.gpu().serves.load(Relaxed) {
            return Err(Refusal::new(uapi::PINMAP_FAULT_EXITED, EINTR));
        }
        Ok(server)
    }
}

/// A thread that serves a fault: it uses the program's address space, and is counted as that.
struct Server<'a> {
    vm: &'a Vm,
    pager: Arc<dyn Pager>,
    _using: Using<'a>,
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.vm.serving.fetch_sub(1, Relaxed);
    }
}

impl_has_work! {
    impl HasWork<Self> for Queue { self.starting }
}

impl WorkItem for Queue {
    type Pointer = Arc<Self>;

    /// Makes the thread.
    fn run(this: Arc<Self>) {
        let _covered = Covered::begin();
        if this.service.state.lock().thread.is_some() {
            return;
        }
        let started = Killable::start(c"pinmap-fault", this.clone());
        let mut state = this.service.state.lock();
        match started {
            // If the service has ended meanwhile, dropping it with the queue is not enough: the
            // thread keeps the queue.
            Ok(thread) if state.ended => drop(thread),
            Ok(thread) => state.thread = Some(thread),
            Err(errno) => {
                let fault = state.fault.take();
                drop(state);
                let refusal = Refusal::new(uapi::PINMAP_FAULT_MEMORY, errno);
                if let Some(fault) = fault {
                    this.gpu().after_service(&this, &fault, Err(refusal));
                }
            }
        }
    }
}

impl Errand for Queue {
    fn run(this: &Arc<Self>) {
        while let Some(fault) = this.next_fault() {
            let _covered = Covered::begin();
            let begun = clock::now();
            trace::fault_begin(this.stats(), || this.traced(&fault));
            let server = this.server();
            let result = match &server {
                Ok(server) => server.pager.serve(fault.addr, fault.access, begun),
                Err(refusal) => Err(*refusal),
            };
            let ended = match &result {
                Ok(served) => served.ended,
                Err(_) => clock::now(),
            };
            let ns = ended.saturating_sub(begun);
            let end = match &result {
                Ok(served) => {
                    this.stats().fault_served(served.pages, ns);
                    trace::FaultEnd::Served {
                        pages: served.pages,
                        retries: served.retries,
                    }
                }
                Err(refusal) => trace::FaultEnd::Failed {
                    reason: refusal.reason,
                    errno: refusal.errno,
                    retries: refusal.retries,
                },
            };
            trace::fault_end(this.stats(), ns, end, || this.traced(&fault));
            let is_served = result.is_ok();
            this.gpu().after_service(this, &fault, result);
            if let (Ok(server), true) = (server, is_served) {
                server.pager.prepare();
            }
        }
    }
}

impl Gpu {
    /// Has the faults given up that are being served. The queues fault again.
    pub(in crate::gpu) fn interrupt_services(&self) {
        for entry in self.schedule.lock().entries.iter().flatten() {
            entry.queue.interrupt_service();
        }
    }

    /// Whether a fault is being served.
    pub(in crate::gpu) fn is_serving(&self) -> bool {
        for member in self.members.lock().values() {
            if member.vm().serving.load(Relaxed) != 0 {
                return true;
            }
        }
        false
    }

    /// Handles a report that a queue has stopped. A fault on managed memory is to be served;
    /// anything else stops the queue for good.
    pub(super) fn take_report(&self, schedule: &mut Schedule, id: u32, stop: Stop) {
        let Some(entry) = schedule.entry(id) else {
            return;
        };
        if !entry.closing && self.is_served(&entry.queue, &stop) {
            // At most one at a time: until this one is served, the queue executes nothing.
            if !entry.faulting {
                entry.faulting = true;
                entry.queue.begin_service(stop);
            }
        } else {
            self.stop(&entry.queue, stop);
        }
    }

    /// Whether a fault is one that can be served.
    fn is_served(&self, queue: &Queue, stop: &Stop) -> bool {
        stop.can_retry
            && stop.access != uapi::PINMAP_ACCESS_FETCH
            && queue.stopped().is_none()
            && queue
                .vm()
                .pager()
                .is_some_and(|pager| pager.manages(stop.addr))
    }

    /// Whether the queue in `slot`, which has faulted, stays there until the fault is served.
    pub(super) fn keeps_fault(&self, schedule: &mut Schedule, slot: u32) -> bool {
        let queue = schedule.slot(slot).and_then(|slot| slot.queue);
        let Some(entry) = queue.and_then(|queue| schedule.entry(queue)) else {
            return false;
        };
        if entry.faulting {
            return true;
        }
        // Its report was dropped, because there were too many. What the slot knows is not enough:
        // the access is repeated, and reported again.
        let repeat = !entry.closing && self.is_served(&entry.queue, &self.hardware.slot_stop(slot));
        if repeat {
            self.hardware.retry(slot);
        }
        repeat
    }

    /// Has faults given up for which nobody waits any more: the program has ended, and only the
    /// threads that serve its faults keep its memory. The file may be open in another process.
    pub(super) fn look_at_services(&self, schedule: &Schedule) {
        for entry in schedule.entries.iter().flatten() {
            let vm = entry.queue.vm();
            if entry.faulting && vm.account().users() <= vm.serving.load(Relaxed) {
                entry.queue.interrupt_service();
            }
        }
    }

    /// Has the queue go on after its fault was served, or stops it.
    fn after_service(&self, queue: &Arc<Queue>, fault: &Stop, result: Result<Served, Refusal>) {
        let mut schedule = self.schedule.lock();
        let ours = |entry: &&mut super::schedule::Entry| Arc::ptr_eq(&entry.queue, queue);
        let Some(entry) = schedule.entry(queue.id()).filter(ours) else {
            return;
        };
        entry.faulting = false;
        let slot = entry.slot;
        if self.check_here().is_err() {
            return;
        }
        // While the device is stopped, the fault comes again whatever the reason.
        let is_final = |refusal: &Refusal| refusal.errno != EINTR && self.serves.load(Relaxed);
        let refusal = result.err().filter(is_final);
        if let Some(refusal) = refusal {
            let stop = Stop {
                reason: refusal.reason,
                area: refusal.area,
                ..*fault
            };
            self.stop(queue, stop);
        }
        let stays = slot.filter(|&slot| {
            let slot = schedule.slot(slot);
            slot.is_some_and(|slot| slot.leaving.is_none())
        });
        match stays {
            Some(slot) if refusal.is_some() => {
                self.begin_unbind(&mut schedule, slot);
                self.look_at(&mut schedule, slot);
            }
            Some(slot) => {
                if self.hardware.slot_state(slot) == Some(crate::gpu::hardware::SlotState::Faulted)
                {
                    // The entries of the page table are there before the device looks.
                    self.hardware.order();
                    self.hardware.retry(slot);
                }
                return;
            }
            None => {}
        }
        drop(schedule);
        self.wake_scheduler();
    }
}
