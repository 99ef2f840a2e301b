// SPDX-License-Identifier: MIT OR Apache-2.0
//! Progress, on stderr if that is a terminal, and nowhere else.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often a spinner turns.
const TURN: Duration = Duration::from_millis(120);

/// A bar for a number of bytes. It disappears when it is dropped.
pub(crate) fn bytes(what: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total).with_message(what);
    let template = "{msg} [{bar:40}] {binary_bytes}/{binary_total_bytes}, {eta} left";
    // A template that cannot be parsed would be a mistake here, and the default will do.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// Shows what is done meanwhile, for as long as that takes.
pub(crate) fn during<T>(what: &'static str, function: impl FnOnce() -> T) -> T {
    let spinner = ProgressBar::new_spinner().with_message(what);
    spinner.enable_steady_tick(TURN);
    let result = function();
    spinner.finish_and_clear();
    result
}
