// SPDX-License-Identifier: MIT OR Apache-2.0
//! Spans of calls that take time, with the feature `tracing`. Without it they cost nothing.

/// Begins a span of this crate, which ends with the block: its name, and its fields.
macro_rules! span {
    ($name:literal $(, $field:ident = $value:expr)* $(,)?) => {
        #[cfg(feature = "tracing")]
        let _span = tracing::debug_span!(target: "pinmap", $name $(, $field = $value)*).entered();
    };
}

pub(crate) use span;
