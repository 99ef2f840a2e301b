// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams on which each submission waits for its work, to find the one that fails.

use std::ffi::OsStr;
use std::panic::Location;
use std::sync::OnceLock;

use crate::error::Result;

use super::work::Work;

/// Whether the environment has each submission wait for its work, by `PINMAP_LAUNCH_BLOCKING=1`,
/// as `CUDA_LAUNCH_BLOCKING` does. It is read once. Unset, empty and `0` are no.
///
/// Streams have it as the default of
/// [`StreamOptions::blocking`](crate::accelerator::StreamOptions::blocking).
///
/// ```
/// if pinmap::accelerator::launch_blocking() {
///     println!("streams wait for each piece of work: times mean little");
/// }
/// ```
pub fn launch_blocking() -> bool {
    static SET: OnceLock<bool> = OnceLock::new();
    *SET.get_or_init(|| is_set(std::env::var_os("PINMAP_LAUNCH_BLOCKING").as_deref()))
}

fn is_set(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| !value.is_empty() && value != "0")
}

impl Work<'_> {
    /// Ends a submission that was made at a place of the program: waits for it, on a stream where
    /// that is wanted.
    pub(super) fn settle(&self, at: &Location<'_>) -> Result<()> {
        if !self.core.options().blocking {
            return Ok(());
        }
        // This publishes what a batch holds back, too.
        let point = self.lock()?.queue_mut().point()?;
        let done = point.wait(None).map(drop);
        done.map_err(|error| error.submitted_at(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_and_zero_are_no() {
        for (value, set) in [
            (None, false),
            (Some(""), false),
            (Some("0"), false),
            (Some("1"), true),
            (Some("yes"), true),
        ] {
            assert_eq!(is_set(value.map(OsStr::new)), set, "{value:?}");
        }
    }
}
