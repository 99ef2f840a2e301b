// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parts of files, read into allocations and written from them past the page cache.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg};
use nix::libc;

use crate::error::{Error, Operation, Result};
use crate::memory::allocation::{Allocation, Place};
use crate::memory::element::Element;
use crate::sys::map::page_size;
use crate::sys::sysfs::Sysfs;

/// Bytes copied at a time where the host's memory is in between.
const PIECE: usize = 1 << 20;

/// The way of bytes where a disk cannot transfer to or from the memory by itself, for instance
/// because the bus does not let it reach the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Detour {
    /// Fail, with the reason.
    #[default]
    Refuse,
    /// Copy by way of a buffer in the host's memory, and of the page cache.
    Host,
}

/// How many bytes a transfer between a file and an [`Allocation`] had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Transferred {
    /// All bytes; fewer than were asked for if the file ends.
    pub bytes: usize,
    /// Bytes that the disk has transferred by itself.
    pub direct: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

impl<T: Element> Allocation<T> {
    /// Reads a part of a file into these elements, from byte `offset` of the file on. The disk
    /// writes to the memory by itself (`O_DIRECT`): to host memory always, to memory of the device
    /// from [`alloc_vram_p2pdma`](crate::accelerator::Accelerator::alloc_vram_p2pdma) if the disk's
    /// driver and the bus allow it. Bytes at the end that are no whole page are copied by the CPU.
    /// If the file ends sooner, the elements behind its end are zeros, or what they were.
    ///
    /// ```no_run
    /// use pinmap::{accelerator::Accelerator, Detour};
    /// # fn f(gpu: &Accelerator) -> Result<(), Box<dyn std::error::Error>> {
    /// let file = std::fs::File::open("weights.bin")?;
    /// let len = file.metadata()?.len() as usize;
    /// let mut weights = gpu.alloc_vram_p2pdma::<u8>(len)?;
    /// let read = weights.read_into(0..len, &file, 0, Detour::Refuse)?;
    /// assert_eq!(read.bytes, len);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL`: the range does not end inside the allocation, or it or `offset` does not begin
    /// with a page. With [`Detour::Refuse`]: `EINVAL` or `EREMOTEIO`, the disk cannot write to this
    /// memory, and the message says what is between it and the device; `EFAULT`, the memory has no
    /// P2PDMA pages. `EBADF`: the file is not open for that. Otherwise the errno of `open()`, with
    /// which the file is opened again, and of `pread()`, which may have had a part of the bytes
    /// before.
    pub fn read_into(
        &mut self,
        elements: Range<usize>,
        file: &File,
        offset: u64,
        detour: Detour,
    ) -> Result<Transferred> {
        self.transfer(Way::Read, elements, file, offset, detour)
    }

    /// Writes these elements to a part of a file, from byte `offset` of the file on. The disk reads
    /// the memory by itself, as it does for [`read_into`](Self::read_into).
    ///
    /// ```no_run
    /// use pinmap::{Allocation, Detour};
    /// # fn f(weights: &Allocation<u8>) -> Result<(), Box<dyn std::error::Error>> {
    /// let file = std::fs::File::create("weights.bin")?;
    /// weights.write_from(0..weights.len(), &file, 0, Detour::Host)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`read_into`](Self::read_into).
    pub fn write_from(
        &self,
        elements: Range<usize>,
        file: &File,
        offset: u64,
        detour: Detour,
    ) -> Result<Transferred> {
        self.transfer(Way::Write, elements, file, offset, detour)
    }

    fn transfer(
        &self,
        way: Way,
        elements: Range<usize>,
        file: &File,
        offset: u64,
        detour: Detour,
    ) -> Result<Transferred> {
        let attempt = || {
            let Range { start, end } = &elements;
            let memory = format!("the elements {start}..{end} of {}", self.words());
            match way {
                Way::Read => format!("read a file into {memory}"),
                Way::Write => format!("write {memory} to a file"),
            }
        };
        let refuse =
            |cause: &str| Error::refused(Operation::Access, attempt(), Errno::EINVAL, cause);
        let fail = |error: io::Error| Error::from_io(Operation::Access, attempt(), &error);
        if elements.start > elements.end || elements.end > self.len() {
            return Err(refuse(&format!("there are {} elements", self.len())));
        }
        let bytes = elements.start * size_of::<T>()..elements.end * size_of::<T>();
        let page = page_size();
        if bytes.start % page != 0 || offset % page as u64 != 0 {
            return Err(refuse("it does not begin with a page"));
        }
        let mut done = Transferred {
            bytes: 0,
            direct: 0,
        };
        let whole = bytes.len() / page * page;
        if whole > 0 {
            let error = match again(file, way, libc::O_DIRECT) {
                Ok(file) => {
                    let (direct, error) = self.direct(way, bytes.start, whole, &file, offset);
                    done.direct = direct;
                    error
                }
                Err(error) => Some(error),
            };
            if let (Some(error), Detour::Refuse) = (error, detour) {
                return Err(self.explain(fail(error), file));
            }
        }
        done.bytes = done.direct;
        if done.direct == whole || detour == Detour::Host {
            let rest = bytes.start + done.direct..bytes.end;
            let offset = offset + done.direct as u64;
            done.bytes += self.copied(way, rest, file, offset).map_err(fail)?;
        }
        Ok(done)
    }

    /// Has the disk transfer whole pages, up to the end of the file. Returns the number of bytes,
    /// and why there are not more if they have not come to the end.
    fn direct(
        &self,
        way: Way,
        start: usize,
        len: usize,
        file: &File,
        offset: u64,
    ) -> (usize, Option<io::Error>) {
        let mut done = 0;
        while done < len {
            let memory = (self.addr() + start + done) as *mut libc::c_void;
            let at = (offset + done as u64) as libc::off_t;
            // SAFETY: The bytes are in the mapping of the allocation, as the caller has checked.
            // What is read there are bytes of elements, to which there are no references.
            let got = unsafe {
                match way {
                    Way::Read => libc::pread(file.as_raw_fd(), memory, len - done, at),
                    Way::Write => libc::pwrite(file.as_raw_fd(), memory, len - done, at),
                }
            };
            match usize::try_from(got) {
                Ok(0) => break,
                Ok(got) => done += got,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return (done, Some(error)),
                },
            }
            // The file ends there: what follows would not begin with a block.
            if done % page_size() != 0 {
                break;
            }
        }
        (done, None)
    }

    /// Adds to an error why the disk does not reach the memory, if it is that.
    fn explain(&self, error: Error, file: &File) -> Error {
        let is = |errno: Errno| error.errno() == errno as i32;
        if is(Errno::EFAULT) && self.mapped().place() == Place::Vram {
            return error.with_hint("allocate it with `Accelerator::alloc_vram_p2pdma`");
        }
        match self.between(file) {
            Some(between) if is(Errno::EINVAL) || is(Errno::EREMOTEIO) => error.with_hint(between),
            _ => error,
        }
    }

    /// Copies bytes by way of a buffer, up to the end of the file.
    fn copied(&self, way: Way, bytes: Range<usize>, file: &File, offset: u64) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let file = again(file, way, 0)?;
        let mut buffer = vec![0; bytes.len().min(PIECE)];
        let mut done = 0;
        while done < bytes.len() {
            let piece = (bytes.len() - done).min(PIECE);
            let piece = &mut buffer[..piece];
            let at = offset + done as u64;
            match way {
                Way::Read => {
                    let got = match file.read_at(piece, at) {
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                        got => got?,
                    };
                    if got == 0 {
                        break;
                    }
                    self.view().write(bytes.start + done, &piece[..got]);
                    done += got;
                }
                Way::Write => {
                    self.view().read(bytes.start + done, piece);
                    file.write_all_at(piece, at)?;
                    done += piece.len();
                }
            }
        }
        Ok(done)
    }

    /// Says what is between the disk of `file` and the device, if that is known.
    fn between(&self, file: &File) -> Option<String> {
        let device = file.metadata().ok()?.dev();
        let number = format!("{}:{}", libc::major(device), libc::minor(device));
        let pci = self.device().info().ok()?.pci;
        Sysfs::system().between(&number, pci)
    }
}

/// Opens a file once more, with these flags besides, if it is open for that: opening asks who may
/// open it, not what the descriptor is for.
fn again(file: &File, way: Way, flags: i32) -> io::Result<File> {
    let mode = fcntl(file, FcntlArg::F_GETFL)? & libc::O_ACCMODE;
    let allowed = match way {
        Way::Read => mode != libc::O_WRONLY,
        Way::Write => mode != libc::O_RDONLY,
    };
    if !allowed {
        return Err(Errno::EBADF.into());
    }
    File::options()
        .read(way == Way::Read)
        .write(way == Way::Write)
        .custom_flags(flags)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
