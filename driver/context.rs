// SPDX-License-Identifier: GPL-2.0
//! One open file: whose it is, its handles, its address space, its events.
//!
//! Locks, outermost first: the device's `leaving`, `teardown`, `table`, a buffer's `inner`.

use crate::{
    buffer::{Buffer, State, Tenant},
    device::Device,
    event::Queue,
    failure::Failure,
    ledger::Ledger,
    logic::{
        handle::{Absent, Counter},
        span::Span,
    },
    mapping::AddressSpace,
    portable::Peers,
    sys::{account::Account, compat, miscdevice, process::Process, uapi},
    view::ViewTable,
    watch::Lookout,
};
use kernel::{
    mm::Mm,
    new_mutex,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::{
        aref::ARef,
        atomic::{Acquire, Atomic, Release},
        Arc, Mutex,
    },
};

/// A handle and what it names.
struct Entry {
    buffer: Arc<Buffer>,
    /// Not before everything that can fail has succeeded.
    published: bool,
    /// Another context registered it: it is portable.
    guest: bool,
}

impl Entry {
    fn is_visible(&self) -> bool {
        self.published && (!self.guest || self.buffer.is_published())
    }
}

/// The handles of a context.
struct Table {
    gone: bool,
    counter: Counter,
    count: u32,
    by_handle: RBTree<u64, Entry>,
    /// Disjoint registrations by their last user address. A stale one stays until it is released or
    /// in the way.
    by_last: RBTree<u64, u64>,
    /// Handles of guests, by where the buffer is.
    guests: RBTree<usize, u64>,
    /// For the next one that wants it.
    spare: Option<Nodes>,
}

/// Memory for a handle.
struct Nodes {
    by_handle: RBTreeNodeReservation<u64, Entry>,
    by_last: RBTreeNodeReservation<u64, u64>,
}

impl Nodes {
    fn new() -> Result<Self> {
        Ok(Self {
            by_handle: RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?,
            by_last: RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?,
        })
    }
}

/// Names a buffer for as long as it is there.
fn name(buffer: &Arc<Buffer>) -> usize {
    core::ptr::from_ref(&**buffer).addr()
}

impl Table {
    fn get(&self, handle: u64) -> Result<&Arc<Buffer>> {
        if self.gone {
            return Err(ENODEV);
        }
        match self.by_handle.get(&handle) {
            Some(entry) if entry.is_visible() => Ok(&entry.buffer),
            Some(_) => Err(ENOENT),
            None => match self.counter.absent(handle) {
                Absent::Never => Err(ENOENT),
                Absent::Released => Err(compat::stale()),
            },
        }
    }

    /// The registration with the lowest addresses not wholly below `address`.
    fn first_from(&self, address: u64) -> Option<(u64, &Arc<Buffer>)> {
        let cursor = self.by_last.cursor_lower_bound(&address)?;
        let handle = *cursor.current().1;
        self.by_handle
            .get(&handle)
            .map(|entry| (handle, &entry.buffer))
    }

    /// Makes sure that no live registration overlaps `span`.
    fn check_way(&self, span: Span) -> core::result::Result<(), Failure> {
        let mut from = span.start();
        while let Some((_, buffer)) = self.first_from(from) {
            let way = buffer.span();
            if !way.overlaps(span) {
                break;
            }
            if buffer.state() != State::Stale {
                return Err(Failure::at(EEXIST, uapi::PINMAP_FAIL_OVERLAP, way.start()));
            }
            let Some(next) = way.last().checked_add(1) else {
                break;
            };
            from = next;
        }
        Ok(())
    }

    /// The same; forgets where stale ones were.
    fn make_way(&mut self, span: Span) -> core::result::Result<(), Failure> {
        self.check_way(span)?;
        // Not before it is known that none is live: a call that fails changes nothing.
        while let Some(last) = self.first_last_in(span) {
            self.by_last.remove(&last);
        }
        Ok(())
    }

    /// The last address of the first registration that overlaps `span`.
    fn first_last_in(&self, span: Span) -> Option<u64> {
        let (_, buffer) = self.first_from(span.start())?;
        buffer.span().overlaps(span).then(|| buffer.span().last())
    }

    /// Returns whether it is a guest, too.
    fn remove(&mut self, handle: u64) -> Option<(Arc<Buffer>, bool)> {
        let entry = self.by_handle.get(&handle)?;
        let (buffer, guest) = (entry.buffer.clone(), entry.guest);
        let by_handle = self.by_handle.remove_node(&handle);
        let last = buffer.span().last();
        if self.by_last.get(&last) == Some(&handle) {
            let by_last = self.by_last.remove_node(&last);
            self.spare = by_handle.zip(by_last).map(|(by_handle, by_last)| Nodes {
                by_handle: by_handle.into_reservation(),
                by_last: by_last.into_reservation(),
            });
        }
        if guest {
            self.guests.remove(&name(&buffer));
        }
        self.count = self.count.saturating_sub(1);
        Some((buffer, guest))
    }
}

/// An open file.
#[pin_data]
pub(crate) struct Context {
    id: u64,
    device: Arc<Device>,
    account: Arc<Account>,
    opener: Process,
    space: Arc<AddressSpace>,
    events: Arc<Queue>,
    view_table: Arc<ViewTable>,
    lookout: Arc<Lookout>,
    /// Whether it belongs to its process, and has all that is portable there.
    admitted: Atomic<bool>,
    #[pin]
    table: Mutex<Table>,
    /// Who tears down; the other one waits until it is done.
    #[pin]
    teardown: Mutex<()>,
}

impl Context {
    /// For the current task, with the name `id` among the contexts of `device`.
    pub(crate) fn new(id: u64, device: Arc<Device>) -> Result<Arc<Self>> {
        let mm: ARef<Mm> = {
            let task = kernel::current!();
            let mm: &Mm = task.mm().ok_or(EINVAL)?;
            mm.into()
        };
        let account = Arc::new(Account::current(mm)?, GFP_KERNEL_ACCOUNT)?;
        let opener = Process::current()?;
        let events = Queue::new(device.ledger(id)?)?;
        let space = Device::address_space(&device, id, &account)?;
        let view_table = ViewTable::new()?;
        let lookout = Lookout::new()?;
        let table = Table {
            gone: false,
            counter: Counter::new(),
            count: 0,
            by_handle: RBTree::new(),
            by_last: RBTree::new(),
            guests: RBTree::new(),
            spare: None,
        };
        Arc::pin_init(
            pin_init!(Self {
                id,
                device,
                account,
                opener,
                space,
                events,
                view_table,
                lookout,
                admitted: Atomic::new(false),
                table <- new_mutex!(table, "pinmap_table"),
                teardown <- new_mutex!((), "pinmap_teardown"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// To be called before anything is done with it; not by `open()`, during which no other misc device can
    /// be opened. Fails if the device cannot have what is portable in the process; then it can be tried again.
    pub(crate) fn admit(self: &Arc<Self>) -> Result {
        if self.admitted.load(Acquire) {
            return Ok(());
        }
        Peers::join(self)
    }

    /// As [`admit`](Self::admit), by who has seen to it, under the lock of the process.
    pub(crate) fn set_admitted(&self) {
        self.admitted.store(true, Release);
    }

    /// Whether [`set_admitted`](Self::set_admitted) was called.
    pub(crate) fn is_admitted(&self) -> bool {
        self.admitted.load(Acquire)
    }

    /// Whether it has ended, so that nothing can be added to it.
    pub(crate) fn is_gone(&self) -> bool {
        self.table.lock().gone
    }

    /// Whether the caller may add to it: `ENODEV`, the device is gone; `EPERM`, it belongs to another process.
    pub(crate) fn check_caller(&self) -> Result {
        self.device.check_here()?;
        if self.account.is_current() {
            Ok(())
        } else {
            Err(EPERM)
        }
    }

    /// Its name among the contexts of the device.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Its device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Who pays.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Who opened it.
    pub(crate) fn opener(&self) -> &Process {
        &self.opener
    }

    /// Who it is, and what it has.
    pub(crate) fn ledger(&self) -> &Ledger {
        self.events.ledger()
    }

    /// As whom it has what it calls `handle`.
    pub(crate) fn tenant(&self, handle: u64) -> Tenant<'_> {
        Tenant {
            space: &self.space,
            ledger: self.events.ledger(),
            handle,
        }
    }

    /// The device addresses that it has given out.
    pub(crate) fn space(&self) -> &Arc<AddressSpace> {
        &self.space
    }

    /// What it has to tell.
    pub(crate) fn events(&self) -> &Arc<Queue> {
        &self.events
    }

    /// What `mmap()` shows besides BARs.
    pub(crate) fn view_table(&self) -> &Arc<ViewTable> {
        &self.view_table
    }

    /// Who watches what it registers.
    pub(crate) fn lookout(&self) -> &Arc<Lookout> {
        &self.lookout
    }

    /// Registrations now.
    pub(crate) fn registrations(&self) -> u32 {
        self.table.lock().count
    }

    /// The buffer named `handle`.
    pub(crate) fn find(&self, handle: u64) -> Result<Arc<Buffer>> {
        self.table.lock().get(handle).cloned()
    }

    /// The buffer with the lowest handle from `handle` on, and that.
    pub(crate) fn find_from(&self, mut handle: u64) -> Option<(u64, Arc<Buffer>)> {
        let table = self.table.lock();
        loop {
            let cursor = table.by_handle.cursor_lower_bound(&handle)?;
            let (&found, entry) = cursor.current();
            if entry.is_visible() {
                return Some((found, entry.buffer.clone()));
            }
            handle = found.checked_add(1)?;
        }
    }

    /// The registration that contains the user address, and its handle: 0 if it has none yet.
    pub(crate) fn find_address(&self, address: u64) -> Result<(u64, Arc<Buffer>)> {
        let table = self.table.lock();
        if table.gone {
            return Err(ENODEV);
        }
        let (handle, buffer) = table.first_from(address).ok_or(ENOENT)?;
        if !buffer.span().contains(address) {
            return Err(ENOENT);
        }
        match table.get(handle) {
            Ok(_) => Ok((handle, buffer.clone())),
            Err(ENOENT) => Ok((0, buffer.clone())),
            Err(error) => Err(error),
        }
    }

    /// What the driver allocated that the current task has at `address`, if this context can name it: its
    /// handle, and the offset of `address` in it.
    pub(crate) fn find_view(&self, address: u64) -> Result<(u64, Arc<Buffer>, u64)> {
        let (owner, offset) = miscdevice::shown_at::<Self>(address).ok_or(ENOENT)?;
        let (mut handle, first) = owner.view_table.named(offset).ok_or(ENOENT)?;
        let mut buffer = owner.find(handle)?;
        if !core::ptr::eq(&*owner, self) {
            // Portable memory of another one.
            let table = self.table.lock();
            handle = table.guests.get(&name(&buffer)).copied().ok_or(ENOENT)?;
            buffer = table.get(handle)?.clone();
        }
        Ok((handle, buffer, offset.saturating_sub(first)))
    }

    /// Fails if some of the memory at `span` is shown by this file: the driver's own is not to be
    /// registered. Device memory cannot be pinned, and fails for that.
    pub(crate) fn check_foreign(&self, span: Span) -> core::result::Result<(), Failure> {
        if self.view_table.is_empty() {
            return Ok(());
        }
        let Some(address) = miscdevice::first_shown(self, span) else {
            return Ok(());
        };
        let known = self.find_view(address);
        match known {
            Ok((_, buffer, _)) if !buffer.is_local() => {
                Err(Failure::at(EEXIST, uapi::PINMAP_FAIL_OVERLAP, address))
            }
            _ => Ok(()),
        }
    }

    /// Registrations that there would be with one more, and that there may be; and whether `span` is
    /// free of live ones.
    pub(crate) fn try_reserve(&self, span: Span) -> (u64, u64, core::result::Result<(), Failure>) {
        let table = self.table.lock();
        let needed = u64::from(table.count).saturating_add(1);
        let allowed = u64::from(compat::max_registrations());
        let result = if table.gone {
            Err(ENODEV.into())
        } else if needed > allowed {
            Err(Failure::limit(
                ENOSPC,
                uapi::PINMAP_FAIL_OBJECTS,
                needed,
                allowed,
            ))
        } else {
            table.check_way(span)
        };
        (needed, allowed, result)
    }

    /// Gives `buffer` a handle that nobody can use yet, and its user addresses, if it has any, to nobody
    /// else.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        buffer: &Arc<Buffer>,
    ) -> core::result::Result<Reserved, Failure> {
        self.reserve_for(buffer, false)
    }

    /// The same for a portable buffer that another context registered.
    pub(crate) fn reserve_guest(
        self: &Arc<Self>,
        buffer: &Arc<Buffer>,
    ) -> core::result::Result<Reserved, Failure> {
        self.reserve_for(buffer, true)
    }

    /// The portable buffer that another context registered is not here any more.
    pub(crate) fn forget_guest(&self, buffer: &Arc<Buffer>) {
        let mut table = self.table.lock();
        let handle = table.guests.get(&name(buffer)).copied();
        if let Some(handle) = handle {
            table.remove(handle);
        }
        drop(table);
        if let Some(handle) = handle {
            buffer.remove_guest(&self.events);
            self.events.generations().bump(handle);
        }
    }

    fn reserve_for(
        self: &Arc<Self>,
        buffer: &Arc<Buffer>,
        guest: bool,
    ) -> core::result::Result<Reserved, Failure> {
        // The keys are not known yet: only the memory is allocated outside of the lock.
        let entry = Entry {
            buffer: buffer.clone(),
            published: false,
            guest,
        };
        let guest_node = if guest {
            Some(RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?)
        } else {
            None
        };
        let last = buffer.span().last();
        let allowed = compat::max_registrations();

        let mut table = self.table.lock();
        let nodes = match table.spare.take() {
            Some(nodes) => nodes,
            None => {
                drop(table);
                let nodes = Nodes::new()?;
                table = self.table.lock();
                nodes
            }
        };
        if table.gone {
            return Err(ENODEV.into());
        }
        if table.count >= allowed {
            let needed = u64::from(table.count).saturating_add(1);
            return Err(Failure::limit(
                ENOSPC,
                uapi::PINMAP_FAIL_OBJECTS,
                needed,
                allowed.into(),
            ));
        }
        if buffer.is_user_memory() {
            table.make_way(buffer.span())?;
        }
        let handle = table.counter.take().ok_or(ENOSPC)?;
        table
            .by_handle
            .insert(nodes.by_handle.into_node(handle, entry));
        if buffer.is_user_memory() {
            table.by_last.insert(nodes.by_last.into_node(last, handle));
        }
        if let Some(node) = guest_node {
            table.guests.insert(node.into_node(name(buffer), handle));
        }
        table.count = table.count.saturating_add(1);
        drop(table);
        if !guest {
            buffer.set_handle(handle);
        }
        Ok(Reserved {
            context: self.clone(),
            handle,
            published: false,
        })
    }

    /// Takes the buffer from its handle, to release it, or, if it is a guest, to let it go.
    pub(crate) fn take(&self, handle: u64) -> Result<(Arc<Buffer>, bool)> {
        let mut table = self.table.lock();
        table.get(handle)?;
        let (buffer, guest) = table.remove(handle).ok_or(ENOENT)?;
        drop(table);
        if guest {
            buffer.remove_guest(&self.events);
        }
        Ok((buffer, guest))
    }

    /// Ends everything: the device stops, mappings go, pages are unpinned. What is being registered
    /// meanwhile will fail. Nothing is left when it returns. Can be called again.
    pub(crate) fn tear_down(&self) {
        let _one_at_a_time = self.teardown.lock();
        self.device.backend().stop(self.id);
        let had_the_device = self.device.backend().is_owner(self.id);
        self.table.lock().gone = true;
        self.events.generations().bump_all();
        Peers::leave(self);
        while let Some((buffer, guest)) = self.take_any() {
            // Whoever has to know of a failure was told by the mapping.
            let _ = if guest {
                buffer.remove_guest(&self.events);
                Buffer::leave(&buffer, &self.space)
            } else {
                Buffer::end_with_context(&buffer)
            };
        }
        // Its device does nothing any more, and is nobody else's yet. If this fails, it is done before the next
        // one maps anything.
        let _ = self.device.renew_domain();
        self.device.backend().disown(self.id);
        if had_the_device {
            Peers::hand_over(self);
        }
    }

    /// Takes a published buffer, and says whether it is a guest; those that are not published are doomed.
    fn take_any(&self) -> Option<(Arc<Buffer>, bool)> {
        let mut table = self.table.lock();
        let mut published = None;
        for (&handle, entry) in table.by_handle.iter() {
            if entry.published {
                published = Some(handle);
                break;
            }
            if !entry.guest {
                entry.buffer.doom();
            }
        }
        published.and_then(|handle| table.remove(handle))
    }

    /// Its file is closed, and it was torn down: nothing of it is left that could come later.
    pub(crate) fn close(&self) {
        Lookout::stop(&self.lookout);
    }

    /// The device is gone: says so.
    pub(crate) fn say_gone(&self) {
        self.events.gone();
    }
}

/// A handle that is taken but cannot be used yet. Dropping it gives it up.
pub(crate) struct Reserved {
    context: Arc<Context>,
    handle: u64,
    published: bool,
}

impl Reserved {
    /// The handle.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// From now on it can be used. Fails, and gives it up, if the device is gone.
    pub(crate) fn publish(mut self) -> Result {
        let mut table = self.context.table.lock();
        if table.gone {
            return Err(ENODEV);
        }
        let entry = table.by_handle.get_mut(&self.handle).ok_or(ENOENT)?;
        entry.published = true;
        if !entry.guest {
            entry.buffer.make_known();
        }
        drop(table);
        self.published = true;
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        let buffer = self.context.table.lock().remove(self.handle);
        match buffer {
            Some((buffer, false)) => {
                let _ = Peers::end(&self.context, &buffer, State::Released);
                buffer.withdraw_event();
            }
            Some((buffer, true)) => {
                buffer.remove_guest(&self.context.events);
                let _ = Buffer::leave(&buffer, self.context.space());
            }
            None => {}
        }
    }
}
