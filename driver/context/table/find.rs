// SPDX-License-Identifier: GPL-2.0
//! Finding what handles and addresses name.

use super::{key, Context};
use crate::{buffer::Buffer, failure::Failure, logic::span::Span, sys::fs::miscdevice, uapi};
use kernel::{prelude::*, sync::Arc};

/// A buffer that was found, and how.
pub(crate) struct Found {
    /// 0: the buffer has no handle yet.
    pub(crate) handle: u64,
    pub(crate) buffer: Arc<Buffer>,
    /// User address of its first byte; 0: none.
    pub(crate) base: u64,
    /// Offset in the buffer of the address by which it was found.
    pub(crate) offset: u64,
}

/// The answer to whether a registration would get a handle.
pub(crate) struct Vacancy {
    /// Registrations that there would be with one more, and that there may be.
    pub(crate) needed: u64,
    pub(crate) allowed: u64,
    pub(crate) result: Result<(), Failure>,
}

impl Context {
    pub(crate) fn registrations(&self) -> u32 {
        self.table.lock().count
    }

    /// Finds the buffer that is called `handle`.
    pub(crate) fn find(&self, handle: u64) -> Result<Arc<Buffer>> {
        self.table.lock().get(handle).cloned()
    }

    /// Finds the buffer with the lowest handle from `handle` on.
    pub(crate) fn find_from(&self, mut handle: u64) -> Option<(u64, Arc<Buffer>)> {
        let table = self.table.lock();
        loop {
            let cursor = table.by_handle.cursor_lower_bound(&handle)?;
            let (&found, entry) = cursor.current();
            if let Some(entry) = entry.as_ref().filter(|entry| entry.is_visible()) {
                return Some((found, entry.buffer.clone()));
            }
            handle = found.checked_add(1)?;
        }
    }

    /// Finds the registration that contains the user address.
    pub(crate) fn find_address(&self, address: u64) -> Result<Found> {
        let table = self.table.lock();
        if table.gone {
            return Err(ENODEV);
        }
        let (handle, buffer) = table.first_from(address).ok_or(ENOENT)?;
        if !buffer.span().contains(address) {
            return Err(ENOENT);
        }
        let handle = match table.get(handle) {
            Ok(_) => handle,
            Err(ENOENT) => 0,
            Err(error) => return Err(error),
        };
        let base = buffer.span().start();
        Ok(Found {
            handle,
            buffer: buffer.clone(),
            base,
            offset: address.saturating_sub(base),
        })
    }

    /// Finds the memory allocated by the driver that the current task has mapped at `address`, if
    /// this context has a handle for it.
    pub(crate) fn find_view(&self, address: u64) -> Result<Found> {
        let (owner, at) = miscdevice::shown_at::<Self>(address).ok_or(ENOENT)?;
        let (mut handle, first) = owner.mmap_offsets.find(at).ok_or(ENOENT)?;
        let mut buffer = owner.find(handle)?;
        if !core::ptr::eq(&*owner, self) {
            // Another context's memory is a guest here, if it is portable.
            let table = self.table.lock();
            handle = table.guests.get(&key(&buffer)).copied().ok_or(ENOENT)?;
            buffer = table.get(handle)?.clone();
        }
        let offset = at.saturating_sub(first);
        Ok(Found {
            handle,
            buffer,
            base: address.saturating_sub(offset),
            offset,
        })
    }

    /// Fails if some of the memory at `span` was mapped from this file: memory of the driver cannot
    /// be registered. Device memory is not looked for, because it cannot be pinned anyhow.
    pub(crate) fn check_foreign(&self, span: Span) -> Result<(), Failure> {
        if self.mmap_offsets.is_empty() {
            return Ok(());
        }
        self.look_for_foreign(span)
    }

    fn look_for_foreign(&self, span: Span) -> Result<(), Failure> {
        let Some(address) = miscdevice::first_shown(self, span) else {
            return Ok(());
        };
        match self.find_view(address) {
            Ok(found) if !found.buffer.is_vram() => {
                Err(Failure::at(EEXIST, uapi::PINMAP_FAIL_OVERLAP, address))
            }
            _ => Ok(()),
        }
    }

    /// Whether a registration of `span` would get a handle now.
    pub(crate) fn try_reserve(&self, span: Span) -> Vacancy {
        let table = self.table.lock();
        let (needed, allowed) = table.counts();
        let result = if table.gone {
            Err(ENODEV.into())
        } else {
            table
                .check_count()
                .and_then(|()| table.check_way(span).map(|_| ()))
        };
        Vacancy {
            needed,
            allowed,
            result,
        }
    }
}
