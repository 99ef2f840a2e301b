// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings: device addresses that memory has besides its first one.

use std::sync::Mutex;

use nix::errno::Errno;
use pinmap::ErrorKind;
use pinmap_dynamic as dynamic;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::{detached, raise};
use crate::handle::Handle;
use crate::memory::unless_failing;

/// A device address that memory has besides its first one. Made by Memory.map().
#[pyclass(module = "pinmap", frozen)]
pub(crate) struct Mapping {
    held: Handle<Mutex<Option<dynamic::MemoryMapping>>>,
    device_addr: u64,
}

impl Mapping {
    pub(crate) fn new(mapping: dynamic::MemoryMapping) -> Self {
        Self {
            device_addr: mapping.device_addr(),
            held: Handle::new("mapping", Mutex::new(Some(mapping))),
        }
    }
}

#[pymethods]
impl Mapping {
    /// The device address of the first byte.
    #[getter]
    fn device_addr(&self) -> u64 {
        self.device_addr
    }

    /// Takes the address away. Once it is taken away, this does nothing.
    ///
    /// Raises Error: EIO, the IOMMU or the device failed; the device is cut off from all memory.
    fn unmap(&self, py: Python<'_>) -> PyResult<()> {
        let Some(held) = self.held.take()? else {
            return Ok(());
        };
        let mapping = held.lock().map_err(|_| poisoned())?.take();
        detached(py, || mapping.map_or(Ok(()), dynamic::MemoryMapping::unmap))
    }

    fn __repr__(&self) -> String {
        format!("<pinmap.Mapping at {:#x}>", self.device_addr)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (exception = None, *_more))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exception: Option<&Bound<'_, PyAny>>,
        _more: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        unless_failing(exception, self.unmap(py))
    }
}

fn poisoned() -> PyErr {
    let text = "a thread panicked, which is a bug of pinmap";
    raise(dynamic::Error::new(
        Errno::ENOTRECOVERABLE,
        ErrorKind::Other,
        text,
    ))
}
