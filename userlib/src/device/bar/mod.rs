// SPDX-License-Identifier: MIT OR Apache-2.0
//! BARs: the registers and the memory of a PCI function, mapped.
#![allow(unsafe_code)]

pub(crate) mod registers;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

use crate::device::info::{BarInfo, Kind};
use crate::device::Device;
use crate::error::bounds;
use crate::error::{Error, Operation, Result};
use crate::memory::raw::Keep;
use crate::sys::barrier::{after_read, before_write};
use crate::sys::word::Word;

/// A mapped BAR: registers or memory of the device.
///
/// Made by [`Device::bar`]. A clone is the same mapping. [`read`](Self::read) and
/// [`write`](Self::write) make exactly one access of the size of its type, in program order, and
/// [`read_slice`](Self::read_slice) and [`write_slice`](Self::write_slice) one for each element.
/// PCI is little-endian; values are converted from and to the CPU's byte order. Where registers
/// are accessed again and again, declare them with [`registers!`](crate::registers): then offsets
/// are checked when the program is compiled.
///
/// ```no_run
/// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
/// let bar = device.bar(0)?;
/// let identification: u32 = bar.read(0x00)?;
/// bar.write(0x20, 1.5f32)?; // a coefficient
/// bar.write(0x24, 1)?; // 4 bytes, as any integer without a type
/// # Ok(()) }
/// ```
///
/// Once the device is gone, an access raises `SIGBUS`.
#[derive(Debug, Clone)]
pub struct Bar {
    mapped: Arc<Mapped>,
    /// The part of the BAR: offset and length.
    start: u64,
    len: u64,
    direct: Direct,
}

/// The beginning of a BAR or of a part of it, as far as it is mapped in one piece: most accesses
/// are there.
///
/// # Invariants
///
/// The bytes are mapped, readable and writable, as long as the mappings of the BAR exist.
#[derive(Debug, Clone, Copy)]
struct Direct {
    start: *mut u8,
    len: usize,
}

// SAFETY: It is an address, and a device's registers are outside of the memory model: several
// threads may access them.
unsafe impl Send for Direct {}
// SAFETY: As for `Send`.
unsafe impl Sync for Direct {}

impl Bar {
    /// Keeps the mappings.
    pub(crate) fn keep(&self) -> Keep {
        self.mapped.clone()
    }
}

#[derive(Debug)]
struct Mapped {
    number: usize,
    info: BarInfo,
    /// Mappings of all but the hole, each with its offset in the BAR.
    pieces: Vec<(u64, MmapRaw)>,
    /// Keeps the context open, and with it bus mastering and ownership.
    device: Device,
}

impl Device {
    /// Maps all pages of a BAR that can be mapped: write-combined if the BAR is prefetchable, and
    /// otherwise uncached. Makes this context the owner of the device.
    ///
    /// ```no_run
    /// # fn f(device: &pinmap::Device) -> pinmap::Result<()> {
    /// let registers = device.bar(0)?;
    /// let id: u32 = registers.read(0x00)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `ENOENT`: the function has no such BAR, or it is an accelerator; `EOPNOTSUPP`: the BAR
    /// cannot be mapped; `EBUSY`: another context owns the device; `ENODEV`: the device is gone;
    /// `ENOMEM`: out of address space.
    pub fn bar(&self, number: usize) -> Result<Bar> {
        let attempt = || format!("map BAR {number} of {self}");
        let info = self.info()?;
        let Some(&Some(info)) = info.bars.get(number) else {
            let cause = match info.kind {
                Kind::Paged => "the driver keeps the BARs of an accelerator to itself",
                _ => "the function has no such BAR",
            };
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
        let mapped = Mapped {
            number,
            info,
            pieces,
            device: self.clone(),
        };
        Ok(Bar::part(&Arc::new(mapped), 0, info.len))
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

impl Mapped {
    /// The rest of the piece that has the byte at an offset, if one has.
    fn piece(&self, offset: u64) -> Option<Direct> {
        self.pieces.iter().find_map(|(start, map)| {
            let inside = usize::try_from(offset.checked_sub(*start)?).ok()?;
            // INVARIANT: It is the end of a mapping.
            let len = map.len().checked_sub(inside).filter(|&len| len != 0)?;
            let start = map.as_mut_ptr().wrapping_add(inside);
            Some(Direct { start, len })
        })
    }
}

impl Bar {
    /// A part of a BAR that is inside.
    fn part(mapped: &Arc<Mapped>, start: u64, len: u64) -> Self {
        // INVARIANT: Shorter, or of no length at all.
        let direct = mapped.piece(start).map(|piece| Direct {
            len: piece.len.min(usize::try_from(len).unwrap_or(usize::MAX)),
            ..piece
        });
        Self {
            mapped: Arc::clone(mapped),
            start,
            len,
            direct: direct.unwrap_or(Direct {
                start: std::ptr::null_mut(),
                len: 0,
            }),
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.mapped.device
    }

    /// The number of the BAR.
    pub fn number(&self) -> usize {
        self.mapped.number
    }

    /// Length in bytes, including the hole.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The properties of the whole BAR, such as its hole.
    pub fn info(&self) -> &BarInfo {
        &self.mapped.info
    }

    /// Returns a part of the BAR, by a range of bytes, for instance for the driver of one block of
    /// the device. Offsets in it count from its beginning.
    ///
    /// ```no_run
    /// # fn f(bar: &pinmap::Bar) -> pinmap::Result<()> {
    /// let timer = bar.window(0x1000..0x1100)?;
    /// timer.write(0x04, 1000u32)?; // 0x1004 of the BAR
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range is empty, or does not end inside the BAR.
    pub fn window(&self, range: Range<u64>) -> Result<Self> {
        if range.start >= range.end || range.end > self.len {
            let attempt = format!("take the bytes {range:#x?} of {}", Name(self.number()));
            let cause = format!("it has {:#x} bytes", self.len);
            let errno = Errno::EINVAL;
            return Err(Error::refused(Operation::Bar, attempt, errno, cause));
        }
        let len = range.end - range.start;
        Ok(Self::part(&self.mapped, self.start + range.start, len))
    }

    /// Reads values from byte `offset` on, one access for each.
    ///
    /// ```no_run
    /// # fn f(bar: &pinmap::Bar) -> pinmap::Result<()> {
    /// let mut table = [0u32; 16];
    /// bar.read_slice(0x400, &mut table)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the offset is not a multiple of the size of `T`, or the values are not all inside
    /// the BAR or lie in its hole.
    pub fn read_slice<T: Word>(&self, offset: usize, to: &mut [T]) -> Result<()> {
        let from = self
            .at("read", offset, size_of::<T>(), size_of_val(to))?
            .cast::<T>();
        for (index, value) in to.iter_mut().enumerate() {
            // SAFETY: As in `read`, for each of the values, all of which are mapped.
            *value = unsafe { from.add(index).read_volatile() }.le_to_cpu();
        }
        after_read();
        Ok(())
    }

    /// Writes values from byte `offset` on, one access for each. To a write-combined BAR that is
    /// fast, because the CPU merges them into whole bursts.
    ///
    /// ```no_run
    /// # fn f(bar: &pinmap::Bar) -> pinmap::Result<()> {
    /// // A command of 64 bytes, and then, when it is on its way, the doorbell.
    /// bar.write_slice(0x1000, &[0x42u64, 0, 0, 0, 0, 0, 0, 0])?;
    /// bar.flush();
    /// bar.write(0x2000, 1u32)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`read_slice`](Self::read_slice).
    pub fn write_slice<T: Word>(&self, offset: usize, from: &[T]) -> Result<()> {
        let to = self
            .at("write", offset, size_of::<T>(), size_of_val(from))?
            .cast::<T>();
        before_write();
        for (index, value) in from.iter().enumerate() {
            // SAFETY: As in `read_slice`; the mapping is also writable.
            unsafe { to.add(index).write_volatile(value.cpu_to_le()) };
        }
        Ok(())
    }

    /// Reads a value at byte `offset`. Later reads of registered memory see what the device wrote
    /// before it answered.
    ///
    /// ```no_run
    /// # fn f(bar: &pinmap::Bar) -> pinmap::Result<()> {
    /// // The type says how wide the access is.
    /// let status: u32 = bar.read(0x20)?;
    /// let temperature = bar.read::<f32>(0x24)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the offset is not a multiple of the size of `T`, or the value is not inside the
    /// BAR or is in its hole.
    #[inline]
    pub fn read<T: Word>(&self, offset: usize) -> Result<T> {
        let at = self
            .at("read", offset, size_of::<T>(), size_of::<T>())?
            .cast::<T>();
        // SAFETY: `at` is mapped, readable and aligned, as `at()` guarantees. A device's registers
        // are outside of the memory model: several threads may access them.
        let value = unsafe { at.read_volatile() };
        after_read();
        Ok(value.le_to_cpu())
    }

    /// Writes a value at byte `offset`. When the device sees it, the device also sees everything
    /// that was written to registered memory before.
    ///
    /// The write is posted: it returns before the device has it, and a [`read`](Self::read) returns
    /// after. Writes to a write-combined BAR may be delayed and merged: see [`flush`](Self::flush).
    ///
    /// ```no_run
    /// # fn f(bar: &pinmap::Bar, registration: &pinmap::Registration) -> pinmap::Result<()> {
    /// bar.write(0x80, registration.device_addr()?)?; // 8 bytes
    /// bar.write(0x98, 1u32)?; // 4 bytes
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    #[inline]
    pub fn write<T: Word>(&self, offset: usize, value: T) -> Result<()> {
        let at = self
            .at("write", offset, size_of::<T>(), size_of::<T>())?
            .cast::<T>();
        before_write();
        // SAFETY: As in `read`; the mapping is also writable.
        unsafe { at.write_volatile(value.cpu_to_le()) };
        Ok(())
    }

    /// The address at which `len` bytes from byte `offset` on are mapped, for code that accesses
    /// them by itself, for instance by copying many at once. They stay mapped, readable and
    /// writable, as long as there is a `Bar` for them; when the device is gone, an access raises
    /// `SIGBUS`. Nothing orders such accesses with those to other memory.
    ///
    /// ```no_run
    /// # fn f(bar: &pinmap::Bar) -> pinmap::Result<()> {
    /// let memory = bar.as_mut_ptr(0x1000, 4096)?;
    /// // SAFETY: The pages are mapped as long as `bar` exists.
    /// unsafe { memory.write_bytes(0, 4096) };
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the bytes are not all inside the BAR, or lie in its hole.
    pub fn as_mut_ptr(&self, offset: usize, len: usize) -> Result<*mut u8> {
        self.at("map", offset, 1, len)
    }

    /// Sends writes to a write-combined BAR that the CPU has delayed. That they have arrived at the
    /// device is proven only by a read that is answered.
    ///
    /// ```no_run
    /// # fn f(framebuffer: &pinmap::Bar) -> pinmap::Result<()> {
    /// framebuffer.write_slice(0, &[0xff00_00ffu32; 640])?;
    /// framebuffer.flush();
    /// # Ok(()) }
    /// ```
    pub fn flush(&self) {
        fence(Ordering::SeqCst);
    }

    /// Where to access `len` bytes in units of `unit` bytes: an address that is mapped as long as
    /// `self` exists, and aligned to the unit.
    #[inline]
    fn at(&self, verb: &str, offset: usize, unit: usize, len: usize) -> Result<*mut u8> {
        let Direct { start, len: direct } = self.direct;
        let at = start.wrapping_add(offset);
        // A page begins with every unit, so the address is aligned as the offset in the BAR is.
        if len <= direct && offset <= direct - len && at.addr() & (unit - 1) == 0 {
            return Ok(at);
        }
        self.elsewhere(verb, offset, unit, len)
    }

    /// Where to access bytes that are behind a hole, or nowhere.
    #[cold]
    fn elsewhere(&self, verb: &str, offset: usize, unit: usize, len: usize) -> Result<*mut u8> {
        let name = Name(self.mapped.number);
        bounds::check(verb, name, offset, len, 1, self.len)?;
        let start = self.start + offset as u64;
        if start % unit as u64 != 0 {
            return Err(unaligned(verb, len, offset, unit, name));
        }
        match self.mapped.piece(start) {
            Some(piece) if len <= piece.len => Ok(piece.start),
            None if len == 0 => Ok(self.direct.start),
            _ => Err(in_the_hole(verb, len, offset, name)),
        }
    }
}

/// The error of an access that is not aligned.
#[cold]
fn unaligned(verb: &str, len: usize, offset: usize, unit: usize, name: Name) -> Error {
    let attempt = format!("{verb} {len} bytes at offset {offset:#x} of {name}");
    let cause = format!("the offset is not a multiple of {unit}");
    Error::refused(Operation::Access, attempt, Errno::EINVAL, cause)
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
pub(super) mod tests;
