// SPDX-License-Identifier: GPL-2.0
//! One open file: its owner, handles, address space and events.
//!
//! A context belongs to the address space and the user that opened the file. It ends when the file
//! is closed or the device is unbound, whichever comes first: [`Context::tear_down`] ends all of
//! its buffers, and nothing can be added afterwards.
//!
//! `table.rs` has the handles, `ranges.rs` those of managed ranges. `portable.rs` has what the
//! contexts of a process share.
//!
//! Locks, outermost first: the device's `leaving`, `teardown`, `table`, a buffer's `inner`.

#[cfg(pinmap_mirror)]
use crate::managed::{Managing, MoverUse};
use crate::{
    address_space::AddressSpace,
    backend::Member,
    buffer::{Buffer, Lookout, State, Tenant},
    device::Device,
    event::EventQueue,
    stats::Stats,
    sys::task::{account::Account, process::Process},
    view::MmapOffsets,
};
use kernel::{
    mm::Mm,
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Acquire, Atomic, Full, Release},
        Arc, Mutex,
    },
};

mod portable;
mod ranges;
mod table;

pub(crate) use portable::{Guest, Processes, SharedBuffers};
#[cfg(pinmap_mirror)]
pub(crate) use ranges::ReservedRange;
pub(crate) use table::{Found, ReservedBuffers, ReservedHandle};

use table::{Role, Table, Taken};

/// An open file.
#[pin_data]
pub(crate) struct Context {
    /// Names the context among those of its device. Never used again.
    id: u64,
    device: Arc<Device>,
    account: Arc<Account>,
    opener: Process,
    space: Arc<AddressSpace>,
    /// The context's part of a paged device.
    member: Option<Arc<Member>>,
    events: Arc<EventQueue>,
    mmap_offsets: Arc<MmapOffsets>,
    lookout: Arc<Lookout>,
    /// Whether the context has joined the [`SharedBuffers`] of its process and was given the
    /// portable buffers that are in there.
    admitted: Atomic<bool>,
    /// Whether the system may not sleep while the context has the device.
    stays_awake: Atomic<bool>,
    /// Whether the context has a flat device stay awake.
    keeps_awake: Atomic<bool>,
    /// Manages memory of the program, once it is asked to, and keeps what moves it.
    #[cfg(pinmap_mirror)]
    #[pin]
    managing: Mutex<Option<(Arc<Managing>, MoverUse)>>,
    #[pin]
    table: Mutex<Table>,
    /// Held while tearing down. Closing and unbinding both do it; the second waits for the first.
    #[pin]
    teardown: Mutex<()>,
}

impl Context {
    /// Makes a context of `device` for the current task.
    pub(crate) fn new(id: u64, device: Arc<Device>) -> Result<Arc<Self>> {
        let mm: ARef<Mm> = {
            let task = kernel::current!();
            let mm: &Mm = task.mm().ok_or(EINVAL)?;
            mm.into()
        };
        let account = Arc::new(Account::current(mm)?, GFP_KERNEL_ACCOUNT)?;
        let opener = Process::current()?;
        let events = EventQueue::new(device.stats(id)?)?;
        let (space, member) = Device::address_space(&device, id, &account)?;
        let mmap_offsets = MmapOffsets::new()?;
        let lookout = Lookout::new()?;
        Arc::pin_init(
            pin_init!(Self {
                id,
                device,
                account,
                opener,
                space,
                member,
                events,
                mmap_offsets,
                lookout,
                admitted: Atomic::new(false),
                stays_awake: Atomic::new(false),
                keeps_awake: Atomic::new(false),
                #[cfg(pinmap_mirror)]
                managing <- new_mutex!(None, "pinmap_managing"),
                table <- new_mutex!(Table::new(), "pinmap_table"),
                teardown <- new_mutex!((), "pinmap_teardown"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Before the first ioctl does anything, resets a device for which that is due, and maps all
    /// portable buffers of the process. Fails if the device cannot have them; the next call tries
    /// again. Not done by `open()`, during which no other misc device can be opened.
    pub(crate) fn admit(self: &Arc<Self>) -> Result {
        if self.admitted.load(Acquire) {
            return Ok(());
        }
        self.device.backend().make_up();
        #[cfg(not(pinmap_flat))]
        if let Some(member) = &self.member {
            member.vm().begin();
        }
        SharedBuffers::join(self)
    }

    /// Whether the context has a flat device stay awake.
    pub(crate) fn keeps_awake(&self) -> bool {
        self.keeps_awake.load(Acquire)
    }

    /// Says that it does. Returns whether that was said before.
    pub(crate) fn set_keeps_awake(&self) -> bool {
        self.keeps_awake.xchg(true, Full)
    }

    /// Says whether the system may sleep while the context has the device: it may, at first.
    pub(crate) fn set_stays_awake(&self, on: bool) {
        self.stays_awake.store(on, Release);
    }

    /// Whether the system may not sleep. Of a flat device, only its owner decides that.
    pub(crate) fn stays_awake(&self) -> bool {
        let backend = self.device.backend();
        self.stays_awake.load(Acquire) && (self.member.is_some() || backend.is_owner(self.id))
    }

    /// Marks the context as admitted. Called under the lock of the process.
    pub(crate) fn set_admitted(&self) {
        self.admitted.store(true, Release);
    }

    /// Whether the context has joined its process.
    pub(crate) fn is_admitted(&self) -> bool {
        self.admitted.load(Acquire)
    }

    /// Whether the context has ended, so that nothing can be added to it.
    pub(crate) fn is_gone(&self) -> bool {
        self.table.lock().is_closed()
    }

    /// Fails if the caller may not add to the context: `ENODEV`, the device is gone; `EPERM`, the
    /// context belongs to another process.
    pub(crate) fn check_caller(&self) -> Result {
        self.device.check_here()?;
        if self.account.is_current() {
            Ok(())
        } else {
            Err(EPERM)
        }
    }

    /// The number of the context among those of its device.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The account that pays for everything here.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// The process that opened the file.
    pub(crate) fn opener(&self) -> &Process {
        &self.opener
    }

    /// The statistics of the context.
    pub(crate) fn stats(&self) -> &Stats {
        self.events.stats()
    }

    /// Address space, statistics and handle under which this context maps a buffer.
    pub(crate) fn tenant(&self, handle: u64) -> Tenant<'_> {
        Tenant {
            space: &self.space,
            stats: self.events.stats(),
            handle,
        }
    }

    /// The context's device addresses.
    pub(crate) fn space(&self) -> &Arc<AddressSpace> {
        &self.space
    }

    /// The context's part of a paged device.
    pub(crate) fn member(&self) -> Option<&Arc<Member>> {
        self.member.as_ref()
    }

    pub(crate) fn events(&self) -> &Arc<EventQueue> {
        &self.events
    }

    /// The offsets of everything that `mmap()` shows besides BARs.
    pub(crate) fn mmap_offsets(&self) -> &Arc<MmapOffsets> {
        &self.mmap_offsets
    }

    /// Ends everything: the device stops, mappings go, pages are unpinned. Registrations that are
    /// under way will fail. Nothing is left when this returns. Can be called again.
    pub(crate) fn tear_down(&self) {
        let _one_at_a_time = self.teardown.lock();
        self.device.backend().stop(self.id);
        #[cfg(pinmap_mirror)]
        self.manage_no_more();
        let had_the_device = self.device.backend().is_owner(self.id);
        let ranges = self.table.lock().close();
        drop(ranges);
        self.events.generations().bump_all();
        SharedBuffers::leave(self);
        while let Some(taken) = self.take_any() {
            // Failures were reported by the mapping.
            let _ = match taken {
                Taken::Unpublished(buffer) => Buffer::end(&buffer, State::Gone),
                Taken::Removed(removed) => match removed.entry.role {
                    Role::Home => Buffer::end_with_context(&removed.entry.buffer),
                    Role::Guest => removed.release(self),
                },
            };
        }
        // The device does nothing any more, and has no other owner yet. If this fails, the next
        // claim tries again.
        let _ = self.device.renew_domain();
        self.device.backend().disown(self.id);
        if had_the_device {
            SharedBuffers::hand_over(self);
        }
    }

    /// Stops the worker that looks at registered memory. The file is closed, and the context was
    /// torn down.
    pub(crate) fn close(&self) {
        Lookout::stop(&self.lookout);
    }

    /// Reports that the device is gone, as the last event.
    pub(crate) fn say_gone(&self) {
        self.events.push_gone();
    }
}
