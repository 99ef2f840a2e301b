// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages that are registered for as long as they are lent.

use std::collections::BTreeMap;
use std::sync::Arc;

use nix::errno::Errno;

use crate::device::Device;
use crate::error::failure::Reason;
use crate::error::{Error, Operation, Refused, Result};
use crate::memory::options::{Access, RegisterOptions};
use crate::memory::query::State;
use crate::memory::raw::{all, outwards, RawRegistration};
use crate::sys::map::page_size;

use super::{Lender, Loan, Part};

/// Registered pages.
pub(super) struct Pages {
    registration: RawRegistration,
    loans: usize,
    /// The device was lent the pages for writing.
    written: bool,
}

impl Pages {
    fn last(&self) -> usize {
        self.registration.addr() + (self.registration.len() - 1)
    }
}

/// A part of the pages around a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    first: usize,
    last: usize,
    /// A page that may hold something else, too.
    shared: bool,
}

/// The pages around a slice, which is not empty: a page at its beginning that may hold something
/// else, whole pages, and a page at its end, as far as there are such.
fn segments(addr: usize, len: usize, page: usize) -> Option<Vec<Segment>> {
    let (start, pages) = outwards(addr, len, page)?;
    let (end, last) = (start + (pages - 1), addr + (len - 1));
    let mut segments = Vec::new();
    let mut add = |first, last, shared| {
        segments.push(Segment {
            first,
            last,
            shared,
        });
    };
    let head = addr != start;
    let tail = last != end;
    if pages == page {
        add(start, end, head || tail);
        return Some(segments);
    }
    let (mut inner, mut inner_last) = (start, end);
    if head {
        add(start, start + (page - 1), true);
        inner += page;
    }
    if tail {
        inner_last = end - page;
    }
    if inner < inner_last {
        add(inner, inner_last, false);
    }
    if tail {
        add(inner_last + 1, end, true);
    }
    Some(segments)
}

/// Pages that are to be registered.
struct New {
    len: usize,
    shared: bool,
    /// The first of the slices that needs them.
    index: usize,
}

/// Needs of slices: pages that are registered, by their first addresses, and new ones.
#[derive(Default)]
struct Plan {
    /// New pages by first address. They overlap neither with one another nor with what is
    /// registered.
    new: BTreeMap<usize, New>,
    /// For each slice, the first addresses of the pages that together contain it.
    slices: Vec<Vec<usize>>,
}

impl Lender {
    /// Registers the pages around slices, each given as address and length, that are not registered
    /// yet: for all slices or for none. Returns the loans of each, and how many bytes were
    /// registered.
    pub(super) fn register_slices(
        self: &Arc<Self>,
        device: &Device,
        slices: &[(usize, usize)],
        access: Access,
    ) -> Result<(Vec<Vec<Loan>>, usize), Refused> {
        let mut state = self.lock();
        let mut plan = Plan::default();
        for (index, &(addr, len)) in slices.iter().enumerate() {
            plan.add(&state.pages, device, addr, len, access)
                .map_err(|error| Refused {
                    error,
                    index: Some(index),
                })?;
        }
        let registrations = plan.register(device, access)?;
        let bytes = registrations.iter().map(RawRegistration::len).sum();
        for registration in registrations {
            let new = Pages {
                registration,
                loans: 0,
                written: false,
            };
            state.pages.insert(new.registration.addr(), new);
        }
        for first in plan.slices.iter().flatten() {
            if let Some(pages) = state.pages.get_mut(first) {
                pages.loans += 1;
                pages.written |= access == Access::ReadWrite;
            }
        }
        drop(state);
        let loan = |first| self.loan(device, Part::Pages(first));
        let loans = plan.slices.into_iter();
        let loans = loans.map(|parts| parts.into_iter().map(loan).collect());
        Ok((loans.collect(), bytes))
    }
}

/// Pages, of some that do not overlap, that have addresses of a segment, each by its first and its
/// last address. From the last to the first.
fn overlapping<'a, P>(
    pages: &'a BTreeMap<usize, P>,
    segment: Segment,
    last: impl Fn(usize, &P) -> usize + 'a,
) -> impl Iterator<Item = (usize, usize, &'a P)> {
    let before = pages.range(..=segment.last).rev();
    let all = before.map(move |(&first, pages)| (first, last(first, pages), pages));
    all.take_while(move |&(_, last, _)| last >= segment.first)
}

impl Plan {
    /// Adds a slice.
    fn add(
        &mut self,
        pages: &BTreeMap<usize, Pages>,
        device: &Device,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<()> {
        let mut parts = Vec::new();
        if len != 0 {
            let segments = segments(addr, len, page_size()).ok_or_else(|| {
                let attempt = format!("lend {len} bytes at {addr:#x} to {device}");
                Error::new(Operation::Register, attempt, Errno::EINVAL)
            })?;
            for segment in segments {
                self.add_segment(pages, segment, access, &mut parts)?;
            }
        }
        self.slices.push(parts);
        Ok(())
    }

    /// Finds pages that together contain a segment, and adds those that none contains. Adds their
    /// first addresses to `parts`.
    fn add_segment(
        &mut self,
        pages: &BTreeMap<usize, Pages>,
        segment: Segment,
        access: Access,
        parts: &mut Vec<usize>,
    ) -> Result<()> {
        let mut found = Vec::new();
        for (first, last, known) in overlapping(pages, segment, |_, pages| pages.last()) {
            check(known, segment, access)?;
            found.push((first, last));
        }
        let new = overlapping(&self.new, segment, |first, new| first + (new.len - 1));
        found.extend(new.map(|(first, last, _)| (first, last)));
        found.sort_unstable();
        let mut at = segment.first;
        let mut gaps = Vec::new();
        for (first, last) in found {
            if at < first {
                gaps.push((at, first - at));
            }
            parts.push(first);
            at = last + 1;
        }
        if at <= segment.last {
            gaps.push((at, segment.last - at + 1));
        }
        for (addr, len) in gaps {
            let new = New {
                len,
                shared: segment.shared,
                index: self.slices.len(),
            };
            self.new.insert(addr, new);
            parts.push(addr);
        }
        Ok(())
    }

    /// Registers the new pages at their own addresses, all or none. A page that is shared is
    /// registered for writing even if the loan only reads, because the next one may write; unless
    /// it cannot be.
    fn register(&self, device: &Device, access: Access) -> Result<Vec<RawRegistration>, Refused> {
        let mut new: Vec<_> = self.new.iter().collect();
        // Stable: the first slice that cannot be had is named.
        new.sort_by_key(|(_, new)| new.index);
        let writes = |new: &New| access == Access::ReadWrite || new.shared;
        let (written, read): (Vec<_>, Vec<_>) = new.into_iter().partition(|(_, new)| writes(new));
        let mut made = register_all(device, &written, Access::ReadWrite).or_else(|refused| {
            match access == Access::Read && is_read_only(&refused.error) {
                true => register_each(device, &written),
                false => {
                    let rest = read.iter().map(|(_, new)| new.len as u64).sum();
                    let error = refused.error.with_more_locked(rest);
                    Err(Refused { error, ..refused })
                }
            }
        })?;
        // After an error, what was made is dropped: the device could not write there.
        made.extend(register_all(device, &read, Access::Read)?);
        Ok(made)
    }
}

/// Checks that a segment can use registered pages.
fn check(known: &Pages, segment: Segment, access: Access) -> Result<()> {
    if known.registration.query()?.state == State::Stale {
        let attempt = format!("lend the page at {:#x}", segment.first);
        let cause = "memory that was lent in that page before has left the address space, and was \
                     not given back";
        let errno = Errno::ESTALE;
        return Err(Error::refused(Operation::Register, attempt, errno, cause));
    }
    if access == Access::ReadWrite && known.registration.access() != Access::ReadWrite {
        let attempt = format!("lend the page at {:#x} for writing", segment.first);
        let cause = "other memory in that page is lent, and the page can only be read";
        let errno = Errno::EACCES;
        return Err(Error::refused(Operation::Register, attempt, errno, cause));
    }
    Ok(())
}

/// Registers new pages, all or none.
fn register_all(
    device: &Device,
    new: &[(&usize, &New)],
    access: Access,
) -> Result<Vec<RawRegistration>, Refused> {
    let ranges: Vec<_> = new.iter().map(|&(&addr, new)| (addr, new.len)).collect();
    let options = RegisterOptions::new(access).identity();
    // SAFETY: Checked work accesses only slices that are lent, of which those for writing are
    // borrowed exclusively; these pages are released when the last of them is given back. Raw
    // packets are the concern of those who submit them.
    let made = unsafe { RawRegistration::new_all(device, &ranges, options) };
    made.map_err(|refused| Refused {
        // From the number of the pages to that of the slice.
        index: refused
            .index
            .and_then(|index| Some(new.get(index)?.1.index)),
        ..refused
    })
}

/// Registers new pages for loans that read: each for writing, or else for reading.
fn register_each(device: &Device, new: &[(&usize, &New)]) -> Result<Vec<RawRegistration>, Refused> {
    let mut made = Vec::with_capacity(new.len());
    for one in new.chunks(1) {
        let registered = match register_all(device, one, Access::ReadWrite) {
            Err(refused) if is_read_only(&refused.error) => register_all(device, one, Access::Read),
            result => result,
        };
        made.extend(registered?);
    }
    Ok(made)
}

/// Whether memory cannot be registered for writing, but perhaps for reading.
fn is_read_only(error: &Error) -> bool {
    let reason = error.failure().map(|failure| failure.reason);
    matches!(reason, Some(Reason::Permission | Reason::File))
}

/// Ends a loan of registered pages. Returns them if it was the last one.
pub(super) fn end_loan(pages: &mut BTreeMap<usize, Pages>, first: usize) -> Option<Pages> {
    let entry = pages.get_mut(&first)?;
    entry.loans -= 1;
    match entry.loans {
        0 => pages.remove(&first),
        _ => None,
    }
}

/// Takes pages of which nothing is lent any more back from the device.
pub(super) fn take_back(mut ended: Vec<Pages>) -> Result<()> {
    let (mut written, mut read) = (Vec::new(), Vec::new());
    for pages in &mut ended {
        let pages_of = match pages.written {
            true => &mut written,
            false => &mut read,
        };
        pages_of.push(&mut pages.registration);
    }
    let released = all::release_all_or_abort(&mut written);
    // A device may go on reading this memory, should the release fail.
    let _ = all::release_all(&mut read);
    released
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: usize = 0x1000;

    fn all(addr: usize, len: usize) -> Vec<(usize, usize, bool)> {
        let segments = segments(addr, len, PAGE).expect("inside of the address space");
        let parts = segments.iter().map(|s| (s.first, s.last, s.shared));
        parts.collect()
    }

    #[test]
    fn pages_at_the_ends_are_apart() {
        assert_eq!(all(0x1000, 0x1000), [(0x1000, 0x1fff, false)]);
        assert_eq!(all(0x1000, 0x3000), [(0x1000, 0x3fff, false)]);
        assert_eq!(all(0x1004, 8), [(0x1000, 0x1fff, true)]);
        let two = [(0x1000, 0x1fff, true), (0x2000, 0x2fff, true)];
        assert_eq!(all(0x1fff, 2), two);
        let head = [(0x1000, 0x1fff, true), (0x2000, 0x3fff, false)];
        assert_eq!(all(0x1001, 0x2fff), head);
        let tail = [(0x1000, 0x2fff, false), (0x3000, 0x3fff, true)];
        assert_eq!(all(0x1000, 0x2001), tail);
        let three = [
            (0x1000, 0x1fff, true),
            (0x2000, 0x2fff, false),
            (0x3000, 0x3fff, true),
        ];
        assert_eq!(all(0x1fff, 0x1002), three);
        assert!(segments(usize::MAX, 1, PAGE).is_none());
    }

    proptest! {
        #[test]
        fn segments_are_the_pages_around_a_slice(
            addr in 1usize..0x8000, len in 1usize..0x8000,
        ) {
            let segments = segments(addr, len, PAGE).expect("inside");
            let (start, pages) = outwards(addr, len, PAGE).expect("inside");
            let mut at = start;
            for segment in &segments {
                prop_assert_eq!(segment.first, at);
                prop_assert!(segment.last > segment.first);
                at = segment.last + 1;
                let inside = addr <= segment.first && segment.last < addr + len;
                prop_assert_eq!(segment.shared, !inside);
                prop_assert!(!segment.shared || segment.last - segment.first == PAGE - 1);
            }
            prop_assert_eq!(at, start + pages);
        }
    }
}
