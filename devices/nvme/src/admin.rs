// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a controller that all queues share: registers, the admin queue, and resets.
//!
//! # Resets and generations
//!
//! A reset ends all queues and all commands. Each begins a new *generation*, whose number grows
//! only when the controller has said that it is disabled: from then on it works on no memory of the
//! generations before. A queue compares the number with that of its own beginning. If they differ,
//! it ends its commands, and begins anew when it is given the next one. So threads do not wait for
//! each other, and the first one that finds the controller at fault resets it for all.
//!
//! The admin queue and all that is done with it, resets as well, are behind a lock. Commands for
//! blocks take it only to make their queue anew after a reset, or to abort one.
//!
//! # Events
//!
//! One command of the admin queue waits for an event. The event stays in [`Admin`] until the
//! program takes it. Then its log is read, without which the controller reports no other one of the
//! type, and the next command waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pinmap::{Allocation, Bar, Device, ErrorKind, Interrupt};

use crate::cmb::Cmb;
use crate::entry::{entry, Completion, Entry};
use crate::error::{demand, Error, Result};
use crate::identify::Identity;
use crate::log::Event;
use crate::options::QueueOptions;
use crate::pair::Pair;
use crate::registers::{Block, Capabilities, ENABLED, FAILED, READY, SHUT_DOWN};
use crate::PAGE;

/// How long a command of the admin queue may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the controller may take to shut down, for which it may write its caches.
const SHUT_DOWN_PATIENCE: Duration = Duration::from_secs(60);
/// How often a wait checks whether the controller still works.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
/// Entries of the admin queue, in which there are the command that waits for an event, and another
/// one at a time.
const ENTRIES: u16 = 3;
/// The identifier of the command that waits for an event. Others have 0.
const EVENT: u16 = 1;
/// How many queues are asked for; the controller may have fewer.
const QUEUES: u16 = 256;

/// Commands of the admin queue.
mod opcode {
    pub(super) const DELETE_SUBMISSIONS: u8 = 0x00;
    pub(super) const CREATE_SUBMISSIONS: u8 = 0x01;
    pub(super) const DELETE_COMPLETIONS: u8 = 0x04;
    pub(super) const CREATE_COMPLETIONS: u8 = 0x05;
    pub(super) const GET_LOG: u8 = 0x02;
    pub(super) const IDENTIFY: u8 = 0x06;
    pub(super) const ABORT: u8 = 0x08;
    pub(super) const SET_FEATURES: u8 = 0x09;
    pub(super) const EVENT: u8 = 0x0c;
}

/// A controller, as its queues have it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) device: Device,
    pub(crate) bar: Bar,
    pub(crate) identity: Identity,
    pub(crate) capabilities: Capabilities,
    block: Block,
    cmb: Option<Cmb>,
    #[cfg(feature = "accelerator")]
    pub(crate) pages: crate::stream_queue::Pages,
    generation: AtomicU64,
    /// The interrupt of the admin queue.
    interrupt: Interrupt,
    admin: Mutex<Admin>,
}

#[derive(Debug)]
struct Admin {
    /// Kept until the controller is disabled.
    pair: Option<Pair>,
    /// Whether the controller is enabled, and has answered all commands of the pair.
    is_up: bool,
    /// The event that the program has not taken yet.
    event: Option<Event>,
    page: Allocation<u8>,
    /// Which numbers of queues are taken, from 1 on.
    taken: Vec<bool>,
}

impl Shared {
    /// Brings the controller up, and identifies it.
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let info = device.info()?;
        let class = info.class;
        demand!(Invalid, class == 0x01_0802 =>
            "{device} has the class {class:06x}, and NVMe 010802");
        let what = "no view of the CPU's caches, which this driver relies on";
        demand!(Unsupported, info.coherent => "{what}");
        let bar = device.bar(0)?;
        let block: Block = bar.registers(0)?;
        let mut shared = Self {
            device: device.clone(),
            identity: Identity::default(),
            capabilities: Capabilities::of(block.capabilities().read())?,
            bar,
            cmb: Cmb::find(device, &block),
            #[cfg(feature = "accelerator")]
            pages: Default::default(),
            block,
            generation: AtomicU64::new(0),
            interrupt: device.interrupt(0)?,
            admin: Mutex::new(Admin {
                pair: None,
                is_up: false,
                event: None,
                page: device.alloc(PAGE)?,
                taken: Vec::new(),
            }),
        };
        shared.reset(0)?;
        let page = shared.identify(0, 1)?;
        shared.identity = Identity::of(&page, shared.block.version().read());
        Ok(shared)
    }

    /// The number of the generation. Commands of an earlier one are not worked on any more.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn admin(&self) -> MutexGuard<'_, Admin> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets the controller, unless somebody else has since the generation `seen`.
    ///
    /// # Errors
    ///
    /// If the controller cannot be disabled, the generation stays, and the controller may still
    /// work on memory. If it cannot be enabled, the generation is a new one, and the next command
    /// of the admin queue ends with [`Error::Down`].
    pub(crate) fn reset(&self, seen: u64) -> Result<()> {
        let mut admin = self.admin();
        if self.generation() != seen {
            return Ok(());
        }
        admin.is_up = false;
        self.disable()?;
        self.generation.store(seen + 1, Ordering::Release);
        self.enable(&mut admin)
    }

    /// Disables the controller: by its own register, or else by a reset of the PCI function.
    fn disable(&self) -> Result<()> {
        self.look_for_device()?;
        let (configuration, patience) = (self.block.configuration(), self.capabilities.patience);
        let now = configuration.read();
        // It may be coming up, and then must not be disabled before it has.
        if now & 1 != 0 && !self.is_ready()? {
            let _ = self.wait_for(patience, READY, READY);
        }
        configuration.write(now & !(1 | (3 << 14)));
        match self.wait_for(patience, READY, 0) {
            Err(Error::TimedOut) => Ok(self.device.reset()?),
            other => other,
        }
    }

    fn enable(&self, admin: &mut Admin) -> Result<()> {
        let pair = admin.pair.insert(Pair::new(self, 0, ENTRIES, None)?);
        let (submissions, completions) = pair.addresses()?;
        let entries = u32::from(ENTRIES) - 1;
        self.block.admin_entries().write((entries << 16) | entries);
        self.block.admin_submissions().write(submissions);
        self.block.admin_completions().write(completions);
        if let Some(cmb) = &self.cmb {
            cmb.begin(&self.block);
        }
        self.block.configuration().write(ENABLED);
        self.wait_for(self.capabilities.patience, READY, READY)?;
        admin.is_up = true;
        // Feature 7: the number of queues of both kinds, less one.
        let wanted = u32::from(QUEUES) - 1;
        let granted = admin.set(self, 7, (wanted << 16) | wanted)?;
        let queues = (granted >> 16).min(granted & 0xffff).min(wanted) + 1;
        // After a reset there may be queues that begin anew; their numbers stay.
        if admin.taken.is_empty() {
            admin.taken = vec![false; queues as usize];
        }
        // Feature 11: all warnings of the health log are events.
        match admin.set(self, 11, 0x1f) {
            Ok(_) | Err(Error::Status(_)) if admin.event.is_none() => admin.listen(),
            Ok(_) | Err(Error::Status(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads the status register.
    fn status(&self) -> Result<u32> {
        match self.block.status().read() {
            // The root complex answers so for a function that is not there.
            u32::MAX => Err(Error::Gone),
            status => Ok(status),
        }
    }

    /// Waits until bits of the status register have a value. A controller that fails is not ready.
    fn wait_for(&self, most: Duration, bits: u32, value: u32) -> Result<()> {
        let deadline = Instant::now() + most;
        loop {
            // Looked at before the register, in case that this thread has not run for a while.
            let is_late = Instant::now() > deadline;
            match self.status()? {
                status if status & FAILED != 0 && value == READY => return Err(Error::Fatal),
                status if status & bits == value => return Ok(()),
                _ if is_late => return Err(Error::TimedOut),
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Looks whether the device is there, and the controller works.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`], [`Error::Fatal`].
    pub(crate) fn check(&self) -> Result<()> {
        self.look_for_device()?;
        match self.status()? & FAILED {
            0 => Ok(()),
            _ => Err(Error::Fatal),
        }
    }

    /// Whether the controller is enabled, and so can answer.
    pub(crate) fn is_ready(&self) -> Result<bool> {
        Ok(self.status()? & READY != 0)
    }

    /// Looks whether the device is there, without its registers, access to which would end the
    /// program otherwise.
    pub(crate) fn look_for_device(&self) -> Result<()> {
        match self.device.info()?.gone {
            true => Err(Error::Gone),
            false => Ok(()),
        }
    }

    /// Returns the page that identifies something: 0 a namespace, 1 the controller, 2 the numbers
    /// of the namespaces behind one.
    pub(crate) fn identify(&self, namespace: u32, what: u32) -> Result<Vec<u8>> {
        self.admin().ask(self, opcode::IDENTIFY, namespace, what)
    }

    /// Returns so many bytes of a log.
    pub(crate) fn log(&self, log: u8, len: u32) -> Result<Vec<u8>> {
        self.admin().log(self, log, len)
    }

    /// Takes an event. Does not wait for one.
    pub(crate) fn event(&self) -> Result<Option<Event>> {
        let mut admin = self.admin();
        if !admin.is_up {
            return Err(Error::Down);
        }
        self.look_for_device()?;
        if admin.take()?.is_some() {
            return Err(Error::Confused);
        }
        let Some(event) = admin.event else {
            return Ok(None);
        };
        match admin.log(self, event.log(), 512) {
            Ok(_) | Err(Error::Status(_)) => {}
            Err(error) => return Err(error),
        }
        admin.event = None;
        admin.listen()?;
        Ok(Some(event))
    }

    /// Waits for the admin queue's interrupt, but not for long.
    pub(crate) fn pause(&self, most: Duration) -> Result<()> {
        match self.interrupt.wait_timeout(PAUSE.min(most)) {
            Err(error) if error.kind() == ErrorKind::TimedOut => self.check(),
            waited => Ok(waited.map(drop)?),
        }
    }

    /// Asks the controller to end a command of a queue. If it does, that ends with a status.
    pub(crate) fn abort(&self, number: u16, id: u16, generation: u64) -> Result<()> {
        let mut admin = self.admin();
        if self.generation() != generation {
            return Ok(());
        }
        let command = (u64::from(id) << 16) | u64::from(number);
        let entry = entry(opcode::ABORT, 0, 0, [command, 0]);
        admin.execute(self, entry).map(drop)
    }

    /// Takes a number for a pair of queues. Those that are polled get the last ones, because the
    /// vectors of the first ones may be all there are.
    pub(crate) fn take_number(&self, polled: bool) -> Result<u16> {
        let mut admin = self.admin();
        let free = match polled {
            true => admin.taken.iter().rposition(|taken| !taken),
            false => admin.taken.iter().position(|taken| !taken),
        };
        let Some(index) = free else {
            let what = format!("{} queues, and all are in use", admin.taken.len());
            return Err(Error::Unsupported(what));
        };
        admin.taken[index] = true;
        Ok(index as u16 + 1)
    }

    /// Gives the number of a pair of queues back that the controller does not have.
    pub(crate) fn give_number(&self, number: u16) {
        self.admin().taken[usize::from(number) - 1] = false;
    }

    /// Makes a pair of queues, which the controller has from the generation on that is returned.
    pub(crate) fn create(
        &self,
        number: u16,
        options: &QueueOptions,
        interrupt: Option<&Interrupt>,
    ) -> Result<(Pair, u64)> {
        let mut admin = self.admin();
        let entries = options.depth + 1;
        let place = match (options.in_controller, &self.cmb) {
            (false, _) => None,
            (true, Some(cmb)) => Some(cmb.place(number, admin.taken.len(), entries)?),
            (true, None) => return Err(Error::Unsupported("no memory for commands".into())),
        };
        let pair = Pair::new(self, number, entries, place)?;
        let addresses = pair.addresses()?;
        let generation = self.create_at(&mut admin, number, entries, addresses, interrupt)?;
        Ok((pair, generation))
    }

    /// Makes a pair of queues as [`create`](Self::create) does, without an interrupt, in memory of
    /// the caller's.
    #[cfg(feature = "accelerator")]
    pub(crate) fn create_in(
        &self,
        number: u16,
        entries: u16,
        addresses: (u64, u64),
    ) -> Result<u64> {
        self.create_at(&mut self.admin(), number, entries, addresses, None)
    }

    fn create_at(
        &self,
        admin: &mut Admin,
        number: u16,
        entries: u16,
        (submissions, completions): (u64, u64),
        interrupt: Option<&Interrupt>,
    ) -> Result<u64> {
        let size = (u64::from(entries - 1) << 16) | u64::from(number);
        // The upper halves: memory in one piece (bit 0), interrupts (1) and their vector (16 on),
        // or the completions of a queue of commands.
        let vector = interrupt.map_or(0, |interrupt| (interrupt.vector() << 16) | 2);
        let words = size | (u64::from(vector | 1) << 32);
        admin.execute(
            self,
            entry(opcode::CREATE_COMPLETIONS, 0, completions, [words, 0]),
        )?;
        let words = size | (u64::from(number) << 48) | (1 << 32);
        let create = entry(opcode::CREATE_SUBMISSIONS, 0, submissions, [words, 0]);
        let created = admin.execute(self, create);
        if let Err(error) = created {
            // The first error counts.
            let _ = admin.delete(self, opcode::DELETE_COMPLETIONS, number);
            return Err(error);
        }
        Ok(self.generation())
    }

    /// Makes the controller forget a pair of queues of a generation, and end their commands.
    pub(crate) fn delete(&self, number: u16, generation: u64) -> Result<()> {
        let mut admin = self.admin();
        if self.generation() != generation {
            return Ok(());
        }
        admin.delete(self, opcode::DELETE_SUBMISSIONS, number)?;
        admin.delete(self, opcode::DELETE_COMPLETIONS, number)
    }
}

impl Drop for Shared {
    /// Shuts the controller down, so that what is in its caches is not lost, and disables it.
    fn drop(&mut self) {
        let configuration = self.block.configuration();
        if self.check().is_err() || configuration.read() & 1 == 0 {
            return;
        }
        configuration.write(ENABLED | SHUT_DOWN);
        // Until both bits say so. If it does not answer, nothing more can be done.
        let _ = self.wait_for(SHUT_DOWN_PATIENCE, 3 << 2, 2 << 2);
        let _ = self.disable();
    }
}

impl Admin {
    fn delete(&mut self, shared: &Shared, opcode: u8, number: u16) -> Result<()> {
        self.execute(shared, entry(opcode, 0, 0, [number.into(), 0]))
            .map(drop)
    }

    /// Sets a feature, and returns the result.
    fn set(&mut self, shared: &Shared, feature: u32, value: u32) -> Result<u32> {
        let words = u64::from(feature) | (u64::from(value) << 32);
        self.execute(shared, entry(opcode::SET_FEATURES, 0, 0, [words, 0]))
    }

    /// Has the controller fill the page, and returns that.
    fn ask(&mut self, shared: &Shared, opcode: u8, namespace: u32, word: u32) -> Result<Vec<u8>> {
        let addr = self.page.device_addr();
        self.execute(shared, entry(opcode, namespace, addr, [word.into(), 0]))?;
        Ok(self.page.to_vec())
    }

    fn log(&mut self, shared: &Shared, log: u8, len: u32) -> Result<Vec<u8>> {
        // The number of words, less one.
        let word = ((len / 4 - 1) << 16) | u32::from(log);
        let mut page = self.ask(shared, opcode::GET_LOG, u32::MAX, word)?;
        page.truncate(len as usize);
        Ok(page)
    }

    /// Has a command wait for the next event.
    fn listen(&mut self) -> Result<()> {
        let pair = self.pair.as_mut().ok_or(Error::Down)?;
        let mut entry = entry(opcode::EVENT, 0, 0, [0; 2]);
        entry[0] |= u64::from(EVENT) << 16;
        pair.push(entry)?;
        pair.tell();
        Ok(())
    }

    /// Takes a completion, but keeps events.
    fn take(&mut self) -> Result<Option<Completion>> {
        let pair = self.pair.as_mut().ok_or(Error::Down)?;
        while let Some(completion) = pair.pop()? {
            if completion.id != EVENT {
                return Ok(Some(completion));
            }
            // A controller that refuses to wait is not asked again.
            if completion.outcome().is_ok() {
                self.event = Some(Event(completion.result));
            }
        }
        Ok(None)
    }

    /// Executes a command, and returns its result.
    fn execute(&mut self, shared: &Shared, entry: Entry) -> Result<u32> {
        let Some(pair) = self.pair.as_mut().filter(|_| self.is_up) else {
            return Err(Error::Down);
        };
        shared.look_for_device()?;
        pair.push(entry)?;
        pair.tell();
        // Until it is answered, its answer could be taken for that of the next command.
        self.is_up = false;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let is_late = Instant::now() > deadline;
            if let Some(completion) = self.take()? {
                self.is_up = true;
                completion.outcome()?;
                return Ok(completion.result);
            }
            if is_late {
                return Err(Error::TimedOut);
            }
            shared.pause(PAUSE)?;
        }
    }
}
