// SPDX-License-Identifier: MIT OR Apache-2.0
//! Managed memory of the made-up driver: where each page is. Nothing is ever moved; pages are where
//! the calls say.

use std::collections::BTreeMap;

use nix::errno::Errno;

use crate::sys;

const PAGE: u64 = 4096;

/// How many pages the device has room for.
const ROOM: usize = 64;

/// A page that was moved or advised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Page {
    place: u32,
    advice: u32,
    rule: u32,
}

/// The pages of one context, by their addresses.
#[derive(Default)]
pub(crate) struct Pages {
    pages: BTreeMap<u64, Page>,
    /// Bytes that moved to the device, and home.
    moved: (u64, u64),
    budget: Option<u64>,
    /// How many calls have asked where memory is.
    asked: usize,
}

impl Pages {
    pub(crate) fn asked(&self) -> usize {
        self.asked
    }

    /// Pages that begin with an address, as the range of a call.
    fn range(addr: u64, length: u64) -> Result<impl Iterator<Item = u64>, Errno> {
        if length == 0 || addr % PAGE != 0 || length % PAGE != 0 {
            return Err(Errno::EINVAL);
        }
        Ok((addr..addr + length).step_by(PAGE as usize))
    }

    fn on_device(&self) -> usize {
        let pages = self.pages.values();
        pages
            .filter(|page| page.place == sys::PINMAP_PLACE_DEVICE)
            .count()
    }

    pub(crate) fn prefetch(&mut self, args: &mut sys::pinmap_prefetch) -> Result<(), Errno> {
        let home = args.flags & sys::PINMAP_PREFETCH_HOST != 0;
        for addr in Self::range(args.addr, args.length)? {
            let room = self.on_device() < ROOM;
            let page = self.pages.entry(addr).or_default();
            let there = page.place == sys::PINMAP_PLACE_DEVICE;
            let count = match (home, there) {
                (true, false) | (false, true) => &mut args.out_there,
                (false, false) if !room => &mut args.out_no_room,
                (true, true) => {
                    page.place = sys::PINMAP_PLACE_HOST;
                    self.moved.1 += PAGE;
                    &mut args.out_moved
                }
                (false, false) => {
                    page.place = sys::PINMAP_PLACE_DEVICE;
                    self.moved.0 += PAGE;
                    &mut args.out_moved
                }
            };
            *count += PAGE;
            page.rule = sys::PINMAP_RULE_PREFETCHED;
        }
        Ok(())
    }

    pub(crate) fn advise(&mut self, args: &sys::pinmap_advise) -> Result<(), Errno> {
        let both = sys::PINMAP_ADVICE_PREFER_HOST | sys::PINMAP_ADVICE_PREFER_DEVICE;
        if args.advice & both == both {
            return Err(Errno::EINVAL);
        }
        for addr in Self::range(args.addr, args.length)? {
            self.pages.entry(addr).or_default().advice = args.advice;
        }
        Ok(())
    }

    pub(crate) fn residency(&mut self, args: &mut sys::pinmap_residency) -> Result<(), Errno> {
        self.asked += 1;
        let mut runs: Vec<sys::pinmap_run> = Vec::new();
        args.out_end = args.addr;
        for addr in Self::range(args.addr, args.length)? {
            let page = self.pages.get(&addr).copied().unwrap_or_default();
            let alike = |run: &&mut sys::pinmap_run| {
                (run.place, run.advice, run.rule) == (page.place, page.advice, page.rule)
            };
            let full = args.capacity != 0 && runs.len() == args.capacity as usize;
            match runs.last_mut().filter(alike) {
                Some(run) => run.length += PAGE,
                None if full => break,
                None => runs.push(sys::pinmap_run {
                    addr,
                    length: PAGE,
                    place: page.place,
                    access: 0,
                    advice: page.advice,
                    rule: page.rule,
                }),
            }
            args.out_end = addr + PAGE;
            *match page.place {
                sys::PINMAP_PLACE_HOST => &mut args.out_host,
                sys::PINMAP_PLACE_DEVICE => &mut args.out_device,
                _ => &mut args.out_absent,
            } += PAGE;
        }
        if args.capacity != 0 {
            args.out_count = runs.len() as u32;
            let room = args.runs as *mut sys::pinmap_run;
            // SAFETY: The caller has room for `capacity` runs, which are not more.
            unsafe { std::ptr::copy_nonoverlapping(runs.as_ptr(), room, runs.len()) };
        }
        Ok(())
    }

    pub(crate) fn budget(&mut self, args: &mut sys::pinmap_budget) -> Result<(), Errno> {
        match args.flags {
            sys::PINMAP_BUDGET_SET => self.budget = Some(args.bytes),
            _ if args.bytes != 0 => return Err(Errno::EINVAL),
            _ => {}
        }
        args.out_bytes = self.budget.unwrap_or(u64::MAX);
        args.out_used = self.on_device() as u64 * PAGE;
        args.out_room = args.out_bytes.min(ROOM as u64 * PAGE) - args.out_used;
        Ok(())
    }

    pub(crate) fn statistics(&self, args: &mut sys::pinmap_statistics) {
        (args.out_in_prefetched, args.out_home_prefetched) = self.moved;
        args.out_device_ns = 1_500;
    }
}
