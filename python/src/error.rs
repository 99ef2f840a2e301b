// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: those of the crate become exceptions of Python, `pinmap.Error` and those derived from
//! it, which `pinmap/_errors.py` defines.

use nix::errno::Errno;
use pinmap::ErrorKind;
use pinmap_dynamic::Error;
use pinmap_testgpu::program::Trap;
use pyo3::prelude::*;

/// Names of Rust in hints, and what they are in Python.
const NAMES: [(&str, &str); 8] = [
    ("`Accelerator::manage`, `manage_all`", "`Device.manage()`"),
    ("`Accelerator::manage`", "`Device.manage()`"),
    ("`Accelerator::alloc_managed`", "`Device.alloc_managed()`"),
    ("`AllocOptions::portable`", "`portable=True`"),
    ("with `Access::ReadWrite`", "without `read_only=True`"),
    ("`Access::Read`", "`read_only=True`"),
    ("`RegisterOptions::round_outwards`", "`round_outwards=True`"),
    (
        "a `Buffer` has pages",
        "an array of `pinmap.empty()` has pages",
    ),
];

/// The word for a kind of error, which is the attribute `kind` of an exception.
fn word(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "not_found",
        ErrorKind::PermissionDenied => "permission_denied",
        ErrorKind::Busy => "busy",
        ErrorKind::Gone => "gone",
        ErrorKind::Stale => "stale",
        ErrorKind::InvalidInput => "invalid_input",
        ErrorKind::BadAddress => "bad_address",
        ErrorKind::AlreadyExists => "already_exists",
        ErrorKind::OutOfMemory => "out_of_memory",
        ErrorKind::NoSpace => "no_space",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::WouldBlock => "would_block",
        ErrorKind::TimedOut => "timed_out",
        ErrorKind::Interrupted => "interrupted",
        ErrorKind::Deadlock => "deadlock",
        ErrorKind::Fault => "fault",
        ErrorKind::Io => "io",
        _ => "other",
    }
}

/// The exception of an error.
pub(crate) fn raise(error: impl Into<Error>) -> PyErr {
    let error: Error = error.into();
    let error = error.in_words(&NAMES);
    Python::attach(|py| {
        let made = py
            .import("pinmap._errors")
            .and_then(|module| module.getattr("make"))
            .and_then(|make| {
                let (kind, hint) = (word(error.kind()), error.hint());
                make.call1((error.errno(), error.to_string(), kind, hint))
            });
        match made {
            Ok(exception) => PyErr::from_value(exception),
            Err(failure) => failure,
        }
    })
}

/// The exception of a kernel that stopped its stream.
pub(crate) fn stopped(error: Error, trap: &Trap) -> PyErr {
    Python::attach(|py| {
        let exception = raise(error);
        let words = format!("{}; {trap}", exception.value(py));
        let Trap {
            kernel,
            block,
            thread,
            function,
            pc,
            value,
            ..
        } = trap;
        let made = py
            .import("pinmap._errors")
            .and_then(|module| module.getattr("make_stopped"))
            .and_then(|make| {
                let place = (kernel, block, thread, function, pc, value);
                make.call1((exception.value(py), words, place))
            });
        match made {
            Ok(exception) => PyErr::from_value(exception),
            Err(failure) => failure,
        }
    })
}

/// An argument that makes no sense.
pub(crate) fn invalid(text: impl Into<String>) -> PyErr {
    raise(Error::invalid(text))
}

/// Something that the device, or this kind of memory, does not have.
pub(crate) fn unsupported(text: impl Into<String>) -> PyErr {
    raise(Error::new(Errno::EOPNOTSUPP, ErrorKind::Unsupported, text))
}

/// Runs a function of the crate without the interpreter's lock.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    py.detach(call).map_err(raise)
}
