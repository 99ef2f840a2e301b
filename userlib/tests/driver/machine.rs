// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device for the made-up driver that executes packets: when it is told to, and when a queue is
//! waited for, no earlier.
//!
//! It knows which memory it was lent. Each access to other memory is noted and not made, and so is
//! each time that memory is freed, or comes back, while a packet on it may still be executed.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;

use crate::sys;

const PAGE: u64 = 4096;
/// Device addresses from here on are offsets in the file: fences.
pub(crate) const FENCES: u64 = 0x70_0000_0000;
/// How often a queue that cannot go on is waited for, until that is a fault of the crate.
const PATIENCE: u32 = 20_000;

mod opcode {
    pub(super) const COPY: u64 = 2;
    pub(super) const FILL: u64 = 3;
    pub(super) const FENCE_WRITE: u64 = 5;
    pub(super) const FENCE_WAIT: u64 = 6;
}

struct Queue {
    ring: u64,
    packets: u64,
    doorbell: u64,
    fences: u64,
    executed: u64,
    notices: Vec<(u32, u64, OwnedFd)>,
    stuck: u32,
}

pub(crate) struct Machine {
    file: File,
    queues: BTreeMap<u64, Queue>,
    /// Memory of the program: its length, and whether it is lent.
    memory: BTreeMap<u64, (u64, bool)>,
    /// Each case of something that must not happen, in words.
    wrong: Vec<String>,
}

fn pointer(addr: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(addr as usize)
}

fn is_reached(addr: u64, reach: &[(u64, u64)]) -> bool {
    let mut ranges = reach.iter();
    ranges.any(|&(start, length)| start <= addr && addr - start < length)
}

/// Returns the offset in the file that a device address stands for.
fn in_file(addr: u64) -> Option<u64> {
    addr.checked_sub(FENCES).filter(|at| *at < 1 << 32)
}

fn signal(fd: RawFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: The bytes are there; the descriptor is open.
    unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
}

/// The memory that a packet reads, and that it writes.
fn operands(packet: &[u64; 8]) -> [Option<Range<u64>>; 2] {
    let range = |start: u64, bytes| Some(start..start + bytes);
    match packet[0] & 0xff {
        opcode::COPY => [range(packet[1], packet[3]), range(packet[2], packet[3])],
        opcode::FILL => [None, range(packet[1], packet[2])],
        _ => [None, None],
    }
}

impl Machine {
    pub(crate) fn new(file: File) -> Self {
        Self {
            file,
            queues: BTreeMap::new(),
            memory: BTreeMap::new(),
            wrong: Vec::new(),
        }
    }

    pub(crate) fn create(&mut self, args: &sys::pinmap_queue_create) {
        let queue = Queue {
            ring: args.out_ring_offset,
            packets: args.packets.into(),
            doorbell: args.out_doorbell_offset,
            fences: args.out_fence_offset,
            executed: 0,
            notices: Vec::new(),
            stuck: 0,
        };
        self.queues.insert(args.out_queue, queue);
    }

    pub(crate) fn wrong(&mut self) -> Vec<String> {
        std::mem::take(&mut self.wrong)
    }

    /// Tells of memory, and whether the device may access it from now on.
    pub(crate) fn lend(&mut self, memory: Range<u64>, lent: bool, reach: &[(u64, u64)]) {
        if !lent {
            self.expect_unused("comes back", &memory, reach);
        }
        let entry = (memory.end - memory.start, lent);
        self.memory.insert(memory.start, entry);
    }

    /// Tells that memory is about to be freed.
    pub(crate) fn free(&mut self, memory: Range<u64>, reach: &[(u64, u64)]) {
        self.expect_unused("is freed", &memory, reach);
        self.memory.remove(&memory.start);
    }

    /// How many pieces of memory have not been freed.
    pub(crate) fn pieces(&self) -> usize {
        self.memory.len()
    }

    fn word(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, offset).expect("a word");
        u64::from_le_bytes(bytes)
    }

    /// Loads a fence of a queue, or a word that an event has in memory of the driver.
    fn load(&self, addr: u64) -> u64 {
        match in_file(addr) {
            Some(at) => self.word(at),
            // SAFETY: The driver has allocated it, and such words are aligned.
            None => unsafe { pointer(addr).cast::<u64>().read_volatile() },
        }
    }

    fn is_awaitable(&self, addr: u64, reach: &[(u64, u64)]) -> bool {
        in_file(addr).is_some() || is_reached(addr, reach)
    }

    /// Stores such a word.
    fn store(&self, addr: u64, value: u64) {
        match in_file(addr) {
            Some(at) => self
                .file
                .write_all_at(&value.to_le_bytes(), at)
                .expect("a fence"),
            // SAFETY: As above.
            None => unsafe { pointer(addr).cast::<u64>().write_volatile(value) },
        }
    }

    fn packet(&self, queue: &Queue, index: u64) -> [u64; 8] {
        let at = queue.ring + index % queue.packets * 64;
        std::array::from_fn(|word| self.word(at + 8 * word as u64))
    }

    fn expect_unused(&mut self, what: &str, memory: &Range<u64>, reach: &[(u64, u64)]) {
        let mut found = Vec::new();
        // Pages at the ends may be registered for others. What is managed is more than a piece.
        let whole = memory.start.next_multiple_of(PAGE)..memory.end / PAGE * PAGE;
        let is_whole = |&&(start, length): &&(u64, u64)| {
            length != u64::MAX && start < whole.end && whole.start < start + length
        };
        if let Some(registered) = reach.iter().find(is_whole) {
            found.push(format!(
                "memory at {memory:x?} {what} while {registered:x?} is registered"
            ));
        }
        for (id, queue) in &self.queues {
            for index in queue.executed..self.word(queue.doorbell) {
                let packet = self.packet(queue, index);
                let mut operands = operands(&packet).into_iter().flatten();
                if operands.any(|it| it.start < memory.end && memory.start < it.end) {
                    found.push(format!(
                        "memory at {memory:x?} {what} before packet {index} of queue {id} \
                         was executed"
                    ));
                }
            }
        }
        self.wrong.append(&mut found);
    }

    /// Executes a packet of a queue; `false` if there is none, or if it has to wait.
    fn step(&mut self, id: u64, reach: &[(u64, u64)]) -> bool {
        let Some(queue) = self.queues.get(&id) else {
            return false;
        };
        let (index, written) = (queue.executed, self.word(queue.doorbell));
        if index == written {
            return false;
        }
        if written - index > queue.packets {
            self.wrong.push(format!("queue {id} is overfull"));
        }
        let packet = self.packet(queue, index);
        match packet[0] & 0xff {
            opcode::FENCE_WAIT if !self.is_awaitable(packet[1], reach) => {
                let text = format!(
                    "queue {id} waits for {:#x}, which is not registered",
                    packet[1]
                );
                self.wrong.push(text);
            }
            opcode::FENCE_WAIT if self.load(packet[1]) < packet[2] => return false,
            opcode::FENCE_WRITE => self.store(packet[1], packet[2]),
            _ => self.access(id, index, &packet, reach),
        }
        let Some(queue) = self.queues.get_mut(&id) else {
            return false;
        };
        queue.executed += 1;
        let (fences, notices) = (queue.fences, std::mem::take(&mut queue.notices));
        let is_owed = |(fence, value, fd): &(u32, u64, OwnedFd)| {
            let is_reached = self.word(fences + 8 * u64::from(*fence)) >= *value;
            if is_reached {
                signal(fd.as_raw_fd());
            }
            !is_reached
        };
        let notices = notices.into_iter().filter(is_owed).collect();
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.notices = notices;
        }
        true
    }

    fn access(&mut self, id: u64, index: u64, packet: &[u64; 8], reach: &[(u64, u64)]) {
        for operand in operands(packet).into_iter().flatten() {
            let pages = (operand.start / PAGE..=(operand.end - 1) / PAGE).map(|page| page * PAGE);
            let before = self.memory.range(..=operand.start).next_back();
            let is_lent = before
                .is_some_and(|(start, (length, lent))| *lent && operand.end <= start + length);
            for (wrong, why) in [
                (!is_lent, "that was not lent"),
                (
                    !pages.clone().all(|page| is_reached(page, reach)),
                    "that is not registered",
                ),
            ] {
                if wrong {
                    let text =
                        format!("packet {index} of queue {id}: access to {operand:x?}, {why}");
                    return self.wrong.push(text);
                }
            }
        }
        let bytes = packet[3] as usize;
        match packet[0] & 0xff {
            // SAFETY: Both are lent, as was just checked, so nothing else accesses them, and they
            // are freed only after `free`, which waits for the same lock as the caller holds.
            opcode::COPY => unsafe {
                std::ptr::copy(pointer(packet[1]), pointer(packet[2]), bytes);
            },
            opcode::FILL => {
                let size = 1 << ((packet[0] >> 8) & 3);
                let pattern = packet[3].to_le_bytes();
                for at in 0..packet[2] {
                    // SAFETY: As above.
                    unsafe { *pointer(packet[1] + at) = pattern[at as usize % size] };
                }
            }
            _ => {}
        }
    }

    /// Executes up to so many packets of the queue with a number, in the order of creation.
    pub(crate) fn execute(&mut self, number: usize, packets: usize, reach: &[(u64, u64)]) {
        if let Some(&id) = self.queues.keys().nth(number) {
            for _ in 0..packets {
                self.step(id, reach);
            }
        }
    }

    /// Executes all that can be.
    pub(crate) fn finish(&mut self, reach: &[(u64, u64)]) {
        let queues: Vec<u64> = self.queues.keys().copied().collect();
        while queues.iter().any(|&id| self.step(id, reach)) {}
    }

    /// Executes until a fence is reached, other queues only where this one waits for them.
    fn reach(&mut self, id: u64, at: u64, value: u64, reach: &[(u64, u64)]) -> bool {
        while self.word(at) < value {
            let others: Vec<u64> = self.queues.keys().copied().collect();
            if !self.step(id, reach) && !others.iter().any(|&other| self.step(other, reach)) {
                return false;
            }
        }
        true
    }

    fn wait(&mut self, args: &sys::pinmap_queue_wait, reach: &[(u64, u64)]) -> Result<(), Errno> {
        let queue = self.queues.get(&args.queue).ok_or(Errno::ESTALE)?;
        let at = queue.fences + 8 * u64::from(args.fence);
        if self.reach(args.queue, at, args.value, reach) {
            return Ok(());
        }
        if args.timeout_ns == 0 {
            return Err(Errno::ETIMEDOUT);
        }
        // Perhaps another thread has to do something first.
        let queue = self.queues.get_mut(&args.queue).ok_or(Errno::ESTALE)?;
        queue.stuck += 1;
        if queue.stuck > PATIENCE {
            let text = format!("queue {} is waited for in vain", args.queue);
            self.wrong.push(text);
            return Err(Errno::EIO);
        }
        std::thread::sleep(Duration::from_micros(50));
        Err(Errno::EINTR)
    }

    /// Answers what is about queues; `None`: it is for the driver to answer.
    ///
    /// # Safety
    ///
    /// `arg` must be of the type that belongs to the number.
    pub(crate) unsafe fn answer(
        &mut self,
        number: u32,
        arg: *mut c_void,
        reach: &[(u64, u64)],
    ) -> Option<Result<(), Errno>> {
        Some(match number {
            sys::PINMAP_CMD_QUEUE_WAIT => {
                // SAFETY: As the caller promises, here and below.
                self.wait(unsafe { &*arg.cast::<sys::pinmap_queue_wait>() }, reach)
            }
            sys::PINMAP_CMD_QUEUE_NOTIFY => {
                // SAFETY: As above.
                let args = unsafe { &*arg.cast::<sys::pinmap_queue_notify>() };
                let Some(at) = self.queues.get(&args.queue).map(|queue| queue.fences) else {
                    return Some(Err(Errno::ESTALE));
                };
                if self.word(at + 8 * u64::from(args.fence)) >= args.value {
                    signal(args.fd);
                    return Some(Ok(()));
                }
                // SAFETY: The descriptor is the caller's, for the time of the call.
                let fd = unsafe { BorrowedFd::borrow_raw(args.fd) };
                let notice = (
                    args.fence,
                    args.value,
                    fd.try_clone_to_owned().expect("a copy"),
                );
                if let Some(queue) = self.queues.get_mut(&args.queue) {
                    queue.notices.push(notice);
                }
                Ok(())
            }
            sys::PINMAP_CMD_QUEUE_QUERY => {
                // SAFETY: As above.
                let args = unsafe { &mut *arg.cast::<sys::pinmap_queue_query>() };
                let Some(queue) = self.queues.get(&args.queue) else {
                    return Some(Err(Errno::ESTALE));
                };
                (args.out_state, args.out_index) = (sys::PINMAP_QUEUE_READY, queue.executed);
                Ok(())
            }
            sys::PINMAP_CMD_QUEUE_DESTROY => {
                // SAFETY: As above.
                let args = unsafe { &*arg.cast::<sys::pinmap_queue_destroy>() };
                let gone = self.queues.remove(&args.queue);
                let notices = gone.into_iter().flat_map(|queue| queue.notices);
                notices.for_each(|(_, _, fd)| signal(fd.as_raw_fd()));
                return None;
            }
            _ => return None,
        })
    }
}
