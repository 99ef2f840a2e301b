// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lent memory: slices of ordinary memory, which nobody registered, as operands.
//!
//! A scope, or work that memory is handed over to, *lends* a slice to the device until the work is
//! done. A device that can fault reaches the slice because the program's addresses are *managed*:
//! for as long as a queue exists that was lent memory, all of them are, unless the program has
//! chosen ranges itself ([`ManagedRange`](managed::ManagedRange)). For any other device the pages
//! around the slice are *registered* at their own addresses for as long as the loan lasts.
//!
//! A page at the end of a slice may also hold the end of another one. So such a page is registered
//! by itself and shared by all loans that need it, for reading and writing where that is possible.
//! Whole pages are registered for just the access that the loan needs; only loans that read can
//! share these.
//!
//! # Why there may be references to memory that a device writes
//!
//! A slice that is lent for writing is borrowed exclusively, one for reading is borrowed shared.
//! The device makes only the accesses that packets name, and the crate makes packets of operands
//! that are borrowed; submitting packets that were made by hand is unsafe. So everything depends on
//! the borrow lasting until the device is done:
//!
//! - It lasts for `'scope`, which is a lifetime parameter of the function that runs the scope. That
//!   function returns when each queue that was used is done or destroyed, and not before. Nothing
//!   that the program could forget ([`std::mem::forget`]) has a part in that.
//! - If the program's code panics, the function waits first, and then goes on unwinding. A panic of
//!   the waiting itself ends the process ([`or_abort`]).
//! - Memory that is handed over belongs to the crate. Forgotten, it is never freed.
//! - A queue that has failed does nothing more. One that cannot be waited for is destroyed. If that
//!   fails, too, the process ends: see [`Handle::destroy`](crate::queue::handle::Handle::destroy).
//!   A device that is gone (`ENODEV`) has been cut off from memory before the driver says so.
//! - After `fork()` the device works on the memory of the parent. The child has copies, which the
//!   device does not reach; but it could release what the parent needs, as the documentation of the
//!   crate says.
#![allow(unsafe_code)]

pub(crate) mod managed;
mod pages;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::error::{abort, Refused, Result};
use crate::memory::element::Element;
use crate::memory::options::Access;
use crate::memory::slice::{DeviceSlice, DeviceSliceMut, Reach};
use crate::memory::view::View;

use managed::Range;
use pages::Pages;

/// The cause with which a queue is poisoned when memory could not be released.
pub(crate) const KEPT: &str = "memory of it could not be taken back from the device";

/// How long the end of a scope waits for work that waits for a value, if the scope's function has
/// failed: the program may never store the value.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Parts that the queues of a context share to lend memory: managed ranges and registered pages,
/// each with the number of its loans.
#[derive(Default)]
pub(crate) struct Lender(Mutex<State>);

#[derive(Default)]
struct State {
    /// Managed ranges by first address. They do not overlap.
    ranges: BTreeMap<usize, Range>,
    /// Windows by first address. They do not overlap; they may lie in managed ranges.
    windows: BTreeMap<usize, Range>,
    /// Registered pages by first address. They do not overlap.
    pages: BTreeMap<usize, Pages>,
    /// The driver has said that nothing can be managed here.
    unmanageable: bool,
}

/// A part of what a [`Lender`] has, which stays as it is until the loan ends.
pub(crate) struct Loan {
    lender: Arc<Lender>,
    device: Device,
    /// `None` after the loan has ended.
    part: Option<Part>,
}

/// A part, by its first address.
#[derive(Debug, Clone, Copy)]
enum Part {
    Range(usize),
    Window(usize),
    Pages(usize),
}

impl Lender {
    /// Finds or makes the lender of a context.
    fn of(device: &Device) -> Arc<Self> {
        device.lending().find_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic cannot leave a change half done: only reading can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loan(self: &Arc<Self>, device: &Device, part: Part) -> Loan {
        Loan {
            lender: Arc::clone(self),
            device: device.clone(),
            part: Some(part),
        }
    }

    /// Ends loans of this lender.
    fn end(&self, loans: &mut [Loan]) -> Result<()> {
        // Under the lock, so that a new loan either finds a part or can make it anew.
        let mut state = self.lock();
        let mut ended = Vec::new();
        for loan in loans {
            match loan.part.take() {
                None => {}
                Some(Part::Range(first)) => {
                    managed::give_back(&mut state.ranges, &loan.device, first);
                }
                Some(Part::Window(first)) => {
                    managed::give_back(&mut state.windows, &loan.device, first);
                }
                Some(Part::Pages(first)) => {
                    ended.extend(pages::end_loan(&mut state.pages, first));
                }
            }
        }
        pages::take_back(ended)
    }
}

impl Loan {
    /// Ends the loan. The last one of a part takes the part back from the device.
    ///
    /// # Errors
    ///
    /// As for [`Loans::end_all`].
    fn end(&mut self) -> Result<()> {
        let lender = Arc::clone(&self.lender);
        lender.end(std::slice::from_mut(self))
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // Those who can tell of an error have ended the loan before.
        let _ = self.end();
    }
}

/// The loans of a scope or of pending work.
#[derive(Default)]
pub(crate) struct Loans {
    loans: Mutex<Vec<Loan>>,
    /// Whether the work waits for a value that the program may have to store.
    awaits_program: AtomicBool,
}

impl Loans {
    fn lock(&self) -> MutexGuard<'_, Vec<Loan>> {
        self.loans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the work waits for a value.
    pub(crate) fn await_program(&self) {
        self.awaits_program.store(true, Ordering::Relaxed);
    }

    /// How long the end of a scope, whose function has `failed` or has not, waits for the work.
    /// `None`: as long as it takes.
    pub(crate) fn patience(&self, failed: bool) -> Option<Duration> {
        (failed && self.awaits_program.load(Ordering::Relaxed)).then_some(AFTER_FAILURE)
    }

    /// Adds a loan of a managed range. One of each range is enough, however many slices are lent.
    fn add(&self, loan: Loan) {
        let mut loans = self.lock();
        if !loans.iter().any(|other| other.is_same_range(&loan)) {
            loans.push(loan);
        }
    }

    /// Adds what `lend` lends to `device`, unless that has something already.
    pub(crate) fn extend(
        &self,
        device: &Device,
        lend: impl FnOnce() -> Result<Self>,
    ) -> Result<()> {
        let mut loans = self.lock();
        if !loans.iter().any(|loan| loan.device.is_same(device)) {
            loans.append(&mut lend()?.lock());
        }
        Ok(())
    }

    /// Whether nothing is lent.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Ends all loans; the work must be done. When this returns, also with an error, no device
    /// reaches registered memory that was written.
    pub(crate) fn end(&self) -> Result<()> {
        Self::end_all([self])
    }

    /// Ends all of these loans, as [`end`](Self::end) does. What the driver is to release it
    /// releases by one call.
    ///
    /// # Errors
    ///
    /// `EIO`: registered memory that the device could write was not taken back; the device is cut
    /// off. See [`release_all_or_abort`](super::raw::all::release_all_or_abort).
    pub(crate) fn end_all<'a>(all: impl IntoIterator<Item = &'a Self>) -> Result<()> {
        let all = all.into_iter();
        let mut loans: Vec<_> = all
            .flat_map(|loans| std::mem::take(&mut *loans.lock()))
            .collect();
        loans.sort_by_key(|loan| Arc::as_ptr(&loan.lender).addr());
        // Each of them, also after an error.
        let lenders = loans.chunk_by_mut(|one, two| Arc::ptr_eq(&one.lender, &two.lender));
        let ended = lenders.map(|of_lender| match of_lender {
            [] => Ok(()),
            [first, ..] => Arc::clone(&first.lender).end(of_lender),
        });
        ended.fold(Ok(()), Result::and)
    }
}

/// Registers the pages around some memory for all queues of a context, until the loans end.
pub(crate) fn register(device: &Device, addr: usize, len: usize, access: Access) -> Result<Loans> {
    let all = register_all(device, &[(addr, len)], access);
    let mut all = all.map_err(|refused| refused.error)?;
    Ok(all.pop().unwrap_or_default())
}

/// Registers the pages around several pieces of memory, each given as address and length, as
/// [`register`] does: all or none.
pub(crate) fn register_all(
    device: &Device,
    memory: &[(usize, usize)],
    access: Access,
) -> Result<Vec<Loans>, Refused> {
    if memory.iter().all(|&(_, len)| len == 0) {
        return Ok(memory.iter().map(|_| Loans::default()).collect());
    }
    device.note_lending();
    let (loans, _) = Lender::of(device).register_slices(device, memory, access)?;
    let loans = loans.into_iter().map(|loans| Loans {
        loans: Mutex::new(loans),
        ..Loans::default()
    });
    Ok(loans.collect())
}

/// How a queue lends memory.
#[derive(Default)]
pub(crate) struct Lending {
    /// Memory is registered even if it could be managed.
    registers: bool,
    lender: OnceLock<Arc<Lender>>,
    /// Keeps all addresses managed as long as the queue exists, so that the device keeps pages from
    /// one piece of work to the next.
    all: OnceLock<Loan>,
}

impl Lending {
    pub(crate) fn new(registers: bool) -> Self {
        Self {
            registers,
            ..Self::default()
        }
    }

    /// Lends a slice for reading. The caller ends the loans when the work is done, which is before
    /// `'a` ends.
    pub(crate) fn slice<'a, T: Element>(
        &self,
        device: &Device,
        memory: &'a [T],
        loans: &Loans,
    ) -> Result<DeviceSlice<'a, T>> {
        let (addr, bytes) = (memory.as_ptr().expose_provenance(), size_of_val(memory));
        let reach = self.lend(device, addr, bytes, Access::Read, loans)?;
        // SAFETY: Elements are initialised and have no padding. Nobody writes to them during `'a`.
        let view = unsafe { std::slice::from_raw_parts(memory.as_ptr().cast::<u8>(), bytes) };
        let view = View::Plain(view);
        Ok(DeviceSlice::lent(
            device,
            view,
            addr as u64,
            memory.len(),
            reach,
        ))
    }

    /// Lends a slice for writing. The caller ends the loans when the work is done, which is before
    /// `'a` ends.
    pub(crate) fn slice_mut<'a, T: Element>(
        &self,
        device: &Device,
        memory: &'a mut [T],
        loans: &Loans,
    ) -> Result<DeviceSliceMut<'a, T>> {
        let (len, bytes) = (memory.len(), size_of_val(memory));
        let start = memory.as_mut_ptr().cast::<AtomicU8>();
        let addr = start.expose_provenance();
        let reach = self.lend(device, addr, bytes, Access::ReadWrite, loans)?;
        // SAFETY: Elements are initialised, have no padding, and can be any bytes. `memory` is not
        // used again, so that during `'a` only this view refers to them, by atomics, which allow
        // the device to write, too.
        let view = View::Lent(unsafe { std::slice::from_raw_parts(start, bytes) });
        let slice = DeviceSlice::lent(device, view, addr as u64, len, reach);
        Ok(DeviceSliceMut::new(slice))
    }

    /// Lets the device reach memory until the loans end.
    fn lend(
        &self,
        device: &Device,
        addr: usize,
        bytes: usize,
        access: Access,
        loans: &Loans,
    ) -> Result<Reach> {
        if bytes == 0 {
            return Ok(Reach::Mapped);
        }
        device.note_lending();
        let lender = self.lender.get_or_init(|| Lender::of(device));
        if !self.registers {
            if let Some((loan, all)) = lender.manage_slice(device, addr, bytes)? {
                if all {
                    self.all.get_or_init(|| loan.again());
                }
                loans.add(loan);
                return Ok(Reach::Managed);
            }
        }
        let start = Instant::now();
        let registered = lender.register_slices(device, &[(addr, bytes)], access);
        let (more, bytes) = registered.map_err(|refused| refused.error)?;
        loans.lock().extend(more.into_iter().flatten());
        let time = start.elapsed();
        Ok(Reach::Registered { bytes, time })
    }
}

/// Runs something during which a panic must not end borrows: it ends the process instead.
pub(crate) fn or_abort<T>(what: impl FnOnce() -> T) -> T {
    struct Panicked;
    impl Drop for Panicked {
        fn drop(&mut self) {
            abort("a panic while waiting for a device that uses memory");
        }
    }
    let panicked = Panicked;
    let result = what();
    std::mem::forget(panicked);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;

    #[test]
    fn nothing_needs_no_loan() {
        let (device, loans) = (Device::fake(), Loans::default());
        let lending = Lending::new(false);
        let slice = lending.slice::<u64>(&device, &[], &loans);
        assert_eq!(slice.expect("nothing").reach(), Reach::Mapped);
        assert!(loans.is_empty());
        let mut byte = [7u8];
        let error = lending.slice_mut(&device, &mut byte, &loans);
        assert_eq!(error.expect_err("no driver").errno(), Errno::ENOTTY as i32);
        assert!(loans.is_empty());
    }

    #[test]
    fn loans_can_be_shared_and_sent() {
        fn check<T: Send + Sync>() {}
        check::<Loans>();
        check::<Lending>();
        check::<managed::ManagedRange>();
    }
}
