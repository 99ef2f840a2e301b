// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: those of the crate `pinmap`, and refusals of this one, in the same form.

use std::fmt;

use nix::errno::Errno;
use pinmap::ErrorKind;
use pinmap_testgpu::program::Trap;

/// Why something failed.
#[derive(Debug, Clone)]
pub struct Error {
    errno: i32,
    kind: ErrorKind,
    text: String,
    hint: Option<String>,
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A refusal. The text has no hint.
    pub fn new(errno: Errno, kind: ErrorKind, text: impl Into<String>) -> Self {
        Self {
            errno: errno as i32,
            kind,
            text: text.into(),
            hint: None,
        }
    }

    /// An argument that makes no sense.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(Errno::EINVAL, ErrorKind::InvalidInput, text)
    }

    /// The error with what can be done about it, which becomes a part of the words, too.
    #[must_use]
    pub fn with_hint(self, hint: &str) -> Self {
        let text = format!("{}; {hint}", self.text);
        let hint = Some(hint.to_owned());
        Self { text, hint, ..self }
    }

    /// The error with the names of another language: each first word of a pair becomes the second.
    #[must_use]
    pub fn in_words(self, names: &[(&str, &str)]) -> Self {
        let replace = |text: String| {
            let each = names.iter();
            each.fold(text, |text, (from, to)| text.replace(from, to))
        };
        let (text, hint) = (replace(self.text), self.hint.map(replace));
        Self { text, hint, ..self }
    }

    /// The error as the reason of something else.
    #[must_use]
    pub fn reason_of(self, what: &str) -> Self {
        let text = format!("{what}: {}", self.text);
        Self { text, ..self }
    }

    /// The error with where the program submitted the work.
    #[must_use]
    pub fn submitted_at(self, place: &str) -> Self {
        let text = format!("{} (submitted at {place})", self.text);
        Self { text, ..self }
    }

    /// The error with where a kernel stopped.
    #[must_use]
    pub fn with_trap(self, trap: &Trap) -> Self {
        let text = format!("{}; {trap}", self.text);
        Self { text, ..self }
    }

    /// The errno.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// The kind of error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns what can be done about it.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

impl From<pinmap::Error> for Error {
    fn from(error: pinmap::Error) -> Self {
        Self {
            errno: error.errno(),
            kind: error.kind(),
            text: error.to_string(),
            hint: error.hint().map(str::to_owned),
        }
    }
}
