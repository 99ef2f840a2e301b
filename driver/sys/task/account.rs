// SPDX-License-Identifier: GPL-2.0
//! Charges pinned memory to a user, as iommufd and io_uring do.
//!
//! Each page counts in `mm->pinned_vm`, which is `VmPin` in `/proc/PID/status`. It also counts in
//! `user->locked_vm`, against RLIMIT_MEMLOCK, unless the process has CAP_IPC_LOCK.
//!
//! C headers: [`include/linux/sched/user.h`](srctree/include/linux/sched/user.h),
//! [`include/linux/mm_types.h`](srctree/include/linux/mm_types.h).

use crate::sys::helpers;
use core::ptr::NonNull;
use kernel::{
    bindings, ffi,
    mm::Mm,
    page::PAGE_SHIFT,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Atomic, Relaxed},
    },
};

/// A user, with a reference.
///
/// # Invariants
///
/// The pointer is valid and we own a reference.
struct User(NonNull<bindings::user_struct>);

// SAFETY: `struct user_struct` is reference-counted and may be used from any thread.
unsafe impl Send for User {}
// SAFETY: `struct user_struct` is reference-counted and may be used from any thread.
unsafe impl Sync for User {}

impl User {
    fn current() -> Result<Self> {
        // SAFETY: There is a current task, and it has credentials with a user.
        let user = unsafe { helpers::pinmap_get_current_user() };
        // INVARIANT: The call took a reference.
        NonNull::new(user).map(Self).ok_or(ESRCH)
    }

    fn locked_vm(&self) -> &Atomic<i64> {
        // SAFETY: Valid by the type invariants; the field is only ever accessed atomically.
        unsafe { Atomic::from_ptr(&raw mut (*self.0.as_ptr()).locked_vm.counter) }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // SAFETY: We own a reference by the type invariants.
        unsafe { bindings::free_uid(self.0.as_ptr()) };
    }
}

/// The user and the address space that pages are charged to.
pub(crate) struct Account {
    user: User,
    mm: ARef<Mm>,
}

/// A charge that would have exceeded the limit; both values are in bytes.
pub(crate) struct OverLimit {
    pub(crate) needed: u64,
    pub(crate) allowed: u64,
}

impl Account {
    /// Makes an account of the current user and `mm`, the current task's address space.
    pub(crate) fn current(mm: ARef<Mm>) -> Result<Self> {
        Ok(Self {
            user: User::current()?,
            mm,
        })
    }

    /// The address space that is charged.
    pub(crate) fn mm(&self) -> &Mm {
        &self.mm
    }

    /// Returns a key of the user: equal for all accounts of that user, as long as one of them
    /// exists.
    pub(crate) fn user(&self) -> usize {
        self.user.0.as_ptr() as usize
    }

    /// The number of the user, among all users of the system.
    pub(crate) fn uid(&self) -> u32 {
        // SAFETY: Valid by the type invariants of `User`; the field never changes.
        unsafe { (*self.user.0.as_ptr()).uid.val }
    }

    /// Whether the account is for the current task's address space.
    pub(crate) fn is_current(&self) -> bool {
        kernel::current!()
            .mm()
            .is_some_and(|mm| core::ptr::eq(mm.as_raw(), self.mm.as_raw()))
    }

    /// Whether no task uses the address space any more.
    pub(crate) fn is_unused(&self) -> bool {
        self.users() == 0
    }

    /// Number of tasks, and others, that use the address space.
    pub(crate) fn users(&self) -> u32 {
        // SAFETY: We hold a reference to the `mm_struct`; the field is only accessed atomically.
        let users = unsafe {
            Atomic::from_ptr(&raw mut (*self.mm.as_raw()).__bindgen_anon_1.mm_users.counter)
        };
        u32::try_from(users.load(Relaxed)).unwrap_or(0)
    }

    /// Bytes charged to the user, by pinmap and by everybody else.
    pub(crate) fn used(&self) -> u64 {
        pages_to_bytes(self.user.locked_vm().load(Relaxed))
    }

    /// Bytes that the current task may lock; `None` if there is no limit.
    pub(crate) fn limit() -> Option<u64> {
        // SAFETY: No requirements.
        let limit = unsafe { helpers::pinmap_memlock_limit() } as u64;
        (limit != u64::MAX && !unlimited()).then_some(limit)
    }

    /// Charges `pages`, or fails if that exceeds the limit. Returns their number, and whether the
    /// user was charged.
    fn charge(&self, pages: u64) -> core::result::Result<(i64, bool), OverLimit> {
        let too_many = OverLimit {
            needed: u64::MAX,
            allowed: u64::MAX,
        };
        let pages = i64::try_from(pages).map_err(|_| too_many)?;
        let user_charged = !unlimited();
        if user_charged {
            self.charge_user(pages)?;
        }
        self.pinned_vm().add(pages, Relaxed);
        Ok((pages, user_charged))
    }

    fn charge_user(&self, pages: i64) -> core::result::Result<(), OverLimit> {
        let limit = Self::limit();
        let locked = self.user.locked_vm();
        let mut now = locked.load(Relaxed);
        loop {
            let after = now.saturating_add(pages);
            let needed = pages_to_bytes(after);
            if let Some(allowed) = limit.filter(|&allowed| needed > allowed) {
                return Err(OverLimit { needed, allowed });
            }
            match locked.cmpxchg(now, after, Relaxed) {
                Ok(_) => return Ok(()),
                Err(seen) => now = seen,
            }
        }
    }

    fn pinned_vm(&self) -> &Atomic<i64> {
        // SAFETY: We hold a reference to the `mm_struct`; the field is only accessed atomically.
        unsafe { Atomic::from_ptr(&raw mut (*self.mm.as_raw()).__bindgen_anon_1.pinned_vm.counter) }
    }
}

/// Whether no limit holds for the current task.
fn unlimited() -> bool {
    // SAFETY: No requirements.
    unsafe { bindings::capable(bindings::CAP_IPC_LOCK as ffi::c_int) }
}

fn pages_to_bytes(pages: i64) -> u64 {
    u64::try_from(pages)
        .unwrap_or(0)
        .saturating_mul(1 << PAGE_SHIFT)
}

/// Pages charged to an account. Dropping the charge gives them back.
pub(crate) struct Charge {
    account: kernel::sync::Arc<Account>,
    pages: i64,
    user_charged: bool,
}

impl Charge {
    /// Charges `pages` to `account`, or fails if that exceeds the limit.
    pub(crate) fn new(
        account: &kernel::sync::Arc<Account>,
        pages: u64,
    ) -> core::result::Result<Self, OverLimit> {
        let (pages, user_charged) = account.charge(pages)?;
        Ok(Self {
            account: account.clone(),
            pages,
            user_charged,
        })
    }

    /// Charges `pages` in place of what was charged, to the same account. After a failure nothing
    /// is charged.
    pub(crate) fn renew(&mut self, pages: u64) -> core::result::Result<(), OverLimit> {
        self.give_back();
        (self.pages, self.user_charged) = self.account.charge(pages)?;
        Ok(())
    }

    /// Gives everything back.
    pub(crate) fn give_back(&mut self) {
        if self.pages == 0 {
            return;
        }
        if self.user_charged {
            self.account.user.locked_vm().fetch_sub(self.pages, Relaxed);
        }
        self.account.pinned_vm().fetch_sub(self.pages, Relaxed);
        self.pages = 0;
    }

    /// The account that is charged.
    pub(crate) fn account(&self) -> &kernel::sync::Arc<Account> {
        &self.account
    }

    /// Splits off the charge for one page; `None` if none is left.
    pub(crate) fn take_page(&mut self) -> Option<Self> {
        if self.pages == 0 {
            return None;
        }
        self.pages = self.pages.saturating_sub(1);
        Some(Self {
            account: self.account.clone(),
            pages: 1,
            user_charged: self.user_charged,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.give_back();
    }
}
