// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of streams: points that other streams and the program wait for.

use std::sync::Arc;

use pinmap::accelerator;
use pyo3::prelude::*;

use crate::error::detached;
use crate::handle::Handle;
use crate::wait::wait;

/// A point in a stream. Made by Device.event(), and recorded by Stream.record(). It is complete
/// when everything that was submitted to the stream before is done.
#[pyclass(module = "pinmap", frozen)]
pub(crate) struct Event {
    held: Handle<accelerator::Event>,
}

impl Event {
    pub(crate) fn new(event: accelerator::Event) -> Self {
        let held = Handle::new("event", event);
        Self { held }
    }

    pub(crate) fn held(&self) -> PyResult<Arc<accelerator::Event>> {
        self.held.get()
    }
}

#[pymethods]
impl Event {
    /// Tells whether the event is complete. One that was never recorded is.
    ///
    /// Raises Error: EIO, its stream has failed; ENODEV, the device is gone.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        let held = self.held.get()?;
        detached(py, || Ok(held.query()?))
    }

    /// Waits until the event is complete, for at most `timeout` seconds; None is for ever.
    ///
    /// Raises TimedOut: the time was up; Error: EIO, its stream has failed; EDEADLK, a stream calls
    /// this function; ENODEV, the device is gone.
    #[pyo3(signature = (timeout = None))]
    fn synchronize(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let held = self.held.get()?;
        wait(py, timeout, |slice| held.synchronize_timeout(slice))
    }

    /// Tells how many seconds passed between an earlier event and this one, by the device's clock.
    ///
    /// Raises Error: EINVAL, one of them was never recorded, or they are of different devices;
    /// EAGAIN, one of them is not complete.
    fn elapsed_since(&self, py: Python<'_>, earlier: &Bound<'_, Self>) -> PyResult<f64> {
        let (end, begin) = (self.held.get()?, earlier.get().held.get()?);
        let elapsed = detached(py, || Ok(end.elapsed_since(&begin)?))?;
        Ok(elapsed.as_secs_f64())
    }

    fn __repr__(&self) -> &'static str {
        "<pinmap.Event>"
    }
}
