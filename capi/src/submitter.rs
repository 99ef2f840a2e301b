// SPDX-License-Identifier: MIT OR Apache-2.0
//! The place in the program that called this library.

use std::backtrace::Backtrace;

/// Returns the line where the program called this library, and in which function, as far as the
/// program has debug information and symbols.
pub(crate) fn place() -> Option<String> {
    find(&Backtrace::force_capture().to_string())
}

/// Finds the frame behind the first function of this library that is exported.
fn find(frames: &str) -> Option<String> {
    let mut lines = frames.lines().peekable();
    let mut inside = false;
    while let Some(line) = lines.next() {
        let Some((number, name)) = line.trim_start().split_once(": ") else {
            continue;
        };
        if number.parse::<u32>().is_err() {
            continue;
        }
        if name.starts_with("pinmap_") && !name.contains("::") {
            inside = true;
        } else if inside {
            let at = lines
                .peek()
                .and_then(|next| next.trim_start().strip_prefix("at "));
            let place = at.map_or_else(|| name.to_owned(), |at| format!("{at}, in {name}"));
            return (name != "<unknown>").then_some(place);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn the_caller_is_behind_the_exported_function() {
        let own = [
            "   0: pinmap_dynamic::stream::Stream::submit",
            "   1: pinmap_capi::status",
            "             at /src/capi/src/error.rs:9:1",
            "   2: pinmap_stream_copy",
            "             at /src/capi/src/stream.rs:131:5",
            "",
        ];
        let own = own.join("\n");
        for (program, place) in [
            (
                "   3: main\n             at ./saxpy.c:12:3\n",
                Some("./saxpy.c:12:3, in main"),
            ),
            (
                "   3: main\n   4: start\n             at ./start.c:1:1\n",
                Some("main"),
            ),
            ("   3: <unknown>\n", None),
            ("", None),
        ] {
            assert_eq!(find(&format!("{own}{program}")).as_deref(), place);
        }
        assert_eq!(find("   0: main\n"), None);
    }
}
