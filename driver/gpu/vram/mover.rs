// SPDX-License-Identifier: GPL-2.0
//! Copies of pages between host memory and VRAM, by an engine that works for the driver alone. In
//! place of the host's memory, the VRAM of another device can be read (`peers.rs`).
//!
//! The engine uses physical addresses: offsets into VRAM, and addresses on the bus, which are those
//! of a *window* (`copy_window.rs`). No context takes part, and so pages can be brought home after
//! the context that moved them was closed.
//!
//! While windows can be used, the IOMMU's page table cannot be replaced. So they *rest* when a
//! context ends, if no other one manages memory and no page of a process is in VRAM.
//!
//! There are several windows, so that the engine has the next copies while the CPU takes care of
//! the last ones. A task that has a window does not wait for another one: it waits for its copies
//! first, which end whatever others do.
//!
//! The engine never waits for a program, so a CPU fault may wait for it. If it does not do what it
//! was told, it is reset, and a page that is to come home is copied by the CPU. It tells that a
//! copy has failed, but not which: then all that were submitted and not looked at yet have failed.
//!
//! A device that was reset behind the driver's back has zeros where pages were, and one that was
//! removed shows nothing of them. So a page of VRAM has a *mark*, which is looked at after each
//! copy: without it, what was copied is not what the pages had.

use super::{
    copy_window::{Bus, CopyWindow, WINDOWS},
    peers::Reading,
};
use crate::{
    address_space::AddressSpace,
    gpu::{
        hardware::{PageCopy, Way},
        Gpu, PATIENCE,
    },
    logic::{block::PAGES, pte::LARGE, PAGE_SIZE},
    sys::{iommu::Lender, task::clock},
};
use core::mem;
use kernel::{
    prelude::*,
    sync::{atomic::Relaxed, Arc},
};

/// The mark. A VRAM that has lost its contents is of zeros, or shows ones.
const MARK: u64 = 0x7069_6e6d_6170_2e2e;

/// Some pages to be copied, contiguous in both memories.
///
/// # Invariants
///
/// Where there is a source (not in [`Jobs::zeros`]), the pages of the host stay, and nobody else
/// uses their contents, until the copies have ended that they are given to. So does the peer, and
/// its page.
#[derive(Clone, Copy)]
pub(super) struct Move {
    /// Frame number of the first page of the host, or of the peer on the bus.
    pub(super) pfn: u64,
    /// Whether they are pages of a peer, to be read.
    pub(super) peer: bool,
    /// Offset into VRAM.
    pub(super) offset: u64,
    pub(super) pages: u64,
}

/// The engine, as long as the device is bound.
pub(in crate::gpu) struct Mover {
    bus: Arc<Bus>,
    /// The windows that are not in use.
    windows: KVec<CopyWindow>,
    /// The lender of the windows; none while they rest.
    lender: Option<Lender>,
    /// Contexts that manage memory.
    users: usize,
    /// The number of the last copy.
    sequence: u64,
    /// So many copies can be submitted at least.
    room: u64,
    /// The engine has not done what it was told to, and is told nothing any more.
    broken: bool,
}

/// A context that manages memory. While it exists the windows do not rest.
pub(crate) struct MoverUse(Arc<Gpu>);

impl MoverUse {
    /// Wakes the windows of a device whose addresses on the bus are in `space`. Sleeps; not called
    /// with the mmap lock held.
    pub(crate) fn begin(gpu: &Arc<Gpu>, space: &Arc<AddressSpace>) -> Result<Self> {
        let bus = gpu.mover.lock().as_ref().map(|mover| mover.bus.clone());
        let lender = bus.map(|bus| CopyWindow::lender(space, &bus)).transpose()?;
        let mut guard = gpu.mover.lock();
        // Without an engine nothing moves.
        if let Some(mover) = &mut *guard {
            mover.users = mover.users.saturating_add(1);
            if mover.lender.is_none() {
                mover.lender = lender;
            }
        }
        drop(guard);
        Ok(Self(gpu.clone()))
    }
}

impl Drop for MoverUse {
    fn drop(&mut self) {
        if let Some(mover) = &mut *self.0.mover.lock() {
            mover.users = mover.users.saturating_sub(1);
        }
    }
}

impl Mover {
    /// Makes the windows, which rest. Sleeps.
    pub(super) fn new(space: &Arc<AddressSpace>) -> Result<Self> {
        let windows = CopyWindow::all(space)?;
        let first = windows.first().ok_or(EINVAL)?;
        Ok(Self {
            bus: first.bus.clone(),
            windows,
            lender: None,
            users: 0,
            sequence: 0,
            room: 0,
            broken: false,
        })
    }

    /// Fails with `EIO` if there is no engine that does what it is told.
    fn that_works(mover: &mut Option<Self>) -> Result<&mut Self> {
        mover.as_mut().filter(|mover| !mover.broken).ok_or(EIO)
    }

    /// Gives up what the engine was told: it is not at it any more.
    pub(in crate::gpu) fn forget(&mut self) {
        self.bus.failed.store(self.sequence, Relaxed);
        self.bus.given_up.store(self.sequence, Relaxed);
        self.room = 0;
    }

    /// Whether no window is in use.
    fn is_idle(&self) -> bool {
        self.windows.len() == WINDOWS
    }
}

/// Joins neighbours of which `is_next` says that the second continues the first. Returns each with
/// its place in the window.
pub(super) fn joined(
    moves: &[Move],
    is_next: fn(Move, Move) -> bool,
) -> impl Iterator<Item = (u64, Move)> + use<'_> {
    let mut rest = moves.iter().copied().peekable();
    let mut at = 0_u64;
    core::iter::from_fn(move || {
        let mut all = rest.next()?;
        let first = at;
        while let Some(next) = rest.next_if(|&next| is_next(all, next)) {
            all.pages = all.pages.saturating_add(next.pages);
        }
        at = at.saturating_add(all.pages);
        Some((first, all))
    })
}

/// Whether `next` continues `this` on the bus.
pub(super) fn on_bus(this: Move, next: Move) -> bool {
    this.peer == next.peer && this.pfn.saturating_add(this.pages) == next.pfn
}

/// Whether `next` continues `this` in VRAM.
fn in_vram(this: Move, next: Move) -> bool {
    let bytes = this.pages.saturating_mul(PAGE_SIZE);
    this.offset.saturating_add(bytes) == next.offset
}

impl Gpu {
    /// Marks VRAM, which is new to the driver.
    pub(in crate::gpu) fn mark_vram(&self) {
        self.hardware.store(self.vram.mark(), MARK);
        self.hardware.order();
    }

    /// Fails with `ENODEV` if VRAM has not kept what it had, or cannot be reached any more. The
    /// device is then taken for gone.
    pub(super) fn check_vram(&self) -> Result {
        if self.hardware.load(self.vram.mark()) == MARK {
            return Ok(());
        }
        self.give_up();
        Err(ENODEV)
    }

    /// Takes the device for gone, by a worker, since this may be a page fault.
    fn give_up(&self) {
        if let Some(bus) = &*self.bus.lock() {
            bus.dma_control.clone().schedule_removal();
        }
    }

    /// Has the engine zero pages of VRAM and copy others, from the host to VRAM or back: of each at
    /// most as many as a block has. The caller has them all. If no window is free, it begins when
    /// it is awaited.
    pub(super) fn copy_pages(&self, jobs: Jobs, to_vram: bool) -> Copies<'_> {
        let mut copies = Copies {
            gpu: self,
            jobs,
            to_vram,
            window: None,
            reading: None,
            state: State::Waits,
        };
        copies.begin(false);
        copies
    }

    /// Whether the engine can zero pages of VRAM.
    pub(super) fn can_zero(&self) -> bool {
        self.hardware.can_zero()
    }

    /// Has the engine do no more copies, and waits for those that it does.
    pub(super) fn end_mover(&self) {
        let mut mover = self.mover.lock();
        while mover.as_ref().is_some_and(|mover| !mover.is_idle()) {
            self.window_free.wait(&mut mover);
        }
        let ended = mover.take();
        drop(mover);
        drop(ended);
        self.window_free.notify_all();
    }

    /// Has the windows rest if nobody needs them: the IOMMU's page table can be replaced then.
    /// Those of an engine that does not answer stay as they are.
    pub(crate) fn rest_mover(&self) {
        if let Some(mover) = &mut *self.mover.lock() {
            if mover.users == 0 && mover.is_idle() && !mover.broken && !self.has_private() {
                mover.windows.iter_mut().for_each(CopyWindow::rest);
                mover.lender = None;
            }
        }
    }

    fn submit(&self, mover: &mut Mover, way: Way, copy: Move) -> Result {
        if mover.room == 0 {
            let has_room = || {
                mover.room = self.hardware.copy_room();
                self.is_over() || mover.room > 0
            };
            if !clock::poll(PATIENCE, has_room) {
                return self.end_copies(mover);
            }
        }
        mover.room = mover.room.saturating_sub(1);
        mover.sequence = mover.sequence.saturating_add(1);
        let copy = PageCopy {
            way,
            vram: copy.offset,
            bytes: copy.pages.saturating_mul(PAGE_SIZE),
        };
        self.hardware.copy(copy, mover.sequence);
        Ok(())
    }

    /// Waits for the copies up to `sequence`, for [`PATIENCE`] after each. Returns whether they
    /// have ended, one way or the other.
    fn await_copies(&self, bus: &Bus, sequence: u64) -> bool {
        let is_given_up = || bus.given_up.load(Relaxed) >= sequence || self.is_over();
        let mut last = None;
        loop {
            let mut now = None;
            let is_new = clock::poll_closely(PATIENCE, || {
                now = self.hardware.copied();
                is_given_up() || now != last && now.is_some_and(|now| now >= sequence)
            });
            if is_new {
                return true;
            }
            if now == last {
                return false;
            }
            last = now;
        }
    }

    /// Makes the engine give up all copies that it was told to make. Returns `EIO`. If it does not
    /// answer, it is not used again, and the device is taken for gone.
    fn end_copies(&self, mover: &mut Mover) -> Result {
        let has_ended = || {
            let done = self.hardware.copied();
            let has_ended = self.is_over() || done.is_none_or(|done| done >= mover.sequence);
            if !has_ended {
                // Each reset ends one copy.
                self.hardware.reset_copier();
            }
            has_ended
        };
        if !mover.broken && !clock::poll(PATIENCE, has_ended) {
            mover.broken = true;
            // It may still write to VRAM that comes free.
            self.note_hasty();
            self.give_up();
        }
        let _ = self.hardware.take_copy_error();
        mover.forget();
        Err(EIO)
    }
}

pub(super) struct Jobs {
    /// Pages of VRAM to be zeroed. Their `pfn` counts for nothing.
    pub(super) zeros: KVec<Move>,
    /// Pages to be copied, thereafter.
    pub(super) moves: KVec<Move>,
    /// The peer that pages are read from.
    pub(super) peer: Option<Arc<Gpu>>,
}

impl Jobs {
    /// No jobs, with room for those of a block.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            zeros: KVec::with_capacity(PAGES, GFP_KERNEL)?,
            moves: KVec::with_capacity(PAGES, GFP_KERNEL)?,
            peer: None,
        })
    }

    pub(super) fn clear(&mut self) {
        self.zeros.clear();
        self.moves.clear();
        self.peer = None;
    }

    fn are_none(&self) -> bool {
        self.zeros.is_empty() && self.moves.is_empty()
    }
}

/// How far [`Copies`] are.
#[derive(Clone, Copy)]
enum State {
    /// Until a window is free.
    Waits,
    /// Submitted, up to this number.
    Submitted(u64),
    Ended(Result),
}

/// Copies that the engine makes. The pages are the caller's again when [`wait`](Self::wait)
/// returns, or when this is dropped.
pub(super) struct Copies<'a> {
    gpu: &'a Gpu,
    jobs: Jobs,
    to_vram: bool,
    window: Option<CopyWindow>,
    /// As long as pages of a peer are mapped in the window.
    reading: Option<Reading>,
    state: State,
}

impl Copies<'_> {
    /// Whether it has a window, or needs none any more.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self.state, State::Waits)
    }

    /// Returns the lists, for other jobs.
    pub(super) fn into_jobs(mut self) -> Jobs {
        let _ = self.wait();
        let none = Jobs {
            zeros: KVec::new(),
            moves: KVec::new(),
            peer: None,
        };
        mem::replace(&mut self.jobs, none)
    }

    /// Begins, unless that has been done. With `may_wait`, it waits until a window is free, but not
    /// for ever: the caller has no window, but those who have may wait for a page that the caller
    /// has locked.
    fn begin(&mut self, may_wait: bool) {
        if !matches!(self.state, State::Waits) {
            return;
        }
        if self.jobs.are_none() {
            self.state = State::Ended(Ok(()));
            return;
        }
        let result = match self.take_window(may_wait) {
            Ok(None) => return,
            Ok(Some(window)) => self.submit(window),
            Err(error) => Err(error),
        };
        self.state = match result {
            Ok(last) => State::Submitted(last),
            Err(error) => {
                let _ = self.give_window(false);
                State::Ended(Err(error))
            }
        };
    }

    fn take_window(&self, may_wait: bool) -> Result<Option<CopyWindow>> {
        let take = || {
            let mut guard = self.gpu.mover.lock();
            let mover = Mover::that_works(&mut guard)?;
            let lender = mover.lender.as_ref().ok_or(EIO)?;
            let mut window = mover.windows.pop();
            if let Some(window) = &mut window {
                window.use_lender(lender);
            }
            Ok(window)
        };
        let mut taken = take();
        if may_wait && matches!(taken, Ok(None)) {
            let is_free = clock::poll_closely(PATIENCE, || {
                taken = take();
                !matches!(taken, Ok(None))
            });
            if !is_free {
                return Err(EIO);
            }
        }
        taken
    }

    /// Submits everything. Returns the number of the last copy.
    fn submit(&mut self, window: CopyWindow) -> Result<u64> {
        let window = self.window.insert(window);
        if let Some(peer) = &self.jobs.peer {
            self.reading = Some(Reading::begin(peer)?);
        }
        window.open(&self.jobs.moves, self.to_vram)?;
        let mut guard = self.gpu.mover.lock();
        let mover = Mover::that_works(&mut guard)?;
        let zeros = joined(&self.jobs.zeros, in_vram).map(|(_, zeros)| (Way::Zeros, zeros));
        let copies = joined(&self.jobs.moves, in_vram).map(|(first, copy)| {
            let bus = window.address(first);
            let way = if self.to_vram {
                Way::In(bus)
            } else {
                Way::Home(bus)
            };
            (way, copy)
        });
        for (way, copy) in Iterator::chain(zeros, copies) {
            self.gpu.submit(mover, way, copy)?;
        }
        Ok(mover.sequence)
    }

    /// Waits until everything is done. `EIO`: it did not work; some may be copied, and the engine
    /// does nothing more.
    pub(super) fn wait(&mut self) -> Result {
        self.begin(true);
        let result = match self.state {
            State::Ended(result) => return result,
            State::Waits => Err(EIO),
            State::Submitted(last) => self.await_end(last),
        };
        let closed = self.give_window(result.is_ok());
        let result = result.and(closed);
        self.state = State::Ended(result);
        result
    }

    fn await_end(&self, last: u64) -> Result {
        let gpu = self.gpu;
        let bus = &self.window.as_ref().ok_or(EINVAL)?.bus;
        let has_ended = gpu.await_copies(bus, last);
        let mut guard = gpu.mover.lock();
        let mover = Mover::that_works(&mut guard)?;
        if bus.failed.load(Relaxed) >= last || gpu.is_over() {
            return Err(EIO);
        }
        if !has_ended {
            return gpu.end_copies(mover);
        }
        if !gpu.hardware.is_prepared() {
            gpu.give_up();
            return Err(EIO);
        }
        if gpu.hardware.take_copy_error() != 0 {
            bus.failed.store(mover.sequence, Relaxed);
            return Err(EIO);
        }
        Ok(())
    }

    /// Gives the window back. `copied`: the engine has done everything.
    fn give_window(&mut self, copied: bool) -> Result {
        let Some(mut window) = self.window.take() else {
            return Ok(());
        };
        let closed = window.close(&self.jobs.moves, self.to_vram, copied);
        self.reading = None;
        let mut guard = self.gpu.mover.lock();
        // There is a mover as long as a window is in use.
        if let Some(mover) = &mut *guard {
            let _ = mover.windows.push_within_capacity(window);
        }
        drop(guard);
        self.gpu.window_free.notify_all();
        closed
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}

const _: () = assert!(PAGES as u64 * PAGE_SIZE == LARGE);
