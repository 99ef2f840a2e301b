// SPDX-License-Identifier: GPL-2.0
//! Bitmaps of frames that change without a lock.

use crate::logic::{bitmap, PAGE_SIZE};
use kernel::{
    prelude::*,
    sync::atomic::{Atomic, Full, Relaxed},
};

/// Bits of a word of a bitmap.
#[cfg(pinmap_mirror)]
pub(in crate::gpu) const BITS: u64 = u64::BITS as u64;

/// Returns a bit for each frame of `bytes` of VRAM, all of them 0.
pub(in crate::gpu) fn frame_bits(bytes: u64) -> Result<KVVec<Atomic<u64>>> {
    zeros(bitmap::words(bytes / PAGE_SIZE))
}

pub(in crate::gpu) fn zeros(words: u64) -> Result<KVVec<Atomic<u64>>> {
    let words = usize::try_from(words).map_err(|_| ENODEV)?;
    let mut all = KVVec::with_capacity(words, GFP_KERNEL)?;
    for _ in 0..words {
        all.push(Atomic::new(0), GFP_KERNEL)?;
    }
    Ok(all)
}

/// Clears all bits that are set, and calls `each` for runs of them: the first, and how many.
pub(in crate::gpu) fn drain(words: &[Atomic<u64>], mut each: impl FnMut(u64, u64)) {
    for (index, word) in words.iter().enumerate() {
        if word.load(Relaxed) == 0 {
            continue;
        }
        let mut bits = word.xchg(0, Full);
        while bits != 0 {
            let first = bits.trailing_zeros();
            let count = bits.wrapping_shr(first).trailing_ones();
            let before = (index as u64).saturating_mul(u64::BITS.into());
            each(before.saturating_add(first.into()), count.into());
            bits &= !mask(first, count);
        }
    }
}

/// Returns `count` bits from `first` on.
fn mask(first: u32, count: u32) -> u64 {
    let ones = match 1_u64.checked_shl(count) {
        Some(bit) => bit.wrapping_sub(1),
        None => u64::MAX,
    };
    ones.wrapping_shl(first)
}

/// Sets or clears `count` bits from `first` on. From any context.
#[cfg(pinmap_mirror)]
pub(in crate::gpu) fn set_bits(words: &[Atomic<u64>], first: u64, count: u64, on: bool) {
    let end = first.saturating_add(count);
    let mut at = first;
    while at < end {
        let bit = at % BITS;
        let here = BITS.saturating_sub(bit).min(end.saturating_sub(at));
        let mask = mask(bit as u32, here as u32);
        if let Some(word) = words.get((at / BITS) as usize) {
            let mut old = word.load(Relaxed);
            loop {
                let new = if on { old | mask } else { old & !mask };
                match word.cmpxchg(old, new, Full) {
                    Ok(_) => break,
                    Err(other) => old = other,
                }
            }
        }
        at = at.saturating_add(here);
    }
}
