// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of Python's objects, for a device that is to reach it.

use std::sync::Arc;

use nix::unistd::{sysconf, SysconfVar};
use pinmap::{ErrorKind, RegisterOptions};
use pinmap_dynamic as dynamic;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::dtype::{Dtype, Layout};
use crate::error::{invalid, raise};
use crate::memory::Memory;
use crate::view::view_of;

/// Keeps memory that a device may reach, by a view of the object of Python that has it.
pub(crate) struct Kept {
    pub(crate) _view: PyUntypedBuffer,
}

/// Memory of this module that is registered, and has no views until it is released.
enum Lent {
    Buffer(Py<Buffer>),
    Memory(Py<Memory>),
}

impl Lent {
    fn end(&self, py: Python<'_>) {
        match self {
            Self::Buffer(buffer) => buffer.bind(py).get().views().open(),
            Self::Memory(memory) => memory.bind(py).get().views().open(),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // When the interpreter is gone, nobody asks for views.
        Python::try_attach(|py| self.end(py));
    }
}

/// Memory that is to be registered or managed.
pub(crate) struct Source {
    pub(crate) addr: usize,
    pub(crate) len: usize,
    pub(crate) layout: Layout,
    pub(crate) read_only: bool,
    pub(crate) keep: Box<dyn FnOnce(&dynamic::Memory)>,
}

const LENT: &str = "the memory is registered: take views of what register() has returned";

/// The bytes of a page.
fn page() -> usize {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    // There is no machine without pages.
    size.and_then(|size| size.try_into().ok()).unwrap_or(4096)
}

impl Source {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(buffer) = object.cast::<Buffer>() {
            let (addr, layout) = buffer.get().contents();
            let layout = Layout::new(layout.dtype, &layout.counts())?;
            if !buffer.get().views().close("register the memory", LENT)? {
                return Err(PyBufferError::new_err(LENT));
            }
            let lent = Lent::Buffer(buffer.clone().unbind());
            return Ok(Self {
                addr,
                // All of the pages, which nothing else is in.
                len: layout.room().next_multiple_of(page()),
                layout,
                read_only: false,
                keep: Box::new(move |memory| memory.keep(lent)),
            });
        }
        if let Ok(memory) = object.cast::<Memory>() {
            let (addr, layout, read_only) = memory.get().contents()?;
            let layout = Layout::new(layout.dtype, &layout.counts())?;
            if !memory.get().views().close("register the memory", LENT)? {
                return Err(PyBufferError::new_err(LENT));
            }
            let lent = Lent::Memory(memory.clone().unbind());
            let len = memory.get().held()?.len();
            return Ok(Self {
                addr,
                len,
                layout,
                read_only,
                keep: Box::new(move |memory| memory.keep(lent)),
            });
        }
        let Ok(view) = view_of(object) else {
            let kind = object.get_type().name()?;
            let text = format!("a {kind} is no memory: an object with the buffer protocol is");
            return Err(PyTypeError::new_err(text));
        };
        if view.len_bytes() == 0 {
            return Err(invalid(
                "the array is empty: it has no page that could be registered or managed, and \
                 streams take it as it is",
            ));
        }
        if !view.is_c_contiguous() {
            return Err(invalid(match view.is_fortran_contiguous() {
                true => {
                    "the elements of the array follow each other column after column: its \
                         transpose, array.T, has them row after row in the same memory"
                }
                false => "the elements of the array do not follow each other",
            }));
        }
        // Elements that this module has no name for are bytes to it.
        let layout = match Dtype::of_view(object, &view)? {
            Some(dtype) => Layout::new(dtype, view.shape())?,
            None => Layout::new(Dtype::bytes(), &[view.len_bytes()])?,
        };
        let (addr, read_only) = (view.buf_ptr().expose_provenance(), view.readonly());
        Ok(Self {
            addr,
            len: layout.bytes,
            layout,
            read_only,
            keep: Box::new(move |memory| memory.keep(Kept { _view: view })),
        })
    }

    /// Registers the memory, or the whole pages around it.
    pub(crate) fn register(
        &self,
        py: Python<'_>,
        device: &pinmap::Device,
        options: RegisterOptions,
        round_outwards: bool,
    ) -> PyResult<Arc<dynamic::Memory>> {
        let (addr, len) = (self.addr, self.len);
        let mut signals = 0;
        loop {
            // Not for ever, or a timer that is quicker than this would let it never succeed.
            let options = match signals {
                0..8 => options.interruptible(),
                _ => options,
            };
            let attempt = py.detach(|| {
                let first = std::ptr::with_exposed_provenance_mut(addr);
                // SAFETY: The object keeps the memory, and is kept until it is released. What
                // Python does to the bytes meanwhile is no access of Rust's.
                unsafe { dynamic::Memory::register(device, first, len, options) }
            });
            match attempt {
                // A signal: a handler that raises an exception ends this.
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    signals += 1;
                    py.check_signals()?;
                }
                registered => {
                    return registered.map_err(|error| raise(hinted(error, round_outwards)));
                }
            }
        }
    }
}

/// The error of a registration, with what helps an array that is not whole pages.
fn hinted(error: dynamic::Error, round_outwards: bool) -> dynamic::Error {
    match error.kind() {
        ErrorKind::AlreadyExists if round_outwards => error.with_hint(
            "perhaps an array that is registered has a page in common with this one: \
             `pinmap.empty()` and `alloc()` make arrays in pages of their own, and streams take \
             any array without registering it",
        ),
        _ => error,
    }
}
