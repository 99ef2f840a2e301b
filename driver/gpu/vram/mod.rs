// SPDX-License-Identifier: GPL-2.0
//! The device's memory: page tables, and what programs allocate.
//!
//! Tables come from the top, blocks of programs from the bottom. A part is reserved for tables, and
//! each context has some of it set aside, so that programs that fill the rest keep no other context
//! from working. The numbers are in `logic/share.rs`.
//!
//! * `private.rs`: pages of processes in it; `moving.rs`: those that are on their way; `mover.rs`,
//!   `copy_window.rs`: copies of them, by the driver's own engine
//! * `reserve.rs`: room for them; `evict.rs`: who has to go home for it; `budget.rs`: how much of
//!   it a context may have
//! * `held.rs`: frames that nobody gets before the device has forgotten them
//! * `peers.rs`: memory of other devices that it can read
//! * `bits.rs`: a bit for each frame, without a lock
//! * `p2pdma.rs`: blocks that drivers of other devices can be given

mod bits;
#[cfg(pinmap_mirror)]
pub(crate) mod budget;
#[cfg(pinmap_mirror)]
pub(in crate::gpu) mod copy_window;
#[cfg(pinmap_mirror)]
pub(in crate::gpu) mod evict;
#[cfg(pinmap_mirror)]
pub(in crate::gpu) mod held;
#[cfg(pinmap_mirror)]
pub(crate) mod mover;
#[cfg(pinmap_mirror)]
pub(crate) mod moving;
pub(in crate::gpu) mod p2pdma;
#[cfg(pinmap_mirror)]
pub(crate) mod peers;
#[cfg(pinmap_mirror)]
pub(crate) mod private;
#[cfg(pinmap_mirror)]
pub(crate) mod reserve;

use crate::{
    dmabuf,
    gpu::Gpu,
    list,
    logic::{
        bitmap::{self, Bitmap},
        image::Run,
        pte::LARGE,
        share::{self, TABLES_EACH},
        span::Span,
        PAGE_SIZE,
    },
    mapping::VramRange,
    sys::{
        mm::pages::Pages,
        pci::{runtime::Runtime, Function},
        task::{self, account::Account, dmem},
    },
    view::DevicePages,
};
use core::mem;
#[cfg(pinmap_mirror)]
use core::ops::Range;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Relaxed},
        lock::{mutex::MutexBackend, Guard},
        Arc, Mutex,
    },
};

use bits::{drain, frame_bits, zeros};
#[cfg(pinmap_mirror)]
use bits::{set_bits, BITS};

/// Bytes zeroed at a time.
const PIECE: u64 = 16 * PAGE_SIZE;

/// A 16th of VRAM is for page tables only.
const TABLES_SHARE: u64 = 16;

/// Frames, and what they are used for.
struct Free {
    frames: Bitmap<KVVec<u64>>,
    /// Frames of what programs have allocated.
    blocks: Bitmap<KVVec<u64>>,
    reserve: u64,
    /// Frames set aside for contexts that are not in use yet.
    unused: u64,
    /// Tables of contexts beyond what is set aside for them.
    beyond: u64,
    /// The users of the contexts that there are, one entry for each context.
    users: KVVec<usize>,
}

impl Free {
    fn use_of(&self) -> share::FrameUse {
        share::FrameUse {
            free: self.frames.free(),
            reserve: self.reserve,
            contexts: self.users.len() as u64,
            unused: self.unused,
            beyond: self.beyond,
        }
    }
}

/// Frames that are taken, by what for.
#[derive(Clone, Copy)]
pub(super) enum Taken {
    All,
    /// By programs, which allocated them.
    Blocks,
    /// For tables, or set aside.
    ButBlocks,
}

#[pin_data]
pub(super) struct Vram {
    #[pin]
    free: Mutex<Free>,
    /// The frames of pages that nobody has any more, a bit for each. Their end comes where no lock
    /// can be taken, so whoever takes the lock next frees them.
    freed: KVVec<Atomic<u64>>,
    /// A bit for each word of `freed` that may have one.
    freed_words: KVVec<Atomic<u64>>,
    any_freed: Atomic<bool>,
    /// The offset of the page that shows whether VRAM keeps what it has. See `mover.rs`.
    mark: u64,
    /// Known to control groups as long as the device is bound.
    #[pin]
    region: Mutex<Option<dmem::Region>>,
}

impl Vram {
    pub(super) fn new(bytes: u64) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let count = bytes / PAGE_SIZE;
            let words = usize::try_from(bitmap::words(count)).map_err(|_| ENODEV)?;
            let mut frames = Bitmap::new(KVVec::from_elem(0, words, GFP_KERNEL)?, count);
            let blocks = Bitmap::new(KVVec::from_elem(0, words, GFP_KERNEL)?, count);
            let freed = frame_bits(bytes)?;
            let freed_words = zeros(bitmap::words(freed.len() as u64))?;
            // Not at the cost of programs.
            let mark = frames.take_top().ok_or(ENODEV)?;
            let free = Free {
                frames,
                blocks,
                reserve: (count / TABLES_SHARE).saturating_sub(1),
                unused: 0,
                beyond: 0,
                users: KVVec::new(),
            };
            Ok(try_pin_init!(Self {
                free <- new_mutex!(free, "pinmap_vram"),
                freed,
                freed_words,
                any_freed: Atomic::new(false),
                mark: mark.saturating_mul(PAGE_SIZE),
                region <- new_mutex!(None, "pinmap_vram_region"),
            }? Error))
        })
    }

    /// Takes the lock, and frees the frames that were given back without it.
    fn lock(&self) -> Guard<'_, Free, MutexBackend> {
        let mut free = self.free.lock();
        if self.any_freed.load(Relaxed) && self.any_freed.xchg(false, Full) {
            let free = &mut *free;
            drain(&self.freed_words, |word, count| {
                let end = word.saturating_add(count) as usize;
                let words = self.freed.get(word as usize..end).unwrap_or_default();
                let before = word.saturating_mul(u64::BITS.into());
                drain(words, |first, count| {
                    free.frames.give(before.saturating_add(first), count);
                });
            });
        }
        free
    }

    /// Finds where programs could have `count` contiguous frames at a multiple of `align` if the
    /// `spare` ones were free, as [`Bitmap::find`] has them: calls `each` for runs of frames, in
    /// each of which they fit. If there is such a place already, too few frames are free in all:
    /// then any frame helps, and the runs are those for a single one. Returns for how many frames
    /// they are, and the alignment.
    #[cfg(pinmap_mirror)]
    pub(super) fn find(
        &self,
        mut count: u64,
        mut align: u64,
        spare: impl Fn(u64) -> u64,
        mut each: impl FnMut(Range<u64>),
    ) -> (u64, u64) {
        let free = self.lock();
        let frames = &free.frames;
        if frames.find(0, count, align, &bitmap::none).is_some() {
            (count, align) = (1, 1);
        }
        let mut from = 0;
        while let Some(first) = frames.find(from, count, align, &spare) {
            from = frames.end(first.saturating_add(count), &spare);
            each(first..from);
        }
        (count, align)
    }

    /// The offset of the page with the mark.
    #[cfg(pinmap_mirror)]
    pub(super) fn mark(&self) -> u64 {
        self.mark
    }

    /// Takes up to `most` single frames for pages of processes. Returns how many, and calls `each`
    /// for them.
    #[cfg(pinmap_mirror)]
    pub(super) fn take_some(&self, most: u64, mut each: impl FnMut(u64)) -> u64 {
        let mut free = self.lock();
        let most = most.min(free.use_of().for_programs());
        for taken in 0..most {
            let Some(frame) = free.frames.take(1, 1) else {
                return taken;
            };
            each(frame);
        }
        most
    }

    /// Gives frames of pages back. From any context.
    #[cfg(pinmap_mirror)]
    pub(super) fn give_frames(&self, first: u64, count: u64) {
        set_bits(&self.freed, first, count, true);
        let word = first / BITS;
        let end = first.saturating_add(count).div_ceil(BITS);
        set_bits(&self.freed_words, word, end.saturating_sub(word), true);
        self.any_freed.xchg(true, Full);
    }

    /// The runs of frames that are taken now, for `of`.
    pub(super) fn taken(&self, of: Taken) -> Result<KVVec<Run>> {
        let mut runs = KVVec::new();
        loop {
            // Room is made without the lock, under which nothing allocates.
            let free = self.lock();
            let others = |index| match of {
                Taken::All => 0,
                Taken::Blocks => !free.blocks.taken_in(index),
                Taken::ButBlocks => free.blocks.taken_in(index),
            };
            let count = free.frames.taken(others).count();
            if count <= runs.capacity() {
                let mut before = 0_u64;
                for (first, pages) in free.frames.taken(others) {
                    let run = Run {
                        first,
                        pages,
                        before,
                    };
                    runs.push_within_capacity(run).map_err(|_| ENOMEM)?;
                    before = before.saturating_add(pages);
                }
                return Ok(runs);
            }
            drop(free);
            runs = KVVec::with_capacity(count, GFP_KERNEL)?;
        }
    }

    /// Bytes that programs can allocate.
    pub(super) fn free(&self) -> u64 {
        let free = self.lock().use_of();
        free.for_programs().saturating_mul(PAGE_SIZE)
    }

    /// Takes `count` contiguous frames at a multiple of `align`. Returns the first.
    pub(super) fn take(&self, count: u64, align: u64) -> Option<u64> {
        let mut free = self.lock();
        if free.use_of().for_programs() < count {
            return None;
        }
        free.frames.take(count, align)
    }

    /// Has control groups limit what programs allocate from now on, or ends that.
    pub(super) fn limit(&self, region: Option<dmem::Region>) {
        let before = mem::replace(&mut *self.region.lock(), region);
        // It waits for others.
        drop(before);
    }

    /// Charges what is about to be allocated to the control group of the caller. `EDQUOT`: it may
    /// not have so much; `ENODEV`: the device is gone.
    fn charge(&self, bytes: u64) -> Result<dmem::Charge> {
        self.region.lock().as_ref().ok_or(ENODEV)?.charge(bytes)
    }

    /// Notes that a program has allocated `span`, until [`give`](Self::give).
    fn note_block(&self, span: Span) {
        let mut free = self.free.lock();
        free.blocks.take_all(span.start() / PAGE_SIZE, span.pages());
    }

    fn give(&self, span: Span) {
        let mut free = self.free.lock();
        let (first, count) = (span.start() / PAGE_SIZE, span.pages());
        free.blocks.give(first, count);
        free.frames.give(first, count);
    }
}

/// A context's share of VRAM for page tables. Dropped when the context has no tables any more.
pub(super) struct Share {
    gpu: Arc<Gpu>,
    account: Arc<Account>,
    /// Number of tables. Changed under the lock of `Vram`.
    tables: Atomic<u64>,
}

impl Share {
    /// Makes the share of a context of `account`. `ENOSPC`: the rest is kept for others.
    pub(super) fn new(gpu: &Arc<Gpu>, account: &Arc<Account>) -> Result<Self> {
        let user = account.user();
        let mut roomy = KVVec::new();
        let mut free = gpu.vram.lock();
        while free.users.len() == free.users.capacity() {
            // Allocated outside of the lock, which programs that map memory take.
            let count = free.users.len().saturating_mul(2).max(16);
            drop(free);
            roomy = KVVec::with_capacity(count, GFP_KERNEL)?;
            free = gpu.vram.lock();
            roomy = list::grow(&mut free.users, roomy)?;
        }
        let others = free.users.iter().filter(|&&other| other == user).count() as u64;
        if !free.use_of().has_context(others) {
            return Err(ENOSPC);
        }
        free.users.push_within_capacity(user).map_err(|_| ENOMEM)?;
        free.unused = free.unused.saturating_add(TABLES_EACH);
        drop(free);
        drop(roomy);
        Ok(Self {
            gpu: gpu.clone(),
            account: account.clone(),
            tables: Atomic::new(0),
        })
    }

    /// Takes a page for a table, which is not zeroed. `ENOSPC`: the rest is kept for others.
    pub(super) fn take_table(&self) -> Result<u64> {
        let mut free = self.gpu.vram.lock();
        let tables = self.tables.load(Relaxed);
        let is_set_aside = tables < TABLES_EACH;
        if !is_set_aside && !free.use_of().has_table() {
            return Err(ENOSPC);
        }
        let frame = free.frames.take_top().ok_or(ENOSPC)?;
        if is_set_aside {
            free.unused = free.unused.saturating_sub(1);
        } else {
            free.beyond = free.beyond.saturating_add(1);
        }
        self.tables.store(tables.saturating_add(1), Relaxed);
        Ok(frame.saturating_mul(PAGE_SIZE))
    }

    /// Fails with `ENOSPC` if `count` more tables cannot be had now: the rest is kept for others.
    pub(super) fn check_tables(&self, count: u64) -> Result {
        let free = self.gpu.vram.lock();
        let left = TABLES_EACH.saturating_sub(self.tables.load(Relaxed));
        if free.use_of().has_tables(count.saturating_sub(left)) {
            Ok(())
        } else {
            Err(ENOSPC)
        }
    }

    pub(super) fn give_table(&self, offset: u64) {
        let mut free = self.gpu.vram.lock();
        free.frames.give(offset / PAGE_SIZE, 1);
        let tables = self.tables.load(Relaxed).saturating_sub(1);
        self.tables.store(tables, Relaxed);
        if tables < TABLES_EACH {
            free.unused = free.unused.saturating_add(1);
        } else {
            free.beyond = free.beyond.saturating_sub(1);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let user = self.account.user();
        let mut free = self.gpu.vram.lock();
        free.unused = free.unused.saturating_sub(TABLES_EACH);
        if let Some(last) = free.users.pop() {
            let place = free.users.iter_mut().find(|other| **other == user);
            if let Some(place) = place.filter(|_| last != user) {
                *place = last;
            }
        }
    }
}

impl Gpu {
    /// Takes VRAM for a program, and returns its offset. What pages of processes have of it is
    /// theirs only until then.
    fn take(&self, bytes: u64) -> Option<u64> {
        let align = if bytes >= LARGE { LARGE / PAGE_SIZE } else { 1 };
        let count = bytes / PAGE_SIZE;
        #[cfg(pinmap_mirror)]
        self.settle();
        let take = || self.vram.take(count, align);
        let taken = take();
        #[cfg(pinmap_mirror)]
        let taken = taken.or_else(|| self.make_room(u64::MAX, count, align, take));
        taken.map(|frame| frame.saturating_mul(PAGE_SIZE))
    }

    /// Allocates `bytes` of VRAM for a program: see [`VramBlock::new`].
    pub(crate) fn allocate(this: &Arc<Self>, bytes: u64) -> Result<Arc<VramBlock>> {
        Ok(Arc::new(VramBlock::new(this, bytes)?, GFP_KERNEL_ACCOUNT)?)
    }
}

/// A contiguous piece of VRAM. Dropping it frees it.
pub(crate) struct VramBlock {
    gpu: Arc<Gpu>,
    span: Span,
    /// Given back after the memory is.
    _charge: dmem::Charge,
}

impl VramBlock {
    /// Allocates `bytes`, whole pages, zeroed. `ENOSPC`: not free in one piece; `EDQUOT`: more than
    /// the control group may have. Sleeps; a fatal signal stops it.
    fn new(gpu: &Arc<Gpu>, bytes: u64) -> Result<Self> {
        let charge = gpu.vram.charge(bytes)?;
        let offset = gpu.take(bytes).ok_or(ENOSPC)?;
        let span = Span::new(offset, bytes).map_err(|_| EINVAL)?;
        let this = Self {
            gpu: gpu.clone(),
            span,
            _charge: charge,
        };
        gpu.vram.note_block(span);
        for done in (0..bytes).step_by(PIECE as usize) {
            if task::fatal_signal_pending() {
                return Err(EINTR);
            }
            let piece = bytes.saturating_sub(done).min(PIECE);
            gpu.hardware.zero(offset.saturating_add(done), piece);
            task::cond_resched();
        }
        gpu.hardware.order();
        Ok(this)
    }
}

impl Drop for VramBlock {
    fn drop(&mut self) {
        // Of a device that is gone, disks may have the memory still, and nobody can be given it.
        if !self.gpu.gone.load(Acquire) {
            self.gpu.vram.give(self.span);
        }
    }
}

impl VramRange for VramBlock {
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

/// `part` of `range`, which is of `gpu`, as other devices see it on the bus.
fn pages_on_bus<R>(gpu: &Gpu, range: Arc<R>, part: Span) -> Result<Arc<dyn Pages>>
where
    R: VramRange + 'static,
{
    let span = range.span();
    if part.last() >= span.length() {
        return Err(EINVAL);
    }
    let start = span.start().saturating_add(part.start());
    let frame = gpu.hardware.memory_frame(start);
    let (bar, offset) = gpu.function.bar_of_frame(frame).ok_or(EOPNOTSUPP)?;
    let part = Span::new(offset, part.length()).map_err(|_| EINVAL)?;
    // Who has it on the bus asks nobody before reaching it.
    let awake = Runtime::wake(gpu.runtime.clone())?;
    dmabuf::pages_of_bar(&gpu.function, bar, part, (range, awake))
}

impl DevicePages for VramBlock {
    fn insert(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        let at = self.span.start().checked_add(offset)?;
        if !self.span.contains(at) {
            return None;
        }
        self.gpu
            .while_vram_open(|| insert(self.gpu.hardware.memory_frame(at)))
    }

    fn insert_huge(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        let at = self.span.start().checked_add(offset)?;
        let huge = Span::new(at, LARGE).ok()?;
        let frame = self.gpu.hardware.memory_frame(at);
        if !self.span.covers(huge) || frame % (LARGE / PAGE_SIZE) != 0 {
            return None;
        }
        self.gpu.while_vram_open(|| insert(frame))
    }

    fn is_memory(&self) -> bool {
        true
    }
}
