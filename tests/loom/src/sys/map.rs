// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mapped memory and registers, as words of loom's. A clone is another mapping of the same.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::sync::AtomicU64;

#[derive(Debug, Clone)]
pub(crate) struct Map(Arc<Vec<AtomicU64>>);

impl Map {
    pub(crate) fn of_words(count: usize) -> Self {
        Self(Arc::new((0..count).map(|_| AtomicU64::new(0)).collect()))
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Register(Map);

impl Register {
    pub(crate) fn new() -> Self {
        Self(Map::of_words(1))
    }

    /// A write that by itself orders nothing.
    pub(crate) fn write(&self, value: u64) {
        self.0.words()[0].store(value, Ordering::Relaxed);
    }

    /// Reads the value as the device sees it, with whatever was ordered before the write.
    pub(crate) fn value(&self) -> u64 {
        self.0.words()[0].load(Ordering::Acquire)
    }
}
