// SPDX-License-Identifier: GPL-2.0
//! Pages of processes that are in VRAM: device-private pages.
//!
//! Page N of them is the one at offset N × 4 KiB of VRAM. Its frame is taken from the same bitmap
//! as everything else in VRAM (`vram.rs`), and given back when no process has the page any more,
//! which may be long after the context was closed by which it was moved. So nothing here refers to
//! a context.
//!
//! A page *moves in* when the caller asks for it, and *goes home* when the CPU touches it, when
//! somebody pins it, when the caller asks for it, and when the device leaves. It may also move to
//! another device (`peers.rs`). Whoever moves a page
//! has it locked and taken from all page tables, those of the device included: see
//! `sys/migrate.rs`. It is entered in a device's page table later, by a fault, as any other page.

use super::{
    budget::Owners,
    mover::Mover,
    moving::Outcome,
    reserve::{Ages, Reserved},
    vram::{frame_bits, set_bits, BITS},
    Gpu,
};
use crate::{
    address_space::AddressSpace,
    logic::{block::PAGES, pte::LARGE, span::Span, PAGE_SIZE},
    sys::{
        clock::{self, MILLISECOND},
        device_private::{tell_lost, Brought, DevicePages, Owner, Token},
        killable::{Errand, Killable},
        migrate::{Area, HomeFault},
        task,
    },
};
use core::ops::Range;
use kernel::{
    device, new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex, UniqueArc,
    },
};

/// Pages that a CPU fault brings home at once: those of 64 KiB around.
const AROUND: u64 = 16 * PAGE_SIZE;
/// Pause before pages that could not go home are tried again.
const PAUSE: u64 = 10 * MILLISECOND;
/// Tries after which it is told that pages could not go home.
const PATIENT_TRIES: u32 = 200;
/// Pause until it is looked again whether somebody has pages that are lost.
const LONG_PAUSE: u64 = 500 * MILLISECOND;

/// The pages.
#[pin_data]
pub(super) struct Private {
    /// `None`: the device is not bound, or leaves, or there was no memory for the descriptions.
    #[pin]
    pages: Mutex<Option<DevicePages<Gpu>>>,
    /// The frame number of page 0.
    first: Atomic<u64>,
    /// The pages that processes have, a bit for each.
    pub(super) used: KVVec<Atomic<u64>>,
    count: Atomic<u64>,
    /// When the device was given them.
    #[pin]
    pub(super) ages: Ages,
    /// Who has moved them there.
    #[pin]
    pub(super) owners: Owners,
}

/// Pages whose contents are lost, and that processes have still.
struct Lost(DevicePages<Gpu>);

impl Lost {
    /// Keeps the descriptions until nobody has a page.
    fn keep(pages: DevicePages<Gpu>) {
        // To drop them would wait, so without memory or a thread they stay for ever.
        let Ok(room) = UniqueArc::<Self>::new_uninit(GFP_KERNEL) else {
            pr_err!("nothing waits for the end of pages that are lost\n");
            return core::mem::forget(pages);
        };
        let lost = Arc::from(room.write(Self(pages)));
        if Killable::start(c"pinmap-lost", lost.clone()).is_err() {
            pr_err!("nothing waits for the end of pages that are lost\n");
            core::mem::forget(lost);
        }
    }
}

impl Errand for Lost {
    fn run(this: &Arc<Self>) {
        // No signal ends this: the pages have owners.
        while this.0.owner().has_private() {
            clock::rest(LONG_PAUSE);
        }
    }
}

impl Private {
    pub(super) fn new(vram: u64) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let used = frame_bits(vram)?;
            Ok(try_pin_init!(Self {
                pages <- new_mutex!(None, "pinmap_private"),
                first: Atomic::new(u64::MAX),
                used,
                count: Atomic::new(0),
                ages <- Ages::new(vram),
                owners <- Owners::new(vram),
            }? Error))
        })
    }
}

impl Owner for Gpu {
    fn freed(&self, first: u64, count: u64) {
        set_bits(&self.private.used, first, count, false);
        self.private.owners.give(first, count);
        self.free_frames(first, count);
        self.private.count.fetch_sub(count, Relaxed);
    }

    fn bring_home(&self, fault: &HomeFault<'_>) -> Brought {
        let around = match (fault.is_huge(), fault.is_alone()) {
            (true, _) => LARGE,
            (_, true) => PAGE_SIZE,
            _ => AROUND,
        };
        let around = Span::new(fault.addr() & !around.wrapping_sub(1), around).ok();
        let part = around.and_then(|around| around.intersection(fault.area()?));
        let Some(part) = part else {
            return Brought::NoMemory;
        };
        let Ok(moving) = self.begin_for(fault, part) else {
            return Brought::NoMemory;
        };
        let begun = clock::now();
        let result = moving.finish();
        if let Ok(Outcome { moved, .. }) = result {
            let ns = clock::now().saturating_sub(begun);
            for member in self.members.lock().values() {
                member.vm().came_home(fault, moved, ns);
            }
        }
        match result {
            // Those around it may have to wait for their own turn.
            Ok(outcome) if outcome.moved == 0 && outcome.no_room != 0 => Brought::NoMemory,
            Ok(_) => Brought::Done,
            Err(error) if error == ENOMEM => Brought::NoMemory,
            Err(_) => {
                tell_lost(&self.function, part);
                Brought::Lost
            }
        }
    }
}

impl Gpu {
    /// Makes descriptions of the pages of VRAM, for a device whose addresses on the bus are in
    /// `space`. Undone by [`end_private`](Self::end_private).
    pub(super) fn begin_private(this: &Arc<Self>, space: &Arc<AddressSpace>) -> Result {
        *this.mover.lock() = Some(Mover::new(space)?);
        this.mark_vram();
        match DevicePages::new(this.limits.vram, this.clone()) {
            Ok(pages) => {
                this.private.first.store(pages.first(), Relaxed);
                *this.private.pages.lock() = Some(pages);
            }
            Err(error) => {
                let dev: &device::Device = this.function.as_ref();
                dev_warn!(dev, "no memory can move to it ({})\n", error.to_errno());
            }
        }
        Ok(())
    }

    /// Has all pages go home, for good. Waits until they are there. If the device does not answer,
    /// the CPU copies them. Those that it cannot reach are lost: whoever touches one gets a SIGBUS.
    pub(super) fn end_private(&self) {
        // Nothing moves in from now on.
        let pages = self.private.pages.lock().take();
        let mut lost = false;
        let dev: &device::Device = self.function.as_ref();
        let mut tries = 0_u32;
        while self.has_private() && !lost {
            let result = self.send_home_all();
            lost = matches!(result, Err(error) if error == ENODEV);
            if self.has_private() && !lost {
                tries = tries.saturating_add(1);
                if tries == PATIENT_TRIES {
                    let bytes = self.private_pages().saturating_mul(PAGE_SIZE);
                    dev_warn!(
                        dev,
                        "{} bytes of programs' memory wait for room at home\n",
                        bytes
                    );
                }
                clock::rest(PAUSE);
            }
        }
        self.end_mover();
        let Some(pages) = pages else { return };
        if self.has_private() {
            let bytes = self.private.count.load(Relaxed).saturating_mul(PAGE_SIZE);
            dev_err!(
                dev,
                "{} bytes of programs' memory are lost with it\n",
                bytes
            );
            Lost::keep(pages);
        }
    }

    /// Tells contexts that another device took `pages` of `part` of an area, which it has `touched`
    /// or its program has moved.
    pub(super) fn tell_taken(&self, area: &Area<'_>, part: Span, pages: u64, touched: bool) {
        if pages == 0 {
            return;
        }
        for member in self.members.lock().values() {
            member.vm().was_taken(area, part, pages, touched);
        }
    }

    /// Has all pages go home that can at this moment. Returns whether none is left.
    pub(crate) fn send_all_home(&self) -> bool {
        let _ = self.send_home_all();
        !self.has_private()
    }

    /// Whether processes have pages in VRAM.
    pub(super) fn has_private(&self) -> bool {
        self.private_pages() != 0
    }

    /// Pages of processes in VRAM.
    pub(super) fn private_pages(&self) -> u64 {
        self.private.count.load(Relaxed)
    }

    /// What the kernel knows the owner of the pages by.
    pub(crate) fn token(&self) -> Token {
        Token::of(self)
    }

    /// Returns the offset into VRAM of the page with frame number `pfn`, if it is there.
    pub(crate) fn offset_of(&self, pfn: u64) -> Option<u64> {
        let number = pfn.checked_sub(self.private.first.load(Relaxed))?;
        let offset = number.checked_mul(PAGE_SIZE)?;
        (offset < self.limits.vram).then_some(offset)
    }

    /// The frame numbers of the pages; none if there are no descriptions of them.
    pub(crate) fn frames(&self) -> Range<u64> {
        let first = self.private.first.load(Relaxed);
        first..first.saturating_add(self.limits.vram / PAGE_SIZE)
    }

    /// Takes a page of VRAM, or 2 MiB of it if `huge`, from what is reserved. Returns its number
    /// and its frame number: it is locked and has one reference.
    pub(super) fn take_page(&self, reserved: &mut Reserved<'_>, huge: bool) -> Option<(u64, u64)> {
        let pages = self.private.pages.lock();
        let pages = pages.as_ref()?;
        let count = if huge { PAGES as u64 } else { 1 };
        let number = reserved.take(count)?;
        self.note_given(number.saturating_mul(PAGE_SIZE));
        self.private.owners.take(number, count, reserved.owner());
        set_bits(&self.private.used, number, count, true);
        self.private.count.fetch_add(count, Relaxed);
        Some((number, pages.take(number, huge)))
    }

    /// Has all pages go home, as far as they can at this moment. `ENODEV`: some cannot be read any
    /// more.
    fn send_home_all(&self) -> Result {
        for block in 0..(self.limits.vram / PAGE_SIZE).div_ceil(PAGES as u64) {
            match self.send_home_block(block) {
                Err(error) if error == ENODEV => return Err(error),
                // The others may have better luck.
                _ => {}
            }
            task::cond_resched();
        }
        Ok(())
    }

    /// Has the pages of 2 MiB of VRAM go home, as far as they can at this moment. Returns how many
    /// did. `ENODEV`: some cannot be read any more.
    pub(super) fn send_home_block(&self, block: u64) -> Result<u64> {
        let first = block.saturating_mul(PAGES as u64);
        let end = self.limits.vram / PAGE_SIZE;
        let base = self.private.first.load(Relaxed);
        let mut pfns = KVec::with_capacity(PAGES, GFP_KERNEL)?;
        for number in (first..end).take(PAGES) {
            if self.is_used(number) {
                let _ = pfns.push_within_capacity(base.saturating_add(number) as usize);
            }
        }
        if pfns.is_empty() {
            return Ok(0);
        }
        let moving = self.begin_pages(&pfns)?;
        Ok(moving.finish()?.moved)
    }

    fn is_used(&self, number: u64) -> bool {
        let word = self.private.used.get((number / BITS) as usize);
        let word = word.map_or(0, |word| word.load(Relaxed));
        word.wrapping_shr((number % BITS) as u32) & 1 != 0
    }
}
