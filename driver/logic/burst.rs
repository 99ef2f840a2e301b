// SPDX-License-Identifier: GPL-2.0
//! Decides when the interrupt thread rests.
//!
//! A program can make its device raise interrupts without end. The thread that handles them would
//! then never leave its CPU to others. So the thread counts interrupts that follow the previous one
//! within `AT_ONCE`. From `MANY` in a row on, it rests after each of them for twice as long as
//! the handling took: the program gets a third of a CPU at most.
//!
//! The rest itself does not count as a pause of the device. Otherwise each rest would end the burst
//! that it was meant for.

/// Interrupts that may follow each other without a rest.
const MANY: u32 = 16;
/// Shortest time between two interrupts that counts as a pause, in nanoseconds.
const AT_ONCE: u64 = 200_000;
/// Shortest and longest rest, in nanoseconds. Between the two a rest is twice as long as the work
/// before it.
const REST: (u64, u64) = (100_000, 1_000_000);

/// A sequence of handled interrupts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Burst {
    in_a_row: u32,
    ended: u64,
}

impl Burst {
    /// Makes a sequence without interrupts.
    pub const fn new() -> Self {
        Self {
            in_a_row: 0,
            ended: 0,
        }
    }

    /// Records an interrupt that was handled from `begun` to `ended`. Returns how long to rest
    /// before the next one, in nanoseconds. So a program that raises interrupts all the time gets
    /// only a part of a processor's time.
    pub fn handled(&mut self, begun: u64, ended: u64) -> u64 {
        let follows = begun.saturating_sub(self.ended) < AT_ONCE;
        self.in_a_row = if follows {
            self.in_a_row.saturating_add(1)
        } else {
            0
        };
        let rest = if self.in_a_row < MANY {
            0
        } else {
            let took = ended.saturating_sub(begun);
            took.saturating_mul(2).clamp(REST.0, REST.1)
        };
        // The rest does not count as a pause.
        self.ended = ended.saturating_add(rest);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_burst_is_held_up() {
        let mut burst = Burst::new();
        let mut now = 1_000_000_000;
        for _ in 0..100 {
            assert_eq!(burst.handled(now, now + 30_000), 0);
            now += 30_000 + AT_ONCE;
        }
        for _ in 0..MANY {
            assert_eq!(burst.handled(now, now + 30_000), 0);
            now += 31_000;
        }
        for took in [1_000, 30_000, 400_000, 5_000_000] {
            let rest = burst.handled(now, now + took);
            assert_eq!(rest, (2 * took).clamp(100_000, 1_000_000));
            now += took + rest + 10;
        }
        now += AT_ONCE;
        assert_eq!(burst.handled(now, now + 5_000_000), 0);
        // Impossible times.
        assert_eq!(burst.handled(u64::MAX, 0), 0);
        assert_eq!(Burst::new().handled(0, u64::MAX), 0);
    }
}
