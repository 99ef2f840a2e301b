// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers: memory in whole pages that only the CPU reaches, and that can be registered.
#![allow(unsafe_code)]

use std::fs::File;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::{fmt, io};

use memmap2::{Advice, MmapOptions};
use nix::errno::Errno;

use crate::device::Device;
use crate::error::{Error, ErrorWith, Operation, RegisterAllError, Result};
use crate::memory::deref::as_slice;
use crate::memory::element::{check_layout, Element};
use crate::memory::options::RegisterOptions;
use crate::memory::raw::RawRegistration;
use crate::memory::registration::Registration;
use crate::sys::map::{page_size, Map};

/// The kind of pages that a [`Buffer`] is made of.
///
/// ```no_run
/// use pinmap::{Access, Buffer, Device, Pages};
/// # fn f(device: &Device) -> pinmap::Result<()> {
/// // Pinned and mapped by 32 pages, not 16,384.
/// let buffer = Buffer::<u8>::with_pages(64 << 20, Pages::Huge { bits: 21 })?;
/// let registration = buffer.register(device, Access::ReadWrite)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pages {
    /// Pages as the system chooses them.
    #[default]
    Normal,
    /// Transparent huge pages where the system has them. This is only a hint. Huge pages are pinned
    /// and mapped much faster.
    Transparent,
    /// Huge pages of `1 << bits` bytes from the system's pool (hugetlb), where they must have been
    /// set aside. On x86 `bits` is 21 or 30. The length is rounded up to whole huge pages.
    Huge {
        /// The page size as a power of two.
        bits: u8,
    },
}

/// Memory of the program in whole pages of its own, which no device can reach: a slice of elements.
///
/// [`register`](Self::register) makes the memory reachable for a device and turns the buffer into a
/// [`Registration`]; releasing that gives the buffer back with its content. For the queues of an
/// accelerator, [`Accelerator::register`](crate::accelerator::Accelerator::register) takes a
/// buffer, too.
///
/// ```
/// let mut samples = pinmap::Buffer::<i16>::new(1000)?;
/// samples[0] = -1;
/// assert_eq!(samples.len(), 1000);
/// assert_eq!(samples.addr() % 4096, 0);
/// # pinmap::Result::<()>::Ok(())
/// ```
pub struct Buffer<T = u8> {
    /// At least `len` elements, in whole pages.
    memory: Map,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Allocates zeroed memory for `len` elements, in whole pages.
    ///
    /// ```no_run
    /// # fn f() -> pinmap::Result<()> {
    /// let mut samples = pinmap::Buffer::<i16>::new(1 << 20)?;
    /// samples[0] = -1;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: `len` is 0; `EOVERFLOW`: `len` exceeds every address space; `ENOMEM`: out of
    /// memory or address space.
    pub fn new(len: usize) -> Result<Self> {
        Self::with_pages(len, Pages::Normal)
    }

    /// Allocates a buffer and copies these elements to it.
    /// [`Device::register`] and
    /// [`Accelerator::register`](crate::accelerator::Accelerator::register) take a `Vec` where it
    /// is.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn from_slice(elements: &[T]) -> Result<Self> {
        let mut buffer = Self::new(elements.len())?;
        buffer.copy_from_slice(elements);
        Ok(buffer)
    }

    /// Allocates memory as [`new`](Self::new) does, of pages of this kind.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new); `ENOMEM`: not enough huge pages were set aside; `EINVAL`: the
    /// system has no huge pages of that size.
    pub fn with_pages(len: usize, pages: Pages) -> Result<Self> {
        const { check_layout::<T>() }
        let bytes = len.saturating_mul(size_of::<T>());
        let attempt = || format!("allocate {bytes} bytes");
        let page = match pages {
            Pages::Huge { bits } => 1usize.checked_shl(bits.into()).unwrap_or(0),
            Pages::Normal | Pages::Transparent => page_size(),
        };
        let mut options = MmapOptions::new();
        options.len(round(bytes, page, attempt)?);
        if let Pages::Huge { bits } = pages {
            options.huge(Some(bits));
        }
        let map = options
            .map_anon()
            .map_err(|error| allocation(attempt(), &error))?;
        let memory = Map::new(map.into());
        if pages == Pages::Transparent {
            // A kernel without transparent huge pages says EINVAL.
            let _ = memory.advise(Advice::HugePage);
        }
        Ok(Self::from_memory(memory, len))
    }

    /// Maps a part of a file, shared: `len` elements from byte `offset` on. A device can be allowed
    /// to write to a memfd or a file in tmpfs or hugetlbfs; other files it can only read. For a
    /// file that is open for reading only, use `memmap2::Mmap` with
    /// [`Accelerator::register`](crate::accelerator::Accelerator::register).
    ///
    /// # Errors
    ///
    /// `EINVAL`: `len` is 0, or `offset` is too large or not a multiple of the page size;
    /// `EOVERFLOW`: `len` exceeds every address space; `EACCES`: the file is not open for reading
    /// and writing; `ENODEV`: the file cannot be mapped; `ENOMEM`: out of address space.
    ///
    /// # Safety
    ///
    /// The buffer is accessed as a slice, so as long as it exists:
    ///
    /// - nothing else may write to that part of the file: no other process, no other mapping, and
    ///   no system call;
    /// - the file must reach to the end of the last page and not be truncated (`SIGBUS`).
    ///
    /// The first does not apply while the buffer belongs to a
    /// [`Registration`](crate::Registration), which hands out no references. It does apply while
    /// the buffer is in a [`Registered`](crate::accelerator::Registered), which is a slice, too.
    pub unsafe fn from_file(file: &File, offset: u64, len: usize) -> Result<Self> {
        const { check_layout::<T>() }
        let bytes = len.saturating_mul(size_of::<T>());
        let attempt = || format!("map {bytes} bytes of a file from {offset} on");
        let rounded = round(bytes, page_size(), attempt)?;
        if offset % page_size() as u64 != 0 {
            let cause = "it does not begin with a page";
            return Err(Error::refused(
                Operation::Allocate,
                attempt(),
                Errno::EINVAL,
                cause,
            ));
        }
        let map = MmapOptions::new().offset(offset).len(rounded).map_raw(file);
        let map = map.map_err(|error| allocation(attempt(), &error))?;
        Ok(Self::from_memory(Map::new(map), len))
    }

    fn elements(&self) -> *mut T {
        self.memory.start().cast()
    }
}

impl<T> Buffer<T> {
    /// User address of the first element.
    pub fn addr(&self) -> usize {
        self.memory.addr()
    }

    /// Makes the memory reachable for a device, in whole pages: pins it and, unless the options say
    /// otherwise, maps it in the device's address space. Until it is released, the memory can only
    /// be copied from and to.
    ///
    /// The device address equals the user address ([`addr`](Self::addr)) if the IOMMU allows that.
    /// Mapping makes this context the owner of a flat device.
    ///
    /// ```no_run
    /// use pinmap::{Access, Buffer, Device};
    /// # fn f(device: &Device) -> pinmap::Result<()> {
    /// let mut buffer = Buffer::new(4096)?;
    /// buffer[..5].copy_from_slice(b"hello");
    /// let registration = buffer.register(device, Access::Read)?;
    /// println!("the device finds it at {:#x}", registration.device_addr()?);
    /// let buffer: Buffer<u8> = registration.release()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The buffer comes back with the error. [`Error::failure`](crate::Error::failure) has the
    /// details.
    ///
    /// `ENOMEM`: over `RLIMIT_MEMLOCK`, or out of memory; `ENOSPC`: no room among the device
    /// addresses, or too many registrations; `EEXIST`: the demanded device address is taken;
    /// `EBUSY`: another context owns the device; `EPERM`: another process opened the device;
    /// `EFAULT`: memory of a file that cannot be pinned; `EINVAL`: the device address is not a
    /// multiple of the page size, or the address bits are not 12 to 64; `ENODEV`: the device is
    /// gone.
    pub fn register(
        self,
        device: &Device,
        options: impl Into<RegisterOptions>,
    ) -> Result<Registration<Self>, ErrorWith<Self>> {
        let (addr, len) = (self.memory.addr(), self.memory.len());
        // SAFETY: All of the memory belongs to `self`, which is consumed, so there is no reference
        // to it, and a `Registration` gives none except to atomics until it is released. If it is
        // neither released nor dropped, nothing ever unmaps the memory.
        match unsafe { RawRegistration::new(device, addr, len, options.into()) } {
            Ok(raw) => Ok(Registration::new(raw, self)),
            Err(error) => Err(ErrorWith { error, value: self }),
        }
    }

    /// The buffer of memory that no device reaches, with room for `len` elements.
    fn from_memory(memory: Map, len: usize) -> Self {
        Self {
            memory,
            len,
            elements: PhantomData,
        }
    }

    /// The memory, in whole pages.
    pub(crate) fn memory(&self) -> &Map {
        &self.memory
    }
}

impl Device {
    /// Registers several buffers, as [`Buffer::register`] does each of them: all or none. The
    /// driver does it by one call for up to 1024 of them, which takes less time than as many calls.
    /// No buffers do nothing.
    ///
    /// The options are those of each buffer. With [`RegisterOptions::at`] the first buffer is at
    /// that device address, and each of the others begins where the one before it ends, so that the
    /// device finds all of them in one piece.
    ///
    /// ```no_run
    /// use pinmap::{Access, Buffer, Device, Registration, Result};
    /// # fn f(device: &Device) -> Result<()> {
    /// let frames = (0..64).map(|_| Buffer::<u8>::new(1 << 16)).collect::<Result<Vec<_>>>()?;
    /// let frames = device.register_all(frames, Access::ReadWrite)?;
    /// for frame in &frames {
    ///     println!("the device finds it at {:#x}", frame.device_addr()?);
    /// }
    /// let frames: Vec<Buffer<u8>> = Registration::release_all(frames)?;
    /// # drop(frames); Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Buffer::register`], of one of the buffers, or of all of them. Nothing is registered
    /// then, and all buffers come back with the error.
    pub fn register_all<T>(
        &self,
        buffers: impl IntoIterator<Item = Buffer<T>>,
        options: impl Into<RegisterOptions>,
    ) -> Result<Vec<Registration<Buffer<T>>>, RegisterAllError<Buffer<T>>> {
        let (buffers, options): (Vec<_>, _) = (buffers.into_iter().collect(), options.into());
        let range = |buffer: &Buffer<T>| (buffer.memory.addr(), buffer.memory.len());
        let ranges: Vec<_> = buffers.iter().map(range).collect();
        // SAFETY: As in `Buffer::register`, for each of them.
        match unsafe { RawRegistration::new_all(self, &ranges, options) } {
            Ok(raw) => {
                let each = raw.into_iter().zip(buffers);
                Ok(each
                    .map(|(raw, buffer)| Registration::new(raw, buffer))
                    .collect())
            }
            Err(refused) => Err(refused.with(self, &ranges, buffers)),
        }
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: It is mapped, begins with a page, hence aligned, and is initialised, because
        // memory from mmap() is; any bytes are elements. The memory of a `Buffer` is not
        // registered, and nothing else has it (for a file, by the contract of `from_file`);
        // `&self` excludes `deref_mut`.
        unsafe { std::slice::from_raw_parts(self.elements(), self.len) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: As for `deref`, and `&mut self` excludes all other references.
        unsafe { std::slice::from_raw_parts_mut(self.elements(), self.len) }
    }
}

as_slice! { (T: Element) (T: Element) Buffer<T> as T }

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.len)
            .finish()
    }
}

/// Rounds a length up to whole pages of this size.
fn round(len: usize, page: usize, attempt: impl Fn() -> String) -> Result<usize> {
    let refuse = |errno, cause| Error::refused(Operation::Allocate, attempt(), errno, cause);
    if len == 0 {
        return Err(refuse(Errno::EINVAL, "there must be at least one byte"));
    }
    // The kernel takes 0 bits for a size of its own choice, and maps more than is unmapped later.
    if page < page_size() {
        return Err(refuse(Errno::EINVAL, "there are no pages of that size"));
    }
    let rounded = len
        .checked_next_multiple_of(page)
        .filter(|&len| len <= isize::MAX as usize);
    rounded.ok_or_else(|| refuse(Errno::EOVERFLOW, "no address space is that large"))
}

/// The error of a failed mmap().
fn allocation(attempt: String, error: &io::Error) -> Error {
    Error::from_io(Operation::Allocate, attempt, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{memfd_create, MFdFlags};

    #[test]
    fn is_zeroed_whole_pages() {
        let mut buffer = Buffer::<u8>::new(page_size() + 1).expect("memory");
        assert_eq!(buffer.len(), page_size() + 1);
        assert_eq!(buffer.memory().len(), 2 * page_size());
        assert_eq!(buffer.addr() % page_size(), 0);
        assert!(buffer.iter().all(|&byte| byte == 0));
        buffer[page_size()] = 7;
        assert_eq!(buffer[page_size()], 7);
    }

    #[test]
    fn huge_pages_are_no_smaller_than_pages() {
        for bits in [0, 11, 64] {
            let refused = Buffer::<u8>::with_pages(5000, Pages::Huge { bits });
            assert_eq!(refused.expect_err("refused").errno(), Errno::EINVAL as i32);
        }
    }

    #[test]
    fn hints_are_only_hints() {
        let buffer = Buffer::<u8>::with_pages(1, Pages::Transparent).expect("memory");
        assert_eq!(buffer.len(), 1);
    }

    #[test]
    fn elements_are_those_that_were_given() {
        let buffer = Buffer::from_slice(&[1.5f32, 2.5]).expect("memory");
        assert_eq!(buffer.as_bytes()[..4], 1.5f32.to_ne_bytes());
        assert_eq!(buffer[..], [1.5, 2.5]);
        assert_eq!(buffer.memory().len(), page_size());
        assert_eq!(
            Buffer::<u64>::new(usize::MAX / 8 + 1)
                .expect_err("too long")
                .errno(),
            75
        );
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let errno = |len| Buffer::<u8>::new(len).expect_err("refused").errno();
        assert_eq!(errno(0), Errno::EINVAL as i32);
        assert_eq!(errno(usize::MAX), Errno::EOVERFLOW as i32);
        assert_eq!(errno(isize::MAX as usize), Errno::EOVERFLOW as i32);
        let error = Buffer::<u8>::with_pages(1, Pages::Huge { bits: 200 }).expect_err("refused");
        assert_eq!(error.errno(), Errno::EINVAL as i32);
    }

    #[test]
    fn a_file_is_shared() {
        let file = memfd_create(c"pinmap-test", MFdFlags::MFD_CLOEXEC).expect("a memfd");
        let file = File::from(file);
        file.set_len(3 * page_size() as u64).expect("a length");
        // SAFETY: Nothing else has the file, and it is long enough.
        let mut buffer = unsafe { Buffer::from_file(&file, page_size() as u64, 1) }.expect("a map");
        buffer[0] = 7;
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, page_size() as u64)
            .expect("a byte");
        assert_eq!((byte[0], buffer.memory().len()), (7, page_size()));
    }

    #[test]
    fn a_file_begins_with_a_page() {
        let file =
            File::from(memfd_create(c"pinmap-test", MFdFlags::MFD_CLOEXEC).expect("a memfd"));
        // SAFETY: It is refused.
        let error = unsafe { Buffer::<u8>::from_file(&file, 1, 1) }.expect_err("refused");
        assert!(
            error.to_string().contains("does not begin with a page"),
            "{error}"
        );
    }

    #[test]
    fn buffers_can_be_shared_and_sent() {
        fn check<T: Send + Sync>() {}
        check::<Buffer>();
    }
}
