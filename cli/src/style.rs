// SPDX-License-Identifier: MIT OR Apache-2.0
//! Colours: on a terminal, unless the environment (`NO_COLOR`) or `--color` says otherwise.

use anstyle::{AnsiColor, Style};
use clap::ColorChoice;

/// Style of headings.
pub(crate) const HEADING: Style = Style::new().bold();
/// Style of good findings.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Style of notes.
pub(crate) const NOTE: Style = AnsiColor::Yellow.on_default();
/// Style of bad findings, and of errors.
pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();

/// Keeps to what the command line says.
pub(crate) fn choose(choice: ColorChoice) {
    let choice = match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}
