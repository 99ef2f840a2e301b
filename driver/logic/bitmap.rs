// SPDX-License-Identifier: GPL-2.0
//! A bitmap of the pages of device memory that are taken. Freeing a page allocates nothing.

use core::ops::DerefMut;

const BITS: u64 = u64::BITS as u64;

/// Returns the number of words of a bitmap for `frames` frames.
pub const fn words(frames: u64) -> u64 {
    frames.div_ceil(BITS)
}

/// A bitmap of frames; a set bit is a frame that is taken.
#[derive(Debug)]
pub struct Bitmap<W> {
    words: W,
    frames: u64,
    free: u64,
    /// No frame is free in words before `low`, nor behind `high`.
    low: u64,
    high: u64,
}

impl<W: DerefMut<Target = [u64]>> Bitmap<W> {
    /// Makes a bitmap in `words`, which must be zero. All frames are free; there are at most as
    /// many as `words` have bits.
    pub fn new(words: W, frames: u64) -> Self {
        let room = (words.len() as u64).saturating_mul(BITS);
        let frames = frames.min(room);
        Self {
            words,
            frames,
            free: frames,
            low: 0,
            high: frames.saturating_sub(1) / BITS,
        }
    }

    /// Returns how many frames are free.
    pub const fn free(&self) -> u64 {
        self.free
    }

    /// Returns a word of the bitmap, in which the frames that are `spare` count as free, and those
    /// behind the last one as taken.
    fn word(&self, index: u64, spare: &impl Fn(u64) -> u64) -> u64 {
        let word = usize::try_from(index).ok();
        let taken = word.and_then(|index| self.words.get(index)).copied();
        let first = index.saturating_mul(BITS);
        taken.map_or(u64::MAX, |taken| {
            (taken & !spare(index)) | !mask(first, first, self.frames.max(first))
        })
    }

    /// Finds the first frame in `first..end` that is taken or, as `is_taken` says, free.
    fn first(
        &self,
        is_taken: bool,
        first: u64,
        end: u64,
        spare: &impl Fn(u64) -> u64,
    ) -> Option<u64> {
        let mut at = first;
        while at < end {
            let word = self.word(at / BITS, spare);
            let found = if is_taken { word } else { !word };
            let start = at.saturating_sub(at % BITS);
            let found = found & mask(start, at, end);
            if found != 0 {
                return Some(start.saturating_add(found.trailing_zeros().into()));
            }
            at = start.saturating_add(BITS);
        }
        None
    }

    fn set(&mut self, first: u64, count: u64, taken: bool) {
        let end = first.saturating_add(count).min(self.frames);
        let mut at = first;
        while at < end {
            let (index, start) = (at / BITS, at.saturating_sub(at % BITS));
            let mask = mask(start, at, end);
            let word = usize::try_from(index).ok();
            if let Some(word) = word.and_then(|index| self.words.get_mut(index)) {
                let changed = if taken { mask & !*word } else { mask & *word };
                *word ^= changed;
                let count = changed.count_ones().into();
                if taken {
                    self.free = self.free.saturating_sub(count);
                } else {
                    self.free = self.free.saturating_add(count);
                    self.low = self.low.min(index);
                    self.high = self.high.max(index);
                }
            }
            at = start.saturating_add(BITS);
        }
    }

    /// Takes the lowest `count` neighbouring frames that begin at a multiple of `align`.
    pub fn take(&mut self, count: u64, align: u64) -> Option<u64> {
        if count == 0 || count > self.free {
            return None;
        }
        let lowest = self.first(false, self.low.saturating_mul(BITS), self.frames, &none)?;
        self.low = lowest / BITS;
        let first = self.find(lowest, count, align, &none)?;
        self.set(first, count, true);
        Some(first)
    }

    /// Finds the lowest `count` neighbouring frames, at or behind `from`, that begin at a multiple
    /// of `align` and are free or `spare`: these count as free, a bit for each in the word whose
    /// index it is given.
    pub fn find(
        &self,
        from: u64,
        count: u64,
        align: u64,
        spare: &impl Fn(u64) -> u64,
    ) -> Option<u64> {
        let mut first = from.checked_next_multiple_of(align)?;
        loop {
            let end = first.checked_add(count).filter(|&end| end <= self.frames)?;
            let Some(taken) = self.first(true, first, end, spare) else {
                return Some(first);
            };
            let free = self.first(false, taken, self.frames, spare)?;
            first = free.checked_next_multiple_of(align)?;
        }
    }

    /// Finds the first frame, at or behind `from`, that is neither free nor `spare`, or the end.
    pub fn end(&self, from: u64, spare: &impl Fn(u64) -> u64) -> u64 {
        self.first(true, from, self.frames, spare)
            .unwrap_or(self.frames)
    }

    /// Returns the runs of frames that are taken and not `spare`, in ascending order: the first,
    /// and how many.
    pub fn taken<'a>(
        &'a self,
        spare: impl Fn(u64) -> u64 + 'a,
    ) -> impl Iterator<Item = (u64, u64)> + 'a {
        let mut at = 0;
        core::iter::from_fn(move || {
            let first = self.first(true, at, self.frames, &spare)?;
            at = self
                .first(false, first, self.frames, &spare)
                .unwrap_or(self.frames);
            Some((first, at.saturating_sub(first)))
        })
    }

    /// Takes the highest free frame, so that single frames stay out of the way of long ranges.
    pub fn take_top(&mut self) -> Option<u64> {
        while self.free != 0 {
            let free = !self.word(self.high, &none);
            if free != 0 {
                let top = BITS
                    .saturating_sub(1)
                    .saturating_sub(free.leading_zeros().into());
                let frame = self.high.saturating_mul(BITS).saturating_add(top);
                self.set(frame, 1, true);
                return Some(frame);
            }
            self.high = self.high.checked_sub(1)?;
        }
        None
    }

    /// Takes frames, whether they are free or not.
    pub fn take_all(&mut self, first: u64, count: u64) {
        self.set(first, count, true);
    }

    /// Returns a bit for each frame of a word that is taken.
    pub fn taken_in(&self, index: u64) -> u64 {
        self.word(index, &none)
    }

    /// Frees frames.
    pub fn give(&mut self, first: u64, count: u64) {
        self.set(first, count, false);
    }
}

/// Says that no frame of a word is spare.
pub const fn none(_index: u64) -> u64 {
    0
}

/// Returns the bits of the frames `first..end` in the word that begins with frame `start`, which is
/// not above `first`.
fn mask(start: u64, first: u64, end: u64) -> u64 {
    let below = |frame: u64| match frame.saturating_sub(start) {
        bits if bits < BITS => 1_u64.wrapping_shl(bits as u32).wrapping_sub(1),
        _ => u64::MAX,
    };
    below(end) & !below(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(count: u64) -> Bitmap<Vec<u64>> {
        Bitmap::new(vec![0; words(count) as usize], count)
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
        // Freeing frames twice, or beyond the end, counts no frame twice.
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

    /// A search in 16 GiB looks at each word once, and not at each bit.
    #[test]
    fn large_memory_is_passed_by_words() {
        use std::ops::Deref;

        struct Counted(Vec<u64>, std::rc::Rc<std::cell::Cell<u64>>);
        impl Deref for Counted {
            type Target = [u64];
            fn deref(&self) -> &[u64] {
                self.1.set(self.1.get() + 1);
                &self.0
            }
        }
        impl DerefMut for Counted {
            fn deref_mut(&mut self) -> &mut [u64] {
                self.1.set(self.1.get() + 1);
                &mut self.0
            }
        }
        const COUNT: u64 = 4 << 20;
        let looks = std::rc::Rc::new(std::cell::Cell::new(0));
        let bitmap = Counted(vec![0; words(COUNT) as usize], looks.clone());
        let mut f = Bitmap::new(bitmap, COUNT);
        assert_eq!(f.take(COUNT - 100, 512), Some(0));
        assert!(looks.replace(0) <= 3 * words(COUNT));
        for _ in 0..100 {
            assert!(f.take_top().is_some());
        }
        assert_eq!(f.take_top(), None);
        assert!(looks.replace(0) < 400, "{}", looks.get());
        f.give(0, 512);
        f.give(COUNT - 1, 1);
        assert_eq!((f.take_top(), f.take_top()), (Some(COUNT - 1), Some(511)));
        looks.set(0);
        assert_eq!((f.take_top(), f.take(1, 1)), (Some(510), Some(0)));
        assert!(looks.get() < 20, "{}", looks.get());
    }

    #[test]
    fn spare_frames_count_as_free() {
        let mut f = frames(200);
        assert_eq!(f.take(200, 1), Some(0));
        f.give(100, 8);
        let second_word = |index| if index == 1 { u64::MAX } else { 0 };
        assert_eq!(f.find(0, 64, 1, &second_word), Some(64));
        assert_eq!(f.find(0, 65, 1, &second_word), None);
        assert_eq!(f.find(65, 20, 16, &second_word), Some(80));
        assert_eq!(f.end(65, &second_word), 128);
        assert_eq!(f.find(0, 8, 1, &none), Some(100));
        assert_eq!(f.end(100, &none), 108);
        assert_eq!(f.find(0, 9, 1, &none), None);
        // There is nothing behind the last frame.
        assert_eq!(f.find(0, 201, 1, &|_| u64::MAX), None);
        assert_eq!(f.end(3, &|_| u64::MAX), 200);
        assert_eq!(f.free(), 8);
    }

    /// Frames that two bitmaps have, and those that one of them has.
    #[test]
    fn two_bitmaps_are_compared() {
        let (mut all, mut some) = (frames(200), frames(200));
        all.take_all(10, 100);
        all.take_all(150, 50);
        some.take_all(60, 20);
        some.take_all(150, 30);
        let both: Vec<_> = all.taken(|index| !some.taken_in(index)).collect();
        assert_eq!(both, [(60, 20), (150, 30)]);
        let rest: Vec<_> = all.taken(|index| some.taken_in(index)).collect();
        assert_eq!(rest, [(10, 50), (80, 30), (180, 20)]);
        some.give(60, 20);
        assert_eq!((all.free(), some.free()), (50, 170));
    }

    /// Requests: frames, the alignment, whether at the top, and whether to free others first.
    fn asks() -> impl Strategy<Value = Vec<(u64, u32, bool, bool)>> {
        let ask = (1u64..80, 0u32..7, any::<bool>(), any::<bool>());
        proptest::collection::vec(ask, 1..60)
    }

    proptest! {
        #[test]
        fn ranges_are_disjoint(asks in asks()) {
            let mut f = frames(700);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (count, align, top, give) in asks {
                if give && !held.is_empty() {
                    let (first, count) = held.swap_remove(0);
                    f.give(first, count);
                }
                let got = if top {
                    f.take_top().map(|x| (x, 1))
                } else {
                    f.take(count, 1 << align).map(|x| (x, count))
                };
                if let Some((first, count)) = got {
                    prop_assert!(first + count <= 700);
                    prop_assert!(top || first % (1 << align) == 0);
                    for &(other, n) in &held {
                        prop_assert!(first + count <= other || other + n <= first);
                    }
                    held.push((first, count));
                } else if !top && align == 0 {
                    // There really is no gap.
                    let is_taken = |x| held.iter().any(|&(o, n)| x >= o && x < o + n);
                    let taken: Vec<bool> = (0..700).map(is_taken).collect();
                    let mut run = 0;
                    for t in taken { run = if t { 0 } else { run + 1 }; prop_assert!(run < count); }
                }
                prop_assert_eq!(f.free(), 700 - held.iter().map(|h| h.1).sum::<u64>());
                let mut all: Vec<u64> = held.iter().flat_map(|&(o, n)| o..o + n).collect();
                all.sort_unstable();
                let told: Vec<u64> = f.taken(none).flat_map(|(o, n)| o..o + n).collect();
                prop_assert_eq!(told, all);
            }
        }
    }
}
