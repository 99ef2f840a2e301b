// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed ranges: addresses of the program that a device reaches without registration.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::errno::Errno;

use crate::device::accelerator::Accelerator;
use crate::device::Device;
use crate::error::failure::Failure;
use crate::error::{Error, Operation, Result};
use crate::memory::raw::outwards;
use crate::sys::map::page_size;
use crate::sys::{bindings as abi, ioctl};

use super::{Lender, Loan, Part, State};

/// A range that the driver manages.
pub(super) struct Range {
    last: usize,
    handle: u64,
    /// The memory stays where it is.
    on_host: bool,
    loans: usize,
}

impl Range {
    fn covers(&self, last: usize) -> bool {
        last <= self.last
    }

    fn is_all(&self) -> bool {
        self.last == usize::MAX
    }
}

/// Addresses of the program that the queues of a context reach without registration.
///
/// Made by [`Accelerator::manage`] and [`Accelerator::manage_all`]. When it is dropped, the
/// addresses are not managed any more, unless something else of the context still needs that:
/// another `ManagedRange`, a [`Managed`](crate::accelerator::Managed), work that is not done, or a
/// queue that was lent memory. A forgotten one ([`std::mem::forget`]) lasts until the context is
/// closed.
///
/// ```no_run
/// # fn f(gpu: &pinmap::accelerator::Accelerator, numbers: &[f32]) -> pinmap::Result<()> {
/// let range = gpu.manage(numbers)?;
/// println!("{:x?} are managed", range.range());
/// drop(range); // and not any more
/// # Ok(()) }
/// ```
#[must_use = "dropped, the addresses are not managed any more"]
pub struct ManagedRange {
    loan: Loan,
    /// Address and length; `None`: all addresses.
    range: Option<(usize, usize)>,
}

impl Accelerator {
    /// Has the memory at some addresses *managed*: this context's queues reach it without
    /// registration, at the same addresses. The whole pages around `memory` are managed.
    ///
    /// A queue that touches a page which the device does not have yet waits, the page is faulted in
    /// as if the program had touched it, and the queue goes on. Nothing is pinned, and nothing
    /// counts against `RLIMIT_MEMLOCK`. The device may do what the program may do there at that
    /// moment. Any other access is a [`Fault`](crate::accelerator::Fault) with its reason. What
    /// `munmap()`, `mprotect()`, `fork()` and the like change holds for the device when they
    /// return. Addresses at which nothing is mapped yet can be managed as well.
    ///
    /// Slices of ordinary memory ([`Work::slice`](crate::accelerator::Work::slice),
    /// [`Work::slice`](crate::accelerator::Work::slice)) need no call of this: without it, all
    /// addresses are managed from the first such slice on. A program that calls it chooses which.
    /// Slices at other addresses are then registered for as long as the work takes.
    ///
    /// This call is safe, because work names only operands that are borrowed. Raw packets reach
    /// what is managed, too.
    ///
    /// ```no_run
    /// use pinmap::accelerator::StreamOptions;
    /// use pinmap_testgpu as testgpu;
    /// # fn main() -> pinmap::Result<()> {
    /// let gpu = pinmap_testgpu::find()?;
    /// let stream = gpu.stream(StreamOptions::new())?;
    /// let mut numbers = vec![0.0f32; 1024];
    /// let _managed = gpu.manage(&numbers[..])?;
    /// stream.scope(|work| {
    ///     let mut data = work.slice_mut(&mut numbers)?;
    ///     work.launch(testgpu::IncrementF32 { data: &mut data })
    /// })?;
    /// assert_eq!(numbers[0], 1.0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the device cannot fault, or the kernel lets no driver follow the memory of
    /// programs ([`Info::managed`](crate::Info::managed)); `EINVAL`: the range is empty, or outside
    /// of the program's or the device's addresses; `EEXIST`: it overlaps with a managed range
    /// without lying in it; `EPERM`: another process opened the device; `ENOSPC`: too many objects;
    /// `ENOMEM`: out of memory; `ENODEV`: the device is gone; `EDEADLK`: this is a host function.
    pub fn manage<T>(&self, memory: *const [T]) -> Result<ManagedRange> {
        self.manage_memory(memory, false)
    }

    /// Has memory managed as [`manage`](Self::manage) does, and leaves it where it is when the
    /// device touches it, unless something else is [advised](Self::advise).
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator, flags: &[u64]) -> pinmap::Result<()> {
    /// // A touch of the device does not move the flags.
    /// let _managed = gpu.manage_on_host(flags)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`manage`](Self::manage); `EEXIST`: it is managed already, and moves.
    pub fn manage_on_host<T>(&self, memory: *const [T]) -> Result<ManagedRange> {
        self.manage_memory(memory, true)
    }

    fn manage_memory<T>(&self, memory: *const [T], on_host: bool) -> Result<ManagedRange> {
        let (start, count) = (memory.cast::<T>().addr(), memory.len());
        let bytes = count.checked_mul(size_of::<T>());
        let range = bytes.and_then(|bytes| outwards(start, bytes, page_size()));
        let range = range.filter(|&(_, len)| len != 0);
        let (addr, len) = range.ok_or_else(|| {
            let attempt = format!(
                "manage {count} elements at {start:#x} with {}",
                self.device()
            );
            Error::new(Operation::Manage, attempt, Errno::EINVAL)
        })?;
        self.manage_if(Some((addr, len)), on_host, true)
    }

    /// Has all addresses of the program managed that the device can translate, as
    /// [`manage`](Self::manage) does for a range.
    ///
    /// ```no_run
    /// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
    /// let _managed = gpu.manage_all()?;
    /// let numbers = vec![1.0f32; 1 << 20]; // managed, as all memory of the program
    /// gpu.prefetch(&numbers[..], pinmap::accelerator::Place::Vram)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`manage`](Self::manage); `EEXIST`: a range of this context is managed already.
    pub fn manage_all(&self) -> Result<ManagedRange> {
        self.manage_if(None, false, true)
    }

    /// Has all addresses managed as [`manage_all`](Self::manage_all) does, and leaves memory where
    /// it is, as [`manage_on_host`](Self::manage_on_host) does.
    ///
    /// ```no_run
    /// use pinmap::accelerator::{Advice, Place};
    /// # fn f(gpu: &pinmap::accelerator::Accelerator, table: &[u32]) -> pinmap::Result<()> {
    /// // Only what is advised moves to the device.
    /// let _all = gpu.manage_all_on_host()?;
    /// gpu.advise(table, Advice::new().prefer(Place::Vram))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`manage_all`](Self::manage_all); `EEXIST`: all are managed already, and move.
    pub fn manage_all_on_host(&self) -> Result<ManagedRange> {
        self.manage_if(None, true, true)
    }

    /// Has pages managed for a value that owns them, given as address and length: by a range of
    /// their own, or with all addresses, as for slices, unless the program has chosen ranges.
    pub(crate) fn manage_owned(
        &self,
        addr: usize,
        len: usize,
        apart: bool,
    ) -> Result<ManagedRange> {
        let chosen = !Lender::of(self.device()).lock().ranges.is_empty();
        if apart || chosen {
            return self.manage_if(Some((addr, len)), false, !apart);
        }
        match self.manage_all() {
            Ok(mut all) => {
                all.range = Some((addr, len));
                Ok(all)
            }
            // Another thread, or code beside this crate, has managed a range.
            Err(error) if error.errno() == Errno::EEXIST as i32 => {
                self.manage_if(Some((addr, len)), false, true)
            }
            Err(error) => Err(error),
        }
    }

    /// Has pages that were mapped for it managed as a window, given as address and length.
    pub(crate) fn manage_window(
        &self,
        addr: usize,
        len: usize,
        on_host: bool,
    ) -> Result<ManagedRange> {
        let device = self.device();
        let lender = Lender::of(device);
        device.note_lending();
        let range = Some((addr, len));
        let window = manage(device, range, on_host, abi::PINMAP_MANAGE_WINDOW)?;
        lender.lock().windows.insert(addr, window);
        let loan = lender.loan(device, Part::Window(addr));
        Ok(ManagedRange { loan, range })
    }

    /// Has a range managed, given as address and length, or all addresses. `shared`: a range in
    /// which it lies will do.
    fn manage_if(
        &self,
        range: Option<(usize, usize)>,
        on_host: bool,
        shared: bool,
    ) -> Result<ManagedRange> {
        let device = self.device();
        let lender = Lender::of(device);
        let (addr, last) = range.map_or((0, usize::MAX), |(addr, len)| (addr, addr + (len - 1)));
        let loan = {
            let mut state = lender.lock();
            let first = match covering(&mut state.ranges, addr, last) {
                Some((_, known)) if !shared || (on_host && !known.on_host) => {
                    let cause = match shared {
                        true => "it is managed already, and moves",
                        false => "it lies in a range that is managed already",
                    };
                    let attempt = attempt(device, range);
                    let errno = Errno::EEXIST;
                    return Err(Error::refused(Operation::Manage, attempt, errno, cause));
                }
                Some((first, known)) => {
                    known.loans += 1;
                    first
                }
                None => {
                    device.note_lending();
                    state.manage(device, range, on_host)?;
                    addr
                }
            };
            lender.loan(device, Part::Range(first))
        };
        Ok(ManagedRange { loan, range })
    }
}

/// The attempt to manage a range, given as address and length, or all addresses.
fn attempt(device: &Device, range: Option<(usize, usize)>) -> String {
    match range {
        Some((addr, len)) => format!("manage {len} bytes at {addr:#x} with {device}"),
        None => format!("manage all addresses with {device}"),
    }
}

impl ManagedRange {
    /// The addresses that are managed: the first one, and the length in bytes. `None`: all.
    pub fn range(&self) -> Option<(usize, usize)> {
        self.range
    }

    /// The device whose queues reach the addresses.
    pub fn device(&self) -> &Device {
        &self.loan.device
    }

    /// The handle of the managed range in which this one lies, unique in its context. Events name
    /// it ([`DeviceEvent::Thrashing`](crate::DeviceEvent::Thrashing)).
    pub fn handle(&self) -> u64 {
        self.loan.handle()
    }
}

impl ManagedRange {
    /// Says what it is, in the words of an error.
    pub(crate) fn words(&self) -> String {
        match self.range {
            Some((addr, len)) => format!("the {len} managed bytes at {addr:#x}"),
            None => "all managed memory".to_owned(),
        }
    }
}

impl fmt::Debug for ManagedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.range {
            Some((addr, len)) => write!(f, "ManagedRange({addr:#x}+{len:#x})"),
            None => f.write_str("ManagedRange(all)"),
        }
    }
}

/// Finds the range, of some that do not overlap, that contains these addresses, and its first
/// address.
fn covering(
    ranges: &mut BTreeMap<usize, Range>,
    addr: usize,
    last: usize,
) -> Option<(usize, &mut Range)> {
    let (&first, range) = ranges.range_mut(..=addr).next_back()?;
    range.covers(last).then_some((first, range))
}

/// Has the driver manage a range, given as address and length, or all addresses. There is one loan
/// of it.
fn manage(
    device: &Device,
    range: Option<(usize, usize)>,
    on_host: bool,
    flags: u32,
) -> Result<Range> {
    let (addr, len) = range.unwrap_or((0, 0));
    let host = match on_host {
        true => abi::PINMAP_MANAGE_HOST,
        false => 0,
    };
    let mut args = abi::pinmap_manage {
        flags: range.map_or(abi::PINMAP_MANAGE_ALL, |_| flags) | host,
        addr: addr as u64,
        length: len as u64,
        ..Default::default()
    };
    ioctl::manage(device.as_fd(), &mut args).map_err(|errno| {
        let attempt = match flags & abi::PINMAP_MANAGE_WINDOW {
            0 => attempt(device, range),
            _ => format!("make a window of {len} bytes at {addr:#x} with {device}"),
        };
        Error::new(Operation::Manage, attempt, errno).with_failure(Failure::from_abi(&args.fail))
    })?;
    Ok(Range {
        last: range.map_or(usize::MAX, |_| addr + (len - 1)),
        handle: args.out_handle,
        on_host,
        loans: 1,
    })
}

impl State {
    /// Takes a loan of the window or the managed range that contains these addresses, if there is
    /// one.
    fn cover(&mut self, addr: usize, last: usize) -> Option<Part> {
        if let Some((first, window)) = covering(&mut self.windows, addr, last) {
            window.loans += 1;
            return Some(Part::Window(first));
        }
        let (first, range) = covering(&mut self.ranges, addr, last)?;
        range.loans += 1;
        Some(Part::Range(first))
    }

    /// Has the driver manage a range, given as address and length, or all addresses. There is one
    /// loan of it.
    fn manage(
        &mut self,
        device: &Device,
        range: Option<(usize, usize)>,
        on_host: bool,
    ) -> Result<()> {
        let first = range.map_or(0, |(addr, _)| addr);
        self.ranges
            .insert(first, manage(device, range, on_host, 0)?);
        Ok(())
    }
}

impl Lender {
    /// Has memory managed, if that is possible here, and returns the loan and whether it is of all
    /// addresses.
    pub(super) fn manage_slice(
        self: &Arc<Self>,
        device: &Device,
        addr: usize,
        len: usize,
    ) -> Result<Option<(Loan, bool)>> {
        let mut state = self.lock();
        // A slice ends inside of the address space.
        let part = match state.cover(addr, addr + (len - 1)) {
            Some(part) => part,
            // The program has chosen other ranges.
            None if state.unmanageable || !state.ranges.is_empty() => return Ok(None),
            None => match state.manage(device, None, false) {
                Ok(()) => Part::Range(0),
                Err(error) => {
                    // `EEXIST`: a process that was forked, or code beside this crate, has managed
                    // something by the same file.
                    let known = [Errno::EOPNOTSUPP, Errno::ENOTTY, Errno::EEXIST];
                    if known.iter().all(|&errno| error.errno() != errno as i32) {
                        return Err(error);
                    }
                    state.unmanageable = error.errno() != Errno::EEXIST as i32;
                    return Ok(None);
                }
            },
        };
        let all = match part {
            Part::Range(first) => state.ranges.get(&first).is_some_and(Range::is_all),
            Part::Window(_) | Part::Pages(_) => false,
        };
        drop(state);
        Ok(Some((self.loan(device, part), all)))
    }
}

impl Loan {
    /// Whether both are loans of the same managed range, or window, of the same context.
    pub(super) fn is_same_range(&self, other: &Self) -> bool {
        match (self.part, other.part) {
            (Some(Part::Range(one)), Some(Part::Range(two)))
            | (Some(Part::Window(one)), Some(Part::Window(two))) => {
                one == two && Arc::ptr_eq(&self.lender, &other.lender)
            }
            _ => false,
        }
    }

    /// Does something to the managed range, or the window. `None`: it is a loan of something else.
    fn with_range<R>(&self, what: impl FnOnce(&mut Range) -> R) -> Option<R> {
        let mut state = self.lender.lock();
        let range = match self.part? {
            Part::Range(first) => state.ranges.get_mut(&first),
            Part::Window(first) => state.windows.get_mut(&first),
            Part::Pages(_) => None,
        };
        range.map(what)
    }

    /// The handle of the managed range, or 0 of anything else.
    fn handle(&self) -> u64 {
        self.with_range(|range| range.handle).unwrap_or(0)
    }

    /// One more loan of the same managed range.
    pub(super) fn again(&self) -> Self {
        self.with_range(|range| range.loans += 1);
        Self {
            lender: Arc::clone(&self.lender),
            device: self.device.clone(),
            part: self.part,
        }
    }
}

/// Ends a loan of a managed range.
pub(super) fn give_back(ranges: &mut BTreeMap<usize, Range>, device: &Device, first: usize) {
    let Some(range) = ranges.get_mut(&first) else {
        return;
    };
    range.loans -= 1;
    if range.loans != 0 {
        return;
    }
    let mut args = abi::pinmap_release {
        handle: range.handle,
        ..Default::default()
    };
    // If the device does not confirm it (`EIO`), or is gone, it is cut off and reaches nothing. All
    // work on the range is done.
    let _ = ioctl::release(device.as_fd(), &mut args);
    ranges.remove(&first);
}
