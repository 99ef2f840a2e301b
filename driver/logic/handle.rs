// SPDX-License-Identifier: GPL-2.0
//! Handles are numbers that are counted up and never used twice. So a released handle differs from
//! one that never existed.

/// Counter for the handles of a context.
#[derive(Debug)]
pub struct Counter {
    next: u64,
}

/// Kind of a handle that names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The handle never existed: `ENOENT`.
    Never,
    /// The handle was released: `ESTALE`.
    Released,
}

impl Counter {
    /// Makes a counter. The first handle is 1; 0 is never a handle.
    pub const fn new() -> Self {
        Self { next: 1 }
    }

    /// Returns a new handle; `None` when all 2^64 - 1 have been used.
    pub fn take(&mut self) -> Option<u64> {
        let handle = self.next;
        self.next = handle.checked_add(1)?;
        Some(handle)
    }

    /// Returns what `handle` is, given that no live object has it.
    pub const fn absent(&self, handle: u64) -> Absent {
        if handle == 0 || handle >= self.next {
            Absent::Never
        } else {
            Absent::Released
        }
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_one() {
        let mut counter = Counter::default();
        assert_eq!(counter.absent(1), Absent::Never);
        assert_eq!(counter.take(), Some(1));
        assert_eq!(counter.take(), Some(2));
        let table = [
            (0, Absent::Never),
            (1, Absent::Released),
            (2, Absent::Released),
            (3, Absent::Never),
            (u64::MAX, Absent::Never),
        ];
        for (handle, want) in table {
            assert_eq!(counter.absent(handle), want, "{handle}");
        }
    }

    #[test]
    fn ends_without_wrapping() {
        let mut counter = Counter { next: u64::MAX - 1 };
        assert_eq!(counter.take(), Some(u64::MAX - 1));
        assert_eq!(counter.take(), None);
        assert_eq!(counter.take(), None);
        assert_eq!(counter.absent(u64::MAX), Absent::Never);
    }
}
