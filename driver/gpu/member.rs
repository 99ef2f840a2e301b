// SPDX-License-Identifier: GPL-2.0
//! A context of a paged device: its address space, and its queues by handle.

use super::{
    mmu::vm::Vm,
    sched::queue::{Doorbell, Queue},
    Gpu,
};
use crate::{
    address_space::AddressSpace,
    allocation,
    failure::Failure,
    logic::handle::{Absent, Counter},
    sys::task::account::Account,
};
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::{atomic::Atomic, Arc, Mutex},
};

/// The queues of a context.
struct Handles {
    closed: bool,
    counter: Counter,
    by_handle: RBTree<u64, Named>,
}

/// A queue that has a handle.
struct Named {
    queue: Arc<Queue>,
    /// The handle can be used: everything that can fail has succeeded.
    published: bool,
}

/// A context, for the device.
#[pin_data]
pub(crate) struct Member {
    vm: Arc<Vm>,
    /// The part of the address space that is the driver's.
    upper: Arc<AddressSpace>,
    /// Number of ids of queues, also of closed ones whose doorbell is still mapped.
    pub(super) queues: Atomic<u32>,
    account: Arc<Account>,
    #[pin]
    handles: Mutex<Handles>,
}

impl Member {
    /// Makes a context with address space `vm`. `account` pays for its memory.
    pub(super) fn new(
        vm: Arc<Vm>,
        upper: Arc<AddressSpace>,
        account: Arc<Account>,
    ) -> impl PinInit<Self> {
        let handles = Handles {
            closed: false,
            counter: Counter::new(),
            by_handle: RBTree::new(),
        };
        pin_init!(Self {
            vm,
            upper,
            queues: Atomic::new(0),
            account,
            handles <- new_mutex!(handles, "pinmap_queues"),
        })
    }

    /// Finds a queue. `ENOENT`: the handle never was one; `ESTALE`: it was.
    pub(crate) fn find(&self, handle: u64) -> Result<Arc<Queue>> {
        let handles = self.handles.lock();
        if handles.closed {
            return Err(ENODEV);
        }
        match handles.by_handle.get(&handle) {
            Some(named) if named.published => Ok(named.queue.clone()),
            Some(_) => Err(ENOENT),
            None => match handles.counter.absent(handle) {
                Absent::Never => Err(ENOENT),
                Absent::Released => Err(ESTALE),
            },
        }
    }

    pub(crate) fn vm(&self) -> &Arc<Vm> {
        &self.vm
    }

    /// The addresses for rings and fences.
    pub(crate) fn upper(&self) -> &Arc<AddressSpace> {
        &self.upper
    }

    /// The account that pays for queues.
    pub(super) fn account(&self) -> &Account {
        &self.account
    }

    /// Makes a new doorbell, for which a page is charged.
    pub(crate) fn doorbell(this: &Arc<Self>, gpu: &Arc<Gpu>) -> Result<Arc<Doorbell>, Failure> {
        let nowhere = allocation::host_memory(&this.account, 1)?;
        let doorbell = Doorbell::new(gpu, this, nowhere)?;
        Ok(Arc::new(doorbell, GFP_KERNEL_ACCOUNT)?)
    }

    /// Gives `queue` a handle that cannot be used yet, and adds it to the device.
    pub(crate) fn add(&self, gpu: &Gpu, queue: &Arc<Queue>) -> Result<u64> {
        let node = RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?;
        let mut handles = self.handles.lock();
        if handles.closed {
            return Err(ENODEV);
        }
        let handle = handles.counter.take().ok_or(ENOSPC)?;
        queue.set_handle(handle);
        gpu.add(queue)?;
        handles.by_handle.insert(node.into_node(
            handle,
            Named {
                queue: queue.clone(),
                published: false,
            },
        ));
        Ok(handle)
    }

    /// Makes `handle` usable. `ENODEV`: the device is gone, and the queue is closed.
    pub(crate) fn publish(&self, handle: u64) -> Result {
        let mut handles = self.handles.lock();
        let named = handles.by_handle.get_mut(&handle).ok_or(ENODEV)?;
        named.published = true;
        Ok(())
    }

    /// Removes a handle that was not published.
    pub(crate) fn forget(&self, handle: u64) {
        let node = self.handles.lock().by_handle.remove_node(&handle);
        drop(node);
    }

    /// Removes a handle. Returns its queue, to be closed.
    pub(crate) fn take(&self, handle: u64) -> Result<Arc<Queue>> {
        self.find(handle)?;
        let node = self.handles.lock().by_handle.remove_node(&handle);
        node.map(|node| node.to_key_value().1.queue).ok_or(ESTALE)
    }

    /// Calls `visit` for each queue. No queue can be added from now on.
    pub(super) fn close(&self, mut visit: impl FnMut(&Arc<Queue>)) {
        let mut handles = self.handles.lock();
        handles.closed = true;
        for named in handles.by_handle.values() {
            visit(&named.queue);
        }
    }

    /// Removes any handle. Returns its queue.
    pub(super) fn take_any(&self) -> Option<Arc<Queue>> {
        let mut handles = self.handles.lock();
        let handle = handles
            .by_handle
            .cursor_front()
            .map(|cursor| *cursor.current().0)?;
        handles.by_handle.remove(&handle).map(|named| named.queue)
    }
}
