// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting: without the interpreter's lock, and so that a signal ends it.

use std::time::{Duration, Instant};

use pinmap::ErrorKind;
use pinmap_dynamic::Error;
use pyo3::prelude::*;

use crate::error::{invalid, raise};

/// How long is waited before Python looks for signals, such as that of Ctrl-C.
const SLICE: Duration = Duration::from_millis(50);

/// A time limit in seconds, of which None is for ever.
pub(crate) fn limit(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(invalid(format!(
            "the timeout is {seconds} s; None is for ever"
        )));
    }
    // What is too long to be represented is for ever.
    Ok(Duration::try_from_secs_f64(seconds).ok())
}

/// Waits by attempts that take at most so long each, and fail with `ETIMEDOUT`. What a handler of a
/// signal raises ends the wait.
pub(crate) fn wait<T: Send, E: Into<Error> + Send>(
    py: Python<'_>,
    seconds: Option<f64>,
    attempt: impl Fn(Duration) -> Result<T, E> + Sync,
) -> PyResult<T> {
    let limit = limit(seconds)?;
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        let (slice, last) = match left {
            Some(left) if left <= SLICE => (left, true),
            _ => (SLICE, false),
        };
        match py.detach(|| attempt(slice).map_err(Into::into)) {
            Err(error) if error.kind() == ErrorKind::TimedOut && !last => py.check_signals()?,
            Err(error) => {
                py.check_signals()?;
                return Err(raise(error));
            }
            Ok(found) => return Ok(found),
        }
    }
}

/// The coroutine that waits in asyncio until `attempt`, a method without arguments, returns
/// something other than None. It is called when one of the files is readable (`true`), or hung up.
pub(crate) fn coroutine<'py>(
    py: Python<'py>,
    files: Vec<(i32, bool)>,
    attempt: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    py.import("pinmap._waiting")?
        .getattr("until")?
        .call1((files, attempt))
}
