// SPDX-License-Identifier: GPL-2.0
//! The location of a PCI function's MSI-X table and pending bits in a BAR. Only the kernel may
//! access that memory, because it says where interrupts go.

use super::span::Span;

/// Bytes in an entry of the table.
const ENTRY: u64 = 16;
/// Vectors whose pending bits share a word of 8 bytes.
const PENDING_BITS: u64 = 64;

/// The MSI-X structures of a function; each place is a BAR and an offset in it.
#[derive(Clone, Copy, Debug)]
pub struct Msix {
    /// Number of vectors.
    pub vectors: u32,
    /// Place of the table.
    pub table: (u32, u32),
    /// Place of the pending bits.
    pub pending: (u32, u32),
}

impl Msix {
    /// Returns the shortest range of `bar` that covers all structures in it.
    pub fn bytes_in(self, bar: u32) -> Option<Span> {
        let vectors = u64::from(self.vectors);
        let structures = [
            (self.table, vectors.saturating_mul(ENTRY)),
            (
                self.pending,
                vectors.div_ceil(PENDING_BITS).saturating_mul(8),
            ),
        ];
        structures
            .into_iter()
            .filter(|((place, _), _)| *place == bar)
            .filter_map(|((_, offset), bytes)| Span::new(u64::from(offset), bytes).ok())
            .reduce(|one, other| {
                let start = one.start().min(other.start());
                let last = one.last().max(other.last());
                Span::from_bounds(start, last).unwrap_or(one)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_what_is_in_the_bar() {
        let msix = |table, pending| Msix {
            vectors: 65,
            table,
            pending,
        };
        let bytes = |msix: Msix, bar| msix.bytes_in(bar).map(|span| (span.start(), span.length()));
        let apart = msix((2, 0x1000), (4, 0x800));
        assert_eq!(bytes(apart, 2), Some((0x1000, 65 * 16)));
        assert_eq!(bytes(apart, 4), Some((0x800, 16)));
        assert_eq!(bytes(apart, 0), None);
        let together = msix((2, 0x1000), (2, 0x800));
        assert_eq!(bytes(together, 2), Some((0x800, 0x800 + 65 * 16)));
        let swapped = msix((2, 0), (2, 0x2000));
        assert_eq!(bytes(swapped, 2), Some((0, 0x2010)));
    }

    #[test]
    fn no_capability_overflows() {
        let widest = Msix {
            vectors: u32::MAX,
            table: (0, u32::MAX),
            pending: (0, u32::MAX),
        };
        assert!(widest.bytes_in(0).is_some());
    }
}
