// SPDX-License-Identifier: GPL-2.0
//! The interface to one paged device.

#[cfg(pinmap_mirror)]
use crate::sys::mm::new_page::NewPage;
use crate::{
    gpu::mmu::pager::Vma,
    logic::{
        pte::{Format, Memory},
        span::Span,
    },
    sys::pci::mmio::Image,
    uapi::{pinmap_gpu_counters, pinmap_gpu_info},
};
use kernel::prelude::*;

/// Limits of the device.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) queues: u32,
    pub(crate) slots: u32,
    /// Number of VMIDs; VMID 0 is not used.
    pub(crate) vmids: u32,
    pub(crate) max_priority: u32,
    /// Bytes of VRAM.
    pub(crate) vram: u64,
    /// VRAM is a part of the host's memory: it is left to the driver's tables.
    pub(crate) integrated: bool,
    /// Executes programs, from memory that is mapped for that.
    pub(crate) programs: bool,
    /// The base address register that shows VRAM, from its beginning on.
    pub(crate) vram_bar: u32,
    /// Addresses that the device's MMU translates.
    pub(crate) addresses: Span,
    /// How long a packet may run, in nanoseconds.
    pub(crate) max_run: u64,
    /// Interrupt vectors, in the order of [`Cause`].
    pub(crate) vectors: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Queues have executed interrupt packets.
    Completion,
    /// Anything else: the scheduler has to look.
    Schedule,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotState {
    Free,
    Idle,
    /// Has work, and waits for an engine.
    Ready,
    /// An engine holds its packet.
    Running,
    /// Waits for a fence.
    Waiting,
    /// Stopped by a fault. The packet can be repeated, from where it stopped.
    Faulted,
    /// Stopped for good.
    Failed,
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
    /// How far the next packet has come.
    pub(crate) part: u64,
}

/// Why a queue stopped.
#[derive(Clone, Copy)]
pub(crate) struct Stop {
    /// Whether an access to memory stopped it, and not a packet.
    pub(crate) is_fault: bool,
    /// Code of the device.
    pub(crate) code: u32,
    /// A `PINMAP_ACCESS_` value.
    pub(crate) access: u32,
    pub(crate) addr: u64,
    /// Index of the packet.
    pub(crate) index: u64,
    /// Whether the access may succeed if it is repeated after the page table was changed.
    pub(crate) can_retry: bool,
    /// A `PINMAP_FAULT_` value.
    pub(crate) reason: u32,
    /// The part of the program's memory around `addr`, if the fault could not be served there.
    pub(crate) area: Option<Vma>,
}

impl Stop {
    /// The access that faulted, a `PINMAP_ACCESS_` value; `None`: it was no access.
    pub(crate) fn access(&self) -> Option<u32> {
        self.is_fault.then_some(self.access)
    }
}

/// A copy between host memory and VRAM, of whole pages.
#[cfg(pinmap_mirror)]
#[derive(Clone, Copy)]
pub(crate) struct PageCopy {
    pub(crate) way: Way,
    /// Offset into VRAM.
    pub(crate) vram: u64,
    pub(crate) bytes: u64,
}

/// Where a copy comes from, and where it goes.
#[cfg(pinmap_mirror)]
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// To VRAM, from an address on the bus.
    In(u64),
    /// From VRAM, to an address on the bus.
    Home(u64),
    /// Zeros, to VRAM. Only where [`can_zero`](Hardware::can_zero) says so.
    Zeros,
}

/// A paged device: registers and memory. Accesses take effect in the order in which they are made.
/// Once the device is revoked or removed, reads return all ones; each method says what it answers
/// then.
///
/// No method waits, unless it says so. Slots are used by one caller at a time.
pub(crate) trait Hardware: Send + Sync {
    fn limits(&self) -> Limits;

    /// Returns the cause of interrupt vector `index`.
    fn cause(&self, index: u32) -> Cause;

    /// Prepares the device after a reset: sets which interrupts it sends and how long packets may
    /// run.
    fn prepare(&self);

    /// Begins to reset the whole device.
    fn reset(&self);

    /// Returns whether the reset is done; never true of a device that was removed.
    fn is_reset(&self) -> bool;

    /// Stops all accesses to the device. When it returns, none is made any more. Sleeps.
    fn revoke(&self);

    /// Returns the format of page-table entries.
    fn format(&self) -> Format;

    /// Loads 8 bytes from VRAM.
    fn load(&self, offset: u64) -> u64;

    /// Stores 8 bytes to VRAM.
    fn store(&self, offset: u64, value: u64);

    /// Zeroes a part of VRAM. Call it for some pages at a time.
    fn zero(&self, offset: u64, bytes: u64);

    /// Orders stores to VRAM: earlier ones arrive before later ones.
    fn order(&self);

    /// Copies the page of VRAM at `offset` to `words`.
    fn load_page(&self, offset: u64, words: &mut [u64]);

    /// Copies `words` to the page of VRAM at `offset`.
    fn store_page(&self, offset: u64, words: &[u64]);

    /// Copies VRAM to `image`, which stands for it from now on, though the device is off: accesses
    /// by these methods are in the image. Sleeps.
    fn save(&self, image: Image);

    /// Copies what was [saved](Self::save) back. From now on accesses reach the device. Sleeps.
    fn restore(&self);

    /// Returns the page frame of VRAM at `offset`.
    fn memory_frame(&self, offset: u64) -> u64;

    /// Returns the page frame of a queue's doorbell.
    fn doorbell_frame(&self, queue: u32) -> u64;

    /// Sets or removes the page table of an address space of which nothing is cached.
    fn set_root(&self, vmid: u32, table: Option<Memory>);

    /// Submits the invalidation of `span` in the device's TLB, with number `sequence`.
    fn invalidate(&self, vmid: u32, span: Span, sequence: u64);

    /// Returns how many invalidations can be submitted now.
    fn invalidate_room(&self) -> u64;

    /// Returns the number of the newest invalidation that is complete; `None` if the device was
    /// removed.
    fn invalidated(&self) -> Option<u64>;

    /// Submits a copy to the engine that works for the driver alone, with number `sequence`. Copies
    /// are carried out in the order of submission.
    #[cfg(pinmap_mirror)]
    fn copy(&self, copy: PageCopy, sequence: u64);

    /// Returns whether that engine can write zeros.
    #[cfg(pinmap_mirror)]
    fn can_zero(&self) -> bool;

    /// Returns how many copies can be submitted now.
    #[cfg(pinmap_mirror)]
    fn copy_room(&self) -> u64;

    /// Returns the number of the newest copy that has ended, well or not; `None` if the device was
    /// removed.
    #[cfg(pinmap_mirror)]
    fn copied(&self) -> Option<u64>;

    /// Returns the code of the first copy that failed since this was asked last, or 0.
    #[cfg(pinmap_mirror)]
    fn take_copy_error(&self) -> u64;

    /// Returns whether the device is as [`prepare`](Self::prepare) left it: nobody has reset it
    /// since, which would have lost copies, and it was not removed.
    #[cfg(pinmap_mirror)]
    fn is_prepared(&self) -> bool;

    /// Begins to make the engine give up the copy that runs, which then has failed.
    #[cfg(pinmap_mirror)]
    fn reset_copier(&self);

    /// Copies the page of VRAM at `offset` to `page`, by the CPU. Returns whether it did; not if
    /// the device is revoked.
    #[cfg(pinmap_mirror)]
    fn save_page(&self, offset: u64, page: &NewPage) -> bool;

    /// Resets a queue that is in no slot, and enables its doorbell.
    fn open_queue(&self, queue: u32);

    /// Disables a queue's doorbell.
    fn close_queue(&self, queue: u32);

    /// Returns the write index that was last published by a queue's doorbell.
    fn published(&self, queue: u32) -> u64;

    /// Publishes a write index, as a doorbell does.
    fn publish(&self, queue: u32, index: u64);

    /// Clears the interrupts of a cause. State must be read after this.
    fn acknowledge(&self, cause: Cause);

    /// Calls `visit` for the queues that have work and no slot.
    fn each_pending(&self, visit: &mut dyn FnMut(u32));

    /// Removes a queue from those that have work and no slot.
    fn forget_pending(&self, queue: u32);

    /// Calls `visit` for the queues that asked for an interrupt since the last time.
    fn each_completion(&self, visit: &mut dyn FnMut(u32));

    /// Takes the bitmap of slots that became free or stopped.
    fn take_slot_events(&self) -> u64;

    /// Calls `visit` for the queues that stopped since the last time. Where too many stopped, some
    /// are left out; see [`slot_stop`](Self::slot_stop).
    fn each_fault(&self, visit: &mut dyn FnMut(u32, Stop));

    /// Puts a queue into a free slot. `EIO`: the device refuses.
    fn bind(&self, slot: u32, setup: &Setup) -> Result;

    /// Begins to take the queue out of a slot, after the packet that runs.
    fn unbind(&self, slot: u32);

    /// Repeats the access that faulted, in state [`Faulted`](SlotState::Faulted). Nothing that was
    /// done before is done again.
    fn retry(&self, slot: u32);

    /// Returns the state of a slot; `None` if the device was removed.
    fn slot_state(&self, slot: u32) -> Option<SlotState>;

    /// Returns since when the slot has its state, by the device's clock.
    fn slot_since(&self, slot: u32) -> u64;

    /// Returns how far the queue that is or was last in a slot has come.
    fn slot_progress(&self, slot: u32) -> Progress;

    /// Returns why the queue in a slot stopped, as far as the slot knows: not which access it was.
    fn slot_stop(&self, slot: u32) -> Stop;

    /// Returns whether an engine holds the slot's packet, or is giving it up.
    fn is_held(&self, slot: u32) -> bool;

    /// Begins to reset the engine that holds the slot's packet. Returns `false` if none does.
    fn reset_engine(&self, slot: u32) -> bool;

    /// Returns the device's clock, in nanoseconds.
    fn time(&self) -> u64;

    /// Fills in the description of the device.
    fn describe(&self, info: &mut pinmap_gpu_info);

    /// Fills in the counters of the device.
    fn count(&self, counters: &mut pinmap_gpu_counters);
}
