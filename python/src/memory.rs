// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a device can reach, as an array.

use std::ffi::c_int;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use pinmap::{Access, AllocOptions, ErrorKind, RegisterOptions};
use pinmap_dynamic as dynamic;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::buffer::{as_numpy, converted, length, take_back};
use crate::device::Device;
use crate::dlpack;
use crate::dtype::Layout;
use crate::error::{detached, invalid, raise, unsupported};
use crate::handle::Handle;
use crate::info::{Prefetched, Residency, Statistics};
use crate::managed::{self, advice, place, Part};
use crate::mapping::Mapping;
use crate::shared::Shared;
use crate::view::{fill, Views};

/// Why there is no view of memory that was released.
pub(crate) const RELEASED: &str = "the memory was released";

/// Memory that a device can reach, as an array: the same bytes for Python, NumPy and the device.
///
/// numpy.asarray() and memoryview() take it without a copy, and torch.from_dlpack() does. Release
/// it with release(), when no view of it is left, or by a `with` block: it is released at the end,
/// or with the last view. Or leave that to Python.
#[pyclass(module = "pinmap", frozen, weakref)]
pub(crate) struct Memory {
    held: Handle<Held>,
    device: Py<Device>,
    kind: Kind,
    addr: usize,
    layout: Layout,
    /// Whether the program, too, may only read it.
    read_only: bool,
    views: Views,
}

/// Holds the memory until it is released, and the device, whose object may be closed before.
struct Held {
    memory: Arc<dynamic::Memory>,
    shared: Arc<Shared>,
}

/// Kinds of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Registered,
    File,
    Allocated,
    Vram,
    Imported,
    Managed,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::File => "file",
            Self::Allocated => "allocated",
            Self::Vram => "vram",
            Self::Imported => "imported",
            Self::Managed => "managed",
        }
    }
}

impl Memory {
    pub(crate) fn new(
        device: &Bound<'_, Device>,
        kind: Kind,
        memory: Arc<dynamic::Memory>,
        layout: Layout,
        read_only: bool,
    ) -> PyResult<Self> {
        let (addr, shared) = (memory.addr(), device.get().shared()?);
        if addr != 0 {
            shared.know(&memory);
        }
        Ok(Self {
            held: Handle::new("memory", Held { memory, shared }),
            device: device.clone().unbind(),
            kind,
            addr,
            layout,
            read_only,
            views: Views::default(),
        })
    }

    fn both(&self) -> PyResult<Arc<Held>> {
        if !self.held.is_open() {
            return Err(raise(dynamic::Error::new(
                Errno::ESTALE,
                ErrorKind::Stale,
                RELEASED,
            )));
        }
        self.held.get()
    }

    pub(crate) fn held(&self) -> PyResult<Arc<dynamic::Memory>> {
        Ok(Arc::clone(&self.both()?.memory))
    }

    pub(crate) fn views(&self) -> &Views {
        &self.views
    }

    /// Counts a view that is gone, and releases the memory if a `with` block has left that to it.
    pub(crate) fn end_view(&self, py: Python<'_>) {
        if self.views.end() {
            if let Err(error) = self.release(py) {
                error.write_unraisable(py, None);
            }
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where the bytes are, how they are laid out, and whether they can only be read.
    pub(crate) fn contents(&self) -> PyResult<(usize, &Layout, bool)> {
        if self.kind == Kind::File {
            let text = "memory of a file has no address in this program: map the file with mmap";
            return Err(PyBufferError::new_err(text));
        }
        // A child has no such memory.
        self.held.check_process()?;
        Ok((self.addr, &self.layout, self.read_only))
    }

    fn check_managed(&self) -> PyResult<()> {
        if self.kind == Kind::Managed {
            return Ok(());
        }
        Err(unsupported(format!(
            "the memory is {}, not managed",
            self.kind.word()
        )))
    }

    /// Bytes of the memory, from elements of the first dimension on.
    fn bytes(&self, offset: usize, count: Option<usize>) -> PyResult<(usize, usize)> {
        let rows = self.layout.shape.first().map_or(1, |&rows| rows as usize);
        let row = self.layout.bytes / rows.max(1);
        let count = count.unwrap_or(rows.saturating_sub(offset));
        match offset.checked_add(count) {
            Some(end) if end <= rows => Ok((offset * row, count * row)),
            _ => Err(invalid(format!(
                "{count} elements from {offset} on end outside of {rows}"
            ))),
        }
    }
}

#[pymethods]
impl Memory {
    /// The number of elements in each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.layout.counts())
    }

    /// The type of the elements, by NumPy's name, such as "float32".
    #[getter]
    fn dtype(&self) -> &'static str {
        self.layout.dtype.name
    }

    /// The number of bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.layout.bytes
    }

    /// The number of bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.layout.dtype.size
    }

    /// The number of dimensions.
    #[getter]
    fn ndim(&self) -> usize {
        self.layout.shape.len()
    }

    /// The kind: "registered", "file", "allocated", "vram", "imported" or "managed".
    #[getter]
    fn kind(&self) -> &'static str {
        self.kind.word()
    }

    /// The device.
    #[getter]
    fn device(&self, py: Python<'_>) -> Py<Device> {
        self.device.clone_ref(py)
    }

    /// The address of the first byte in this program; 0 for a registered file.
    #[getter]
    fn addr(&self) -> usize {
        self.addr
    }

    /// The address at which the device finds the first byte. Give the device this one, never addr:
    /// the two differ where the IOMMU does not allow the address of the program.
    ///
    /// Raises Error (ESTALE) if the memory was released.
    #[getter]
    fn device_addr(&self, py: Python<'_>) -> PyResult<u64> {
        let held = self.held()?;
        detached(py, || held.device_addr(0))
    }

    /// Whether the device may write the memory.
    #[getter]
    fn writable(&self) -> PyResult<bool> {
        Ok(self.held()?.is_writable())
    }

    /// Whether the program may only read the memory.
    #[getter]
    fn readonly(&self) -> bool {
        self.read_only
    }

    /// The number by which events of the device name the memory.
    #[getter]
    fn id(&self) -> PyResult<u64> {
        Ok(self.held()?.id())
    }

    /// How many views of the memory there are: arrays of NumPy, memoryviews, tensors.
    #[getter]
    fn views_count(&self) -> usize {
        self.views.count()
    }

    /// Whether the memory was released.
    #[getter]
    fn released(&self) -> bool {
        self.views.why_closed() == Some(RELEASED)
    }

    /// Returns the memory as an array of NumPy, without a copy. The array keeps the memory.
    ///
    /// Raises Error (ESTALE) if the memory was released, and BufferError if it is that of a file.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().held()?;
        as_numpy(slf.as_any())
    }

    /// Takes the memory away from the device, or frees it, when the work in flight that names it is
    /// done. Once it is released, this does nothing.
    ///
    /// Raises BufferError if there are views of it, or other memory was registered in it, and Error
    /// with the errno EBUSY if there are mappings of it, or a channel has it, or EDEADLK in a
    /// function that a stream calls, if work in flight names the memory. The memory is as before
    /// then.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.held.check_process()?;
        if !self.views.close("release the memory", RELEASED)? {
            return Ok(());
        }
        let held = self.both()?;
        let released = py.detach(|| held.memory.release());
        if let Err(error) = &released {
            if matches!(error.kind(), ErrorKind::Busy | ErrorKind::Deadlock) {
                self.views.open();
                return Err(raise(match error.kind() {
                    ErrorKind::Busy if held.memory.is_mapped() => {
                        let hint = "`Mapping.unmap()` takes a mapping away";
                        error.clone().with_hint(hint)
                    }
                    _ => error.clone(),
                }));
            }
        }
        held.shared.forget(&held.memory);
        drop(held);
        self.held.close();
        released.map_err(raise)
    }

    /// Has the device see what the CPU wrote to `count` elements of the first dimension, from
    /// `offset` on; None is the rest. Needed only if Info.coherent is false.
    ///
    /// Raises Error: EINVAL, there are no such elements; ESTALE, it was released; ENODEV, the
    /// device is gone.
    #[pyo3(signature = (offset = 0, count = None))]
    fn sync_for_device(&self, py: Python<'_>, offset: usize, count: Option<usize>) -> PyResult<()> {
        let (held, (start, len)) = (self.held()?, self.bytes(offset, count)?);
        detached(py, || held.sync(start, len, true))
    }

    /// Has the CPU see what the device wrote: see sync_for_device().
    #[pyo3(signature = (offset = 0, count = None))]
    fn sync_for_cpu(&self, py: Python<'_>, offset: usize, count: Option<usize>) -> PyResult<()> {
        let (held, (start, len)) = (self.held()?, self.bytes(offset, count)?);
        detached(py, || held.sync(start, len, false))
    }

    /// Gives registered memory or a registered file one more device address, until
    /// Mapping.unmap(). The device gets the address `at`, or one that the driver chooses.
    ///
    /// Raises Error: EOPNOTSUPP, this kind of memory cannot be mapped again; EACCES, it was
    /// registered for reading only; EEXIST, something else has the address; ENOSPC, the device can
    /// have no such address.
    #[pyo3(signature = (*, read_only = false, at = None, address_bits = None))]
    fn map(
        &self,
        py: Python<'_>,
        read_only: bool,
        at: Option<u64>,
        address_bits: Option<u32>,
    ) -> PyResult<Mapping> {
        let held = self.held()?;
        let options = options(read_only, at, address_bits);
        Ok(Mapping::new(detached(py, || held.map(options))?))
    }

    /// Exports allocated memory, or a registered file, as a dma-buf. Returns its file descriptor,
    /// which the caller closes.
    ///
    /// Raises Error: EOPNOTSUPP, this kind of memory cannot be exported; ESTALE, it was released.
    #[pyo3(signature = (*, read_only = false))]
    fn export(&self, py: Python<'_>, read_only: bool) -> PyResult<c_int> {
        let held = self.held()?;
        let file = detached(py, || held.export(access(read_only)))?;
        Ok(OwnedFd::from(file).into_raw_fd())
    }

    /// Moves managed memory to the device, or to the host: `to` is the device, "device" or "host".
    /// Returns when it is there, and what became of it. Device.prefetch() moves a part, and
    /// Stream.prefetch() does it in the order of a stream.
    ///
    /// Raises Error: EOPNOTSUPP, the memory is not managed; EIO, the device did not copy it;
    /// ENOMEM, out of memory; ESTALE, it was released.
    fn prefetch(&self, py: Python<'_>, to: &Bound<'_, PyAny>) -> PyResult<Prefetched> {
        self.check_managed()?;
        let (part, held) = (Part::all(self.held()?)?, self.both()?);
        managed::prefetch(py, &part, &held.shared, place(&held.shared, to)?)
    }

    /// Says how managed memory is used, in place of what was said before. `prefer` is the device,
    /// "device" or "host": where it is to be. With accessed_by_device, the device reaches it where
    /// it is, rather than have it moved. With read_mostly, it is mostly read.
    ///
    /// Raises Error: EOPNOTSUPP, the memory is not managed; ESTALE, it was released.
    #[pyo3(signature = (*, prefer = None, accessed_by_device = false, read_mostly = false))]
    fn advise(
        &self,
        py: Python<'_>,
        prefer: Option<Bound<'_, PyAny>>,
        accessed_by_device: bool,
        read_mostly: bool,
    ) -> PyResult<()> {
        self.check_managed()?;
        let (part, held) = (Part::all(self.held()?)?, self.both()?);
        let given = advice(
            &held.shared,
            prefer.as_ref(),
            accessed_by_device,
            read_mostly,
        )?;
        managed::advise(py, &part, &held.shared, given)
    }

    /// Tells where the pages of managed memory are, in bytes and in runs.
    ///
    /// Raises Error: EOPNOTSUPP, the memory is not managed; ESTALE, it was released.
    fn residency(&self, py: Python<'_>) -> PyResult<Residency> {
        self.check_managed()?;
        let (part, held) = (Part::all(self.held()?)?, self.both()?);
        managed::residency(py, &part, &held.shared)
    }

    /// Tells how often managed memory was moved and why, since it is managed.
    ///
    /// Raises Error: EOPNOTSUPP, the memory is not managed; ESTALE, it was released.
    fn statistics(&self, py: Python<'_>) -> PyResult<Statistics> {
        let held = self.held()?;
        Ok(detached(py, || held.statistics())?.into())
    }

    fn __repr__(&self) -> String {
        let Layout { shape, dtype, .. } = &self.layout;
        let shape: Vec<_> = shape.iter().map(isize::to_string).collect();
        let released = if self.released() { ", released" } else { "" };
        format!(
            "<pinmap.Memory ({}) {}, {} at {:#x}{released}>",
            shape.join(", "),
            dtype.name,
            self.kind.word(),
            self.addr
        )
    }

    fn __len__(&self) -> PyResult<usize> {
        length(&self.layout)
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().held()?;
        Ok(slf)
    }

    /// Releases the memory; if there are views of it, with the last of them.
    #[pyo3(signature = (exception = None, *_more))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exception: Option<&Bound<'_, PyAny>>,
        _more: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        if self.views.leave() {
            return Ok(());
        }
        unless_failing(exception, self.release(py))
    }

    /// Makes a tensor of DLPack, which is a view of the memory; with copy=True one of a copy.
    ///
    /// Raises BufferError if the memory was released, if another device than the CPU is asked for,
    /// or if it can only be read and max_version is less than (1, 0).
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err(
                "memory of the CPU goes with no stream",
            ));
        }
        if let Some(device) = dl_device.filter(|&device| device != dlpack::CPU) {
            let text = format!("the memory is that of the CPU (1, 0), not of {device:?}");
            return Err(PyBufferError::new_err(text));
        }
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        dlpack::capsule(slf, versioned, copy == Some(true))
    }

    /// Returns the device of DLPack, which is the CPU: (1, 0).
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    /// Returns the memory as an array of NumPy, as numpy.asarray() does.
    #[pyo3(signature = (dtype = None, *, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        converted(as_numpy(slf.as_any())?, dtype, copy)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let owner = slf.clone();
        let this = owner.get();
        let contents = this.contents()?;
        // SAFETY: It is that of the request. The view keeps the object, and the memory is not
        // released while views are counted.
        unsafe { fill(view, slf.into_any(), contents, flags)? };
        this.views.begin().inspect_err(|_| {
            // SAFETY: As above. A request that fails has no object.
            unsafe { take_back(view) };
        })
    }

    unsafe fn __releasebuffer__(slf: Bound<'_, Self>, _view: *mut ffi::Py_buffer) {
        slf.get().end_view(slf.py());
    }
}

/// Passes on the error of the end of a `with` block, unless an exception ends the block already.
pub(crate) fn unless_failing(
    exception: Option<&Bound<'_, PyAny>>,
    ended: PyResult<()>,
) -> PyResult<()> {
    match exception {
        None => ended,
        Some(_) => Ok(()),
    }
}

pub(crate) fn access(read_only: bool) -> Access {
    match read_only {
        true => Access::Read,
        false => Access::ReadWrite,
    }
}

pub(crate) fn options(
    read_only: bool,
    at: Option<u64>,
    address_bits: Option<u32>,
) -> RegisterOptions {
    let options = RegisterOptions::new(access(read_only));
    let options = at.map_or(options, |at| options.at(at));
    address_bits.map_or(options, |bits| options.address_bits(bits))
}

pub(crate) fn alloc_options(
    write_combined: bool,
    node: Option<u32>,
    portable: bool,
) -> AllocOptions {
    let mut options = AllocOptions::new();
    if write_combined {
        options = options.write_combined();
    }
    if portable {
        options = options.portable();
    }
    node.map_or(options, |node| options.node(node))
}
