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
    /// Whether the check is about times, which other work on the machine can spoil.
    #[serde(skip)]
    pub(crate) timed: bool,
}

/// How often to measure times at most, until they show what they are to show. Other work on the
/// machine delays the device, which is emulated.
pub(crate) const TRIES: usize = 5;

impl Checks {
    /// Writes whether a check is right.
    pub(crate) fn add(&mut self, out: &mut impl Write, good: bool, what: &str) -> Result<()> {
        self.push(out, good, what, false)
    }

    /// Writes whether a check of times is right.
    pub(crate) fn add_timed(&mut self, out: &mut impl Write, good: bool, what: &str) -> Result<()> {
        self.push(out, good, what, true)
    }

    fn push(&mut self, out: &mut impl Write, good: bool, what: &str, timed: bool) -> Result<()> {
        let word = if good { "ok" } else { "FAILED" };
        writeln!(out, "   {word}: {what}")?;
        let what = what.to_owned();
        self.all.push(Check { what, good, timed });
        Ok(())
    }
}

/// Says how often something was measured again, if it was.
pub(crate) fn note_again(out: &mut impl Write, again: usize) -> Result<()> {
    let times = match again {
        0 => return Ok(()),
        1 => "once".to_owned(),
        _ => format!("{again} times"),
    };
    let why = "the machine was busy with other work, which delays the device";
    Ok(writeln!(out, "   measured again {times}: {why}")?)
}

/// Fails if a check failed, and names it.
pub(crate) fn verdict(all: &[Check]) -> Result<()> {
    let wrong: Vec<_> = all.iter().filter(|check| !check.good).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = wrong.iter().map(|check| &*check.what).collect();
    let (count, names) = (wrong.len(), names.join("; "));
    let mut text = format!("{count} of {} checks failed: {names}", all.len());
    if wrong.iter().all(|check| check.timed) {
        text += &format!(
            ". Only times are other than they should be, after {TRIES} tries: the machine, or the \
             one below it, was busy with other work; run this again when it is not"
        );
    }
    Err(text.into())
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

    #[test]
    fn a_busy_machine_is_blamed_for_times_only() {
        let (mut checks, mut out) = (Checks::default(), Vec::new());
        checks
            .add_timed(&mut out, false, "faster")
            .expect("written");
        let error = verdict(&checks.all).expect_err("wrong").to_string();
        assert!(
            error.starts_with("1 of 1 checks failed: faster. Only times"),
            "{error}"
        );
        assert!(error.contains("busy"), "{error}");
        checks.add(&mut out, false, "bytes").expect("written");
        let error = verdict(&checks.all).expect_err("wrong").to_string();
        assert_eq!(error, "2 of 2 checks failed: faster; bytes");
    }

    #[test]
    fn what_was_measured_again_is_told() {
        let text = |again| {
            let mut out = Vec::new();
            note_again(&mut out, again).expect("written");
            String::from_utf8(out).expect("text")
        };
        assert_eq!(text(0), "");
        assert!(text(1).starts_with("   measured again once: the machine was busy"));
        assert!(text(3).starts_with("   measured again 3 times: "));
    }
}
