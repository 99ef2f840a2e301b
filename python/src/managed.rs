// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory: where its pages are, and where they should be. Any array of the program can be
//! asked about, because an accelerator that can fault has all of the program's memory managed.

use std::ptr;
use std::sync::Arc;

use pinmap::accelerator::{Advice, Place};
use pinmap_dynamic as dynamic;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::device::Device;
use crate::error::{detached, invalid};
use crate::info::{Prefetched, Residency};
use crate::memory::Memory;
use crate::shared::Shared;
use crate::source::Kept;
use crate::view::view_of;

/// The place that an argument names: a device, which must be the memory's, or a word.
pub(crate) fn place(shared: &Shared, to: &Bound<'_, PyAny>) -> PyResult<Place> {
    if let Ok(other) = to.cast::<Device>() {
        if other.get().shared()?.device.path() == shared.device.path() {
            return Ok(Place::Vram);
        }
        return Err(invalid("that is another device than the memory's"));
    }
    match to.extract::<String>().as_deref() {
        Ok("host") => Ok(Place::Host),
        Ok("device") => Ok(Place::Vram),
        _ => {
            let to = to.repr()?;
            Err(invalid(format!(
                "there is no place {to}: \"host\" and \"device\" are the ones"
            )))
        }
    }
}

/// Bytes of the program, and what keeps them.
pub(crate) struct Part {
    addr: usize,
    len: usize,
    _memory: Option<Arc<dynamic::Memory>>,
    _view: Option<Kept>,
}

impl Part {
    /// All of some memory, which is not released.
    pub(crate) fn all(memory: Arc<dynamic::Memory>) -> PyResult<Self> {
        memory.device_addr(0).map_err(crate::error::raise)?;
        Ok(Self {
            addr: memory.addr(),
            len: memory.len(),
            _memory: Some(memory),
            _view: None,
        })
    }

    /// Memory, or an array whose elements follow each other.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(memory) = object.cast::<Memory>() {
            return Self::all(memory.get().held()?);
        }
        let Ok(view) = view_of(object) else {
            let kind = object.get_type().name()?;
            let text = format!("a {kind} is neither Memory nor an array");
            return Err(PyTypeError::new_err(text));
        };
        if !view.is_c_contiguous() && !view.is_fortran_contiguous() {
            return Err(invalid(
                "the elements of the array do not follow each other",
            ));
        }
        Ok(Self {
            addr: view.buf_ptr().addr(),
            len: view.len_bytes(),
            _memory: None,
            _view: Some(Kept { _view: view }),
        })
    }

    fn bytes(&self) -> *const [u8] {
        ptr::slice_from_raw_parts(ptr::with_exposed_provenance(self.addr), self.len)
    }
}

pub(crate) fn prefetch(
    py: Python<'_>,
    part: &Part,
    shared: &Shared,
    place: Place,
) -> PyResult<Prefetched> {
    let done = detached(py, || {
        Ok(shared.accelerator()?.prefetch(part.bytes(), place)?)
    })?;
    Ok(done.into())
}

/// The advice that arguments give.
pub(crate) fn advice(
    shared: &Shared,
    prefer: Option<&Bound<'_, PyAny>>,
    accessed_by_device: bool,
    read_mostly: bool,
) -> PyResult<Advice> {
    let mut advice = Advice::new();
    if let Some(to) = prefer {
        advice = advice.prefer(place(shared, to)?);
    }
    if accessed_by_device {
        advice = advice.accessed_by_device();
    }
    if read_mostly {
        advice = advice.read_mostly();
    }
    Ok(advice)
}

pub(crate) fn advise(py: Python<'_>, part: &Part, shared: &Shared, advice: Advice) -> PyResult<()> {
    detached(py, || {
        Ok(shared.accelerator()?.advise(part.bytes(), advice)?)
    })
}

pub(crate) fn residency(py: Python<'_>, part: &Part, shared: &Shared) -> PyResult<Residency> {
    let found = detached(py, || Ok(shared.accelerator()?.residency(part.bytes())?))?;
    Ok(found.into())
}
