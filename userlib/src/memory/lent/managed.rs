// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed ranges: addresses of the program that a device reaches without registration.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::errno::Errno;

use crate::device::gpu::Gpu;
use crate::device::Device;
use crate::error::failure::Failure;
use crate::error::{Error, Operation, Result};
use crate::memory::raw::outwards;
use crate::sys::bindings as abi;
use crate::sys::ioctl;
use crate::sys::map::page_size;

use super::{Lender, Loan, Part, State};

/// A range that the driver manages.
pub(super) struct Range {
    last: usize,
    handle: u64,
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
/// Made by [`Gpu::manage`] and [`Gpu::manage_all`]. When it is dropped, the addresses are not
/// managed any more, unless something else of the context still needs that: another `Managed`, work
/// that is not done, or a queue that was lent memory. A forgotten one ([`std::mem::forget`]) lasts
/// until the context is closed.
#[must_use = "dropped, the addresses are not managed any more"]
pub struct Managed {
    /// Kept for its drop.
    _loan: Loan,
    /// Address and length; `None`: all addresses.
    range: Option<(usize, usize)>,
}

impl Gpu {
    /// Has the memory at some addresses *managed*: this context's queues reach it without
    /// registration, at the same addresses. The whole pages around `memory` are managed.
    ///
    /// A queue that touches a page which the device does not have yet waits, the page is faulted in
    /// as if the program had touched it, and the queue goes on. Nothing is pinned, and nothing
    /// counts against `RLIMIT_MEMLOCK`. The device may do what the program may do there at that
    /// moment; what cannot be is a [`Fault`](crate::Fault) with its reason. What `munmap()`,
    /// `mprotect()`, `fork()` and the like change holds for the device when they return. Memory
    /// that is not there yet can be managed as well.
    ///
    /// Slices of ordinary memory ([`Scope::slice`](crate::Scope::slice),
    /// [`Work::slice`](crate::stream::Work::slice)) need no call of this: without it, all addresses
    /// are managed from the first such slice on. A program that calls it chooses which. Slices
    /// elsewhere are then registered for as long as the work takes.
    ///
    /// This makes nothing accessible that checked work could misuse: packets name only operands
    /// that are borrowed. It does make raw packets reach more.
    ///
    /// ```no_run
    /// use pinmap::{kernel, Gpu, QueueOptions};
    /// # fn main() -> pinmap::Result<()> {
    /// let gpu = Gpu::find()?;
    /// let mut queue = gpu.queue(QueueOptions::new())?;
    /// let mut numbers = vec![0.0f32; 1024];
    /// let _managed = gpu.manage(&numbers[..])?;
    /// queue.scope(|scope| {
    ///     let mut data = scope.slice_mut(&mut numbers)?;
    ///     scope.launch(kernel::IncrementF32 { data: &mut data })
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
    /// `ENOMEM`: out of memory; `ENOTTY`: the driver is older than this crate; `ENODEV`: the device
    /// is gone; `EDEADLK`: this is a host function.
    pub fn manage<T>(&self, memory: *const [T]) -> Result<Managed> {
        let device = self.device();
        let (start, count) = (memory.cast::<T>().addr(), memory.len());
        let attempt = || format!("manage {count} elements at {start:#x} with {device}");
        let bytes = count.checked_mul(size_of::<T>());
        let range = bytes.and_then(|bytes| outwards(start, bytes, page_size()));
        let range = range.filter(|&(_, len)| len != 0);
        let (addr, len) =
            range.ok_or_else(|| Error::new(Operation::Manage, attempt(), Errno::EINVAL))?;
        let lender = Lender::of(device);
        let loan = {
            let mut state = lender.lock();
            let last = addr + (len - 1);
            match state.cover(addr, last) {
                Some(first) => lender.loan(device, Part::Range(first)),
                None => {
                    device.note_lending();
                    state.manage(device, Some((addr, len)))?;
                    lender.loan(device, Part::Range(addr))
                }
            }
        };
        Ok(Managed {
            _loan: loan,
            range: Some((addr, len)),
        })
    }

    /// Has all addresses of the program managed that the device can translate, as
    /// [`manage`](Self::manage) does for a range.
    ///
    /// # Errors
    ///
    /// As for [`manage`](Self::manage); `EEXIST`: a range of this context is managed already.
    pub fn manage_all(&self) -> Result<Managed> {
        let device = self.device();
        let lender = Lender::of(device);
        let loan = {
            let mut state = lender.lock();
            if state.cover(0, usize::MAX).is_none() {
                device.note_lending();
                state.manage(device, None)?;
            }
            lender.loan(device, Part::Range(0))
        };
        Ok(Managed {
            _loan: loan,
            range: None,
        })
    }
}

impl Managed {
    /// The addresses that are managed: the first one, and the length in bytes. `None`: all.
    pub fn range(&self) -> Option<(usize, usize)> {
        self.range
    }
}

impl fmt::Debug for Managed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.range {
            Some((addr, len)) => write!(f, "Managed({addr:#x}+{len:#x})"),
            None => f.write_str("Managed(all)"),
        }
    }
}

impl State {
    /// Takes a loan of the managed range that contains these addresses, if there is one: returns
    /// the first address of the range.
    fn cover(&mut self, addr: usize, last: usize) -> Option<usize> {
        let (&first, range) = self.ranges.range_mut(..=addr).next_back()?;
        range.covers(last).then(|| {
            range.loans += 1;
            first
        })
    }

    /// Has the driver manage a range, given as address and length, or all addresses. There is one
    /// loan of it.
    fn manage(&mut self, device: &Device, range: Option<(usize, usize)>) -> Result<()> {
        let (addr, len) = range.unwrap_or((0, 0));
        let mut args = abi::pinmap_manage {
            flags: range.map_or(abi::PINMAP_MANAGE_ALL, |_| 0),
            addr: addr as u64,
            length: len as u64,
            ..Default::default()
        };
        ioctl::manage(device.as_fd(), &mut args).map_err(|errno| {
            let attempt = match range {
                Some(_) => format!("manage {len} bytes at {addr:#x} with {device}"),
                None => format!("manage all addresses with {device}"),
            };
            Error::new(Operation::Manage, attempt, errno)
                .with_failure(Failure::from_abi(&args.fail))
        })?;
        let range = Range {
            last: range.map_or(usize::MAX, |_| addr + (len - 1)),
            handle: args.out_handle,
            loans: 1,
        };
        self.ranges.insert(addr, range);
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
        let first = match state.cover(addr, addr + (len - 1)) {
            Some(first) => first,
            // The program has chosen other ranges.
            None if state.unmanageable || !state.ranges.is_empty() => return Ok(None),
            None => match state.manage(device, None) {
                Ok(()) => 0,
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
        let all = state.ranges.get(&first).is_some_and(Range::is_all);
        drop(state);
        Ok(Some((self.loan(device, Part::Range(first)), all)))
    }
}

impl Loan {
    /// Whether both are loans of the same managed range of the same context.
    pub(super) fn is_same_range(&self, other: &Self) -> bool {
        match (self.part, other.part) {
            (Some(Part::Range(one)), Some(Part::Range(two))) => {
                one == two && Arc::ptr_eq(&self.lender, &other.lender)
            }
            _ => false,
        }
    }

    /// One more loan of the same managed range.
    pub(super) fn again(&self) -> Self {
        if let Some(Part::Range(first)) = self.part {
            if let Some(range) = self.lender.lock().ranges.get_mut(&first) {
                range.loans += 1;
            }
        }
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
