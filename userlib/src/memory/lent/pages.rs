// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages that are registered for as long as they are lent.

use std::collections::BTreeMap;
use std::sync::Arc;

use nix::errno::Errno;

use crate::device::Device;
use crate::error::failure::Reason;
use crate::error::{Error, Operation, Result};
use crate::memory::options::{Access, RegisterOptions};
use crate::memory::query::State;
use crate::memory::raw::{outwards, RawRegistration};
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

impl Lender {
    /// Registers the pages around a slice that are not registered yet. Returns the loans, and how
    /// many bytes were registered.
    pub(super) fn register_slice(
        self: &Arc<Self>,
        device: &Device,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<(Vec<Loan>, usize)> {
        let attempt = || format!("lend {len} bytes at {addr:#x} to {device}");
        let segments = segments(addr, len, page_size())
            .ok_or_else(|| Error::new(Operation::Register, attempt(), Errno::EINVAL))?;
        let (mut parts, mut bytes) = (Vec::new(), 0);
        let mut state = self.lock();
        let found = segments.into_iter().try_for_each(|segment| {
            let taken = take(&mut state.pages, device, segment, access, &mut parts)?;
            bytes += taken;
            Ok(())
        });
        drop(state);
        // After an error, what was found is given back without the lock.
        let loans: Vec<_> = parts
            .into_iter()
            .map(|first| self.loan(device, Part::Pages(first)))
            .collect();
        found.map(|()| (loans, bytes))
    }
}

/// Takes loans of registered pages that together contain a segment, and registers the pages that
/// none contains. Adds the first addresses to `parts`, and returns how many bytes were registered.
fn take(
    pages: &mut BTreeMap<usize, Pages>,
    device: &Device,
    segment: Segment,
    access: Access,
    parts: &mut Vec<usize>,
) -> Result<usize> {
    let writes = access == Access::ReadWrite;
    let known = pages.range_mut(..=segment.last).rev();
    let mut known: Vec<_> = known
        .take_while(|(_, pages)| pages.last() >= segment.first)
        .collect();
    known.reverse();
    let (mut at, mut gaps) = (segment.first, Vec::new());
    for (first, pages) in known {
        if pages.registration.query()?.state == State::Stale {
            let attempt = format!("lend the page at {:#x}", segment.first);
            let cause = "memory that was lent in that page before has left the address space, and \
                         was not given back";
            let errno = Errno::ESTALE;
            return Err(Error::refused(Operation::Register, attempt, errno, cause));
        }
        if writes && pages.registration.access() != Access::ReadWrite {
            let attempt = format!("lend the page at {:#x} for writing", segment.first);
            let cause = "other memory in that page is lent, and the page can only be read";
            let errno = Errno::EACCES;
            return Err(Error::refused(Operation::Register, attempt, errno, cause));
        }
        if at < *first {
            gaps.push((at, *first - at));
        }
        pages.loans += 1;
        pages.written |= writes;
        parts.push(*first);
        at = pages.last() + 1;
    }
    if at <= segment.last {
        gaps.push((at, segment.last - at + 1));
    }
    let mut bytes = 0;
    for (addr, len) in gaps {
        let registration = register(device, addr, len, segment.shared, access)?;
        let new = Pages {
            registration,
            loans: 1,
            written: writes,
        };
        pages.insert(addr, new);
        parts.push(addr);
        bytes += len;
    }
    Ok(bytes)
}

/// Registers whole pages at their own addresses. A page that is shared is registered for writing
/// even if the loan only reads, because the next one may write; unless it cannot be.
fn register(
    device: &Device,
    addr: usize,
    len: usize,
    shared: bool,
    access: Access,
) -> Result<RawRegistration> {
    let register = |access| {
        let options = RegisterOptions::new(access).identity();
        // SAFETY: Checked work accesses only slices that are lent, of which those for writing are
        // borrowed exclusively; these pages are released when the last of them is given back. Raw
        // packets are the concern of those who submit them.
        unsafe { RawRegistration::new(device, addr, len, options) }
    };
    if access == Access::Read && shared {
        match register(Access::ReadWrite) {
            Err(error)
                if error
                    .failure()
                    .is_some_and(|failure| is_read_only(failure.reason)) => {}
            result => return result,
        }
    }
    register(access)
}

/// Whether memory cannot be registered for writing for this reason, but perhaps for reading.
fn is_read_only(reason: Reason) -> bool {
    matches!(reason, Reason::Permission | Reason::File)
}

/// Ends a loan of registered pages.
pub(super) fn give_back(pages: &mut BTreeMap<usize, Pages>, first: usize) -> Result<()> {
    let Some(entry) = pages.get_mut(&first) else {
        return Ok(());
    };
    entry.loans -= 1;
    if entry.loans != 0 {
        return Ok(());
    }
    match pages.remove(&first) {
        Some(mut entry) if entry.written => entry.registration.release_or_abort(),
        // A device may go on reading this memory, should the release fail.
        _ => Ok(()),
    }
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
