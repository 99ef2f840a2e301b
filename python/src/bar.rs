// SPDX-License-Identifier: MIT OR Apache-2.0
//! BARs: registers and memory of a device that are mapped in the program.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::buffer::as_numpy;
use crate::dtype::{Dtype, Layout};
use crate::error::{invalid, raise};
use crate::handle::Handle;
use crate::view::fill;

/// A BAR that is mapped. Made by Device.bar().
///
/// A method such as read32() makes exactly one access, of its width, in the order of the program.
/// array() gives a part as an array of NumPy, for memory and not for registers. Once the device is
/// gone, an access raises SIGBUS, which ends the program.
#[pyclass(module = "pinmap", frozen)]
pub(crate) struct Bar {
    held: Handle<pinmap::Bar>,
    number: usize,
    length: u64,
}

impl Bar {
    pub(crate) fn new(bar: pinmap::Bar) -> Self {
        let (number, length) = (bar.number(), bar.len());
        Self {
            held: Handle::new("BAR", bar),
            number,
            length,
        }
    }

    fn read<T: pinmap::Word>(&self, offset: usize) -> PyResult<T> {
        self.held.get()?.read(offset).map_err(raise)
    }

    fn write<T: pinmap::Word>(&self, offset: usize, value: T) -> PyResult<()> {
        self.held.get()?.write(offset, value).map_err(raise)
    }
}

#[pymethods]
impl Bar {
    /// The number of the BAR, 0 to 5.
    #[getter]
    fn number(&self) -> usize {
        self.number
    }

    /// The length in bytes.
    #[getter]
    fn length(&self) -> u64 {
        self.length
    }

    /// Reads a register of 8 bits at the byte `offset`, by one load.
    ///
    /// Raises Error: EINVAL, the BAR has no such register.
    fn read8(&self, offset: usize) -> PyResult<u8> {
        self.read(offset)
    }

    /// Reads a register of 16 bits at the byte `offset`, by one load.
    ///
    /// Raises Error: EINVAL, the BAR has no such register, or the offset is not aligned.
    fn read16(&self, offset: usize) -> PyResult<u16> {
        self.read(offset)
    }

    /// Reads a register of 32 bits at the byte `offset`, by one load.
    ///
    /// Raises Error: EINVAL, the BAR has no such register, or the offset is not aligned.
    fn read32(&self, offset: usize) -> PyResult<u32> {
        self.read(offset)
    }

    /// Reads a register of 64 bits at the byte `offset`, by one load.
    ///
    /// Raises Error: EINVAL, the BAR has no such register, or the offset is not aligned.
    fn read64(&self, offset: usize) -> PyResult<u64> {
        self.read(offset)
    }

    /// Writes a register of 8 bits at the byte `offset`, by one store. What the program has stored
    /// to memory before is there for the device when the write reaches it.
    ///
    /// Raises Error: EINVAL, the BAR has no such register; OverflowError, the value is too large.
    fn write8(&self, offset: usize, value: u8) -> PyResult<()> {
        self.write(offset, value)
    }

    /// Writes a register of 16 bits: see write8().
    ///
    /// Raises Error: EINVAL, the BAR has no such register, or the offset is not aligned;
    /// OverflowError, the value is too large.
    fn write16(&self, offset: usize, value: u16) -> PyResult<()> {
        self.write(offset, value)
    }

    /// Writes a register of 32 bits: see write8().
    ///
    /// Raises Error: EINVAL, the BAR has no such register, or the offset is not aligned;
    /// OverflowError, the value is too large.
    fn write32(&self, offset: usize, value: u32) -> PyResult<()> {
        self.write(offset, value)
    }

    /// Writes a register of 64 bits: see write8().
    ///
    /// Raises Error: EINVAL, the BAR has no such register, or the offset is not aligned;
    /// OverflowError, the value is too large.
    fn write64(&self, offset: usize, value: u64) -> PyResult<()> {
        self.write(offset, value)
    }

    /// Returns a part of the BAR as an array of NumPy of `count` elements, from the byte `offset`
    /// on; None is as many as there are. The BAR stays mapped as long as there is a view of it.
    ///
    /// NumPy says nothing about the width, the order and the number of its accesses, so this is for
    /// memory, for instance of a device that fills a BAR with samples. For registers there are
    /// read32() and the others.
    ///
    /// Raises Error: EINVAL, the BAR has no such bytes, or the offset is not aligned.
    #[pyo3(signature = (dtype = None, offset = 0, count = None))]
    fn array<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        offset: usize,
        count: Option<usize>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let bar = self.held.get()?;
        let dtype = dtype.map_or(Ok(Dtype::bytes()), Dtype::of)?;
        if offset % dtype.size.min(8) != 0 {
            let text = format!("the offset {offset:#x} is not a multiple of {}", dtype.size);
            return Err(invalid(text));
        }
        let rest = usize::try_from(self.length)
            .unwrap_or(usize::MAX)
            .saturating_sub(offset);
        let count = count.unwrap_or(rest / dtype.size);
        let layout = Layout::new(dtype, &[count])?;
        let addr = bar
            .as_mut_ptr(offset, layout.bytes)
            .map_err(raise)?
            .expose_provenance();
        let part = Part {
            _bar: pinmap::Bar::clone(&bar),
            addr,
            layout,
        };
        as_numpy(Bound::new(py, part)?.as_any())
    }

    /// Sends writes to a write-combined BAR that the CPU has delayed. Only a read that is answered
    /// proves that they have arrived.
    fn flush(&self) -> PyResult<()> {
        self.held.get()?.flush();
        Ok(())
    }

    /// Closes the BAR, which stays mapped as long as there are arrays of it. Once it is closed,
    /// this does nothing.
    fn close(&self) {
        self.held.close();
    }

    fn __repr__(&self) -> String {
        format!("<pinmap.Bar {} of {:#x} bytes>", self.number, self.length)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }
}

/// Part of a mapped BAR, of which an array is a view.
#[pyclass(module = "pinmap", frozen)]
struct Part {
    /// Keeps it mapped.
    _bar: pinmap::Bar,
    addr: usize,
    layout: Layout,
}

#[pymethods]
impl Part {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let owner = slf.clone();
        let this = owner.get();
        // SAFETY: It is that of the request. The view keeps the object, and that the mapping.
        unsafe {
            fill(
                view,
                slf.into_any(),
                (this.addr, &this.layout, false),
                flags,
            )
        }
    }
}
