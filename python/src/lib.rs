// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Python module pinmap: the part that is in Rust, `pinmap._pinmap`. What is in Python, next to
//! it in `pinmap/`, are the errors, what waits in asyncio, what speaks to CuPy, and what
//! calls clang.
//!
//! A method checks what it is given, calls the crate `pinmap` without the interpreter's lock, and
//! raises an error of the module (`error.rs`). Each object belongs to the process that made it
//! (`handle.rs`). Memory counts the views that Python has of it (`view.rs`), and is not released
//! before they are gone (`memory.rs`).

// A class of Python is documented by its stub, `pinmap/__init__.pyi`, too.
#![allow(clippy::too_many_arguments)]
// The interpreter calls what is unsafe, by the rules of the buffer protocol.
#![allow(clippy::missing_safety_doc)]

mod bar;
mod buffer;
mod device;
mod dlpack;
mod dtype;
mod error;
mod event;
mod handle;
mod info;
mod interrupt;
mod managed;
mod mapping;
mod memory;
mod open;
mod operand;
mod program;
mod shared;
mod source;
mod stream;
mod testgpu;
mod view;
mod wait;
mod xdma;

use pyo3::prelude::*;

/// The part of pinmap that is in Rust.
#[pymodule]
mod _pinmap {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::bar::Bar;
    #[pymodule_export]
    use crate::buffer::{empty, Buffer};
    #[pymodule_export]
    use crate::device::Device;
    #[pymodule_export]
    use crate::event::Event;
    #[pymodule_export]
    use crate::info::{
        AcceleratorInfo, BarInfo, DeviceEvent, DeviceNode, Info, Prefetched, Residency, Run,
        Statistics, Total, Totals,
    };
    #[pymodule_export]
    use crate::interrupt::Interrupt;
    #[pymodule_export]
    use crate::mapping::Mapping;
    #[pymodule_export]
    use crate::memory::Memory;
    #[pymodule_export]
    use crate::open::{find, find_accelerator, list, open};
    #[pymodule_export]
    use crate::program::{Local, Program};
    #[pymodule_export]
    use crate::stream::{Completion, Stream};
    #[pymodule_export]
    use crate::testgpu::testgpu;
    #[pymodule_export]
    use crate::xdma::xdma;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // The first thread that attaches anew checks twice that there is an interpreter, and panics
        // if it ended in between (PyO3 0.30). In a program that ends, that could be the thread of a
        // host function.
        let py = module.py();
        py.detach(|| Python::attach(|_| ()));
        module.add("_HEADERS", pinmap_testgpu::program::HEADERS.to_vec())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
