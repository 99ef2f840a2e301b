// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operands of work: memory of a device, or an array: a view of such memory, or any other, which
//! each work that names it lends to the device.

use std::sync::Arc;

use nix::errno::Errno;
use pinmap::ErrorKind;
use pinmap_dynamic::{Error, Memory as Held};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::dtype::Dtype;
use crate::error::{invalid, raise};
use crate::memory::{access, Memory};
use crate::shared::Shared;
use crate::source::Kept;
use crate::view::view_of;

/// A part of memory that work names.
pub(crate) struct Operand {
    pub(crate) memory: Arc<Held>,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) shape: Vec<usize>,
    /// None, if the array has other elements than those this module knows.
    dtype: Option<&'static Dtype>,
    size: usize,
    /// Name of the operand in the words of an error.
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
        let Ok(view) = view_of(object) else {
            let kind = object.get_type().name()?;
            let text = format!("{what} is a {kind}: neither Memory nor an array");
            return Err(PyTypeError::new_err(text));
        };
        if !view.is_c_contiguous() {
            return Err(invalid(format!(
                "the elements of {what} do not follow each other, row after row: \
                 numpy.ascontiguousarray() makes an array whose elements do"
            )));
        }
        let (addr, len) = (view.buf_ptr().addr(), view.len_bytes());
        if written && view.readonly() {
            let text = format!("{what} is an array that can only be read");
            let error = Error::new(Errno::EACCES, ErrorKind::PermissionDenied, text);
            return Err(raise(error));
        }
        let (dtype, size) = (Dtype::of_view(object, &view)?, view.item_size());
        let shape = view.shape().to_vec();
        let memory = match device.find(addr, len) {
            Some(memory) => {
                // Its end may call what the program wants to know of it, which needs the lock.
                view.release(object.py());
                memory
            }
            None => {
                let first =
                    std::ptr::with_exposed_provenance_mut(view.buf_ptr().expose_provenance());
                let access = access(view.readonly());
                // SAFETY: The view keeps the bytes, and is kept until the work is done. What Python
                // does to them meanwhile is no access of Rust's.
                let memory = unsafe { Held::lent(&device.device, first, len, access) };
                memory.keep(Kept { _view: view });
                memory
            }
        };
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

    /// Checks that another operand has elements of the same type, unless one of the two is of
    /// bytes.
    pub(crate) fn expect_alike(&self, other: &Self) -> PyResult<()> {
        let is_bytes = |operand: &Self| operand.dtype == Some(Dtype::bytes());
        if self.dtype == other.dtype || is_bytes(self) || is_bytes(other) {
            return Ok(());
        }
        let name = |operand: &Self| operand.dtype.map_or("unknown", |dtype| dtype.name);
        Err(invalid(format!(
            "the elements of {} are {}, and those of {} {}: name bytes, for instance by \
             numpy.ndarray.view(), if their bits are meant",
            self.what,
            name(self),
            other.what,
            name(other)
        )))
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

    /// Returns the rows and the columns.
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
