// SPDX-License-Identifier: GPL-2.0
//! Which pages of the device's memory are taken: a bitmap, so that giving one back needs no memory.

use core::ops::DerefMut;

const BITS: u64 = u64::BITS as u64;

/// Words of a bitmap for `frames` frames.
pub const fn words(frames: u64) -> u64 {
    frames.div_ceil(BITS)
}

/// Frames, some of them taken: a bit set in the bitmap.
#[derive(Debug)]
pub struct Frames<W> {
    words: W,
    frames: u64,
    free: u64,
}

impl<W: DerefMut<Target = [u64]>> Frames<W> {
    /// As many of `frames` as `words`, all zero, have bits for; all free.
    pub fn new(words: W, frames: u64) -> Self {
        let room = (words.len() as u64).saturating_mul(BITS);
        let frames = frames.min(room);
        Self {
            words,
            frames,
            free: frames,
        }
    }

    /// Frames that are free.
    pub const fn free(&self) -> u64 {
        self.free
    }

    fn word(&self, index: u64) -> u64 {
        let word = usize::try_from(index).ok();
        word.and_then(|index| self.words.get(index))
            .copied()
            .unwrap_or(u64::MAX)
    }

    fn is_taken(&self, frame: u64) -> bool {
        let bit = 1_u64.wrapping_shl((frame % BITS) as u32);
        frame >= self.frames || self.word(frame / BITS) & bit != 0
    }

    /// The first taken frame from `first` up to, not including, `end`.
    fn first_taken(&self, first: u64, end: u64) -> Option<u64> {
        let mut at = first;
        while at < end {
            if at % BITS == 0 && self.word(at / BITS) == 0 && at.saturating_add(BITS) <= end {
                at = at.saturating_add(BITS);
            } else if self.is_taken(at) {
                return Some(at);
            } else {
                at = at.saturating_add(1);
            }
        }
        None
    }

    fn set(&mut self, first: u64, count: u64, taken: bool) {
        let end = first.saturating_add(count).min(self.frames);
        for frame in first..end {
            if self.is_taken(frame) == taken {
                continue;
            }
            let bit = 1_u64.wrapping_shl((frame % BITS) as u32);
            let word = usize::try_from(frame / BITS).ok();
            if let Some(word) = word.and_then(|index| self.words.get_mut(index)) {
                *word ^= bit;
                self.free = if taken {
                    self.free.saturating_sub(1)
                } else {
                    self.free.saturating_add(1)
                };
            }
        }
    }

    /// Takes `count` neighbouring frames, the lowest ones that begin at a multiple of `align`.
    pub fn take(&mut self, count: u64, align: u64) -> Option<u64> {
        if count == 0 || count > self.free {
            return None;
        }
        let mut first = 0_u64;
        loop {
            let end = first.checked_add(count).filter(|&end| end <= self.frames)?;
            match self.first_taken(first, end) {
                None => break,
                Some(taken) => {
                    first = taken.checked_add(1)?.checked_next_multiple_of(align)?;
                }
            }
        }
        self.set(first, count, true);
        Some(first)
    }

    /// Takes the highest free frame: single ones stay out of the way of long ranges.
    pub fn take_top(&mut self) -> Option<u64> {
        let words = words(self.frames);
        for index in (0..words).rev() {
            let first = index.saturating_mul(BITS);
            let in_use = self.word(index);
            if in_use == u64::MAX {
                continue;
            }
            let end = first.saturating_add(BITS).min(self.frames);
            if let Some(frame) = (first..end).rev().find(|&frame| !self.is_taken(frame)) {
                self.set(frame, 1, true);
                return Some(frame);
            }
        }
        None
    }

    /// Gives frames back.
    pub fn give(&mut self, first: u64, count: u64) {
        self.set(first, count, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(count: u64) -> Frames<Vec<u64>> {
        Frames::new(vec![0; words(count) as usize], count)
    }

    #[test]
    fn edges() {
        let mut f = frames(100);
        assert_eq!(f.take(0, 1), None);
        assert_eq!(f.take(101, 1), None);
        assert_eq!(f.take(100, 1), Some(0));
        assert_eq!((f.take(1, 1), f.take_top(), f.free()), (None, None, 0));
        f.give(50, 10);
        assert_eq!(f.take(11, 1), None);
        assert_eq!(f.take(4, 8), Some(56));
        assert_eq!(f.take_top(), Some(55));
        assert_eq!(f.take(u64::MAX, 1), None);
        // Given back twice, or beyond the end: no frame counts twice.
        f.give(50, 2);
        f.give(99, u64::MAX);
        assert_eq!(f.free(), 6);
    }

    #[test]
    fn alignment_and_top() {
        let mut f = frames(2048);
        assert_eq!(f.take_top(), Some(2047));
        assert_eq!(f.take(3, 512), Some(0));
        assert_eq!(f.take(512, 512), Some(512));
        assert_eq!(f.take(512, 512), Some(1024));
        assert_eq!(f.take(512, 512), None);
        assert_eq!(f.take(511, 1), Some(1536));
    }

    proptest! {
        #[test]
        fn ranges_are_disjoint(asks in proptest::collection::vec((1u64..80, 0u32..7, any::<bool>(), any::<bool>()), 1..60)) {
            let mut f = frames(700);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (count, align, top, give) in asks {
                if give && !held.is_empty() {
                    let (first, count) = held.swap_remove(0);
                    f.give(first, count);
                }
                let got = if top { f.take_top().map(|x| (x, 1)) } else { f.take(count, 1 << align).map(|x| (x, count)) };
                if let Some((first, count)) = got {
                    prop_assert!(first + count <= 700);
                    prop_assert!(top || first % (1 << align) == 0);
                    for &(other, n) in &held {
                        prop_assert!(first + count <= other || other + n <= first);
                    }
                    held.push((first, count));
                } else if !top && align == 0 {
                    // Really no gap.
                    let taken: Vec<bool> = (0..700).map(|x| held.iter().any(|&(o, n)| x >= o && x < o + n)).collect();
                    let mut run = 0;
                    for t in taken { run = if t { 0 } else { run + 1 }; prop_assert!(run < count); }
                }
                prop_assert_eq!(f.free(), 700 - held.iter().map(|h| h.1).sum::<u64>());
            }
        }
    }
}
