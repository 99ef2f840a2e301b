// SPDX-License-Identifier: GPL-2.0
//! Pins pages of memory files (memfd, tmpfs, hugetlbfs), whether or not they are mapped anywhere.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h), `memfd_pin_folios()`.

use super::pages::{block_of, Pages, BLOCK};
use crate::{
    logic::{runs::Run, span::Span, PAGE_SHIFT, PAGE_SIZE},
    sys::{helpers, task, task::account::Charge},
};
use core::ptr::{self, NonNull};
use kernel::{bindings, error::to_result, prelude::*};

/// A memfd, or a file of tmpfs or hugetlbfs, with a reference.
///
/// # Invariants
///
/// The pointer is valid and we own a reference. If `write`, the file counts as mapped for writing.
pub(crate) struct MemoryFile {
    file: NonNull<bindings::file>,
    write: bool,
}

// SAFETY: Files are reference-counted and may be used from any thread.
unsafe impl Send for MemoryFile {}
// SAFETY: Files are reference-counted and may be used from any thread.
unsafe impl Sync for MemoryFile {}

impl MemoryFile {
    /// Takes a file by a descriptor of the current task. Fails with `EBADF` if the descriptor is
    /// not open, `EINVAL` if it is another kind of file, `EACCES` if it is not open for such
    /// access, and `EPERM` if it is sealed against writing.
    pub(crate) fn from_fd(fd: i32, write: bool) -> Result<Self> {
        let fd = u32::try_from(fd).map_err(|_| EBADF)?;
        // SAFETY: The call takes any number.
        let file = NonNull::new(unsafe { bindings::fget(fd) }).ok_or(EBADF)?;
        // INVARIANT: The call took a reference.
        let mut this = Self { file, write: false };
        // SAFETY: Valid by the type invariants.
        to_result(unsafe { helpers::pinmap_memfd_begin(this.file.as_ptr(), write) })?;
        // INVARIANT: The call has counted the file as mapped for writing.
        this.write = write;
        Ok(this)
    }

    /// Whether a seal forbids new ways to write to the file.
    fn is_sealed(&self) -> bool {
        // SAFETY: The file is valid by the type invariants, and `from_fd` has checked that its kind
        // has seals.
        unsafe { helpers::pinmap_memfd_is_sealed(self.file.as_ptr()) }
    }

    /// Size of the file in bytes, at this time.
    pub(crate) fn size(&self) -> u64 {
        // SAFETY: Valid by the type invariants.
        unsafe { helpers::pinmap_file_size(self.file.as_ptr()) }
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the file is counted as mapped for writing, and the
        // reference ours.
        unsafe {
            if self.write {
                helpers::pinmap_memfd_end(self.file.as_ptr());
            }
            bindings::fput(self.file.as_ptr());
        }
    }
}

/// Pinned pages of a file as runs, and the charge for them. Dropping it unpins the pages.
///
/// # Invariants
///
/// For each run that has a part of a folio, the folio is pinned once; no two runs have parts of the
/// same folio.
pub(crate) struct PinnedFile {
    runs: KVVec<Run>,
    pages: u64,
    file: MemoryFile,
    _charge: Charge,
}

/// Folios that one call pins at most. The call, which may also clear them, cannot be interrupted.
const CHUNK: usize = 256;
/// Bytes that one call pins at most, or the size of one huge page if that is larger.
const CHUNK_BYTES: u64 = 8 << 20;

impl PinnedFile {
    /// Makes an empty list; `charge` pays for the pages to come.
    pub(crate) fn new(file: MemoryFile, charge: Charge) -> Self {
        // INVARIANT: There are no runs.
        Self {
            runs: KVVec::new(),
            pages: 0,
            file,
            _charge: charge,
        }
    }

    /// Pins `span`, a range of offsets in the file; can be called once. Pages that the file does
    /// not have are made, and pages that nobody has written yet are cleared. Ends when `wanted`,
    /// which is called now and then, fails. An error comes with the offset that it is about.
    /// Sleeps.
    pub(crate) fn fill(
        &mut self,
        span: Span,
        wanted: impl Fn() -> Result,
    ) -> core::result::Result<(), (Error, u64)> {
        let mut at = span.start();
        self.try_fill(span, wanted, &mut at)
            .map_err(|errno| (errno, at))
    }

    fn try_fill(&mut self, span: Span, wanted: impl Fn() -> Result, failed_at: &mut u64) -> Result {
        let mut folios = KVec::from_elem(ptr::null_mut(), CHUNK, GFP_KERNEL_ACCOUNT)?;
        // SAFETY: The file is valid.
        let step = unsafe { helpers::pinmap_memfd_folio_size(self.file.file.as_ptr()) };
        // Folios are aligned to their size in the file, so no folio is cut.
        let step = step.max(CHUNK_BYTES);
        while self.pages < span.pages() {
            wanted()?;
            let at = span
                .start()
                .saturating_add(self.pages.saturating_mul(PAGE_SIZE));
            let mut inside = 0;
            // SAFETY: The file is valid, and there is room for so many.
            let got = unsafe {
                helpers::pinmap_memfd_pin(
                    self.file.file.as_ptr(),
                    at,
                    span.last().min(at | step.wrapping_sub(1)),
                    folios.as_mut_ptr(),
                    CHUNK as u32,
                    &mut inside,
                )
            };
            if got < 0 {
                let errno = Error::from_errno(got as i32);
                if errno != EAGAIN {
                    *failed_at = at.saturating_add(inside.saturating_mul(PAGE_SIZE));
                    return Err(errno);
                }
                // Pages were added to the file or removed meanwhile.
                task::cond_resched();
                continue;
            }
            let got = got.unsigned_abs();
            if got == 0 {
                return Err(EFAULT);
            }
            let left = span.pages().saturating_sub(self.pages);
            self.take(folios.get_mut(..got).unwrap_or_default(), inside, left)?;
            task::cond_resched();
        }
        Ok(())
    }

    /// Adds pinned folios, from page `skip` of the first one on, up to `left` pages. On failure,
    /// those that could not be stored are unpinned.
    fn take(&mut self, folios: &mut [*mut bindings::folio], skip: u64, left: u64) -> Result {
        let (mut skip, mut left) = (skip, left);
        for index in 0..folios.len() {
            let Some(&folio) = folios.get(index) else {
                break;
            };
            // SAFETY: The folio is pinned.
            let (pfn, pages) = unsafe {
                (
                    helpers::pinmap_folio_pfn(folio) as u64,
                    helpers::pinmap_folio_pages(folio) as u64,
                )
            };
            let part = pages.saturating_sub(skip).min(left);
            let stored = Run::new(pfn.saturating_add(skip), part)
                .ok_or(ERANGE)
                .and_then(|run| self.push(run));
            if let Err(error) = stored {
                if let Some(rest) = folios.get_mut(index..) {
                    // SAFETY: The folios are pinned, and stored nowhere.
                    unsafe { bindings::unpin_folios(rest.as_mut_ptr(), rest.len()) };
                }
                return Err(error);
            }
            left = left.saturating_sub(part);
            skip = 0;
        }
        Ok(())
    }

    fn push(&mut self, run: Run) -> Result {
        let joined = self.runs.last().and_then(|last| last.join(run));
        // INVARIANT: The folio is stored with one run.
        match (joined, self.runs.last_mut()) {
            (Some(joined), Some(last)) => *last = joined,
            _ => self.runs.push(run, GFP_KERNEL_ACCOUNT)?,
        }
        self.pages = self.pages.saturating_add(run.pages());
        Ok(())
    }

    /// Whether the file has been sealed against new ways to write to it.
    pub(crate) fn is_sealed(&self) -> bool {
        self.file.is_sealed()
    }

    /// Returns the index of each run's first page, for [`pfn_at`](Self::pfn_at).
    pub(crate) fn starts(&self) -> Result<KVVec<u64>> {
        let mut starts = KVVec::with_capacity(self.runs.len(), GFP_KERNEL_ACCOUNT)?;
        let mut next = 0_u64;
        for run in &self.runs {
            starts.push(next, GFP_KERNEL_ACCOUNT)?;
            next = next.saturating_add(run.pages());
        }
        Ok(starts)
    }

    /// Returns the page frame of page `index`; `starts` must be this file's.
    pub(crate) fn pfn_at(&self, starts: &[u64], index: u64) -> Option<u64> {
        let behind = starts.partition_point(|&start| start <= index);
        let at = behind.checked_sub(1)?;
        let inside = index.checked_sub(*starts.get(at)?)?;
        let run = self.runs.get(at).filter(|run| inside < run.pages())?;
        Some(run.pfn().saturating_add(inside))
    }
}

// SAFETY: The runs are pinned as long as `self` lives.
unsafe impl Pages for PinnedFile {
    fn pages(&self) -> u64 {
        self.pages
    }

    fn blocks(&self) -> usize {
        self.runs.len().div_ceil(BLOCK)
    }

    fn block(&self, index: usize) -> &[Run] {
        block_of(&self.runs, index)
    }

    fn writable(&self) -> bool {
        self.file.write
    }
}

impl Drop for PinnedFile {
    fn drop(&mut self) {
        for run in &self.runs {
            let mut pfn = run.pfn();
            let end = pfn.saturating_add(run.pages());
            while pfn < end {
                // SAFETY: The page is part of a folio that is pinned for this run, by the type
                // invariants. Whatever lets a device reach it has a reference to `self`, so nothing
                // does any more.
                let next = unsafe { helpers::pinmap_unpin_folio_of(pfn as usize, self.file.write) };
                pfn = next as u64;
                task::cond_resched();
            }
        }
    }
}

const _: () = assert!(1 << PAGE_SHIFT == kernel::page::PAGE_SIZE);
