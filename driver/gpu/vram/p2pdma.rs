// SPDX-License-Identifier: GPL-2.0
//! Blocks of VRAM with P2PDMA pages, which `O_DIRECT` and io_uring take as buffers: another device
//! then reads or writes VRAM by itself.
//!
//! The pages are made for an *extent* of VRAM when the first such block is in it, and stay until
//! the device leaves, beside the device-private pages of the same VRAM: both are descriptions, and
//! which frames are whose is decided by [`Vram`](super::Vram) alone.
//!
//! I/O keeps its pages longer than the program that began it keeps the block. So a block that came
//! free with I/O under way is *retired*: a worker looks again and again, and gives the frames back
//! when no I/O has them any more. The kernel takes no long-term pins of P2PDMA pages, so that this
//! lasts as long as a request to a disk.

use super::{pages_on_bus, VramBlock};
use crate::{
    gpu::Gpu,
    logic::{pte::LARGE, span::Span, PAGE_SIZE},
    mapping::VramRange,
    sys::{
        mm::pages::Pages,
        pci::{
            p2pdma::{self, P2pdmaPages},
            Function,
        },
        task::{clock, coverage::Covered, work},
    },
    view::DevicePages,
};
use core::mem;
use kernel::{
    impl_has_delayed_work,
    list::{impl_list_arc_safe, impl_list_item, List, ListArc, ListLinks},
    new_delayed_work, new_mutex, new_spinlock,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex, SpinLock, UniqueArc,
    },
    time::msecs_to_jiffies,
    workqueue::{DelayedWork, WorkItem},
};

/// Bytes of an extent: its pages take 2 MiB of the system's memory.
const EXTENT: u64 = 128 << 20;
/// Milliseconds until retired blocks are looked at again: at first, and at most.
const SOON_MS: u32 = 1;
const LATER_MS: u32 = 64;

struct Extents {
    closed: bool,
    /// By number; `None` if the pages could not be had, for as long as the device is bound.
    made: KVec<(u64, Option<P2pdmaPages>)>,
}

#[pin_data]
pub(in crate::gpu) struct P2pdma {
    #[pin]
    extents: Mutex<Extents>,
    retired: Arc<Retired>,
}

impl P2pdma {
    pub(in crate::gpu) fn new() -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(|| {
            let blocks = Blocks {
                list: List::new(),
                pause_ms: SOON_MS,
            };
            let retired = Arc::pin_init(
                pin_init!(Retired {
                    blocks <- new_spinlock!(blocks, "pinmap_retired"),
                    work <- new_delayed_work!("pinmap_retired"),
                }),
                GFP_KERNEL,
            )?;
            let extents = Extents {
                closed: false,
                made: KVec::new(),
            };
            Ok(try_pin_init!(Self {
                extents <- new_mutex!(extents, "pinmap_extents"),
                retired,
            }? Error))
        })
    }
}

impl Gpu {
    /// Fails with `EOPNOTSUPP` if VRAM can have no P2PDMA pages: the kernel makes them for 2 MiB.
    fn check_p2pdma(&self) -> Result {
        let frames = LARGE / PAGE_SIZE;
        let first = self.hardware.memory_frame(0);
        if !cfg!(CONFIG_PCI_P2PDMA) || first % frames != 0 || self.limits.vram % LARGE != 0 {
            return Err(EOPNOTSUPP);
        }
        Ok(())
    }

    /// Makes the P2PDMA pages of the extents that `span` is in, where there are none.
    fn describe_extents(&self, span: Span) -> Result {
        let mut extents = self.p2pdma.extents.lock();
        if extents.closed {
            return Err(ENODEV);
        }
        for number in span.start() / EXTENT..=span.last() / EXTENT {
            if let Some((_, pages)) = extents.made.iter().find(|(other, _)| *other == number) {
                pages.as_ref().ok_or(EBUSY)?;
                continue;
            }
            extents.made.reserve(1, GFP_KERNEL)?;
            let start = number.saturating_mul(EXTENT);
            let length = EXTENT.min(self.limits.vram.saturating_sub(start));
            let extent = Span::new(start, length).map_err(|_| EINVAL)?;
            let pages = match P2pdmaPages::new(&self.function, self.limits.vram_bar, extent) {
                Ok(pages) => Some(pages),
                Err(error) if error == EBUSY => None,
                Err(error) => return Err(error),
            };
            let failed = pages.is_none();
            extents.made.push((number, pages), GFP_KERNEL)?;
            if failed {
                return Err(EBUSY);
            }
        }
        Ok(())
    }

    /// Allocates `bytes` of VRAM for a program, with P2PDMA pages. `EOPNOTSUPP`: it can have none.
    pub(crate) fn allocate_p2pdma(this: &Arc<Self>, bytes: u64) -> Result<Arc<P2pdmaBlock>> {
        this.check_p2pdma()?;
        let retiring = UniqueArc::pin_init(
            try_pin_init!(Retiring {
                block: VramBlock::new(this, bytes)?,
                idle: Atomic::new(0),
                links <- ListLinks::new(),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )?;
        let span = retiring.block.span;
        this.describe_extents(span)?;
        let block = P2pdmaBlock {
            gpu: this.clone(),
            span,
            retiring: Some(ListArc::from(retiring)),
        };
        Ok(Arc::new(block, GFP_KERNEL_ACCOUNT)?)
    }

    /// Takes P2PDMA pages away, if there are any, of a device that is leaving: `zap` unmaps VRAM
    /// from user space. I/O under way goes on: where a bus is being reset or recovers from an
    /// error, it ends only after that.
    pub(crate) fn withdraw_p2pdma(&self, zap: &dyn Fn()) {
        let mut extents = self.p2pdma.extents.lock();
        extents.closed = true;
        let none = extents.made.is_empty();
        drop(extents);
        if !none {
            self.withdraw();
            zap();
        }
    }

    /// Whether no I/O has P2PDMA pages. If there are any, `zap` unmaps VRAM from user space, where
    /// nobody touches it; and I/O gets `patience` nanoseconds to end.
    #[allow(unsafe_code, reason = "who has a page of VRAM is known here alone")]
    pub(crate) fn is_p2pdma_idle(&self, patience: u64, zap: &dyn Fn()) -> bool {
        let extents = self.p2pdma.extents.lock();
        if extents.made.is_empty() {
            return true;
        }
        zap();
        extents.made.iter().all(|(number, pages)| {
            let start = number.saturating_mul(EXTENT);
            let length = EXTENT.min(self.limits.vram.saturating_sub(start));
            let pfn = self.hardware.memory_frame(start);
            pages.is_none()
                || clock::poll(patience, || {
                    // SAFETY: The pages are there as long as `extents` is locked.
                    let idle = unsafe { p2pdma::idle(pfn, length / PAGE_SIZE) };
                    idle == length / PAGE_SIZE
                })
        })
    }

    /// Waits until I/O on P2PDMA pages has ended, which were [taken
    /// away](Self::withdraw_p2pdma), and has the kernel remove them. The function is still bound.
    pub(crate) fn end_p2pdma(&self) {
        let made = mem::take(&mut self.p2pdma.extents.lock().made);
        drop(made);
        // Nobody is retired any more: whoever would be passes `vram_open`.
        Retired::stop(&self.p2pdma.retired);
    }
}

/// A block of VRAM that can be mapped as P2PDMA pages. Dropping it frees it, once no I/O has it.
pub(crate) struct P2pdmaBlock {
    gpu: Arc<Gpu>,
    span: Span,
    /// Always there until it is dropped.
    retiring: Option<ListArc<Retiring>>,
}

/// A block, on its way to be retired.
#[pin_data]
struct Retiring {
    block: VramBlock,
    /// So many of its first pages have been seen in no I/O any more. Used when nobody can map them.
    idle: Atomic<u64>,
    #[pin]
    links: ListLinks,
}

impl_list_arc_safe! {
    impl ListArcSafe<0> for Retiring { untracked; }
}

impl_list_item! {
    impl ListItem<0> for Retiring {
        using ListLinks { self.links };
    }
}

impl Retiring {
    /// Whether no I/O has the block. Nobody has it mapped, and nobody can map it.
    #[allow(unsafe_code, reason = "who has a page of VRAM is known here alone")]
    fn is_idle(&self) -> bool {
        let (gpu, span) = (&self.block.gpu, self.block.span);
        let look = || {
            let done = self.idle.load(Relaxed);
            let left = span.pages().saturating_sub(done);
            let pfn = gpu.hardware.memory_frame(span.start());
            // SAFETY: The block has pages from when it was made until `vram_open` has been closed.
            let idle = unsafe { p2pdma::idle(pfn.saturating_add(done), left) };
            self.idle.store(done.saturating_add(idle), Relaxed);
            idle == left
        };
        // A device that leaves waits for all I/O itself, and gives its memory to nobody else.
        gpu.vram_open.while_open(look).unwrap_or(true)
    }
}

impl Drop for P2pdmaBlock {
    fn drop(&mut self) {
        let Some(retiring) = self.retiring.take() else {
            return;
        };
        if retiring.is_idle() {
            return;
        }
        let gpu = &self.gpu;
        let mut retiring = Some(retiring);
        gpu.vram_open.while_open(|| {
            if let Some(retiring) = retiring.take() {
                Retired::add(&gpu.p2pdma.retired, retiring);
            }
        });
    }
}

impl VramRange for P2pdmaBlock {
    fn span(&self) -> Span {
        self.span
    }

    fn function(&self) -> &Function {
        &self.gpu.function
    }

    fn on_bus(self: Arc<Self>, part: Span) -> Result<Arc<dyn Pages>> {
        pages_on_bus(&self.gpu.clone(), self, part)
    }

    fn shown(self: Arc<Self>) -> Arc<dyn DevicePages> {
        self
    }
}

impl DevicePages for P2pdmaBlock {
    fn insert(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        self.retiring.as_ref()?.block.insert(offset, insert)
    }

    fn is_memory(&self) -> bool {
        true
    }

    fn is_p2pdma(&self) -> bool {
        true
    }
}

struct Blocks {
    list: List<Retiring>,
    /// How long until the worker looks next.
    pause_ms: u32,
}

/// Blocks whose I/O has not ended, and the worker that looks at them. It waits for nothing.
#[pin_data]
struct Retired {
    #[pin]
    blocks: SpinLock<Blocks>,
    #[pin]
    work: DelayedWork<Self>,
}

impl_has_delayed_work! {
    impl HasDelayedWork<Self> for Retired { self.work }
}

impl Retired {
    fn add(this: &Arc<Self>, block: ListArc<Retiring>) {
        let mut blocks = this.blocks.lock();
        blocks.list.push_back(block);
        blocks.pause_ms = SOON_MS;
        drop(blocks);
        // If the worker is queued for later, that is soon enough.
        let _ = work::watching().enqueue_delayed(this.clone(), msecs_to_jiffies(SOON_MS));
    }

    /// Stops the worker for good, and gives back all blocks. Nothing is added any more.
    fn stop(this: &Arc<Self>) {
        work::cancel_delayed(this);
        let list = mem::replace(&mut this.blocks.lock().list, List::new());
        drop(list);
    }
}

impl WorkItem for Retired {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let _covered = Covered::begin();
        let mut list = mem::replace(&mut this.blocks.lock().list, List::new());
        let mut busy = List::new();
        while let Some(block) = list.pop_front() {
            if !block.is_idle() {
                busy.push_back(block);
            }
        }
        let mut blocks = this.blocks.lock();
        blocks.list.push_all_back(&mut busy);
        if blocks.list.is_empty() {
            blocks.pause_ms = SOON_MS;
            return;
        }
        let pause = blocks.pause_ms;
        blocks.pause_ms = pause.saturating_mul(2).min(LATER_MS);
        drop(blocks);
        let pause = msecs_to_jiffies(pause);
        let _ = work::watching().enqueue_delayed(this.clone(), pause);
    }
}
