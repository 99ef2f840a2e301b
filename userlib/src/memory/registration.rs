// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registrations: memory that a device can reach.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use nix::errno::Errno;

use crate::device::Device;
use crate::error::{bounds, Error, ErrorWith, Operation, Result};
use crate::memory::buffer::Buffer;
#[cfg(feature = "accelerator")]
use crate::memory::element::Element;
use crate::memory::mapping::Mapping;
use crate::memory::options::{Access, RegisterOptions};
use crate::memory::query::{RegistrationInfo, State};
use crate::memory::raw::{all, RawRegistration};
#[cfg(feature = "accelerator")]
use crate::memory::slice::{DeviceSlice, DeviceSliceMut};
#[cfg(feature = "accelerator")]
use crate::memory::view::View;
use crate::sys::barrier::drain_writes;
use crate::sys::bindings as abi;
use crate::sys::word::{self, Word};

/// Memory that a device can reach, and may read and write at any time.
///
/// `M` is what keeps the memory, and comes back when it is [released](Self::release):
///
/// | made by | `M` |
/// |---|---|
/// | [`Buffer::register`], [`Device::register_all`] | the [`Buffer`] |
/// | [`Device::register`] | a `Vec` or the like, which the device only reads |
/// | [`Device::register_file`] | a [`FilePart`](crate::FilePart), which need not be mapped |
/// | [`Device::register_raw`] | `()`: the program keeps the memory |
///
/// The memory of a buffer can only be copied from and to: a reference to memory that a device
/// changes would be undefined behaviour. All accesses of the process are atomic, aligned and 8
/// bytes wide, and several threads may make them at once. Memory that a device only reads can be
/// [referred to](Self::elements).
///
/// Dropping a registration releases the memory and drops `M`; then, too, the device cannot reach
/// the memory any more. If the driver cannot release it (`EIO`), a buffer stays allocated and
/// mapped until the process ends, so that nothing else gets memory to which a device might write;
/// memory of the program must never be used for something else then, and only
/// [`release`](Self::release) tells. A forgotten registration ([`std::mem::forget`]) stays
/// registered until the process ends.
///
/// A registration keeps the device open.
///
/// ```no_run
/// use pinmap::{Access, Buffer, Device};
/// # fn f(device: &Device, registers: &pinmap::Bar) -> pinmap::Result<()> {
/// let memory = Buffer::<u8>::new(4096)?.register(device, Access::ReadWrite)?;
/// memory.write_at(0, b"for the device")?;
/// registers.write(0x80, memory.device_addr()?)?;
/// // ... start the device, and wait for it ...
/// let mut answer = [0; 16];
/// memory.read_at(64, &mut answer)?;
/// let buffer = memory.release()?; // a slice again
/// # Ok(()) }
/// ```
#[must_use = "dropped, the device cannot reach the memory any more"]
pub struct Registration<M = Buffer> {
    raw: RawRegistration,
    /// `None` only after a release took it.
    memory: Option<M>,
}

impl<M> Registration<M> {
    pub(crate) fn new(raw: RawRegistration, memory: M) -> Self {
        Self {
            raw,
            memory: Some(memory),
        }
    }

    /// Makes the memory unreachable for the device, removes all of its mappings, and gives the
    /// memory back with its content. Succeeds also when the device is gone, or the registration
    /// stale.
    ///
    /// ```no_run
    /// # fn f(memory: pinmap::Registration) -> pinmap::Result<()> {
    /// match memory.release() {
    ///     Ok(buffer) => println!("{:?}", &buffer[..4]),
    ///     // `failed.value` is the registration.
    ///     Err(failed) => println!("{}", failed.error),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The registration comes back with the error.
    ///
    /// `EIO`: the IOMMU did not unmap the memory, or the device did not confirm in time that it has
    /// forgotten the addresses. The driver has cut the device off from all memory, and the device
    /// will be gone soon. The memory nevertheless counts as reachable from then on: releasing it
    /// again fails with `EIO`, too, and dropping the registration leaves a buffer allocated.
    pub fn release(mut self) -> Result<M, ErrorWith<Self>> {
        if let Err(error) = self.raw.release_now() {
            return Err(ErrorWith { error, value: self });
        }
        match self.memory.take() {
            Some(memory) => Ok(memory),
            None => unreachable!("only a release takes it, and that consumes the registration"),
        }
    }

    /// Makes the memory of several registrations unreachable for their devices, as
    /// [`release`](Self::release) does that of one, and gives all of it back in its order. The
    /// driver does it by one call for up to 1024 of them, with one flush of the IOMMU. No
    /// registrations do nothing.
    ///
    /// ```no_run
    /// use pinmap::{Access, Buffer, Registration};
    /// # fn f(device: &pinmap::Device, buffers: Vec<Buffer>) -> pinmap::Result<()> {
    /// let registrations = device.register_all(buffers, Access::Read)?;
    /// match Registration::release_all(registrations) {
    ///     Ok(buffers) => println!("{} buffers", buffers.len()),
    ///     // `failed.value` is the registrations.
    ///     Err(failed) => println!("{}", failed.error),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// All registrations come back with the error. Each can still be released by itself, and gives
    /// its memory back if the device cannot reach that.
    ///
    /// `EIO`: as for [`release`](Self::release). The driver does not say for which of the
    /// registrations of a call it failed, so the memory of all of them is never given back.
    pub fn release_all(
        registrations: impl IntoIterator<Item = Self>,
    ) -> Result<Vec<M>, ErrorWith<Vec<Self>>> {
        let mut value: Vec<Self> = registrations.into_iter().collect();
        let mut raw: Vec<_> = value.iter_mut().map(|one| &mut one.raw).collect();
        match all::release_all(&mut raw) {
            Ok(()) => {
                let memory = value.iter_mut().filter_map(|one| one.memory.take());
                Ok(memory.collect())
            }
            Err(error) => Err(ErrorWith { error, value }),
        }
    }

    /// Makes what the CPU wrote to these bytes visible to a device that does not snoop the CPU's
    /// caches (see [`Info::coherent`](crate::Info::coherent)). Call it after the last write, and
    /// before the device is told. For a coherent device this does nothing.
    ///
    /// ```no_run
    /// # fn f(memory: &pinmap::Registration, registers: &pinmap::Bar) -> pinmap::Result<()> {
    /// memory.write_at(0, b"for the device")?;
    /// memory.sync_for_device(0..64)?;
    /// registers.write(0x80, 1u32)?; // tells the device
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range does not end inside the memory; `EOPNOTSUPP`: this architecture cannot
    /// do it; `ENODEV`: the device is gone.
    pub fn sync_for_device(&self, bytes: Range<usize>) -> Result<()> {
        self.check_range("write back", &bytes)?;
        self.raw.sync(bytes, abi::PINMAP_SYNC_FOR_DEVICE)
    }

    /// Makes what a device that does not snoop the CPU's caches wrote to these bytes visible to the
    /// CPU. Call it after the device has said that it is done, and before the first read.
    ///
    /// ```no_run
    /// # fn f(memory: &pinmap::Registration, interrupt: &pinmap::Interrupt) -> pinmap::Result<()> {
    /// interrupt.wait()?;
    /// memory.sync_for_cpu(0..64)?;
    /// let mut answer = [0; 64];
    /// memory.read_at(0, &mut answer)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`sync_for_device`](Self::sync_for_device).
    pub fn sync_for_cpu(&self, bytes: Range<usize>) -> Result<()> {
        self.check_range("invalidate", &bytes)?;
        self.raw.sync(bytes, abi::PINMAP_SYNC_FOR_CPU)
    }

    /// The device that reaches the memory.
    pub fn device(&self) -> &Device {
        self.raw.device()
    }

    pub(crate) fn memory(&self) -> &M {
        match &self.memory {
            Some(memory) => memory,
            None => unreachable!("only a release takes it, and that consumes the registration"),
        }
    }

    fn check_range(&self, verb: &str, bytes: &Range<usize>) -> Result<()> {
        check(
            verb,
            bytes.start,
            bytes.end.saturating_sub(bytes.start),
            1,
            self.len(),
        )
    }

    /// Maps the memory at one more device address.
    ///
    /// ```no_run
    /// # fn f(memory: &pinmap::Registration) -> pinmap::Result<()> {
    /// let view = memory.map(pinmap::Access::Read)?;
    /// println!("{:#x} and {:#x}", memory.device_addr()?, view.device_addr());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EACCES`: [`Access::ReadWrite`] is demanded, and the memory was registered with
    /// [`Access::Read`]; `ENOSPC`: no room among the device addresses, or too many mappings;
    /// `EEXIST`: the demanded device address is taken; `ESTALE`: the memory went away; `EBUSY`:
    /// another context owns the device; `EINVAL`: the device address is not a multiple of the page
    /// size, the address bits are not 12 to 64, or the options are
    /// [`portable`](RegisterOptions::portable) or [`unmapped`](RegisterOptions::unmapped);
    /// `EOPNOTSUPP`: they demand [`identity`](RegisterOptions::identity) for a file; `ENODEV`: the
    /// device is gone. [`Error::failure`](crate::Error::failure) has the details.
    pub fn map(&self, options: impl Into<RegisterOptions>) -> Result<Mapping<'_>> {
        Mapping::new(&self.raw, options.into())
    }

    /// User address of the first byte; 0 for a part of a file, which need not have one.
    pub fn addr(&self) -> usize {
        self.raw.addr()
    }

    /// Length in bytes: that of the whole pages of a buffer.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Device address of the first byte, in the mapping that registering made.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the memory was registered [`unmapped`](RegisterOptions::unmapped).
    pub fn device_addr(&self) -> Result<u64> {
        self.raw.device_addr()
    }

    /// The access that the device has.
    pub fn access(&self) -> Access {
        self.raw.access()
    }

    /// The handle of the registration, unique in its context. Events name the registration by it.
    pub fn handle(&self) -> u64 {
        self.raw.handle()
    }

    /// Asks whether the registration is live or stale.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn state(&self) -> Result<State> {
        self.raw.state()
    }

    /// Asks for all that the driver knows about the registration.
    ///
    /// # Errors
    ///
    /// `ENODEV`: the device is gone.
    pub fn query(&self) -> Result<RegistrationInfo> {
        self.raw.query()
    }
}

/// Access to the memory of a buffer.
impl<T> Registration<Buffer<T>> {
    /// Copies bytes from the memory, from byte `offset` on.
    ///
    /// The copy sees what the device wrote before it raised an interrupt that was waited for, or
    /// before it stored a value that [`load`](Self::load) returned. Each aligned 8 bytes are read
    /// at once; the copy as a whole is not.
    ///
    /// ```no_run
    /// # fn f(registration: &pinmap::Registration) -> pinmap::Result<()> {
    /// let mut header = [0; 16];
    /// registration.read_at(64, &mut header)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range does not end inside the memory.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.check("read", offset, to.len(), 1)?;
        word::read(self.words(), offset, to);
        Ok(())
    }

    /// Copies bytes to the memory, from byte `offset` on.
    ///
    /// The device sees these bytes before a later write to a [`Bar`](crate::Bar), and before a
    /// later [`store`](Self::store).
    ///
    /// ```no_run
    /// # fn f(registration: &pinmap::Registration) -> pinmap::Result<()> {
    /// registration.write_at(0, b"a command")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range does not end inside the memory.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.check("write", offset, from.len(), 1)?;
        word::write(self.words(), offset, from);
        Ok(())
    }

    /// Loads a value in the CPU's byte order at byte `offset`. Later reads see what the device or
    /// another thread wrote before it stored that value (acquire).
    ///
    /// ```no_run
    /// # fn f(memory: &pinmap::Registration) -> pinmap::Result<()> {
    /// // The device counts its finished jobs in the first 8 bytes.
    /// while memory.load::<u64>(0)? < 3 {
    ///     std::hint::spin_loop();
    /// }
    /// let mut result = [0; 64];
    /// memory.read_at(4096, &mut result)?; // what it wrote before it counted
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the offset is not a multiple of the size of `W`, or the value is not inside the
    /// memory.
    pub fn load<W: Word>(&self, offset: usize) -> Result<W> {
        self.check("load", offset, size_of::<W>(), size_of::<W>())?;
        Ok(word::load(self.words(), offset))
    }

    /// Stores a value in the CPU's byte order at byte `offset`. A thread or a device that sees the
    /// value sees everything that was written before (release), also to write-combined memory.
    ///
    /// ```no_run
    /// # fn f(memory: &pinmap::Registration) -> pinmap::Result<()> {
    /// memory.write_at(64, b"a job")?;
    /// memory.store(0, 1u32)?; // a device that sees the 1 sees the job
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the offset is not a multiple of the size of `W`, or the value is not inside the
    /// memory.
    pub fn store<W: Word>(&self, offset: usize, value: W) -> Result<()> {
        self.check("store", offset, size_of::<W>(), size_of::<W>())?;
        drain_writes();
        word::store(self.words(), offset, value);
        Ok(())
    }

    /// Borrows the memory as a slice of elements that a device with queues can read: an operand of
    /// [`Work`](crate::accelerator::Work).
    ///
    /// ```no_run
    /// use pinmap::accelerator::Stream;
    /// use pinmap::Registration;
    /// use pinmap_testgpu::SumF32;
    /// # fn f(
    /// #     stream: &Stream, numbers: &Registration, sum: &mut Registration,
    /// # ) -> pinmap::Result<()> {
    /// stream.scope(|work| {
    ///     let (data, mut sum) = (numbers.slice::<f32>()?, sum.slice_mut::<f32>()?.part(..1)?);
    ///     work.launch(SumF32 { data, sum: &mut sum })
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the memory was registered [`unmapped`](RegisterOptions::unmapped).
    #[cfg(feature = "accelerator")]
    pub fn slice<U: Element>(&self) -> Result<DeviceSlice<'_, U>> {
        let addr = self.device_addr()?;
        let view = View::Host(self.words());
        let len = self.len() / size_of::<U>();
        Ok(DeviceSlice::new(self.raw.device(), view, addr, len))
    }

    /// Borrows the memory exclusively as a slice of elements that a device with queues can write.
    ///
    /// ```no_run
    /// use pinmap::accelerator::Stream;
    /// use pinmap::Registration;
    /// use pinmap_testgpu::IncrementF32;
    /// # fn f(stream: &Stream, numbers: &mut Registration) -> pinmap::Result<()> {
    /// stream.scope(|work| {
    ///     let mut data = numbers.slice_mut::<f32>()?;
    ///     work.launch(IncrementF32 { data: &mut data })
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `EACCES`: the memory was registered with [`Access::Read`]; `EINVAL`: the memory was
    /// registered [`unmapped`](RegisterOptions::unmapped).
    #[cfg(feature = "accelerator")]
    pub fn slice_mut<U: Element>(&mut self) -> Result<DeviceSliceMut<'_, U>> {
        if self.access() != Access::ReadWrite {
            let attempt = format!("have the memory at {:#x} written", self.addr());
            let cause = "it was registered for reading only";
            return Err(
                Error::refused(Operation::Access, attempt, Errno::EACCES, cause)
                    .with_hint("register the memory with `Access::ReadWrite`"),
            );
        }
        Ok(DeviceSliceMut::new(self.slice()?))
    }

    fn words(&self) -> &[AtomicU64] {
        self.memory().memory().words()
    }

    fn check(&self, verb: &str, offset: usize, size: usize, align: usize) -> Result<()> {
        check(verb, offset, size, align, self.len())
    }
}

/// Checks an access to registered memory of `len` bytes.
fn check(verb: &str, offset: usize, size: usize, align: usize, len: usize) -> Result<()> {
    let memory = "registered memory";
    bounds::check(verb, memory, offset, size, align, len as u64)
}

impl<M> fmt::Debug for Registration<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

impl<M> Drop for Registration<M> {
    fn drop(&mut self) {
        if self.raw.release_now().is_err() {
            // The device may still reach the memory, so it is never unmapped.
            std::mem::forget(self.memory.take());
        }
    }
}

#[cfg(test)]
mod tests;
