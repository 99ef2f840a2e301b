// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine of a channel: fetches descriptors and executes them (PG195, "Descriptors").

use crate::registers::{control, status};
use crate::state::{Channel, State, DATA_WIDTH};
use crate::{Shared, SLAVE_ERROR};
use std::ops::Range;
use std::sync::MutexGuard;
use vfio_user_device::number;

const SIZE: u64 = 32;
const MAGIC: u32 = 0xad4b;
const STOP: u32 = 1;
const COMPLETED: u32 = 1 << 1;
const END_OF_PACKET: u32 = 1 << 4;
/// The length field of a descriptor.
const LENGTH: u32 = (1 << 28) - 1;
/// A block of adjacent descriptors crosses no multiple of this.
const BLOCK: u64 = 4096;
/// Lengths for receiving from a stream are multiples of this.
const STREAM_UNIT: u64 = 64;
/// Upper half of what is written back for a descriptor of a stream.
const STREAM_MAGIC: u32 = 0x52b4_0000;
/// Bytes that are copied at once.
const PIECE: u64 = 4096;

/// A descriptor.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    magic: u32,
    next_adjacent: u32,
    control: u32,
    bytes: u64,
    source: u64,
    target: u64,
    next: u64,
}

impl Descriptor {
    fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| number(&bytes[at..at + 4]) as u32;
        let long = |at: usize| number(&bytes[at..at + 8]);
        Self {
            magic: word(0) >> 16,
            next_adjacent: (word(0) >> 8) & 0x3f,
            control: word(0) & 0xff,
            bytes: (word(4) & LENGTH).into(),
            source: long(8),
            target: long(16),
            next: long(24),
        }
    }

    fn is_last(&self) -> bool {
        self.control & STOP != 0
    }
}

/// A reason why the engine does not go on with a list.
#[derive(Debug)]
enum End {
    /// Bits of the status, some of which are not logged; none if Run was cleared.
    Status(u32),
    /// The device was reset, or is closed.
    Gone,
}

/// The engine of one channel, between a start and its end.
#[derive(Debug)]
pub(crate) struct Engine<'a> {
    shared: &'a Shared,
    index: usize,
    resets: u64,
}

impl Shared {
    /// Executes lists of descriptors for a channel, until the device is closed.
    pub(crate) fn run(&self, index: usize) {
        let mut state = self.lock();
        while !state.closed {
            if !std::mem::take(&mut state.channels[index].starts) {
                state = self.wait(state);
                continue;
            }
            let engine = Engine {
                shared: self,
                index,
                resets: state.resets,
            };
            drop(state);
            let end = engine.list();
            state = self.lock();
            let End::Status(bits) = end else {
                continue;
            };
            if bits & status::ERRORS != 0 && engine.is_current(&state) {
                let channel = &mut state.channels[index];
                channel.log(bits);
                let word = write_back(channel);
                drop(state);
                self.post(word);
                state = self.lock();
            }
            if engine.is_current(&state) {
                let lingers = state.lingers();
                let channel = &mut state.channels[index];
                channel.log(bits);
                (channel.busy, channel.lingers) = (false, lingers);
                if !channel.runs() {
                    channel.log(status::IDLE_STOPPED);
                }
                state.interrupt(&*self.bus);
            }
        }
    }

    /// Writes a word to the host, without a lock: the host may take its time.
    fn post(&self, word: Option<(u64, u32)>) {
        if let Some((address, word)) = word {
            // A write is posted: nobody tells the core what became of it.
            let _ = self.bus.write(address, &word.to_le_bytes());
        }
    }
}

/// The count of descriptors, and where the channel is to write it.
fn write_back(channel: &Channel) -> Option<(u64, u32)> {
    let error = u32::from(channel.status & status::ERRORS != 0) << 31;
    let word = channel.completed & 0x00ff_ffff | error;
    let wanted = channel.control & control::POLL_WRITE_BACK != 0;
    wanted.then_some((channel.write_back, word))
}

impl Engine<'_> {
    fn is_current(&self, state: &State) -> bool {
        state.resets == self.resets
    }

    /// Waits until something holds for the state. An error: there was a reset.
    fn wait_until(
        &self,
        mut holds: impl FnMut(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>, End> {
        let mut state = self.shared.lock();
        loop {
            if state.closed || !self.is_current(&state) {
                return Err(End::Gone);
            }
            if holds(&state) {
                return Ok(state);
            }
            state = self.shared.wait(state);
        }
    }

    fn is_to_host(&self) -> bool {
        self.index >= self.shared.options.pairs
    }

    fn forbid(&self, what: &str, at: u64) {
        let words = format!("{what} (channel {}, at {at:#x})", self.index);
        self.shared.lock().forbid(&words);
    }

    /// Follows a list of descriptors to its end.
    fn list(&self) -> End {
        let (mut at, mut left) = {
            let state = self.shared.lock();
            let channel = &state.channels[self.index];
            (channel.descriptor, channel.adjacent + 1)
        };
        self.check_block(at, left);
        loop {
            let descriptors = match self.fetch(at, left) {
                Ok(descriptors) => descriptors,
                Err(end) => return end,
            };
            for descriptor in descriptors {
                if let Err(end) = self.step(at, left, &descriptor) {
                    return end;
                }
                left -= 1;
                if left == 0 {
                    (at, left) = (descriptor.next, descriptor.next_adjacent + 1);
                    self.check_block(at, left);
                } else {
                    at += SIZE;
                }
            }
        }
    }

    fn check_block(&self, at: u64, left: u32) {
        if at % SIZE != 0 {
            self.forbid("a descriptor is not aligned to 32 bytes", at);
        }
        if at % BLOCK + SIZE * u64::from(left) > BLOCK {
            self.forbid("adjacent descriptors cross a multiple of 4096 bytes", at);
        }
    }

    /// Fetches adjacent descriptors, as many as there are credits for.
    fn fetch(&self, at: u64, left: u32) -> Result<Vec<Descriptor>, End> {
        let mut state = self.wait_until(|state| {
            let channel = &state.channels[self.index];
            let has_credit = !state.has_credit_mode(self.index) || channel.credits > 0;
            let may_fetch = has_credit && !state.is_halted(self.index);
            !state.is_late() && (!channel.runs() || may_fetch)
        })?;
        let has_credit_mode = state.has_credit_mode(self.index);
        let channel = &mut state.channels[self.index];
        if !channel.runs() {
            return Err(End::Status(0));
        }
        let mut count = left;
        if has_credit_mode {
            count = count.min(channel.credits);
            channel.credits -= count;
        }
        drop(state);
        let mut bytes = vec![0; (SIZE * u64::from(count)) as usize];
        if self.shared.bus.read(at, &mut bytes).is_err() {
            return Err(End::Status(status::DESCRIPTOR_UNSUPPORTED));
        }
        let descriptors = bytes.chunks_exact(SIZE as usize).map(Descriptor::parse);
        Ok(descriptors.collect())
    }

    /// Executes a descriptor, which is `left` - 1 before the last of its block.
    fn step(&self, at: u64, left: u32, descriptor: &Descriptor) -> Result<(), End> {
        if !self.wait_until(|_| true)?.channels[self.index].runs() {
            return Err(End::Status(0));
        }
        if descriptor.magic != MAGIC {
            return Err(End::Status(status::MAGIC_STOPPED));
        }
        let is_right =
            left == 1 || descriptor.next == at + SIZE && descriptor.next_adjacent == left - 2;
        if !is_right && !descriptor.is_last() {
            self.forbid("a descriptor does not describe its neighbours", at);
        }
        if descriptor.control & !(STOP | COMPLETED | END_OF_PACKET) != 0 {
            self.forbid("a reserved bit of a descriptor is set", at);
        }
        if descriptor.bytes == 0 {
            self.forbid("a descriptor has no bytes", at);
        }
        let errors = match (self.shared.options.stream, self.is_to_host()) {
            (false, false) => self.write_axi(descriptor)?,
            (false, true) => self.read_axi(descriptor)?,
            (true, false) => self.send(descriptor)?,
            (true, true) => self.receive(descriptor)?,
        };
        let mut state = self.wait_until(|_| true)?;
        let channel = &mut state.channels[self.index];
        if errors & channel.control != 0 {
            return Err(End::Status(errors));
        }
        channel.completed = channel.completed.wrapping_add(1);
        channel.count(descriptor.bytes, descriptor.is_last());
        if descriptor.control & COMPLETED != 0 {
            let word = write_back(channel);
            drop(state);
            self.shared.post(word);
            state = self.wait_until(|_| true)?;
            state.channels[self.index].log(status::COMPLETED);
        }
        if descriptor.is_last() {
            // The interrupt comes when the engine is idle.
            return Err(End::Status(status::STOPPED));
        }
        state.interrupt(&*self.shared.bus);
        Ok(())
    }

    /// The pieces of a descriptor of the memory-mapped kind: its offsets, and the AXI address.
    fn pieces(&self, descriptor: &Descriptor, axi: u64) -> impl Iterator<Item = (Range<u64>, u64)> {
        let fixed = {
            let state = self.shared.lock();
            state.channels[self.index].control & control::NON_INCREMENTING != 0
        };
        let (bytes, step) = (descriptor.bytes, if fixed { DATA_WIDTH } else { PIECE });
        (0..bytes).step_by(step as usize).map(move |start| {
            let at = if fixed { axi } else { axi.wrapping_add(start) };
            (start..bytes.min(start + step), at)
        })
    }

    /// Whether source and target of a descriptor fit each other.
    fn is_aligned(&self, descriptor: &Descriptor) -> bool {
        (descriptor.source ^ descriptor.target) % self.shared.options.alignment == 0
    }

    /// The errors of an access of the AXI side, of which the first is that nothing is there.
    fn axi_error(&self, at: u64, bytes: u64, [decode, slave]: [u32; 2]) -> u32 {
        match at.checked_add(bytes) {
            Some(end) if end <= self.shared.options.memory => 0,
            _ if SLAVE_ERROR.contains(&at) => slave,
            _ => decode,
        }
    }

    fn write_axi(&self, descriptor: &Descriptor) -> Result<u32, End> {
        if !self.is_aligned(descriptor) {
            return Ok(status::ALIGN_MISMATCH);
        }
        let mut piece = [0; PIECE as usize];
        for (range, at) in self.pieces(descriptor, descriptor.target) {
            let bytes = &mut piece[..(range.end - range.start) as usize];
            let source = descriptor.source.wrapping_add(range.start);
            if self.shared.bus.read(source, bytes).is_err() {
                return Ok(status::READ_UNSUPPORTED);
            }
            drop(self.wait_until(|state| !state.holds())?);
            let errors = [status::WRITE_DECODE, status::WRITE_SLAVE];
            let error = self.axi_error(at, bytes.len() as u64, errors);
            if error != 0 || self.shared.memory.write(at, bytes).is_none() {
                return Ok(error);
            }
        }
        Ok(0)
    }

    fn read_axi(&self, descriptor: &Descriptor) -> Result<u32, End> {
        if !self.is_aligned(descriptor) {
            return Ok(status::ALIGN_MISMATCH);
        }
        let mut piece = [0; PIECE as usize];
        for (range, at) in self.pieces(descriptor, descriptor.source) {
            let bytes = &mut piece[..(range.end - range.start) as usize];
            drop(self.wait_until(|state| !state.holds())?);
            let errors = [status::READ_DECODE, status::READ_SLAVE];
            let error = self.axi_error(at, bytes.len() as u64, errors);
            if error != 0 || self.shared.memory.read(at, bytes).is_none() {
                return Ok(error);
            }
            let target = descriptor.target.wrapping_add(range.start);
            // Posted, as above.
            let _ = self.shared.bus.write(target, bytes);
        }
        Ok(0)
    }

    /// Sends a descriptor's bytes to the stream.
    fn send(&self, descriptor: &Descriptor) -> Result<u32, End> {
        let ends = descriptor.control & END_OF_PACKET != 0;
        if descriptor.bytes % DATA_WIDTH != 0 && !ends {
            return Ok(status::INVALID_LENGTH);
        }
        let mut piece = [0; PIECE as usize];
        let mut done = 0;
        while done < descriptor.bytes {
            let count = (descriptor.bytes - done).min(PIECE);
            let bytes = &mut piece[..count as usize];
            let source = descriptor.source.wrapping_add(done);
            if self.shared.bus.read(source, bytes).is_err() {
                return Ok(status::READ_UNSUPPORTED);
            }
            done += count;
            let room = |state: &State| !state.holds() && !state.streams[self.index].is_full();
            let mut state = self.wait_until(room)?;
            state.streams[self.index].send(bytes, ends && done == descriptor.bytes);
            self.shared.changed.notify_all();
        }
        Ok(0)
    }

    /// Fills a descriptor's bytes from the stream, until the packet ends.
    fn receive(&self, descriptor: &Descriptor) -> Result<u32, End> {
        if descriptor.bytes % STREAM_UNIT != 0 {
            return Ok(status::INVALID_LENGTH);
        }
        let stream = self.index - self.shared.options.pairs;
        let (mut done, mut ended) = (0, false);
        while done < descriptor.bytes && !ended {
            let bytes;
            {
                let data = |state: &State| !state.holds() && !state.streams[stream].is_empty();
                let mut state = self.wait_until(data)?;
                let most = (descriptor.bytes - done) as usize;
                (bytes, ended) = state.streams[stream].receive(most);
                self.shared.changed.notify_all();
            }
            let target = descriptor.target.wrapping_add(done);
            // Posted, as above.
            let _ = self.shared.bus.write(target, &bytes);
            done += bytes.len() as u64;
        }
        let state = self.wait_until(|_| true)?;
        let control = state.channels[self.index].control;
        drop(state);
        if control & control::NO_STREAM_WRITE_BACK == 0 {
            let words = [STREAM_MAGIC | u32::from(ended), done as u32];
            let bytes = words.map(u32::to_le_bytes).concat();
            let _ = self.shared.bus.write(descriptor.source, &bytes);
        }
        Ok(0)
    }
}
