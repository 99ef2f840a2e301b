// SPDX-License-Identifier: GPL-2.0
//! Flat devices: any PCI function, driven from user space. One context owns it.
//!
//! Locks, outermost first: `vectors`, `owner`. `access` is a leaf.

use super::Backend;
use crate::{
    logic::{span::Span, PAGE_SHIFT, PAGE_SIZE},
    sys::{
        compat,
        eventfd::EventFd,
        gate::Gate,
        irq_eventfd::Vectors,
        pci::{Bar, Function},
        uapi::{self, pinmap_info},
    },
};
use kernel::{new_mutex, prelude::*, sync::Mutex};

/// Bits of a file offset that are an offset into a BAR; the bits above are its number.
const BAR_SHIFT: u32 = 40;

#[derive(Default)]
struct Owner {
    context: Option<u64>,
    /// Calls of it that are not settled yet.
    pending: u32,
    /// One of its calls has succeeded.
    kept: bool,
    /// Somebody has used it since it was reset last.
    used: bool,
    /// It has no owner, and is being reset for the next one.
    cleaning: bool,
    /// It is being taken from its owner.
    stopped: bool,
    gone: bool,
}

impl Owner {
    /// Whether `context` is it, or may become it.
    fn check(&self, context: u64) -> Result {
        if self.gone {
            return Err(ENODEV);
        }
        if self.cleaning || self.context.is_some_and(|other| other != context) {
            return Err(EBUSY);
        }
        Ok(())
    }
}

/// Whether device memory may be given out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Open,
    /// Not while it is being reset: it would answer nothing, which kills some machines.
    Resetting,
    Gone,
}

/// A function.
#[pin_data]
pub(super) struct Flat {
    function: Function,
    bars: [Bar; uapi::PINMAP_NR_BARS as usize],
    /// Vectors that it has; asked once, since a function that is gone answers nonsense.
    nr_vectors: u32,
    #[pin]
    owner: Mutex<Owner>,
    #[pin]
    vectors: Mutex<Option<Vectors>>,
    /// Held while a page of device memory is given out.
    #[pin]
    access: Mutex<Access>,
    /// Closed while it is being reset.
    answering: Gate,
}

/// The pages of `bar` with the MSI-X table or its pending bits, as offsets into it.
fn hole(bar: &Bar) -> Option<Span> {
    let msix = bar.msix?;
    let start = msix.start() & !(PAGE_SIZE - 1);
    Span::from_bounds(start, msix.last() | (PAGE_SIZE - 1))
}

impl Flat {
    pub(super) fn new(function: &Function) -> impl PinInit<Self, Error> + '_ {
        let mut bars = [Bar::default(); uapi::PINMAP_NR_BARS as usize];
        for (index, bar) in (0..).zip(&mut bars) {
            *bar = function.bar(index);
            if bar.length >> BAR_SHIFT != 0 {
                bar.flags &= !uapi::PINMAP_BAR_MMAP; // Its offsets would run into the next one's.
            }
        }
        try_pin_init!(Self {
            function: function.clone(),
            bars,
            nr_vectors: function.vectors(),
            owner <- new_mutex!(Owner::default(), "pinmap_owner"),
            vectors <- new_mutex!(None, "pinmap_vectors"),
            access <- new_mutex!(Access::Open, "pinmap_access"),
            answering: Gate::new(),
        }? Error)
    }

    /// The BAR that a file offset names, and the offset into it.
    fn locate(&self, offset: u64) -> Result<(&Bar, u64)> {
        let index = usize::try_from(offset >> BAR_SHIFT).map_err(|_| EINVAL)?;
        let bar = self
            .bars
            .get(index)
            .filter(|bar| bar.length != 0)
            .ok_or(EINVAL)?;
        Ok((bar, offset & ((1 << BAR_SHIFT) - 1)))
    }

    fn set_access(&self, access: Access) {
        let mut now = self.access.lock();
        if *now == Access::Gone {
            return;
        }
        *now = access;
        if access == Access::Resetting {
            self.answering.close();
        } else {
            self.answering.open();
        }
    }

    /// Ends what the last owner began. Nobody can claim it meanwhile, and as long as `_vectors` is locked,
    /// it is ours: [`leave`](Backend::leave) waits for that lock.
    fn clean(&self, _vectors: &Option<Vectors>) -> Result {
        self.function.reset()?;
        self.owner.lock().used = false;
        Ok(())
    }
}

impl Backend for Flat {
    fn claim(&self, context: u64) -> Result {
        let mut owner = self.owner.lock();
        owner.check(context)?;
        if owner.context.is_none() && owner.used && self.function.can_reset() {
            // It could not be reset when its last owner went.
            owner.cleaning = true;
            drop(owner);
            let vectors = self.vectors.lock();
            let is_gone = self.owner.lock().gone;
            let result = if is_gone {
                Err(ENODEV)
            } else {
                self.clean(&vectors)
            };
            drop(vectors);
            owner = self.owner.lock();
            owner.cleaning = false;
            if owner.gone {
                return Err(ENODEV);
            }
            result.map_err(|_| EBUSY)?;
        }
        // Nobody else had a chance while it was cleaned.
        if owner.context.is_none() {
            owner.context = Some(context);
            self.function.set_master(true);
        }
        owner.pending = owner.pending.saturating_add(1);
        Ok(())
    }

    fn check_claim(&self, context: u64) -> Result {
        self.owner.lock().check(context)
    }

    fn settle(&self, context: u64, keep: bool) {
        let mut owner = self.owner.lock();
        if owner.context != Some(context) {
            return;
        }
        owner.pending = owner.pending.saturating_sub(1);
        owner.kept |= keep;
        owner.used |= keep;
        if !owner.kept && owner.pending == 0 {
            self.function.set_master(false);
            owner.context = None;
        }
    }

    fn stop(&self, context: u64) {
        let mut owner = self.owner.lock();
        if owner.context == Some(context) {
            owner.stopped = true;
            self.function.set_master(false);
        }
    }

    fn disown(&self, context: u64) {
        if !self.is_owner(context) {
            return;
        }
        let mut vectors = self.vectors.lock();
        *vectors = None;
        // Still with an owner, so that nobody claims it before it is reset; and still ours, since unbinding
        // waits until all contexts have ended.
        if self.needs_reset() {
            // It fails if somebody has the device lock: who claims or unbinds it next tries again.
            let _ = self.clean(&vectors);
        }
        drop(vectors);
        let mut owner = self.owner.lock();
        *owner = Owner {
            gone: owner.gone,
            used: owner.used,
            ..Owner::default()
        };
    }

    fn leave(&self) {
        self.owner.lock().gone = true;
        self.function.set_master(false);
        self.set_access(Access::Gone);
        // Whoever was under way has finished when this lock is free.
        drop(self.vectors.lock());
    }

    fn is_in_use(&self) -> bool {
        self.owner.lock().context.is_some()
    }

    fn is_owner(&self, context: u64) -> bool {
        self.owner.lock().context == Some(context)
    }

    fn needs_reset(&self) -> bool {
        self.owner.lock().used && self.function.can_reset()
    }

    fn survives_reset(&self) -> bool {
        true
    }

    fn before_reset(&self) {
        self.set_access(Access::Resetting);
    }

    fn after_reset(&self) {
        let owner = self.owner.lock();
        // The PCI core has restored what was there before; somebody may have gone meanwhile.
        self.function
            .set_master(owner.context.is_some() && !owner.stopped && !owner.gone);
        drop(owner);
        self.set_access(Access::Open);
    }

    fn describe(&self, context: u64, info: &mut pinmap_info) {
        info.out_kind = uapi::PINMAP_KIND_FLAT;
        info.out_nr_vectors = self.nr_vectors;
        if self.function.can_reset() {
            info.out_flags |= uapi::PINMAP_INFO_RESET;
        }
        let owner = self.owner.lock().context;
        if owner.is_some() {
            info.out_flags |= uapi::PINMAP_INFO_OWNED;
        }
        if owner == Some(context) {
            info.out_flags |= uapi::PINMAP_INFO_OWNER;
        }
        for ((index, bar), out) in (0_u64..).zip(&self.bars).zip(&mut info.out_bars) {
            out.offset = index << BAR_SHIFT;
            out.length = bar.length;
            out.flags = bar.flags;
            if let Some(hole) = hole(bar) {
                out.hole_offset = hole.start();
                out.hole_length = hole.length();
            }
        }
    }

    fn check_view(&self, offset: u64, length: u64) -> Result<bool> {
        let (bar, offset) = self.locate(offset)?;
        let wanted = Span::new(offset, length).map_err(|_| EINVAL)?;
        if wanted.last() >= bar.length || hole(bar).is_some_and(|hole| hole.overlaps(wanted)) {
            return Err(EINVAL);
        }
        if bar.flags & uapi::PINMAP_BAR_MMAP == 0 {
            return Err(compat::unsupported());
        }
        Ok(bar.flags & uapi::PINMAP_BAR_PREFETCHABLE != 0)
    }

    fn fault(&self, offset: u64, insert: &mut dyn FnMut(u64) -> u32) -> Option<u32> {
        let (bar, offset) = self.locate(offset).ok()?;
        let address = bar
            .start
            .checked_add(offset)
            .filter(|_| offset < bar.length)?;
        loop {
            let access = self.access.lock();
            match *access {
                Access::Open => return Some(insert(address >> PAGE_SHIFT)),
                Access::Gone => return None,
                Access::Resetting => {}
            }
            drop(access);
            self.answering.pass().ok()?;
        }
    }

    fn has_vector(&self, index: u32) -> bool {
        index < self.nr_vectors
    }

    fn set_vector(&self, index: u32, eventfd: Option<EventFd>) -> Result {
        let mut vectors = self.vectors.lock();
        // Under the lock, since whoever says that it is gone takes the vectors away afterwards.
        if self.owner.lock().gone {
            return Err(ENODEV);
        }
        match (&mut *vectors, eventfd) {
            (Some(vectors), eventfd) => vectors.set(index, eventfd),
            (None, None) => Ok(()),
            (none, eventfd) => {
                let mut vectors = Vectors::new(&self.function)?;
                vectors.set(index, eventfd)?;
                *none = Some(vectors);
                Ok(())
            }
        }
    }

    fn can_reset(&self) -> bool {
        self.function.can_reset()
    }

    fn reset(&self) -> Result {
        // `leave` waits for this lock: a function that is not ours any more must not be reset.
        let _vectors = self.vectors.lock();
        if self.owner.lock().gone {
            return Err(ENODEV);
        }
        self.function.reset()
    }
}
