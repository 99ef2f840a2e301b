// SPDX-License-Identifier: GPL-2.0
//! A copy of parts of a device's memory, which stands for them while the device is off.

use super::PAGE_SIZE;
use core::ops::{Deref, DerefMut};

/// Words of 8 bytes in a page.
pub const WORDS: u64 = PAGE_SIZE / 8;

/// Neighbouring pages of the memory that are in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of the first page.
    pub first: u64,
    /// How many.
    pub pages: u64,
    /// Pages of the runs before this one.
    pub before: u64,
}

impl Run {
    const fn end(&self) -> u64 {
        self.first.saturating_add(self.pages)
    }
}

/// An image: runs in ascending order, and the words of all of their pages.
///
/// Its pages are copied one after the other, from the first to the last, and back from the last to
/// the first. Those that the image *has* are read and written in it, all others in the device.
#[derive(Debug)]
pub struct Image<R, W> {
    runs: R,
    words: W,
    /// The number of pages that the image has.
    has: u64,
}

impl<R: Deref<Target = [Run]>, W: DerefMut<Target = [u64]>> Image<R, W> {
    /// Makes an image of the pages of `runs` that has none of them yet. `None`: `words` has not as
    /// many.
    pub fn new(runs: R, words: W) -> Option<Self> {
        let pages = runs
            .iter()
            .fold(0_u64, |sum, run| sum.saturating_add(run.pages));
        (words.len() as u64 == pages.saturating_mul(WORDS)).then_some(Self {
            runs,
            words,
            has: 0,
        })
    }

    /// Returns the number of its pages.
    pub fn pages(&self) -> u64 {
        self.words.len() as u64 / WORDS
    }

    /// Whether the image has all of its pages: nothing is to be read or written in the device.
    pub fn is_whole(&self) -> bool {
        self.has == self.pages()
    }

    /// Returns the word at `offset` into the memory, if the image has its page.
    pub fn word(&mut self, offset: u64) -> Option<&mut u64> {
        let page = offset / PAGE_SIZE;
        let next = self.runs.partition_point(|run| run.first <= page);
        let run = self.runs.get(next.checked_sub(1)?)?;
        let number = run.before.saturating_add(page.saturating_sub(run.first));
        if page >= run.end() || number >= self.has {
            return None;
        }
        let word = number
            .saturating_mul(WORDS)
            .saturating_add(offset % PAGE_SIZE / 8);
        self.words.get_mut(usize::try_from(word).ok()?)
    }

    /// Calls `copy` with the offset and the place of the first page that the image does not have;
    /// then it has that page. Returns `false` if it has all of them.
    pub fn save_next(&mut self, copy: &mut dyn FnMut(u64, &mut [u64])) -> bool {
        let number = self.has;
        let is_left = self.page(number, copy);
        if is_left {
            self.has = number.saturating_add(1);
        }
        is_left
    }

    /// Calls `copy` with the offset and the place of the last page that the image has; then it has
    /// that page no more. Returns `false` if it has none.
    pub fn restore_next(&mut self, copy: &mut dyn FnMut(u64, &mut [u64])) -> bool {
        let Some(number) = self.has.checked_sub(1) else {
            return false;
        };
        self.has = number;
        self.page(number, copy)
    }

    fn page(&mut self, number: u64, copy: &mut dyn FnMut(u64, &mut [u64])) -> bool {
        let next = self.runs.partition_point(|run| run.before <= number);
        let run = next.checked_sub(1).and_then(|index| self.runs.get(index));
        let offset = run.map(|run| {
            let page = run.first.saturating_add(number.saturating_sub(run.before));
            page.saturating_mul(PAGE_SIZE)
        });
        let word = |number: u64| usize::try_from(number.saturating_mul(WORDS)).ok();
        let place = word(number)
            .zip(word(number.saturating_add(1)))
            .and_then(|(first, end)| self.words.get_mut(first..end));
        match offset.zip(place) {
            Some((offset, place)) => {
                copy(offset, place);
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Makes an image of the pages that are true, and what is in the memory.
    fn image(taken: &[bool]) -> (Image<Vec<Run>, Vec<u64>>, Vec<u64>) {
        let mut runs: Vec<Run> = Vec::new();
        let mut before = 0;
        for (page, _) in (0..).zip(taken).filter(|(_, taken)| **taken) {
            match runs.last_mut() {
                Some(run) if run.end() == page => run.pages += 1,
                _ => runs.push(Run {
                    first: page,
                    pages: 1,
                    before,
                }),
            }
            before += 1;
        }
        let memory = (0..taken.len() as u64 * WORDS)
            .map(|word| word * 3)
            .collect();
        let words = vec![0; (before * WORDS) as usize];
        (Image::new(runs, words).unwrap(), memory)
    }

    fn at(offset: u64, words: usize) -> core::ops::Range<usize> {
        let first = (offset / 8) as usize;
        first..first + words
    }

    /// Stores as the driver does: in the image if that has the page.
    fn store(image: &mut Image<Vec<Run>, Vec<u64>>, memory: &mut [u64], word: u64, value: u64) {
        match image.word(word * 8) {
            Some(place) => *place = value,
            None => memory[word as usize] = value,
        }
    }

    #[test]
    fn too_few_words() {
        let runs = vec![Run {
            first: 3,
            pages: 2,
            before: 0,
        }];
        assert!(Image::new(runs.clone(), vec![0; 2 * WORDS as usize - 1]).is_none());
        assert!(Image::new(runs, vec![0; 2 * WORDS as usize]).is_some());
        let mut none = Image::new(Vec::new(), Vec::new()).unwrap();
        assert!(none.is_whole());
        assert!(!none.save_next(&mut |_, _| unreachable!()));
        assert!(!none.restore_next(&mut |_, _| unreachable!()));
        assert_eq!(none.word(u64::MAX), None);
    }

    proptest! {
        /// Whatever is stored meanwhile, and whenever, is in the memory afterwards.
        #[test]
        fn nothing_is_lost(
            taken in proptest::collection::vec(any::<bool>(), 1..12),
            stores in proptest::collection::vec((any::<u64>(), any::<u64>()), 64),
        ) {
            let (mut image, mut memory) = image(&taken);
            let mut wanted = memory.clone();
            let mut stores = stores.into_iter().map(|(word, value)| {
                (word % (taken.len() as u64 * WORDS), value)
            });
            let mut touch = |image: &mut _, memory: &mut Vec<u64>, wanted: &mut Vec<u64>| {
                let Some((word, value)) = stores.next() else { return };
                if taken[(word / WORDS) as usize] {
                    store(image, memory, word, value);
                    wanted[word as usize] = value;
                }
            };
            let words = WORDS as usize;
            loop {
                touch(&mut image, &mut memory, &mut wanted);
                let saved = image.save_next(&mut |offset, place| {
                    place.copy_from_slice(&memory[at(offset, words)]);
                });
                if !saved {
                    break;
                }
            }
            prop_assert!(image.is_whole());
            // The device forgets everything.
            memory.fill(0);
            touch(&mut image, &mut memory, &mut wanted);
            while image.restore_next(&mut |offset, place| {
                memory[at(offset, words)].copy_from_slice(place);
            }) {
                touch(&mut image, &mut memory, &mut wanted);
            }
            for (word, (found, wanted)) in memory.iter().zip(&wanted).enumerate() {
                if taken[word / words] {
                    prop_assert_eq!(found, wanted);
                }
            }
        }
    }
}
