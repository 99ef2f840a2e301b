// SPDX-License-Identifier: GPL-2.0
//! Decides how much of a device's scarce resources one program or user must leave to others.
//!
//! A device has some hundred queues, and some MiB of memory for page tables. A program that takes
//! all of a kind would lock out all the others, and a fixed limit for each program would waste most
//! of it. So each context may have a fair number in any case. Beyond that, it may take what is
//! free, as long as it leaves a few for other contexts; and a user with many contexts leaves a few
//! for other users.
//!
//! Of the numbers of owners of VRAM, a user can have as many as stay free.
//!
//! Memory for page tables is set aside when a context is opened, enough for a first mapping
//! ([`TABLES_EACH`]). A reserve is kept besides: half of it for contexts to come, half for the
//! tables of contexts that need more. Programs have what is left after that.

/// Queues that a context or user may have in any case. A destroyed queue whose doorbell is still
/// mapped counts too.
const FAIR_QUEUES: u64 = 256;
/// Queues that a context with `FAIR_QUEUES` leaves to other contexts, of this user and of others.
const SPARE_FOR_CONTEXTS: u64 = 20;
/// Queues that a user with `FAIR_QUEUES` leaves to other users.
const SPARE_FOR_USERS: u64 = 4;

/// Returns how many queues must stay free, given how many the context and its user have.
pub const fn spare_queues(context_has: u64, user_has: u64) -> u64 {
    if context_has >= FAIR_QUEUES {
        SPARE_FOR_CONTEXTS
    } else if user_has >= FAIR_QUEUES {
        SPARE_FOR_USERS
    } else {
        0
    }
}

/// Returns whether a user who has the numbers of so many owners of VRAM can have another one while
/// `free` of them are. As many more must be free, so that no user can have all of them.
pub const fn has_owner(free: u64, has: u64) -> bool {
    free > has
}

/// Frames that are set aside for the page tables of each context: the root, and the tables for a
/// page of the program's and for one of the driver's.
pub const TABLES_EACH: u64 = 8;

/// Use of a device's memory, in frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameUse {
    /// Frames that are not in use.
    pub free: u64,
    /// Frames that are kept for tables: half for future contexts, half for tables beyond those that
    /// are set aside.
    pub reserve: u64,
    /// Number of contexts. For each, [`TABLES_EACH`] frames are set aside.
    pub contexts: u64,
    /// Frames that are set aside and not in use.
    pub unused: u64,
    /// Tables beyond those that are set aside.
    pub beyond: u64,
}

impl FrameUse {
    /// Returns how many frames are kept for future contexts.
    const fn for_newcomers(&self) -> u64 {
        let set_aside = self.contexts.saturating_mul(TABLES_EACH);
        (self.reserve / 2).saturating_sub(set_aside)
    }

    /// Returns how many frames programs can have.
    pub const fn for_programs(&self) -> u64 {
        let beyond = self.reserve.saturating_sub(self.reserve / 2);
        let kept = self
            .unused
            .saturating_add(self.for_newcomers())
            .saturating_add(beyond.saturating_sub(self.beyond));
        self.free.saturating_sub(kept)
    }

    /// Returns whether a context that has used up its own frames can have a table.
    pub const fn has_table(&self) -> bool {
        self.has_tables(1)
    }

    /// Returns whether such a context can have `count` tables.
    pub const fn has_tables(&self, count: u64) -> bool {
        let kept = self.unused.saturating_add(self.for_newcomers());
        count <= self.free.saturating_sub(kept)
    }

    /// Returns whether a user who has `others` contexts can have another one. As many more must be
    /// possible, so that no user can have all of them.
    pub const fn has_context(&self, others: u64) -> bool {
        self.free.saturating_sub(self.unused) / TABLES_EACH > others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with 1 MiB.
    const SMALL: FrameUse = FrameUse {
        free: 256,
        reserve: 16,
        contexts: 0,
        unused: 0,
        beyond: 0,
    };

    /// Opens contexts until no more can be opened. Returns how many, and what is left.
    fn open_all(mut frames: FrameUse) -> (u64, FrameUse) {
        let mut mine = 0;
        while frames.has_context(mine) {
            mine += 1;
            frames.contexts += 1;
            frames.unused += TABLES_EACH;
            // One frame is for the root.
            frames.free -= 1;
            frames.unused -= 1;
        }
        (mine, frames)
    }

    #[test]
    fn no_user_has_all_contexts() {
        // Programs have all frames that they can have.
        assert_eq!(SMALL.for_programs(), 240);
        let full = FrameUse { free: 16, ..SMALL };
        assert_eq!(full.for_programs(), 0);
        let (first, frames) = open_all(full);
        let (second, frames) = open_all(frames);
        assert_eq!((first, second, frames.for_programs()), (1, 1, 0));
        let (first, frames) = open_all(SMALL);
        let (second, _) = open_all(frames);
        assert_eq!((first, second), (16, 8));
    }

    #[test]
    fn tables_leave_the_others_theirs() {
        let (_, mut frames) = open_all(FrameUse { free: 16, ..SMALL });
        assert!(frames.has_table());
        while frames.has_table() {
            frames.free -= 1;
            frames.beyond += 1;
        }
        // A context that is open has its own frames, and another one can be opened.
        assert!(frames.free >= frames.unused + TABLES_EACH || frames.contexts >= 1);
        assert_eq!(frames.free, frames.unused + frames.for_newcomers());
        assert_eq!(frames.for_programs(), 0);
    }

    proptest::proptest! {
        #[test]
        fn nobody_gets_what_is_set_aside(
            free in 0u64..100,
            reserve in 0u64..50,
            contexts in 0u64..8,
            used in 0u64..64,
            beyond in 0u64..50,
            others in 0u64..20,
        ) {
            let unused = (contexts * TABLES_EACH).saturating_sub(used);
            let frames = FrameUse { free, reserve, contexts, unused, beyond };
            proptest::prop_assert!(frames.for_programs() <= free.saturating_sub(unused));
            if frames.has_table() {
                proptest::prop_assert!(free > unused);
            }
            if frames.has_context(others) {
                proptest::prop_assert!(free >= unused + TABLES_EACH * (others + 1));
            }
        }
    }

    #[test]
    fn numbers_are_left_to_others() {
        let mut free = 1_023;
        let mut take_all = || {
            let mut mine = 0;
            while has_owner(free, mine) {
                mine += 1;
                free -= 1;
            }
            mine
        };
        assert_eq!([take_all(), take_all(), take_all()], [512, 256, 128]);
    }

    #[test]
    fn queues_are_left_to_others() {
        assert_eq!(spare_queues(0, 0), 0);
        assert_eq!(spare_queues(255, 255), 0);
        assert_eq!(spare_queues(255, 256), 4);
        assert_eq!(spare_queues(0, 1_016), 4);
        assert_eq!(spare_queues(256, 256), 20);
        assert_eq!(spare_queues(1_000, 2_000), 20);
    }
}
