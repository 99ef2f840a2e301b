// SPDX-License-Identifier: GPL-2.0
//! Pages of processes that are in VRAM: device-private pages.
//!
//! Page N of them is the one at offset N × 4 KiB of VRAM. Its frame is taken from the same bitmap
//! as everything else in VRAM (`vram.rs`), and given back when no process has the page any more,
//! which may be long after the context was closed by which it was moved. So nothing here refers to
//! a context.
//!
//! A page *moves in* when the caller asks for it, and *goes home* when the CPU touches it, when
//! somebody pins it, when the caller asks for it, and when others need the room or the device
//! leaves (`evict.rs`). It may also move to another device (`peers.rs`). Whoever moves a page has
//! it locked and taken from all page tables, those of the device included: see
//! `sys/mm/migrate.rs`. It is entered in a device's page table later, by a fault, as any other
//! page.
//!
//! All pages are small. 2 MiB that moved in as a whole have frames that are neighbours in the same
//! order, so that the device has one entry for them, and they are copied at once.

use super::{
    budget::Owners,
    frame_bits,
    mover::Mover,
    moving::Outcome,
    reserve::{Ages, Reserved, EACH},
    set_bits, zeros, BITS,
};
use crate::{
    address_space::AddressSpace,
    gpu::{mmu::pager::Taker, Gpu},
    logic::{pte::LARGE, span::Span, PAGE_SIZE},
    sys::{
        mm::{
            areas::{Area, Rmap},
            device_private::{tell_lost, Brought, DevicePages, Owner, Token},
            migrate::HomeFault,
            new_page::NewPage,
        },
        task::{
            clock::{self, MILLISECOND},
            killable::{Errand, Killable},
        },
    },
};
use core::ops::Range;
use kernel::{
    device, new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        lock::{mutex::MutexBackend, Guard},
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

/// The descriptions of the pages.
struct Described {
    pages: DevicePages<Gpu>,
    /// The device leaves: nothing moves in any more.
    leaves: bool,
}

#[pin_data]
pub(in crate::gpu) struct Private {
    /// `None`: the device is not bound, or there was no memory for the descriptions.
    #[pin]
    described: Mutex<Option<Described>>,
    /// The frame number of page 0.
    first: Atomic<u64>,
    /// The pages that processes have, a bit for each.
    pub(super) used: KVVec<Atomic<u64>>,
    /// The 2 MiB of VRAM that moved in as a whole, of memory that may have huge pages, and of which
    /// nothing has gone yet: a bit each.
    whole: KVVec<Atomic<u64>>,
    count: Atomic<u64>,
    /// When the device was given them.
    pub(super) ages: Ages,
    /// Owners that have moved them there.
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
    pub(in crate::gpu) fn new(vram: u64) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let used = frame_bits(vram)?;
            let whole = zeros((vram / LARGE).div_ceil(BITS))?;
            let ages = Ages::new(vram)?;
            Ok(try_pin_init!(Self {
                described <- new_mutex!(None, "pinmap_private"),
                first: Atomic::new(u64::MAX),
                used,
                whole,
                count: Atomic::new(0),
                ages,
                owners <- Owners::new(vram),
            }? Error))
        })
    }
}

impl Owner for Gpu {
    fn freed(&self, number: u64) {
        let private = &self.private;
        let block = number / EACH;
        if has_bit(&private.whole, block) {
            set_bits(&private.whole, block, 1, false);
        }
        set_bits(&private.used, number, 1, false);
        private.owners.give(number);
        self.free_frames(number, 1);
        private.count.fetch_sub(1, Relaxed);
    }

    fn bring_home(&self, fault: &HomeFault<'_>) -> Brought {
        let around = if self.is_of_whole(fault) {
            LARGE
        } else {
            AROUND
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
    pub(in crate::gpu) fn begin_private(this: &Arc<Self>, space: &Arc<AddressSpace>) -> Result {
        *this.mover.lock() = Some(Mover::new(space)?);
        this.mark_vram();
        match DevicePages::new(this.limits.vram, this.clone()) {
            Ok(pages) => {
                this.private.first.store(pages.first(), Relaxed);
                let leaves = false;
                *this.private.described.lock() = Some(Described { pages, leaves });
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
    pub(in crate::gpu) fn end_private(&self) {
        if let Some(described) = &mut *self.private.described.lock() {
            described.leaves = true;
        } else {
            // Pages that were lost are not sent home again.
            return self.end_mover();
        }
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
        let described = self.private.described.lock().take();
        let Some(Described { pages, .. }) = described else {
            return;
        };
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

    /// Tells contexts that `taker` took `pages` of `part` of an area.
    pub(super) fn tell_taken(&self, area: &Area<'_>, part: Span, pages: u64, taker: Taker) {
        if pages == 0 {
            return;
        }
        for member in self.members.lock().values() {
            member.vm().was_taken(area, part, pages, taker);
        }
    }

    /// Whether the page of `fault` is one of 2 MiB that moved in as a whole, and are mapped so that
    /// they begin on a boundary.
    fn is_of_whole(&self, fault: &HomeFault<'_>) -> bool {
        let offset = self.offset_of(fault.pfn());
        offset.is_some_and(|offset| {
            let is_there = fault.addr() % LARGE / PAGE_SIZE == offset % LARGE / PAGE_SIZE;
            is_there && has_bit(&self.private.whole, offset / LARGE)
        })
    }

    /// Has all pages go home that can at this moment. Returns whether none is left.
    pub(in crate::gpu) fn send_all_home(&self) -> bool {
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

    /// Returns the name by which the kernel knows the owner of the pages.
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

    /// Where in the reverse map page `number` of VRAM is, if a process has it and maps it.
    pub(super) fn rmap(&self, number: u64) -> Option<Rmap> {
        if !self.is_used(number) {
            return None;
        }
        let described = self.private.described.lock();
        described.as_ref()?.pages.rmap(number)
    }

    /// Begins to take pages of VRAM. If they are all of 2 MiB, a touch of one brings all home where
    /// it `may_be_huge`.
    pub(super) fn begin_taking(&self, may_be_huge: bool) -> Taking<'_> {
        Taking {
            gpu: self,
            may_be_huge,
            described: self.private.described.lock(),
        }
    }

    /// Whether a process has page `number` of VRAM.
    pub(super) fn is_used(&self, number: u64) -> bool {
        has_bit(&self.private.used, number)
    }
}

/// Takes pages of VRAM, of a device that does not leave meanwhile.
pub(super) struct Taking<'a> {
    gpu: &'a Gpu,
    may_be_huge: bool,
    described: Guard<'a, Option<Described>, MutexBackend>,
}

impl Taking<'_> {
    /// Takes a page of VRAM for the memory at `addr`, of what is reserved. Returns its number, too.
    #[allow(unsafe_code, reason = "who has a page of VRAM is known here alone")]
    pub(super) fn take(&self, reserved: &mut Reserved<'_>, addr: u64) -> Option<(u64, NewPage)> {
        let described = self
            .described
            .as_ref()
            .filter(|described| !described.leaves)?;
        let number = reserved.take((addr % LARGE / PAGE_SIZE) as usize)?;
        let private = &self.gpu.private;
        self.gpu.note_given(number.saturating_mul(PAGE_SIZE));
        private.owners.take(number, reserved.owner());
        set_bits(&private.used, number, 1, true);
        private.count.fetch_add(1, Relaxed);
        if let Some(block) = reserved.taken_block().filter(|_| self.may_be_huge) {
            set_bits(&private.whole, block, 1, true);
        }
        // SAFETY: All of VRAM that is reserved has pages. What was reserved is given to nobody else
        // before `freed()` is called for it.
        Some((number, unsafe { described.pages.take(number) }))
    }
}

/// Whether bit `number` of `words` is set.
fn has_bit(words: &[Atomic<u64>], number: u64) -> bool {
    let word = words.get((number / BITS) as usize);
    let word = word.map_or(0, |word| word.load(Relaxed));
    word.wrapping_shr((number % BITS) as u32) & 1 != 0
}
