// SPDX-License-Identifier: GPL-2.0
//! Where memory that a device has touched is to be: in the host's memory, or in the device's.
//!
//! [`decide`] is a pure function of what the program has advised, of what happened to the block of
//! 2 MiB before, and of the room in VRAM. The same input always gives the same answer, and the
//! [`Rule`] that gave it, which the program can ask for.
//!
//! *Thrashing* is memory that CPU and device take from each other: it goes home because the CPU
//! touches it, as soon as it has moved to the device. *Crowded* is memory that was evicted to make
//! room as soon as it was there. Both are told by counts: [`LIMIT`] times while the context had
//! [`PERIOD`] faults served. Such a block stays in the host's memory, where both sides reach it,
//! until so many more were served. So however little room there is, a device that needs several
//! blocks at once gets them in the end.

use crate::uapi;

/// Times that a block may go home within a period.
pub const LIMIT: u32 = 4;
/// The period: faults of the context that are served.
pub const PERIOD: u64 = 1024;

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the host's memory.
    Host,
    /// In the device's memory.
    Device,
}

/// Advice that the program has given for an address: a set of `PINMAP_ADVICE_` bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advice(u32);

impl Advice {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The host's memory is the preferred location.
    pub const HOST: Self = Self(uapi::PINMAP_ADVICE_PREFER_HOST);

    const ALL: u32 = uapi::PINMAP_ADVICE_PREFER_HOST
        | uapi::PINMAP_ADVICE_PREFER_DEVICE
        | uapi::PINMAP_ADVICE_ACCESSED_BY
        | uapi::PINMAP_ADVICE_READ_MOSTLY;

    /// Takes the bits; `None`: one of them is unknown.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits & !Self::ALL == 0 {
            Some(Self(bits))
        } else {
            None
        }
    }

    /// Returns the bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// Returns whether both places are preferred, which makes no sense.
    pub const fn is_contradictory(self) -> bool {
        self.has(uapi::PINMAP_ADVICE_PREFER_HOST) && self.prefers_device()
    }

    /// Returns whether it is read mostly.
    pub const fn is_read_mostly(self) -> bool {
        self.has(uapi::PINMAP_ADVICE_READ_MOSTLY)
    }

    const fn prefers_device(self) -> bool {
        self.has(uapi::PINMAP_ADVICE_PREFER_DEVICE)
    }

    /// Whether an access by the device leaves the memory on the host.
    const fn keeps_on_host(self, write: bool) -> bool {
        self.has(uapi::PINMAP_ADVICE_PREFER_HOST)
            || self.has(uapi::PINMAP_ADVICE_ACCESSED_BY) && !self.prefers_device()
            || self.is_read_mostly() && !write
    }
}

/// How often something has happened to a block, packed into a word, so that it can be kept where
/// several processors read and write it without a lock: when it happened last, counted in faults
/// that were served, and how often within a period of the time before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History(u64);

const BITS: u32 = 8;
const MOST: u64 = (1 << BITS) - 1;

impl History {
    /// Unpacks a word; 0: it has never happened.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Returns the word.
    pub const fn bits(self) -> u64 {
        self.0
    }

    fn last(self) -> u64 {
        self.0.wrapping_shr(BITS)
    }

    fn count(self, now: u64) -> u32 {
        if now.saturating_sub(self.last()) < PERIOD {
            (self.0 & MOST) as u32
        } else {
            0
        }
    }

    /// Returns whether it has ever happened.
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }

    /// Returns the history after it has happened once more, when `now` faults were served.
    #[must_use]
    pub fn again(self, now: u64) -> Self {
        let count = u64::from(self.count(now)).saturating_add(1).min(MOST);
        Self(now.wrapping_shl(BITS) | count)
    }

    /// Returns whether it has happened too often, when `now` faults were served.
    pub fn is_too_often(self, now: u64) -> bool {
        self.count(now) >= LIMIT
    }
}

/// The rule that decided, by its number in the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rule {
    /// Nothing was decided yet.
    None = uapi::PINMAP_RULE_NONE,
    /// The memory cannot move.
    Fixed = uapi::PINMAP_RULE_FIXED,
    /// The program wants it reached where it is.
    Advised = uapi::PINMAP_RULE_ADVISED,
    /// CPU and device take it from each other, or two devices do.
    Thrashing = uapi::PINMAP_RULE_THRASHING,
    /// There is no room in VRAM, and nothing that could go home.
    NoRoom = uapi::PINMAP_RULE_NO_ROOM,
    /// The device has touched it, and the program prefers it there.
    Preferred = uapi::PINMAP_RULE_PREFERRED,
    /// The device has touched it.
    Touched = uapi::PINMAP_RULE_TOUCHED,
    /// The program has moved it.
    Prefetched = uapi::PINMAP_RULE_PREFETCHED,
    /// The CPU has touched it.
    Home = uapi::PINMAP_RULE_HOME,
    /// Made room for others.
    Evicted = uapi::PINMAP_RULE_EVICTED,
    /// Made room for others again and again.
    Crowded = uapi::PINMAP_RULE_CROWDED,
    /// The device has accessed it atomically.
    Atomic = uapi::PINMAP_RULE_ATOMIC,
}

/// Facts that are known when a device has touched memory.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Advice of the program.
    pub advice: Advice,
    /// Whether the device writes.
    pub write: bool,
    /// Whether it does so atomically.
    pub atomic: bool,
    /// How often the block has gone home because the CPU touched it.
    pub touched: History,
    /// How often another device was who touched it.
    pub taken: History,
    /// How often the block was evicted.
    pub evicted: History,
    /// Whether the memory can move at all.
    pub can_move: bool,
    /// Pages of VRAM that are free, or can be made so.
    pub room: u64,
    /// Pages of VRAM that are needed.
    pub needed: u64,
    /// Faults of the context that were served.
    pub now: u64,
}

/// Decides where memory is to be that a device has touched. The ABI's `enum pinmap_rule` has the
/// order of the rules.
pub fn decide(facts: Facts) -> (Place, Rule) {
    let prefers_device = facts.advice.prefers_device();
    // What two devices prefer would otherwise never come to rest.
    let thrashes = if prefers_device {
        facts.taken
    } else {
        facts.touched
    };
    if !facts.can_move {
        (Place::Host, Rule::Fixed)
    } else if facts.atomic && facts.room >= facts.needed {
        (Place::Device, Rule::Atomic)
    } else if facts.advice.keeps_on_host(facts.write) {
        (Place::Host, Rule::Advised)
    } else if facts.evicted.is_too_often(facts.now) {
        (Place::Host, Rule::Crowded)
    } else if thrashes.is_too_often(facts.now) {
        (Place::Host, Rule::Thrashing)
    } else if facts.room < facts.needed {
        (Place::Host, Rule::NoRoom)
    } else if prefers_device {
        (Place::Device, Rule::Preferred)
    } else {
        (Place::Device, Rule::Touched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUIET: Facts = Facts {
        advice: Advice::NONE,
        write: false,
        atomic: false,
        touched: History(0),
        taken: History(0),
        evicted: History(0),
        can_move: true,
        room: 16,
        needed: 16,
        now: 5,
    };

    fn often() -> History {
        (0..LIMIT).fold(History::default(), |history, _| history.again(QUIET.now))
    }

    fn advice(bits: u32) -> Advice {
        Advice::from_bits(bits).unwrap()
    }

    #[test]
    fn each_rule() {
        assert_eq!(decide(QUIET), (Place::Device, Rule::Touched));
        let fixed = Facts {
            can_move: false,
            ..QUIET
        };
        assert_eq!(decide(fixed), (Place::Host, Rule::Fixed));
        let full = Facts { room: 15, ..QUIET };
        assert_eq!(decide(full), (Place::Host, Rule::NoRoom));
        let thrashing = Facts {
            touched: often(),
            ..QUIET
        };
        assert_eq!(decide(thrashing), (Place::Host, Rule::Thrashing));
        let crowded = Facts {
            evicted: often(),
            ..QUIET
        };
        assert_eq!(decide(crowded), (Place::Host, Rule::Crowded));
    }

    #[test]
    fn atomic_accesses_are_made_on_the_device() {
        let atomic = Facts {
            advice: Advice::HOST,
            atomic: true,
            evicted: often(),
            ..QUIET
        };
        assert_eq!(decide(atomic), (Place::Device, Rule::Atomic));
        let fixed = Facts {
            can_move: false,
            ..atomic
        };
        assert_eq!(decide(fixed), (Place::Host, Rule::Fixed));
        let full = Facts { room: 15, ..atomic };
        assert_eq!(decide(full), (Place::Host, Rule::Advised));
    }

    #[test]
    fn advice_counts() {
        let with = |bits, write| {
            decide(Facts {
                advice: advice(bits),
                write,
                ..QUIET
            })
        };
        for write in [false, true] {
            let host = (Place::Host, Rule::Advised);
            assert_eq!(with(uapi::PINMAP_ADVICE_PREFER_HOST, write), host);
            assert_eq!(with(uapi::PINMAP_ADVICE_ACCESSED_BY, write), host);
            let device = (Place::Device, Rule::Preferred);
            assert_eq!(with(uapi::PINMAP_ADVICE_PREFER_DEVICE, write), device);
            let both = uapi::PINMAP_ADVICE_PREFER_DEVICE | uapi::PINMAP_ADVICE_ACCESSED_BY;
            assert_eq!(with(both, write), device);
        }
        let mostly = uapi::PINMAP_ADVICE_READ_MOSTLY;
        assert_eq!(with(mostly, false), (Place::Host, Rule::Advised));
        assert_eq!(with(mostly, true), (Place::Device, Rule::Touched));
    }

    #[test]
    fn preference_outweighs_thrashing_but_no_other_device_nor_crowding() {
        let wanted = Facts {
            advice: advice(uapi::PINMAP_ADVICE_PREFER_DEVICE),
            touched: often(),
            ..QUIET
        };
        assert_eq!(decide(wanted), (Place::Device, Rule::Preferred));
        let taken = Facts {
            taken: often(),
            ..wanted
        };
        assert_eq!(decide(taken), (Place::Host, Rule::Thrashing));
        let crowded = Facts {
            evicted: often(),
            ..wanted
        };
        assert_eq!(decide(crowded), (Place::Host, Rule::Crowded));
    }

    #[test]
    fn advice_has_known_bits_only() {
        assert_eq!(Advice::from_bits(1 << 4), None);
        let both = uapi::PINMAP_ADVICE_PREFER_HOST | uapi::PINMAP_ADVICE_PREFER_DEVICE;
        assert!(advice(both).is_contradictory());
        assert!(!Advice::HOST.is_contradictory());
    }

    #[test]
    fn often_begins_and_ends() {
        let mut history = History::default();
        for served in 0..u64::from(LIMIT) {
            assert!(!history.is_too_often(served));
            history = history.again(served);
        }
        let last = u64::from(LIMIT - 1);
        assert!(history.is_too_often(last + PERIOD - 1));
        assert!(!history.is_too_often(last + PERIOD));
    }

    proptest! {
        #[test]
        fn now_and_then_is_not_often(start in 0_u64..1 << 50, steps in 1_usize..100) {
            let mut history = History::default();
            let mut now = start;
            for _ in 0..steps {
                history = history.again(now);
                now += PERIOD;
                prop_assert!(!history.is_too_often(now));
            }
        }

        #[test]
        fn nothing_panics(bits: u64, now: u64, room: u64, needed: u64) {
            let history = History::from_bits(bits).again(now);
            prop_assert_eq!(History::from_bits(history.bits()), history);
            let _ = decide(Facts { room, needed, now, touched: history, ..QUIET });
        }
    }
}
