// SPDX-License-Identifier: GPL-2.0
//! Paged devices: those with an MMU of their own, which many contexts use at once.
//!
//! What any of them needs is here: page tables (`vm.rs`), having the TLB forget (`tlb.rs`), sharing out
//! slots and VMIDs (`schedule.rs`), memory of the device's own (`vram.rs`), queues (`queue.rs`). What one
//! of them is like is behind [`Hardware`].
//!
//! Locks, outermost first: `running`; a member's `handles`; `schedule`; an address space's tables, then
//! its VMID; `invalidates`; a queue's fate. `live`, `ids`, `known`, `bell` and the memory's bitmap are
//! leaves. None of them is taken by an MMU notifier, so the device may be waited for under `schedule`.

use crate::{
    backend::{Backend, LocalMemory},
    logic::{
        frames::{self, Frames},
        handle::{Absent, Counter},
    },
    mapping::{AddressSpace, Guardian},
    sys::{
        clock::{self, SECOND},
        compat,
        eventfd::EventFd,
        handler::{Handled, Handler},
        iommu::Domain,
        pci::{Function, Locked},
        thread::Thread,
        uapi::{self, GpuCounters, GpuInfo, Info},
    },
    view,
};
use kernel::{
    device, new_condvar, new_mutex, new_spinlock,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::{
        atomic::{Acquire, Atomic, Relaxed, Release},
        Arc, CondVar, Mutex, SpinLock,
    },
};

pub(crate) mod hardware;
pub(crate) mod queue;
mod schedule;
mod tlb;
pub(crate) mod vm;
mod vram;

use hardware::{Cause, Hardware, Limits};
use queue::{Doorbell, Queue};
use schedule::Schedule;
use vm::Vm;
use vram::{Block, Vram};

/// How long a device may take for what it does at once, in nanoseconds, before it is given up: many
/// times what its manual promises, since it may be emulated on a busy machine.
const PATIENCE: u64 = 2 * SECOND;

/// What can be expected of the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// It works.
    Running,
    /// It was reset, for good: it does nothing, and has forgotten everything.
    Quiet,
    /// It did not do what it was told to. Its DMA is blocked.
    Lost,
}

/// What holds as long as the device is bound.
struct Running {
    _thread: Thread<Gpu>,
    _interrupts: Handled<Gpu>,
}

/// What leads back to the device, as long as it is bound.
struct Link {
    guardian: Arc<dyn Guardian>,
    /// The addresses on the bus, for all contexts.
    bus: Arc<AddressSpace>,
}

/// Queues of a context, by handle.
struct Handles {
    closed: bool,
    counter: Counter,
    by_handle: RBTree<u64, Named>,
}

/// A queue that has a handle.
struct Named {
    queue: Arc<Queue>,
    /// Not before everything that can fail has succeeded.
    published: bool,
}

/// A context.
#[pin_data]
pub(crate) struct Member {
    vm: Arc<Vm>,
    /// The part of its address space that is the driver's.
    upper: Arc<AddressSpace>,
    /// Queues, and doorbells of such that are closed but mapped.
    queues: Atomic<u32>,
    #[pin]
    handles: Mutex<Handles>,
}

/// A paged device.
#[pin_data]
pub(crate) struct Gpu {
    function: Function,
    hardware: Arc<dyn Hardware>,
    limits: Limits,
    /// A [`Condition`].
    condition: Atomic<u32>,
    gone: Atomic<bool>,
    coherent: Atomic<bool>,
    /// Mappings and pieces of memory that there are.
    uses: Atomic<i64>,
    #[pin]
    vram: Vram,
    /// Whether device memory may be given out. Held while a page of it is.
    #[pin]
    live: Mutex<bool>,
    /// Ids of queues.
    #[pin]
    ids: Mutex<Frames<KVVec<u64>>>,
    /// The number of the last one.
    #[pin]
    invalidates: Mutex<u64>,
    #[pin]
    schedule: Mutex<Schedule>,
    /// Whether the scheduler has something to look at.
    #[pin]
    bell: SpinLock<bool>,
    #[pin]
    rung: CondVar,
    /// Queues by id, for interrupts.
    #[pin]
    known: SpinLock<KVec<Option<Arc<Queue>>>>,
    #[pin]
    members: Mutex<RBTree<u64, Arc<Member>>>,
    #[pin]
    link: Mutex<Option<Link>>,
    #[pin]
    running: Mutex<Option<Running>>,
}

impl Gpu {
    /// For `function`, whose registers are `hardware`.
    pub(crate) fn new(function: &Function, hardware: Arc<dyn Hardware>) -> Result<Arc<Self>> {
        let limits = hardware.limits();
        let schedule = Schedule::new(limits.queues, limits.slots, limits.vmids)?;
        let words = usize::try_from(frames::words(limits.queues.into())).map_err(|_| ENODEV)?;
        let ids = KVVec::from_elem(0, words, GFP_KERNEL)?;
        let ids = Frames::new(ids, limits.queues.into());
        let mut known = KVec::with_capacity(limits.queues as usize, GFP_KERNEL)?;
        for _ in 0..limits.queues {
            known.push(None, GFP_KERNEL)?;
        }
        Arc::pin_init(
            try_pin_init!(Self {
                function: function.clone(),
                hardware,
                limits,
                condition: Atomic::new(0),
                gone: Atomic::new(false),
                coherent: Atomic::new(false),
                uses: Atomic::new(0),
                vram <- Vram::new(limits.vram),
                live <- new_mutex!(true, "pinmap_live"),
                ids <- new_mutex!(ids, "pinmap_ids"),
                invalidates <- new_mutex!(0, "pinmap_invalidates"),
                schedule <- new_mutex!(schedule, "pinmap_schedule"),
                bell <- new_spinlock!(false, "pinmap_bell"),
                rung <- new_condvar!("pinmap_rung"),
                known <- new_spinlock!(known, "pinmap_known"),
                members <- new_mutex!(RBTree::new(), "pinmap_members"),
                link <- new_mutex!(None, "pinmap_link"),
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

    /// `ENODEV` if it is gone. It may be gone a moment later.
    pub(crate) fn check_here(&self) -> Result {
        if self.gone.load(Acquire) || self.condition() != Condition::Running {
            return Err(ENODEV);
        }
        Ok(())
    }

    /// It did not do what it was told to: blocks its DMA, and has it be gone soon. Always fails.
    fn lose(&self) -> Result {
        if self
            .condition
            .cmpxchg(0, 2, kernel::sync::atomic::Full)
            .is_ok()
        {
            let dev: &device::Device = self.function.as_ref();
            dev_err!(dev, "it does not answer: given up\n");
        }
        if self.condition() == Condition::Quiet {
            return Ok(());
        }
        let guardian = self.link.lock().as_ref().map(|link| link.guardian.clone());
        if let Some(guardian) = guardian {
            guardian.cut_off();
        }
        Err(EIO)
    }

    /// Whether its DMA snoops the CPU's caches.
    fn is_coherent(&self) -> bool {
        self.coherent.load(Relaxed)
    }

    fn enter_use(&self) {
        self.uses.add(1, Relaxed);
    }

    fn leave_use(&self) {
        self.uses.fetch_sub(1, Relaxed);
    }

    /// Calls `insert`, unless device memory is not given out any more.
    fn while_live(&self, insert: impl FnOnce() -> u32) -> Option<u32> {
        let live = self.live.lock();
        live.then(insert)
    }

    /// What it has.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The context named `id`.
    pub(crate) fn member(&self, id: u64) -> Result<Arc<Member>> {
        self.check_here()?;
        self.members.lock().get(&id).cloned().ok_or(ENODEV)
    }

    /// GPU_INFO.
    pub(crate) fn describe(&self, info: &mut GpuInfo) {
        self.hardware.describe(info);
        info.out_vram_free = self.vram.free();
    }

    /// GPU_COUNTERS.
    pub(crate) fn count(&self, counters: &mut GpuCounters) {
        self.hardware.count(counters);
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

    fn start(
        this: &Arc<Self>,
        locked: &Locked<'_>,
        domain: &Arc<Domain>,
        guardian: Arc<dyn Guardian>,
    ) -> Result {
        this.coherent.store(domain.is_coherent(), Relaxed);
        // Whatever it did before, it does not know our address space.
        if locked.reset().is_err() {
            this.reset()?;
        }
        let bus = AddressSpace::new(domain.clone(), guardian.clone())?;
        *this.link.lock() = Some(Link { guardian, bus });
        this.function.set_master(true);
        this.schedule.lock().set_epoch(this.hardware.time());
        let interrupts = Handled::new(&this.function, this.limits.vectors, this.clone())?;
        this.hardware.prepare();
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
        if clock::poll(PATIENCE, || self.hardware.is_reset()) {
            Ok(())
        } else {
            Err(EIO)
        }
    }

    fn leave(&self) {
        self.gone.store(true, Release);
        *self.live.lock() = false;
        // Who comes second waits until it is done.
        let mut running = self.running.lock();
        let link = self.link.lock();
        if link.is_none() {
            return;
        }
        drop(link);
        self.ring_bell();
        *running = None;
        if self.condition() == Condition::Running && self.reset().is_ok() {
            self.condition.store(1, Release);
        }
        if self.condition() == Condition::Running {
            let _ = self.lose();
        }
        self.function.set_master(false);
        let link = self.link.lock().take();
        drop(link);
        self.hardware.revoke();
        drop(running);
        self.wake_all();
    }

    /// Wakes all that wait: they see that the device is gone.
    fn wake_all(&self) {
        for id in 0..self.limits.queues {
            self.wake(id);
        }
    }

    /// Wakes those whose queues asked for an interrupt.
    fn complete(&self) {
        self.hardware.acknowledge(Cause::Completion);
        self.hardware.each_completion(&mut |id| self.wake(id));
    }

    fn wake(&self, id: u32) {
        let queue = {
            let known = self.known.lock();
            known.get(id as usize).and_then(Clone::clone)
        };
        if let Some(queue) = queue {
            queue.wake();
        }
    }
}

impl Handler for Gpu {
    fn interrupt(&self, index: u32) {
        match self.hardware.cause(index) {
            Cause::Schedule => self.ring_bell(),
            Cause::Completion => self.complete(),
        }
    }
}

impl Member {
    /// A queue of the context. `ENOENT`: it never was one; `ESTALE`: it was.
    pub(crate) fn find(&self, handle: u64) -> Result<Arc<Queue>> {
        let handles = self.handles.lock();
        if handles.closed {
            return Err(ENODEV);
        }
        match handles.by_handle.get(&handle) {
            Some(named) if named.published => Ok(named.queue.clone()),
            Some(_) => Err(ENOENT),
            None => match handles.counter.absent(handle) {
                Absent::Never => Err(ENOENT),
                Absent::Released => Err(compat::stale()),
            },
        }
    }

    /// Its address space.
    pub(crate) fn vm(&self) -> &Arc<Vm> {
        &self.vm
    }

    /// The part of that for rings and fences.
    pub(crate) fn upper(&self) -> &Arc<AddressSpace> {
        &self.upper
    }

    /// A new doorbell.
    pub(crate) fn doorbell(this: &Arc<Self>, gpu: &Arc<Gpu>) -> Result<Arc<Doorbell>> {
        let doorbell = Doorbell::new(gpu, this)?;
        Ok(Arc::new(doorbell, GFP_KERNEL_ACCOUNT)?)
    }

    /// Gives `queue` a handle that nobody can use yet, and the device the queue.
    pub(crate) fn add(&self, gpu: &Gpu, queue: &Arc<Queue>) -> Result<u64> {
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let mut handles = self.handles.lock();
        if handles.closed {
            return Err(ENODEV);
        }
        let handle = handles.counter.take().ok_or(ENOSPC)?;
        queue.set_handle(handle);
        gpu.add(queue)?;
        handles.by_handle.insert(node.into_node(
            handle,
            Named {
                queue: queue.clone(),
                published: false,
            },
        ));
        Ok(handle)
    }

    /// From now on `handle` can be used. `ENODEV`: the device is gone, and the queue is closed.
    pub(crate) fn publish(&self, handle: u64) -> Result {
        let mut handles = self.handles.lock();
        let named = handles.by_handle.get_mut(&handle).ok_or(ENODEV)?;
        named.published = true;
        Ok(())
    }

    /// Gives up a handle that was not published.
    pub(crate) fn forget(&self, handle: u64) {
        let node = self.handles.lock().by_handle.remove_node(&handle);
        drop(node);
    }

    /// Takes a queue from its handle, to close it.
    pub(crate) fn take(&self, handle: u64) -> Result<Arc<Queue>> {
        self.find(handle)?;
        let node = self.handles.lock().by_handle.remove_node(&handle);
        node.map(|node| node.to_key_value().1.queue)
            .ok_or_else(compat::stale)
    }

    /// Takes any queue; from now on there are no new ones.
    fn take_any(&self) -> Option<Arc<Queue>> {
        let mut handles = self.handles.lock();
        handles.closed = true;
        let handle = handles
            .by_handle
            .cursor_front()
            .map(|cursor| *cursor.current().0)?;
        handles.by_handle.remove(&handle).map(|named| named.queue)
    }
}

/// Ends `queue`: when it returns, the device does nothing for it any more.
pub(crate) fn close(gpu: &Gpu, queue: &Arc<Queue>) {
    gpu.remove(queue);
    queue.close();
}

/// The backend of paged devices.
pub(crate) struct Paged(Arc<Gpu>);

impl Paged {
    pub(crate) fn new(gpu: Arc<Gpu>) -> Self {
        Self(gpu)
    }

    fn member(&self, context: u64) -> Option<Arc<Member>> {
        self.0.members.lock().get(&context).cloned()
    }
}

impl Backend for Paged {
    fn start(
        &self,
        locked: &Locked<'_>,
        domain: &Arc<Domain>,
        guardian: Arc<dyn Guardian>,
    ) -> Result {
        Gpu::start(&self.0, locked, domain, guardian)
    }

    fn open(&self, context: u64) -> Result<Option<Arc<AddressSpace>>> {
        let gpu = &self.0;
        gpu.check_here()?;
        let bus = {
            let link = gpu.link.lock();
            link.as_ref().ok_or(ENODEV)?.bus.clone()
        };
        let vm = Vm::new(gpu)?;
        let (lower, upper) = Vm::spaces(&vm, &bus)?;
        let handles = Handles {
            closed: false,
            counter: Counter::new(),
            by_handle: RBTree::new(),
        };
        let member = Arc::pin_init(
            pin_init!(Member {
                vm,
                upper,
                queues: Atomic::new(0),
                handles <- new_mutex!(handles, "pinmap_queues"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let mut members = gpu.members.lock();
        members.insert(node.into_node(context, member));
        Ok(Some(lower))
    }

    fn gpu(&self) -> Option<&Arc<Gpu>> {
        Some(&self.0)
    }

    fn has_memory(&self) -> bool {
        true
    }

    fn allocate(&self, length: u64) -> Result<LocalMemory> {
        let block = Arc::new(Block::new(&self.0, length)?, GFP_KERNEL_ACCOUNT)?;
        Ok(LocalMemory {
            local: block.clone(),
            pages: block,
        })
    }

    fn claim(&self, _context: u64) -> Result {
        self.0.check_here()
    }

    fn settle(&self, _context: u64, _keep: bool) {}

    fn stop(&self, context: u64) {
        let Some(member) = self.member(context) else {
            return;
        };
        while let Some(queue) = member.take_any() {
            close(&self.0, &queue);
        }
        // If the device does not forget, it is blocked, and nobody can reach anything.
        let _ = self.0.retire(&member.vm);
    }

    fn disown(&self, context: u64) {
        let node = self.0.members.lock().remove_node(&context);
        drop(node);
    }

    fn leave(&self) {
        self.0.leave();
    }

    fn is_in_use(&self) -> bool {
        self.0.uses.load(Relaxed) != 0
    }

    /// Its own reset, by which it was made quiet, leaves in its memory what contexts had there.
    fn needs_reset(&self) -> bool {
        self.0.function.can_reset()
    }

    /// It takes queues, page tables and device memory from everybody.
    fn survives_reset(&self) -> bool {
        false
    }

    fn describe(&self, _context: u64, info: &mut Info) {
        info.out_kind = uapi::KIND_PAGED;
    }

    fn check_view(&self, offset: u64, _length: u64) -> Result<bool> {
        // A BAR, and those are the driver's.
        Err(if offset < view::START {
            compat::unsupported()
        } else {
            EINVAL
        })
    }

    fn fault(&self, _offset: u64, _insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        None
    }

    fn has_vectors(&self) -> bool {
        false
    }

    fn has_vector(&self, _index: u32) -> bool {
        false
    }

    fn set_vector(&self, _index: u32, _eventfd: Option<EventFd>) -> Result {
        Err(compat::unsupported())
    }

    fn can_reset(&self) -> bool {
        false
    }

    fn reset(&self) -> Result {
        Err(compat::unsupported())
    }
}
