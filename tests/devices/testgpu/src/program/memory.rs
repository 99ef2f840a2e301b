// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory that a program sees: the slot's own TLB for data, and decoded instructions.

use super::compressed::expand;
use super::decode::{decode, Kind, Op};
use crate::fault::{Access, Fault};
use crate::hardware::Hardware;
use crate::pacer::Stop;
use crate::port::{Found, Port};
use crate::regs;
use std::fmt;
use vfio_user_device::Page;

/// Number of pages that the TLB of a slot holds.
const ENTRIES: usize = 4096;
/// Pages of instructions that are kept after a launch for the next one; about so many.
const MOST_OLD: usize = 64;
/// How often the lock for atomic accesses is tried before the gates are let go.
const LOCK_TRIES: u32 = 1000;
/// Instructions begin at multiples of 2.
const PLACES: usize = regs::PAGE as usize / 2;

/// An access that cannot be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Miss {
    pub(super) va: u64,
    pub(super) access: Access,
}

/// How a program's instructions reach memory.
pub(super) trait Data {
    /// Reads `N` bytes.
    fn load<const N: usize>(&mut self, va: u64) -> Result<u64, Miss>;
    /// Writes `N` bytes.
    fn store<const N: usize>(&mut self, va: u64, value: u64) -> Result<(), Miss>;
    /// Makes an atomic access to 4 or 8 bytes, and returns what they were.
    fn update(
        &mut self,
        va: u64,
        bytes: usize,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, Miss>;
}

/// Bits of a tag, below the number of the page: permitted accesses, and whether it is host memory.
const READ: u64 = 1;
const WRITE: u64 = 2;
const ATOMIC: u64 = 4;
const HOST: u64 = 8;
const BITS: u64 = 16;

/// A page in the TLB.
#[derive(Clone, Debug)]
struct Entry {
    tag: u64,
    page: Option<Page>,
}

const EMPTY: Entry = Entry {
    tag: u64::MAX - (BITS - 1),
    page: None,
};

impl Entry {
    /// Returns the page with this number, if it may be accessed so.
    #[inline(always)]
    fn get(&self, number: u64, access: u64) -> Option<&Page> {
        let differs = self.tag ^ (number * BITS + access);
        match differs & !((BITS - 1) ^ access) {
            0 => self.page.as_ref(),
            _ => None,
        }
    }

    fn host(&self) -> usize {
        usize::from(self.tag & HOST != 0)
    }
}

/// The slot's TLB, for the data of one launch.
pub(super) struct Pages {
    entries: Box<[Entry; ENTRIES]>,
    /// Places of entries that are not empty.
    used: Vec<usize>,
    mmu: u64,
    bus: u64,
    /// Bytes read and written, in VRAM and in host memory, that are not accounted for yet.
    moved: [[u64; 2]; 2],
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages").finish_non_exhaustive()
    }
}

/// Returns the number of a page, and where its entry is: neighbours have neighbouring places, and
/// arrays at round distances different ones.
#[inline(always)]
fn place(va: u64) -> (u64, usize) {
    let number = va / regs::PAGE;
    let folded = number ^ (number >> 11) ^ (number >> 23);
    (number, folded as usize % ENTRIES)
}

impl Pages {
    pub(super) fn new() -> Self {
        let entries: Box<[Entry]> = vec![EMPTY; ENTRIES].into();
        Self {
            entries: entries.try_into().unwrap_or_else(|_| unreachable!()),
            used: Vec::new(),
            mmu: 0,
            bus: 0,
            moved: [[0; 2]; 2],
        }
    }

    pub(super) fn clear(&mut self) {
        for index in self.used.drain(..) {
            self.entries[index] = EMPTY;
        }
    }

    /// Drops the entries if they may be old.
    pub(super) fn renew(&mut self, mmu: u64, bus: Option<u64>) {
        let bus = bus.unwrap_or(self.bus);
        if (self.mmu, self.bus) != (mmu, bus) {
            self.clear();
            (self.mmu, self.bus) = (mmu, bus);
        }
    }

    /// Enters a page. Returns whether it can be accessed directly.
    pub(super) fn enter(&mut self, va: u64, access: Access, found: Found) -> bool {
        self.renew(found.mmu, found.bus);
        let Some(page) = found.page else {
            return false;
        };
        let (number, index) = place(va);
        let entry = &mut self.entries[index];
        // For another kind of access the entry may be there already; it is the same page.
        if entry.tag / BITS != number {
            if entry.page.is_none() {
                self.used.push(index);
            }
            entry.tag = number * BITS;
        }
        entry.tag |= match access {
            Access::Write => WRITE,
            Access::Atomic => ATOMIC,
            Access::Read | Access::Fetch => READ,
        };
        entry.tag |= if found.host { HOST } else { 0 };
        entry.page = Some(page);
        true
    }

    /// Returns what was moved since the last call: read and written, in VRAM and in host memory.
    pub(super) fn take_moved(&mut self) -> [[u64; 2]; 2] {
        std::mem::take(&mut self.moved)
    }
}

/// Direct accesses to the pages in the TLB. The gates of MMU and bus are held.
pub(super) struct Direct<'a> {
    pub(super) pages: &'a mut Pages,
    pub(super) hardware: &'a Hardware,
}

impl Data for Direct<'_> {
    #[inline(always)]
    fn load<const N: usize>(&mut self, va: u64) -> Result<u64, Miss> {
        let (number, index) = place(va);
        let entry = &self.pages.entries[index];
        if let (Some(page), true) = (entry.get(number, READ), fits::<N>(va)) {
            self.pages.moved[entry.host()][0] += N as u64;
            return Ok(page.load::<N>(va % regs::PAGE));
        }
        let access = Access::Read;
        Err(Miss { va, access })
    }

    #[inline(always)]
    fn store<const N: usize>(&mut self, va: u64, value: u64) -> Result<(), Miss> {
        let (number, index) = place(va);
        let entry = &self.pages.entries[index];
        if let (Some(page), true) = (entry.get(number, WRITE), fits::<N>(va)) {
            self.pages.moved[entry.host()][1] += N as u64;
            page.store::<N>(va % regs::PAGE, value);
            return Ok(());
        }
        let access = Access::Write;
        Err(Miss { va, access })
    }

    fn update(
        &mut self,
        va: u64,
        bytes: usize,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, Miss> {
        let (number, index) = place(va);
        let entry = &self.pages.entries[index];
        let access = Access::Atomic;
        let Some(page) = entry.get(number, ATOMIC) else {
            return Err(Miss { va, access });
        };
        let at = va % regs::PAGE;
        let host = entry.host();
        let moved = &mut self.pages.moved[host];
        if host == 0 {
            *moved = moved.map(|count| count + bytes as u64);
            let before = page.update(at, bytes, change);
            return before.ok_or(Miss { va, access });
        }
        // A read and a write on the bus. Who has the lock may wait for the gate that is held here.
        let mut tries = 0..LOCK_TRIES;
        let locked = tries.find_map(|_| self.hardware.try_host_atomics());
        let Some(_alone) = locked else {
            return Err(Miss { va, access });
        };
        *moved = moved.map(|count| count + bytes as u64);
        let before = match bytes {
            8 => page.load::<8>(at),
            _ => page.load::<4>(at),
        };
        match (change(before), bytes) {
            (Some(after), 8) => page.store::<8>(at, after),
            (Some(after), _) => page.store::<4>(at, after),
            (None, _) => {}
        }
        Ok(before)
    }
}

#[inline(always)]
fn fits<const N: usize>(va: u64) -> bool {
    va % regs::PAGE <= regs::PAGE - N as u64
}

/// Accesses one at a time, where direct ones cannot be made. The reason of a miss is in `stop`.
pub(super) struct Single<'a, 'p> {
    pub(super) port: &'a mut Port<'p>,
    pub(super) stop: Option<Stop>,
}

impl Single<'_, '_> {
    fn note<T>(&mut self, va: u64, access: Access, result: Result<T, Stop>) -> Result<T, Miss> {
        result.map_err(|stop| {
            self.stop = Some(stop);
            Miss { va, access }
        })
    }
}

impl Data for Single<'_, '_> {
    fn load<const N: usize>(&mut self, va: u64) -> Result<u64, Miss> {
        let mut bytes = [0; 8];
        let result = self.port.read(va, &mut bytes[..N]);
        self.note(va, Access::Read, result)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store<const N: usize>(&mut self, va: u64, value: u64) -> Result<(), Miss> {
        let last = va.wrapping_add(N as u64 - 1);
        if !fits::<N>(va) {
            // Nothing is written if a part cannot be.
            let second = last & !(regs::PAGE - 1);
            let result = self.port.find(second, Access::Write).map(drop);
            self.note(second, Access::Write, result)?;
        }
        let mut written = 0;
        let result = self.port.write(va, &value.to_le_bytes()[..N], &mut written);
        self.note(va, Access::Write, result)
    }

    fn update(
        &mut self,
        va: u64,
        bytes: usize,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, Miss> {
        let result = self.port.update(va, bytes, change);
        self.note(va, Access::Atomic, result)
    }
}

/// A page of instructions: as it was in memory, and decoded as far as it was executed.
pub(super) struct CodePage {
    va: u64,
    bytes: Box<[u8; regs::PAGE as usize]>,
    pub(super) ops: Box<[Op; PLACES]>,
}

impl CodePage {
    fn half(&self, place: usize) -> u16 {
        let at = place % PLACES * 2;
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Decodes the instruction at a place; `None` if its second half is on the next page.
    pub(super) fn decode(&mut self, place: usize) -> Option<Op> {
        let low = self.half(place);
        let op = match low & 3 {
            3 if place == PLACES - 1 => return None,
            3 => decode((u32::from(self.half(place + 1)) << 16) | u32::from(low)),
            _ => short(low),
        };
        self.ops[place] = op;
        Some(op)
    }

    /// Returns the instruction at an address, as far as it is on this page.
    fn raw(&self, va: u64) -> u32 {
        let place = (va / 2) as usize % PLACES;
        let low = u32::from(self.half(place));
        match low & 3 {
            3 if place < PLACES - 1 => low | (u32::from(self.half(place + 1)) << 16),
            _ => low,
        }
    }
}

fn short(low: u16) -> Op {
    let kind = Kind::Illegal;
    let op = expand(low).map_or(
        Op {
            kind,
            ..Op::default()
        },
        decode,
    );
    Op { length: 2, ..op }
}

/// The instructions of a launch.
pub(super) struct Code {
    pages: Vec<CodePage>,
    /// Pages whose translation may be old, to compare with what is read again.
    old: Vec<CodePage>,
    mmu: u64,
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Code").finish_non_exhaustive()
    }
}

impl Code {
    pub(super) fn new() -> Self {
        Self {
            pages: Vec::new(),
            old: Vec::new(),
            mmu: 0,
        }
    }

    /// Has all pages read again before they are used again.
    pub(super) fn renew_all(&mut self) {
        if self.old.len() > MOST_OLD {
            self.old.clear();
        }
        self.old.append(&mut self.pages);
    }

    /// Has all pages read again if they may be old.
    pub(super) fn renew(&mut self, mmu: u64) {
        if self.mmu != mmu {
            self.renew_all();
            self.mmu = mmu;
        }
    }

    /// Returns the page of an instruction.
    pub(super) fn find(&mut self, pc: u64) -> Option<&mut CodePage> {
        let va = pc & !(regs::PAGE - 1);
        self.pages.iter_mut().find(|page| page.va == va)
    }

    /// Returns the instruction at an address, as far as it is known.
    pub(super) fn raw(&mut self, pc: u64) -> u64 {
        self.find(pc).map_or(0, |page| page.raw(pc).into())
    }

    /// Fetches what is missing of the instruction at an address.
    pub(super) fn fetch(&mut self, port: &mut Port<'_>, pc: u64) -> Result<(), Stop> {
        if self.find(pc).is_none() {
            return self
                .read(port, pc & !(regs::PAGE - 1))
                .map_err(|stop| match stop {
                    Stop::Fault(fault) => Stop::Fault(Fault { va: pc, ..fault }),
                    stop => stop,
                });
        }
        // It reaches into the next page.
        let next = (pc | (regs::PAGE - 1)).wrapping_add(1);
        if self.find(next).is_none() {
            self.read(port, next)?;
        }
        let high = self.find(next).map(|page| u32::from(page.half(0)));
        if let (Some(page), Some(high)) = (self.find(pc), high) {
            let low = u32::from(page.half(PLACES - 1));
            page.ops[PLACES - 1] = decode((high << 16) | low);
        }
        Ok(())
    }

    fn read(&mut self, port: &mut Port<'_>, va: u64) -> Result<(), Stop> {
        let mut bytes = Box::new([0; regs::PAGE as usize]);
        let mmu = port.instructions(va, &mut bytes)?;
        self.renew(mmu);
        let old = self.old.iter().position(|page| page.va == va);
        let page = match old.map(|index| self.old.swap_remove(index)) {
            Some(mut page) if page.bytes == bytes => {
                // What follows on the next page may have changed.
                page.ops[PLACES - 1] = Op::default();
                page
            }
            _ => {
                let ops: Box<[Op]> = vec![Op::default(); PLACES].into();
                CodePage {
                    va,
                    bytes,
                    ops: ops.try_into().unwrap_or_else(|_| unreachable!()),
                }
            }
        };
        self.pages.push(page);
        Ok(())
    }
}
