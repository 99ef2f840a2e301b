// SPDX-License-Identifier: GPL-2.0
//! Decides when a context is held off, because its queues stop by faults again and again.
//!
//! Each such stop costs the driver and the device work that nobody has a use for: a slot is given
//! and taken, the reason is looked for, the program is told. So a context whose queues stop more
//! often than the administrator allows gets no slot for a while. Faults that are served do not
//! count, however many there are.

/// Time in which faults are counted together, in nanoseconds.
pub const PERIOD: u64 = 10_000_000_000;

/// Limits that the administrator sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strategy {
    /// Stops by faults that a context may have in [`PERIOD`]; 0: as many as it likes.
    pub limit: u32,
    /// How long a context with more of them is held off, in nanoseconds.
    pub hold_off: u64,
}

/// The faults of one context.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trouble {
    /// When the present period began.
    since: u64,
    count: u32,
    held_until: u64,
}

impl Trouble {
    /// Makes a context that had no faults.
    pub const fn new() -> Self {
        Self {
            since: 0,
            count: 0,
            held_until: 0,
        }
    }

    /// Records a fault that stopped a queue. Returns whether the context is held off because of
    /// it.
    pub fn note(&mut self, now: u64, strategy: Strategy) -> bool {
        if now.saturating_sub(self.since) >= PERIOD {
            self.since = now;
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        if strategy.limit == 0 || self.count <= strategy.limit {
            return false;
        }
        // The next period begins when the context may go on.
        self.held_until = now.saturating_add(strategy.hold_off);
        self.since = self.held_until;
        self.count = 0;
        true
    }

    /// Returns the time until which the context is held off; 0: it never was.
    pub const fn held_until(&self) -> u64 {
        self.held_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRATEGY: Strategy = Strategy {
        limit: 3,
        hold_off: 1_000_000,
    };

    #[test]
    fn a_context_within_the_limit_is_left_alone() {
        let mut trouble = Trouble::new();
        for round in 0..100 {
            for fault in 0..3 {
                assert!(!trouble.note(round * PERIOD + fault, STRATEGY));
            }
        }
        assert_eq!(trouble.held_until(), 0);
    }

    #[test]
    fn one_fault_too_many_holds_it_off() {
        let mut trouble = Trouble::new();
        let now = 5 * PERIOD;
        for _ in 0..3 {
            assert!(!trouble.note(now, STRATEGY));
        }
        assert!(trouble.note(now, STRATEGY));
        assert_eq!(trouble.held_until(), now + 1_000_000);
        // It then has as many faults again. Those of queues that were in slots meanwhile count.
        for _ in 0..3 {
            assert!(!trouble.note(now + 10, STRATEGY));
        }
        assert!(trouble.note(now + 2_000_000, STRATEGY));
    }

    #[test]
    fn no_limit_and_odd_times() {
        let mut trouble = Trouble::new();
        let none = Strategy {
            limit: 0,
            hold_off: u64::MAX,
        };
        for now in [0, u64::MAX, 0, 1] {
            assert!(!trouble.note(now, none));
        }
        let least = Strategy { limit: 1, ..none };
        let mut trouble = Trouble::new();
        assert!(!trouble.note(u64::MAX, least));
        assert!(trouble.note(u64::MAX, least));
        assert_eq!(trouble.held_until(), u64::MAX);
    }
}
