// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registrations as the driver knows them, whoever the memory belongs to.
//!
//! A [`Registration`] is made of one. If the driver cannot take memory away from
//! the device, because the IOMMU fails or the device does not answer, a release fails with `EIO`
//! and the registration is *lost*: the driver cuts the device off from all memory, but has
//! forgotten the handle, so nobody can prove that this memory is safe again.
#![allow(unsafe_code)]

pub(crate) mod all;

use std::fmt;
use std::ops::Range;
use std::os::fd::AsFd;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::device::Device;
use crate::error::failure::Failure;
use crate::error::{Error, Operation, Result};
use crate::memory::options::{Access, RegisterOptions};
use crate::memory::query::{RegistrationInfo, State};
use crate::memory::registration::Registration;
use crate::sys::bindings as abi;
use crate::sys::ioctl;
use crate::sys::map::page_size;
use crate::sys::trace::span;

/// The part of a registration that the driver knows. Dropping it releases the memory.
#[derive(Debug)]
pub(crate) struct RawRegistration {
    device: Device,
    handle: u64,
    /// Where the memory begins, and how long it is. It may begin and end within pages, all of which
    /// the device reaches.
    addr: usize,
    len: usize,
    /// Bytes of the first page before the memory.
    offset: usize,
    device_addr: Option<u64>,
    access: Access,
    hold: Hold,
    /// Keeps the addresses of another device's memory from being used for something else.
    keep: Option<Keep>,
}

/// Something that has addresses.
pub(crate) type Keep = Arc<dyn fmt::Debug + Send + Sync + UnwindSafe + RefUnwindSafe>;

/// Whether the device can reach the memory of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// The device can reach it.
    Held,
    /// The device cannot reach it any more.
    Released,
    /// The driver could not take it away. The handle is gone, so later answers of the driver are
    /// not about this memory.
    Lost,
}

/// The cause of the error when a lost registration is released again.
const LOST: &str = "the driver could not take it away from the device";
/// How long the driver may take to cut a device off.
const CUT_OFF: Duration = Duration::from_secs(10);

impl Device {
    /// Registers memory that does not belong to this crate: `len` bytes from `memory` on. The
    /// device can reach it until it is released.
    ///
    /// ```no_run
    /// use pinmap::{Access, Device, RegisterOptions};
    /// # fn f(device: &Device, memory: *mut u8, len: usize) -> pinmap::Result<()> {
    /// let options = RegisterOptions::new(Access::ReadWrite).round_outwards();
    /// // SAFETY: A library of C has the memory, does not free it before the release below, and
    /// // shares its pages with nothing else. Nothing refers to it meanwhile.
    /// let registration = unsafe { device.register_raw(memory, len, options)? };
    /// println!("the device finds it at {:#x}", registration.device_addr()?);
    /// registration.release()?;
    /// # Ok(()) }
    /// ```
    ///
    /// If the memory leaves the address space before, for instance by `munmap()`, the registration
    /// goes stale, and the device cannot reach the memory any more: see
    /// [`DeviceEvent::Stale`](crate::DeviceEvent::Stale).
    ///
    /// # Errors
    ///
    /// As for [`Buffer::register`](crate::Buffer::register); `EINVAL`: the memory is not whole
    /// pages, unless the options [round outwards](RegisterOptions::round_outwards); `EFAULT`: not
    /// all of it is memory that can be pinned; `EEXIST`: a part of it is registered already.
    ///
    /// # Safety
    ///
    /// Until a release succeeds, or the device is gone, the device may read the memory at any time
    /// and, with [`Access::ReadWrite`], write it. A drop does not tell whether it could
    /// release the memory, and a forgotten registration is never released. If it
    /// is [`portable`](RegisterOptions::portable), every device of the driver that the process has
    /// open or opens later may do the same. All of this holds for whole pages: after rounding
    /// outwards, also for what else lies in the first and the last page. So, as long as the memory
    /// stays mapped:
    ///
    /// - With [`Access::ReadWrite`] there must be no reference to any part of it, except to
    ///   atomics. Access it only through atomics, or from one thread by volatile accesses through
    ///   raw pointers. It must not be given back to an allocator that would use it for something
    ///   else.
    /// - With [`Access::Read`] the device changes nothing, so references are allowed. The device
    ///   reads whatever is there at the time, also what an allocator puts there later.
    pub unsafe fn register_raw(
        &self,
        memory: *mut u8,
        len: usize,
        options: impl Into<RegisterOptions>,
    ) -> Result<Registration<()>> {
        let addr = memory.expose_provenance();
        // SAFETY: As the caller promises.
        let raw = unsafe { RawRegistration::new(self, addr, len, options.into())? };
        Ok(Registration::new(raw, ()))
    }

    /// Registers several pieces of memory, given as addresses and lengths, as
    /// [`register_raw`](Self::register_raw) does each of them: all or none. The driver does it by
    /// one call for up to 1024 of them. Each is whole pages. A device address that is demanded is
    /// that of the first, and the others follow it.
    ///
    /// ```no_run
    /// use pinmap::Access;
    /// # fn f(device: &pinmap::Device, pages: &[(*mut u8, usize)]) -> pinmap::Result<()> {
    /// // SAFETY: Nothing refers to the pages, which stay mapped for longer than this.
    /// let registered = unsafe { device.register_all_raw(pages, Access::ReadWrite)? };
    /// # drop(registered); Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`register_raw`](Self::register_raw), of one of the pieces, or of all of them.
    /// Nothing is registered then. `EINVAL`: the options round outwards.
    ///
    /// # Safety
    ///
    /// As for [`register_raw`](Self::register_raw), for each of them.
    pub unsafe fn register_all_raw(
        &self,
        memory: &[(*mut u8, usize)],
        options: impl Into<RegisterOptions>,
    ) -> Result<Vec<Registration<()>>> {
        let options = options.into();
        let range = |&(first, len): &(*mut u8, usize)| (first.expose_provenance(), len);
        let ranges: Vec<_> = memory.iter().map(range).collect();
        if options.rounds_outwards() {
            let attempt = format!("register {} pieces of memory with {self}", ranges.len());
            let cause = "pieces are not rounded outwards: they may be in the same page";
            return Err(Error::refused(
                Operation::Register,
                attempt,
                Errno::EINVAL,
                cause,
            ));
        }
        // SAFETY: As the caller promises.
        let raw = unsafe { RawRegistration::new_all(self, &ranges, options) };
        let raw = raw.map_err(|refused| refused.with::<()>(self, &ranges, Vec::new()))?;
        Ok(raw
            .into_iter()
            .map(|raw| Registration::new(raw, ()))
            .collect())
    }
}

/// The whole pages around a range, as address and length. `None` if they end outside of the
/// address space.
pub(crate) fn outwards(addr: usize, len: usize, page: usize) -> Option<(usize, usize)> {
    let start = addr - addr % page;
    let end = addr.checked_add(len)?.checked_next_multiple_of(page)?;
    // An empty range stays empty: the driver refuses it.
    Some((start, if len == 0 { 0 } else { end - start }))
}

fn attempt(device: &Device, addr: usize, len: usize) -> String {
    format!("register {len} bytes at {addr:#x} with {device}")
}

/// The error with which the driver refused memory that was not rounded outwards.
fn refused(
    device: &Device,
    addr: usize,
    len: usize,
    errno: Errno,
    fail: &abi::pinmap_fail,
) -> Error {
    let error = Error::new(Operation::Register, attempt(device, addr, len), errno);
    let page = page_size();
    if errno == Errno::EINVAL && (addr % page, len % page) != (0, 0) {
        return error
            .with_cause(format!("they are not whole pages of {page} bytes"))
            .with_hint(
                "`RegisterOptions::round_outwards` takes the pages around them, and a `Buffer` has \
                 pages of its own",
            );
    }
    error.with_failure(Failure::from_abi(fail))
}

impl RawRegistration {
    /// Registers whole pages, or, if the options round outwards, the whole pages around the memory.
    ///
    /// # Safety
    ///
    /// As for [`Device::register_raw`], for exactly these pages.
    pub(crate) unsafe fn new(
        device: &Device,
        addr: usize,
        len: usize,
        options: RegisterOptions,
    ) -> Result<Self> {
        span!(
            "register",
            addr = addr,
            len = len,
            write = options.access() == Access::ReadWrite
        );
        let fail = |errno| Error::new(Operation::Register, attempt(device, addr, len), errno);
        let (start, length) = match options.rounds_outwards() {
            true => outwards(addr, len, page_size()).ok_or_else(|| fail(Errno::EOVERFLOW))?,
            false => (addr, len),
        };
        let mut args = options.to_abi(start as u64, length as u64);
        // SAFETY: There are no references to the memory until it is released, or the device only
        // reads it, as the caller promises.
        unsafe { ioctl::register(device.as_fd(), &mut args) }.map_err(|errno| {
            match options.rounds_outwards() {
                true => fail(errno).with_failure(Failure::from_abi(&args.fail)),
                false => refused(device, addr, len, errno, &args.fail),
            }
        })?;
        let offset = addr - start;
        let device_addr = args.device_addr + offset as u64;
        let device_addr = options.maps().then_some(device_addr);
        let mut made = Self::made(
            device,
            args.out_handle,
            addr,
            len,
            device_addr,
            options.access(),
        );
        made.offset = offset;
        Ok(made)
    }

    /// A registration that the driver has made under a handle.
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
            offset: 0,
            device_addr,
            access,
            hold: Hold::Held,
            keep: None,
        }
    }

    /// Has `keep` exist as long as the registration.
    pub(crate) fn keep(&mut self, keep: Keep) {
        self.keep = Some(keep);
    }

    /// Makes the memory unreachable for the device, once: see
    /// [`Registration::release`].
    pub(crate) fn release_now(&mut self) -> Result<()> {
        match self.hold {
            Hold::Held => {}
            Hold::Released => return Ok(()),
            Hold::Lost => return Err(self.lost()),
        }
        span!("release", addr = self.addr, len = self.len);
        let mut args = abi::pinmap_release {
            handle: self.handle,
            ..Default::default()
        };
        match ioctl::release(self.device.as_fd(), &mut args) {
            // A device that is gone reaches nothing. A stale handle was released before, by a
            // forked process with the same file.
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

    /// Maintains the CPU's caches for these bytes, if the device does not snoop them.
    pub(crate) fn sync(&self, bytes: Range<usize>, flags: u32) -> Result<()> {
        if bytes.is_empty() || self.device.is_coherent() {
            return Ok(());
        }
        let mut args = abi::pinmap_sync {
            flags,
            handle: self.handle,
            offset: (self.offset + bytes.start) as u64,
            length: bytes.len() as u64,
            ..Default::default()
        };
        ioctl::sync(self.device.as_fd(), &mut args)
            .map_err(|errno| self.fail(Operation::Sync, "synchronise", errno))
    }

    /// Waits until the device is gone. Returns false if it is not in time.
    fn is_cut_off(&self) -> bool {
        let until = Instant::now() + CUT_OFF;
        loop {
            let mut args = abi::pinmap_query {
                handle: self.handle,
                ..Default::default()
            };
            if ioctl::query_after_release(self.device.as_fd(), &mut args) == Err(Errno::ENODEV) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// User address of the first byte.
    pub(crate) fn addr(&self) -> usize {
        self.addr
    }

    /// Bytes between the page in which the memory begins and the first byte.
    pub(crate) fn offset(&self) -> u64 {
        self.offset as u64
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Device address of the first byte, in the mapping that registering made.
    pub(crate) fn device_addr(&self) -> Result<u64> {
        self.device_addr.ok_or_else(|| {
            let attempt = format!("tell the device address of the memory at {:#x}", self.addr);
            let cause = "it was registered without mapping it";
            Error::refused(Operation::Query, attempt, Errno::EINVAL, cause)
                .with_hint("the `Mapping` that `map` returns has one")
        })
    }

    /// The access that the device has.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// The handle of the registration, unique in its context. Events name the registration by it.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Asks whether the registration is live or stale.
    pub(crate) fn state(&self) -> Result<State> {
        Ok(self.query()?.state)
    }

    /// Asks for all that the driver knows about the registration.
    pub(crate) fn query(&self) -> Result<RegistrationInfo> {
        let mut args = abi::pinmap_query {
            handle: self.handle,
            ..Default::default()
        };
        ioctl::query(self.device.as_fd(), &mut args)
            .map_err(|errno| self.fail(Operation::Query, "look up", errno))?;
        Ok(RegistrationInfo::from_abi(&args))
    }

    /// A registration that no driver knows, and that cannot be released.
    #[cfg(test)]
    pub(crate) fn fake(addr: usize, len: usize, device_addr: Option<u64>) -> Self {
        let (device, access) = (Device::fake(), Access::ReadWrite);
        Self {
            device,
            handle: 1,
            addr,
            len,
            offset: 0,
            device_addr,
            access,
            hold: Hold::Held,
            keep: None,
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn fail(&self, operation: Operation, verb: &str, errno: Errno) -> Error {
        Error::new(operation, self.attempt(verb), errno)
    }

    pub(crate) fn attempt(&self, verb: &str) -> String {
        let Self {
            len, addr, device, ..
        } = self;
        format!("{verb} the {len} bytes at {addr:#x} with {device}")
    }
}

impl Drop for RawRegistration {
    fn drop(&mut self) {
        // After an error nothing is left to do: the driver has cut the device off, or the file is
        // not the driver's any more.
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
        check::<crate::Registration>();
        check::<crate::Registration<()>>();
        check::<crate::Mapping<'_>>();
    }
}
