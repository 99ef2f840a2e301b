// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registrations that are made or released together, by one call of the driver for many.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

use super::{Hold, RawRegistration};
use crate::device::Device;
use crate::error::failure::Failure;
use crate::error::{abort, Error, Operation, Refused, Result};
use crate::memory::options::RegisterOptions;
use crate::sys::bindings as abi;
use crate::sys::ioctl;
use crate::sys::trace::span;

/// How many registrations one call makes or releases.
const MOST: usize = abi::PINMAP_MAX_BUFFERS as usize;

/// Whole pages that are to be registered.
struct Asked {
    addr: usize,
    len: usize,
    options: RegisterOptions,
}

impl Asked {
    fn to_abi(&self) -> abi::pinmap_registration {
        let args = self.options.to_abi(self.addr as u64, self.len as u64);
        abi::pinmap_registration {
            addr: args.addr,
            length: args.length,
            device_addr: args.device_addr,
            ..Default::default()
        }
    }

    /// The registration that the driver has made of it.
    fn made(&self, device: &Device, one: &abi::pinmap_registration) -> RawRegistration {
        let device_addr = self.options.maps().then_some(one.device_addr);
        RawRegistration::made(
            device,
            one.out_handle,
            self.addr,
            self.len,
            device_addr,
            self.options.access(),
        )
    }
}

impl RawRegistration {
    /// Registers several ranges of whole pages, given as addresses and lengths: all or none. A
    /// device address that is demanded is that of the first, and the others follow it.
    ///
    /// If a range is refused that is not of the first call of the driver, and those before it
    /// cannot be taken back, waits until the device is cut off, or aborts the process, as
    /// [`release_all_or_abort`] does.
    ///
    /// # Safety
    ///
    /// As for [`Device::register_raw`], for exactly these ranges.
    pub(crate) unsafe fn new_all(
        device: &Device,
        ranges: &[(usize, usize)],
        options: RegisterOptions,
    ) -> Result<Vec<Self>, Refused> {
        let mut bytes = 0;
        let asked = ranges.iter().map(|&(addr, len)| {
            let options = options.behind(bytes);
            bytes += len as u64;
            Asked { addr, len, options }
        });
        let asked: Vec<_> = asked.collect();
        let mut made = Vec::with_capacity(asked.len());
        for chunk in asked.chunks(MOST) {
            let before = made.len();
            // SAFETY: As the caller promises.
            let result = unsafe { register_chunk(device, chunk, options, &mut made) };
            let Err(refused) = result else { continue };
            // The caller gives the memory back.
            let _ = release_all_or_abort(&mut made.iter_mut().collect::<Vec<_>>());
            let index = refused.index.map(|index| before + index);
            let rest = index.map_or(&[][..], |index| &ranges[index + 1..]);
            let rest = rest.iter().map(|&(_, len)| len as u64).sum();
            return Err(Refused {
                error: refused.error.with_more_locked(rest),
                index,
            });
        }
        Ok(made)
    }
}

/// Registers what one call can, and adds it to what was made.
///
/// # Safety
///
/// As for [`RawRegistration::new_all`].
unsafe fn register_chunk(
    device: &Device,
    chunk: &[Asked],
    options: RegisterOptions,
    made: &mut Vec<RawRegistration>,
) -> Result<(), Refused> {
    let result = {
        span!("register_all", count = chunk.len());
        let mut args = options.to_abi_buffers();
        let mut buffers: Vec<_> = chunk.iter().map(Asked::to_abi).collect();
        // SAFETY: There are no references to the memory until it is released, as the caller
        // promises.
        unsafe { ioctl::register_buffers(device.as_fd(), &mut args, &mut buffers) }
            .map(|()| buffers)
            .map_err(|errno| (errno, args))
    };
    match result {
        Ok(buffers) => {
            let each = chunk.iter().zip(&buffers);
            made.extend(each.map(|(asked, one)| asked.made(device, one)));
            Ok(())
        }
        Err((errno, args)) => {
            let index = args.out_failed as usize;
            let failed = chunk.get(index);
            let error = match failed {
                Some(asked) => super::refused(device, asked.addr, asked.len, errno, &args.fail),
                None => {
                    let attempt =
                        format!("register {} pieces of memory with {device}", chunk.len());
                    let error = Error::new(Operation::Register, attempt, errno);
                    error.with_failure(Failure::from_abi(&args.fail))
                }
            };
            Err(Refused {
                error,
                index: failed.map(|_| index),
            })
        }
    }
}

/// Releases registrations, of any devices. Those that were released already stay so.
///
/// # Errors
///
/// The first one of those that [`release`](crate::Registration::release) has. Each of the others
/// was tried, too.
pub(crate) fn release_all(registrations: &mut [&mut RawRegistration]) -> Result<()> {
    let file = |registration: &RawRegistration| registration.device.as_fd().as_raw_fd();
    // Stable, so that those of a device keep their order.
    registrations.sort_by_key(|registration| file(registration));
    let devices = registrations.chunk_by_mut(|one, two| file(one) == file(two));
    let chunks = devices.flat_map(|of_device| of_device.chunks_mut(MOST));
    // Each of them, also after an error.
    chunks.map(release_chunk).fold(Ok(()), Result::and)
}

/// Releases registrations of one device, which are not more than one call can.
fn release_chunk(chunk: &mut [&mut RawRegistration]) -> Result<()> {
    let held = chunk.iter().filter(|one| one.hold == Hold::Held);
    let handles: Vec<_> = held.map(|one| one.handle).collect();
    if handles.len() > 1 {
        span!("release_all", count = handles.len());
        let hold = match ioctl::release_buffers(chunk[0].device.as_fd(), &handles) {
            // A device that is gone reaches nothing.
            Ok(()) | Err(Errno::ENODEV) => Hold::Released,
            // All handles are gone, and the driver does not say for which it failed.
            Err(Errno::EIO) => Hold::Lost,
            // Nothing was released: the driver does not know one of the handles any more. One by
            // one, each has its own answer.
            Err(_) => Hold::Held,
        };
        for one in chunk.iter_mut().filter(|one| one.hold == Hold::Held) {
            one.hold = hold;
        }
    }
    // Does nothing for what was released.
    let released = chunk.iter_mut().map(|one| one.release_now());
    released.fold(Ok(()), Result::and)
}

/// Releases memory to which there will be references next. If some is lost, waits until its device
/// is gone and reaches nothing; aborts the process if that takes longer than 10 seconds, because
/// nothing else could keep the memory from being used.
///
/// # Errors
///
/// As for [`release_all`]. The devices do not reach the memory even then.
pub(crate) fn release_all_or_abort(registrations: &mut [&mut RawRegistration]) -> Result<()> {
    let released = release_all(registrations);
    if let Err(error) = &released {
        let mut held = registrations
            .iter()
            .filter(|one| one.hold != Hold::Released);
        if held.any(|one| !one.is_cut_off()) {
            abort(format_args!("{error}. The memory is about to be used"));
        }
    }
    released
}
