// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checks of the demo.

use std::io::Write;

use serde::Serialize;

use crate::Result;

/// The checks so far.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    pub(crate) all: Vec<Check>,
}

/// A check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    pub(crate) what: String,
    pub(crate) good: bool,
}

impl Checks {
    /// Writes whether a check is right.
    pub(crate) fn add(&mut self, out: &mut impl Write, good: bool, what: &str) -> Result<()> {
        let word = if good { "ok" } else { "FAILED" };
        writeln!(out, "   {word}: {what}")?;
        let what = what.to_owned();
        self.all.push(Check { what, good });
        Ok(())
    }
}

/// Fails if a check failed, and names it.
pub(crate) fn verdict(all: &[Check]) -> Result<()> {
    let wrong = all.iter().filter(|check| !check.good);
    let wrong: Vec<_> = wrong.map(|check| &*check.what).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    let (count, names) = (wrong.len(), wrong.join("; "));
    Err(format!("{count} of {} checks failed: {names}", all.len()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_named() {
        let (mut checks, mut out) = (Checks::default(), Vec::new());
        checks.add(&mut out, true, "one").expect("written");
        verdict(&checks.all).expect("all is well");
        checks.add(&mut out, false, "two").expect("written");
        let error = verdict(&checks.all).expect_err("two is wrong").to_string();
        assert_eq!(error, "1 of 2 checks failed: two");
        assert_eq!(
            String::from_utf8_lossy(&out),
            "   ok: one\n   FAILED: two\n"
        );
    }
}
