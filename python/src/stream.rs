// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: work of an accelerator, in order.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use pinmap::accelerator;
use pinmap::accelerator::Work;
use pinmap::ErrorKind;
use pinmap_dynamic::{self as dynamic, Argument};
use pinmap_testgpu::program::{Grid, Program};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::device::Device;
use crate::error::{detached, invalid, raise, stopped, unsupported};
use crate::event::Event;
use crate::handle::Handle;
use crate::managed::place;
use crate::memory::unless_failing;
use crate::operand::Operand;
use crate::shared::Shared;
use crate::wait::{coroutine, wait};

/// A stream: a queue of work that the device does in order, while the program does something else.
/// Made by Device.stream().
///
/// The operands of work are Memory of the stream's device, or arrays whose elements follow each
/// other, row after row: views of such Memory, or any other array of the program. A device that can
/// fault has all of the program's memory managed from the first such array on; for any other device
/// the pages around the array are registered until the work is done. Submitting returns at once; it
/// waits only if the stream's ring is full. Work keeps the memory that it names, but not what is in
/// it: Python reads old or new bytes until the work is done.
#[pyclass(module = "pinmap", frozen)]
pub(crate) struct Stream {
    held: Handle<Held>,
    device: Py<Device>,
    path: String,
    id: u64,
    priority: u32,
}

/// Holds the stream until it is closed, and the device, whose object may be closed before.
struct Held {
    stream: dynamic::Stream,
    shared: Arc<Shared>,
}

impl Held {
    /// Waits until everything is done, prints what kernels printed, and tells which one stopped the
    /// stream.
    fn finish(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let result = wait(py, timeout, |slice| {
            match self.stream.synchronize_timeout(slice) {
                Err(error) if error.kind() == ErrorKind::TimedOut => Err(error),
                result => Ok(result),
            }
        })?;
        let (text, trap) = py.detach(|| self.stream.end_launches(&result));
        if !text.is_empty() {
            let out = py.import("sys")?.getattr("stdout")?;
            out.call_method1("write", (String::from_utf8_lossy(&text),))?;
        }
        result.map_err(|error| match trap {
            Some(trap) => stopped(error.into(), &trap),
            None => raise(error),
        })
    }
}

impl Stream {
    pub(crate) fn new(
        device: &Bound<'_, Device>,
        shared: Arc<Shared>,
        stream: dynamic::Stream,
    ) -> Self {
        let (id, priority) = (stream.id(), stream.priority());
        let path = shared.device.path().to_string_lossy().into_owned();
        Self {
            held: Handle::new("stream", Held { stream, shared }),
            device: device.clone().unbind(),
            path,
            id,
            priority,
        }
    }

    /// An operand that work reads.
    pub(crate) fn read(&self, object: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Operand> {
        Operand::of(&self.held.get()?.shared, object, what, false)
    }

    /// An operand that work writes.
    pub(crate) fn write(&self, object: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Operand> {
        Operand::of(&self.held.get()?.shared, object, what, true)
    }

    /// Submits work that names these operands.
    pub(crate) fn submit<const N: usize, F>(
        &self,
        py: Python<'_>,
        operands: [&Operand; N],
        work: F,
    ) -> PyResult<()>
    where
        F: for<'w> FnOnce(&Work<'w>, [dynamic::Operand<'w>; N]) -> dynamic::Result<()> + Send,
    {
        let held = self.held.get()?;
        detached(py, || {
            held.stream
                .submit(operands.map(|operand| &operand.memory), work)
        })
    }

    /// Submits a launch of a program's kernel, whose pointers are these operands.
    pub(crate) fn launch(
        &self,
        py: Python<'_>,
        program: &Program,
        kernel: (&str, Grid),
        operands: &[Operand],
        arguments: &[Argument],
    ) -> PyResult<()> {
        let held = self.held.get()?;
        let memory: Vec<_> = operands.iter().map(|operand| &operand.memory).collect();
        let end = || Python::attach(|py| Ok(held.finish(py, None)?));
        // SAFETY: The documentation of `Program.launch` has the program see to it.
        let launch = || unsafe { held.stream.launch(program, kernel, &memory, arguments, end) };
        py.detach(launch).map_err(|Raised(error)| error)?;
        match accelerator::launch_blocking() {
            true => held.finish(py, None),
            false => Ok(()),
        }
    }
}

/// An error of a launch, or of those before it.
struct Raised(PyErr);

impl From<PyErr> for Raised {
    fn from(error: PyErr) -> Self {
        Self(error)
    }
}

impl From<dynamic::Error> for Raised {
    fn from(error: dynamic::Error) -> Self {
        Self(raise(error))
    }
}

#[pymethods]
impl Stream {
    /// The device.
    #[getter]
    fn device(&self, py: Python<'_>) -> Py<Device> {
        self.device.clone_ref(py)
    }

    /// The number by which events of the device name the queue of the stream.
    #[getter]
    fn id(&self) -> u64 {
        self.id
    }

    /// Whether close() was called.
    #[getter]
    fn closed(&self) -> bool {
        !self.held.is_open()
    }

    /// The priority; 0 is the lowest.
    #[getter]
    fn priority(&self) -> u32 {
        self.priority
    }

    /// Submits a copy of all of `source` to all of `to`, which has as many bytes, and elements of
    /// the same type, unless one of the two is of bytes. One of them may be another accelerator's
    /// VRAM: it is reached by the bus, or through host memory where the bus does not allow that.
    ///
    /// Raises Error: EINVAL, the two differ in length or type, or overlap, or the elements of one
    /// do not follow each other;
    /// EACCES, the device or the program may only read the target; EIO, the stream is known to have
    /// failed; EDEADLK, a stream calls this function; ENODEV, the device is gone.
    fn copy(
        &self,
        py: Python<'_>,
        to: &Bound<'_, PyAny>,
        source: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (to, source) = (self.write(to, "to")?, self.read(source, "source")?);
        to.expect_alike(&source)?;
        if to.len != source.len {
            let text = format!("to has {} bytes, and source {}", to.len, source.len);
            return Err(invalid(text));
        }
        let (at, from, len) = (to.offset, source.offset, to.len);
        self.submit(py, [&to, &source], |work, [to, source]| {
            let source = source.part(from, len)?;
            Ok(work.copy(source, to.part_mut(at, len)?)?)
        })
    }

    /// Submits a fill: sets each element of `to` to `value`, a number of the elements' type.
    ///
    /// Raises Error: EINVAL, the value is none of that type, or as copy() does.
    fn fill(
        &self,
        py: Python<'_>,
        to: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let to = self.write(to, "to")?;
        let dtype = to.dtype()?;
        if dtype.size > 8 || dtype.code >= 5 && dtype.name != "bool" {
            let text = format!("elements of the type {} cannot be filled in", dtype.name);
            return Err(unsupported(text));
        }
        if !value.hasattr("__index__")? && !value.hasattr("__float__")? {
            let kind = value.get_type().name()?;
            let text = format!("a {kind} is no element of the type {}", dtype.name);
            return Err(pyo3::exceptions::PyTypeError::new_err(text));
        }
        let format = dtype.format.to_str().unwrap_or_default();
        let packed = py.import("struct")?.getattr("pack")?.call1((format, value));
        let packed = packed.map_err(|error| {
            let reason = error.value(py);
            invalid(format!(
                "{value} is no element of the type {}: {reason}",
                dtype.name
            ))
        })?;
        let packed = packed.cast_into::<PyBytes>()?;
        let mut bytes = [0; 8];
        bytes[..dtype.size].copy_from_slice(packed.as_bytes());
        let (at, len, value) = (to.offset, to.len, u64::from_le_bytes(bytes));
        self.submit(py, [&to], |work, [to]| {
            let to = to.part_mut(at, len)?;
            match dtype.size {
                1 => work.fill(to, value as u8)?,
                2 => work.fill(to.cast()?, value as u16)?,
                4 => work.fill(to.cast()?, value as u32)?,
                _ => work.fill(to.cast()?, value)?,
            }
            Ok(())
        })
    }

    /// Submits a move of managed memory, such as a part of an array, to the device, or to the host:
    /// `to` is the device, "device" or "host". What is submitted next waits until it has moved.
    /// What cannot move stays, which is no error; Device.prefetch() tells.
    ///
    /// Raises Error: as copy() does; EINVAL, there is no such place.
    fn prefetch(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        to: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let place = place(&self.held.get()?.shared, to)?;
        let memory = self.read(memory, "memory")?;
        let (at, len) = (memory.offset, memory.len);
        if len == 0 {
            return Ok(());
        }
        self.submit(py, [&memory], |work, [memory]| {
            work.prefetch(memory.part(at, len)?, place)?;
            Ok(())
        })
    }

    /// Submits a host function: another thread calls `function` once with these arguments when
    /// everything before is done, and what is submitted next waits for it. If the stream fails
    /// before that, it is not called. An exception that it raises goes to sys.unraisablehook. The
    /// function must return, and what would wait for a stream raises Error (EDEADLK) in it.
    ///
    /// Raises Error: EIO, the stream has failed; EDEADLK, a stream calls this function.
    #[pyo3(signature = (function, *arguments))]
    fn call(
        &self,
        py: Python<'_>,
        function: Bound<'_, PyAny>,
        arguments: Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        if !function.is_callable() {
            let text = format!("{} cannot be called", function.repr()?);
            return Err(pyo3::exceptions::PyTypeError::new_err(text));
        }
        let held = self.held.get()?;
        let (function, arguments) = (function.unbind(), arguments.unbind());
        let host = move || {
            // Without an interpreter nobody is left to miss it.
            let called = Python::try_attach(|py| {
                let function = function.bind(py);
                if let Err(error) = function.call1(arguments.bind(py)) {
                    error.write_unraisable(py, Some(function));
                }
            });
            let _ = called;
        };
        detached(py, || Ok(held.stream.call(host)?))
    }

    /// Records an event: it is complete when everything that was submitted before is done. Returns
    /// the event, a new one if none is given.
    ///
    /// Raises Error: EINVAL, the event is another device's; ENOMEM, out of memory; EIO, the stream
    /// has failed; EDEADLK, a stream calls this function.
    #[pyo3(signature = (event = None))]
    fn record<'py>(
        &self,
        py: Python<'py>,
        event: Option<Bound<'py, Event>>,
    ) -> PyResult<Bound<'py, Event>> {
        let held = self.held.get()?;
        let event = match event {
            Some(event) => event,
            None => {
                let made = detached(py, || Ok(held.shared.accelerator()?.event()?))?;
                Bound::new(py, Event::new(made))?
            }
        };
        let point = event.get().held()?;
        detached(py, || Ok(held.stream.record(&point)?))?;
        Ok(event)
    }

    /// Has the device wait for an event, as it was recorded last, before it does what is submitted
    /// next. The event may be another stream's, also of another device.
    ///
    /// Raises Error: ENOMEM, out of memory; EIO, the stream has failed; EDEADLK, a stream calls
    /// this function.
    fn wait_event(&self, py: Python<'_>, event: &Bound<'_, Event>) -> PyResult<()> {
        let (held, point) = (self.held.get()?, event.get().held()?);
        detached(py, || Ok(held.stream.wait_event(&point)?))
    }

    /// Tells whether everything that was submitted is done.
    ///
    /// Raises Error: EIO, the stream has failed, and the words say at what; ENODEV, the device is
    /// gone.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        let held = self.held.get()?;
        detached(py, || Ok(held.stream.query()?))
    }

    /// Waits until everything that was submitted is done, for at most `timeout` seconds; None is
    /// for ever. The program then sees what the work wrote, and prints what kernels of a Program
    /// did.
    ///
    /// Raises TimedOut: the time was up; KernelStopped: a kernel of a Program has stopped the
    /// stream, which the first call tells; Error: EIO, the stream has failed, and the words say at
    /// what; EDEADLK, a stream calls this function; ENODEV, the device is gone.
    #[pyo3(signature = (timeout = None))]
    fn synchronize(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.held.get()?.finish(py, timeout)
    }

    /// Waits in asyncio until everything is done that was submitted before this call. If the wait
    /// is cancelled, the work goes on.
    ///
    /// Raises Error: as synchronize() does.
    fn done<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let completion = Bound::new(py, self.completion(py)?)?;
        let files = vec![(completion.get().fileno()?, true)];
        coroutine(py, files, completion.getattr("_try_wait")?)
    }

    /// Makes a completion: a file descriptor that is readable when everything that was submitted so
    /// far is done, or the stream has failed.
    ///
    /// Raises Error: EMFILE, too many files are open; EIO, the stream has failed; EDEADLK, a stream
    /// calls this function.
    fn completion(&self, py: Python<'_>) -> PyResult<Completion> {
        let held = self.held.get()?;
        let completion = detached(py, || Ok(held.stream.completion()?))?;
        let held = Handle::new("completion", completion);
        Ok(Completion { held })
    }

    /// Gives up what a stream that has failed has not done, and has it work again.
    ///
    /// Raises Error: EDEADLK, a stream calls this function; ENOMEM, out of memory; ENODEV, the
    /// device is gone.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.held.get()?;
        detached(py, || held.stream.reset())
    }

    /// Waits until everything that was submitted is done, and closes the stream. It is closed even
    /// if this fails. Once it is closed, this does nothing.
    ///
    /// Raises Error: as synchronize() does.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(held) = self.held.take()? else {
            return Ok(());
        };
        let waited = held.finish(py, None);
        py.detach(|| drop(held));
        waited
    }

    fn __repr__(&self) -> String {
        let closed = if self.held.is_open() { "" } else { ", closed" };
        format!("<pinmap.Stream {} of {}{closed}>", self.id, self.path)
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
        unless_failing(exception, self.close(py))
    }

    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let waiting = slf.py().import("pinmap._waiting")?;
        waiting.getattr("entered")?.call1((slf,))
    }

    /// Closes the stream when its work is done. If an exception ends the block, such as that of a
    /// task which is cancelled, it waits for nothing: work that was submitted is still done.
    #[pyo3(signature = (exception = None, *_more))]
    fn __aexit__<'py>(
        slf: &Bound<'py, Self>,
        exception: Option<&Bound<'py, PyAny>>,
        _more: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let waiting = slf.py().import("pinmap._waiting")?;
        let left = waiting.getattr("left")?;
        left.call1((slf, exception.is_some(), slf.getattr("_give_up")?))
    }

    /// Closes the stream without waiting.
    fn _give_up(&self) {
        self.held.close();
    }
}

/// A point in a stream, as a file descriptor. Made by Stream.completion().
#[pyclass(module = "pinmap", frozen)]
pub(crate) struct Completion {
    held: Handle<accelerator::Completion>,
}

#[pymethods]
impl Completion {
    /// Tells whether the work before the point is done.
    ///
    /// Raises Error: EIO, the stream has failed before it; ENODEV, the device is gone.
    fn query(&self, py: Python<'_>) -> PyResult<bool> {
        let held = self.held.get()?;
        detached(py, || Ok(held.query()?))
    }

    /// Waits until the work before the point is done, for at most `timeout` seconds; None is for
    /// ever.
    ///
    /// Raises TimedOut: the time was up; Error: EIO, the stream has failed before it; EDEADLK, a
    /// stream calls this function; ENODEV, the device is gone.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let held = self.held.get()?;
        wait(py, timeout, |slice| held.wait_timeout(slice))
    }

    /// Returns the file descriptor, which stays the completion's: readable when the point is
    /// reached, or never will be.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.held.get()?.as_raw_fd())
    }

    fn _try_wait(&self, py: Python<'_>) -> PyResult<Option<bool>> {
        Ok(self.query(py)?.then_some(true))
    }

    /// Closes the file descriptor. Once it is closed, this does nothing.
    fn close(&self) {
        self.held.close();
    }

    fn __repr__(&self) -> &'static str {
        "<pinmap.Completion>"
    }
}

/// Makes the exception for arguments that a kernel refuses.
pub(crate) fn refuse(text: String) -> PyErr {
    raise(dynamic::Error::invalid(text))
}
