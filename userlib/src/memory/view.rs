// SPDX-License-Identifier: MIT OR Apache-2.0
//! Views: how the CPU accesses memory that a device may change.
//!
//! Host memory is accessed as atomic [words](crate::sys::word), the device's own memory by volatile
//! accesses.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::atomic::AtomicU64;

use memmap2::MmapRaw;

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
pub(crate) struct Vram(MmapRaw);

impl Vram {
    /// Takes over a mapping, which must be readable and writable.
    pub(crate) fn new(map: MmapRaw) -> Self {
        // INVARIANT: mmap() maps whole pages, and nobody else can unmap them.
        Self(map)
    }

    pub(crate) fn addr(&self) -> usize {
        self.0.as_mut_ptr().expose_provenance()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Panics if the range is not inside the mapping.
    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset
                .checked_add(len)
                .is_some_and(|end| end <= self.0.len()),
            "an access outside of the device's memory"
        );
    }

    /// Copies bytes from the memory.
    fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        let start = self.0.as_mut_ptr();
        let (head, words, tail) = parts(offset, to.len());
        for (i, byte) in to[..head].iter_mut().enumerate() {
            // SAFETY: Inside the mapping, as checked above, which is readable by the invariant.
            // Memory of a device is outside of the memory model: several threads may access it.
            *byte = unsafe { start.add(offset + i).read_volatile() };
        }
        for (i, chunk) in to[head..head + words * WORD]
            .chunks_exact_mut(WORD)
            .enumerate()
        {
            let at = start.wrapping_add(offset + head + i * WORD).cast::<u64>();
            // SAFETY: As above; aligned, for the mapping begins with a page.
            chunk.copy_from_slice(&unsafe { at.read_volatile() }.to_ne_bytes());
        }
        let done = head + words * WORD;
        for (i, byte) in to[done..done + tail].iter_mut().enumerate() {
            // SAFETY: As above.
            *byte = unsafe { start.add(offset + done + i).read_volatile() };
        }
    }

    /// Copies bytes to the memory. Less than a word is written byte by byte, because a device need
    /// not support atomic read-modify-write accesses.
    fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        let start = self.0.as_mut_ptr();
        let (head, words, tail) = parts(offset, from.len());
        for (i, &byte) in from[..head].iter().enumerate() {
            // SAFETY: As in `read`; the mapping is writable too.
            unsafe { start.add(offset + i).write_volatile(byte) };
        }
        for (i, chunk) in from[head..head + words * WORD]
            .chunks_exact(WORD)
            .enumerate()
        {
            let mut bytes = [0; WORD];
            bytes.copy_from_slice(chunk);
            let at = start.wrapping_add(offset + head + i * WORD).cast::<u64>();
            // SAFETY: As above; aligned, for the mapping begins with a page.
            unsafe { at.write_volatile(u64::from_ne_bytes(bytes)) };
        }
        let done = head + words * WORD;
        for (i, &byte) in from[done..done + tail].iter().enumerate() {
            // SAFETY: As above.
            unsafe { start.add(offset + done + i).write_volatile(byte) };
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
}

impl View<'_> {
    /// Copies bytes from the memory, from byte `offset` on. Panics if the range is not inside.
    pub(crate) fn read(self, offset: usize, to: &mut [u8]) {
        match self {
            Self::Host(words) => word::read(words, offset, to),
            Self::Vram(vram) => vram.read(offset, to),
        }
    }

    /// Copies bytes to the memory, from byte `offset` on. Panics if the range is not inside.
    pub(crate) fn write(self, offset: usize, from: &[u8]) {
        match self {
            Self::Host(words) => word::write(words, offset, from),
            Self::Vram(vram) => vram.write(offset, from),
        }
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
