// SPDX-License-Identifier: GPL-2.0
//! A queue as the device executes it: its id and doorbell, and what became of it.

use super::{
    hardware::{Setup, Stop},
    vm::Vm,
    Gpu, Member,
};
use crate::{
    event::{EventId, EventQueue, EventSlot},
    list,
    logic::ring::Ring,
    mapping::Mapping,
    sys::{
        clock::{self, MILLISECOND},
        compat,
        eventfd::EventFd,
        folios::Folios,
        uapi::{self, pinmap_event},
    },
    trace,
    view::{DevicePages, MmapOffset},
};
use kernel::{
    new_condvar, new_mutex,
    prelude::*,
    sync::{atomic::Atomic, Arc, CondVar, CondVarTimeoutResult, Mutex},
};

/// When a waiter looks for itself, since interrupts may get lost: after this time,
const FIRST_LOOK: u64 = 20 * MILLISECOND;
/// then after twice as long each time, up to this.
const LAST_LOOK: u64 = 500 * MILLISECOND;
/// Notices that a queue may owe.
const MAX_NOTICES: usize = 64;

/// The id of a queue, and its doorbell. It is somebody else's only when nobody has the doorbell mapped
/// any more: dropping it gives it back.
pub(crate) struct Doorbell {
    gpu: Arc<Gpu>,
    member: Arc<Member>,
    id: u32,
    /// What is mapped in its place once the device is gone, so that who rings finds out by waiting. It is
    /// also what an id costs for as long as it is held.
    nowhere: Arc<Folios>,
}

impl Doorbell {
    /// A free one, which is not heard yet, that leads to `nowhere` in the end. `ENOSPC`: there is none.
    pub(super) fn new(gpu: &Arc<Gpu>, member: &Arc<Member>, nowhere: Arc<Folios>) -> Result<Self> {
        let id = gpu.ids.lock().take(member)?;
        Ok(Self {
            gpu: gpu.clone(),
            member: member.clone(),
            id,
            nowhere,
        })
    }

    /// The id.
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

/// Somebody who is to be told.
struct Notice {
    fence: u64,
    value: u64,
    eventfd: EventFd,
}

/// What became of a queue.
struct QueueState {
    stop: Option<Stop>,
    closed: bool,
    handle: u64,
    /// For the one event that it can have.
    event_slot: Option<EventSlot>,
    event: Option<EventId>,
    notices: KVec<Notice>,
}

/// What a queue is made of.
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

/// What a queue holds until it is closed: ring and fences as the device sees them, and what `mmap()`
/// shows.
pub(crate) struct QueueMemory {
    pub(crate) _mappings: [Mapping; 2],
    pub(crate) _views: [MmapOffset; 3],
}

/// A queue.
#[pin_data]
pub(crate) struct Queue {
    params: QueueParams,
    #[pin]
    state: Mutex<QueueState>,
    #[pin]
    changed: CondVar,
    /// Until it is closed.
    #[pin]
    memory: Mutex<Option<QueueMemory>>,
    /// Who submits by ioctl; one at a time.
    #[pin]
    pub(crate) submitting: Mutex<()>,
    /// When it last asked for a slot, in the order of asking; 0: it does not. For the scheduler.
    pub(super) turn: Atomic<u64>,
}

/// How a wait ended.
pub(crate) struct Waited {
    pub(crate) result: Result,
    /// Nanoseconds left.
    pub(crate) left: u64,
    /// The fence.
    pub(crate) value: u64,
}

impl Queue {
    /// Not known to the device yet.
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
                submitting <- new_mutex!((), "pinmap_submit"),
                turn: Atomic::new(0),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// What the device calls it.
    pub(super) fn id(&self) -> u32 {
        self.params.doorbell.id()
    }

    /// The context's address space.
    pub(super) fn vm(&self) -> &Arc<Vm> {
        &self.params.vm
    }

    /// The higher, the sooner.
    pub(super) fn priority(&self) -> u32 {
        self.params.priority
    }

    /// Its ring.
    pub(crate) fn ring(&self) -> Ring {
        self.params.ring
    }

    /// The memory of the ring.
    pub(crate) fn ring_memory(&self) -> &Folios {
        &self.params.ring_memory
    }

    /// How to put it into a slot, but for what only the scheduler knows.
    pub(super) fn setup(&self, vmid: u32, progress: super::hardware::Progress) -> Setup {
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

    /// Its name for its owner.
    pub(crate) fn set_handle(&self, handle: u64) {
        self.state.lock().handle = handle;
    }

    /// It stopped: tells its owner, once. `false`: that was known.
    pub(super) fn stop(&self, stop: Stop) -> bool {
        let mut state = self.state.lock();
        if state.stop.is_some() || state.closed {
            return false;
        }
        state.stop = Some(stop);
        trace::fault(
            self.params.events.stats(),
            trace::Stop {
                handle: state.handle,
                index: stop.index,
                code: stop.code,
                access: stop.is_fault.then_some(stop.access),
                addr: stop.addr,
            },
        );
        let event = pinmap_event {
            type_: uapi::PINMAP_EVENT_FAULT,
            handle: state.handle,
            access: if stop.is_fault { stop.access } else { 0 },
            addr: stop.addr,
            length: stop.index,
        };
        state.event = state
            .event_slot
            .take()
            .map(|slot| self.params.events.push(slot, event));
        self.tell(&mut state);
        true
    }

    /// Why it stopped, if it has.
    pub(crate) fn stopped(&self) -> Option<Stop> {
        self.state.lock().stop
    }

    /// It asked for an interrupt, or the device is gone.
    pub(super) fn wake(&self) {
        // Under the lock: who has looked at the fence and is about to sleep must hear it.
        self.tell(&mut self.state.lock());
    }

    /// Gives the notices that are due, whatever interrupts say.
    pub(super) fn look(&self) {
        let mut state = self.state.lock();
        if !state.notices.is_empty() {
            self.tell(&mut state);
        }
    }

    /// Wakes those who wait, and notifies those who have nothing to wait for any more.
    fn tell(&self, state: &mut QueueState) {
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

    /// Whether no fence of it will be written any more.
    fn is_over(&self, state: &QueueState) -> bool {
        let gpu = &self.params.doorbell.gpu;
        state.stop.is_some() || state.closed || gpu.check_here().is_err()
    }

    /// The fence of that index.
    fn fence(&self, index: u64) -> u64 {
        let offset = index.saturating_mul(8);
        self.params.fences.load(offset).unwrap_or(0)
    }

    /// Has `eventfd` signalled when the fence is at least `value`, or never will be. `ENOSPC`: too many
    /// are to be.
    pub(crate) fn notify(&self, fence: u64, value: u64, eventfd: EventFd) -> Result {
        let mut notice = Notice {
            fence,
            value,
            eventfd,
        };
        let mut state = self.state.lock();
        loop {
            // Looked at under the lock: an interrupt that comes after that tells.
            if self.is_over(&state) || self.fence(fence) >= value {
                notice.eventfd.signal();
                return Ok(());
            }
            if state.notices.len() >= MAX_NOTICES {
                // No interrupt needs to have told those that are due.
                self.tell(&mut state);
                if state.notices.len() >= MAX_NOTICES {
                    return Err(ENOSPC);
                }
            }
            match state.notices.push_within_capacity(notice) {
                Ok(()) => return Ok(()),
                Err(full) => notice = full.0,
            }
            // Allocated outside of the lock, which the scheduler of all contexts takes.
            drop(state);
            let roomy = KVec::with_capacity(MAX_NOTICES, GFP_KERNEL_ACCOUNT)?;
            state = self.state.lock();
            drop(list::grow(&mut state.notices, roomy)?);
        }
    }

    /// The device does nothing for it any more: it has no place in its address space, and no event.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let event = state.event.take();
        self.tell(&mut state);
        drop(state);
        if let Some(event) = event {
            self.params.events.withdraw(event);
        }
        let memory = self.memory.lock().take();
        drop(memory);
    }

    /// Waits until `fence` (its index) is at least `value`, for `timeout` nanoseconds at most (all ones:
    /// for ever), or until a signal comes.
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
                return end(Err(compat::stale()));
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
