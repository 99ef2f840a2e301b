// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device's own memory and registers, by the base address registers.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::sync::atomic::{fence, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, Operation, Result};
use crate::info::BarInfo;
use crate::word::{self, Word};

/// A mapped BAR: registers or memory of the device.
///
/// Made by [`Device::bar`]. Every access is a single one of the asked size, in the order of the
/// program, and neither left out nor repeated. PCI is little-endian: values are converted.
///
/// Once the device is gone, an access raises `SIGBUS`.
#[derive(Debug)]
pub struct Bar {
    number: usize,
    info: BarInfo,
    /// What can be mapped: all but the hole. Each with its offset in the BAR.
    pieces: Vec<(u64, MmapRaw)>,
    /// Keeps the context, and with it the bus mastering and the ownership.
    _device: Device,
}

impl Device {
    /// Maps a BAR: the pages that can be mapped, uncached or, if it is prefetchable,
    /// write-combined. Makes this context the owner of the device.
    ///
    /// # Errors
    ///
    /// `ENOENT`: the function has no such BAR; `EOPNOTSUPP`: it cannot be mapped; `EBUSY`: another
    /// context owns the device; `ENODEV`: it is gone; `ENOMEM`: out of address space.
    pub fn bar(&self, number: usize) -> Result<Bar> {
        let attempt = || format!("map BAR {number} of {self}");
        let info = self.info()?;
        let Some(&Some(info)) = info.bars.get(number) else {
            let cause = "the function has no such BAR";
            return Err(Error::refused(
                Operation::Bar,
                attempt(),
                Errno::ENOENT,
                cause,
            ));
        };
        if !info.mappable {
            return Err(Error::new(Operation::Bar, attempt(), Errno::EOPNOTSUPP));
        }
        let map = |(start, len): (u64, u64)| -> io::Result<_> {
            let len = usize::try_from(len).map_err(|_| Errno::EOVERFLOW)?;
            let map = MmapOptions::new()
                .offset(info.offset + start)
                .len(len)
                .map_raw(self.file())?;
            Ok((start, map))
        };
        let pieces: io::Result<_> = pieces(&info).into_iter().map(map).collect();
        let pieces = pieces.map_err(|error| Error::from_io(Operation::Bar, attempt(), &error))?;
        Ok(Bar {
            number,
            info,
            pieces,
            _device: self.clone(),
        })
    }
}

/// The parts of a BAR around its hole: offset and length.
fn pieces(info: &BarInfo) -> Vec<(u64, u64)> {
    let (hole, hole_len) = info.hole.unwrap_or((info.len, 0));
    let after = hole + hole_len;
    let mut pieces = vec![(0, hole), (after, info.len - after)];
    pieces.retain(|&(_, len)| len != 0);
    pieces
}

impl Bar {
    /// Which BAR it is.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Its length in bytes, with the hole.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> u64 {
        self.info.len
    }

    /// What it is: whether it is write-combined, and where its hole is.
    pub fn info(&self) -> &BarInfo {
        &self.info
    }

    /// Reads at byte `offset`. Reads of registered memory that come later see what the device wrote
    /// there before it answered.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not aligned to its size, beyond the end, or in the hole.
    #[inline]
    pub fn read<T: Word>(&self, offset: usize) -> Result<T> {
        let at = self.at::<T>("read", offset)?;
        // SAFETY: `at` is mapped, readable and aligned, as `at()` promises. A device's registers
        // are outside of the memory model: several threads may access them.
        let value = unsafe { at.read_volatile() };
        after_read();
        Ok(value.le_to_cpu())
    }

    /// Writes at byte `offset`. The device can see all that was written to registered memory
    /// before.
    ///
    /// Writes to a write-combined BAR may reach the device later, and together: see
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// `EINVAL`: not aligned to its size, beyond the end, or in the hole.
    #[inline]
    pub fn write<T: Word>(&self, offset: usize, value: T) -> Result<()> {
        let at = self.at::<T>("write", offset)?;
        before_write();
        // SAFETY: As in `read`; the mapping is writable too.
        unsafe { at.write_volatile(value.cpu_to_le()) };
        Ok(())
    }

    /// Sends what the CPU still keeps of writes to a write-combined BAR. They are on their way to
    /// the device then; that they arrived, only an answer to a read proves.
    pub fn flush(&self) {
        fence(Ordering::SeqCst);
    }

    /// Where to access a `T`: mapped, and aligned to its size, as long as `self` exists.
    #[inline]
    fn at<T: Word>(&self, verb: &str, offset: usize) -> Result<*mut T> {
        let size = size_of::<T>();
        let name = Name(self.number);
        word::check(verb, name, offset, size, size, self.info.len)?;
        for (start, map) in &self.pieces {
            // Pieces are whole pages, so an aligned access is inside or outside of one. One that
            // begins after the offset has no place so far behind its start.
            let inside = (offset as u64).wrapping_sub(*start);
            if inside < map.len() as u64 {
                return Ok(map.as_mut_ptr().wrapping_add(inside as usize).cast());
            }
        }
        Err(in_the_hole(verb, size, offset, name))
    }
}

/// A BAR in an error.
#[derive(Clone, Copy)]
struct Name(usize);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BAR {}", self.0)
    }
}

#[cold]
fn in_the_hole(verb: &str, size: usize, offset: usize, name: Name) -> Error {
    let attempt = format!("{verb} {size} bytes at offset {offset:#x} of {name}");
    let cause = "the pages with the MSI-X table cannot be accessed";
    Error::refused(Operation::Access, attempt, Errno::EINVAL, cause)
}

/// What was written to memory must be visible to the device before a register is written.
pub(crate) fn before_write() {
    // x86 keeps the order of stores by itself; only the compiler must.
    #[cfg(target_arch = "x86_64")]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: A barrier has no other effect.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

/// What is read from memory must not be older than what was read from a register.
pub(crate) fn after_read() {
    #[cfg(target_arch = "x86_64")]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: A barrier has no other effect.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(len: u64, hole: Option<(u64, u64)>) -> BarInfo {
        BarInfo {
            len,
            mappable: true,
            prefetchable: false,
            is_64bit: false,
            hole,
            offset: 0,
        }
    }

    /// A BAR of ordinary memory.
    fn bar(len: u64, hole: Option<(u64, u64)>) -> Bar {
        let info = info(len, hole);
        let map = |(start, len)| {
            let map = MmapOptions::new().len(len as usize).map_anon();
            (start, map.expect("memory").into())
        };
        let pieces = pieces(&info).into_iter().map(map).collect();
        Bar {
            number: 2,
            info,
            pieces,
            _device: Device::fake(),
        }
    }

    #[test]
    fn all_but_the_hole_is_mapped() {
        let page = 0x1000;
        assert_eq!(pieces(&info(4 * page, None)), [(0, 4 * page)]);
        assert_eq!(
            pieces(&info(4 * page, Some((page, page)))),
            [(0, page), (2 * page, 2 * page)]
        );
        assert_eq!(pieces(&info(4 * page, Some((0, page)))), [(page, 3 * page)]);
        assert_eq!(
            pieces(&info(4 * page, Some((3 * page, page)))),
            [(0, 3 * page)]
        );
        assert_eq!(pieces(&info(page, Some((0, page)))), []);
    }

    #[test]
    fn accesses_are_little_endian_and_as_wide_as_asked() {
        let bar = bar(0x1000, None);
        bar.write(8, 0x1122_3344_5566_7788u64).expect("a write");
        assert_eq!(bar.read::<u8>(8).expect("a read"), 0x88);
        assert_eq!(bar.read::<u16>(10).expect("a read"), 0x5566);
        bar.write(12, 0xabu8).expect("a write");
        assert_eq!(bar.read::<u32>(12).expect("a read"), 0x1122_33ab);
        bar.flush();
        assert_eq!((bar.number(), bar.len()), (2, 0x1000));
    }

    #[test]
    fn the_hole_and_the_end_are_respected() {
        let bar = bar(0x4000, Some((0x1000, 0x1000)));
        for offset in [0xffc, 0x2000, 0x3ffc] {
            bar.write(offset, offset as u32).expect("a write");
            assert_eq!(bar.read::<u32>(offset).expect("a read"), offset as u32);
        }
        let error = |offset| bar.read::<u32>(offset).expect_err("refused").to_string();
        for offset in [0x1000, 0x1ffc] {
            assert!(error(offset).contains("MSI-X"), "{}", error(offset));
        }
        assert!(
            error(0x4000).contains("it ends at 0x4000"),
            "{}",
            error(0x4000)
        );
        assert!(
            error(usize::MAX - 3).contains("it ends at"),
            "{}",
            error(usize::MAX - 3)
        );
        assert!(
            error(2).contains("BAR 2: the offset is not a multiple of 4"),
            "{}",
            error(2)
        );
        assert_eq!(
            bar.read::<u64>(0xffc).expect_err("refused").errno(),
            Errno::EINVAL as i32
        );
    }

    #[test]
    fn bars_can_be_shared_and_sent() {
        fn check<T: Send + Sync>() {}
        check::<Bar>();
        check::<crate::Interrupt>();
    }
}
