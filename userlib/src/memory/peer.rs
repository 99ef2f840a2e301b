// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of one device that another one reaches by the bus: VRAM, and BARs.
//!
//! There are no references to such memory, and the driver takes it away from all others before it
//! is freed. So whoever has it registered need not keep it: a registration goes stale. Only its
//! addresses are kept, because work that is under way still uses them: the driver keeps those of
//! the device, and the registration those of the program.
#![allow(unsafe_code)]

#[cfg(feature = "accelerator")]
use std::panic::{RefUnwindSafe, UnwindSafe};
#[cfg(feature = "accelerator")]
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::errno::Errno;

#[cfg(feature = "accelerator")]
use crate::device::accelerator::Accelerator;
use crate::device::bar::Bar;
use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::memory::allocation::{Allocation, Mapped};
#[cfg(feature = "accelerator")]
use crate::memory::options::Access;
use crate::memory::options::RegisterOptions;
use crate::memory::raw::RawRegistration;
use crate::memory::registration::Registration;
#[cfg(feature = "accelerator")]
use crate::memory::view::Vram;
use crate::sys::sysfs::Sysfs;

impl<T> Allocation<T> {
    /// Registers memory of an accelerator ([`Place::Vram`]) with another device, which then reads
    /// and writes it by the bus, past the host's memory: an NVMe controller, for instance, or a
    /// network card. Nothing is pinned.
    ///
    /// When the allocation is dropped, or its accelerator is reset or gone, the registration goes
    /// stale, and the other device does not reach the memory any more.
    ///
    /// ```no_run
    /// use pinmap::accelerator::Accelerator;
    /// use pinmap::{Access, Device};
    /// # fn f(gpu: &Accelerator, disk: &Device) -> pinmap::Result<()> {
    /// let weights = gpu.alloc_vram::<f32>(1 << 20)?;
    /// let for_disk = weights.register(disk, Access::ReadWrite)?;
    /// println!("the disk finds them at {:#x}", for_disk.device_addr()?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EREMOTEIO`: the bus does not let the other device reach it, and the message says what is
    /// between the two; `EINVAL`: it is host memory, or memory of the same device; `ESTALE`: its
    /// own device is gone; `EOPNOTSUPP`: the options are [portable](RegisterOptions::portable);
    /// otherwise as for [`Buffer::register`](crate::Buffer::register).
    ///
    /// [`Place::Vram`]: crate::accelerator::Place::Vram
    pub fn register(
        &self,
        device: &Device,
        options: impl Into<RegisterOptions>,
    ) -> Result<Registration<()>> {
        let cause = match self.mapped() {
            Mapped::Host(_) => "it is host memory",
            Mapped::Vram(_) if self.device().path() == device.path() => "it is its own memory",
            Mapped::Vram(vram) => {
                let options = options.into();
                // SAFETY: It is memory of a device, which is accessed by atomics only, and the
                // driver takes it away from `device` before it is freed.
                let raw = unsafe { RawRegistration::new(device, vram.addr(), vram.len(), options) };
                let mut raw = raw.map_err(|error| explain(error, self.device(), device))?;
                raw.keep(vram.addresses());
                return Ok(Registration::new(raw, ()));
            }
        };
        let attempt = format!("register {} with {device}", self.words());
        let error = Error::refused(Operation::Register, attempt, Errno::EINVAL, cause);
        Err(match self.mapped() {
            Mapped::Host(_) => error.with_hint("allocate it with `AllocOptions::portable`"),
            Mapped::Vram(_) => error,
        })
    }
}

impl Bar {
    /// Registers this part of the BAR with another device, which then reads and writes these
    /// registers by itself: an accelerator rings a doorbell, for instance, with
    /// [`Work::store`](crate::accelerator::Work::store).
    ///
    /// The registration keeps the BAR mapped, and its device open. When that is reset or gone, the
    /// registration goes stale.
    ///
    /// ```no_run
    /// use pinmap::accelerator::Accelerator;
    /// use pinmap::{Access, Device};
    /// # fn f(gpu: &Accelerator, card: &Device) -> pinmap::Result<()> {
    /// let doorbells = card.bar(0)?.window(0x1000..0x2000)?;
    /// let doorbells = doorbells.register(gpu.device(), Access::ReadWrite)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Allocation::register`]; `EINVAL`: the part is not whole pages, or has the BAR's
    /// hole in it.
    pub fn register(
        &self,
        device: &Device,
        options: impl Into<RegisterOptions>,
    ) -> Result<Registration<()>> {
        let len = usize::try_from(self.len()).unwrap_or(usize::MAX);
        let start = self.as_mut_ptr(0, len)?;
        // SAFETY: Registers are outside of the memory model, and are accessed as volatile only.
        let raw =
            unsafe { RawRegistration::new(device, start.expose_provenance(), len, options.into()) };
        let mut raw = raw.map_err(|error| explain(error, self.device(), device))?;
        raw.keep(self.keep());
        Ok(Registration::new(raw, ()))
    }
}

/// Adds what is between two devices to the error that says that the bus does not let one reach the
/// other.
fn explain(error: Error, giver: &Device, taker: &Device) -> Error {
    if error.errno() != Errno::EREMOTEIO as i32 {
        return error;
    }
    let between = || {
        let (giver, taker) = (giver.info().ok()?.pci, taker.info().ok()?.pci);
        Sysfs::system().between_devices(taker, giver)
    };
    match between() {
        Some(between) => error.with_hint(between),
        None => error,
    }
}

/// The devices that reach some VRAM: its own accelerator, and the other ones that the crate has
/// registered it with, each of them once.
#[cfg(feature = "accelerator")]
#[derive(Default)]
pub(crate) struct Peers {
    giver: OnceLock<Accelerator>,
    takers: Mutex<Vec<RawRegistration>>,
}

// Both are changed in one step, so a panic leaves nothing half changed.
#[cfg(feature = "accelerator")]
impl UnwindSafe for Peers {}
#[cfg(feature = "accelerator")]
impl RefUnwindSafe for Peers {}

#[cfg(feature = "accelerator")]
impl Peers {
    /// Tells whose memory it is.
    pub(crate) fn be_of(&self, giver: &Accelerator) {
        // Told once.
        let _ = self.giver.set(giver.clone());
    }

    pub(crate) fn giver(&self) -> Option<&Accelerator> {
        self.giver.get()
    }
}

#[cfg(feature = "accelerator")]
impl Vram {
    /// The address at which another device reaches the first byte.
    pub(crate) fn device_addr_for(&self, device: &Device) -> Result<u64> {
        let takers = &self.peers.takers;
        let mut takers = takers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = takers.iter().find(|known| known.device().is_same(device));
        if let Some(known) = known {
            return known.device_addr();
        }
        let access = Access::ReadWrite.into();
        // SAFETY: As in `Allocation::register`.
        let made = unsafe { RawRegistration::new(device, self.addr(), self.len(), access) };
        let made = made.map_err(|error| match self.peers.giver() {
            Some(giver) => explain(error, giver.device(), device),
            None => error,
        })?;
        let device_addr = made.device_addr()?;
        takers.push(made);
        Ok(device_addr)
    }
}

#[cfg(feature = "accelerator")]
impl Accelerator {
    /// Whether another device reaches the VRAM of this one by the bus, past the host's memory. If
    /// not, [`Work::copy`](crate::accelerator::Work::copy) between two accelerators, by a stream of
    /// the other one, goes through host memory. A page of VRAM is registered to find out.
    ///
    /// ```no_run
    /// use pinmap::accelerator::Accelerator;
    /// # fn f(first: &Accelerator, second: &Accelerator) -> pinmap::Result<()> {
    /// if !second.is_reached_by(first.device())? {
    ///     println!("copies by streams of the first one take the host's memory");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`alloc_vram`](Self::alloc_vram) and [`Allocation::register`], but for `EREMOTEIO`.
    pub fn is_reached_by(&self, device: &Device) -> Result<bool> {
        if self.device().path() == device.path() {
            return Ok(true);
        }
        let page = self.alloc_vram::<u8>(1)?;
        match page.register(device, Access::Read) {
            Ok(_) => Ok(true),
            Err(error) if error.errno() == Errno::EREMOTEIO as i32 => Ok(false),
            Err(error) => Err(error),
        }
    }
}
