// SPDX-License-Identifier: GPL-2.0
//! The device's own memory: page tables, and what programs allocate.

use super::Gpu;
use crate::{
    logic::{
        frames::{self, Frames},
        pte::LARGE,
        span::Span,
        PAGE_SIZE,
    },
    mapping::Local,
    sys::gup,
    view::DevicePages,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};

/// Bytes zeroed at a time.
const PIECE: u64 = 16 * PAGE_SIZE;

/// A 16th of it is for page tables only: programs that fill the rest do not keep others out.
const TABLES_SHARE: u64 = 16;

/// Frames, and how many of them tables have.
struct Free {
    frames: Frames<KVVec<u64>>,
    tables: u64,
}

/// Which of it is free.
#[pin_data]
pub(super) struct Vram {
    /// Frames that are kept for tables.
    reserve: u64,
    #[pin]
    free: Mutex<Free>,
}

impl Vram {
    /// `bytes`, all free.
    pub(super) fn new(bytes: u64) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let count = bytes / PAGE_SIZE;
            let words = usize::try_from(frames::words(count)).map_err(|_| ENODEV)?;
            let frames = Frames::new(KVVec::from_elem(0, words, GFP_KERNEL)?, count);
            let free = Free { frames, tables: 0 };
            Ok(try_pin_init!(Self {
                reserve: count / TABLES_SHARE,
                free <- new_mutex!(free, "pinmap_vram"),
            }? Error))
        })
    }

    /// Frames that programs can have.
    fn available(&self, free: &Free) -> u64 {
        let kept = self.reserve.saturating_sub(free.tables);
        free.frames.free().saturating_sub(kept)
    }

    /// Bytes that programs can have.
    pub(super) fn free(&self) -> u64 {
        self.available(&self.free.lock()).saturating_mul(PAGE_SIZE)
    }

    /// A page for a table, not zeroed.
    pub(super) fn take_table(&self) -> Result<u64> {
        let mut free = self.free.lock();
        let frame = free.frames.take_top().ok_or(ENOSPC)?;
        free.tables = free.tables.saturating_add(1);
        Ok(frame.saturating_mul(PAGE_SIZE))
    }

    /// Gives a table back.
    pub(super) fn give_table(&self, offset: u64) {
        let mut free = self.free.lock();
        free.frames.give(offset / PAGE_SIZE, 1);
        free.tables = free.tables.saturating_sub(1);
    }

    fn take(&self, bytes: u64) -> Option<u64> {
        let align = if bytes >= LARGE { LARGE / PAGE_SIZE } else { 1 };
        let count = bytes / PAGE_SIZE;
        let mut free = self.free.lock();
        if self.available(&free) < count {
            return None;
        }
        let frame = free.frames.take(count, align)?;
        Some(frame.saturating_mul(PAGE_SIZE))
    }

    fn give(&self, span: Span) {
        let mut free = self.free.lock();
        free.frames.give(span.start() / PAGE_SIZE, span.pages());
    }
}

/// A contiguous piece of it. Dropping it gives it back.
pub(super) struct Block {
    gpu: Arc<Gpu>,
    span: Span,
}

impl Block {
    /// `bytes`, whole pages, zeroed. Sleeps; a fatal signal stops it.
    pub(super) fn new(gpu: &Arc<Gpu>, bytes: u64) -> Result<Self> {
        let offset = gpu.vram.take(bytes).ok_or(ENOSPC)?;
        let span = Span::new(offset, bytes).map_err(|_| EINVAL)?;
        gpu.enter_use();
        let this = Self {
            gpu: gpu.clone(),
            span,
        };
        for done in (0..bytes).step_by(PIECE as usize) {
            if gup::must_die() {
                return Err(EINTR);
            }
            let piece = bytes.saturating_sub(done).min(PIECE);
            gpu.hardware.zero(offset.saturating_add(done), piece);
            gup::breathe();
        }
        gpu.hardware.order();
        Ok(this)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.gpu.vram.give(self.span);
        self.gpu.leave_use();
    }
}

impl Local for Block {
    fn span(&self) -> Span {
        self.span
    }
}

impl DevicePages for Block {
    fn insert(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        let at = self.span.start().checked_add(offset)?;
        if !self.span.contains(at) {
            return None;
        }
        self.gpu
            .while_live(|| insert(self.gpu.hardware.memory_frame(at)))
    }

    fn is_memory(&self) -> bool {
        true
    }
}
