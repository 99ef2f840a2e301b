// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices: opening one, what it is, and what is made from it.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use pinmap::accelerator::StreamOptions;
use pinmap::{DmaBuf, ErrorKind};
use pinmap_dynamic as dynamic;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::bar::Bar;
use crate::dtype::{Dtype, Layout};
use crate::error::{detached, invalid, raise};
use crate::event::Event;
use crate::handle::Handle;
use crate::info::{AcceleratorInfo, DeviceEvent, Info, Prefetched, Residency, Totals};
use crate::interrupt::Interrupt;
use crate::managed::{self, advice, place, Part};
use crate::memory::{alloc_options, options, Kind, Memory};
use crate::program::Program;
use crate::shared::Shared;
use crate::source::Source;
use crate::stream::Stream;
use crate::wait::{coroutine, wait};

/// An open device. What is made from it keeps it open. Made by open(), find() and
/// find_accelerator().
#[pyclass(module = "pinmap", frozen, weakref)]
pub(crate) struct Device {
    held: Handle<Arc<Shared>>,
    path: String,
}

impl Device {
    pub(crate) fn new(device: pinmap::Device) -> Self {
        let path = device.path().to_string_lossy().into_owned();
        Self {
            held: Handle::new("device", Arc::new(Shared::new(device))),
            path,
        }
    }

    pub(crate) fn shared(&self) -> PyResult<Arc<Shared>> {
        Ok(Arc::clone(&*self.held.get()?))
    }
}

/// A file descriptor of our own for one that Python names.
fn duplicate(fd: i32) -> PyResult<OwnedFd> {
    let fail = |errno| {
        let text = format!("{fd} is no file descriptor that is open");
        raise(dynamic::Error::new(errno, ErrorKind::InvalidInput, text))
    };
    if fd < 0 {
        return Err(fail(Errno::EBADF));
    }
    // SAFETY: It is used for one call, which fails if it is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    borrowed
        .try_clone_to_owned()
        .map_err(|_| fail(Errno::EBADF))
}

#[pymethods]
impl Device {
    /// The path of the device's file, such as "/dev/pinmap0".
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// Whether close() was called.
    #[getter]
    fn closed(&self) -> bool {
        !self.held.is_open()
    }

    /// Tells the properties of the device.
    ///
    /// A device that is gone says so in Info.gone.
    fn info(&self, py: Python<'_>) -> PyResult<Info> {
        let shared = self.shared()?;
        Ok(detached(py, || Ok(shared.device.info()?))?.into())
    }

    /// Tells the properties of a device with queues.
    ///
    /// Raises Error: EOPNOTSUPP, the device has none.
    fn accelerator_info(&self, py: Python<'_>) -> PyResult<AcceleratorInfo> {
        let shared = self.shared()?;
        Ok(detached(py, || Ok(shared.accelerator()?.info()?))?.into())
    }

    /// Tells how much memory of the device is in use, by all programs.
    fn totals(&self, py: Python<'_>) -> PyResult<Totals> {
        let shared = self.shared()?;
        Ok(detached(py, || Ok(shared.device.totals()?))?.into())
    }

    /// Tells how much memory of the device is in use by this program.
    fn own_totals(&self, py: Python<'_>) -> PyResult<Totals> {
        let shared = self.shared()?;
        Ok(detached(py, || Ok(shared.device.own_totals()?))?.into())
    }

    /// Allocates host memory of the driver's as an array of this shape: zeroed, pinned, and mapped
    /// in this program and in the device. The elements are bytes, unless their type is named.
    ///
    /// write_combined: fast to write for the CPU, slow to read. node: on this NUMA node. portable:
    /// all devices of the driver that the process has open reach it.
    ///
    /// Raises Error: EINVAL, the shape or the type makes no sense; ENOMEM, out of memory, or more
    /// than the user may lock; EBUSY, another program owns the device; ENODEV, it is gone.
    #[pyo3(signature = (
        shape, dtype = None, *, write_combined = false, node = None, portable = false
    ))]
    fn alloc(
        slf: &Bound<'_, Self>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        write_combined: bool,
        node: Option<u32>,
        portable: bool,
    ) -> PyResult<Memory> {
        let (shared, layout) = (slf.get().shared()?, Layout::of(shape, dtype)?);
        let (len, options) = (layout.room(), alloc_options(write_combined, node, portable));
        let memory = detached(slf.py(), || {
            dynamic::Memory::alloc(&shared.device, len, options)
        })?;
        Memory::new(slf, Kind::Allocated, memory, layout, false)
    }

    /// Allocates memory of the device's own as an array of this shape, zeroed. The CPU reaches it,
    /// write-combined: it is slow to read. When the device is gone, an access raises SIGBUS.
    ///
    /// Raises Error: EOPNOTSUPP, the device has none; ENOSPC, it has too little; otherwise as
    /// alloc() does.
    #[pyo3(signature = (shape, dtype = None))]
    fn alloc_vram(
        slf: &Bound<'_, Self>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Memory> {
        let (shared, layout) = (slf.get().shared()?, Layout::of(shape, dtype)?);
        let len = layout.room();
        let memory = detached(slf.py(), || {
            dynamic::Memory::alloc_vram(shared.accelerator()?, len)
        })?;
        Memory::new(slf, Kind::Vram, memory, layout, false)
    }

    /// Allocates managed memory as an array of this shape: ordinary memory of the program, that the
    /// device reaches at the same address. Its pages move to where they are used.
    ///
    /// Raises Error: EOPNOTSUPP, the device cannot have managed memory; otherwise as alloc() does.
    #[pyo3(signature = (shape, dtype = None))]
    fn alloc_managed(
        slf: &Bound<'_, Self>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Memory> {
        let (shared, layout) = (slf.get().shared()?, Layout::of(shape, dtype)?);
        let len = layout.room();
        let memory = detached(slf.py(), || {
            dynamic::Memory::alloc_managed(shared.accelerator()?, len)
        })?;
        Memory::new(slf, Kind::Managed, memory, layout, false)
    }

    /// Registers memory of the program: an array of NumPy, a bytearray, a mmap, a Buffer of
    /// empty(), or another object with the buffer protocol whose elements follow each other. The
    /// device can reach it until it is released, and until then the object is kept, and cannot be
    /// resized.
    ///
    /// read_only: the device may only read it; an object that Python can only read must be
    /// registered so. round_outwards: takes the whole pages around it, with whatever else lies
    /// there; without it, the memory must be whole pages. portable: all devices of the driver that
    /// the process has open reach it. identity: fails if the device cannot have it at the address
    /// that it has for the CPU. at: the device gets it at this address. address_bits: the device
    /// drives only so many bits of addresses.
    ///
    /// Raises BufferError if it is a Buffer or Memory of which there are views, or an object that
    /// can only be read and read_only is not set; Error: EINVAL, it is not whole pages, or empty;
    /// EFAULT, not all of it can be pinned; EEXIST, a part of it is registered already, or
    /// something else has the device address; ENOMEM, the user may not lock so much; EBUSY,
    /// another program owns the device; ENOSPC, the device can have no such address; ENODEV, it is
    /// gone.
    #[pyo3(signature = (
        memory, *, read_only = false, round_outwards = false, portable = false, identity = false,
        at = None, address_bits = None
    ))]
    fn register(
        slf: &Bound<'_, Self>,
        memory: &Bound<'_, PyAny>,
        read_only: bool,
        round_outwards: bool,
        portable: bool,
        identity: bool,
        at: Option<u64>,
        address_bits: Option<u32>,
    ) -> PyResult<Memory> {
        let (py, shared) = (slf.py(), slf.get().shared()?);
        let mut options = options(read_only, at, address_bits);
        if round_outwards {
            options = options.round_outwards();
        }
        if portable {
            options = options.portable();
        }
        if identity && at.is_none() {
            options = options.identity();
        }
        let source = Source::of(memory)?;
        if source.read_only && !read_only {
            return Err(PyBufferError::new_err(
                "the object can only be read: register it with read_only=True",
            ));
        }
        let registered = source.register(py, &shared.device, options, round_outwards)?;
        (source.keep)(&registered);
        Memory::new(
            slf,
            Kind::Registered,
            registered,
            source.layout,
            source.read_only,
        )
    }

    /// Registers whole pages of a file that is open as `fd`: a memfd, or one of tmpfs or hugetlbfs:
    /// `length` bytes from `offset` on. The device and all who map the file share them. The memory
    /// has no address in this program, is no array, and no operand of a stream.
    ///
    /// Raises Error: EBADF, that is no file; EINVAL, that is no such file, or not whole pages of
    /// it; otherwise as register() does.
    #[pyo3(signature = (fd, length, offset = 0, *, read_only = false, at = None))]
    fn register_file(
        slf: &Bound<'_, Self>,
        fd: i32,
        length: usize,
        offset: u64,
        read_only: bool,
        at: Option<u64>,
    ) -> PyResult<Memory> {
        let shared = slf.get().shared()?;
        let file = std::fs::File::from(duplicate(fd)?);
        let options = options(read_only, at, None);
        let layout = Layout::new(Dtype::bytes(), &[length])?;
        let memory = detached(slf.py(), || {
            dynamic::Memory::register_file(&shared.device, &file, offset, length, options)
        })?;
        Memory::new(slf, Kind::File, memory, layout, false)
    }

    /// Has memory of the program managed, where it is: an object as for register(), and the rest of
    /// the pages around it. The device reaches it at the same address, and its pages move to where
    /// they are used. The object is kept until the memory is released.
    ///
    /// Raises BufferError as register() does; Error: EOPNOTSUPP, the device cannot have managed
    /// memory; EEXIST, it overlaps with managed memory and does not lie in it; ENODEV, the device
    /// is gone.
    fn manage(slf: &Bound<'_, Self>, memory: &Bound<'_, PyAny>) -> PyResult<Memory> {
        let shared = slf.get().shared()?;
        let source = Source::of(memory)?;
        if source.read_only {
            return Err(PyBufferError::new_err("the object can only be read"));
        }
        let (addr, len) = (source.addr, source.len);
        let managed = detached(slf.py(), || {
            let first = std::ptr::with_exposed_provenance_mut(addr);
            // SAFETY: As in `register`.
            unsafe { dynamic::Memory::manage(shared.accelerator()?, first, len) }
        })?;
        (source.keep)(&managed);
        Memory::new(slf, Kind::Managed, managed, source.layout, false)
    }

    /// Moves memory of the program, such as a part of an array, to the device, or to the host: `to`
    /// is the device, "device" or "host". The whole pages around it move. Returns when it is there,
    /// and what became of it.
    ///
    /// Raises Error: EOPNOTSUPP, the device cannot have managed memory; EIO, the device did not
    /// copy it; ENOENT, the program has chosen what is managed, and it is not; ENOMEM, out of
    /// memory; ENODEV, the device is gone.
    fn prefetch(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        to: &Bound<'_, PyAny>,
    ) -> PyResult<Prefetched> {
        let shared = self.shared()?;
        let (part, place) = (Part::of(memory)?, place(&shared, to)?);
        detached(py, || shared.manage_all())?;
        managed::prefetch(py, &part, &shared, place)
    }

    /// Says how memory of the program, such as a part of an array, is used: see Memory.advise().
    ///
    /// Raises Error: as prefetch() does.
    #[pyo3(signature = (
        memory, *, prefer = None, accessed_by_device = false, read_mostly = false
    ))]
    fn advise(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        prefer: Option<Bound<'_, PyAny>>,
        accessed_by_device: bool,
        read_mostly: bool,
    ) -> PyResult<()> {
        let shared = self.shared()?;
        let given = advice(&shared, prefer.as_ref(), accessed_by_device, read_mostly)?;
        let part = Part::of(memory)?;
        detached(py, || shared.manage_all())?;
        managed::advise(py, &part, &shared, given)
    }

    /// Tells where the pages of memory of the program are, such as a part of an array.
    ///
    /// Raises Error: as prefetch() does.
    fn residency(&self, py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<Residency> {
        let (shared, part) = (self.shared()?, Part::of(memory)?);
        detached(py, || shared.manage_all())?;
        managed::residency(py, &part, &shared)
    }

    /// Imports the dma-buf that is open as `fd` as an array of this shape, which must fit into it:
    /// one of the driver's, of this or another device and process, or one of another driver whose
    /// memory does not move. VRAM must be of this device. The file descriptor stays the caller's.
    ///
    /// Raises Error: EBADF, that is no file; EINVAL, that is no dma-buf, or the array does not fit,
    /// or the CPU cannot map its memory; EACCES, it was exported for reading only; EOPNOTSUPP,
    /// another driver may move it; EREMOTEIO, the bus does not let the device reach it; ESTALE, it
    /// was taken back; otherwise as alloc() does.
    #[pyo3(signature = (fd, shape, dtype = None))]
    fn import_(
        slf: &Bound<'_, Self>,
        fd: i32,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Memory> {
        let (shared, layout) = (slf.get().shared()?, Layout::of(shape, dtype)?);
        let file = DmaBuf::from(duplicate(fd)?);
        let memory = detached(slf.py(), || dynamic::Memory::import(&shared.device, &file))?;
        if memory.len() < layout.bytes {
            return Err(invalid(format!(
                "an array of {} bytes does not fit into the {} of the dma-buf",
                layout.bytes,
                memory.len()
            )));
        }
        Memory::new(slf, Kind::Imported, memory, layout, false)
    }

    /// Tells the device address of an address of this program in any memory of the device's,
    /// whoever registered it in this program.
    ///
    /// Raises Error: ENOENT, nothing of the device's is there, or nothing that is mapped.
    fn translate(&self, py: Python<'_>, addr: usize) -> PyResult<u64> {
        let shared = self.shared()?;
        detached(py, || {
            let found = shared.device.query(addr)?;
            found.and_then(|info| info.device_addr).ok_or_else(|| {
                let text = format!("no memory of {} is at {addr:#x}", shared.device);
                dynamic::Error::new(Errno::ENOENT, ErrorKind::NotFound, text)
            })
        })
    }

    /// Maps a BAR, 0 to 5. On a flat device this makes the program its owner.
    ///
    /// Raises Error: ENOENT, the function has no such BAR; EOPNOTSUPP, it cannot be mapped; EBUSY,
    /// another program owns the device; ENODEV, it is gone.
    fn bar(&self, py: Python<'_>, number: usize) -> PyResult<Bar> {
        let shared = self.shared()?;
        Ok(Bar::new(detached(py, || Ok(shared.device.bar(number)?))?))
    }

    /// Enables an interrupt vector, from 0 on, before the device is told to raise it. On a flat
    /// device this makes the program its owner.
    ///
    /// Raises Error: ENOENT, the function has no such vector; EEXIST, this program has enabled it
    /// already; EBUSY, another program owns the device; ENODEV, it is gone.
    #[pyo3(signature = (vector = 0))]
    fn interrupt(&self, py: Python<'_>, vector: u32) -> PyResult<Interrupt> {
        let shared = self.shared()?;
        let interrupt = detached(py, || Ok(shared.device.interrupt(vector)?))?;
        Ok(Interrupt::new(interrupt.into()))
    }

    /// Makes a stream. Between packets, the device prefers streams of a higher priority; 0 is the
    /// lowest, and a number above AcceleratorInfo.max_priority is the highest. `packets` is how
    /// many packets can wait for the device, a power of two from 64 to 65,536; None is for 256.
    ///
    /// Raises Error: EOPNOTSUPP, the device has no streams, or packets that this module does not
    /// know; EINVAL, the options make no sense; ENOSPC, there are too many streams; ENOMEM, out of
    /// memory, or more than the user may lock; ENODEV, the device is gone.
    #[pyo3(signature = (*, priority = 0, packets = None))]
    fn stream(slf: &Bound<'_, Self>, priority: u32, packets: Option<u32>) -> PyResult<Stream> {
        let shared = slf.get().shared()?;
        let mut options = StreamOptions::new().priority(priority);
        if let Some(packets) = packets {
            options = options.packets(packets);
        }
        let stream = detached(slf.py(), || {
            dynamic::Stream::new(shared.accelerator()?, options)
        })?;
        Ok(Stream::new(slf, shared, stream))
    }

    /// Loads a program that pinmap.compile() has compiled.
    ///
    /// Raises Error: EINVAL, this is no such program, or the device executes none; EOPNOTSUPP, the
    /// device has no streams; ENOMEM, out of the device's memory; ENODEV, the device is gone.
    fn load(&self, py: Python<'_>, program: &[u8]) -> PyResult<Program> {
        Program::load(py, self, program)
    }

    /// Makes an event for the streams of the device. It is complete until it is recorded.
    ///
    /// Raises Error: EOPNOTSUPP, the device has no streams; ENOMEM, out of memory; ENODEV, the
    /// device is gone.
    fn event(&self, py: Python<'_>) -> PyResult<Event> {
        let shared = self.shared()?;
        Ok(Event::new(detached(py, || {
            Ok(shared.accelerator()?.event()?)
        })?))
    }

    /// Takes the next event of the device. Waits for one, for at most `timeout` seconds; None is
    /// for ever, and 0 only looks.
    ///
    /// Raises TimedOut: the time was up; Error: ENODEV, the device is gone, and the last event was
    /// taken.
    #[pyo3(signature = (timeout = None))]
    fn next_event(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<DeviceEvent> {
        let shared = self.shared()?;
        let next = |slice| shared.device.next_event_timeout(slice);
        Ok(wait(py, timeout, next)?.into())
    }

    /// Waits in asyncio for the next event of the device, and takes it. No event is lost if the
    /// wait is cancelled.
    ///
    /// Raises Error: as next_event() does.
    fn next_event_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let file = slf.get().fileno()?;
        coroutine(
            slf.py(),
            vec![(file, true)],
            slf.getattr("_try_next_event")?,
        )
    }

    fn _try_next_event(&self, py: Python<'_>) -> PyResult<Option<DeviceEvent>> {
        let shared = self.shared()?;
        let taken = detached(py, || {
            match shared.device.next_event_timeout(Duration::ZERO) {
                Err(error) if error.kind() == ErrorKind::TimedOut => Ok(None),
                taken => Ok(Some(taken?)),
            }
        })?;
        Ok(taken.map(Into::into))
    }

    /// Resets the function. On a flat device this makes the program its owner.
    ///
    /// Raises Error: EOPNOTSUPP, the function has no reset; EAGAIN, somebody else is binding,
    /// unbinding or resetting it; EBUSY, another program owns the device; ENODEV, it is gone.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.shared()?;
        detached(py, || Ok(shared.device.reset()?))
    }

    /// Says whether the system is to stay awake while this program has the device: suspending or
    /// hibernating it then fails, and the kernel's log names the program. Otherwise the system may
    /// sleep; an accelerator goes on afterwards, and the owner of a flat device gets the event
    /// "resumed". On a flat device this counts for its owner only.
    ///
    /// Raises Error: EPERM, the program lacks CAP_BLOCK_SUSPEND; ENODEV, the device is gone.
    #[pyo3(signature = (on = true))]
    fn stay_awake(&self, py: Python<'_>, on: bool) -> PyResult<()> {
        let shared = self.shared()?;
        detached(py, || Ok(shared.device.stay_awake(on)?))
    }

    /// Returns the file descriptor of the device, which stays the device's: readable when there is
    /// an event for next_event().
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.shared()?.device.as_raw_fd())
    }

    /// Closes the device. Memory, streams and all else that was made from it stay, and keep it open
    /// for the driver. Once it is closed, this does nothing.
    fn close(&self) {
        self.held.close();
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<pinmap.Device {}{closed}>", self.path)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }
}
