// SPDX-License-Identifier: GPL-2.0
//! Frames of VRAM that came free before the device has forgotten who had them.
//!
//! An MMU notifier clears the device's entries and waits until the device has forgotten them; only
//! then are the pages freed. One that must not sleep (the OOM reaper's) cannot wait, and a device
//! may fail to confirm. The IOMMU then protects the host's memory, but it is not in front of VRAM.
//! So from such a *hasty* clear on, frames that come free are held, and given to nobody, until
//! every address space was invalidated after it. The scheduler's thread does that.

use super::{drain, frame_bits, set_bits};
use crate::gpu::Gpu;
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Acquire, Atomic, Full, Relaxed, Release},
        Mutex,
    },
};

#[pin_data]
pub(in crate::gpu) struct Held {
    /// A bit for each.
    frames: KVVec<Atomic<u64>>,
    /// Frames that go when the device has forgotten what was cleared until now.
    settling: KVVec<Atomic<u64>>,
    /// Whether there may be some.
    any: Atomic<bool>,
    /// The number of hasty clears, and up to which of them the device has forgotten everything.
    hasty: Atomic<u64>,
    forgotten: Atomic<u64>,
    #[pin]
    releasing: Mutex<()>,
}

impl Held {
    pub(in crate::gpu) fn new(vram: u64) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let (frames, settling) = (frame_bits(vram)?, frame_bits(vram)?);
            Ok(try_pin_init!(Self {
                frames,
                settling,
                any: Atomic::new(false),
                hasty: Atomic::new(0),
                forgotten: Atomic::new(0),
                releasing <- new_mutex!((), "pinmap_releasing"),
            }? Error))
        })
    }

    /// Whether the device may know something that was cleared hastily.
    fn is_open(&self) -> bool {
        self.forgotten.load(Acquire) != self.hasty.load(Acquire)
    }
}

impl Gpu {
    /// Notes that entries were cleared for which nobody has waited until the device has forgotten
    /// them, before their pages are freed. Does not sleep.
    pub(crate) fn note_hasty(&self) {
        self.held.hasty.fetch_add(1, Full);
        self.wake_scheduler();
    }

    /// Frees frames of pages that nobody has any more. From any context.
    pub(super) fn free_frames(&self, first: u64, count: u64) {
        if self.held.is_open() {
            set_bits(&self.held.frames, first, count, true);
            self.held.any.store(true, Release);
        } else {
            self.vram.give_frames(first, count);
        }
    }

    /// Has the device forget what was cleared hastily, and frees the frames that are held. A device
    /// that does not forget is given up. Sleeps.
    pub(crate) fn settle(&self) {
        let held = &self.held;
        if !held.is_open() && !held.any.load(Relaxed) {
            return;
        }
        let releasing = held.releasing.lock();
        let hasty = held.hasty.load(Acquire);
        held.any.xchg(false, Full);
        drain(&held.frames, |first, count| {
            set_bits(&held.settling, first, count, true);
        });
        // All clears up to this one, and those of the frames that are settling, come before this.
        let members = self.members.lock();
        let result = members
            .values()
            .try_for_each(|member| member.vm().forget(self.limits.addresses));
        drop(members);
        if result.is_err() {
            held.any.store(true, Release);
            let _ = self.lose();
            return;
        }
        drain(&held.settling, |first, count| {
            self.vram.give_frames(first, count)
        });
        held.forgotten.store(hasty, Release);
        drop(releasing);
    }
}
