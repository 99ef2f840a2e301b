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
//! doorbell wait until it is awake. It may doze for long, so what programs have in VRAM is saved
//! where the kernel can swap it out. In a sleep of the system it cannot, since disks sleep, too.

use super::{hardware::Hardware, sched::schedule::Halt, vram::Taken, Gpu, PATIENCE};
use crate::{
    logic::{
        image::{Run, WORDS},
        PAGE_SIZE,
    },
    sys::{
        mm::shmem::Shmem,
        pci::mmio::Image,
        task::{
            self,
            clock::{self, MILLISECOND},
        },
    },
    uapi::pinmap_gpu_counters,
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
    /// Nothing is done for queues. Room for what is in VRAM, and what is saved already.
    Stopped(Image, Option<Saved>),
    Asleep(Option<Saved>),
}

/// A copy of what programs have in VRAM.
pub(super) struct Saved {
    runs: KVVec<Run>,
    memory: Shmem,
}

impl Saved {
    /// Calls `copy` with the offset of each page in VRAM, and its number in `memory`.
    fn each_page(&mut self, mut copy: impl FnMut(&mut Shmem, u64, u64) -> Result) -> Result {
        for run in &self.runs {
            for page in 0..run.pages {
                let offset = run.first.saturating_add(page).saturating_mul(PAGE_SIZE);
                copy(&mut self.memory, offset, run.before.saturating_add(page))?;
                task::cond_resched();
            }
        }
        Ok(())
    }
}

/// The pages of `runs`.
fn pages(runs: &[Run]) -> u64 {
    runs.last()
        .map_or(0, |run| run.before.saturating_add(run.pages))
}

/// Whether programs wait meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hurry {
    No,
    Yes,
}

/// Counters of a device that may forget them in its sleep, so that those who read them see no
/// difference.
#[derive(Default)]
pub(super) struct Counted {
    /// Sum of the counts that were forgotten.
    forgotten: pinmap_gpu_counters,
    /// Counts of the device when it fell asleep.
    before: pinmap_gpu_counters,
}

impl Counted {
    fn note(&mut self, hardware: &dyn Hardware) {
        hardware.count(&mut self.before);
    }

    /// Finds out whether the device has forgotten what it had counted before.
    fn compare(&mut self, hardware: &dyn Hardware) {
        let mut now = pinmap_gpu_counters::default();
        hardware.count(&mut now);
        let mut is_less = false;
        each(&mut self.before, &now, |before, now| {
            is_less |= now < *before
        });
        if is_less {
            each(&mut self.forgotten, &self.before, |sum, before| {
                *sum = sum.saturating_add(before);
            });
        }
    }

    pub(super) fn add_to(&self, counters: &mut pinmap_gpu_counters) {
        each(counters, &self.forgotten, |sum, more| {
            *sum = sum.saturating_add(more)
        });
    }
}

/// Calls `with` for each counter of both.
fn each(
    one: &mut pinmap_gpu_counters,
    other: &pinmap_gpu_counters,
    mut with: impl FnMut(&mut u64, u64),
) {
    with(&mut one.out_tlb_hits, other.out_tlb_hits);
    with(&mut one.out_tlb_misses, other.out_tlb_misses);
    with(&mut one.out_faults, other.out_faults);
    with(&mut one.out_binds, other.out_binds);
    with(&mut one.out_invalidates, other.out_invalidates);
    for (one, other) in one.out_engines.iter_mut().zip(&other.out_engines) {
        with(&mut one.host_read, other.host_read);
        with(&mut one.host_written, other.host_written);
        with(&mut one.vram_read, other.vram_read);
        with(&mut one.vram_written, other.vram_written);
        with(&mut one.packets, other.packets);
        with(&mut one.busy_ns, other.busy_ns);
    }
}

impl Gpu {
    /// Stops the device, unless it is gone. `zap` unmaps VRAM from user space. `EBUSY`: somebody
    /// does not let go of its memory; `ENOMEM`: there is no room for it. Then it goes on.
    pub(crate) fn prepare_sleep(&self, zap: &dyn Fn()) -> Result {
        if matches!(*self.sleep.lock(), Sleep::Asleep(_)) {
            // It has slept since a snapshot of the system was made.
            return Ok(());
        }
        let stopped = self.stop_all(Hurry::No, zap);
        stopped.map_err(|(why, error)| {
            let dev: &device::Device = self.function.as_ref();
            dev_notice!(dev, "does not sleep: {}\n", why);
            error
        })
    }

    /// Stops the device, or tells why it cannot. Then it goes on.
    fn stop_all(&self, hurry: Hurry, zap: &dyn Fn()) -> Result<(), (&'static str, Error)> {
        if !matches!(*self.sleep.lock(), Sleep::Awake) {
            return Err(("it sleeps", EBUSY));
        }
        self.schedule.lock().halt = Halt::Stopping;
        let limit = match hurry {
            Hurry::No => self.limits.max_run.saturating_add(4 * PATIENCE),
            Hurry::Yes => 100 * MILLISECOND,
        };
        let _ = clock::poll(limit, || {
            self.wake_scheduler();
            self.is_over() || self.schedule.lock().is_empty()
        });
        self.serves.xchg(false, Full);
        self.interrupt_services();
        let result = self.make_ready(hurry, zap);
        if result.is_err() {
            self.go_on();
        }
        result
    }

    fn make_ready(&self, hurry: Hurry, zap: &dyn Fn()) -> Result<(), (&'static str, Error)> {
        if self.check_here().is_err() {
            return Ok(());
        }
        if !self.schedule.lock().is_empty() {
            return Err(("a queue does not stop", EBUSY));
        }
        let patience = match hurry {
            Hurry::No => PATIENCE,
            Hurry::Yes => 0,
        };
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
        let save = || -> Result<Sleep> {
            let saved = match hurry {
                Hurry::No => None,
                Hurry::Yes => Some(self.save_blocks()?),
            };
            Ok(Sleep::Stopped(self.image(hurry)?, saved))
        };
        let stopped = save().map_err(|error| ("no room for what is in its memory", error))?;
        *self.sleep.lock() = stopped;
        Ok(())
    }

    /// Saves what programs have in VRAM. `EBUSY`: somebody waits meanwhile.
    fn save_blocks(&self) -> Result<Saved> {
        // Others are not to pay for it. Tables count, too: they are not swapped out.
        if pages(&self.vram.taken(Taken::All)?) > Shmem::room() {
            return Err(ENOMEM);
        }
        let runs = self.vram.taken(Taken::Blocks)?;
        let memory = Shmem::new(pages(&runs).saturating_mul(PAGE_SIZE))?;
        let mut saved = Saved { runs, memory };
        saved.each_page(|memory, offset, number| {
            if self.runtime.is_wanted() {
                return Err(EBUSY);
            }
            memory.write(number, |words| self.hardware.load_page(offset, words))
        })?;
        Ok(saved)
    }

    /// Makes room for all frames of VRAM that are taken, but in a hurry for those that
    /// [`save_blocks`](Self::save_blocks) leaves.
    fn image(&self, hurry: Hurry) -> Result<Image> {
        let runs = self.vram.taken(match hurry {
            Hurry::No => Taken::All,
            Hurry::Yes => Taken::ButBlocks,
        })?;
        let count = usize::try_from(pages(&runs).saturating_mul(WORDS)).map_err(|_| ENOMEM)?;
        // There is no way to leave it unset that is safe.
        let mut words = VVec::with_capacity(count, GFP_KERNEL | __GFP_NOWARN)?;
        while words.len() < count {
            if hurry == Hurry::Yes && self.runtime.is_wanted() {
                return Err(EBUSY);
            }
            let more = count.saturating_sub(words.len()).min(AT_ONCE);
            words.extend_with(more, 0, GFP_KERNEL)?;
            task::cond_resched();
        }
        Image::new(runs, words).ok_or(EINVAL)
    }

    /// Whether all queues have been idle for `delay` nanoseconds. If so, managed memory goes home.
    pub(crate) fn can_doze(&self, delay: u64) -> bool {
        let is_idle = || self.check_here().is_ok() && self.schedule.lock().is_idle(self, delay);
        if !is_idle() {
            return false;
        }
        // While programs still go on: it takes a while.
        #[cfg(pinmap_mirror)]
        if !self.send_all_home() || !is_idle() {
            return false;
        }
        true
    }

    /// Puts the device to sleep while programs run, none of which uses it now. `EBUSY`: it has
    /// something to do after all.
    pub(crate) fn doze(&self) -> Result {
        // Doorbells may have been rung until now.
        if !self.schedule.lock().is_idle(self, 0) {
            return Err(EBUSY);
        }
        let stopped = self.stop_all(Hurry::Yes, &|| {});
        stopped.map_err(|(_, error)| error)?;
        if self.check_here().is_err()
            || self.schedule.lock().has_work(self)
            || self.runtime.is_wanted()
        {
            self.go_on();
            return Err(EBUSY);
        }
        self.sleep();
        Ok(())
    }

    /// Whether the device is asleep: it was reset, and must not be reached.
    pub(super) fn is_asleep(&self) -> bool {
        matches!(*self.sleep.lock(), Sleep::Asleep(_))
    }

    /// Saves what the device has, and resets it. It was [stopped](Self::prepare_sleep).
    pub(crate) fn sleep(&self) {
        let mut sleep = self.sleep.lock();
        if self.check_here().is_err() {
            return;
        }
        let image = match mem::take(&mut *sleep) {
            Sleep::Stopped(image, saved) => {
                *sleep = Sleep::Asleep(saved);
                image
            }
            other => {
                *sleep = other;
                return;
            }
        };
        self.complete();
        self.counted.lock().note(&*self.hardware);
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
        let saved = match mem::take(&mut *sleep) {
            Sleep::Asleep(saved) => saved,
            other => {
                *sleep = other;
                return;
            }
        };
        if self.check_here().is_ok() && self.reset().is_err() {
            let _ = self.lose();
        }
        self.hardware.restore();
        drop(sleep);
        if saved.is_some_and(|saved| self.restore_blocks(saved).is_err()) {
            // The swap device has lost what programs have.
            let _ = self.lose();
        }
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
        self.counted.lock().compare(&*self.hardware);
        let mut schedule = self.schedule.lock();
        schedule.set_epoch(self.hardware.time());
        schedule.open_doorbells(self);
    }

    /// Brings back what programs have in VRAM, and lets go of what is saved on the way.
    fn restore_blocks(&self, mut saved: Saved) -> Result {
        saved.each_page(|memory, offset, number| loop {
            self.check_here()?;
            match memory.take(number, |words| self.hardware.store_page(offset, words)) {
                // A program that is being killed for memory wakes the device, too.
                Err(error) if error == ENOMEM => clock::rest(10 * MILLISECOND),
                done => return done,
            }
        })?;
        self.hardware.order();
        Ok(())
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
