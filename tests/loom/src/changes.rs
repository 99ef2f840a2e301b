// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's counts of the changes of a process's memory.

use std::ops::Deref;
use std::sync::Arc;

use loom::sync::atomic::{fence, AtomicU32, Ordering};
use loom::sync::Mutex;
use loom::thread;
use pinmap_logic::changes::{Changes, Counters, Moment, Word};
use pinmap_logic::span::Span;

use crate::kernel::check_with;

#[derive(Default)]
struct Number(AtomicU32);

impl Number {
    /// As the kernel's full order is: after everything before it, before everything after it.
    fn add(&self, number: u32) -> u32 {
        fence(Ordering::SeqCst);
        let before = self.0.fetch_add(number, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        before
    }
}

impl Word for Number {
    fn load(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn increment(&self) -> u32 {
        self.add(1)
    }

    fn decrement(&self) -> u32 {
        self.add(u32::MAX)
    }
}

/// Place for one block: whatever is longer is a wide change.
struct One([Counters<Number>; 1]);

impl Deref for One {
    type Target = [Counters<Number>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

const PAGE: u64 = 0x1000;
/// The address of a page, and its place in its block.
const ADDRESS: u64 = 17 * PAGE;
const INDEX: usize = 17;

/// A page changes once while it is looked up and lent to a device, which then either has what is
/// there now, or nothing.
fn lend(range: Span) {
    check_with(3, move || {
        let changes = Arc::new(Changes::new(One([Counters::default()])));
        let memory = Arc::new(AtomicU32::new(0));
        let lent = Arc::new(Mutex::new(None));
        let program = thread::spawn({
            let (changes, memory, lent) = (changes.clone(), memory.clone(), lent.clone());
            move || {
                changes.start(range);
                *lent.lock().expect("nobody panics") = None;
                memory.store(1, Ordering::Relaxed);
                changes.end(range);
            }
        });
        let mut moment = Moment::default();
        if changes.begin(ADDRESS, &mut moment) {
            let found = memory.load(Ordering::Relaxed);
            let mut lent = lent.lock().expect("nobody panics");
            if changes.current(&moment).has(INDEX) {
                *lent = Some(found);
            }
        }
        program.join().expect("the program");
        let has = *lent.lock().expect("nobody panics");
        assert!(
            has.is_none_or(|has| has == 1),
            "the device has what has gone"
        );
        assert!(changes.is_quiet(ADDRESS));
    });
}

/// A device never keeps a page that has changed while it was looked up.
pub fn a_page_that_changes_is_not_lent() {
    lend(Span::new(ADDRESS, PAGE).expect("a page"));
}

/// A device does not keep it either where the change is of more memory than is counted apart.
pub fn a_wide_change_is_seen() {
    lend(Span::new(0, 8 << 20).expect("some blocks"));
}
