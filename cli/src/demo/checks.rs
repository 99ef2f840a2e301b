// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checks of the demo.

use std::io::Write;

use crate::Result;

/// The checks so far.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    all: usize,
    /// The checks that failed.
    wrong: Vec<String>,
}

impl Checks {
    /// Writes whether a check is right.
    pub(crate) fn add(&mut self, out: &mut impl Write, good: bool, what: &str) -> Result<()> {
        self.all += 1;
        let word = if good { "ok" } else { "FAILED" };
        writeln!(out, "   {word}: {what}")?;
        if !good {
            self.wrong.push(what.to_owned());
        }
        Ok(())
    }

    /// Fails if a check failed, and names it.
    pub(crate) fn verdict(&self) -> Result<()> {
        if self.wrong.is_empty() {
            return Ok(());
        }
        let (wrong, all) = (self.wrong.len(), self.all);
        let names = self.wrong.join("; ");
        Err(format!("{wrong} of {all} checks failed: {names}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_named() {
        let (mut checks, mut out) = (Checks::default(), Vec::new());
        checks.add(&mut out, true, "one").expect("written");
        checks.verdict().expect("all is well");
        checks.add(&mut out, false, "two").expect("written");
        let error = checks.verdict().expect_err("two is wrong").to_string();
        assert_eq!(error, "1 of 2 checks failed: two");
        assert_eq!(
            String::from_utf8_lossy(&out),
            "   ok: one\n   FAILED: two\n"
        );
    }
}
