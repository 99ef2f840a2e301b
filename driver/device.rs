// SPDX-License-Identifier: GPL-2.0
//! A PCI function as open files see it.
//!
//! A [`Device`] exists as long as somebody has it open, also after it was unbound; [`bound::Bound`]
//! exists while it is bound. A device is *gone* when it was unbound, or when the driver gave it up:
//! see [`Device::leave`]. From then on all calls fail with `ENODEV`, and a call that returns that
//! has waited until all contexts have lost the device.

#[cfg(not(pinmap_flat))]
use crate::gpu::Gpu;
use crate::{
    address_space::AddressSpace,
    backend::{Backend, Flat, Member},
    context::{Context, Processes},
    event::{EventQueue, EventSlot},
    failure::Failure,
    logic::span::Span,
    mmu::DmaControl,
    stats::{self, Stat, Stats, Totals},
    sys::{
        fs::import::{DmaBuf, Imported},
        iommu::{Attachment, Domain, Reserved},
        mm::vma::Views,
        pci::{runtime::Runtime, Function},
        task,
        task::{
            account::{Account, Charge},
            coverage::Covered,
            passage::Passage,
            work,
        },
    },
    uapi::{self, pinmap_get_totals, pinmap_info, pinmap_reserved},
    view::LoanOffsets,
};
use kernel::{
    device, impl_has_work, new_mutex, new_srcu, new_work,
    prelude::*,
    rbtree::{RBTree, RBTreeNode, RBTreeNodeReservation},
    sync::{
        atomic::{Acquire, Atomic, Relaxed, Release},
        srcu, Arc, Mutex, Srcu,
    },
    workqueue::{Work, WorkItem},
};

mod bound;
mod power;

pub(crate) use bound::Module;

use bound::Common;

/// Contexts of a flat device that a user may have. Those of a paged one need memory of the device,
/// which is shared out.
const MAX_CONTEXTS: u32 = 1024;
/// Contexts whose statistics are added up before others can have the lock of the list.
const AT_ONCE: usize = 64;

/// A function as open files see it.
#[pin_data]
pub(crate) struct Device {
    function: Function,
    group: u32,
    /// Ids and address, read once.
    identity: pinmap_info,
    domain: Arc<Domain>,
    backend: Backend,
    common: Arc<Common>,
    /// Whether the function is asleep, which nobody uses.
    runtime: Arc<Runtime>,
    gone: Atomic<bool>,
    opened: Atomic<u64>,
    loans: LoanOffsets,
    /// The number of contexts, and their faults.
    totals: Arc<Totals>,
    /// Held while all contexts lose the device, which takes as long as they have memory.
    #[pin]
    leaving: Mutex<()>,
    /// The open contexts of the device. Nothing allocates, waits or takes long with the lock held,
    /// because `open()` takes it, and no other misc device can be opened while an `open()` waits.
    #[pin]
    contexts: Mutex<Contexts>,
    /// Areas of user space that show BARs, by context.
    #[pin]
    views: Mutex<RBTree<u64, Views>>,
    /// `None` after unbinding.
    #[pin]
    attachment: Mutex<Option<Attachment>>,
    /// Open while the function is bound, for calls that need it to be.
    #[pin]
    bound: Passage,
    /// Calls that end what would outlive the function, after they have taken it out of the table of
    /// its context: VRAM, which others may have, and what was imported.
    #[pin]
    endings: Srcu,
    /// Whom to tell that the system has slept.
    #[pin]
    resuming: Mutex<Option<(Arc<EventQueue>, EventSlot)>>,
    /// A snapshot of the system was made, which is being written. The device sleeps on: what it
    /// did now would be forgotten, but not by the disks.
    sleeps_on: Atomic<bool>,
    /// Wakes the device where the system goes on though it was to hibernate.
    #[pin]
    waking: Work<Device, 1>,
    /// For [`DmaControl`].
    #[pin]
    work: Work<Device>,
}

/// The contexts of a device by id, and how many each user has.
struct Contexts {
    by_id: RBTree<u64, Arc<Context>>,
    of_user: RBTree<u32, u32>,
}

impl Contexts {
    /// Counts one more of the user `uid`, of whom there may be `allowed`.
    fn count(&mut self, uid: u32, allowed: u32, node: RBTreeNodeReservation<u32, u32>) -> Result {
        match self.of_user.get_mut(&uid) {
            Some(count) if *count >= allowed => return Err(ENOSPC),
            Some(count) => *count = count.saturating_add(1),
            None => drop(self.of_user.insert(node.into_node(uid, 1))),
        }
        Ok(())
    }

    /// Counts one less of the user `uid`. Returns what is not needed any more.
    fn uncount(&mut self, uid: u32) -> Option<RBTreeNode<u32, u32>> {
        let count = self.of_user.get_mut(&uid)?;
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.of_user.remove_node(&uid)
        } else {
            None
        }
    }
}

impl Device {
    fn new(function: &Function, attachment: Attachment, common: Arc<Common>) -> Result<Arc<Self>> {
        let runtime = Arc::new(Runtime::new(function), GFP_KERNEL)?;
        let backend = Backend::choose(function, &runtime)?;
        let mut identity = pinmap_info::default();
        function.identify(&mut identity);
        let totals = Arc::new(Totals::new(), GFP_KERNEL)?;
        let contexts = Contexts {
            by_id: RBTree::new(),
            of_user: RBTree::new(),
        };
        Arc::pin_init(
            try_pin_init!(Self {
                function: function.clone(),
                group: attachment.group().id(),
                identity,
                domain: attachment.domain().clone(),
                backend,
                common,
                runtime,
                gone: Atomic::new(false),
                opened: Atomic::new(0),
                loans: LoanOffsets::new(),
                totals,
                leaving <- new_mutex!((), "pinmap_leaving"),
                contexts <- new_mutex!(contexts, "pinmap_contexts"),
                views <- new_mutex!(RBTree::new(), "pinmap_views"),
                attachment <- new_mutex!(Some(attachment), "pinmap_attachment"),
                bound <- Passage::new(),
                endings <- new_srcu!("pinmap_endings"),
                resuming <- new_mutex!(None, "pinmap_resuming"),
                sleeps_on: Atomic::new(false),
                waking <- new_work!("pinmap_waking"),
                work <- new_work!("pinmap_device"),
            }? Error),
            GFP_KERNEL,
        )
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// The number of contexts, and their faults.
    pub(crate) fn own_totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns the statistics of all contexts, added up now. Those that come or go meanwhile may be
    /// missing; a fatal signal ends it.
    pub(crate) fn totals(&self) -> Totals {
        let sum = self.totals.copy();
        let mut from = 0;
        while !task::fatal_signal_pending() {
            let contexts = self.contexts.lock();
            for _ in 0..AT_ONCE {
                let Some(cursor) = contexts.by_id.cursor_lower_bound(&from) else {
                    return sum;
                };
                let (id, context) = cursor.current();
                sum.include(context.stats().totals());
                from = id.saturating_add(1);
            }
            drop(contexts);
            task::cond_resched();
        }
        sum
    }

    /// The processes that have a device open.
    pub(crate) fn processes(&self) -> &Processes {
        &self.common.processes
    }

    /// The device, by its kind.
    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }

    /// The flat device; `EOPNOTSUPP` if the device is paged.
    pub(crate) fn flat(&self) -> Result<&Flat> {
        self.backend.flat()
    }

    /// The paged device; `EOPNOTSUPP` if the device is flat.
    #[cfg(not(pinmap_flat))]
    pub(crate) fn gpu(&self) -> Result<&Arc<Gpu>> {
        self.backend.gpu()
    }

    /// Fails with `ENODEV` if the device is gone. It may be gone a moment later: publishing checks
    /// again.
    pub(crate) fn check_here(&self) -> Result {
        if self.gone.load(Acquire) {
            Err(ENODEV)
        } else {
            Ok(())
        }
    }

    /// If the device is gone, waits until all contexts have lost it, and it does nothing any more.
    /// Not called with a lock that [`leave`](Self::leave) takes.
    pub(crate) fn await_end(&self) {
        if self.check_here().is_err() {
            drop(self.leaving.lock());
        }
    }

    /// Opens a context for the current task. Leaves the device asleep if it is: no other misc
    /// device can be opened meanwhile.
    pub(crate) fn open(this: &Arc<Self>, views: Views) -> Result<Arc<Context>> {
        this.check_here()?;
        let id = this.opened.fetch_add(1, Relaxed);
        let node = RBTreeNode::new(id, views, GFP_KERNEL_ACCOUNT)?;
        let place = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let user = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let allowed = if this.flat().is_ok() {
            MAX_CONTEXTS
        } else {
            u32::MAX
        };
        let opened = Context::new(id, this.clone()).and_then(|context| {
            let mut contexts = this.contexts.lock();
            // `leave` sets `gone` before it looks for contexts.
            this.check_here()?;
            contexts.count(context.account().uid(), allowed, user)?;
            contexts.by_id.insert(place.into_node(id, context.clone()));
            this.views.lock().insert(node);
            this.totals.add(Stat::Contexts, 0);
            Ok(context.clone())
        });
        if opened.is_err() {
            this.backend.disown(id);
        }
        opened
    }

    /// Makes the statistics of the new context `id`.
    pub(crate) fn stats(&self, id: u64) -> Result<Arc<Stats>> {
        let function = stats::Bdf::of(&self.identity);
        Stats::new(function, id, self.totals.clone())
    }

    /// The contexts by their numbers. Those that come or go meanwhile may be missing: nothing is
    /// locked from one to the next.
    pub(crate) fn all_contexts(&self) -> impl Iterator<Item = Arc<Context>> + '_ {
        let mut from = 0;
        core::iter::from_fn(move || {
            let contexts = self.contexts.lock();
            let context = contexts
                .by_id
                .cursor_lower_bound(&from)?
                .current()
                .1
                .clone();
            from = context.id().saturating_add(1);
            Some(context)
        })
    }

    /// Makes the address space of the new context `id`, for which `account` pays, and its part of a
    /// paged device.
    pub(crate) fn address_space(
        this: &Arc<Self>,
        id: u64,
        account: &Arc<Account>,
    ) -> Result<(Arc<AddressSpace>, Option<Arc<Member>>)> {
        if let Some(own) = this.backend.open(id, account)? {
            return Ok((own.space, Some(own.member)));
        }
        let (domain, payer) = (this.domain.clone(), account.clone());
        let space = AddressSpace::new(domain, this.clone(), Some(payer))?;
        Ok((space, None))
    }

    /// Unmaps the device's memory from user space. The next access faults, and asks for it again.
    fn zap_views(&self) {
        let mut last: Option<&Views> = None;
        let views = self.views.lock();
        for (_, views) in views.iter() {
            // Nearly always all have the device by one inode.
            if !last.is_some_and(|last| last.is_same(views)) {
                views.zap();
            }
            last = Some(views);
        }
    }

    /// Returns an offset for a loan: see [`LoanOffsets::take`].
    pub(crate) fn take_loan_offset(&self, length: u64) -> Result<u64> {
        self.loans.take(length)
    }

    /// Unmaps what shows these offsets of a context's file from user space.
    pub(crate) fn zap_view(&self, context: u64, part: Span) {
        if let Some(views) = self.views.lock().get(&context) {
            views.zap_part(part);
        }
    }

    /// Ends a context whose file is closed.
    pub(crate) fn close(&self, context: &Arc<Context>) {
        let _awake = self.flat().is_err().then(|| self.runtime.wake_now());
        context.tear_down();
        let mut contexts = self.contexts.lock();
        let listed = contexts.by_id.remove_node(&context.id());
        let counted = contexts.uncount(context.account().uid());
        drop(contexts);
        drop((listed, counted));
        let views = self.views.lock().remove_node(&context.id());
        drop(views);
        context.close();
        self.totals.remove(Stat::Contexts, 0);
        if context.keeps_awake() {
            self.let_go();
        }
    }

    /// Begins to end memory that others have of the device, or that came through it: until the
    /// result is dropped, the function stays bound. Called with the lock of the table that has it.
    pub(crate) fn begin_ending(&self) -> srcu::Guard<'_> {
        self.endings.read_lock()
    }

    /// Takes the device from all contexts: it is unbound, or its DMA was blocked. Can be called
    /// again.
    fn leave(&self) {
        let _one_at_a_time = self.leaving.lock();
        self.gone.store(true, Release);
        self.backend.withdraw_p2pdma(&|| self.zap_views());
        self.backend.leave(&self.common.gpus);
        self.zap_views();
        for context in self.all_contexts() {
            context.tear_down();
            context.say_gone();
        }
    }

    /// Replaces the IOMMU's page tables, if nothing is mapped, which frees those that earlier
    /// mappings left. After an error nothing can be mapped until this has succeeded.
    ///
    /// Never called with the mmap lock held.
    pub(crate) fn renew_domain(&self) -> Result {
        task::assert_mmap_unlocked();
        self.backend.rest();
        let attachment = self.attachment.lock();
        attachment.as_ref().map_or(Ok(()), Attachment::renew)
    }

    pub(crate) fn function(&self) -> &Function {
        &self.function
    }

    /// Calls `what` while the function is bound, which waits for the call. `ENODEV`: it is not.
    pub(crate) fn while_bound<T>(
        &self,
        what: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.bound.while_open(what).ok_or(ENODEV)?
    }

    /// Imports a dma-buf of another driver: see [`Imported::new`]. What the kernel keeps for it is
    /// charged to `account`. Called [while the function is bound](Self::while_bound).
    pub(crate) fn import(
        &self,
        dma_buf: DmaBuf,
        account: &Arc<Account>,
    ) -> Result<Arc<Imported>, Failure> {
        // For each page an entry of a scatterlist, and one of a page table.
        let charge = Charge::new(account, dma_buf.pages().div_ceil(64))?;
        let translate = |address| self.attachment.lock().as_ref()?.translate(address);
        Ok(Imported::new(dma_buf, &self.function, charge, translate)?)
    }

    /// Blocks all DMA of the device, for as long as it is bound. Returns `false` if it is not
    /// bound.
    fn block(&self) -> bool {
        let mut attachment = self.attachment.lock();
        let Some(attachment) = &mut *attachment else {
            return false;
        };
        if !attachment.is_blocked() {
            let dev: &device::Device = self.function.as_ref();
            dev_err!(
                dev,
                "its DMA is out of control: blocked until it is unbound\n"
            );
            attachment.block();
        }
        true
    }

    /// Fills in the answer of GET_INFO.
    pub(crate) fn describe(&self, context: &Context, info: &mut pinmap_info) {
        *info = pinmap_info {
            size: info.size,
            ..self.identity
        };
        let aperture = context.space().aperture();
        info.out_aperture_start = aperture.start();
        info.out_aperture_last = aperture.last();
        info.out_page_sizes = self.domain.page_sizes();
        info.out_nr_reserved = self.reserved(context).len() as u32;
        info.out_iommu_group = self.group;
        if self.domain.is_coherent() {
            info.out_flags |= uapi::PINMAP_INFO_COHERENT;
        }
        if self.check_here().is_err() {
            self.await_end();
            info.out_flags |= uapi::PINMAP_INFO_GONE;
        }
        self.backend.describe(context.id(), info);
    }

    /// Fills in the answer of GET_TOTALS, for all contexts.
    pub(crate) fn describe_totals(&self, args: &mut pinmap_get_totals) {
        let totals = self.totals();
        args.out_contexts = totals.of(Stat::Contexts).number as u32;
        totals.describe(args);
    }

    /// The ranges that `context` cannot map.
    fn reserved(&self, context: &Context) -> &[Reserved] {
        if context.space().is_of_the_device() {
            self.domain.reserved()
        } else {
            &[]
        }
    }

    /// Fills in the answer of GET_RESERVED.
    pub(crate) fn describe_reserved(
        &self,
        context: &Context,
        args: &mut pinmap_reserved,
    ) -> Result {
        self.check_here()?;
        let reserved = self
            .reserved(context)
            .get(args.index as usize)
            .ok_or(ENOENT)?;
        args.out_kind = reserved.kind;
        args.out_start = reserved.span.start();
        args.out_last = reserved.span.last();
        Ok(())
    }
}

impl_has_work! {
    impl HasWork<Self> for Device { self.work }
    impl HasWork<Self, 1> for Device { self.waking }
}

impl DmaControl for Device {
    fn schedule_removal(self: Arc<Self>) {
        // Once is enough: it may be queued already.
        let _ = work::guarding().enqueue::<_, 0>(self);
    }

    fn block_dma(self: Arc<Self>) {
        self.block();
        self.schedule_removal();
    }
}

impl WorkItem for Device {
    type Pointer = Arc<Self>;

    /// Blocks the device: which memory it still reaches is not known.
    fn run(this: Arc<Self>) {
        let _covered = Covered::begin();
        // After unbinding the function belongs to another driver.
        if !this.block() {
            return;
        }
        this.leave();
    }
}
