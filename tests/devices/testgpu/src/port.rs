// SPDX-License-Identifier: MIT OR Apache-2.0
//! Access to memory for an engine that executes a packet: translated, counted, paced, and ended
//! when the packet's time is over.

use crate::fault::{Access, Fault, Reason};
use crate::hardware::Hardware;
use crate::link::Direction;
use crate::mmu::Passage;
use crate::pacer::{Pacer, Stop, CHUNK};
use crate::regs;
use crate::slot::{Stamp, STAMP_SIZE};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use vfio_user_device::Page;

/// Location of translated bytes.
#[derive(Clone, Copy, Debug)]
struct Run {
    host: bool,
    address: u64,
    bytes: usize,
}

/// Where a page is that a program accesses.
#[derive(Debug)]
pub(crate) struct Found {
    /// Whether it is in host memory.
    pub(crate) host: bool,
    /// The page, if it can be accessed directly.
    pub(crate) page: Option<Page>,
    /// Generation of the bus, for a page in host memory.
    pub(crate) bus: Option<u64>,
    /// Generation of the MMU.
    pub(crate) mmu: u64,
}

/// Access of an engine to memory, for one packet.
#[derive(Debug)]
pub struct Port<'a> {
    /// The hardware.
    pub(crate) hardware: &'a Hardware,
    vmid: usize,
    /// Pace of the packet.
    pub pacer: Pacer<'a>,
    /// End of the last access to each operand. An access that continues there is pipelined.
    streams: [u64; 4],
    oldest: usize,
}

impl<'a> Port<'a> {
    /// Makes a port for a packet that begins now and may run for `limit`, unless `abandon` becomes
    /// true.
    pub fn new(
        hardware: &'a Hardware,
        engine: usize,
        vmid: usize,
        abandon: &'a AtomicBool,
        limit: Duration,
    ) -> Self {
        Self {
            hardware,
            vmid,
            pacer: Pacer::new(hardware, engine, abandon, limit),
            streams: [u64::MAX; 4],
            oldest: 0,
        }
    }

    /// Reads an operand.
    pub fn read(&mut self, va: u64, to: &mut [u8]) -> Result<(), Stop> {
        let hardware = self.hardware;
        let mut done = 0;
        self.pieces((va, to.len(), Access::Read), |run| {
            let piece = &mut to[done..done + run.bytes];
            hardware.read(run.host, run.address, piece)?;
            done += run.bytes;
            Ok(())
        })
    }

    /// Writes an operand. `progress` grows by the bytes written, also before an error.
    pub fn write(&mut self, va: u64, from: &[u8], progress: &mut u64) -> Result<(), Stop> {
        let hardware = self.hardware;
        let mut done = 0;
        self.pieces((va, from.len(), Access::Write), |run| {
            let piece = &from[done..done + run.bytes];
            hardware.write(run.host, run.address, piece)?;
            done += run.bytes;
            *progress += run.bytes as u64;
            Ok(())
        })
    }

    /// Copies from operand to operand. `progress` grows by the bytes written, also before an error.
    pub fn copy(
        &mut self,
        (source, destination, bytes): (u64, u64, u64),
        progress: &mut u64,
        buffer: &mut [u8],
    ) -> Result<(), Stop> {
        let hardware = self.hardware;
        while *progress < bytes {
            self.pacer.check()?;
            let left = (bytes - *progress).min(buffer.len() as u64) as usize;
            let from = source.checked_add(*progress);
            let from = from.ok_or(Fault::at(Reason::VaRange, u64::MAX, Access::Read))?;
            let to = destination.checked_add(*progress);
            let to = to.ok_or(Fault::at(Reason::VaRange, u64::MAX, Access::Write))?;
            let passage = hardware.mmu.enter();
            let mut read = self.run(&passage, from, left, Access::Read)?;
            let mut written = self.run(&passage, to, read.bytes, Access::Write)?;
            let place = |run: &Run| (run.host, run.address);
            let done = hardware.copy(place(&read), place(&written), written.bytes);
            drop(passage);
            if done > 0 {
                (read.bytes, written.bytes) = (done, done);
                self.account(from, read, Access::Read);
                self.account(to, written, Access::Write);
                *progress += done as u64;
            } else {
                let piece = &mut buffer[..written.bytes];
                self.read(from, piece)?;
                self.write(to, piece, progress)?;
            }
        }
        Ok(())
    }

    fn pieces(
        &mut self,
        (va, bytes, access): (u64, usize, Access),
        mut piece: impl FnMut(Run) -> Result<(), Reason>,
    ) -> Result<(), Stop> {
        let hardware = self.hardware;
        let mut done = 0;
        while done < bytes {
            self.pacer.check()?;
            let at = va.checked_add(done as u64);
            let at = at.ok_or(Fault::at(Reason::VaRange, u64::MAX, access))?;
            let passage = hardware.mmu.enter();
            let mut run = self.run(&passage, at, (bytes - done).min(CHUNK), access)?;
            let mut result = piece(run);
            // A refused access is repeated for one page, to find the page.
            let page_left = (regs::PAGE - at % regs::PAGE) as usize;
            if result == Err(Reason::Bus) && run.bytes > page_left {
                run.bytes = page_left;
                result = piece(run);
            }
            drop(passage);
            result.map_err(|reason| Fault::at(reason, at, access))?;
            self.account(at, run, access);
            done += run.bytes;
        }
        Ok(())
    }

    /// Translates `va` and up to `limit` bytes behind it, as far as they are contiguous in the
    /// target too.
    fn run(
        &mut self,
        passage: &Passage<'_>,
        va: u64,
        limit: usize,
        access: Access,
    ) -> Result<Run, Fault> {
        let (mut run, mut left) = self.page(passage, va, access)?;
        loop {
            run.bytes = run
                .bytes
                .saturating_add(usize::try_from(left).unwrap_or(usize::MAX));
            if run.bytes >= limit {
                run.bytes = limit;
                return Ok(run);
            }
            let Some(next_va) = va.checked_add(run.bytes as u64) else {
                return Ok(run);
            };
            // A fault on a later page is reported when that page is accessed.
            let Ok((next, next_left)) = self.page(passage, next_va, access) else {
                return Ok(run);
            };
            if next.host != run.host
                || run.address.checked_add(run.bytes as u64) != Some(next.address)
            {
                return Ok(run);
            }
            left = next_left;
        }
    }

    /// Translates `va`. Returns where it is, and how many bytes of the page begin there.
    fn page(
        &mut self,
        passage: &Passage<'_>,
        va: u64,
        access: Access,
    ) -> Result<(Run, u64), Fault> {
        let hardware = self.hardware;
        let pacer = &mut self.pacer;
        let read = |host, address| {
            hardware.counters.add(regs::WALK_READS, 1);
            pacer.latency(host);
            hardware.load(host, address)
        };
        let leaf =
            hardware
                .mmu
                .translate(passage, (self.vmid, va, access), &hardware.counters, read)?;
        if leaf.host && !leaf.snoop {
            hardware.counters.add(regs::NO_SNOOP, 1);
        }
        let (address, left) = leaf.place(va);
        Ok((
            Run {
                host: leaf.host,
                address,
                bytes: 0,
            },
            left,
        ))
    }

    /// Replaces 4 or 8 aligned bytes by what `change` makes of them in one atomic access, and
    /// returns what they were. All or nothing is done.
    pub fn update(
        &mut self,
        va: u64,
        bytes: usize,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, Stop> {
        let hardware = self.hardware;
        self.pacer.check()?;
        let passage = hardware.mmu.enter();
        let (run, _) = self.page(&passage, va, Access::Atomic)?;
        let result = hardware.update((run.host, run.address), bytes, change);
        drop(passage);
        let before = result.map_err(|reason| Fault::at(reason, va, Access::Atomic))?;
        let end = va.wrapping_add(bytes as u64);
        // Another access to the same word is pipelined like the one to the next word.
        if !self.streams.contains(&end) {
            self.account(va, Run { bytes, ..run }, Access::Read);
        } else {
            self.pacer.transfer(run.host, Direction::Read, bytes as u64);
        }
        self.pacer
            .transfer(run.host, Direction::Write, bytes as u64);
        Ok(before)
    }

    /// Translates the page of `va` for an access, as a program's slot keeps it.
    pub(crate) fn find(&mut self, va: u64, access: Access) -> Result<Found, Stop> {
        let hardware = self.hardware;
        self.pacer.check()?;
        let passage = hardware.mmu.enter();
        let page_va = va & !(regs::PAGE - 1);
        let place = self.page(&passage, page_va, access);
        let (run, _) = place.map_err(|fault| Fault { va, ..fault })?;
        self.pacer.latency(run.host);
        let write = matches!(access, Access::Write | Access::Atomic);
        let (page, bus) = hardware.page(run.host, run.address, write).unzip();
        Ok(Found {
            host: run.host,
            page,
            bus: bus.flatten(),
            mmu: hardware.mmu.generation(&passage),
        })
    }

    /// Reads the page of instructions at `va`, which is a multiple of its size. Returns the
    /// generation of the MMU for which that is right.
    pub(crate) fn instructions(
        &mut self,
        va: u64,
        to: &mut [u8; regs::PAGE as usize],
    ) -> Result<u64, Stop> {
        let hardware = self.hardware;
        self.pacer.check()?;
        let passage = hardware.mmu.enter();
        let (run, _) = self.page(&passage, va, Access::Fetch)?;
        let result = hardware.read(run.host, run.address, to);
        let generation = hardware.mmu.generation(&passage);
        drop(passage);
        self.pacer.latency(run.host);
        result.map_err(|reason| Fault::at(reason, va, Access::Fetch))?;
        Ok(generation)
    }

    /// Writes bytes that are no operand, whatever the limits of the packet. Returns false, and
    /// writes only a part of them, if they cannot be written.
    pub(crate) fn attempt(&mut self, va: u64, from: &[u8]) -> bool {
        let hardware = self.hardware;
        let mut done = 0;
        while done < from.len() {
            let Some(at) = va.checked_add(done as u64) else {
                return false;
            };
            let passage = hardware.mmu.enter();
            let Ok((run, left)) = self.page(&passage, at, Access::Write) else {
                return false;
            };
            let piece = (from.len() - done).min(usize::try_from(left).unwrap_or(usize::MAX));
            let bytes = &from[done..done + piece];
            if hardware.write(run.host, run.address, bytes).is_err() {
                return false;
            }
            done += piece;
        }
        true
    }

    fn account(&mut self, va: u64, run: Run, access: Access) {
        let bytes = run.bytes as u64;
        let end = va.wrapping_add(bytes);
        match self.streams.iter_mut().find(|stream| **stream == va) {
            Some(stream) => *stream = end,
            None => {
                self.streams[self.oldest] = end;
                self.oldest = (self.oldest + 1) % self.streams.len();
                self.pacer.latency(run.host);
            }
        }
        self.pacer.transfer(run.host, direction(access), bytes);
    }

    /// Reads the packet at `va`, a multiple of the packet size.
    pub fn fetch<const N: usize>(&mut self, va: u64) -> Result<[u8; N], Stop> {
        let mut packet = [0; N];
        self.hardware.counters.add(regs::FETCHES, 1);
        self.single((va, N, Access::Fetch), |hardware, host, address| {
            hardware.read(host, address, &mut packet)
        })?;
        Ok(packet)
    }

    /// Reads a fence.
    pub fn load(&mut self, va: u64) -> Result<u64, Stop> {
        self.hardware.counters.add(regs::SYNC_ACCESSES, 1);
        self.single((va, 8, Access::Read), |hardware, host, address| {
            hardware.load(host, address)
        })
    }

    /// Writes a fence or a time stamp, after everything before it is over in the bus model.
    pub fn store(&mut self, va: u64, value: impl FnOnce(&Hardware) -> u64) -> Result<(), Stop> {
        self.pacer.settle()?;
        self.hardware.counters.add(regs::SYNC_ACCESSES, 1);
        self.single((va, 8, Access::Write), |hardware, host, address| {
            hardware.store(host, address, value(hardware))
        })
    }

    /// Writes a time stamp with the times of a packet, as [`store`](Self::store) does.
    pub fn stamp(&mut self, va: u64, stamp: Stamp) -> Result<(), Stop> {
        self.pacer.settle()?;
        self.hardware.counters.add(regs::SYNC_ACCESSES, 1);
        self.single(
            (va, STAMP_SIZE, Access::Write),
            |hardware, host, address| hardware.write(host, address, &stamp.bytes(hardware.now())),
        )
    }

    /// Makes an access that does not cross a page.
    fn single<T>(
        &mut self,
        (va, bytes, access): (u64, usize, Access),
        make: impl FnOnce(&Hardware, bool, u64) -> Result<T, Reason>,
    ) -> Result<T, Stop> {
        let hardware = self.hardware;
        self.pacer.check()?;
        let passage = hardware.mmu.enter();
        let (run, _) = self.page(&passage, va, access)?;
        let result = make(hardware, run.host, run.address);
        drop(passage);
        self.pacer.latency(run.host);
        self.pacer
            .reserve(run.host, direction(access), bytes as u64);
        Ok(result.map_err(|reason| Fault::at(reason, va, access))?)
    }
}

fn direction(access: Access) -> Direction {
    match access {
        Access::Write | Access::Atomic => Direction::Write,
        Access::Read | Access::Fetch => Direction::Read,
    }
}
