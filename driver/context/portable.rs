// SPDX-License-Identifier: GPL-2.0
//! Portable memory: on every device that the process has open.
//!
//! The contexts of one address space share their portable buffers: [`SharedBuffers`] is the list of
//! both. A context joins before its first call does anything, and gets all buffers that there are;
//! a new buffer goes to all contexts that there are. Both happen under one lock, `members`, so that
//! no pair is missed.
//!
//! A portable buffer is registered by its *home* context. In the others it is a [`Guest`]: a handle
//! and a mapping there. It ends everywhere when its home releases it. When the home ends, the
//! buffer goes stale for the guests, who are told.
//!
//! A flat device can be owned by one context only. If two contexts of the process have the same
//! flat device open, the owner has the portable buffers; when it ends, they are handed over to the
//! other.
//!
//! Locks: `members` is held while memory is mapped and unmapped, but neither while pages are pinned
//! nor while user space can delay us. Outermost first: a context's `teardown`, `members`, a
//! context's `table`.

use super::{Context, ReservedHandle};
use crate::{
    buffer::{Buffer, State},
    claim::Claim,
    failure::Failure,
    logic::request::Target,
    sys::task,
};
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// The contexts of an address space, and the buffers that they share.
#[pin_data]
pub(crate) struct SharedBuffers {
    /// The address of the `mm_struct`, which each context keeps.
    key: usize,
    /// Number of contexts that have joined. Changed under the lock of the list of processes.
    uses: Atomic<usize>,
    #[pin]
    members: Mutex<Members>,
}

struct Members {
    contexts: KVec<Arc<Context>>,
    shared: KVVec<SharedBuffer>,
}

/// A portable buffer, and how it is mapped.
struct SharedBuffer {
    buffer: Arc<Buffer>,
    /// The key of its home context.
    home: usize,
    target: Target,
    write: bool,
}

/// A portable buffer in a context that is not its home. Dropping it removes it there.
pub(crate) struct Guest {
    reserved: ReservedHandle<Arc<Context>>,
    claim: Claim,
}

impl Guest {
    /// Publishes the guest: the registration has succeeded. If the context has ended since, it is
    /// dropped.
    pub(crate) fn publish(self) {
        if self.reserved.publish().is_ok() {
            self.claim.keep();
        }
    }
}

/// Names a context among those of its process.
fn key(context: &Context) -> usize {
    core::ptr::from_ref(context).addr()
}

impl Members {
    /// Makes `shared` a guest of `context`. Returns `None` if the context does not need it: its
    /// device is gone, or flat and owned by another context of the process; or the buffer has gone
    /// stale.
    fn invite(
        &self,
        context: &Arc<Context>,
        shared: &SharedBuffer,
    ) -> Result<Option<Guest>, Failure> {
        let is_usable = || shared.buffer.check_usable().is_ok();
        if self.is_there(context, shared) || self.is_owned_by_sibling(context) || !is_usable() {
            return Ok(None);
        }
        match Self::bring(context, shared) {
            Err(failure) if failure.errno == ENODEV || !is_usable() => Ok(None),
            result => result.map(Some),
        }
    }

    fn bring(context: &Arc<Context>, shared: &SharedBuffer) -> Result<Guest, Failure> {
        context.device().check_here()?;
        let claim = Claim::new(context)?;
        let reserved = context.reserve_guest(&shared.buffer)?;
        shared
            .buffer
            .add_guest(context.events(), reserved.handle())?;
        shared.buffer.map(
            context.tenant(reserved.handle()),
            shared.target,
            shared.write,
        )?;
        Ok(Guest { reserved, claim })
    }

    /// Whether another context of the process owns the device of `context`.
    fn is_owned_by_sibling(&self, context: &Context) -> bool {
        self.contexts.iter().any(|other| {
            let same = Arc::ptr_eq(other.device(), context.device());
            let another = key(other) != key(context);
            same && another && other.device().backend().is_owner(other.id())
        })
    }

    /// Whether the buffer is mapped on the device of `context` already, which is flat.
    fn is_there(&self, context: &Context, shared: &SharedBuffer) -> bool {
        context.space().is_of_the_device()
            && self.contexts.iter().any(|other| {
                let same = Arc::ptr_eq(other.device(), context.device());
                same && shared.buffer.is_in(other.space())
            })
    }

    /// Makes `shared` a guest of all contexts but its home.
    fn invite_all(&self, shared: &SharedBuffer) -> Result<KVec<Guest>, Failure> {
        let mut guests = KVec::new();
        let others = || {
            self.contexts
                .iter()
                .filter(|other| key(other) != shared.home)
        };
        for other in others() {
            // A fatal signal stops each of these.
            match self.invite(other, shared) {
                Ok(Some(guest)) => guests.push(guest, GFP_KERNEL_ACCOUNT)?,
                Ok(None) => {}
                // Another context of the process may own the device: checked below.
                Err(failure) if failure.errno == EBUSY && other.space().is_of_the_device() => {}
                Err(failure) => return Err(failure),
            }
        }
        for other in others() {
            let flat = other.space().is_of_the_device();
            if flat && other.device().check_here().is_ok() && !self.is_there(other, shared) {
                return Err(EBUSY.into());
            }
        }
        Ok(guests)
    }

    /// Adds `context`, with all buffers.
    fn admit(&mut self, context: &Arc<Context>) -> Result {
        self.contexts.push(context.clone(), GFP_KERNEL_ACCOUNT)?;
        let result = self.shared.iter().try_for_each(|shared| {
            // There may be very many, and others wait for the lock.
            if task::fatal_signal_pending() {
                return Err(EINTR.into());
            }
            if let Some(guest) = self.invite(context, shared)? {
                guest.publish();
            }
            Ok::<_, Failure>(())
        });
        if result.is_ok() {
            context.set_admitted();
        } else {
            self.dismiss(context);
        }
        result.map_err(|failure| failure.errno)
    }

    /// Removes `context`, and its guests from it. Returns `false` if it had not joined.
    fn dismiss(&mut self, context: &Context) -> bool {
        let before = self.contexts.len();
        self.contexts.retain(|other| key(other) != key(context));
        if self.contexts.len() == before {
            return false;
        }
        for shared in self
            .shared
            .iter()
            .filter(|shared| shared.home != key(context))
        {
            context.forget_guest(&shared.buffer);
            // The mapping has reported failures.
            let _ = Buffer::unmap_all_in(&shared.buffer, context.space());
        }
        true
    }

    fn find(&self, buffer: &Arc<Buffer>) -> Option<usize> {
        self.shared
            .iter()
            .position(|shared| Arc::ptr_eq(&shared.buffer, buffer))
    }

    /// Ends a buffer everywhere.
    fn end(&mut self, index: usize, state: State) -> Result {
        let Ok(shared) = self.shared.remove(index) else {
            return Ok(());
        };
        for context in &self.contexts {
            context.forget_guest(&shared.buffer);
        }
        Buffer::end(&shared.buffer, state)
    }
}

/// The processes that have a device open: one list for all devices, which the module makes.
#[pin_data]
pub(crate) struct Processes {
    #[pin]
    all: Mutex<RBTree<usize, Arc<SharedBuffers>>>,
}

impl Processes {
    /// Makes an empty list.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let processes = pin_init!(Self {
            all <- new_mutex!(RBTree::new(), "pinmap_processes"),
        });
        Arc::pin_init(processes, GFP_KERNEL)
    }
}

impl SharedBuffers {
    fn key_of(context: &Context) -> usize {
        core::ptr::from_ref(context.account().mm()).addr()
    }

    fn of(context: &Context) -> Option<Arc<Self>> {
        let key = Self::key_of(context);
        let all = context.device().processes().all.lock();
        all.get(&key).cloned()
    }

    /// Finds or makes the process of `context`, and counts the context as a user.
    fn take(context: &Context) -> Result<Arc<Self>> {
        let key = Self::key_of(context);
        let members = Members {
            contexts: KVec::new(),
            shared: KVVec::new(),
        };
        let fresh = Arc::pin_init(
            pin_init!(Self {
                key,
                uses: Atomic::new(0),
                members <- new_mutex!(members, "pinmap_process"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let node = RBTreeNode::new(key, fresh.clone(), GFP_KERNEL_ACCOUNT)?;
        // Every process takes this lock: nothing allocates under it.
        let mut all = context.device().processes().all.lock();
        let process = match all.get(&key) {
            Some(process) => process.clone(),
            None => {
                all.insert(node);
                fresh
            }
        };
        process.uses.add(1, Relaxed);
        Ok(process)
    }

    /// Drops a use of the process, which goes with the last one.
    fn give_up(&self, context: &Context) {
        let mut all = context.device().processes().all.lock();
        if self.uses.fetch_sub(1, Relaxed) == 1 {
            let node = all.remove_node(&self.key);
            drop(all);
            drop(node);
        }
    }

    /// Adds `context`, which is about to be used: it gets all portable buffers of its process, or
    /// fails.
    pub(crate) fn join(context: &Arc<Context>) -> Result {
        let process = Self::take(context)?;
        let mut members = process.members.lock();
        // A context that ends waits for the lock, to be removed.
        let result = if context.is_admitted() || context.is_gone() {
            Ok(false)
        } else {
            members.admit(context).map(|()| true)
        };
        drop(members);
        if result != Ok(true) {
            process.give_up(context);
        }
        result.map(|_| ())
    }

    /// Removes `context`, which ends: its buffers go stale for the others, and its guests are
    /// removed. Can be called again.
    pub(crate) fn leave(context: &Context) {
        let Some(process) = Self::of(context) else {
            return;
        };
        let mut members = process.members.lock();
        if !members.dismiss(context) {
            return;
        }
        // From the end: those behind the one that is removed are moved.
        while let Some(index) = members
            .shared
            .iter()
            .rposition(|shared| shared.home == key(context))
        {
            if let Ok(shared) = members.shared.remove(index) {
                // The mapping has reported failures.
                let _ = Buffer::end_with_context(&shared.buffer);
                if shared.buffer.state() != State::Stale {
                    for other in &members.contexts {
                        other.forget_guest(&shared.buffer);
                    }
                }
            }
        }
        drop(members);
        process.give_up(context);
    }

    /// After `context` gave up a flat device: maps the portable buffers for the other context of
    /// the process that has it open, unless another process claimed the device first.
    pub(crate) fn hand_over(context: &Context) {
        let Some(process) = Self::of(context) else {
            return;
        };
        let members = process.members.lock();
        for shared in &members.shared {
            for other in &members.contexts {
                // No task is left to use it; or this task is being killed and has to end soon. (A
                // process that shares the killed one's memory, by CLONE_VM, is given nothing then.)
                let account = context.account();
                if account.is_unused() || (account.is_current() && task::fatal_signal_pending()) {
                    return;
                }
                if Arc::ptr_eq(other.device(), context.device()) && key(other) != shared.home {
                    if let Ok(Some(guest)) = members.invite(other, shared) {
                        guest.publish();
                    }
                }
            }
        }
    }

    /// Shares `buffer` of `context` with all other contexts, once. Returns guests that are to be
    /// published; `None`: the buffer was shared before.
    pub(crate) fn share(
        context: &Arc<Context>,
        buffer: &Arc<Buffer>,
        target: Target,
        write: bool,
    ) -> Result<Option<KVec<Guest>>, Failure> {
        let process = Self::of(context).ok_or(ENODEV)?;
        let mut members = process.members.lock();
        let shared = SharedBuffer {
            buffer: buffer.clone(),
            home: key(context),
            target,
            write,
        };
        if !members
            .contexts
            .iter()
            .any(|other| key(other) == shared.home)
        {
            return Err(ENODEV.into());
        }
        if members.find(buffer).is_some() {
            return Ok(None);
        }
        let guests = members.invite_all(&shared)?;
        // A release since then has looked for the buffer here, and has not found it.
        buffer.check_usable()?;
        // Contexts that join from now on get the buffer, too.
        members.shared.push(shared, GFP_KERNEL_ACCOUNT)?;
        Ok(Some(guests))
    }

    /// Removes `buffer` of `context` from all other contexts.
    pub(crate) fn unshare(context: &Context, buffer: &Arc<Buffer>) {
        let Some(process) = Self::of(context) else {
            return;
        };
        let mut members = process.members.lock();
        if let Some(index) = members.find(buffer) {
            let _ = members.shared.remove(index);
        }
        buffer.begin_to_leave_all_but(context.space());
        for other in &members.contexts {
            if key(other) != key(context) {
                other.forget_guest(buffer);
                // The mapping has reported failures.
                let _ = Buffer::unmap_all_in(buffer, other.space());
            }
        }
    }

    /// Ends `buffer`, whose home is `context`, everywhere.
    pub(crate) fn end(context: &Context, buffer: &Arc<Buffer>, state: State) -> Result {
        if buffer.is_portable() {
            Self::end_portable(context, buffer, state)
        } else {
            Buffer::end(buffer, state)
        }
    }

    fn end_portable(context: &Context, buffer: &Arc<Buffer>, state: State) -> Result {
        let Some(process) = Self::of(context) else {
            return Buffer::end(buffer, state);
        };
        let mut members = process.members.lock();
        match members.find(buffer) {
            Some(index) => members.end(index, state),
            None => Buffer::end(buffer, state),
        }
    }
}
