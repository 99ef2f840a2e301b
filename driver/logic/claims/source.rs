// SPDX-License-Identifier: GPL-2.0
//! Arguments for claims in tests: every combination of values at which something changes.

use super::{tested, CLAIMS};
use crate::PAGE_SIZE;
use std::cell::RefCell;

/// Ends of pages, huge pages, user space, signed and unsigned numbers.
const EDGES: [u64; 12] = [
    0,
    1,
    PAGE_SIZE - 1,
    PAGE_SIZE,
    2 * PAGE_SIZE,
    (1 << 21) - PAGE_SIZE,
    1 << 21,
    1 << 30,
    0x7fff_ffff_e000,
    1 << 63,
    u64::MAX - PAGE_SIZE + 1,
    u64::MAX,
];

/// Runs of a claim with all combinations, at most; of more, that many are drawn.
const MOST: u64 = 1 << 17;
const DRAWN: u64 = 1 << 16;

/// Number and choice for each argument of a run, in the order in which they are taken.
#[derive(Default)]
struct Choices {
    choices: Vec<(u64, u64)>,
    next: usize,
    /// The state of a generator of random numbers, if choices are drawn.
    seed: Option<u64>,
}

thread_local! {
    static CHOICES: RefCell<Choices> = RefCell::default();
}

impl Choices {
    fn choose(&mut self, among: u64) -> u64 {
        if let Some(seed) = &mut self.seed {
            *seed ^= *seed << 13;
            *seed ^= *seed >> 7;
            *seed ^= *seed << 17;
            return *seed % among;
        }
        if self.next == self.choices.len() {
            self.choices.push((0, among));
        }
        let (choice, _) = self.choices[self.next];
        self.next += 1;
        choice
    }

    /// Goes to the next combination; `false` if there is none.
    fn advance(&mut self) -> bool {
        self.choices.truncate(self.next);
        self.next = 0;
        while let Some((choice, among)) = self.choices.pop() {
            if choice + 1 < among {
                self.choices.push((choice + 1, among));
                return true;
            }
        }
        false
    }
}

/// Returns a number at which something changes.
pub(super) fn any() -> u64 {
    any_of(&EDGES)
}

/// Returns one of the values.
pub(super) fn any_of(values: &[u64]) -> u64 {
    CHOICES.with_borrow_mut(|choices| values[choices.choose(values.len() as u64) as usize])
}

/// Returns a number below `few`.
pub(super) fn any_u32(few: u32) -> u32 {
    CHOICES.with_borrow_mut(|choices| choices.choose(few.into()) as u32)
}

/// Runs a claim with all combinations, or many of them. Returns how many there was a claim for.
fn check(claim: fn() -> Option<()>) -> u64 {
    let mut held = 0;
    CHOICES.set(Choices::default());
    for _ in 0..MOST {
        held += u64::from(claim().is_some());
        if !CHOICES.with_borrow_mut(Choices::advance) {
            return held;
        }
    }
    let seed = Some(0x9e37_79b9_7f4a_7c15);
    CHOICES.set(Choices {
        seed,
        ..Choices::default()
    });
    (0..DRAWN).map(|_| u64::from(claim().is_some())).sum()
}

#[test]
fn claims_hold() {
    for (name, claim) in CLAIMS.iter().chain(tested::CLAIMS) {
        let held = check(*claim);
        println!("{name}: {held}");
        assert_ne!(held, 0, "{name}: nothing was claimed");
    }
}
