// SPDX-License-Identifier: MIT OR Apache-2.0
//! Views: what Python has of memory, by the buffer protocol and by DLPack. They are counted, so
//! that memory does not go while there are any.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::dtype::Layout;

/// How many views there are, and whether there may be more.
#[derive(Debug, Default)]
struct State {
    count: usize,
    /// Why there can be no view now.
    closed: Option<&'static str>,
    /// The memory is to be released with the last view.
    leaving: bool,
}

/// The views of some memory.
#[derive(Debug, Default)]
pub(crate) struct Views(Mutex<State>);

impl Views {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().count
    }

    /// Counts one more view.
    pub(crate) fn begin(&self) -> PyResult<()> {
        let mut state = self.lock();
        if let Some(why) = state.closed {
            return Err(PyBufferError::new_err(why));
        }
        state.count += 1;
        Ok(())
    }

    /// Counts a view that is gone. Returns whether the memory is to be released now.
    pub(crate) fn end(&self) -> bool {
        let mut state = self.lock();
        state.count -= 1;
        state.count == 0 && state.leaving
    }

    /// Has the memory released with the last view, if there are views. Returns whether there are.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.lock();
        state.leaving = state.count != 0;
        state.leaving
    }

    /// Lets nobody have another view. Does nothing if there are no views to be had already, and
    /// returns false.
    ///
    /// # Errors
    ///
    /// `BufferError`: there are views.
    pub(crate) fn close(&self, attempt: &str, why: &'static str) -> PyResult<bool> {
        let mut state = self.lock();
        if state.closed == Some(why) {
            return Ok(false);
        }
        if let Some(other) = state.closed {
            return Err(PyBufferError::new_err(other));
        }
        if state.count != 0 {
            let views = match state.count {
                1 => "1 view of it exists".to_owned(),
                count => format!("{count} views of it exist"),
            };
            let text = format!("cannot {attempt}: {views}, for instance a NumPy array");
            return Err(PyBufferError::new_err(text));
        }
        state.closed = Some(why);
        Ok(true)
    }

    pub(crate) fn why_closed(&self) -> Option<&'static str> {
        self.lock().closed
    }

    /// Lets Python have views again.
    pub(crate) fn open(&self) {
        self.lock().closed = None;
    }
}

/// A view of an object with the buffer protocol, also of one that leaves out the strides, as arrays
/// of ctypes do.
pub(crate) fn view_of(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    PyUntypedBuffer::get(object)
        .or_else(|_| PyUntypedBuffer::get(PyMemoryView::from(object)?.as_any()))
}

/// Fills the answer to a request of the buffer protocol.
///
/// # Safety
///
/// `view` is that of the request. The address is that of memory with this layout, which is there as
/// long as the view, as is the layout itself.
pub(crate) unsafe fn fill(
    view: *mut ffi::Py_buffer,
    owner: Bound<'_, PyAny>,
    (addr, layout, read_only): (usize, &Layout, bool),
    flags: c_int,
) -> PyResult<()> {
    let wants = |flag: c_int| flags & flag == flag;
    // SAFETY: It is that of the request. An error must leave no object in it.
    unsafe { (*view).obj = ptr::null_mut() };
    if wants(ffi::PyBUF_WRITABLE) && read_only {
        return Err(PyBufferError::new_err("the memory can only be read"));
    }
    if wants(ffi::PyBUF_F_CONTIGUOUS) && !wants(ffi::PyBUF_C_CONTIGUOUS) && layout.shape.len() > 1 {
        return Err(PyBufferError::new_err(
            "the elements are stored row after row",
        ));
    }
    let or_null = |list: &[isize], is: bool| match is {
        true => list.as_ptr().cast_mut(),
        false => ptr::null_mut(),
    };
    // SAFETY: As above. The format is static.
    unsafe {
        (*view).buf = ptr::with_exposed_provenance_mut(addr);
        (*view).len = layout.bytes as isize;
        (*view).readonly = read_only.into();
        (*view).itemsize = layout.dtype.size as isize;
        (*view).format = match wants(ffi::PyBUF_FORMAT) {
            true => layout.dtype.format.as_ptr().cast_mut(),
            false => ptr::null_mut(),
        };
        (*view).ndim = layout.shape.len() as c_int;
        (*view).shape = or_null(&layout.shape, wants(ffi::PyBUF_ND));
        (*view).strides = or_null(&layout.strides, wants(ffi::PyBUF_STRIDES));
        (*view).suboffsets = ptr::null_mut();
        (*view).internal = ptr::null_mut();
        (*view).obj = owner.into_ptr();
    }
    Ok(())
}
