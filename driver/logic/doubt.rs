// SPDX-License-Identifier: GPL-2.0
//! Ranges of a registration that may have gone away, until a worker has checked them.

use super::span::Span;

/// The changed part of a registration that was not checked yet, and the number of changes that are
/// decided.
#[derive(Clone, Debug, Default)]
pub struct Doubt {
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

impl Doubt {
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
        let mut doubt = Doubt::new();
        assert_eq!(doubt.begin(), None);
        doubt.note(span(0, 4096));
        doubt.note(span(8192, 4096));
        assert_eq!(doubt.begin(), Some(span(0, 12288)));
        assert_eq!(doubt.begin(), None);
        doubt.end(None);
        assert!(doubt.is_decided(2) && !doubt.is_open());
    }

    #[test]
    fn what_is_noted_meanwhile_is_not_decided() {
        let mut doubt = Doubt::new();
        doubt.note(span(0, 4096));
        assert!(doubt.begin().is_some());
        doubt.note(span(0, 4096));
        doubt.end(None);
        assert!(doubt.is_decided(1) && !doubt.is_decided(2) && doubt.is_open());
        doubt.close();
        assert!(doubt.is_decided(2) && doubt.begin().is_none());
        assert!(!doubt.note(span(0, 4096)) && !doubt.is_open());
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
            let mut doubt = Doubt::new();
            let mut open: Vec<(u64, u64)> = Vec::new();
            let look = |doubt: &mut Doubt, open: &mut Vec<(u64, u64)>, most: u64| {
                let Some(part) = doubt.begin() else { return };
                let done = most.min(part.last() - part.start() + 1);
                open.retain(|&(_, page)| page < part.start() || page >= part.start() + done);
                doubt.end(Span::from_bounds(part.start() + done, part.last()));
            };
            for step in steps {
                match step {
                    Step::Note(page) => {
                        prop_assert!(doubt.note(span(page, 1)));
                        open.push((doubt.noted(), page));
                    }
                    Step::Look(most) => look(&mut doubt, &mut open, most),
                }
                for &(ticket, _) in &open {
                    prop_assert!(!doubt.is_decided(ticket));
                }
                prop_assert_eq!(doubt.is_open(), !doubt.is_decided(doubt.noted()));
            }
            for _ in 0..20 {
                look(&mut doubt, &mut open, 1);
            }
            prop_assert!(doubt.is_decided(doubt.noted()));
        }
    }
}
