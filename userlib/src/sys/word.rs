// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accesses to memory that a device may write at the same time: copies, loads and stores of atomic
//! words.
//!
//! Every access of the process is an aligned atomic access of 8 bytes, so two threads never race in
//! the sense of the memory model, whichever bytes they access. A store of less than a word is a
//! compare-and-exchange, which preserves what the device or another thread has just put into the
//! bytes beside it.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::sync::AtomicU64;

/// Bytes in a word.
const WORD: usize = size_of::<u64>();

/// A number that can be loaded from and stored to registered memory and BARs in one access: an
/// integer of 8 to 64 bits, `f32` or `f64`.
pub trait Word: sealed::Value {}

pub(crate) mod sealed {
    /// The conversions that accesses need. Sealed: other crates cannot implement it.
    pub trait Value: Copy + std::fmt::Debug + Send + Sync + 'static {
        /// Widens the value to a word.
        fn to_word(self) -> u64;
        /// Takes the value from the low bits of a word.
        fn from_word(word: u64) -> Self;
        /// Converts from the byte order of PCI, little-endian, to that of the CPU.
        fn le_to_cpu(self) -> Self;
        /// Converts from the byte order of the CPU to that of PCI, little-endian.
        fn cpu_to_le(self) -> Self;
    }
}

macro_rules! words {
    ($($type:ty as $bits:ty: $to_bits:expr, $from_bits:expr;)*) => { $(
        impl Word for $type {}
        impl sealed::Value for $type {
            fn to_word(self) -> u64 {
                let to_bits: fn($type) -> $bits = $to_bits;
                to_bits(self).into()
            }
            fn from_word(word: u64) -> Self {
                let from_bits: fn($bits) -> $type = $from_bits;
                from_bits(word as $bits)
            }
            fn le_to_cpu(self) -> Self {
                Self::from_word(<$bits>::from_le(self.to_word() as $bits).into())
            }
            fn cpu_to_le(self) -> Self {
                Self::from_word((self.to_word() as $bits).to_le().into())
            }
        }
    )* };
}

words! {
    u8 as u8: |value| value, |bits| bits;
    u16 as u16: |value| value, |bits| bits;
    u32 as u32: |value| value, |bits| bits;
    u64 as u64: |value| value, |bits| bits;
    i8 as u8: |value| value as u8, |bits| bits as i8;
    i16 as u16: |value| value as u16, |bits| bits as i16;
    i32 as u32: |value| value as u32, |bits| bits as i32;
    i64 as u64: |value| value as u64, |bits| bits as i64;
    f32 as u32: f32::to_bits, f32::from_bits;
    f64 as u64: f64::to_bits, f64::from_bits;
}

/// Copies bytes from the words, from byte `offset` on. Panics if the range is not inside them.
pub(crate) fn read(words: &[AtomicU64], offset: usize, to: &mut [u8]) {
    let (first, skip) = (offset / WORD, offset % WORD);
    let (head, body) = to.split_at_mut(head_len(skip, to.len()));
    if !head.is_empty() {
        let bytes = words[first].load(Ordering::Relaxed).to_ne_bytes();
        head.copy_from_slice(&bytes[skip..skip + head.len()]);
    }
    let rest = &words[first + usize::from(!head.is_empty())..];
    let mut chunks = body.chunks_exact_mut(WORD);
    let whole = chunks.len();
    for (chunk, word) in (&mut chunks).zip(rest) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    let tail = chunks.into_remainder();
    if !tail.is_empty() {
        let bytes = rest[whole].load(Ordering::Relaxed).to_ne_bytes();
        tail.copy_from_slice(&bytes[..tail.len()]);
    }
}

/// Copies bytes to the words, from byte `offset` on. Panics if the range is not inside them.
pub(crate) fn write(words: &[AtomicU64], offset: usize, from: &[u8]) {
    let (first, skip) = (offset / WORD, offset % WORD);
    let (head, body) = from.split_at(head_len(skip, from.len()));
    if !head.is_empty() {
        put(&words[first], skip, head, Ordering::Relaxed);
    }
    let rest = &words[first + usize::from(!head.is_empty())..];
    let chunks = body.chunks_exact(WORD);
    let (whole, tail) = (chunks.len(), chunks.remainder());
    for (chunk, word) in chunks.zip(rest) {
        let mut bytes = [0; WORD];
        bytes.copy_from_slice(chunk);
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
    if !tail.is_empty() {
        put(&rest[whole], 0, tail, Ordering::Relaxed);
    }
}

/// How many of `len` bytes lie before the first whole word, when `skip` bytes of a word precede.
fn head_len(skip: usize, len: usize) -> usize {
    if skip == 0 {
        0
    } else {
        len.min(WORD - skip)
    }
}

/// Replaces some bytes of a word, and leaves the others as they are.
fn put(word: &AtomicU64, skip: usize, from: &[u8], order: Ordering) {
    let change = |old: u64| {
        let mut bytes = old.to_ne_bytes();
        bytes[skip..skip + from.len()].copy_from_slice(from);
        Some(u64::from_ne_bytes(bytes))
    };
    // `change` never refuses, so there is no error.
    let _ = word.fetch_update(order, Ordering::Relaxed, change);
}

/// Loads the value at byte `offset`, which must be aligned and inside the words. The load acquires.
pub(crate) fn load<T: Word>(words: &[AtomicU64], offset: usize) -> T {
    let word = words[offset / WORD].load(Ordering::Acquire);
    T::from_word(word >> shift::<T>(offset))
}

/// Stores a value at byte `offset`, which must be aligned and inside the words. The store releases.
pub(crate) fn store<T: Word>(words: &[AtomicU64], offset: usize, value: T) {
    let word = &words[offset / WORD];
    if size_of::<T>() == WORD {
        return word.store(value.to_word(), Ordering::Release);
    }
    let bytes = (value.to_word() << shift::<T>(offset)).to_ne_bytes();
    let Range { start, end } = offset % WORD..offset % WORD + size_of::<T>();
    put(word, start, &bytes[start..end], Ordering::Release);
}

/// By how many bits the value at byte `offset` is shifted in its word.
fn shift<T>(offset: usize) -> u32 {
    let before = if cfg!(target_endian = "little") {
        offset % WORD
    } else {
        WORD - size_of::<T>() - offset % WORD
    };
    8 * before as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEN: usize = 8 * WORD;

    fn words(bytes: &[u8]) -> Vec<AtomicU64> {
        let words = bytes.chunks(WORD).map(|chunk| {
            let bytes = chunk.try_into().expect("whole words");
            AtomicU64::new(u64::from_ne_bytes(bytes))
        });
        words.collect()
    }

    fn bytes(words: &[AtomicU64]) -> Vec<u8> {
        words
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
            .collect()
    }

    fn content() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), LEN)
    }

    fn range() -> impl Strategy<Value = (usize, usize)> {
        (0..=LEN).prop_flat_map(|offset| (Just(offset), 0..=LEN - offset))
    }

    proptest! {
        #[test]
        fn reads_what_a_slice_would(content in content(), (offset, len) in range()) {
            let mut got = vec![0; len];
            read(&words(&content), offset, &mut got);
            prop_assert_eq!(&got[..], &content[offset..offset + len]);
        }

        #[test]
        fn writes_what_a_slice_would(content in content(), (offset, len) in range(), seed: u8) {
            let from: Vec<u8> = (0..len).map(|i| seed.wrapping_add(i as u8)).collect();
            let words = words(&content);
            write(&words, offset, &from);
            let mut expected = content;
            expected[offset..offset + len].copy_from_slice(&from);
            prop_assert_eq!(bytes(&words), expected);
        }

        #[test]
        fn values_are_in_native_byte_order(
            content in content(),
            value: u64,
            at in 0..LEN / WORD,
        ) {
            let words = words(&content);
            let mut expected = content;
            macro_rules! check {
                ($($type:ty)*) => { $(
                    let offset = at * size_of::<$type>();
                    store(&words, offset, value as $type);
                    let end = offset + size_of::<$type>();
                    expected[offset..end].copy_from_slice(&(value as $type).to_ne_bytes());
                    prop_assert_eq!(bytes(&words), expected.clone());
                    prop_assert_eq!(load::<$type>(&words, offset), value as $type);
                )* };
            }
            check!(u8 u16 u32 u64);
        }
    }

    #[test]
    fn partial_stores_of_two_threads_do_not_undo_each_other() {
        let words = words(&[0; WORD]);
        std::thread::scope(|scope| {
            for offset in 0..WORD {
                let words = &words;
                scope.spawn(move || (0..=200u8).for_each(|i| store(words, offset, i)));
            }
        });
        assert_eq!(bytes(&words), [200; WORD]);
    }
}
