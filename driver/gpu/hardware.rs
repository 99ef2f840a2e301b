// SPDX-License-Identifier: GPL-2.0
//! What the code for paged devices asks of one of them.

use crate::{
    logic::{
        pte::{Format, Memory},
        span::Span,
    },
    sys::uapi::{pinmap_gpu_counters, pinmap_gpu_info},
};
use kernel::prelude::*;

/// What there is of everything.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) queues: u32,
    pub(crate) slots: u32,
    /// Address spaces; number 0 is not used.
    pub(crate) vmids: u32,
    pub(crate) max_priority: u32,
    /// Bytes of its memory.
    pub(crate) vram: u64,
    /// Addresses that its MMU translates.
    pub(crate) addresses: Span,
    /// How long a packet may run, in nanoseconds.
    pub(crate) max_run: u64,
    /// Interrupt vectors, in the order of [`Cause`].
    pub(crate) vectors: u32,
}

/// What an interrupt is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Queues were executed up to where they ask for an interrupt.
    Completion,
    /// Anything else: who schedules has to look.
    Schedule,
}

/// What a slot does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotState {
    Free,
    Idle,
    /// Has work, and waits for an engine.
    Ready,
    /// An engine holds its packet.
    Running,
    /// For a fence.
    Waiting,
    /// By a fault or an error.
    Stopped,
    Unbinding,
}

/// A queue as it is put into a slot.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) queue: u32,
    pub(crate) vmid: u32,
    /// `PINMAP_QUEUE_` flags.
    pub(crate) classes: u32,
    pub(crate) priority: u32,
    pub(crate) ring: u64,
    /// Binary logarithm of the ring's packets.
    pub(crate) order: u32,
    pub(crate) progress: Progress,
}

/// How far a queue has come.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Packets executed.
    pub(crate) index: u64,
    /// How far the next one has come.
    pub(crate) part: u64,
}

/// Why a queue stopped.
#[derive(Clone, Copy)]
pub(crate) struct Stop {
    /// By an access to memory, rather than by a packet.
    pub(crate) is_fault: bool,
    /// The device's own code.
    pub(crate) code: u32,
    /// A `PINMAP_ACCESS_` value.
    pub(crate) access: u32,
    pub(crate) addr: u64,
    /// Index of the packet.
    pub(crate) index: u64,
}

/// A paged device: registers, and memory. Accesses take effect in the order in which they are made. Once
/// it is revoked or removed, reads give all ones, which the methods answer as they say.
///
/// Each method does what it says and waits for nothing. Slots are used by one caller at a time.
pub(crate) trait Hardware: Send + Sync {
    /// What it has.
    fn limits(&self) -> Limits;

    /// What interrupt vector `index` is about.
    fn cause(&self, index: u32) -> Cause;

    /// Prepares it after a reset: which interrupts it sends, how long packets may run.
    fn prepare(&self);

    /// Begins to reset all of it.
    fn reset(&self);

    /// Whether that is done; a device that is not there never is.
    fn is_reset(&self) -> bool;

    /// Makes no access any more when it returns. Sleeps.
    fn revoke(&self);

    /// Bits of its page-table entries.
    fn format(&self) -> Format;

    /// Loads 8 bytes from its memory.
    fn load(&self, offset: u64) -> u64;

    /// Stores 8 bytes to its memory.
    fn store(&self, offset: u64, value: u64);

    /// Zeroes part of its memory: some pages at a time.
    fn zero(&self, offset: u64, bytes: u64);

    /// What was stored to its memory is there before what is stored from now on.
    fn order(&self);

    /// The page frame of its memory at `offset`.
    fn memory_frame(&self, offset: u64) -> u64;

    /// The page frame of a queue's doorbell.
    fn doorbell_frame(&self, queue: u32) -> u64;

    /// Gives an address space, of which nothing is cached, a page table, or none.
    fn set_root(&self, vmid: u32, table: Option<Memory>);

    /// Submits the removal of what is cached of `span`, as number `sequence`.
    fn invalidate(&self, vmid: u32, span: Span, sequence: u64);

    /// Removals that can be submitted.
    fn invalidate_room(&self) -> u64;

    /// Number of the newest removal that is complete; `None` if it is not there.
    fn invalidated(&self) -> Option<u64>;

    /// Makes a queue that is in no slot begin anew, its doorbell heard.
    fn open_queue(&self, queue: u32);

    /// Its doorbell is not heard any more.
    fn close_queue(&self, queue: u32);

    /// What was last published by its doorbell.
    fn published(&self, queue: u32) -> u64;

    /// Publishes, as a doorbell does.
    fn publish(&self, queue: u32, index: u64);

    /// Forgets what was noted by interrupts for [`Cause`]; to be read anew afterwards.
    fn acknowledge(&self, cause: Cause);

    /// Calls `visit` for the queues that have work and no slot.
    fn each_pending(&self, visit: &mut dyn FnMut(u32));

    /// A queue that has work and no slot is not to be given any.
    fn forget_pending(&self, queue: u32);

    /// Calls `visit` for the queues that asked for an interrupt since the last time.
    fn each_completion(&self, visit: &mut dyn FnMut(u32));

    /// Takes the bitmap of slots that became free or stopped.
    fn take_slot_events(&self) -> u64;

    /// Calls `visit` for the queues that stopped since the last time.
    fn each_fault(&self, visit: &mut dyn FnMut(u32, Stop));

    /// Puts a queue into a free slot. `EIO`: the device refuses.
    fn bind(&self, slot: u32, setup: &Setup) -> Result;

    /// Begins to take the queue out of a slot, behind the packet that runs.
    fn unbind(&self, slot: u32);

    /// What a slot does; `None` if the device is not there.
    fn slot_state(&self, slot: u32) -> Option<SlotState>;

    /// Since when, by the device's clock.
    fn slot_since(&self, slot: u32) -> u64;

    /// How far the queue in it, or last in it, has come.
    fn slot_progress(&self, slot: u32) -> Progress;

    /// Why it stopped, as far as the slot knows.
    fn slot_stop(&self, slot: u32) -> Stop;

    /// Whether an engine holds its packet, or that is being taken out of an engine.
    fn is_held(&self, slot: u32) -> bool;

    /// Begins to reset the engine that holds its packet. `false`: none does.
    fn reset_engine(&self, slot: u32) -> bool;

    /// The device's clock, in nanoseconds.
    fn time(&self) -> u64;

    /// Fills in what it is.
    fn describe(&self, info: &mut pinmap_gpu_info);

    /// Fills in what it has done.
    fn count(&self, counters: &mut pinmap_gpu_counters);
}
