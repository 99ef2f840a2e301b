// SPDX-License-Identifier: MIT OR Apache-2.0
//! Interrupts of a device.

use std::os::fd::AsRawFd;
use std::time::Duration;

use pinmap::ErrorKind;
use pinmap_dynamic as dynamic;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::detached;
use crate::handle::Handle;
use crate::wait::{coroutine, wait};

/// An interrupt vector that is enabled. Made by Device.interrupt(). Interrupts are counted, so that
/// none is lost between two waits.
#[pyclass(module = "pinmap", frozen)]
pub(crate) struct Interrupt {
    held: Handle<dynamic::Interrupt>,
    vector: u32,
}

impl Interrupt {
    pub(crate) fn new(interrupt: dynamic::Interrupt) -> Self {
        let vector = interrupt.vector();
        Self {
            held: Handle::new("interrupt", interrupt),
            vector,
        }
    }
}

#[pymethods]
impl Interrupt {
    /// The number of the vector.
    #[getter]
    fn vector(&self) -> u32 {
        self.vector
    }

    /// Waits for an interrupt, for at most `timeout` seconds; None is for ever, and 0 only looks.
    /// Returns how many there were since the last wait. What the device wrote before the interrupt
    /// is there then.
    ///
    /// Raises TimedOut: the time was up; Error: ENODEV, the device is gone.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let held = self.held.get()?;
        wait(py, timeout, |slice| held.wait_timeout(slice))
    }

    /// Returns how many interrupts there were since the last wait, or None if there was none.
    ///
    /// Raises Error: ENODEV, the device is gone.
    fn try_wait(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let held = self.held.get()?;
        detached(py, || match held.wait_timeout(Duration::ZERO) {
            Err(error) if error.kind() == ErrorKind::TimedOut => Ok(None),
            waited => Ok(Some(waited?)),
        })
    }

    /// Waits in asyncio for an interrupt. Returns how many there were since the last wait. No
    /// interrupt is lost if the wait is cancelled.
    ///
    /// Raises Error: ENODEV, the device is gone.
    fn wait_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let held = slf.get().held.get()?;
        let files = vec![(held.as_raw_fd(), true), (held.device().as_raw_fd(), false)];
        coroutine(slf.py(), files, slf.getattr("try_wait")?)
    }

    /// Returns the file descriptor of the interrupt, an eventfd that stays the interrupt's:
    /// readable when there was one.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.held.get()?.as_raw_fd())
    }

    /// Disables the vector. Once it is disabled, this does nothing.
    fn close(&self) {
        self.held.close();
    }

    fn __repr__(&self) -> String {
        let closed = if self.held.is_open() { "" } else { ", closed" };
        format!("<pinmap.Interrupt {}{closed}>", self.vector)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }
}
