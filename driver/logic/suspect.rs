// SPDX-License-Identifier: GPL-2.0
//! The suspect part of a registration: ranges that may have gone away, until a worker has checked
//! them.
//!
//! An MMU notifier *notes* a change, but may not look into it. A worker *begins* a check of all
//! that was noted, can take several turns for it, and *ends* each turn with what is left. Changes
//! that are noted meanwhile are checked afterwards, with a check of their own, for they may be
//! about pages that were already passed.
//!
//! A change is *decided* once a check that began after it is over. A caller that has to know what
//! memory has become remembers how many changes were noted, and waits until so many are decided.

use super::span::Span;

/// The changed part of a registration that was not checked yet, and the number of changes that are
/// decided.
#[derive(Clone, Debug, Default)]
pub struct Suspect {
    /// Number of changes that were noted, and of those that are decided.
    noted: u64,
    decided: u64,
    /// Changed range whose check has not begun.
    fresh: Option<Span>,
    /// Rest of the range whose check has begun. When all of it is checked, `decided` becomes
    /// `until`.
    begun: Option<Span>,
    until: u64,
    /// A check is under way.
    busy: bool,
    /// No further checks are wanted.
    closed: bool,
}

impl Suspect {
    /// Makes a state without changes.
    pub const fn new() -> Self {
        Self {
            noted: 0,
            decided: 0,
            fresh: None,
            begun: None,
            until: 0,
            busy: false,
            closed: false,
        }
    }

    /// Notes that `part` has changed. Returns whether a check is wanted.
    pub fn note(&mut self, part: Span) -> bool {
        if self.closed {
            return false;
        }
        self.noted = self.noted.saturating_add(1);
        self.fresh = Some(self.fresh.map_or(part, |noted| noted.union(part)));
        true
    }

    /// Returns whether there is something to check.
    pub const fn is_open(&self) -> bool {
        !self.closed && (self.fresh.is_some() || self.begun.is_some())
    }

    /// Begins or continues a check, and returns the range to check. `None` if there is nothing to
    /// check, or a check is under way.
    pub fn begin(&mut self) -> Option<Span> {
        if self.closed || self.busy {
            return None;
        }
        if self.begun.is_none() {
            self.begun = self.fresh.take();
            self.until = self.noted;
        }
        self.busy = self.begun.is_some();
        self.begun
    }

    /// Ends the check that [`begin`](Self::begin) began; `rest` was not checked.
    pub fn end(&mut self, rest: Option<Span>) {
        self.busy = false;
        self.begun = rest;
        if rest.is_none() {
            self.decided = self.until;
        }
    }

    /// Forbids further checks. One that is under way may end.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Returns whether further checks are forbidden.
    pub const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns whether a check is under way.
    pub const fn is_busy(&self) -> bool {
        self.busy
    }

    /// Returns the number of changes until now, for [`is_decided`](Self::is_decided).
    pub const fn noted(&self) -> u64 {
        self.noted
    }

    /// Returns whether the first `noted` changes are decided.
    pub const fn is_decided(&self, noted: u64) -> bool {
        self.closed || self.decided >= noted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(start: u64, length: u64) -> Span {
        Span::new(start, length).unwrap()
    }

    #[test]
    fn joins_what_was_noted() {
        let mut suspect = Suspect::new();
        assert_eq!(suspect.begin(), None);
        suspect.note(span(0, 4096));
        suspect.note(span(8192, 4096));
        assert_eq!(suspect.begin(), Some(span(0, 12288)));
        assert!(suspect.is_busy() && suspect.begin().is_none());
        suspect.end(None);
        assert!(suspect.is_decided(2) && !suspect.is_open() && !suspect.is_busy());
    }

    #[test]
    fn what_is_noted_meanwhile_is_not_decided() {
        let mut suspect = Suspect::new();
        suspect.note(span(0, 4096));
        assert!(suspect.begin().is_some());
        suspect.note(span(0, 4096));
        suspect.end(None);
        assert!(suspect.is_decided(1) && !suspect.is_decided(2) && suspect.is_open());
        assert!(!suspect.is_closed());
        suspect.close();
        assert!(suspect.is_closed() && suspect.is_decided(2) && suspect.begin().is_none());
        assert!(!suspect.note(span(0, 4096)) && !suspect.is_open());
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Note(u64),
        /// Checks so many pages.
        Look(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..8_u64).prop_map(Step::Note),
            (0..9_u64).prop_map(Step::Look)
        ]
    }

    proptest! {
        /// A change that is reported as decided was checked after it was noted, whatever comes
        /// between. Repeated checks come to an end.
        #[test]
        fn decided_means_looked_at(steps in prop::collection::vec(step(), 0..40)) {
            let mut suspect = Suspect::new();
            let mut open: Vec<(u64, u64)> = Vec::new();
            let look = |suspect: &mut Suspect, open: &mut Vec<(u64, u64)>, most: u64| {
                let Some(part) = suspect.begin() else { return };
                let done = most.min(part.last() - part.start() + 1);
                open.retain(|&(_, page)| page < part.start() || page >= part.start() + done);
                suspect.end(Span::from_bounds(part.start() + done, part.last()));
            };
            for step in steps {
                match step {
                    Step::Note(page) => {
                        prop_assert!(suspect.note(span(page, 1)));
                        open.push((suspect.noted(), page));
                    }
                    Step::Look(most) => look(&mut suspect, &mut open, most),
                }
                for &(ticket, _) in &open {
                    prop_assert!(!suspect.is_decided(ticket));
                }
                prop_assert_eq!(suspect.is_open(), !suspect.is_decided(suspect.noted()));
            }
            for _ in 0..20 {
                look(&mut suspect, &mut open, 1);
            }
            prop_assert!(suspect.is_decided(suspect.noted()));
        }
    }
}
