// SPDX-License-Identifier: GPL-2.0
//! Sorting. That of `core` can panic as far as the linker knows, and objtool warns about it.
//!
//! C header: [`include/linux/sort.h`](srctree/include/linux/sort.h).

use crate::sys::helpers;

/// Sorts pairs by their first numbers, in O(n log n).
pub(crate) fn by_first(pairs: &mut [[u64; 2]]) {
    // SAFETY: The slice has so many pairs.
    unsafe { helpers::pinmap_sort_pairs(pairs.as_mut_ptr(), pairs.len()) };
}
