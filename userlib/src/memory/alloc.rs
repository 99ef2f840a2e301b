// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocating memory of the driver's: in host memory, by options, or in the device's.

use std::os::fd::AsFd;

use memmap2::MmapOptions;
use nix::errno::Errno;

#[cfg(feature = "accelerator")]
use crate::device::accelerator::Accelerator;
use crate::device::Device;
use crate::error::failure::Failure;
use crate::error::{Error, Operation, Result};
use crate::memory::allocation::{Allocation, HandleGuard, Mapped, Place};
use crate::memory::element::{check_layout, Element};
use crate::sys::map::page_size;
use crate::sys::trace::span;
use crate::sys::{bindings as abi, ioctl};

/// Options of an allocation of host memory.
///
/// Passed to [`Device::alloc_with`](crate::Device::alloc_with). With any options, the memory is
/// pinned, zeroed, and mapped for the device.
///
/// ```no_run
/// use pinmap::AllocOptions;
/// # fn f(gpu: &pinmap::accelerator::Accelerator) -> pinmap::Result<()> {
/// // The CPU only writes commands there, in order, and the device reads them.
/// let options = AllocOptions::new().write_combined().node(0);
/// let mut commands = gpu.alloc_with::<u64>(4096, options)?;
/// commands[..3].copy_from_slice(&[1, 2, 3]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct AllocOptions {
    write_combined: bool,
    node: Option<u32>,
    pub(crate) portable: bool,
    p2pdma: bool,
}

impl AllocOptions {
    /// Options for memory that CPUs cache, on the NUMA node that the system's memory policy
    /// chooses.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the memory write-combined, which bypasses the CPU's caches. This suits memory that the
    /// CPU only writes, in order, and the device reads; reads of the CPU are slow. On x86 only.
    #[must_use]
    pub fn write_combined(mut self) -> Self {
        self.write_combined = true;
        self
    }

    /// Sets the NUMA node from which all of the memory is taken. By default the memory policy of
    /// the thread decides (`set_mempolicy()`).
    #[must_use]
    pub fn node(mut self, node: u32) -> Self {
        self.node = Some(node);
        self
    }

    /// Maps the memory for every device that the process has open or opens later, at the same
    /// address and with one charge. If one of the open devices cannot map the memory, allocating
    /// fails; if a later one cannot, opening that device fails. Dropping the allocation removes all
    /// mappings.
    #[must_use]
    pub fn portable(mut self) -> Self {
        self.portable = true;
        self
    }

    pub(crate) fn to_abi(self, length: usize) -> abi::pinmap_alloc {
        let mut flags = 0;
        if self.write_combined {
            flags |= abi::PINMAP_ALLOC_WRITE_COMBINED;
        }
        if self.node.is_some() {
            flags |= abi::PINMAP_ALLOC_NODE;
        }
        if self.portable {
            flags |= abi::PINMAP_ALLOC_PORTABLE;
        }
        if self.p2pdma {
            flags |= abi::PINMAP_ALLOC_P2PDMA;
        }
        abi::pinmap_alloc {
            flags,
            length: length as u64,
            node: self.node.unwrap_or(0),
            ..Default::default()
        }
    }
}

impl Device {
    /// Allocates pinned host memory for `count` elements, zeroed, and maps it for the device, at
    /// the user address if the IOMMU allows that, on a paged device always. On a flat one this
    /// makes the context the owner; one that drives few address bits needs registered memory
    /// ([`address_bits`](crate::RegisterOptions::address_bits)).
    ///
    /// The memory is whole pages, huge ones if possible, and is charged to `RLIMIT_MEMLOCK` as
    /// registered memory is.
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// let mut ring = device.alloc::<u64>(512)?;
    /// ring.set(0, 0x8000_0000_0000_0001)?;
    /// device.bar(0)?.write(0x10, ring.device_addr())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: `count` is 0; `EOVERFLOW`: the length exceeds every address space; `ENOMEM`: over
    /// `RLIMIT_MEMLOCK`, or out of memory; `ENOSPC`: too many registrations and allocations;
    /// `EBUSY`: another context owns the device; `EPERM`: another process opened the device;
    /// `ENODEV`: the device is gone. [`Error::failure`](crate::Error::failure) has the details.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Allocation<T>> {
        self.alloc_with(count, AllocOptions::new())
    }

    /// Allocates host memory as [`alloc`](Self::alloc) does, of the kind that the options say.
    ///
    /// ```no_run
    /// use pinmap::AllocOptions;
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// // The CPU only writes it, in bursts.
    /// let commands = device.alloc_with::<u64>(4096, AllocOptions::new().write_combined())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`alloc`](Self::alloc); `EINVAL`: there is no such NUMA node, or it has no memory;
    /// `EOPNOTSUPP`: this architecture has no write-combined memory.
    pub fn alloc_with<T: Element>(
        &self,
        count: usize,
        options: AllocOptions,
    ) -> Result<Allocation<T>> {
        Allocation::new(self, count, Place::Host, options)
    }
}

#[cfg(feature = "accelerator")]
impl Accelerator {
    /// Allocates memory of the device for `count` elements, zeroed. The device address equals the
    /// user address.
    ///
    /// ```no_run
    /// # use pinmap::accelerator::{Accelerator, Stream};
    /// # use pinmap::Result;
    /// # fn f(gpu: &Accelerator, stream: &Stream) -> Result<()> {
    /// let host = gpu.alloc_from(&[1.0f32; 1024])?;
    /// let mut local = gpu.alloc_vram::<f32>(1024)?;
    /// stream.scope(|work| work.copy(&host, &mut local))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::failure`](crate::Error::failure) has the details.
    ///
    /// `EINVAL`: `count` is 0; `EOVERFLOW`: the length exceeds every address space; `ENOSPC`: no
    /// free piece of the device's memory is that long, or too many registrations and allocations;
    /// `ENOMEM`: out of memory or address space; `EPERM`: another process opened the device;
    /// `ENODEV`: the device is gone.
    pub fn alloc_vram<T: Element>(&self, count: usize) -> Result<Allocation<T>> {
        self.alloc_vram_with(count, AllocOptions::new())
    }

    /// Allocates memory of the device as [`alloc_vram`](Self::alloc_vram) does, with P2PDMA pages:
    /// a disk reads and writes it by itself, as [`Allocation::read_into`] and `read()` of a file
    /// with `O_DIRECT` have it. The first such memory in each 128 MiB of the device's takes 2 MiB
    /// of the host's, until the device is unbound.
    ///
    /// ```no_run
    /// # use pinmap::{accelerator::Accelerator, Detour, Result};
    /// # fn f(gpu: &Accelerator, file: &std::fs::File) -> Result<()> {
    /// let mut weights = gpu.alloc_vram_p2pdma::<f32>(1 << 20)?;
    /// weights.read_into(0..1 << 20, file, 0, Detour::Refuse)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`alloc_vram`](Self::alloc_vram); `EOPNOTSUPP`: the kernel has no P2PDMA, or none for
    /// this device; `EBUSY`: somebody else has taken a page of the device's memory by sysfs.
    pub fn alloc_vram_p2pdma<T: Element>(&self, count: usize) -> Result<Allocation<T>> {
        let options = AllocOptions {
            p2pdma: true,
            ..AllocOptions::new()
        };
        self.alloc_vram_with(count, options)
    }

    fn alloc_vram_with<T: Element>(
        &self,
        count: usize,
        options: AllocOptions,
    ) -> Result<Allocation<T>> {
        let memory = Allocation::new(self.device(), count, Place::Vram, options)?;
        if let Mapped::Vram(vram) = memory.mapped() {
            vram.peers.be_of(self);
        }
        Ok(memory)
    }
}

impl<T: Element> Allocation<T> {
    fn new(device: &Device, count: usize, place: Place, options: AllocOptions) -> Result<Self> {
        let what = match place {
            Place::Host => "pinned memory",
            Place::Vram => "memory of the device",
        };
        const { check_layout::<T>() }
        let attempt = || {
            let size = size_of::<T>();
            match size {
                1 => format!("allocate {count} bytes of {what} with {device}"),
                _ => format!("allocate {what} for {count} elements of {size} bytes with {device}"),
            }
        };
        let length = length(count, size_of::<T>(), page_size()).map_err(|(errno, cause)| {
            Error::refused(Operation::Allocate, attempt(), errno, cause)
        })?;
        let fail = |errno| Error::new(Operation::Allocate, attempt(), errno);
        span!("allocate", len = length, vram = place == Place::Vram);

        let mut args = options.to_abi(length);
        if place == Place::Vram {
            args.flags |= abi::PINMAP_ALLOC_VRAM;
        }
        ioctl::alloc(device.as_fd(), &mut args).map_err(|errno| {
            let error = fail(errno).with_failure(Failure::from_abi(&args.fail));
            match (errno, place) {
                (Errno::ENOSPC, Place::Vram) => of_full_vram(error, device),
                _ => error,
            }
        })?;
        let handle = HandleGuard::new(device, args.out_handle);
        let map = MmapOptions::new()
            .offset(args.out_offset)
            .len(length)
            .map_raw(device.file())
            .map_err(|error| Error::from_io(Operation::Allocate, attempt(), &error))?;
        let memory = Mapped::new(map, place);
        Self::map(device, handle, memory, count, options.portable)
            .map_err(|(errno, failure)| fail(errno).with_failure(failure))
    }
}

/// Says how much memory the device has, where there was not enough of it.
fn of_full_vram(error: Error, device: &Device) -> Error {
    let mut info = abi::pinmap_gpu_info::default();
    let cause = match ioctl::gpu_info(device.as_fd(), &mut info) {
        Ok(()) => format!(
            "of the {} bytes of the device's memory {} are free",
            info.out_vram_length, info.out_vram_free
        ),
        Err(_) => "the device has too little memory".to_owned(),
    };
    error.with_cause(cause).with_hint(
        "allocate less, release something first, or use managed memory, of which the device can \
         have more (`Accelerator::alloc_managed`)",
    )
}

/// The length of an allocation in bytes: whole pages for `count` elements of `size` bytes.
fn length(count: usize, size: usize, page: usize) -> Result<usize, (Errno, &'static str)> {
    if count == 0 {
        return Err((Errno::EINVAL, "there must be at least one element"));
    }
    count
        .checked_mul(size)
        .and_then(|bytes| bytes.checked_next_multiple_of(page))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or((Errno::EOVERFLOW, "no address space is that large"))
}

#[cfg(test)]
mod tests;
