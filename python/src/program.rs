// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that are compiled, and launches of their kernels.

use pinmap_dynamic::Argument;
use pinmap_testgpu::program::{self, Dim, Grid};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyTuple};

use crate::device::Device;
use crate::error::{detached, invalid};
use crate::handle::Handle;
use crate::memory::Memory;
use crate::operand::Operand;
use crate::stream::Stream;

/// A program that is loaded: kernels in C or OpenCL C, which pinmap.compile() has compiled. Made by
/// Device.load(). Its memory is freed when it is closed and its launches are done.
#[pyclass(module = "pinmap", frozen)]
pub(crate) struct Program(Handle<program::Program>);

/// An argument of a kernel: memory that the threads of a block share. It is how much a parameter in
/// local memory has in OpenCL C.
#[pyclass(module = "pinmap", frozen)]
pub(crate) struct Local {
    /// The length in bytes.
    #[pyo3(get)]
    nbytes: usize,
}

#[pymethods]
impl Local {
    #[new]
    fn new(nbytes: usize) -> Self {
        Self { nbytes }
    }

    fn __repr__(&self) -> String {
        format!("pinmap.Local({})", self.nbytes)
    }
}

impl Program {
    pub(crate) fn load(py: Python<'_>, device: &Device, elf: &[u8]) -> PyResult<Self> {
        let shared = device.shared()?;
        let program = detached(py, || {
            Ok(program::Program::load(shared.accelerator()?, elf)?)
        })?;
        Ok(Self(Handle::new("program", program)))
    }
}

/// A number of blocks or threads, or up to three.
fn dim(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Dim> {
    if let Ok(x) = object.extract::<u32>() {
        return Ok(x.into());
    }
    let all: Vec<u32> = object.extract().map_err(|_| {
        PyTypeError::new_err(format!(
            "{what} is neither a number nor up to three of them"
        ))
    })?;
    match all[..] {
        [x] => Ok(x.into()),
        [x, y] => Ok((x, y).into()),
        [x, y, z] => Ok((x, y, z).into()),
        _ => Err(invalid(format!(
            "{what} has {} numbers, not 1 to 3",
            all.len()
        ))),
    }
}

/// Looks what an argument is. An operand is added to the others.
fn argument(
    stream: &Stream,
    object: &Bound<'_, PyAny>,
    operands: &mut Vec<Operand>,
) -> PyResult<Argument> {
    let py = object.py();
    if object.is_instance(&py.import("numpy")?.getattr("generic")?)? {
        let dtype = object.getattr("dtype")?;
        let (kind, size): (String, usize) = (
            dtype.getattr("kind")?.extract()?,
            dtype.getattr("itemsize")?.extract()?,
        );
        let value = object.call_method0("item")?;
        return Ok(match (kind.as_str(), size) {
            ("f", 4) => Argument::F32(value.extract::<f64>()? as f32),
            ("f", 8) => Argument::F64(value.extract()?),
            ("u", 4) => Argument::U32(value.extract()?),
            ("u" | "b", _) => Argument::Integer(value.extract()?),
            ("i", _) => Argument::Integer(value.extract::<i64>()? as u64),
            _ => {
                let text = format!("an argument is a {}", dtype.str()?);
                return Err(PyTypeError::new_err(format!(
                    "{text}: neither integer nor float"
                )));
            }
        });
    }
    if object.is_instance_of::<PyBool>() || object.is_instance_of::<PyInt>() {
        return match (object.extract::<i64>(), object.extract::<u64>()) {
            (Ok(value), _) => Ok(Argument::Integer(value as u64)),
            (_, Ok(value)) => Ok(Argument::Integer(value)),
            _ => Err(PyOverflowError::new_err(format!(
                "{object} has more than 64 bits"
            ))),
        };
    }
    if object.is_instance_of::<PyFloat>() {
        let text =
            format!("an argument is {object}: numpy.float32() and numpy.float64() say which");
        return Err(PyTypeError::new_err(text));
    }
    if let Ok(local) = object.cast::<Local>() {
        return Ok(Argument::Local(local.get().nbytes));
    }
    let written = match object.cast::<Memory>() {
        Ok(memory) => memory.getattr("writable")?.is_truthy()?,
        Err(_) => match py
            .import("builtins")?
            .getattr("memoryview")?
            .call1((object,))
        {
            Ok(view) => !view.getattr("readonly")?.is_truthy()?,
            // It is refused as an operand.
            Err(_) => false,
        },
    };
    let operand = match written {
        true => stream.write(object, "an argument")?,
        false => stream.read(object, "an argument")?,
    };
    let (offset, len) = (operand.offset, operand.len);
    operands.push(operand);
    Ok(match written {
        true => Argument::Write(offset, len),
        false => Argument::Read(offset, len),
    })
}

#[pymethods]
impl Program {
    /// The names of the kernels.
    #[getter]
    fn kernels(&self) -> PyResult<Vec<String>> {
        Ok(self.0.get()?.kernels().map(str::to_owned).collect())
    }

    /// Submits a launch of a kernel to a stream: so many blocks of so many threads, each a number
    /// or up to three. The kernel must have these parameters. Memory and arrays are pointers, which
    /// the kernel writes only if they are writable, and of which no two overlap; a Local is shared
    /// memory; a number of NumPy has the type of its parameter; an int is any integer whose type it
    /// fits with its sign.
    ///
    /// `shared_bytes` is the memory that the threads of a block share, if it is more than that of
    /// all Locals. What the threads print may have `print_bytes`. Synchronizing with the stream, or
    /// closing it, prints it, and raises KernelStopped if a kernel stopped the stream. This waits
    /// for 64 launches for which nobody has, and for those in flight if there is no memory for one
    /// more.
    ///
    /// Raises Error: EINVAL, there is no such kernel or grid, there are more than 7 operands, or as
    /// Stream.copy() does; ENOMEM, stacks and shared memory do not fit.
    #[pyo3(signature = (stream, kernel, blocks, threads, *arguments, shared_bytes = 0,
        stack_bytes = 4096, print_bytes = 65536))]
    fn launch(
        &self,
        py: Python<'_>,
        stream: &Bound<'_, Stream>,
        kernel: &str,
        blocks: &Bound<'_, PyAny>,
        threads: &Bound<'_, PyAny>,
        arguments: &Bound<'_, PyTuple>,
        shared_bytes: usize,
        stack_bytes: usize,
        print_bytes: usize,
    ) -> PyResult<()> {
        let (program, stream) = (self.0.get()?, stream.get());
        let mut operands = Vec::new();
        let list = arguments.iter();
        let list = list.map(|object| argument(stream, &object, &mut operands));
        let list = list.collect::<PyResult<Vec<_>>>()?;
        let grid = Grid::new(dim(blocks, "blocks")?, dim(threads, "threads")?)
            .shared_bytes(Argument::local_bytes(&list).max(shared_bytes))
            .stack_bytes(stack_bytes)
            .print_bytes(print_bytes);
        stream.launch(py, &program, (kernel, grid), &operands, &list)
    }

    /// Whether close() was called.
    #[getter]
    fn closed(&self) -> bool {
        !self.0.is_open()
    }

    /// Closes the program. Launches that were submitted are still done.
    fn close(&self) {
        self.0.close();
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        match self.0.get() {
            Ok(program) => {
                let kernels: Vec<_> = program.kernels().collect();
                format!("<pinmap.Program with {}>", kernels.join(", "))
            }
            Err(_) => "<pinmap.Program, closed>".to_owned(),
        }
    }
}
