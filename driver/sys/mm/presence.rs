// SPDX-License-Identifier: GPL-2.0
//! Tells whether pinned pages are still what their addresses mean.
//!
//! A pin keeps a page, but does not keep it in its place: after `madvise(MADV_DONTNEED)` or
//! truncation the same address means another page, and a device would go on using the old one. The
//! MMU notifier says that something was cleared, but not what came of it. So this looks at the page
//! table, and at the file for a page of a file.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h).

use super::gup::{PagePtr, PinnedRuns};
use crate::{
    logic::{span::Span, PAGE_SIZE},
    sys::{helpers, task},
};
use core::ptr;
use kernel::{
    bindings,
    mm::{Mm, MmWithUser},
};

/// Whether a page is still where it was pinned.
enum Whereabouts {
    /// The page is still there.
    Here,
    /// The page is not there, and will not come back.
    Gone,
    /// Cannot be told now, since somebody holds a lock.
    Busy,
}

/// Tells whether `page`, pinned at `address` of `mm`, is still what the address means. Waits for
/// nothing.
///
/// The page is still there if the page table holds it; or if the page table holds nothing while the
/// page still belongs to its file. The memory has gone away if the page table holds another page,
/// or nothing for an anonymous page.
///
/// # Safety
///
/// `page` must be pinned.
unsafe fn whereabouts(mm: &Mm, address: u64, page: PagePtr) -> Whereabouts {
    // If this is the last reference, the address space is taken apart later, by another task.
    let Some(user) = mm.mmget_not_zero().map(MmWithUser::into_mmput_async) else {
        return Whereabouts::Gone;
    };
    let Some(_lock) = user.mmap_read_trylock() else {
        return Whereabouts::Busy;
    };
    match page_at(user.as_raw(), address) {
        Some(found) if ptr::eq(found, page) => return Whereabouts::Here,
        Some(_) => return Whereabouts::Gone,
        None => {}
    }
    // While migration attempts and reclaim have emptied the page table, they hold the page lock.
    //
    // SAFETY: The page is pinned.
    if !unsafe { helpers::pinmap_page_trylock(page) } {
        return Whereabouts::Busy;
    }
    let whereabouts = match page_at(user.as_raw(), address) {
        Some(found) if ptr::eq(found, page) => Whereabouts::Here,
        Some(_) => Whereabouts::Gone,
        // SAFETY: The page is pinned and locked.
        None if unsafe { helpers::pinmap_page_is_anon(page) } => Whereabouts::Gone,
        // SAFETY: The page is pinned and locked.
        None => match unsafe { helpers::pinmap_page_in_file(page) } {
            helpers::PINMAP_IN_ITS_FILE => Whereabouts::Here,
            helpers::PINMAP_FILE_BUSY => Whereabouts::Busy,
            _ => Whereabouts::Gone,
        },
    };
    // SAFETY: The page was locked above.
    unsafe { helpers::pinmap_page_unlock(page) };
    whereabouts
}

/// Returns the page that the page table holds for `address`, if any, without faulting one in. The
/// result may only be compared. The mmap lock of `mm` must be held.
fn page_at(mm: *mut bindings::mm_struct, address: u64) -> Option<PagePtr> {
    let mut page = ptr::null_mut();
    let mut locked = 1;
    // FOLL_FORCE, because mprotect(PROT_NONE) does not take a page away. Nothing is read from the
    // page.
    //
    // SAFETY: The mmap lock is held, and there is room for one page.
    let got = unsafe {
        bindings::get_user_pages_remote(
            mm,
            address as usize,
            1,
            bindings::FOLL_NOFAULT | bindings::FOLL_FORCE,
            &mut page,
            &mut locked,
        )
    };
    if got != 1 {
        return None;
    }
    // SAFETY: The call gave us a reference.
    unsafe { helpers::pinmap_put_page(page) };
    Some(page)
}

/// The answer to whether pinned pages are still in their place.
pub(crate) enum Finding {
    /// All pages that were looked at are still what their addresses mean. The range, if any, is
    /// what was not looked at.
    Here(Option<Span>),
    /// A page has gone away.
    Gone,
    /// Cannot be told now for this range, since somebody holds a lock.
    Busy(Span),
}

impl PinnedRuns {
    /// Tells whether the pages, pinned from `start` of `mm` on, are still what the addresses in
    /// `range` mean. Looks at `most` pages at most, and as long as `wanted` says so. Waits for
    /// nothing.
    pub(crate) fn find(
        &self,
        mm: &Mm,
        start: u64,
        range: Span,
        most: u64,
        wanted: impl Fn() -> bool,
    ) -> Finding {
        let rest = |from: u64| Span::from_bounds(from, range.last());
        let (mut at, mut looked) = (start, 0_u64);
        for run in self.iter() {
            let Ok(span) = Span::new(at, run.pages().saturating_mul(PAGE_SIZE)) else {
                return Finding::Gone;
            };
            at = at.saturating_add(span.length());
            let Some(part) = span.intersection(range) else {
                continue;
            };
            let skipped = part.start().saturating_sub(span.start()) / PAGE_SIZE;
            // SAFETY: A pinned run consists of pages.
            let first = unsafe { helpers::pinmap_pfn_to_page(run.pfn() as usize) };
            for index in 0..part.pages() {
                let address = part.start().saturating_add(index.saturating_mul(PAGE_SIZE));
                if looked == most {
                    return Finding::Here(rest(address));
                }
                if !wanted() {
                    return Finding::Here(None);
                }
                looked = looked.saturating_add(1);
                task::cond_resched();
                let page = first.wrapping_add(skipped.saturating_add(index) as usize);
                // SAFETY: The page belongs to a run that is pinned by the type invariants.
                match unsafe { whereabouts(mm, address, page) } {
                    Whereabouts::Here => {}
                    Whereabouts::Gone => return Finding::Gone,
                    Whereabouts::Busy => {
                        return rest(address).map_or(Finding::Here(None), Finding::Busy);
                    }
                }
            }
        }
        Finding::Here(None)
    }
}
