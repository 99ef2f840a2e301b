// SPDX-License-Identifier: MIT OR Apache-2.0
//! DLPack: memory as a tensor of other libraries, such as PyTorch.
//!
//! The structures are those of DLPack 1.0, and of 0.8 for who asks for no version. Memory is told
//! as that of the CPU, which all of it is reached by.

use std::ffi::{c_void, CStr};
use std::ptr;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::dtype::Layout;
use crate::memory::Memory;

/// The CPU, as `__dlpack_device__` tells it.
pub(crate) const CPU: (i32, i32) = (1, 0);

const READ_ONLY: u64 = 1 << 0;
const IS_COPIED: u64 = 1 << 1;

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// DLManagedTensor
#[repr(C)]
struct Unversioned {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

/// DLManagedTensorVersioned
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// Keeps the memory of a tensor: memory of which it is a view, or a copy.
enum Data {
    View(Py<Memory>),
    Copy { _words: Vec<u64> },
}

/// The context of a tensor, which has a pointer to it; it is in a box.
struct Context {
    versioned: Option<Versioned>,
    unversioned: Option<Unversioned>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    data: Data,
}

const VERSIONED: &CStr = c"dltensor_versioned";
const UNVERSIONED: &CStr = c"dltensor";

/// Makes the capsule of a tensor. Unless it is a copy, the view is counted, and ends when whoever
/// has taken the tensor deletes it.
pub(crate) fn capsule<'py>(
    memory: &Bound<'py, Memory>,
    versioned: bool,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = memory.py();
    let this = memory.get();
    let (addr, layout, read_only) = this.contents()?;
    if read_only && !copy && !versioned {
        return Err(PyBufferError::new_err(
            "the memory can only be read, which DLPack says from version 1 on: pass max_version, \
             or copy=True",
        ));
    }
    if !layout.dtype.is_number() {
        let text = format!("DLPack has no elements of the type {}", layout.dtype.name);
        return Err(PyBufferError::new_err(text));
    }
    this.views().begin()?;
    let data = match copy {
        false => Data::View(memory.clone().unbind()),
        true => {
            let words = copied(py, addr, layout.bytes);
            this.end_view(py);
            Data::Copy { _words: words }
        }
    };
    let at = match &data {
        Data::View(_) => ptr::with_exposed_provenance_mut(addr),
        Data::Copy { _words: words } => words.as_ptr().cast_mut().cast(),
    };
    let (flags, items) = match (copy, read_only) {
        (true, _) => (IS_COPIED, layout),
        (false, true) => (READ_ONLY, layout),
        (false, false) => (0, layout),
    };
    let mut context = Box::new(context(items, data));
    let tensor = Tensor {
        data: at,
        device: [CPU.0, CPU.1],
        ndim: layout.shape.len() as i32,
        code: layout.dtype.code,
        bits: (layout.dtype.size * 8) as u8,
        lanes: 1,
        shape: context.shape.as_mut_ptr(),
        strides: context.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(context);
    // SAFETY: It comes from a box, and nobody else knows it yet. The capsule has the address of a
    // tensor in that box, which lives until its deleter is called.
    let capsule = unsafe {
        if versioned {
            let tensor = (*context).versioned.insert(Versioned {
                version: [1, 0],
                context: context.cast(),
                deleter: Some(delete_versioned),
                flags,
                tensor,
            });
            ffi::PyCapsule_New(
                ptr::from_mut(tensor).cast(),
                VERSIONED.as_ptr(),
                Some(unused),
            )
        } else {
            let tensor = (*context).unversioned.insert(Unversioned {
                tensor,
                context: context.cast(),
                deleter: Some(delete_unversioned),
            });
            ffi::PyCapsule_New(
                ptr::from_mut(tensor).cast(),
                UNVERSIONED.as_ptr(),
                Some(unused),
            )
        }
    };
    if capsule.is_null() {
        // SAFETY: Nobody knows it.
        unsafe { delete(context) };
        return Err(PyErr::fetch(py));
    }
    // SAFETY: A new reference.
    Ok(unsafe { Bound::from_owned_ptr(py, capsule) })
}

fn context(layout: &Layout, data: Data) -> Context {
    let size = layout.dtype.size as i64;
    Context {
        versioned: None,
        unversioned: None,
        shape: layout.shape.iter().map(|&count| count as i64).collect(),
        strides: layout
            .strides
            .iter()
            .map(|&bytes| bytes as i64 / size)
            .collect(),
        data,
    }
}

/// A copy of memory of which a view is counted.
fn copied(py: Python<'_>, addr: usize, bytes: usize) -> Vec<u64> {
    let mut words = vec![0u64; bytes.div_ceil(8)];
    let to = words.as_mut_ptr().expose_provenance();
    py.detach(|| {
        // SAFETY: The view keeps the memory. There is room for so many bytes. What the device
        // writes meanwhile is copied or not; no reference to it is made.
        unsafe {
            let from = ptr::with_exposed_provenance::<u8>(addr);
            ptr::copy_nonoverlapping(from, ptr::with_exposed_provenance_mut(to), bytes);
        }
    });
    words
}

/// # Safety
///
/// The tensor is one of these, and is not used any more.
unsafe extern "C" fn delete_versioned(tensor: *mut Versioned) {
    // SAFETY: As the caller promises.
    unsafe { delete((*tensor).context.cast()) };
}

/// # Safety
///
/// As for `delete_versioned`.
unsafe extern "C" fn delete_unversioned(tensor: *mut Unversioned) {
    // SAFETY: As the caller promises.
    unsafe { delete((*tensor).context.cast()) };
}

/// Deletes a tensor. When the interpreter is gone, as for an array that is there at the end of the
/// program, it stays.
///
/// # Safety
///
/// It comes from a box, and is not used any more.
unsafe fn delete(context: *mut Context) {
    Python::try_attach(|py| {
        // SAFETY: As the caller promises.
        let context = *unsafe { Box::from_raw(context) };
        if let Data::View(memory) = context.data {
            memory.bind(py).get().end_view(py);
        }
    });
}

/// Deletes the tensor of a capsule that nobody has taken, which would have renamed it.
///
/// # Safety
///
/// It is a capsule of this module.
unsafe extern "C" fn unused(capsule: *mut ffi::PyObject) {
    // SAFETY: A capsule with one of these names has such a tensor.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) != 0 {
            let tensor = ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr());
            delete_versioned(tensor.cast());
        } else if ffi::PyCapsule_IsValid(capsule, UNVERSIONED.as_ptr()) != 0 {
            let tensor = ffi::PyCapsule_GetPointer(capsule, UNVERSIONED.as_ptr());
            delete_unversioned(tensor.cast());
        }
    }
}
