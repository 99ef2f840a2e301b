// SPDX-License-Identifier: GPL-2.0
//! A queue of packets, and how its owner learns how far it is.
//!
//! A queue has a ring of packets and a page of fences, both in host memory that program and device
//! have mapped, and a [`Doorbell`], a page of registers by which the program tells the device how
//! far it has filled the ring. Submission needs no system call. A fence is a 64-bit counter that
//! packets write; a program waits for a value of it, or asks to be notified by an eventfd.
//!
//! The driver wakes waiters when the device raises an interrupt, which queues ask for by packets.
//! Waiters also look by themselves, since interrupts may get lost. No decision about memory depends
//! on a fence, which programs can write.
//!
//! A queue stops for good at a fault that is not served (see `service.rs`) or at an invalid packet;
//! its owner gets an event.

use super::service::Service;
use crate::{
    event::{EventId, EventQueue, EventSlot},
    gpu::{
        hardware::{Setup, Stop},
        mmu::vm::Vm,
        Gpu, Member,
    },
    list,
    logic::ring::Ring,
    mapping::Mapping,
    stats::Stats,
    sys::{
        fs::eventfd::EventFd,
        mm::folios::Folios,
        task::clock::{self, MILLISECOND},
    },
    trace,
    uapi::{self, pinmap_event},
    view::{DevicePages, MmapOffset},
};
use kernel::{
    new_condvar, new_mutex, new_work,
    prelude::*,
    sync::{atomic::Atomic, Arc, CondVar, CondVarTimeoutResult, Mutex},
    workqueue::Work,
};

/// When a waiter first looks by itself. Each further look comes after twice the time.
const FIRST_LOOK: u64 = 20 * MILLISECOND;
/// The longest time between two looks of a waiter.
const LAST_LOOK: u64 = 500 * MILLISECOND;
/// Eventfds that a queue may owe a signal.
const MAX_NOTICES: usize = 64;

/// The id of a queue, and its doorbell. Dropping it gives back the id: only when nobody has the
/// doorbell mapped any more can another queue get it.
pub(crate) struct Doorbell {
    gpu: Arc<Gpu>,
    member: Arc<Member>,
    id: u32,
    /// A page that is mapped in place of the doorbell once the device is gone, so that stores to it
    /// do no harm. Its charge is the price of an id.
    nowhere: Arc<Folios>,
}

impl Doorbell {
    /// Takes a free id. Its doorbell is not enabled yet. `ENOSPC`: no id is free.
    pub(in crate::gpu) fn new(
        gpu: &Arc<Gpu>,
        member: &Arc<Member>,
        nowhere: Arc<Folios>,
    ) -> Result<Self> {
        let id = gpu.ids.lock().take(member)?;
        Ok(Self {
            gpu: gpu.clone(),
            member: member.clone(),
            id,
            nowhere,
        })
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        self.gpu.ids.lock().give(self.id, &self.member);
    }
}

impl DevicePages for Doorbell {
    fn insert(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        if offset != 0 {
            return None;
        }
        let frame = self.gpu.hardware.doorbell_frame(self.id);
        self.gpu
            .while_vram_open(|| insert(frame))
            .or_else(|| Some(insert(self.nowhere.first_frame()?)))
    }

    fn is_memory(&self) -> bool {
        false
    }
}

/// An eventfd to be signalled when a fence has a value.
struct Notice {
    fence: u64,
    value: u64,
    eventfd: EventFd,
}

/// State protected by `Queue::state`.
struct QueueState {
    stop: Option<Stop>,
    closed: bool,
    handle: u64,
    /// Memory for the one event that the queue can have, and the event once it was sent.
    event_slot: Option<EventSlot>,
    event: Option<EventId>,
    notices: KVec<Notice>,
}

/// The parts that a queue is made of.
pub(crate) struct QueueParams {
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) vm: Arc<Vm>,
    /// `PINMAP_QUEUE_` flags.
    pub(crate) classes: u32,
    pub(crate) priority: u32,
    pub(crate) ring: Ring,
    /// Device address of the ring.
    pub(crate) ring_addr: u64,
    pub(crate) ring_memory: Arc<Folios>,
    pub(crate) fences: Arc<Folios>,
    pub(crate) events: Arc<EventQueue>,
}

/// Memory that a queue keeps until it is closed: the mappings of ring and fences, and the offsets
/// for `mmap()`.
pub(crate) struct QueueMemory {
    pub(crate) _mappings: [Mapping; 2],
    pub(crate) _views: [MmapOffset; 3],
}

#[pin_data]
pub(crate) struct Queue {
    params: QueueParams,
    #[pin]
    state: Mutex<QueueState>,
    #[pin]
    changed: CondVar,
    /// `None` once the queue is closed.
    #[pin]
    memory: Mutex<Option<QueueMemory>>,
    /// Serves faults on managed memory.
    #[pin]
    pub(super) service: Service,
    /// Makes the thread that serves faults.
    #[pin]
    pub(super) starting: Work<Queue>,
    /// Held by calls that submit by ioctl, one at a time.
    #[pin]
    pub(crate) submitting: Mutex<()>,
    /// Place of the queue in the order in which queues asked the scheduler for a slot; 0: the queue
    /// does not ask.
    pub(super) turn: Atomic<u64>,
}

/// How a wait ended.
pub(crate) struct Waited {
    pub(crate) result: Result,
    /// Nanoseconds left.
    pub(crate) left: u64,
    /// The value of the fence.
    pub(crate) value: u64,
}

impl Queue {
    /// Makes a queue that the device does not know yet.
    pub(crate) fn new(params: QueueParams, memory: QueueMemory) -> Result<Arc<Self>> {
        let state = QueueState {
            stop: None,
            closed: false,
            handle: 0,
            event_slot: Some(params.events.reserve()?),
            event: None,
            notices: KVec::new(),
        };
        Arc::pin_init(
            pin_init!(Self {
                params,
                state <- new_mutex!(state, "pinmap_queue_state"),
                changed <- new_condvar!("pinmap_queue"),
                memory <- new_mutex!(Some(memory), "pinmap_queue_memory"),
                service <- Service::new(),
                starting <- new_work!("pinmap_starting"),
                submitting <- new_mutex!((), "pinmap_submit"),
                turn: Atomic::new(0),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The number by which the device knows the queue.
    pub(in crate::gpu) fn id(&self) -> u32 {
        self.params.doorbell.id()
    }

    /// The context's address space.
    pub(super) fn vm(&self) -> &Arc<Vm> {
        &self.params.vm
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.params.doorbell.gpu
    }

    /// The statistics of the context.
    pub(super) fn stats(&self) -> &Arc<Stats> {
        self.params.events.stats()
    }

    /// Returns what tracepoints tell of `stop`.
    pub(super) fn traced(&self, stop: &Stop) -> trace::QueueFault {
        traced(self.state.lock().handle, stop)
    }

    /// Queues of a higher priority come first.
    pub(super) fn priority(&self) -> u32 {
        self.params.priority
    }

    pub(crate) fn ring(&self) -> Ring {
        self.params.ring
    }

    pub(crate) fn ring_memory(&self) -> &Folios {
        &self.params.ring_memory
    }

    /// The queue as it is put into a slot. The scheduler knows VMID and progress.
    pub(super) fn setup(&self, vmid: u32, progress: crate::gpu::hardware::Progress) -> Setup {
        Setup {
            queue: self.id(),
            vmid,
            classes: self.params.classes,
            priority: self.params.priority,
            ring: self.params.ring_addr,
            order: self.params.ring.order(),
            progress,
        }
    }

    pub(crate) fn set_handle(&self, handle: u64) {
        self.state.lock().handle = handle;
    }

    /// Marks the queue as stopped, and tells its owner, once. Returns `false` if that was done
    /// before.
    pub(super) fn stop(&self, stop: Stop) -> bool {
        let mut state = self.state.lock();
        if state.stop.is_some() || state.closed {
            return false;
        }
        state.stop = Some(stop);
        if stop.is_fault {
            self.stats().fault_failed();
        }
        let handle = state.handle;
        trace::fault(self.stats(), || traced(handle, &stop));
        let event = pinmap_event {
            type_: uapi::PINMAP_EVENT_FAULT,
            handle: state.handle,
            access: stop.access().unwrap_or(0),
            addr: stop.addr,
            length: stop.index,
        };
        state.event = state
            .event_slot
            .take()
            .map(|slot| self.params.events.push(slot, event));
        self.notify_due(&mut state);
        true
    }

    /// Why the queue stopped, if it has.
    pub(crate) fn stopped(&self) -> Option<Stop> {
        self.state.lock().stop
    }

    /// Wakes waiters: an interrupt came, or the device is gone.
    pub(in crate::gpu) fn wake(&self) {
        // Under the lock, so that no waiter misses it between its look at the fence and its sleep.
        self.notify_due(&mut self.state.lock());
    }

    /// Signals eventfds that are due, whatever interrupts say.
    pub(in crate::gpu) fn look(&self) {
        let mut state = self.state.lock();
        if !state.notices.is_empty() {
            self.notify_due(&mut state);
        }
    }

    /// Whether an eventfd is to be signalled.
    pub(super) fn has_notices(&self) -> bool {
        !self.state.lock().notices.is_empty()
    }

    /// Wakes waiters, and signals the eventfds that have nothing to wait for any more.
    fn notify_due(&self, state: &mut QueueState) {
        self.changed.notify_all();
        let over = self.is_over(state);
        state.notices.retain(|notice| {
            let due = over || self.fence(notice.fence) >= notice.value;
            if due {
                notice.eventfd.signal();
            }
            !due
        });
    }

    /// Whether the device will write no fence of the queue any more.
    fn is_over(&self, state: &QueueState) -> bool {
        let gpu = &self.params.doorbell.gpu;
        state.stop.is_some() || state.closed || gpu.check_here().is_err()
    }

    /// The value of the fence with that index.
    fn fence(&self, index: u64) -> u64 {
        let offset = index.saturating_mul(8);
        self.params.fences.load(offset).unwrap_or(0)
    }

    /// Signals `eventfd` once the fence is at least `value`, or never will be. `ENOSPC`: too many
    /// eventfds wait.
    pub(crate) fn notify(&self, fence: u64, value: u64, eventfd: EventFd) -> Result {
        let mut notice = Notice {
            fence,
            value,
            eventfd,
        };
        let mut state = self.state.lock();
        loop {
            // Looked at under the lock: an interrupt that comes afterwards signals it.
            if self.is_over(&state) || self.fence(fence) >= value {
                notice.eventfd.signal();
                return Ok(());
            }
            if state.notices.len() >= MAX_NOTICES {
                // Interrupts may have missed some that are due.
                self.notify_due(&mut state);
                if state.notices.len() >= MAX_NOTICES {
                    return Err(ENOSPC);
                }
            }
            match state.notices.push_within_capacity(notice) {
                Ok(()) => return Ok(()),
                Err(full) => notice = full.0,
            }
            // Allocated outside of the lock, which the scheduler takes, and so all contexts wait
            // for.
            drop(state);
            let roomy = KVec::with_capacity(MAX_NOTICES, GFP_KERNEL_ACCOUNT)?;
            state = self.state.lock();
            drop(list::grow(&mut state.notices, roomy)?);
        }
    }

    /// Closes the queue, for which the device does nothing any more: takes its mappings, and an
    /// event that was not read.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let event = state.event.take();
        self.notify_due(&mut state);
        drop(state);
        if let Some(event) = event {
            self.params.events.withdraw(event);
        }
        let memory = self.memory.lock().take();
        drop(memory);
    }

    /// Waits until a fence is at least `value`, or a signal comes, for `timeout` nanoseconds at
    /// most (all ones: without limit).
    pub(crate) fn wait(&self, gpu: &Gpu, fence: u64, value: u64, timeout: u64) -> Waited {
        let deadline = (timeout != u64::MAX).then(|| clock::now().saturating_add(timeout));
        let left = || deadline.map_or(u64::MAX, |deadline| deadline.saturating_sub(clock::now()));
        let mut look = FIRST_LOOK;
        let mut state = self.state.lock();
        loop {
            let seen = self.fence(fence);
            let left = left();
            let end = |result| Waited {
                result,
                left,
                value: seen,
            };
            if seen >= value {
                return end(Ok(()));
            }
            if gpu.check_here().is_err() {
                return end(Err(ENODEV));
            }
            if state.closed {
                return end(Err(ESTALE));
            }
            if state.stop.is_some() {
                return end(Err(EIO));
            }
            if left == 0 {
                return end(Err(ETIMEDOUT));
            }
            let pause = clock::jiffies(left.min(look));
            match self.changed.wait_interruptible_timeout(&mut state, pause) {
                CondVarTimeoutResult::Signal { .. } => return end(Err(ERESTARTSYS)),
                CondVarTimeoutResult::Woken { .. } => {}
                CondVarTimeoutResult::Timeout => look = look.saturating_mul(2).min(LAST_LOOK),
            }
        }
    }
}

fn traced(handle: u64, stop: &Stop) -> trace::QueueFault {
    trace::QueueFault {
        handle,
        index: stop.index,
        code: stop.code,
        access: stop.access(),
        addr: stop.addr,
    }
}
