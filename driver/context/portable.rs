// SPDX-License-Identifier: GPL-2.0
//! Portable memory: on every device that the process has open.
//!
//! The contexts of one address space share their portable buffers. Whoever joins gets those that there
//! are, and a new one goes to whoever is there: both under one lock, so that none is missed. It is held
//! while memory is mapped and unmapped, but not while pages are pinned or user space is asked for anything;
//! it comes behind a context's `teardown` and before its `table`.

use super::{Context, Reserved};
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
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, Mutex,
    },
};

/// The contexts of an address space that has files open.
#[pin_data]
pub(crate) struct SharedBuffers {
    /// Names the address space, for as long as a context keeps it.
    key: usize,
    /// Contexts that belong to it; changed under the lock of all processes.
    uses: Atomic<usize>,
    #[pin]
    members: Mutex<Members>,
}

struct Members {
    contexts: KVec<Arc<Context>>,
    shared: KVec<Shared>,
}

/// A portable buffer.
struct Shared {
    buffer: Arc<Buffer>,
    /// The context that registered it.
    home: usize,
    target: Target,
    write: bool,
}

/// A portable buffer in a context that did not register it. Dropping it takes it away there.
pub(crate) struct Guest {
    reserved: Reserved,
    claim: Claim,
}

impl Guest {
    /// The registration has succeeded. If the context is gone meanwhile, it is not there.
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
    /// Lets `context` have `shared`; `None` if it cannot need it: its device is gone, or has no MMU and
    /// belongs to another context of the process, which has it or has let go of it; or the memory went away.
    fn invite(&self, context: &Arc<Context>, shared: &Shared) -> Result<Option<Guest>, Failure> {
        let is_usable = || shared.buffer.check_usable().is_ok();
        if self.is_there(context, shared) || self.is_owned_by_sibling(context) || !is_usable() {
            return Ok(None);
        }
        match Self::bring(context, shared) {
            Err(failure) if failure.errno == ENODEV || !is_usable() => Ok(None),
            result => result.map(Some),
        }
    }

    fn bring(context: &Arc<Context>, shared: &Shared) -> Result<Guest, Failure> {
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

    /// Whether another context of the process has the device of `context`.
    fn is_owned_by_sibling(&self, context: &Context) -> bool {
        self.contexts.iter().any(|other| {
            let same = Arc::ptr_eq(other.device(), context.device());
            let another = key(other) != key(context);
            same && another && other.device().backend().is_owner(other.id())
        })
    }

    /// Whether the device of `context`, if it has no MMU, is reached by a context already.
    fn is_there(&self, context: &Context, shared: &Shared) -> bool {
        context.space().is_of_the_device()
            && self.contexts.iter().any(|other| {
                let same = Arc::ptr_eq(other.device(), context.device());
                same && shared.buffer.is_in(other.space())
            })
    }

    /// Lets all but its home have `shared`.
    fn invite_all(&self, shared: &Shared) -> Result<KVec<Guest>, Failure> {
        let mut guests = KVec::new();
        let others = || {
            self.contexts
                .iter()
                .filter(|other| key(other) != shared.home)
        };
        for other in others() {
            // There may be very many, and others wait for the lock.
            if task::fatal_signal_pending() {
                return Err(EINTR.into());
            }
            match self.invite(other, shared) {
                Ok(Some(guest)) => guests.push(guest, GFP_KERNEL_ACCOUNT)?,
                Ok(None) => {}
                // Another context of the process may be the owner: see below.
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

    /// Adds `context`, with all that there is.
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

    /// Takes `context` out, and from it what it has of others; `false` if it is none of them.
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
            // Whoever has to know of a failure was told by the mapping.
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
    all: Mutex<KVec<Arc<SharedBuffers>>>,
}

impl Processes {
    /// Makes an empty list.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let processes = pin_init!(Self {
            all <- new_mutex!(KVec::new(), "pinmap_processes"),
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
        all.iter().find(|process| process.key == key).cloned()
    }

    /// The process of `context`, which uses it from now on.
    fn take(context: &Context) -> Result<Arc<Self>> {
        let key = Self::key_of(context);
        let members = Members {
            contexts: KVec::new(),
            shared: KVec::new(),
        };
        let fresh = Arc::pin_init(
            pin_init!(Self {
                key,
                uses: Atomic::new(0),
                members <- new_mutex!(members, "pinmap_process"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let mut all = context.device().processes().all.lock();
        let known = all.iter().find(|process| process.key == key).cloned();
        let process = match known {
            Some(process) => process,
            None => {
                all.push(fresh.clone(), GFP_KERNEL_ACCOUNT)?;
                fresh
            }
        };
        process.uses.add(1, Relaxed);
        Ok(process)
    }

    /// Ends the use by `context`.
    fn give_up(&self, context: &Context) {
        let mut all = context.device().processes().all.lock();
        if self.uses.fetch_sub(1, Relaxed) == 1 {
            all.retain(|other| other.key != self.key);
        }
    }

    /// `context` is about to be used: it gets all portable buffers of its process, or none.
    pub(crate) fn join(context: &Arc<Context>) -> Result {
        let process = Self::take(context)?;
        let mut members = process.members.lock();
        // Its end waits for the lock to take it out.
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

    /// `context` ends: what it registered goes stale for the others, and it has nothing of others any more.
    /// Can be called again.
    pub(crate) fn leave(context: &Context) {
        let Some(process) = Self::of(context) else {
            return;
        };
        let mut members = process.members.lock();
        if !members.dismiss(context) {
            return;
        }
        while let Some(index) = members
            .shared
            .iter()
            .position(|shared| shared.home == key(context))
        {
            if let Ok(shared) = members.shared.remove(index) {
                // Whoever has to know of a failure was told by the mapping.
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

    /// The device that `context`, which has left, had alone is free again: whoever else of the process has it
    /// open gets there what is portable. Not if another process was quicker: then it cannot use the device.
    pub(crate) fn hand_over(context: &Context) {
        let Some(process) = Self::of(context) else {
            return;
        };
        let members = process.members.lock();
        for shared in &members.shared {
            for other in &members.contexts {
                // Nobody is left to use it, or soon nobody will be.
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

    /// Shares `buffer`, of `context`, with all others, once: not visible there until the guests are
    /// published. `None`: it is shared already.
    pub(crate) fn share(
        context: &Arc<Context>,
        buffer: &Arc<Buffer>,
        target: Target,
        write: bool,
    ) -> Result<Option<KVec<Guest>>, Failure> {
        let process = Self::of(context).ok_or(ENODEV)?;
        let mut members = process.members.lock();
        let shared = Shared {
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
        // Not if it was released meanwhile: that looked for it here.
        buffer.check_usable()?;
        // From now on also for those who come later.
        members.shared.push(shared, GFP_KERNEL_ACCOUNT)?;
        Ok(Some(guests))
    }

    /// Takes `buffer`, of `context`, away from all others.
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
                // Whoever has to know of a failure was told by the mapping.
                let _ = Buffer::unmap_all_in(buffer, other.space());
            }
        }
    }

    /// Ends `buffer`, which `context` registered, everywhere.
    pub(crate) fn end(context: &Context, buffer: &Arc<Buffer>, state: State) -> Result {
        let process = buffer.is_portable().then(|| Self::of(context)).flatten();
        let Some(process) = process else {
            return Buffer::end(buffer, state);
        };
        let mut members = process.members.lock();
        match members.find(buffer) {
            Some(index) => members.end(index, state),
            None => Buffer::end(buffer, state),
        }
    }
}
