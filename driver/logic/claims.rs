// SPDX-License-Identifier: GPL-2.0
//! Claims about the logic that hold for all arguments.
//!
//! A claim is a function that takes its arguments from [`any`] and panics if it is wrong. An
//! overflow or a panic in the logic is a panic, too. It returns `None` where there is nothing to
//! claim. Each claim is checked in two ways: a test runs it with every combination of values at
//! which something changes, and `scripts/prove` proves it for all values (a `usize` has 32 bits).

use crate::place::Placement;
use crate::pte::{shift, slot, Access, Format, Leaf, Leaves, Memory, Step, LARGE};
use crate::request::{self, managed};
use crate::residence::{decide, Advice, Facts, History, Place, Rule, LIMIT, PERIOD};
use crate::runs::{Run, MAX_PAGES, PFN_LIMIT};
use crate::{block, contiguity::Contiguity, fault_around, handle, ring, share, size, uapi};
use crate::{span::Span, Refusal, PAGE_SIZE};

#[cfg(not(test))]
mod source {
    unsafe extern "C" {
        /// Any number; the prover imagines it.
        safe fn imagine() -> u64;
    }

    pub(super) fn any() -> u64 {
        imagine()
    }

    /// Any number at all. (The test takes one of `_values`.)
    pub(super) fn any_of(_values: &[u64]) -> u64 {
        imagine()
    }

    /// Any number at all. (The test takes one below `_few`.)
    pub(super) fn any_u32(_few: u32) -> u32 {
        imagine() as u32
    }

    #[panic_handler]
    fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
        core::arch::wasm32::unreachable()
    }
}
#[cfg(test)]
mod source;
#[cfg(test)]
mod spaces;
#[cfg(test)]
mod tested;

use source::{any, any_of, any_u32};

/// The name of a claim, and the claim.
#[cfg(test)]
type Claim = (&'static str, fn() -> Option<()>);

/// Declares claims, and lists them for the test.
macro_rules! claims {
    ($($(#[$doc:meta])* fn $name:ident() $body:block)*) => {
        mod claim {
            use super::*;
            $($(#[$doc])* pub(super) fn $name() -> Option<()> $body)*
        }
        #[cfg(test)]
        const CLAIMS: &[Claim] = &[$((stringify!($name), claim::$name)),*];
        $(
            #[cfg(not(test))]
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> bool {
                claim::$name().is_some()
            }
        )*
    };
}

fn any_bool() -> bool {
    any_of(&[0, 1]) & 1 != 0
}

fn any_span() -> Option<Span> {
    Span::from_bounds(any(), any())
}

/// Any number of address bits, and whether it is valid.
fn any_bits() -> (u32, bool) {
    let bits = any_of(&[0, 11, 12, 64, 65]) as u32;
    (bits, bits == 0 || (12..=64).contains(&bits))
}

fn overflows(start: u64, length: u64) -> bool {
    length != 0 && start.checked_add(length - 1).is_none()
}

fn is_pages(start: u64, length: u64) -> bool {
    start % PAGE_SIZE == 0 && length % PAGE_SIZE == 0 && length != 0
}

/// The answer to a request in the order that the ABI promises.
fn verdict(unsupported: bool, overflow: bool, invalid: bool) -> Result<(), Refusal> {
    match (unsupported, overflow, invalid) {
        (true, ..) => Err(Refusal::Unsupported),
        (_, true, _) => Err(Refusal::Overflow),
        (.., true) => Err(Refusal::Invalid),
        _ => Ok(()),
    }
}

/// Checks an answer to a request for a range.
fn check_range(got: Result<Span, Refusal>, wanted: Result<(), Refusal>, at: u64, length: u64) {
    assert!(got.map(|_| ()) == wanted);
    assert!(got.is_err() || got == Span::new(at, length));
}

/// The entries of the test GPU.
pub(crate) const FORMAT: Format = Format {
    valid: 1,
    read: 2,
    write: 4,
    execute: 8,
    host: 0x10,
    snoop: 0x20,
    leaf: 0x40,
    giant: true,
    atomic: 0x80,
    address: 0x000f_ffff_ffff_f000,
};

fn any_memory() -> Memory {
    let address = any();
    match any_bool() {
        true => Memory::Host(address),
        false => Memory::Vram(address),
    }
}

claims! {
    fn a_span_is_made_of_its_bytes() {
        let (start, length) = (any(), any());
        match Span::new(start, length) {
            Ok(span) => {
                assert!(span.start() == start && span.length() == length);
                assert!(Span::from_bounds(start, span.last()) == Some(span));
                assert!(span.is_whole_pages() == is_pages(start, length));
            }
            Err(Refusal::Invalid) => assert!(length == 0),
            Err(refusal) => assert!(refusal == Refusal::Overflow && overflows(start, length)),
        }
        Some(())
    }

    fn spans_are_sets_of_addresses() {
        let (a, b, x) = (any_span()?, any_span()?, any());
        let (in_a, in_b) = (a.contains(x), b.contains(x));
        let is_in = |part: Option<Span>| part.is_some_and(|part| part.contains(x));
        assert!(is_in(a.intersection(b)) == (in_a && in_b));
        assert!(a.overlaps(b) == a.intersection(b).is_some());
        assert!(is_in(a.before(b)) == (in_a && x < b.start()));
        assert!(is_in(a.behind(b)) == (in_a && x > b.last()));
        assert!(!(in_a || in_b) || a.union(b).contains(x));
        assert!(a.union(b).start() == a.start().min(b.start()));
        assert!(a.union(b).last() == a.last().max(b.last()));
        assert!(a.covers(b) == (a.contains(b.start()) && a.contains(b.last())));
        Some(())
    }

    fn an_aligned_span_has_its_address() {
        let (address, shift) = (any(), any_u32(64) & 63);
        let span = Span::aligned(address, 1 << shift);
        assert!(span.contains(address) && span.length() == 1 << shift);
        assert!(span.start().trailing_zeros() >= shift);
        Some(())
    }

    fn a_run_is_what_was_packed() {
        let (pfn, pages) = (any_of(&[0, 1, PFN_LIMIT - 1, PFN_LIMIT, u64::MAX]), any());
        let valid = pages != 0 && pages <= MAX_PAGES && pfn < PFN_LIMIT && pages <= PFN_LIMIT - pfn;
        let run = Run::new(pfn, pages);
        assert!(run.is_some() == valid);
        assert!(run.is_none_or(|run| run.pfn() == pfn && run.pages() == pages));
        Some(())
    }

    fn joined_runs_are_neighbours() {
        let (first, pages) = (any(), any_of(&[1, 2, MAX_PAGES - 1, MAX_PAGES]));
        let (next, more) = (any(), any_of(&[1, 2, MAX_PAGES - 1, MAX_PAGES]));
        let (a, b) = (Run::new(first, pages)?, Run::new(next, more)?);
        let fits = first + pages == next && pages + more <= MAX_PAGES;
        let joined = a.join(b);
        assert!(joined.is_some() == fits);
        assert!(joined.is_none_or(|run| run.pfn() == first && run.pages() == pages + more));
        Some(())
    }

    /// And what is accepted is what was asked for.
    fn register_answers_in_order() {
        let args = request::RegisterArgs {
            flags: any_u32(128),
            reserved: any_u32(2),
            address: any(),
            length: any(),
            device_address: any(),
            address_bits: any_bits().0,
        };
        let user_last = any_of(&[0x7fff_ffff_efff]);
        let has = |flag| args.flags & flag != 0;
        let fixed = has(uapi::PINMAP_REGISTER_FIXED);
        let bits = args.address_bits;
        let no_map = has(uapi::PINMAP_REGISTER_NO_MAP);
        let identity = has(uapi::PINMAP_REGISTER_IDENTITY);
        let last = args.address.wrapping_add(args.length).wrapping_sub(1);
        let wanted = verdict(
            args.flags >= 64 || args.reserved != 0,
            overflows(args.address, args.length)
                || fixed && overflows(args.device_address, args.length),
            !is_pages(args.address, args.length)
                || last > user_last
                || no_map && (fixed || identity || has(uapi::PINMAP_REGISTER_PORTABLE))
                || fixed && identity
                || bits != 0 && !(12..=64).contains(&bits)
                || args.device_address % PAGE_SIZE != 0
                || !fixed && args.device_address != 0,
        );
        let got = request::register(&args, user_last);
        check_range(got.map(|plan| plan.span), wanted, args.address, args.length);
        let plan = got.ok()?;
        assert!(plan.write == has(uapi::PINMAP_REGISTER_WRITE));
        assert!(plan.portable == has(uapi::PINMAP_REGISTER_PORTABLE));
        assert!(plan.interruptible == has(uapi::PINMAP_REGISTER_INTERRUPTIBLE));
        assert!(plan.target.is_none() == no_map);
        let target = plan.target?;
        assert!(target.address_bits == if bits == 0 { 64 } else { bits });
        assert!(target.placement == match (fixed, identity) {
            (true, _) => Placement::Fixed(args.device_address),
            (_, true) => Placement::Fixed(args.address),
            _ => Placement::Near(args.address),
        });
        Some(())
    }

    fn register_fd_is_register_of_offsets() {
        let (flags, offset, length) = (any_u32(128), any(), any());
        let (device_address, address_bits) = (any(), any_bits().0);
        let got = request::register_fd(flags, offset, length, device_address, address_bits);
        let args = request::RegisterArgs {
            flags, reserved: 0, address: offset, length, device_address, address_bits,
        };
        if flags & uapi::PINMAP_REGISTER_IDENTITY != 0 {
            assert!(got == Err(Refusal::Unsupported));
        } else {
            assert!(got == request::register(&args, i64::MAX as u64));
        }
        got.ok().map(|_| ())
    }

    fn map_answers_in_order() {
        let (flags, reserved, at) = (any_u32(16), any_u32(2), any());
        let (bits, valid_bits) = any_bits();
        let fixed = flags & uapi::PINMAP_MAP_FIXED != 0;
        let wanted = verdict(
            flags >= 8 || reserved != 0,
            false,
            !valid_bits || flags & 5 == 5 || if fixed { at % PAGE_SIZE != 0 } else { at != 0 },
        );
        let got = request::map(flags, reserved, at, bits);
        assert!(got.map(|_| ()) == wanted);
        let (plan, buffer) = (got.ok()?, any_span()?);
        assert!(plan.access == match flags & 5 { 4 => Access::Fetch, w => Access::all(w == 1) });
        let target = plan.target(buffer);
        if fixed && overflows(at, buffer.length()) {
            assert!(target == Err(Refusal::Overflow));
            return None;
        }
        let target = target.expect("it fits");
        let near = Placement::Near(buffer.start());
        assert!(target.placement == if fixed { Placement::Fixed(at) } else { near });
        assert!(target.address_bits == if bits == 0 { 64 } else { bits });
        Some(())
    }

    fn alloc_answers_in_order() {
        let (flags, reserved, length, node) = (any_u32(32), any_u32(2), any(), any_u32(3));
        let vram = flags & uapi::PINMAP_ALLOC_VRAM != 0;
        let on_node = flags & uapi::PINMAP_ALLOC_NODE != 0;
        let wanted = verdict(
            flags >= 32 || reserved != 0,
            false,
            !is_pages(0, length)
                || flags & if vram { 0xe } else { uapi::PINMAP_ALLOC_P2PDMA } != 0
                || !on_node && node != 0,
        );
        let got = request::alloc(flags, reserved, length, node);
        check_range(got.map(|plan| plan.span), wanted, 0, length);
        let plan = got.ok()?;
        assert!(plan.vram == vram && plan.node == on_node.then_some(node));
        assert!(plan.write_combined == (flags & uapi::PINMAP_ALLOC_WRITE_COMBINED != 0));
        assert!(plan.portable == (flags & uapi::PINMAP_ALLOC_PORTABLE != 0));
        Some(())
    }

    fn sync_answers_in_order() {
        let (flags, offset, length) = (any_u32(16), any(), any());
        let wanted = verdict(flags >= 8, overflows(offset, length), length == 0 || flags & 3 == 0);
        let got = request::sync(flags, offset, length);
        check_range(got.map(|plan| plan.part), wanted, offset, length);
        assert!(got.ok()?.always == (flags & uapi::PINMAP_SYNC_NO_SNOOP != 0));
        Some(())
    }

    fn managed_ranges_are_checked_in_order() {
        let (flags, at, length, bounds) = (any_u32(4), any(), any(), any_span()?);
        let overflow = overflows(at, length);
        let last = at.wrapping_add(length).wrapping_sub(1);
        let outside = !is_pages(at, length) || at < bounds.start() || last > bounds.last();
        let (reserved, advice, runs) = (any_u32(2), any_u32(32), any_of(&[0, 1, 7, 8]));

        let got = managed::prefetch(flags, at, length, bounds);
        check_range(got.map(|plan| plan.range), verdict(flags >= 4, overflow, outside), at, length);
        let told = managed::residency(flags, at, length, runs, bounds);
        check_range(told, verdict(flags != 0, overflow, outside || runs % 8 != 0), at, length);
        let wanted = verdict(
            flags != 0 || reserved != 0 || advice >= 16,
            overflow,
            outside || advice & 3 == 3,
        );
        let advised = managed::advise(flags, reserved, at, length, advice, bounds);
        check_range(advised.map(|(range, _)| range), wanted, at, length);
        assert!(advised.ok()?.1.bits() == advice);
        Some(())
    }

    fn manage_answers_in_order() {
        let (flags, at, length, bounds) = (any_u32(16), any(), any(), any_span()?);
        let all = flags & uapi::PINMAP_MANAGE_ALL != 0;
        let window = flags & uapi::PINMAP_MANAGE_WINDOW != 0;
        let last = at.wrapping_add(length).wrapping_sub(1);
        let outside = !is_pages(at, length) || at < bounds.start() || last > bounds.last();
        let small = window && (at % LARGE != 0 || length % LARGE != 0);
        let wanted = match all {
            true => verdict(flags >= 8, false, at != 0 || length != 0 || window),
            false => verdict(flags >= 8, overflows(at, length), outside || small),
        };
        let got = managed::manage(flags, at, length, bounds);
        assert!(got.map(|_| ()) == wanted);
        let plan = got.ok()?;
        assert!(if all { plan.range == bounds } else { Span::new(at, length) == Ok(plan.range) });
        assert!(plan.is_window == window);
        let on_host = flags & uapi::PINMAP_MANAGE_HOST != 0;
        assert!(plan.advice == if on_host { Advice::HOST } else { Advice::NONE });
        Some(())
    }

    fn a_budget_is_set_or_asked_for() {
        let (flags, bytes) = (any_u32(4), any());
        let got = managed::budget(flags, bytes);
        assert!(got.map(|_| ()) == verdict(flags > 1, false, flags == 0 && bytes != 0));
        assert!(got.is_err() || got == Ok((flags == 1).then_some(bytes)));
        Some(())
    }

    fn structs_grow() {
        let (given, known) = (any_of(&[0, 8, 23, 24, 25, 4096, 4097]) as u32, any_u32(128));
        let got = size::tail(given, known as usize);
        if given > 4096 {
            assert!(got == Err(Refusal::TooBig));
        } else if given < known {
            assert!(got == Err(Refusal::Invalid));
        } else {
            assert!(got == Ok((given - known) as usize));
        }
        Some(())
    }

    fn an_entry_is_read_as_it_was_made() {
        let (va, memory, large, inside) = (any(), any_memory(), any_bool(), any());
        let leaf = Leaf { va, memory, large };
        let access = match any_u32(4) {
            0 => Access::Read,
            1 => Access::Write,
            2 => Access::Atomic,
            _ => Access::Fetch,
        };
        let snoop = any_bool();
        let address = memory.address();
        if va % leaf.bytes() != 0 || inside >= leaf.bytes() {
            return None;
        }
        let fits = address & !FORMAT.address == 0 && address % leaf.bytes() == 0;
        let entry = FORMAT.leaf(leaf, access, snoop);
        assert!(entry.is_some() == fits);
        assert!(FORMAT.read(entry?, leaf.level(), va + inside) == Step::Leaf {
            memory: memory.plus(inside).expect("within the entry"),
            bytes: leaf.bytes(),
            read: true,
            write: access.is_write(),
            fetch: access == Access::Fetch,
            snoop: snoop && matches!(memory, Memory::Host(_)),
        });
        assert!((entry? & FORMAT.atomic != 0) == (access == Access::Atomic));
        Some(())
    }

    fn a_table_is_read_as_it_was_made() {
        let (offset, level) = (any(), any_u32(4) & 3);
        let entry = FORMAT.table(offset);
        assert!(entry.is_some() == (offset & !FORMAT.address == 0));
        let step = FORMAT.read(entry?, level, any());
        assert!(step == if level == 0 { Step::Absent } else { Step::Table(offset) });
        Some(())
    }

    /// No two addresses of 48 bits have the same entries.
    fn slots_are_the_address() {
        let va = any();
        let mut walked = va % PAGE_SIZE;
        for level in 0..4 {
            let slot = slot(level, va);
            assert!(slot % 8 == 0 && slot < PAGE_SIZE);
            walked |= (slot / 8) << shift(level);
        }
        assert!(walked == va % (1 << 48));
        Some(())
    }

    /// The rest has the leaves that it would have alone, so this holds for all leaves.
    fn a_leaf_begins_the_span() {
        let (span, memory) = (any_span()?, any_memory());
        let mut leaves = Leaves::new(span, memory);
        let leaf = leaves.next().expect("a span is not empty");
        if !span.is_whole_pages() || memory.address() % PAGE_SIZE != 0 {
            return None;
        }
        assert!(leaf.va == span.start() && leaf.memory == memory);
        let end = leaf.va.checked_add(leaf.bytes() - 1).expect("it is in the span");
        assert!(end <= span.last());
        let aligned = leaf.va % LARGE == 0 && memory.address() % LARGE == 0;
        assert!(leaf.large == (aligned && span.last() - leaf.va >= LARGE - 1));
        let rest = end.checked_add(1).and_then(|from| Span::from_bounds(from, span.last()));
        let behind = rest.zip(memory.plus(leaf.bytes()));
        let wanted = behind.and_then(|(rest, memory)| Leaves::new(rest, memory).next());
        assert!(leaves.next() == wanted);
        Some(())
    }

    fn contiguity_counts_no_page_twice() {
        let run = Run::new(any(), any_of(&[1, 511, 512, 513, 1024, MAX_PAGES]))?;
        let found = Contiguity::default().add(run);
        assert!(found.pages == run.pages() && found.runs == 1);
        assert!(found.huge % 512 == 0 && found.huge <= found.pages);
        assert!(found.pages < 1024 || found.huge + 1024 > found.pages);
        Some(())
    }

    fn a_ring_is_never_overfull() {
        let packets = any_of(&[0, 63, 64, 65, 128, 65536, 131_072]) as u32;
        let valid = packets.is_power_of_two() && (64..=65536).contains(&packets);
        assert!(ring::Ring::new(packets).is_ok() == valid);
        let ring = ring::Ring::new(packets).ok()?;
        let (written, read, count) = (any(), any(), any_of(&[0, 1, 64, 65]) as u32);
        assert!(ring.offset(written) + ring::PACKET <= ring.bytes());
        assert!(1 << ring.order() == packets);
        let after = ring.add(written, read, count)?;
        assert!(after - read <= packets.into() && after - written == count.into());
        Some(())
    }

    fn frames_are_shared_within_what_is_free() {
        let frames = share::FrameUse {
            free: any(),
            reserve: any(),
            contexts: any(),
            unused: any(),
            beyond: any(),
        };
        let count = any();
        assert!(frames.for_programs() <= frames.free.saturating_sub(frames.unused));
        assert!(!frames.has_tables(count) || count <= frames.free.saturating_sub(frames.unused));
        assert!(frames.has_table() || !frames.has_tables(count) || count == 0);
        let others = any();
        if frames.has_context(others) {
            assert!((frames.free - frames.unused) / 8 > others);
        }
        Some(())
    }

    fn memory_stays_where_it_must() {
        let history = || History::from_bits(any());
        let facts = Facts {
            advice: Advice::from_bits(any_u32(16))?,
            write: any_bool(),
            atomic: any_bool(),
            touched: history(),
            taken: history(),
            evicted: history(),
            can_move: any_bool(),
            room: any_of(&[0, 1]),
            needed: any_of(&[0, 1]),
            now: any(),
        };
        let (place, rule) = decide(facts);
        if place == Place::Device {
            assert!(facts.can_move && facts.room >= facts.needed);
            let on_host = uapi::PINMAP_ADVICE_PREFER_HOST;
            assert!(facts.atomic || facts.advice.bits() & on_host == 0);
        }
        assert!((rule == Rule::Fixed) != facts.can_move);
        Some(())
    }

    fn a_history_counts_what_is_recent() {
        let (now, later) = (any_of(&[0, 1, 1 << 40]), any_of(&[0, 1, PERIOD - 1, PERIOD]));
        if now >= 1 << 50 || later >= 1 << 50 {
            return None;
        }
        let mut history = History::default();
        for _ in 0..LIMIT {
            assert!(!history.is_too_often(now));
            history = history.again(now);
        }
        assert!(history.is_some() && history.is_too_often(now));
        assert!(history.is_too_often(now + later) == (later < PERIOD));
        Some(())
    }

    fn readahead_has_bounds() {
        let bits = || fault_around::Readahead::from_bits(any());
        let pages = fault_around::pages(any(), any_page(), bits(), bits());
        assert!((fault_around::FIRST..=block::PAGES).contains(&pages));
        assert!(fault_around::blocks(any(), fault_around::Course::from_bits(any()))
            <= fault_around::MOST);
        let _ = fault_around::Readahead::new(any(), any_page(), any_page());
        let _ = fault_around::Course::new(any(), any());
        Some(())
    }

    fn a_new_handle_was_never_one() {
        let mut counter = handle::Counter::new();
        for _ in 0..any_u32(3) & 3 {
            counter.take();
        }
        let new = counter.take()?;
        let other = any();
        assert!(new != 0 && counter.absent(new) == handle::Absent::Released);
        let released = other != 0 && other <= new;
        assert!((counter.absent(other) == handle::Absent::Released) == released);
        Some(())
    }
}

fn any_page() -> usize {
    any_of(&[0, 1, 63, 64, 65, 511, 512, 513, u64::MAX]) as usize
}
