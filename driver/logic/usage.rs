// SPDX-License-Identifier: GPL-2.0
//! Counts who uses a device now, and who has since it was looked at last: in one word, so that
//! coming and going is one addition each.
//!
//! Bits 0 to 30 count the users, bit 31 says that the device is asleep, and bits 32 to 63 count
//! those who ever came.

/// Added to the word by a user who comes.
pub const COME: u64 = (1 << 32) | 1;
/// Subtracted by a user who goes.
pub const GO: u64 = 1;
/// The device is asleep, or about to be.
pub const ASLEEP: u64 = 1 << 31;

/// Whether the device is asleep.
pub const fn is_asleep(word: u64) -> bool {
    word & ASLEEP != 0
}

/// Users, of whom those of a device that is asleep wait.
pub const fn users(word: u64) -> u64 {
    word & (ASLEEP - 1)
}

/// Whether the device is used, or was since the word was `seen`.
pub const fn is_busy(word: u64, seen: u64) -> bool {
    word as u32 != 0 || word >> 32 != seen >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_until_nobody_has_come_since() {
        let come = |word: u64| word.wrapping_add(COME);
        let seen = 0;
        assert!(!is_busy(0, seen));
        let inside = come(0);
        assert!(is_busy(inside, seen) && is_busy(inside, inside));
        let gone = inside.wrapping_sub(GO);
        assert!(is_busy(gone, seen));
        assert!(!is_busy(gone, gone) && !is_asleep(gone));
        // Who comes to a device that is asleep is counted, and has it wake.
        let woken = come(gone | ASLEEP);
        assert!(is_asleep(woken) && users(woken) == 1 && users(gone | ASLEEP) == 0);
        assert!(is_busy(woken & !ASLEEP, gone));
    }

    #[test]
    fn counts_of_those_who_came_begin_anew() {
        let last = u64::from(u32::MAX) << 32;
        let next = last.wrapping_add(COME);
        assert_eq!(next, 1);
        assert!(is_busy(next.wrapping_sub(GO), last));
    }
}
