// SPDX-License-Identifier: GPL-2.0
//! Sleep of the system: what a device has goes to host memory, and comes back.
//!
//! The kernel has frozen all programs by then, but not its own threads. A device *stops* before any
//! device is switched off: its queues leave their slots, faults are not served any more, pages of
//! processes go home, and the disks end what they do with VRAM. What can fail fails here, and the
//! device goes on. Then it *sleeps*: VRAM with page tables and the write indices of the queues are
//! saved, and the device is reset. IOMMU and registered memory stay as they are. Page tables are
//! changed in the saved copy meanwhile, since memory is taken away as at any time.
//!
//! When the system *resumes*, all of that is brought back. The device *goes on* when all devices
//! are awake, since one may work on the memory of another.
//!
//! A device that nobody uses *dozes* in the same way, while programs run: see
//! `sys/pci/runtime.rs`. None of them is in a call then, and those that touch its memory or ring a
//! doorbell wait until it is awake.

use super::{sched::schedule::Halt, vram::Vram, Gpu, PATIENCE};
use crate::{
    logic::image::WORDS,
    sys::{
        pci::mmio::Image,
        task::{self, clock},
    },
};
use core::mem;
use kernel::{alloc::flags::__GFP_NOWARN, device, prelude::*, sync::atomic::Full};

/// Words of an image that are set at a time.
const AT_ONCE: usize = 1 << 18;

/// How far a device is on its way.
#[derive(Default)]
pub(super) enum Sleep {
    #[default]
    Awake,
    /// Nothing is done for queues. Room for what is in VRAM.
    Stopped(Image),
    Asleep,
}

impl Gpu {
    /// Stops the device, unless it is gone. `zap` unmaps VRAM from user space. `EBUSY`: somebody
    /// does not let go of its memory; `ENOMEM`: there is no room for it. Then it goes on.
    pub(crate) fn prepare_sleep(&self, zap: &dyn Fn()) -> Result {
        if matches!(*self.sleep.lock(), Sleep::Asleep) {
            // It has slept since a snapshot of the system was made.
            return Ok(());
        }
        let stopped = self.stop_all(PATIENCE, zap);
        stopped.map_err(|(why, error)| {
            let dev: &device::Device = self.function.as_ref();
            dev_notice!(dev, "does not sleep: {}\n", why);
            error
        })
    }

    /// Stops the device, which is given `patience` nanoseconds for each step, or tells why it
    /// cannot. Then it goes on.
    fn stop_all(&self, patience: u64, zap: &dyn Fn()) -> Result<(), (&'static str, Error)> {
        self.schedule.lock().halt = Halt::Stopping;
        let limit = self.limits.max_run.saturating_add(4 * PATIENCE);
        let _ = clock::poll(limit, || {
            self.wake_scheduler();
            self.is_over() || self.schedule.lock().is_empty()
        });
        self.serves.xchg(false, Full);
        self.interrupt_services();
        let result = self.make_ready(patience, zap);
        if result.is_err() {
            self.go_on();
        }
        result
    }

    fn make_ready(&self, patience: u64, zap: &dyn Fn()) -> Result<(), (&'static str, Error)> {
        if self.check_here().is_err() {
            return Ok(());
        }
        if !self.schedule.lock().is_empty() {
            return Err(("a queue does not stop", EBUSY));
        }
        // A fault waits as long as user space likes, which is frozen.
        if !clock::poll(patience, || !self.is_serving()) {
            return Err(("a page fault waits for a program", EBUSY));
        }
        #[cfg(pinmap_mirror)]
        if !clock::poll(patience, || self.send_all_home()) {
            return Err(("programs' memory does not come home", EBUSY));
        }
        if !self.is_p2pdma_idle(patience, zap) {
            return Err(("other devices read or write its memory", EBUSY));
        }
        let image = self.vram.image();
        let image = image.map_err(|error| ("no room for what is in its memory", error))?;
        *self.sleep.lock() = Sleep::Stopped(image);
        Ok(())
    }

    /// Whether all queues have been idle for `delay` nanoseconds. If so, managed memory goes home.
    pub(crate) fn can_doze(&self, delay: u64) -> bool {
        if self.check_here().is_err() || !self.schedule.lock().is_idle(self, delay) {
            return false;
        }
        // While programs still go on: it takes a while.
        #[cfg(pinmap_mirror)]
        if !self.send_all_home() {
            return false;
        }
        true
    }

    /// Puts the device to sleep while programs run, none of which uses it now. `EBUSY`: it has
    /// something to do after all.
    pub(crate) fn doze(&self) -> Result {
        self.stop_all(0, &|| {}).map_err(|(_, error)| error)?;
        if self.check_here().is_err() || self.schedule.lock().has_work(self) {
            self.go_on();
            return Err(EBUSY);
        }
        self.sleep();
        Ok(())
    }

    /// Saves what the device has, and resets it. It was [stopped](Self::prepare_sleep).
    pub(crate) fn sleep(&self) {
        let mut sleep = self.sleep.lock();
        let image = match mem::replace(&mut *sleep, Sleep::Asleep) {
            Sleep::Stopped(image) => image,
            other => {
                *sleep = other;
                return;
            }
        };
        if self.check_here().is_err() {
            return;
        }
        self.complete();
        self.schedule.lock().save(self);
        self.hardware.save(image);
        // From now on the device has forgotten everything, whoever waits for that.
        if self.reset_to_sleep().is_err() {
            let _ = self.lose();
        }
        self.schedule.lock().forget_vmids();
        self.function.set_master(false);
    }

    /// Brings back what was [saved](Self::sleep).
    pub(crate) fn resume(&self) {
        let mut sleep = self.sleep.lock();
        if !matches!(*sleep, Sleep::Asleep) {
            return;
        }
        *sleep = Sleep::Awake;
        if self.check_here().is_ok() && self.reset().is_err() {
            let _ = self.lose();
        }
        self.hardware.restore();
        if self.check_here().is_err() {
            return;
        }
        self.function.set_master(true);
        self.end_off();
        #[cfg(pinmap_mirror)]
        if let Some(mover) = &mut *self.mover.lock() {
            mover.forget();
        }
        self.hardware.prepare();
        let mut schedule = self.schedule.lock();
        schedule.set_epoch(self.hardware.time());
        schedule.open_doorbells(self);
    }

    /// Has the device go on: after it has [resumed](Self::resume), or where the system does not
    /// sleep after all.
    pub(crate) fn go_on(&self) {
        *self.sleep.lock() = Sleep::Awake;
        let mut schedule = self.schedule.lock();
        schedule.halt = Halt::No;
        schedule.ring_doorbells(self);
        drop(schedule);
        self.serves.xchg(true, Full);
        self.wake_scheduler();
        self.wake_all();
    }
}

impl Vram {
    /// Makes room for all frames that are taken.
    fn image(&self) -> Result<Image> {
        let runs = self.taken()?;
        let pages = runs
            .last()
            .map_or(0, |run| run.before.saturating_add(run.pages));
        let count = usize::try_from(pages.saturating_mul(WORDS)).map_err(|_| ENOMEM)?;
        // There is no way to leave it unset that is safe.
        let mut words = VVec::with_capacity(count, GFP_KERNEL | __GFP_NOWARN)?;
        while words.len() < count {
            let more = count.saturating_sub(words.len()).min(AT_ONCE);
            words.extend_with(more, 0, GFP_KERNEL)?;
            task::cond_resched();
        }
        Image::new(runs, words).ok_or(EINVAL)
    }
}
