// SPDX-License-Identifier: MIT OR Apache-2.0
//! The types of elements, and the shapes of arrays.

use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use crate::error::invalid;

/// A type of elements, as NumPy, the buffer protocol and DLPack call it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dtype {
    /// NumPy's name.
    pub(crate) name: &'static str,
    /// The shorter one: a kind and the bytes.
    short: &'static str,
    /// The format of the buffer protocol.
    pub(crate) format: &'static CStr,
    pub(crate) size: usize,
    /// DLPack's code of the kind of number.
    pub(crate) code: u8,
}

const fn dtype(
    name: &'static str,
    short: &'static str,
    format: &'static CStr,
    size: usize,
    code: u8,
) -> Dtype {
    Dtype {
        name,
        short,
        format,
        size,
        code,
    }
}

static DTYPES: [Dtype; 14] = [
    dtype("bool", "b1", c"?", 1, 6),
    dtype("int8", "i1", c"b", 1, 0),
    dtype("int16", "i2", c"h", 2, 0),
    dtype("int32", "i4", c"i", 4, 0),
    dtype("int64", "i8", c"l", 8, 0),
    dtype("uint8", "u1", c"B", 1, 1),
    dtype("uint16", "u2", c"H", 2, 1),
    dtype("uint32", "u4", c"I", 4, 1),
    dtype("uint64", "u8", c"L", 8, 1),
    dtype("float16", "f2", c"e", 2, 2),
    dtype("float32", "f4", c"f", 4, 2),
    dtype("float64", "f8", c"d", 8, 2),
    dtype("complex64", "c8", c"Zf", 8, 5),
    dtype("complex128", "c16", c"Zd", 16, 5),
];

/// DLPack's code of what is no number.
const OTHER: u8 = u8::MAX;

/// The other types that the program has named, such as structured ones. They are kept for ever,
/// because they are few, and views refer to them.
static OTHERS: Mutex<Vec<&'static Dtype>> = Mutex::new(Vec::new());

impl Dtype {
    pub(crate) fn bytes() -> &'static Self {
        &DTYPES[5]
    }

    /// Whether elements are numbers or truth values, of this machine's order of bytes.
    pub(crate) fn is_number(&self) -> bool {
        self.code != OTHER
    }

    /// A type that is none of the table, by its dtype of NumPy: a structured one, bytes of a fixed
    /// length, or numbers in the other order of bytes. None, if its elements mean nothing outside
    /// of the interpreter, or there is no format of the buffer protocol for it.
    fn other(dtype: &Bound<'_, PyAny>) -> PyResult<Option<&'static Self>> {
        let py = dtype.py();
        if dtype.getattr("hasobject")?.is_truthy()? {
            return Ok(None);
        }
        let none = py.import("numpy")?.getattr("empty")?.call1((0, dtype))?;
        let Ok(view) = PyUntypedBuffer::get(&none) else {
            return Ok(None);
        };
        let (name, format) = (dtype.str()?.to_string(), view.format().to_owned());
        let size = view.item_size();
        view.release(py);
        if size == 0 {
            return Ok(None);
        }
        let mut others = OTHERS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |other: &&&Self| other.name == name && other.format == &*format;
        if let Some(&known) = others.iter().find(known) {
            return Ok(Some(known));
        }
        let made: &'static Self = Box::leak(Box::new(Self {
            name: name.leak(),
            short: "",
            format: Box::leak(format.into_boxed_c_str()),
            size,
            code: OTHER,
        }));
        others.push(made);
        Ok(Some(made))
    }

    /// The type of the elements of an object, of which there is a view. None, if it has no name
    /// here and no dtype of NumPy. Objects of Python are an error: they mean nothing to a device.
    pub(crate) fn of_view(
        object: &Bound<'_, PyAny>,
        view: &PyUntypedBuffer,
    ) -> PyResult<Option<&'static Self>> {
        if let Some(dtype) = Self::of_format(view.format(), view.item_size()) {
            return Ok(Some(dtype));
        }
        let dtype = object.getattr("dtype").ok();
        let dtype = match dtype {
            Some(dtype) if dtype.hasattr("hasobject")? => Some(dtype),
            _ => None,
        };
        let has_objects = match &dtype {
            Some(dtype) => dtype.getattr("hasobject")?.is_truthy()?,
            None => view.format().to_bytes() == b"O",
        };
        if has_objects {
            return Err(PyTypeError::new_err(
                "the elements are objects of Python, which mean nothing to a device",
            ));
        }
        dtype.map_or(Ok(None), |dtype| Self::other(&dtype))
    }

    fn find(name: &str) -> Option<&'static Self> {
        let short = name.trim_start_matches(['<', '=', '|']);
        let name = match name {
            "bool_" => "bool",
            "float" => "float64",
            "int" => "int64",
            "complex" => "complex128",
            name => name,
        };
        let mut all = DTYPES.iter();
        all.find(|dtype| dtype.name == name || dtype.short == short)
    }

    /// The type of a name such as "float32", of a dtype of NumPy, or of a type such as
    /// numpy.float32.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<&'static Self> {
        let name = if object.is_instance_of::<PyString>() {
            Some(object.clone())
        } else if object.is_instance_of::<PyType>() {
            Some(object.getattr("__name__")?)
        } else {
            object.getattr("str").ok()
        };
        if let Some(name) = &name {
            if let Some(found) = Self::find(&name.extract::<String>()?) {
                return Ok(found);
            }
        }
        let numpy = object.py().import("numpy")?;
        if let Ok(dtype) = numpy.getattr("dtype")?.call1((object,)) {
            if let Some(found) = Self::other(&dtype)? {
                return Ok(found);
            }
        }
        let Some(name) = name else {
            let text = format!("{} is no type of elements", object.repr()?);
            return Err(PyTypeError::new_err(text));
        };
        let names: Vec<_> = DTYPES.iter().map(|dtype| dtype.name).collect();
        Err(invalid(format!(
            "there is no type of elements {}: {} are the ones, and structured types of NumPy",
            name.repr()?,
            names.join(", ")
        )))
    }

    /// The type of a format of the buffer protocol, if it is one of these and in this machine's
    /// order of bytes.
    pub(crate) fn of_format(format: &CStr, size: usize) -> Option<&'static Self> {
        let format = format.to_str().ok()?.trim_start_matches(['@', '=', '<']);
        let format = match format {
            "c" => "B",
            "q" | "n" => "l",
            "Q" | "N" => "L",
            // Standard sizes have 4 bytes for these.
            "l" if size == 4 => "i",
            "L" if size == 4 => "I",
            format => format,
        };
        let mut all = DTYPES.iter();
        all.find(|dtype| dtype.format.to_bytes() == format.as_bytes() && dtype.size == size)
    }
}

/// The elements of an array, row after row, and their number.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) dtype: &'static Dtype,
    pub(crate) shape: Box<[isize]>,
    pub(crate) strides: Box<[isize]>,
    /// Bytes of all elements.
    pub(crate) bytes: usize,
}

impl Layout {
    pub(crate) fn new(dtype: &'static Dtype, shape: &[usize]) -> PyResult<Self> {
        let too_large = || invalid(format!("an array of the shape {shape:?} is too large"));
        if shape.len() > 64 {
            return Err(invalid(format!(
                "{} dimensions are more than 64",
                shape.len()
            )));
        }
        let mut strides = vec![0; shape.len()];
        let mut bytes = dtype.size;
        for (stride, &count) in strides.iter_mut().zip(shape).rev() {
            *stride = isize::try_from(bytes).map_err(|_| too_large())?;
            bytes = bytes.checked_mul(count).ok_or_else(too_large)?;
        }
        isize::try_from(bytes).map_err(|_| too_large())?;
        let shape: Result<_, _> = shape.iter().map(|&count| isize::try_from(count)).collect();
        Ok(Self {
            dtype,
            shape: shape.map_err(|_| too_large())?,
            strides: strides.into(),
            bytes,
        })
    }

    /// The layout of a shape of Python: a number, or a sequence of numbers. Without a type, the
    /// elements are bytes.
    pub(crate) fn of(shape: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let dtype = dtype.map_or(Ok(Dtype::bytes()), Dtype::of)?;
        let counts = match shape.extract::<i64>() {
            Ok(count) => vec![count],
            Err(_) => shape.extract::<Vec<i64>>().map_err(|_| {
                let shape = shape
                    .repr()
                    .map(|text| text.to_string())
                    .unwrap_or_default();
                PyTypeError::new_err(format!("{shape} is no shape: a number, or a tuple of them"))
            })?,
        };
        let counts: Result<Vec<usize>, _> = counts.iter().map(|&n| usize::try_from(n)).collect();
        let counts = counts.map_err(|_| invalid(format!("{shape} has a negative dimension")))?;
        Self::new(dtype, &counts)
    }

    /// How many bytes to allocate. An empty array has an address, too, as NumPy's have.
    pub(crate) fn room(&self) -> usize {
        self.bytes.max(1)
    }

    pub(crate) fn counts(&self) -> Vec<usize> {
        self.shape.iter().map(|&count| count as usize).collect()
    }
}
