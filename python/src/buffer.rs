// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers: memory of the program in whole pages, which can be registered alone.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::dtype::Layout;
use crate::error::detached;
use crate::view::{fill, Views};

/// Memory of this program in whole pages, so that nothing else is in the reach of a device that it
/// is registered for. Made by empty(). NumPy has it as an array without a copy, except while it is
/// registered: then the Memory that Device.register() has returned is the one to look at.
#[pyclass(module = "pinmap", frozen, weakref)]
pub(crate) struct Buffer {
    /// Keeps the pages. Nothing refers to them by it.
    _pages: pinmap::Buffer,
    addr: usize,
    layout: Layout,
    views: Views,
}

/// Allocates memory in whole pages, which is zeroed, as an array of this shape.
#[pyfunction]
#[pyo3(signature = (shape, dtype = None))]
pub(crate) fn empty(
    py: Python<'_>,
    shape: &Bound<'_, PyAny>,
    dtype: Option<&Bound<'_, PyAny>>,
) -> PyResult<Buffer> {
    let layout = Layout::of(shape, dtype)?;
    let room = layout.room();
    let mut pages = detached(py, || Ok(pinmap::Buffer::<u8>::new(room)?))?;
    let addr = pages.as_mut_ptr().expose_provenance();
    Ok(Buffer {
        _pages: pages,
        addr,
        layout,
        views: Views::default(),
    })
}

impl Buffer {
    pub(crate) fn contents(&self) -> (usize, &Layout) {
        (self.addr, &self.layout)
    }

    pub(crate) fn views(&self) -> &Views {
        &self.views
    }
}

#[pymethods]
impl Buffer {
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

    /// The address of the first byte in this program.
    #[getter]
    fn addr(&self) -> usize {
        self.addr
    }

    /// How many views of it there are: arrays of NumPy, memoryviews.
    #[getter]
    fn views_count(&self) -> usize {
        self.views.count()
    }

    /// Returns the memory as an array of NumPy, without a copy.
    ///
    /// Raises BufferError while it is registered.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        as_numpy(slf.as_any())
    }

    fn __repr__(&self) -> String {
        let layout = &self.layout;
        format!(
            "<pinmap.Buffer {:?} {} at {:#x}>",
            layout.shape, layout.dtype.name, self.addr
        )
    }

    fn __len__(&self) -> PyResult<usize> {
        length(&self.layout)
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
        let this = slf.clone();
        let this = this.get();
        // SAFETY: It is that of the request. The object, which the view keeps, has the pages.
        unsafe {
            fill(
                view,
                slf.into_any(),
                (this.addr, &this.layout, false),
                flags,
            )?
        };
        this.views.begin().inspect_err(|_| {
            // SAFETY: As above. A request that fails has no object.
            unsafe { take_back(view) };
        })
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        let _ = self.views.end();
    }
}

/// Takes the object back that `fill` has put into a view.
///
/// # Safety
///
/// `fill` has filled the view.
pub(crate) unsafe fn take_back(view: *mut ffi::Py_buffer) {
    // SAFETY: As the caller promises.
    unsafe {
        ffi::Py_XDECREF((*view).obj);
        (*view).obj = std::ptr::null_mut();
    }
}

/// The array of NumPy that is a view of an object with the buffer protocol.
pub(crate) fn as_numpy<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    // First, because NumPy makes something else of an object of which there is no view now.
    let view = pyo3::types::PyMemoryView::from(object)?;
    py.import("numpy")?.getattr("asarray")?.call1((view,))
}

/// Converts a view as `__array__` has to: returns the view itself, or a copy.
pub(crate) fn converted<'py>(
    view: Bound<'py, PyAny>,
    dtype: Option<Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let same = match &dtype {
        Some(dtype) => view.getattr("dtype")?.eq(dtype)?,
        None => true,
    };
    match (same, copy) {
        (true, Some(true)) => view.call_method0("copy"),
        (true, _) => Ok(view),
        (false, Some(false)) => Err(pyo3::exceptions::PyValueError::new_err(
            "another type of elements needs a copy",
        )),
        (false, _) => view.call_method1("astype", (dtype,)),
    }
}

/// Returns the `len()` of an array.
pub(crate) fn length(layout: &Layout) -> PyResult<usize> {
    let first = layout.shape.first().map(|&count| count as usize);
    first.ok_or_else(|| pyo3::exceptions::PyTypeError::new_err("an array without dimensions"))
}
