// SPDX-License-Identifier: GPL-2.0
//! Paged devices: those with an MMU of their own, which many contexts use at once.
//!
//! This module has the part that is common to all of them; the trait [`Hardware`] stands for one. A
//! device executes queues. It has fewer *slots* than there are queues, and fewer address spaces,
//! numbered by *VMIDs*, than there are contexts; so the driver shares out both, by one thread, the
//! scheduler.
//!
//! * `hardware.rs`: what a device is asked to do
//! * `contexts.rs`, `member.rs`: the contexts, and the queues of each by handle
//! * `sleep.rs`: what becomes of the device while the system sleeps
//! * `sched/`: which queue runs; `mmu/`: page tables; `vram/`: the device's memory, and pages of
//!   processes in it
//!
//! Locks, outermost first: `sleep`; `counted`; `running`; a member's `handles`; `schedule`; an
//! address space's tables, then its VMID; `invalidates`; a queue's `state`, and that of its
//! service. `ids`, `queues_by_id`, `work_pending`, `burst`, an address space's `pager` and
//! `trouble`, and the bitmap of VRAM are leaves, and so are `private`, `spares` and the numbers of
//! owners. `members` is taken by CPU faults, too, with the mmap lock held; under it only `held.rs`
//! waits for the device, and not for long. The lock of evictors is taken before all others. `mover`
//! is taken where a page moves, also in a CPU fault with the mmap lock held; nobody waits for a
//! program there. Page faults pass `vram_open`, which is no lock: faults do not wait for each
//! other, and only taking the device away waits for them. MMU notifiers take a VMID's lock and
//! `invalidates`, to take managed memory away, so nothing is allocated under these; and none of the
//! locks before them, so the device may be waited for under `schedule`.

use crate::{
    address_space::AddressSpace,
    logic::{burst::Burst, slots::Order},
    mmu::DmaControl,
    sys::{
        iommu::Domain,
        mm::vma,
        pci::{
            irq_thread::{Handled, Handler},
            runtime::Runtime,
            Function, Locked,
        },
        task::{
            clock::{self, MILLISECOND, SECOND},
            dmem,
            passage::Passage,
            thread::Thread,
        },
    },
    uapi::{pinmap_gpu_counters, pinmap_gpu_info},
};
use kernel::{
    device, new_condvar, new_mutex, new_spinlock,
    prelude::*,
    rbtree::RBTree,
    sync::{
        atomic::{Acquire, Atomic, Full, Release},
        Arc, CondVar, Mutex, SpinLock,
    },
};

mod contexts;
pub(crate) mod hardware;
pub(crate) mod member;
pub(crate) mod mmu;
pub(crate) mod sched;
mod sleep;
pub(crate) mod vram;

use hardware::{Cause, Hardware, Limits};
use member::Member;
use sched::{ids::Ids, isolation::Isolation, queue::Queue, schedule::Schedule};
use sleep::{Counted, Sleep};
#[cfg(pinmap_mirror)]
use vram::held::Held;
#[cfg(pinmap_mirror)]
use vram::mover::Mover;
#[cfg(pinmap_mirror)]
use vram::moving::Spares;
#[cfg(pinmap_mirror)]
use vram::peers::Peers;
#[cfg(pinmap_mirror)]
use vram::private::Private;
use vram::{p2pdma::P2pdma, Vram};

/// How long a device may take for what it does at once, in nanoseconds, before it is given up. Many
/// times what its manual promises, since it may be emulated on a busy machine.
const PATIENCE: u64 = 2 * SECOND;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// The device works.
    Running,
    /// The device was reset, for good: it does nothing, and has forgotten everything.
    Quiet,
    /// The device did not do what it was told to. Its DMA is blocked.
    Lost,
}

/// The commands by which the device forgets what its TLB has.
#[derive(Default)]
struct Invalidates {
    /// The number of the last one.
    last: u64,
    /// The device is off, and has forgotten everything.
    off: bool,
}

/// Thread and interrupts, as long as the device is bound.
struct Running {
    _thread: Thread<Gpu>,
    _interrupts: Handled<Gpu>,
}

/// The device's side of the IOMMU, as long as it is bound.
struct Bus {
    dma_control: Arc<dyn DmaControl>,
    /// Bus addresses, for all contexts.
    space: Arc<AddressSpace>,
}

/// A paged device.
#[pin_data]
pub(crate) struct Gpu {
    function: Function,
    runtime: Arc<Runtime>,
    hardware: Arc<dyn Hardware>,
    limits: Limits,
    /// A [`Condition`].
    condition: Atomic<u32>,
    gone: Atomic<bool>,
    /// Whether faults are served: not while the device is stopped, to sleep.
    serves: Atomic<bool>,
    /// Changed by the kernel's power management alone, a call at a time.
    #[pin]
    sleep: Mutex<Sleep>,
    /// Counters that the device has forgotten.
    #[pin]
    counted: Mutex<Counted>,
    #[pin]
    vram: Vram,
    /// Open as long as pages of the device are given out.
    #[pin]
    vram_open: Passage,
    #[pin]
    p2pdma: P2pdma,
    isolation: Isolation,
    #[pin]
    ids: Mutex<Ids>,
    #[pin]
    invalidates: Mutex<Invalidates>,
    /// The number of the last INVALIDATE that a reset has made up for.
    forgotten: Atomic<u64>,
    #[pin]
    schedule: Mutex<Schedule>,
    /// Order in which contexts were opened and served. It has a lock of its own, because `open()`
    /// must not wait for `schedule`, under which the device is waited for.
    #[pin]
    order: SpinLock<Order>,
    /// Whether the scheduler has something to look at.
    #[pin]
    work_pending: SpinLock<bool>,
    #[pin]
    wakeup: CondVar,
    /// The rate of interrupts by which queues tell how far they are.
    #[pin]
    burst: SpinLock<Burst>,
    /// Queues by id, for interrupts.
    #[pin]
    queues_by_id: SpinLock<KVec<Option<Arc<Queue>>>>,
    #[pin]
    members: Mutex<RBTree<u64, Arc<Member>>>,
    #[pin]
    bus: Mutex<Option<Bus>>,
    #[cfg(pinmap_mirror)]
    #[pin]
    mover: Mutex<Option<Mover>>,
    /// Signalled when a window of `mover` is free.
    #[cfg(pinmap_mirror)]
    #[pin]
    window_free: CondVar,
    #[cfg(pinmap_mirror)]
    #[pin]
    spares: Mutex<Spares>,
    #[cfg(pinmap_mirror)]
    #[pin]
    private: Private,
    #[cfg(pinmap_mirror)]
    #[pin]
    peers: Peers,
    #[cfg(pinmap_mirror)]
    #[pin]
    held: Held,
    #[pin]
    running: Mutex<Option<Running>>,
}

impl Gpu {
    /// Makes the device of `function`, whose registers are `hardware`.
    pub(crate) fn new(
        function: &Function,
        runtime: &Arc<Runtime>,
        hardware: Arc<dyn Hardware>,
    ) -> Result<Arc<Self>> {
        let limits = hardware.limits();
        let schedule = Schedule::new(limits.queues, limits.slots, limits.vmids)?;
        let ids = Ids::new(limits.queues)?;
        let mut queues_by_id = KVec::with_capacity(limits.queues as usize, GFP_KERNEL)?;
        for _ in 0..limits.queues {
            queues_by_id.push(None, GFP_KERNEL)?;
        }
        Arc::pin_init(
            try_pin_init!(Self {
                function: function.clone(),
                runtime: runtime.clone(),
                hardware,
                limits,
                condition: Atomic::new(0),
                gone: Atomic::new(false),
                serves: Atomic::new(true),
                sleep <- new_mutex!(Sleep::default(), "pinmap_sleep"),
                counted <- new_mutex!(Counted::default(), "pinmap_counted"),
                vram <- Vram::new(limits.vram),
                vram_open <- Passage::new(),
                p2pdma <- P2pdma::new(),
                isolation: Isolation::new(),
                ids <- new_mutex!(ids, "pinmap_ids"),
                invalidates <- new_mutex!(Invalidates::default(), "pinmap_invalidates"),
                forgotten: Atomic::new(0),
                schedule <- new_mutex!(schedule, "pinmap_schedule"),
                order <- new_spinlock!(Order::default(), "pinmap_order"),
                work_pending <- new_spinlock!(false, "pinmap_work_pending"),
                wakeup <- new_condvar!("pinmap_wakeup"),
                burst <- new_spinlock!(Burst::new(), "pinmap_burst"),
                queues_by_id <- new_spinlock!(queues_by_id, "pinmap_queues_by_id"),
                members <- new_mutex!(RBTree::new(), "pinmap_members"),
                bus <- new_mutex!(None, "pinmap_bus"),
                #[cfg(pinmap_mirror)]
                mover <- new_mutex!(None, "pinmap_mover"),
                #[cfg(pinmap_mirror)]
                window_free <- new_condvar!("pinmap_window_free"),
                #[cfg(pinmap_mirror)]
                spares <- new_mutex!(Spares::new()?, "pinmap_spares"),
                #[cfg(pinmap_mirror)]
                private <- Private::new(limits.vram),
                #[cfg(pinmap_mirror)]
                peers <- Peers::new(),
                #[cfg(pinmap_mirror)]
                held <- Held::new(limits.vram),
                running <- new_mutex!(None, "pinmap_running"),
            }? Error),
            GFP_KERNEL,
        )
    }

    fn condition(&self) -> Condition {
        match self.condition.load(Acquire) {
            0 => Condition::Running,
            1 => Condition::Quiet,
            _ => Condition::Lost,
        }
    }

    /// Fails with `ENODEV` if the device is gone. It may be gone a moment later.
    pub(crate) fn check_here(&self) -> Result {
        if self.gone.load(Acquire) || self.condition() != Condition::Running {
            return Err(ENODEV);
        }
        Ok(())
    }

    /// Gives up an unresponsive device: blocks its DMA and schedules its removal. Returns `EIO`, or
    /// `Ok` if a reset came first.
    fn lose(&self) -> Result {
        if self.condition() == Condition::Quiet {
            return Ok(());
        }
        // The DMA is blocked first: whoever sees `Lost` relies on that.
        let dma_control = self.bus.lock().as_ref().map(|bus| bus.dma_control.clone());
        if let Some(dma_control) = dma_control {
            dma_control.block_dma();
        }
        let lost = self.condition.cmpxchg(0, 2, Full);
        if lost.is_ok() {
            let dev: &device::Device = self.function.as_ref();
            dev_err!(dev, "it does not answer: given up\n");
        }
        Err(EIO)
    }

    /// Calls `insert`, unless pages of the device are not given out any more. If it is asleep, has
    /// it wake, and the access that faulted repeated soon: the caller has the mmap lock.
    fn while_vram_open(&self, insert: impl FnOnce() -> u32) -> Option<u32> {
        let Some(_awake) = self.runtime.use_if_awake() else {
            self.runtime.ask_to_wake();
            clock::rest(MILLISECOND);
            return Some(vma::TRY_AGAIN);
        };
        self.vram_open.while_open(insert)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether the function can be reset. The device's own reset, by which it was made quiet,
    /// leaves the contents of VRAM.
    pub(crate) fn needs_reset(&self) -> bool {
        self.function.can_reset()
    }

    /// Fills in the answer of GPU_INFO.
    pub(crate) fn describe(&self, info: &mut pinmap_gpu_info) {
        self.hardware.describe(info);
        info.out_vram_free = self.vram.free();
    }

    /// Fills in the answer of GPU_COUNTERS.
    pub(crate) fn count(&self, counters: &mut pinmap_gpu_counters) {
        self.hardware.count(counters);
        self.counted.lock().add_to(counters);
        counters.out_vmid_binds = self.schedule.lock().vmid_binds();
    }

    /// The write index that `queue` published last.
    pub(crate) fn published(&self, queue: &Queue) -> u64 {
        self.hardware.published(queue.id())
    }

    /// Publishes a write index of `queue`, as its doorbell does.
    pub(crate) fn publish(&self, queue: &Queue, index: u64) -> Result {
        self.check_here()?;
        self.hardware.publish(queue.id(), index);
        Ok(())
    }

    /// See [`Backend::start`](crate::backend::Backend::start).
    pub(crate) fn start(
        this: &Arc<Self>,
        locked: &Locked<'_>,
        domain: &Arc<Domain>,
        dma_control: Arc<dyn DmaControl>,
    ) -> Result {
        // Rings, fences and tables are read and written by both sides all the time, without a call
        // that could flush the CPU's caches.
        if !domain.is_coherent() {
            let dev: &device::Device = this.function.as_ref();
            dev_err!(dev, "refused: its DMA does not snoop the CPU's caches\n");
            return Err(EOPNOTSUPP);
        }
        // The device may have been left running: a reset makes it forget everything. What PCI waits
        // for is configuration space; registers take a while longer.
        if locked.reset().is_err() {
            this.hardware.reset();
        }
        this.await_reset()?;
        let space = AddressSpace::new(domain.clone(), dma_control.clone(), None)?;
        #[cfg(pinmap_mirror)]
        Self::begin_private(this, &space)?;
        *this.bus.lock() = Some(Bus { dma_control, space });
        this.function.set_master(true);
        this.schedule.lock().set_epoch(this.hardware.time());
        let interrupts = Handled::new(&this.function, domain, this.limits.vectors, this.clone())?;
        this.hardware.prepare();
        let region = dmem::Region::new(&this.function, this.limits.vram)?;
        this.vram.limit(Some(region));
        let thread = Thread::new(c"pinmap-gpu", this.clone())?;
        *this.running.lock() = Some(Running {
            _thread: thread,
            _interrupts: interrupts,
        });
        Ok(())
    }

    /// Resets the device. `EIO`: it does not answer.
    fn reset(&self) -> Result {
        self.hardware.reset();
        self.await_reset()
    }

    fn await_reset(&self) -> Result {
        if clock::poll(PATIENCE, || self.hardware.is_reset()) {
            Ok(())
        } else {
            Err(EIO)
        }
    }

    /// From now on calls fail, and no page of the device is given out.
    fn withdraw(&self) {
        self.gone.store(true, Release);
        self.vram_open.close();
    }

    /// See [`Backend::leave`](crate::backend::Backend::leave).
    pub(crate) fn leave(&self) {
        self.withdraw();
        #[cfg(pinmap_mirror)]
        self.end_private();
        // One that is asleep was reset, and cannot be reached.
        let was_reset = self.is_asleep();
        // A second caller waits here until the first is done.
        let mut running = self.running.lock();
        let bus = self.bus.lock();
        if bus.is_none() {
            return;
        }
        drop(bus);
        self.wake_scheduler();
        self.vram.limit(None);
        *running = None;
        let running_still = self.condition() == Condition::Running;
        if running_still && (was_reset || self.reset().is_ok()) {
            self.condition.store(1, Release);
        }
        if self.condition() == Condition::Running {
            let _ = self.lose();
        }
        self.function.set_master(false);
        // Each `Vm` with a VMID refers to the device, which would refer back.
        self.schedule.lock().forget_vmids();
        let bus = self.bus.lock().take();
        drop(bus);
        self.hardware.revoke();
        drop(running);
        self.wake_all();
    }

    /// Wakes all waiters: they see that the device is gone.
    fn wake_all(&self) {
        for id in 0..self.limits.queues {
            self.wake(id);
        }
    }

    /// Wakes the waiters of queues that asked for an interrupt.
    fn complete(&self) {
        self.hardware.acknowledge(Cause::Completion);
        self.hardware.each_completion(&mut |id| self.wake(id));
    }

    fn wake(&self, id: u32) {
        if let Some(queue) = self.queue_by_id(id) {
            queue.wake();
        }
    }

    /// Signals eventfds that are due though no interrupt came: their owners do not look for
    /// themselves.
    fn look_at_notices(&self) {
        for id in 0..self.limits.queues {
            if let Some(queue) = self.queue_by_id(id) {
                queue.look();
            }
        }
    }

    fn queue_by_id(&self, id: u32) -> Option<Arc<Queue>> {
        let queues = self.queues_by_id.lock();
        queues.get(id as usize).and_then(Clone::clone)
    }
}

impl Handler for Gpu {
    fn interrupt(&self, index: u32) {
        // Before it fell asleep, it was looked at.
        let Some(_awake) = self.runtime.use_if_awake() else {
            return;
        };
        match self.hardware.cause(index) {
            Cause::Schedule => self.wake_scheduler(),
            Cause::Completion => {
                let begun = clock::now();
                self.complete();
                // During the rest the device only notes further completions, which costs nothing.
                let rest = self.burst.lock().handled(begun, clock::now());
                clock::rest(rest);
            }
        }
    }
}

/// Ends `queue`: when this returns, the device does nothing for it any more, or is being taken
/// away.
pub(crate) fn close(gpu: &Gpu, queue: &Arc<Queue>) {
    gpu.remove(queue);
    queue.close();
}
