// SPDX-License-Identifier: MIT OR Apache-2.0
//! BARs: the registers and the memory of a PCI function, mapped.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::sync::atomic::{fence, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

use crate::device::info::BarInfo;
use crate::device::Device;
use crate::error::bounds;
use crate::error::{Error, Operation, Result};
use crate::sys::barrier::{after_read, before_write};
use crate::sys::word::Word;

/// A mapped BAR: registers or memory of the device.
///
/// Made by [`Device::bar`]. Every call makes exactly one access of the size of its type, in program
/// order. PCI is little-endian; values are converted from and to the CPU's byte order.
///
/// Once the device is gone, an access raises `SIGBUS`.
#[derive(Debug)]
pub struct Bar {
    number: usize,
    info: BarInfo,
    /// Mappings of all but the hole, each with its offset in the BAR.
    pieces: Vec<(u64, MmapRaw)>,
    /// Keeps the context open, and with it bus mastering and ownership.
    _device: Device,
}

impl Device {
    /// Maps all pages of a BAR that can be mapped: write-combined if the BAR is prefetchable, and
    /// otherwise uncached. Makes this context the owner of the device.
    ///
    /// # Errors
    ///
    /// `ENOENT`: the function has no such BAR; `EOPNOTSUPP`: the BAR cannot be mapped; `EBUSY`:
    /// another context owns the device; `ENODEV`: the device is gone; `ENOMEM`: out of address
    /// space.
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
    /// The number of the BAR.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Length in bytes, including the hole.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> u64 {
        self.info.len
    }

    /// The properties of the BAR, such as its hole.
    pub fn info(&self) -> &BarInfo {
        &self.info
    }

    /// Reads a value at byte `offset`. Later reads of registered memory see what the device wrote
    /// before it answered.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the offset is not a multiple of the size of `T`, or the value is not inside the
    /// BAR or is in its hole.
    #[inline]
    pub fn read<T: Word>(&self, offset: usize) -> Result<T> {
        let at = self.at::<T>("read", offset)?;
        // SAFETY: `at` is mapped, readable and aligned, as `at()` guarantees. A device's registers
        // are outside of the memory model: several threads may access them.
        let value = unsafe { at.read_volatile() };
        after_read();
        Ok(value.le_to_cpu())
    }

    /// Writes a value at byte `offset`. When the device sees it, the device also sees everything
    /// that was written to registered memory before.
    ///
    /// Writes to a write-combined BAR may be delayed and merged: see [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    #[inline]
    pub fn write<T: Word>(&self, offset: usize, value: T) -> Result<()> {
        let at = self.at::<T>("write", offset)?;
        before_write();
        // SAFETY: As in `read`; the mapping is also writable.
        unsafe { at.write_volatile(value.cpu_to_le()) };
        Ok(())
    }

    /// Sends writes to a write-combined BAR that the CPU has delayed. That they have arrived at the
    /// device is proven only by a read that is answered.
    pub fn flush(&self) {
        fence(Ordering::SeqCst);
    }

    /// Where to access a `T`: an address that is mapped as long as `self` exists, and aligned.
    #[inline]
    fn at<T: Word>(&self, verb: &str, offset: usize) -> Result<*mut T> {
        let size = size_of::<T>();
        let name = Name(self.number);
        bounds::check(verb, name, offset, size, size, self.info.len)?;
        for (start, map) in &self.pieces {
            // Pieces are whole pages, so an aligned access does not cross their ends. For a piece
            // that begins after the offset, the difference wraps around to a large number.
            let inside = (offset as u64).wrapping_sub(*start);
            if inside < map.len() as u64 {
                return Ok(map.as_mut_ptr().wrapping_add(inside as usize).cast());
            }
        }
        Err(in_the_hole(verb, size, offset, name))
    }
}

/// The name of a BAR in errors.
#[derive(Clone, Copy)]
struct Name(usize);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BAR {}", self.0)
    }
}

/// The error of an access to the hole.
#[cold]
fn in_the_hole(verb: &str, size: usize, offset: usize, name: Name) -> Error {
    let attempt = format!("{verb} {size} bytes at offset {offset:#x} of {name}");
    let cause = "the pages with the MSI-X table cannot be accessed";
    Error::refused(Operation::Access, attempt, Errno::EINVAL, cause)
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
