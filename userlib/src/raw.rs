// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a device can reach, whoever it belongs to: registered, and released in the end.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, ErrorWith, Operation, Result};
use crate::failure::Failure;
use crate::host;
use crate::ioctl;
use crate::mapping::Mapping;
use crate::options::{Access, MapOptions, RegisterOptions};
use crate::pages::page_size;
use crate::query::{RegistrationInfo, State};
use crate::sys;

/// Memory that a device can reach and that is not this crate's.
///
/// Made by [`Device::register_raw`]. Dropped, it releases; whether that worked, only
/// [`release`](Self::release) tells. It keeps the device open.
#[must_use = "dropped, the device cannot reach the memory any more"]
#[derive(Debug)]
pub struct RawRegistration {
    device: Device,
    handle: u64,
    addr: usize,
    len: usize,
    device_addr: Option<u64>,
    access: Access,
    hold: Hold,
}

/// Whether the device can reach the memory of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// It can.
    Held,
    /// It cannot any more.
    Released,
    /// The driver could not take it away. The handle is gone, so nothing that it says later is about
    /// this memory.
    Lost,
}

/// What releasing again says after it could not be done.
const LOST: &str = "the driver could not take it away from the device";
/// How long a device may take to be gone after that.
const CUT_OFF: Duration = Duration::from_secs(10);

impl Device {
    /// Makes memory reachable for the device that belongs to somebody else.
    ///
    /// As [`Buffer::register`](crate::Buffer::register), with the same errors, and `EINVAL` when it
    /// is not whole pages (unless told to [round outwards](RegisterOptions::round_outwards)),
    /// `EFAULT` when it is no memory that can be pinned, `EEXIST` when a part of it is registered
    /// already.
    ///
    /// If the memory leaves the address space meanwhile, for instance by `munmap()`, the
    /// registration goes stale, and the device cannot reach it any more: see
    /// [`Event::Stale`](crate::Event::Stale).
    ///
    /// # Safety
    ///
    /// Until the registration is released or dropped (for ever, if it is forgotten), the device may
    /// read the memory at any time and, with [`Access::ReadWrite`], write it; so may, of a
    /// [`portable`](RegisterOptions::portable) one, every device of the driver's that the process has
    /// open or opens later. This goes for whole pages, also for what lies beside it in the first and
    /// the last page when rounding outwards. So, as long as the memory stays mapped:
    ///
    /// - There is no reference to any part of it except to atomics; with [`Access::Read`] shared
    ///   references are allowed too. It is accessed by atomics or, in one thread, by volatile
    ///   accesses through raw pointers.
    /// - It is not given back to an allocator that would use it for something else.
    pub unsafe fn register_raw(
        &self,
        memory: *mut u8,
        len: usize,
        options: impl Into<RegisterOptions>,
    ) -> Result<RawRegistration> {
        let options = options.into();
        let mut addr = memory.expose_provenance();
        let mut len = len;
        if options.rounds_outwards() {
            (addr, len) = outwards(addr, len, page_size()).ok_or_else(|| {
                Error::new(
                    Operation::Register,
                    attempt(self, addr, len),
                    Errno::EOVERFLOW,
                )
            })?;
        }
        // SAFETY: As the caller promises, who knows that it is for whole pages.
        unsafe { RawRegistration::new(self, addr, len, options) }
    }
}

/// The whole pages around a range, as address and length.
pub(crate) fn outwards(addr: usize, len: usize, page: usize) -> Option<(usize, usize)> {
    let start = addr - addr % page;
    let end = addr.checked_add(len)?.checked_next_multiple_of(page)?;
    // Of nothing there are no pages: that is for the driver to refuse.
    Some((start, if len == 0 { 0 } else { end - start }))
}

fn attempt(device: &Device, addr: usize, len: usize) -> String {
    format!("register {len} bytes at {addr:#x} with {device}")
}

impl RawRegistration {
    /// # Safety
    ///
    /// As for [`Device::register_raw`], of exactly this range.
    pub(crate) unsafe fn new(
        device: &Device,
        addr: usize,
        len: usize,
        options: RegisterOptions,
    ) -> Result<Self> {
        let mut args = options.to_abi(addr as u64, len as u64);
        // SAFETY: There are no references to the memory until it is released, as the caller
        // promises.
        unsafe { ioctl::register(device.as_fd(), &mut args) }.map_err(|errno| {
            Error::new(Operation::Register, attempt(device, addr, len), errno)
                .with_failure(Failure::from_abi(&args.fail))
        })?;
        let device_addr = options.maps().then_some(args.device_addr);
        let access = options.access();
        Ok(Self::made(
            device,
            args.out_handle,
            addr,
            len,
            device_addr,
            access,
        ))
    }

    /// What the driver has registered under a handle.
    pub(crate) fn made(
        device: &Device,
        handle: u64,
        addr: usize,
        len: usize,
        device_addr: Option<u64>,
        access: Access,
    ) -> Self {
        Self {
            device: device.clone(),
            handle,
            addr,
            len,
            device_addr,
            access,
            hold: Hold::Held,
        }
    }

    /// Makes the memory unreachable for the device. All its mappings are gone then. The same once
    /// the device is gone, or the registration stale.
    ///
    /// # Errors
    ///
    /// `EIO`: the IOMMU did not unmap what it was told to, or the device did not say in time that it
    /// has forgotten the addresses. The driver has cut the device off from all memory, and it will be
    /// gone soon; but the memory counts as reachable from then on: releasing again answers `EIO`,
    /// too. The registration comes back with the error.
    pub fn release(mut self) -> Result<(), ErrorWith<Self>> {
        match self.release_now() {
            Ok(()) => Ok(()),
            Err(error) => Err(ErrorWith { error, value: self }),
        }
    }

    pub(crate) fn release_now(&mut self) -> Result<()> {
        match self.hold {
            Hold::Held => {}
            Hold::Released => return Ok(()),
            Hold::Lost => return Err(self.lost()),
        }
        let mut args = sys::pinmap_release {
            handle: self.handle,
            ..Default::default()
        };
        match ioctl::release(self.device.as_fd(), &mut args) {
            // The device cannot reach it: gone, it reaches nothing; released before, by a forked
            // process that has the same file, it does not reach this.
            Ok(()) | Err(Errno::ENODEV | Errno::ESTALE) => {
                self.hold = Hold::Released;
                Ok(())
            }
            Err(Errno::EIO) => {
                self.hold = Hold::Lost;
                Err(self.lost())
            }
            Err(errno) => Err(self.fail(Operation::Release, "release", errno)),
        }
    }

    fn lost(&self) -> Error {
        Error::refused(
            Operation::Release,
            self.attempt("release"),
            Errno::EIO,
            LOST,
        )
        .with_hint("the driver has cut it off; unbind it from the driver, and bind it again")
    }

    /// Releases memory that somebody will refer to next, whatever happens: if it cannot be taken
    /// away from the device, waits until that is gone, for then it reaches nothing. Ends the process
    /// if it is not: there is nobody else who could keep the memory from being used.
    ///
    /// # Errors
    ///
    /// As for [`release`](Self::release), also if the device is gone.
    pub(crate) fn release_or_abort(&mut self) -> Result<()> {
        let released = self.release_now();
        if let Err(error) = &released {
            if !host::outside(|| self.is_cut_off()) {
                eprintln!("pinmap: {error}. The memory is about to be used: aborting.");
                std::process::abort();
            }
        }
        released
    }

    /// Waits until the device is gone. False: it is not.
    fn is_cut_off(&self) -> bool {
        let until = Instant::now() + CUT_OFF;
        loop {
            let mut args = sys::pinmap_query {
                handle: self.handle,
                ..Default::default()
            };
            // Who is told so may use the memory again.
            if ioctl::query(self.device.as_fd(), &mut args) == Err(Errno::ENODEV) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// As [`Registration::map`](crate::Registration::map), with the same errors.
    pub fn map(&self, options: impl Into<MapOptions>) -> Result<Mapping<'_>> {
        Mapping::new(self, options.into())
    }

    /// User address of the first byte: of a page.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Length in bytes, whole pages.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Device address of the first byte, in the mapping made when registering. After rounding
    /// outwards that is not the byte that was passed.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it was registered [`unmapped`](RegisterOptions::unmapped).
    pub fn device_addr(&self) -> Result<u64> {
        self.device_addr.ok_or_else(|| {
            let attempt = format!("tell the device address of the memory at {:#x}", self.addr);
            let cause = "it was registered without mapping it";
            Error::refused(Operation::Query, attempt, Errno::EINVAL, cause)
                .with_hint("the `Mapping` that `map` returns has one")
        })
    }

    /// What the device may do.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The driver's name for it, unique in its context: events have it.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Whether the device can still reach the memory.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn state(&self) -> Result<State> {
        Ok(self.query()?.state)
    }

    /// All that the driver knows about it.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn query(&self) -> Result<RegistrationInfo> {
        let mut args = sys::pinmap_query {
            handle: self.handle,
            ..Default::default()
        };
        ioctl::query(self.device.as_fd(), &mut args)
            .map_err(|errno| self.fail(Operation::Query, "look up", errno))?;
        Ok(RegistrationInfo::from_abi(&args))
    }

    /// A registration that no driver knows, so that it cannot be released.
    #[cfg(test)]
    pub(crate) fn fake(addr: usize, len: usize, device_addr: Option<u64>) -> Self {
        let (device, access) = (Device::fake(), Access::ReadWrite);
        Self {
            device,
            handle: 1,
            addr,
            len,
            device_addr,
            access,
            hold: Hold::Held,
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn fail(&self, operation: Operation, verb: &str, errno: Errno) -> Error {
        Error::new(operation, self.attempt(verb), errno)
    }

    fn attempt(&self, verb: &str) -> String {
        let Self {
            len, addr, device, ..
        } = self;
        format!("{verb} the {len} bytes at {addr:#x} with {device}")
    }
}

impl Drop for RawRegistration {
    fn drop(&mut self) {
        // If it fails, the driver has cut the device off, or the file is not the driver's any more:
        // nothing is left to do.
        let _ = self.release_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_rounded_to_the_pages_around_them() {
        assert_eq!(outwards(0x1000, 0x1000, 0x1000), Some((0x1000, 0x1000)));
        assert_eq!(outwards(0x1fff, 2, 0x1000), Some((0x1000, 0x2000)));
        assert_eq!(outwards(0x1001, 0xffe, 0x1000), Some((0x1000, 0x1000)));
        assert_eq!(outwards(0x1001, 0, 0x1000), Some((0x1000, 0)));
        assert_eq!(outwards(usize::MAX, 1, 0x1000), None);
        assert_eq!(outwards(usize::MAX - 0x1000, 2, 0x1000), None);
    }

    #[test]
    fn registrations_can_be_shared_and_sent() {
        fn check<T: Send + Sync>() {}
        check::<RawRegistration>();
        check::<crate::Registration>();
        check::<Mapping<'_>>();
    }
}
