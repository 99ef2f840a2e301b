// SPDX-License-Identifier: MIT OR Apache-2.0
//! Views: how the CPU accesses memory that a device may change.
//!
//! Host memory is accessed as atomic [words](crate::sys::word), the device's own memory as atomic
//! words and bytes. Lent memory need not begin or end with a word: the bytes beside its words are
//! accessed as atomic bytes. So each byte of it is always accessed in the same width.
#![allow(unsafe_code)]

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;

use memmap2::MmapRaw;
use nix::sys::mman::{mmap_anonymous, MapFlags, ProtFlags};

#[cfg(feature = "accelerator")]
use crate::memory::peer::Peers;
use crate::memory::raw::Keep;
use crate::sys::map::check_start;
use crate::sys::word;

/// Bytes of an aligned access to the device's memory.
const WORD: usize = size_of::<u64>();

/// The memory of a device, mapped write-combined. Once the device is gone, an access raises
/// `SIGBUS`.
///
/// # Invariants
///
/// The mapping begins and ends at page boundaries, and stays readable and writable as long as the
/// value exists.
pub(crate) struct Vram {
    /// Other devices that reach the memory; they lose it before it is unmapped.
    #[cfg(feature = "accelerator")]
    pub(crate) peers: Peers,
    map: Arc<MmapRaw>,
}

impl Vram {
    /// Takes over a mapping of whole pages, which must be readable and writable. Panics if it does
    /// not begin with a page.
    pub(crate) fn new(map: MmapRaw) -> Self {
        check_start(&map);
        // INVARIANT: It begins with a page, as just checked; mmap() maps whole pages, and nobody
        // else can unmap them.
        Self {
            #[cfg(feature = "accelerator")]
            peers: Peers::default(),
            map: Arc::new(map),
        }
    }

    /// Keeps the addresses, not the memory: dropped, that is freed.
    pub(crate) fn addresses(&self) -> Keep {
        self.map.clone()
    }

    pub(crate) fn addr(&self) -> usize {
        self.map.as_mut_ptr().expose_provenance()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Panics if the range is not inside the mapping.
    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset
                .checked_add(len)
                .is_some_and(|end| end <= self.map.len()),
            "an access outside of the device's memory"
        );
    }

    /// Copies bytes from the memory.
    fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        let start = self.map.as_mut_ptr();
        let (head, words, tail) = parts(offset, to.len());
        for (i, byte) in to[..head].iter_mut().enumerate() {
            // SAFETY: Inside the mapping, as checked above, which is readable by the invariant, and
            // accessed by atomics only, since several threads may.
            *byte = unsafe { AtomicU8::from_ptr(start.add(offset + i)) }.load(Ordering::Relaxed);
        }
        for (i, chunk) in to[head..head + words * WORD]
            .chunks_exact_mut(WORD)
            .enumerate()
        {
            let at = start.wrapping_add(offset + head + i * WORD).cast::<u64>();
            // SAFETY: As above; aligned, for the mapping begins with a page.
            let word = unsafe { AtomicU64::from_ptr(at) }.load(Ordering::Relaxed);
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        let done = head + words * WORD;
        for (i, byte) in to[done..done + tail].iter_mut().enumerate() {
            // SAFETY: As above.
            let byte_at = unsafe { AtomicU8::from_ptr(start.add(offset + done + i)) };
            *byte = byte_at.load(Ordering::Relaxed);
        }
    }

    /// Copies bytes to the memory. Less than a word is written byte by byte, because a device need
    /// not support atomic read-modify-write accesses.
    fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        let start = self.map.as_mut_ptr();
        let (head, words, tail) = parts(offset, from.len());
        for (i, &byte) in from[..head].iter().enumerate() {
            // SAFETY: As in `read`; the mapping is writable too.
            unsafe { AtomicU8::from_ptr(start.add(offset + i)) }.store(byte, Ordering::Relaxed);
        }
        for (i, chunk) in from[head..head + words * WORD]
            .chunks_exact(WORD)
            .enumerate()
        {
            let mut bytes = [0; WORD];
            bytes.copy_from_slice(chunk);
            let at = start.wrapping_add(offset + head + i * WORD).cast::<u64>();
            // SAFETY: As above; aligned, for the mapping begins with a page.
            let word = unsafe { AtomicU64::from_ptr(at) };
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        let done = head + words * WORD;
        for (i, &byte) in from[done..done + tail].iter().enumerate() {
            // SAFETY: As above.
            let byte_at = unsafe { AtomicU8::from_ptr(start.add(offset + done + i)) };
            byte_at.store(byte, Ordering::Relaxed);
        }
    }
}

impl Drop for Vram {
    fn drop(&mut self) {
        if Arc::get_mut(&mut self.map).is_some() {
            return;
        }
        // Somebody keeps the addresses. A failure leaves the memory allocated until they let go.
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | MapFlags::MAP_FIXED;
        let len = NonZeroUsize::new(self.map.len());
        if let (Some(start), Some(len)) = (NonZeroUsize::new(self.addr()), len) {
            // SAFETY: The pages are those of the mapping, which nobody accesses any more.
            let _ = unsafe { mmap_anonymous(Some(start), len, ProtFlags::PROT_NONE, flags) };
        }
    }
}

/// Splits a range: the bytes before the first whole word, the whole words, and the bytes behind.
fn parts(offset: usize, len: usize) -> (usize, usize, usize) {
    let head = (offset.next_multiple_of(WORD) - offset).min(len);
    (head, (len - head) / WORD, (len - head) % WORD)
}

impl fmt::Debug for Vram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{:#x}", self.addr(), self.len())
    }
}

/// Memory that a device may change, as the CPU accesses it.
#[derive(Clone, Copy)]
pub(crate) enum View<'a> {
    /// Host memory.
    Host(&'a [AtomicU64]),
    /// The device's own memory.
    Vram(&'a Vram),
    /// The memory of another device.
    #[cfg(feature = "accelerator")]
    Peer(&'a Vram),
    /// Memory of the program, lent for writing.
    Lent(&'a [AtomicU8]),
    /// Memory of the program, lent for reading, to which nobody writes.
    Plain(&'a [u8]),
}

impl View<'_> {
    /// Copies bytes from the memory, from byte `offset` on. Panics if the range is not inside.
    pub(crate) fn read(self, offset: usize, to: &mut [u8]) {
        match self {
            Self::Host(words) => word::read(words, offset, to),
            Self::Vram(vram) => vram.read(offset, to),
            #[cfg(feature = "accelerator")]
            Self::Peer(vram) => vram.read(offset, to),
            Self::Lent(bytes) => read_lent(bytes, offset, to),
            Self::Plain(bytes) => to.copy_from_slice(&bytes[offset..offset + to.len()]),
        }
    }

    /// Copies bytes to the memory, from byte `offset` on. Panics if the range is not inside.
    pub(crate) fn write(self, offset: usize, from: &[u8]) {
        match self {
            Self::Host(words) => word::write(words, offset, from),
            Self::Vram(vram) => vram.write(offset, from),
            #[cfg(feature = "accelerator")]
            Self::Peer(vram) => vram.write(offset, from),
            Self::Lent(bytes) => write_lent(bytes, offset, from),
            Self::Plain(_) => unreachable!("memory that is lent for reading"),
        }
    }
}

/// Lent memory: the bytes before the first aligned word, the words, and the bytes behind.
fn split(bytes: &[AtomicU8]) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
    // SAFETY: Atomic bytes can be any bytes, as atomic words can. Whoever accesses this memory has
    // split it in the same way, so no byte is accessed in two widths.
    unsafe { bytes.align_to::<AtomicU64>() }
}

/// Splits `len` bytes from `offset` on where parts of these lengths end: how many lie in each.
fn shares(mut offset: usize, mut len: usize, parts: [usize; 3]) -> [(usize, usize); 3] {
    parts.map(|part| {
        let at = offset.min(part);
        let share = len.min(part - at);
        (offset, len) = (offset - at, len - share);
        (at, share)
    })
}

/// Copies bytes from lent memory. Panics if the range is not inside.
fn read_lent(bytes: &[AtomicU8], offset: usize, to: &mut [u8]) {
    let (head, words, tail) = split(bytes);
    let lengths = [head.len(), words.len() * WORD, tail.len()];
    let [head_share, word_share, tail_share] = shares(offset, to.len(), lengths);
    assert_eq!(
        head_share.1 + word_share.1 + tail_share.1,
        to.len(),
        "an access outside of lent memory"
    );
    let (to_head, rest) = to.split_at_mut(head_share.1);
    let (to_words, to_tail) = rest.split_at_mut(word_share.1);
    for (to, byte) in to_head.iter_mut().zip(&head[head_share.0..]) {
        *to = byte.load(Ordering::Relaxed);
    }
    word::read(words, word_share.0, to_words);
    for (to, byte) in to_tail.iter_mut().zip(&tail[tail_share.0..]) {
        *to = byte.load(Ordering::Relaxed);
    }
}

/// Copies bytes to lent memory. Panics if the range is not inside.
fn write_lent(bytes: &[AtomicU8], offset: usize, from: &[u8]) {
    let (head, words, tail) = split(bytes);
    let lengths = [head.len(), words.len() * WORD, tail.len()];
    let [head_share, word_share, tail_share] = shares(offset, from.len(), lengths);
    assert_eq!(
        head_share.1 + word_share.1 + tail_share.1,
        from.len(),
        "an access outside of lent memory"
    );
    let (from_head, rest) = from.split_at(head_share.1);
    let (from_words, from_tail) = rest.split_at(word_share.1);
    for (from, byte) in from_head.iter().zip(&head[head_share.0..]) {
        byte.store(*from, Ordering::Relaxed);
    }
    word::write(words, word_share.0, from_words);
    for (from, byte) in from_tail.iter().zip(&tail[tail_share.0..]) {
        byte.store(*from, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::MmapMut;
    use proptest::prelude::*;

    fn vram() -> Vram {
        Vram::new(MmapMut::map_anon(4096).expect("memory").into())
    }

    proptest! {
        #[test]
        fn the_devices_memory_is_read_and_written_as_a_slice_would_be(
            offset in 0usize..64, len in 0usize..64, seed: u8,
        ) {
            let vram = vram();
            let view = View::Vram(&vram);
            let from: Vec<u8> = (0..len).map(|i| seed.wrapping_add(i as u8) | 1).collect();
            view.write(offset, &from);
            let mut all = vec![0xff; 256];
            view.read(0, &mut all);
            let mut expected = vec![0; 256];
            expected[offset..offset + len].copy_from_slice(&from);
            prop_assert_eq!(&all, &expected);
            let mut part = vec![0; len];
            view.read(offset, &mut part);
            prop_assert_eq!(part, from);
        }
    }

    proptest! {
        #[test]
        fn lent_memory_is_read_and_written_as_a_slice_would_be(
            skip in 0usize..9, len in 0usize..64, offset in 0usize..64, count in 0usize..64,
            seed: u8,
        ) {
            let memory: Vec<AtomicU64> = (0..10).map(|_| AtomicU64::new(0)).collect();
            let start = memory.as_ptr().cast::<AtomicU8>();
            // SAFETY: It lies inside of the words, to which there is no other access.
            let bytes = unsafe { std::slice::from_raw_parts(start.add(skip), len) };
            let offset = offset.min(len);
            let count = count.min(len - offset);
            let from: Vec<u8> = (0..count).map(|i| seed.wrapping_add(i as u8) | 1).collect();
            let view = View::Lent(bytes);
            view.write(offset, &from);
            let mut expected = vec![0; len];
            expected[offset..offset + count].copy_from_slice(&from);
            let mut all = vec![0xff; len];
            view.read(0, &mut all);
            prop_assert_eq!(&all, &expected);
            let mut part = vec![0; count];
            view.read(offset, &mut part);
            prop_assert_eq!(part, from);
        }
    }

    #[test]
    #[should_panic(expected = "outside of lent memory")]
    fn nothing_is_read_behind_lent_memory() {
        let bytes = [const { AtomicU8::new(0) }; 9];
        View::Lent(&bytes).read(8, &mut [0; 2]);
    }

    #[test]
    #[should_panic(expected = "outside of the device's memory")]
    fn nothing_is_accessed_outside() {
        vram().read(4090, &mut [0; 8]);
    }

    #[test]
    fn words_are_whole_and_aligned() {
        assert_eq!(parts(0, 16), (0, 2, 0));
        assert_eq!(parts(3, 16), (5, 1, 3));
        assert_eq!(parts(3, 2), (2, 0, 0));
        assert_eq!(parts(8, 7), (0, 0, 7));
    }
}
