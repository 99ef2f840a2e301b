// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operands of work: memory of a device, or an array that is a view of some.

use std::sync::Arc;

use nix::errno::Errno;
use pinmap::ErrorKind;
use pinmap_dynamic::{Error, Memory as Held};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::device::Shared;
use crate::dtype::Dtype;
use crate::error::{invalid, raise};
use crate::memory::Memory;

/// A part of memory that work names.
pub(crate) struct Operand {
    pub(crate) memory: Arc<Held>,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) shape: Vec<usize>,
    /// None, if the array has other elements than those this module knows.
    dtype: Option<&'static Dtype>,
    size: usize,
    /// What it is in the words of an error.
    what: &'static str,
}

impl Operand {
    /// The operand that an argument is. If it is to be written, an array that can only be read is
    /// refused; whether the device may write the memory, submitting finds out.
    pub(crate) fn of(
        device: &Shared,
        object: &Bound<'_, PyAny>,
        what: &'static str,
        written: bool,
    ) -> PyResult<Self> {
        if let Ok(memory) = object.cast::<Memory>() {
            let memory = memory.get();
            let layout = memory.layout();
            return Ok(Self {
                memory: memory.held()?,
                offset: 0,
                len: layout.bytes,
                shape: layout.counts(),
                dtype: Some(layout.dtype),
                size: layout.dtype.size,
                what,
            });
        }
        let Ok(view) = PyUntypedBuffer::get(object) else {
            let kind = object.get_type().name()?;
            let text = format!("{what} is a {kind}: neither Memory nor an array in it");
            return Err(PyTypeError::new_err(text));
        };
        if !view.is_c_contiguous() {
            return Err(invalid(format!(
                "the elements of {what} do not follow each other"
            )));
        }
        let (addr, len) = (view.buf_ptr().addr(), view.len_bytes());
        if written && view.readonly() {
            let text = format!("{what} is an array that can only be read");
            let error = Error::new(Errno::EACCES, ErrorKind::PermissionDenied, text);
            return Err(raise(error));
        }
        let memory = device.find(addr, len).ok_or_else(|| {
            let text = format!(
                "{what} is an array outside of all memory of {}",
                device.device
            );
            let error = Error::new(Errno::EINVAL, ErrorKind::InvalidInput, text);
            raise(error.with_hint("allocate it with `Device.alloc()`, or `Device.register()` it"))
        })?;
        let (dtype, size) = (
            Dtype::of_format(view.format(), view.item_size()),
            view.item_size(),
        );
        let shape = view.shape().to_vec();
        // Its end may call what the program wants to know of it, which needs the lock.
        view.release(object.py());
        Ok(Self {
            offset: addr - memory.addr(),
            memory,
            len,
            shape,
            dtype,
            size,
            what,
        })
    }

    /// The type of its elements.
    pub(crate) fn dtype(&self) -> PyResult<&'static Dtype> {
        self.dtype.ok_or_else(|| {
            let Self { what, size, .. } = self;
            invalid(format!(
                "the elements of {what}, of {size} bytes, are none that are known"
            ))
        })
    }

    /// Checks the type of its elements.
    pub(crate) fn expect(self, name: &str) -> PyResult<Self> {
        let found = self.dtype()?.name;
        if found == name {
            return Ok(self);
        }
        Err(invalid(format!(
            "the elements of {} are {found}, not {name}",
            self.what
        )))
    }

    /// Checks the number of its elements.
    pub(crate) fn expect_count(self, count: usize) -> PyResult<Self> {
        let found = self.len / self.size;
        if found == count {
            return Ok(self);
        }
        Err(invalid(format!(
            "{} has {found} elements, not {count}",
            self.what
        )))
    }

    /// Its rows and columns.
    pub(crate) fn matrix(&self) -> PyResult<(usize, usize)> {
        match self.shape[..] {
            [rows, columns] => Ok((rows, columns)),
            _ => Err(invalid(format!(
                "{} has {} dimensions, not 2",
                self.what,
                self.shape.len()
            ))),
        }
    }
}
