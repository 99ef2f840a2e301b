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

/// Which of it is free.
#[pin_data]
pub(super) struct Vram {
    #[pin]
    frames: Mutex<Frames<KVVec<u64>>>,
}

impl Vram {
    /// `bytes`, all free.
    pub(super) fn new(bytes: u64) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let count = bytes / PAGE_SIZE;
            let words = usize::try_from(frames::words(count)).map_err(|_| ENODEV)?;
            let frames = Frames::new(KVVec::from_elem(0, words, GFP_KERNEL)?, count);
            Ok(try_pin_init!(Self {
                frames <- new_mutex!(frames, "pinmap_vram"),
            }? Error))
        })
    }

    /// Bytes that are free.
    pub(super) fn free(&self) -> u64 {
        self.frames.lock().free().saturating_mul(PAGE_SIZE)
    }

    /// A page for a table, not zeroed.
    pub(super) fn take_table(&self) -> Result<u64> {
        let frame = self.frames.lock().take_top().ok_or(ENOSPC)?;
        Ok(frame.saturating_mul(PAGE_SIZE))
    }

    /// Gives whole pages back.
    pub(super) fn give(&self, offset: u64, bytes: u64) {
        let mut frames = self.frames.lock();
        frames.give(offset / PAGE_SIZE, bytes / PAGE_SIZE);
    }

    fn take(&self, bytes: u64) -> Option<u64> {
        let align = if bytes >= LARGE { LARGE / PAGE_SIZE } else { 1 };
        let frame = self.frames.lock().take(bytes / PAGE_SIZE, align)?;
        Some(frame.saturating_mul(PAGE_SIZE))
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
        self.gpu.vram.give(self.span.start(), self.span.length());
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
