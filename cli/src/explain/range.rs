// SPDX-License-Identifier: MIT OR Apache-2.0
//! The managed range in which a page is: what happened to it, from the driver's list of ranges.

use serde::Serialize;

use crate::size;

use super::{number, Run};

/// A managed range, and what happened to it: one line of the list of these.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    device: String,
    context: u64,
    pid: u32,
    /// Whether the range has its addresses to itself.
    is_window: bool,
    start: u64,
    length: u64,
    faults: u64,
    /// Bytes that went to the device, that came home, and that had to make room.
    moved: [u64; 3],
    refused: u64,
    /// The last access that was refused: its address, its kind, and why.
    last: Option<(u64, String, String)>,
}

/// The range in the output with `--json`.
#[derive(Serialize)]
pub(super) struct RangeJson<'a> {
    start: String,
    length: u64,
    window: bool,
    faults: u64,
    to_device: u64,
    home: u64,
    evicted: u64,
    refused: u64,
    last_refused: Option<RefusedJson<'a>>,
}

#[derive(Serialize)]
struct RefusedJson<'a> {
    addr: String,
    access: &'a str,
    reason: &'a str,
}

/// Reads a line of the list of managed ranges. `None`: it has another form.
pub(super) fn parse(line: &str) -> Option<Range> {
    let mut words = line.split_ascii_whitespace();
    let mut next = || words.next();
    let (device, context, pid) = (next()?.to_owned(), number(next()?)?, next()?.parse().ok()?);
    let _handle = next()?;
    let is_window = next()? == "window";
    let (start, length) = (number(next()?)?, number(next()?)?);
    let faults = number(next()?)?;
    let moved = [number(next()?)?, number(next()?)?, number(next()?)?];
    let refused = number(next()?)?;
    let last = match (next()?, next()?, next()?) {
        ("-", ..) => None,
        (addr, access, reason) => Some((number(addr)?, access.to_owned(), reason.to_owned())),
    };
    Some(Range {
        device,
        context,
        pid,
        is_window,
        start,
        length,
        faults,
        moved,
        refused,
        last,
    })
}

impl Range {
    /// The range in which an address of a run is: the window, if it is in one.
    pub(super) fn find<'a>(ranges: &'a [Self], run: &Run, addr: u64) -> Option<&'a Self> {
        let here = |range: &&Self| {
            (&range.device, range.context, range.pid) == (&run.device, run.context, run.pid)
                && addr
                    .checked_sub(range.start)
                    .is_some_and(|at| at < range.length)
        };
        let all = ranges.iter().filter(here);
        all.max_by_key(|range| range.is_window)
    }

    pub(super) fn words(&self) -> String {
        let (length, start) = (size::format(self.length), self.start);
        let range = match (self.is_window, start) {
            (true, _) => format!("window of {length} from {start:#x} on"),
            (false, 0) => "all addresses".to_owned(),
            (false, _) => format!("{length} from {start:#x} on"),
        };
        let [to_device, home, evicted] = self.moved.map(size::format);
        let mut words = format!(
            "{range}: {} faults of the device served, {to_device} moved there, {home} home, \
             {evicted} evicted",
            self.faults
        );
        if let Some((addr, access, reason)) = &self.last {
            let refused = self.refused;
            words += &format!("; {refused} refused, the last: a {access} at {addr:#x} ({reason})");
        }
        words
    }
}

/// The range as the output with `--json` has it.
pub(super) fn json(range: &Range) -> RangeJson<'_> {
    let [to_device, home, evicted] = range.moved;
    RangeJson {
        start: format!("{:#x}", range.start),
        length: range.length,
        window: range.is_window,
        faults: range.faults,
        to_device,
        home,
        evicted,
        refused: range.refused,
        last_refused: range
            .last
            .as_ref()
            .map(|(addr, access, reason)| RefusedJson {
                addr: format!("{addr:#x}"),
                access,
                reason,
            }),
    }
}
